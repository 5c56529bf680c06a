"""Usage under load: what eight processes have used by their own account is what usage says, to the token."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import uuid
from collections import Counter
from pathlib import Path

import pytest

from tests.aws.test_end_to_end import stream
from tests.support import usage_clients as clients
from tests.support.aws import engine
from tests.support.paths import ROOT
from tests.support.redis import shared
from zae_limiter import SyncRateLimiter, SyncRepository, UsageSnapshot
from zae_limiter.stores.memory import MemoryStore
from zae_limiter_aggregator.batch import Aggregator
from zae_limiter_aggregator.settings import AggregatorSettings


def url_of(kind: str, folder: Path) -> str:
    fresh = uuid.uuid4().hex[:8]
    urls = {
        "sqlite": lambda: f"sqlite:///{folder}/usage.db",
        "redis": lambda: f"{shared.server().url}?prefix=u{fresh}",
        "redis-cluster": lambda: f"{shared.cluster().url}?prefix=u{fresh}",
        "dynamodb": lambda: f"dynamodb://usage-{fresh}?region=us-east-1&endpoint_url={engine.endpoint()}",
    }
    return urls[kind]()


def eight_processes(url: str) -> Counter[str]:
    """What they have used together."""
    command = [sys.executable, "-m", "tests.support.usage_clients", url]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    told = [Counter[str](json.loads(line)) for line in run.stdout.splitlines()]
    assert len(told) == clients.PROCESSES
    return sum(told, Counter())


def snapshots(limiter: SyncRateLimiter) -> list[UsageSnapshot]:
    return [each for who in (*clients.KEYS, "org") for each in limiter.get_usage_snapshots(who, limit=10_000)[0]]


def totals(found: list[UsageSnapshot], window: str) -> Counter[str]:
    total = Counter[str]()
    for each in found:
        if each.window_type == window:
            total.update({f"{each.entity_id} {name}": amount for name, amount in each.counters.items()})
            total[f"{each.entity_id} changes"] += each.total_events
    return total


def check_exact(limiter: SyncRateLimiter, used: Counter[str]) -> None:
    """Every kind of window adds up to what was used, and a day to its hours."""
    found = snapshots(limiter)
    for window in ("hourly", "daily", "monthly"):
        assert +totals(found, window) == +used, window
    hours = {each.window_start for each in found if each.window_type == "hourly"}
    assert len(hours) > 2, "the clients have met a turn of the hour"
    for day in [each for each in found if each.window_type == "daily"]:
        of_day = [each for each in found if each.window_start[:10] == day.window_start[:10]]
        mine = [each for each in of_day if each.entity_id == day.entity_id and each.window_type == "hourly"]
        assert totals(mine, "hourly") == totals([day], "daily")


@pytest.mark.parametrize("kind", ["sqlite", "redis", "redis-cluster"])
def test_eight_processes(kind: str, tmp_path: Path) -> None:
    url = url_of(kind, tmp_path)
    with SyncRateLimiter(SyncRepository(clients.opened(url))) as limiter:
        clients.prepare(limiter)
        used = eight_processes(url)
        assert used["org rps"] > 0
        check_exact(limiter, used)


def test_eight_threads_in_memory() -> None:
    with SyncRateLimiter(SyncRepository(MemoryStore(clients.FastClock()))) as limiter:
        clients.prepare(limiter)
        told: list[Counter[str]] = []
        work = [
            threading.Thread(target=lambda seed=seed: told.append(clients.consume(limiter, seed)))
            for seed in range(clients.PROCESSES)
        ]
        for each in work:
            each.start()
        for each in work:
            each.join()
        assert len(told) == clients.PROCESSES
        check_exact(limiter, sum(told, Counter()))


def test_eight_processes_on_dynamodb(tmp_path: Path) -> None:
    """There the stream aggregator counts. Its events are writes: an acquire that gave a level back has made two."""
    url = url_of("dynamodb", tmp_path)
    with SyncRateLimiter(SyncRepository(clients.opened(url))) as limiter:
        limiter.repository.create_table()
        clients.prepare(limiter)
        used = eight_processes(url)
        table = url.partition("://")[2].partition("?")[0]
        function = Aggregator(limiter.repository.store, AggregatorSettings(table, ("hourly", "daily"), 90, None), None)
        assert function.process(stream(table)) == {"batchItemFailures": []}
        found = snapshots(limiter)
    for window in ("hourly", "daily"):
        counted = totals(found, window)
        assert {what: counted[what] for what in used if "changes" not in what} == {
            what: amount for what, amount in used.items() if "changes" not in what
        }, window
