"""``python -m bench.trace``: the calls inside the package that one acquire takes, counted and in order.

An acquire is followed from ``limiter.acquire(...)`` through entering and leaving its lease. A call is the start of a
function that is written in ``src/zae_limiter``; comprehensions are part of the function that they stand in, and a
coroutine that goes on after an ``await`` is not called again. A change of file is a call in another file than the call
before it. These counts do not depend on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NamedTuple, Self
from unittest import mock

from tests.support.aws import engine
from tests.support.aws.wire import Wire
from tests.support.backends import dynamodb_table
from tests.support.redis import shared

import zae_limiter
from zae_limiter import Limit, RateLimiter, RateLimitExceeded, Repository, SyncRateLimiter, SyncRepository
from zae_limiter.stores.server_clock import ServerClock

SOURCE = str(Path(zae_limiter.__file__).parent) + os.sep
RESOURCE = "gpt-4"
CAPACITY = 100_000
"""Of a day: so much that nothing is refused, and so slow that a bucket which was used does not fill up again."""
SLOTS = 100
WARM_UP, ROUNDS = 8, 5
COMPREHENSIONS = {"<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"}


class Call(NamedTuple):
    """A function that was called, and how many calls of ours it stands below."""

    file: str
    function: str
    depth: int


class Trace(NamedTuple):
    """The calls of one acquire, in order, and how it ended."""

    calls: tuple[Call, ...]
    outcome: str

    def counts(self) -> dict[str, int | str]:
        """Return how many calls there are, in how many files, and how often the file changes."""
        files = [call.file for call in self.calls]
        changes = sum(before != after for before, after in itertools.pairwise(files))
        return {"calls": len(files), "files": len(set(files)), "changes": changes, "outcome": self.outcome}


class Recorder:
    """Notes the calls inside the package that this thread makes in a block."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._frames: set[FrameType] = set()

    def __enter__(self) -> Self:
        sys.setprofile(self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and _is_ours(frame) and frame not in self._frames:
            self._frames.add(frame)  # a coroutine that goes on has the frame that it began with
            file = frame.f_code.co_filename.removeprefix(SOURCE).replace(os.sep, "/")
            self.calls.append(Call(file, frame.f_code.co_qualname, _depth(frame)))


def _is_ours(frame: FrameType) -> bool:
    code = frame.f_code
    return code.co_filename.startswith(SOURCE) and code.co_name not in COMPREHENSIONS


def _depth(frame: FrameType) -> int:
    depth, above = 0, frame.f_back
    while above is not None:
        depth += _is_ours(above)
        above = above.f_back
    return depth


class Scenario(NamedTuple):
    """An acquire worth following: where, in which mode, of how many limits and levels, and what came before it.

    Without a limit of tokens, it takes a slot.
    """

    store: str
    mode: str
    situation: str
    limits: int = 1
    depth: int = 1

    @property
    def name(self) -> str:
        """Its name in the table."""
        parts = [self.store, self.mode, self.situation]
        parts += ["two limits"] if self.limits == 2 else []
        parts += [f"cascade of {self.depth}"] if self.depth > 1 else []
        return ", ".join(parts)


MODES = ("blocking", "async")
SCENARIOS = (
    *(Scenario("memory", mode, "steady", limits) for limits in (1, 2) for mode in MODES),
    *(Scenario("memory", mode, "refused") for mode in MODES),
    *(Scenario("memory", mode, end, 2) for end in ("settled", "failed") for mode in MODES),
    Scenario("memory", "blocking", "settled", 2, depth=3),
    Scenario("memory", "blocking", "slot taken and released", limits=0),
    Scenario("memory", "blocking", "cold"),
    Scenario("sqlite", "blocking", "steady"),
    Scenario("sqlite", "blocking", "settled", 2),
    *(Scenario("redis", mode, "steady", depth=depth) for depth in (1, 2) for mode in MODES),
    *(Scenario("redis", mode, "race that ends in a refusal") for mode in MODES),
    *(Scenario("redis", mode, end, 2) for end in ("settled", "failed") for mode in MODES),
    Scenario("redis", "blocking", "settled", 2, depth=3),
    *(Scenario("redis", mode, "slot taken and released", limits=0) for mode in MODES),
    Scenario("redis", "blocking", "cold"),
    Scenario("dynamodb", "blocking", "steady"),
    Scenario("dynamodb", "blocking", "settled", 2),
    Scenario("dynamodb", "blocking", "cold"),
    *(Scenario("dynamodb", "blocking", "race that ends in a refusal", depth=depth) for depth in (1, 2)),
)


class Bar(NamedTuple):
    """The most that a scenario should take."""

    calls: int
    files: int | None = None

    def judge(self, trace: Trace) -> str:
        """Return the bar in words, and whether it is exceeded."""
        counts = trace.counts()
        words = f"{self.calls} calls" + (f" in {self.files} files" if self.files else "")
        exceeds = int(counts["calls"]) > self.calls or int(counts["files"]) > (self.files or sys.maxsize)
        return f"{words}: exceeded" if exceeds else words


BARS = {
    **{Scenario("memory", mode, "steady", limits).name: Bar(9, 18) for limits in (1, 2) for mode in MODES},
    **{Scenario("memory", mode, "settled", 2).name: Bar(40) for mode in MODES},
    **{Scenario(store, "blocking", "slot taken and released", 0).name: Bar(165) for store in ("memory", "redis")},
    Scenario("redis", "blocking", "steady").name: Bar(30, 18),
    Scenario("redis", "blocking", "settled", 2).name: Bar(80),
    Scenario("redis", "blocking", "race that ends in a refusal").name: Bar(75),
}


class Client:
    """A limiter of one mode, called as blocking code."""

    def __init__(self, mode: str, place: Place, runner: asyncio.Runner) -> None:
        self._runner = runner
        self._limiter: Any
        if mode == "blocking":
            self._limiter = SyncRateLimiter(SyncRepository(place.url, endpoint_url=place.endpoint_url))
        else:
            self._limiter = RateLimiter(Repository(place.url, endpoint_url=place.endpoint_url))

    def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Call a method of the limiter and return what it returns."""
        result = getattr(self._limiter, method)(*arguments, **named)
        return self._runner.run(result) if asyncio.iscoroutine(result) else result

    def take(self, entity: str, cost: dict[str, int], end: str = "") -> Trace:
        """Acquire, end the lease, and return the calls that it took.

        ``end`` says how: "" at once, "settled" with less used than was reserved, "failed" with an exception.
        """
        recorder = Recorder()
        take = self._take_blocking if isinstance(self._limiter, SyncRateLimiter) else self._take_async
        outcome = "granted"
        try:
            take(recorder, entity, cost, end)
        except RateLimitExceeded:
            outcome = "refused"
        except CallFailed:
            pass
        return Trace(tuple(recorder.calls), outcome)

    def _take_blocking(self, recorder: Recorder, entity: str, cost: dict[str, int], end: str) -> None:
        with recorder, self._limiter.acquire(entity, RESOURCE, cost) as lease:
            if end == "settled":
                lease.adjust(dict.fromkeys(cost, -1))
            elif end:
                raise CallFailed

    def _take_async(self, recorder: Recorder, entity: str, cost: dict[str, int], end: str) -> None:
        async def take() -> None:
            with recorder:
                async with self._limiter.acquire(entity, RESOURCE, cost) as lease:
                    if end == "settled":
                        await lease.adjust(dict.fromkeys(cost, -1))
                    elif end:
                        raise CallFailed

        self._runner.run(take())


class CallFailed(Exception):
    """The error of a call that fails."""


class Place(NamedTuple):
    """Where a store of its own can be opened, any number of times."""

    url: str
    endpoint_url: str | None = None


_COUNT = itertools.count()


@contextlib.contextmanager
def place_on(store: str) -> Iterator[Place]:
    """A place without any data, on a server of the tests where the store needs one."""
    name = f"trace-{os.getpid()}-{next(_COUNT)}"
    if store == "memory":
        yield Place(f"memory://{name}")
    elif store == "sqlite":
        with tempfile.TemporaryDirectory() as folder:
            yield Place(f"sqlite:///{folder}/{name}.db")
    elif store == "redis":
        yield Place(f"{shared.server().url}?prefix={name}")
    else:
        environment = mock.patch.dict(os.environ, engine.CREDENTIALS)
        with dynamodb_table() as table, environment, Wire(engine.endpoint()) as wire:  # it sends an answer in one piece
            wire.date = time.time
            yield Place(f"dynamodb://{table}?region=us-east-1", wire.url)


class Stage:
    """The clients of one scenario, and what they limit."""

    def __init__(self, scenario: Scenario, place: Place, stack: contextlib.ExitStack) -> None:
        self._scenario = scenario
        self._place = place
        self._stack = stack
        self._runner = stack.enter_context(asyncio.Runner())
        names = ["rpm", "tpm"][: scenario.limits]
        self.cost = dict.fromkeys(names, 1)
        self.half = dict.fromkeys(names, CAPACITY // 2)
        self._keeper = self.client()
        limits = [Limit.per_day(name, CAPACITY) for name in names] or [Limit.concurrent("parallel", SLOTS)]
        self._keeper.call("set_system_defaults", limits)

    def client(self) -> Client:
        """Return a client that knows nothing yet, as a new process would."""
        client = Client(self._scenario.mode, self._place, self._runner)
        self._stack.callback(client.call, "close")
        return client

    def entities(self) -> tuple[str, str]:
        """Return a new entity and the topmost one that it charges: itself, if the scenario has one level."""
        top = entity = f"entity-{next(_COUNT)}"
        self._keeper.call("create_entity", entity)
        for _ in range(1, self._scenario.depth):
            parent, entity = entity, f"entity-{next(_COUNT)}"
            self._keeper.call("create_entity", entity, parent_id=parent, cascade=True)
        return entity, top


@contextlib.contextmanager
def time_at_rest() -> Iterator[None]:
    """Let no time pass by any clock, that of a server included: how often a clock ticks is not part of an acquire."""
    wall_ns, monotonic_ns = time.time_ns(), time.monotonic_ns()
    learn = ServerClock.learn

    def learn_nothing(clock: ServerClock, _earliest_ms: int, _latest_ms: int, sent_ms: int, received_ms: int) -> None:
        learn(clock, sent_ms, received_ms + 1, sent_ms, received_ms)

    with (
        mock.patch.object(ServerClock, "learn", learn_nothing),
        mock.patch.object(time, "time", return_value=wall_ns / 1e9),
        mock.patch.object(time, "time_ns", return_value=wall_ns),
        mock.patch.object(time, "monotonic_ns", return_value=monotonic_ns),
    ):
        yield


def follow(scenario: Scenario) -> Trace:
    """Follow the acquire of a scenario several times; return one with the number of calls that most of them have."""
    with time_at_rest(), contextlib.ExitStack() as stack:
        place = stack.enter_context(place_on(scenario.store))
        traces = SITUATIONS[scenario.situation](Stage(scenario, place, stack))
    usual = statistics.mode(len(trace.calls) for trace in traces)
    return next(trace for trace in traces if len(trace.calls) == usual)


def _steady(stage: Stage) -> list[Trace]:
    """The acquire that everybody makes all the time: it was made before, and nobody else takes anything."""
    client, (entity, _) = stage.client(), stage.entities()
    return [client.take(entity, stage.cost) for _ in range(WARM_UP + ROUNDS)][WARM_UP:]


def _ended(stage: Stage, end: str) -> list[Trace]:
    """The same, with something to settle when the lease ends."""
    client, (entity, _) = stage.client(), stage.entities()
    cost = dict.fromkeys(stage.cost, 2)
    return [client.take(entity, cost, end) for _ in range(WARM_UP + ROUNDS)][WARM_UP:]


def _cold(stage: Stage) -> list[Trace]:
    """The first acquire of a process, of an entity that never had a bucket."""
    return [stage.client().take(stage.entities()[0], stage.cost) for _ in range(ROUNDS)]


def _refused(stage: Stage) -> list[Trace]:
    """An acquire of a bucket that is too empty, and was before."""
    client, (entity, _) = stage.client(), stage.entities()
    client.take(entity, stage.half)
    client.take(entity, stage.cost)
    return [client.take(entity, stage.half) for _ in range(WARM_UP + ROUNDS)][WARM_UP:]


def _race(stage: Stage) -> list[Trace]:
    """An acquire that fits what was last seen of every bucket, after somebody else has emptied the topmost."""
    client, other = stage.client(), stage.client()
    traces = []
    for _ in range(ROUNDS):
        entity, top = stage.entities()
        client.take(entity, stage.cost)
        other.take(top, stage.half)
        traces.append(client.take(entity, stage.half))
    return traces


SITUATIONS: dict[str, Callable[[Stage], list[Trace]]] = {
    "steady": _steady,
    "settled": partial(_ended, end="settled"),
    "failed": partial(_ended, end="failed"),
    "slot taken and released": _steady,
    "cold": _cold,
    "refused": _refused,
    "race that ends in a refusal": _race,
}


def table(found: dict[str, Trace]) -> str:
    """Return a row per scenario."""
    rows = [["scenario", "calls", "files", "changes of file", "outcome", "at most"]]
    for name, trace in found.items():
        bar = BARS[name].judge(trace) if name in BARS else ""
        rows.append([name, *(str(count) for count in trace.counts().values()), bar])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def listing(found: dict[str, Trace]) -> str:
    """Return the calls of each scenario in order, indented by how deep they are."""
    parts = []
    for name, trace in found.items():
        parts.append(f"{name}: {trace.outcome}")
        parts += [f"  {'  ' * call.depth}{call.file}:{call.function}" for call in trace.calls]
    return "\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the counts of all scenarios, or of those whose name contains the given text."""
    parser = argparse.ArgumentParser(prog="python -m bench.trace", description="Follow an acquire through the package.")
    parser.add_argument("text", nargs="?", default="", help="only scenarios whose name contains this")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--json", action="store_true", help="the counts as JSON")
    kind.add_argument("--list", action="store_true", help="the calls in order, with file and function")
    given = parser.parse_args(arguments)
    found = {scenario.name: follow(scenario) for scenario in SCENARIOS if given.text in scenario.name}
    if given.json:
        print(json.dumps({name: trace.counts() for name, trace in found.items()}, indent=1))
    else:
        print(listing(found) if given.list else table(found))


if __name__ == "__main__":
    main()
