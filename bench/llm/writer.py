"""A second process that settles calls of the same key, one after the other: ``python -m bench.llm.writer URL``.

It says when it has begun, and ends with its standard input.
"""

from __future__ import annotations

import json
import sys
from threading import Thread

from bench.llm.cases import ESTIMATE, USED
from bench.llm.ours import RESOURCE
from zae_limiter import SyncRateLimiter


def main(url: str, key: str) -> None:
    """Write until there is no more input."""
    limiter = SyncRateLimiter(url)

    def call() -> None:
        with limiter.acquire(key, RESOURCE, ESTIMATE) as lease:
            lease.settle(tpm=USED)

    def write() -> None:
        while True:
            call()

    call()
    Thread(target=write, daemon=True).start()
    print(json.dumps("ready"), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
