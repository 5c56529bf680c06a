"""Eight processes on one bucket of one table, for real: what they get together, and what it takes."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from tests.laws.test_shards_simulation import worst_balance
from tests.support.aws import engine
from zae_limiter import Limit, SyncRepository

PROCESSES = 8
SECONDS = 6
LIMIT = Limit.per_second("rps", 50, burst=25)

CLIENT = """
import json, sys
from zae_limiter import RateLimitExceeded, SyncRateLimiter

limiter = SyncRateLimiter(sys.argv[1], timeout=60)
limiter.available("key", "gpt-4")
print("ready", flush=True)
sys.stdin.readline()
store = limiter._inner._backend.store
clock, call, log = store.clock, store.client.call, []

async def logged(operation, request, **options):
    log.append(operation)
    try:
        return await call(operation, request, **options)
    except Exception as error:
        log[-1] = type(error).__name__
        raise

store.client.call = logged
end_ms = clock.now_ms() + int(sys.argv[2]) * 1000
granted = []
while clock.now_ms() < end_ms:
    try:
        with limiter.acquire("key", "gpt-4", {"rps": 1}, max_wait=1) as lease:
            granted.append(lease._grant.now_ms)
    except RateLimitExceeded:
        pass
print(json.dumps({"granted": granted, "calls": log}))
"""


def together(url: str) -> list[dict[str, Any]]:
    """Start the clients, let them go at once, and collect what they say."""
    command = [sys.executable, "-c", CLIENT, url, str(SECONDS)]
    clients = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(PROCESSES)
    ]
    for client in clients:
        assert client.stdout is not None
        assert client.stdout.readline() == "ready\n"
    for client in clients:
        assert client.stdin is not None
        client.stdin.write("go\n")
        client.stdin.flush()
    return [json.loads(client.communicate(timeout=60 + SECONDS)[0]) for client in clients]


@pytest.mark.alone
def test_eight_processes_get_what_the_limit_allows_and_no_more() -> None:
    table = f"eight-{uuid.uuid4().hex[:8]}"
    url = f"dynamodb://{table}?region=us-east-1&endpoint_url={engine.endpoint()}"
    with SyncRepository(url) as repository:
        repository.create_table()
        repository.set_system_defaults([LIMIT])
    told = together(url)
    granted = sorted(instant for each in told for instant in each["granted"])
    assert worst_balance([(instant, 1) for instant in granted], LIMIT) >= 0
    allowed = LIMIT.capacity + LIMIT.refill_rate * (granted[-1] - granted[0]) / 1000
    assert 0.98 * allowed <= len(granted) <= allowed + 1
    assert granted[-1] - granted[0] >= 0.9 * SECONDS * 1000
    followers = Counter(after for each in told for call, after in pairwise(each["calls"]) if call == "Refused")
    assert followers.keys() <= {"UpdateItem", "Refused"}, "conflicts are resolved by what they answer"
    assert followers.total() > 0, "there were some"
