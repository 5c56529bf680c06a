"""Ends what a test run has left behind, however the run ended: finished, interrupted or killed.

One small process per process that starts servers. It is told what exists, and ends all of it when it is told to or when
its standard input ends, which comes even if nobody is left to say anything.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import sys

_REAPERS: dict[int, subprocess.Popen[bytes]] = {}
"""By the process that started them: a fork inherits those of its parent and must not use them."""


def tell(verb: str, what: object) -> None:
    """``process`` and ``folder`` name what exists, ``gone`` what no longer does."""
    reaper = _REAPERS.get(os.getpid())
    if reaper is None:
        reaper = _REAPERS[os.getpid()] = _start()
        atexit.register(_end, os.getpid())
    assert reaper.stdin is not None
    os.write(reaper.stdin.fileno(), f"{verb} {what}\n".encode())


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__],
        stdin=subprocess.PIPE,
        start_new_session=True,  # an interrupt at the terminal is for the tests
    )


def _end(owner: int) -> None:
    if os.getpid() == owner:
        _REAPERS[owner].communicate(b"end now\n")


def main() -> None:
    """Listen, then end whatever is left."""
    processes, folders = set[str](), set[str]()
    for line in sys.stdin:
        verb, _, what = line.rstrip("\n").partition(" ")
        if verb == "end":
            break
        if verb == "gone":
            processes.discard(what)
            folders.discard(what)
        else:
            (processes if verb == "process" else folders).add(what)
    for process in processes:
        try:
            os.kill(int(process), signal.SIGKILL)
        except ProcessLookupError:
            continue
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
