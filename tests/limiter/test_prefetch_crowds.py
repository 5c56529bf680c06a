"""Prefetch with real processes: a tenth of the calls, never more than the limit, and usage to the token.

Eight processes of `tests.support.prefetch_clients` share two keys of one organisation. Each of them logs its grants, so
that the limit can be checked in windows of time, and the books of the store against what was really granted.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import defaultdict
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import pytest

from tests.support import prefetch_clients as clients
from tests.support.aws import engine
from tests.support.aws.wire import Wire
from tests.support.paths import ROOT
from tests.support.prefetch_clients import KEYS, ORGANISATION, PACE, ROOMY, TIGHT, Grant, ProcessLog
from tests.support.redis import shared
from tests.support.waiting import NeverHappened, eventually, until
from zae_limiter import SyncRateLimiter, SyncRepository

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from zae_limiter import BucketState

pytestmark = pytest.mark.unix

SECONDS, EXACT_SECONDS, KILLED_SECONDS = 2.0, 1.0, 2.0
"""For how long processes ask: with prefetch, without it, and where some are killed."""
PREFETCH = 0.5
LAG = 0.05
"""How long ago a draw from a full bucket may be decided as of."""
MODES = {"sqlite": "blocking", "redis": "async", "dynamodb": "blocking"}
OTHER_MODES = {"sqlite": "async", "redis": "blocking", "dynamodb": "async"}
NAMES = ("rps", "tps")
MILLI, NANO = 1000, 10**9

Totals: TypeAlias = dict[tuple[str, str, str], float]
"""Tokens by entity, resource and limit."""


class Place(NamedTuple):
    """A fresh store with the entities and limits of the processes."""

    url: str
    """For the processes."""
    direct_url: str
    """Past what counts the calls of the processes."""
    count_calls: Callable[[], int]
    """Return the calls so far, but for those that processes count themselves."""


@contextlib.contextmanager
def open_place(kind: str, folder: Path) -> Iterator[Place]:
    """Open a place in a store of a kind."""
    fresh = f"prefetch-{uuid.uuid4().hex[:8]}"
    with contextlib.ExitStack() as stack:
        if kind == "sqlite":
            url = f"sqlite:///{folder}/{fresh}.db"
            place = Place(url, url, int)
        elif kind == "redis":
            url = f"{shared.server().url}?prefix={fresh}"
            place = Place(url, url, count_scripts)
        else:
            wire = stack.enter_context(Wire(engine.endpoint()))
            table = f"dynamodb://{fresh}?region=us-east-1&endpoint_url="
            place = Place(table + wire.url, table + engine.endpoint(), lambda: len(wire.calls()))
            with SyncRepository(place.direct_url) as repository:
                repository.create_table()
        with SyncRateLimiter(place.direct_url) as limiter:
            clients.prepare(limiter)
        yield place


def count_scripts() -> int:
    """Return how many scripts the Redis server has run: every call of the store is one."""
    commands = shared.server().command_stats()
    return commands.get("eval", 0) + commands.get("evalsha", 0)


class Processes(NamedTuple):
    """Eight processes that are ready."""

    pids: list[int]
    folder: Path
    begin: Callable[[], None]

    def read_logs(self) -> dict[int, ProcessLog]:
        """Read what they have done so far, by process id."""
        return {pid: ProcessLog.read(self.folder / str(pid)) for pid in self.pids}

    def warm_up(self, seconds: float) -> None:
        """Wait until each has asked for half a second, so that it draws in advance; at most for so many seconds."""

        def are_warm() -> bool:
            return all(log.decisions > PACE / 2 for log in self.read_logs().values())

        with contextlib.suppress(NeverHappened):
            until(are_warm, "enough decisions", seconds=seconds, pause=0.05)


@contextlib.contextmanager
def start_processes(
    place: Place, mode: str, prefetch: float, seconds: float, folder: Path, resources: Iterable[str]
) -> Iterator[Processes]:
    """Start the processes. Wait for all of them at the end; fail if one has failed, unless it was killed."""
    folder.mkdir()
    words = [place.url, mode, str(prefetch), str(seconds), str(folder), *resources]
    command = [sys.executable, "-m", "tests.support.prefetch_clients", *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True, start_new_session=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            pids = [int(process.stdout.readline()) for _ in range(clients.PROCESSES)]
            yield Processes(pids, folder, process.stdin.close)
            assert process.wait() == 0
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@dataclass(frozen=True)
class Crowd:
    """What eight processes have done together, from an instant on."""

    logs: dict[int, ProcessLog]
    started_ns: int
    prefetch: float

    @property
    def grants(self) -> list[Grant]:
        """All grants."""
        return [grant for log in self.logs.values() for grant in log.grants]

    def check_law(self) -> None:
        """Check that never more of `TIGHT` was granted than there was.

        From the start on that is law 1, as a token is never granted before the instant as of which it is decided. In
        windows that begin later, tokens are granted that were decided up to ``prefetch`` before.
        """
        granted = [grant for grant in self.grants if grant.resource == TIGHT]
        assert find_excess(granted, self.started_ns, LAG) <= 0
        end_ns = max((grant.granted_ns for grant in granted), default=0)
        for since_ns in range(self.started_ns, end_ns, NANO // 50):
            assert find_excess(granted, since_ns, max(LAG, self.prefetch)) <= 0


def find_excess(grants: Iterable[Grant], since_ns: int, slack: float) -> float:
    """Return by how much grants exceed the limit at worst, in windows that begin at ``since_ns``.

    A window of ``w`` seconds has capacity + rate x (w + ``slack``). What was given back was not granted, and what was
    used beyond that is debt. Only what was both asked for and granted in a window is in it for sure.
    """
    limit = clients.TIGHT_LIMITS[1]
    rate = limit.refill_amount / limit.refill_period_seconds
    inside = sorted((each.granted_ns, net_tokens(each)) for each in grants if each.asked_ns >= since_ns)
    sums = accumulate(tokens for _, tokens in inside)
    windows = [(granted_ns - since_ns) / NANO for granted_ns, _ in inside]
    return max(
        [total - limit.capacity - rate * (w + slack) for total, w in zip(sums, windows, strict=True)], default=0.0
    )


def net_tokens(grant: Grant) -> int:
    """Return the tokens of a grant that were not given back."""
    return grant.cost["tps"] + min(0, grant.change.get("tps", 0))


def sum_used(grants: Iterable[Grant]) -> Totals:
    """Return what leases have used by their own account."""
    return add_up(grants, lambda grant, name: grant.cost[name] + grant.change.get(name, 0))


def add_up(grants: Iterable[Grant], count: Callable[[Grant, str], int]) -> Totals:
    """Return the totals of what ``count`` returns for each grant and limit, at both levels of its chain."""
    total: Totals = defaultdict(int)
    for grant in grants:
        for entity_id in (grant.key, ORGANISATION):
            for name in NAMES:
                total[entity_id, grant.resource, name] += count(grant, name)
    return total


def read_buckets(limiter: SyncRateLimiter) -> list[BucketState]:
    """Return all limits of all buckets."""
    return [state for entity_id in (ORGANISATION, *KEYS) for state in limiter.get_buckets(entity_id)]


def sum_consumed(states: Iterable[BucketState]) -> Totals:
    """Return what buckets have counted as consumed, and check that nothing was put into one but by refill.

    What a bucket holds is stored as of when it was made, when it was full.
    """
    total: Totals = {}
    for state in states:
        assert state.tokens_milli + state.total_consumed_milli <= state.capacity_milli
        total[state.entity_id, state.resource, state.limit_name] = state.total_consumed_milli / MILLI
    return total


def sum_usage(limiter: SyncRateLimiter) -> Totals:
    """Return what the usage records have counted."""
    total: Totals = defaultdict(int)
    for entity_id in (ORGANISATION, *KEYS):
        for each in limiter.get_usage_snapshots(entity_id, window_type="hourly", limit=100)[0]:
            for name, amount in each.counters.items():
                total[entity_id, each.resource, name] += amount
    return total


class Count(NamedTuple):
    """How many calls of the store there were, for how many decisions, and how many of these were refusals."""

    calls: int
    decisions: int
    refusals: int

    @classmethod
    def of(cls, place: Place, logs: Iterable[ProcessLog]) -> Count:
        """Count what there was so far."""
        found = [(log.calls, log.decisions, log.refusals) for log in logs]
        calls, decisions, refusals = map(sum, zip(*found, strict=True))
        return cls(calls + place.count_calls(), decisions, refusals)

    def since(self, before: Count) -> Count:
        """Return what was counted since."""
        return Count(*[now - then for now, then in zip(self, before, strict=True)])


def run_crowd(kind: str, prefetch: float, seconds: float, folder: Path, resource: str) -> Count:
    """Run eight processes to their end. Check the law, and usage to the token.

    Return what was counted since they drew in advance, if they do: they ask for a moment before.
    """
    with open_place(kind, folder) as place:
        with start_processes(place, MODES[kind], prefetch, seconds, folder / str(prefetch), [resource]) as processes:
            before, started_ns = Count.of(place, processes.read_logs().values()), time.monotonic_ns()
            processes.begin()
            if prefetch:
                processes.warm_up(seconds / 2)
                before = Count.of(place, processes.read_logs().values())
        crowd = Crowd(processes.read_logs(), started_ns, prefetch)
        count = Count.of(place, crowd.logs.values()).since(before)
        assert all(log.closed for log in crowd.logs.values())
        crowd.check_law()
        with SyncRateLimiter(place.direct_url) as limiter:
            used = sum_used(crowd.grants)
            more = sum(max(0, grant.change.get("tps", 0)) for grant in crowd.grants)
            assert limiter.available(KEYS[0], resource)["tps"] >= -more, "what was drawn ahead of the refill is owed"
            assert sum_consumed(read_buckets(limiter)) == used
            if kind != "dynamodb":  # there a stream counts usage, by what buckets have consumed
                assert sum_usage(limiter) == used
    return count


@pytest.mark.alone
@pytest.mark.parametrize("resource", [ROOMY, TIGHT])
@pytest.mark.parametrize("kind", MODES)
def test_a_tenth_of_the_calls(kind: str, resource: str, tmp_path: Path) -> None:
    exact = run_crowd(kind, 0, EXACT_SECONDS, tmp_path, resource)
    prefetching = run_crowd(kind, PREFETCH, SECONDS, tmp_path, resource)
    assert bool(prefetching.refusals) is (resource == TIGHT)
    # By decisions, as processes that wait for the store ask less often.
    assert prefetching.calls / prefetching.decisions <= exact.calls / exact.decisions / 10


KILLED = 3
RESOURCES = (TIGHT, TIGHT, TIGHT, ROOMY)
"""What is asked for where some are killed: the others still want more of `TIGHT` than there is."""


def most_held(resource: str, name: str) -> float:
    """Return what one process may hold of a limit: what it asks for in so long, and half as much again by chance."""
    cost = 1.0 if name == "rps" else (clients.FEWEST + clients.MOST) / 2
    return 1.5 * PREFETCH * PACE * cost * RESOURCES.count(resource) / len(RESOURCES)


@pytest.mark.parametrize("kind", OTHER_MODES)
def test_three_of_eight_are_killed(kind: str, tmp_path: Path) -> None:
    """What they held is lost, once: it was consumed, nobody was granted it, and it comes back by refill alone."""
    with open_place(kind, tmp_path) as place:
        mode, folder = OTHER_MODES[kind], tmp_path / "logs"
        with start_processes(place, mode, PREFETCH, KILLED_SECONDS, folder, RESOURCES) as processes:
            started_ns = time.monotonic_ns()
            processes.begin()
            processes.warm_up(KILLED_SECONDS / 2)
            killed, killed_ns = processes.pids[:KILLED], time.monotonic_ns()
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
        crowd = Crowd(processes.read_logs(), started_ns, PREFETCH)
        assert [pid for pid, log in crowd.logs.items() if not log.closed] == killed
        crowd.check_law()
        used = sum_used(crowd.grants)
        # What their last leases have used more or less may be lost: it is written within the time that tokens are held.
        last_ns = killed_ns - int(2 * PREFETCH * NANO)
        last = [grant for pid in killed for grant in crowd.logs[pid].grants if grant.granted_ns >= last_ns]
        less = add_up(last, lambda grant, name: max(0, -grant.change.get(name, 0)))
        more = add_up(last, lambda grant, name: max(0, grant.change.get(name, 0)))
        with SyncRateLimiter(place.direct_url) as limiter:
            consumed = sum_consumed(read_buckets(limiter))
            for whose, tokens in consumed.items():
                assert -more[whose] <= tokens - used[whose] <= less[whose] + KILLED * most_held(*whose[1:])
            if kind != "dynamodb":  # usage is told in whole tokens
                assert sum_usage(limiter) == pytest.approx(consumed, abs=1)
            capacity = {limit.name: limit.capacity for limit in clients.TIGHT_LIMITS}
            eventually(lambda: limiter.available(KEYS[0], TIGHT), capacity)
