"""The tracer counts the calls of an acquire, the same ones every time."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from bench.trace import BARS, SCENARIOS, Bar, Call, Recorder, Scenario, Trace, follow

import zae_limiter
from bench import trace
from zae_limiter import Limit, SyncRateLimiter

OUTCOMES = {"refused": "refused", "race that ends in a refusal": "refused"}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name.replace(", ", "-").replace(" ", "-"))
def test_an_acquire_takes_the_same_calls_every_time(scenario: Scenario) -> None:
    first, second = follow(scenario), follow(scenario)
    assert first.outcome == OUTCOMES.get(scenario.situation, "granted")
    assert first.counts() == second.counts()
    assert first.calls == second.calls


def test_it_begins_with_acquire_and_ends_with_leaving_the_lease() -> None:
    calls = [call.function for call in follow(Scenario("memory", "blocking", "steady")).calls if not call.depth]
    assert calls == ["SyncRateLimiter.acquire", "SyncLease.__enter__", "SyncLease.__exit__"]
    calls = [call.function for call in follow(Scenario("memory", "async", "steady")).calls if not call.depth]
    assert calls == ["RateLimiter.acquire", "Lease.__aenter__", "Lease.__aexit__"]


def test_every_call_is_of_a_function_that_stands_in_its_file() -> None:
    source = Path(zae_limiter.__file__).parent
    for call in follow(Scenario("memory", "blocking", "cold")).calls:
        name = call.function.split(".")[-1]
        text = (source / call.file).read_text(encoding="utf-8")
        assert f"def {name}(" in text or (name == "<lambda>" and "lambda" in text), call


def test_a_coroutine_that_goes_on_is_not_called_again() -> None:
    calls = follow(Scenario("redis", "async", "steady")).calls
    assert [call.function for call in calls].count("Lease.__aenter__") == 1


def test_nothing_is_counted_outside_of_the_block() -> None:
    limiter = SyncRateLimiter("memory://")
    recorder = Recorder()
    with recorder:
        pass
    limiter.set_system_defaults([Limit.per_day("rpm", 1)])
    assert not recorder.calls
    assert sys.getprofile() is None


def test_what_is_counted() -> None:
    calls = tuple(Call(file, "f", 0) for file in ("a.py", "a.py", "b.py", "a.py"))
    assert Trace(calls, "granted").counts() == {"calls": 4, "files": 2, "changes": 2, "outcome": "granted"}


def test_it_prints_a_table_json_or_the_calls_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    trace.main(["memory, blocking, steady"])
    heading, one, two = capsys.readouterr().out.splitlines()
    assert heading.split()[:3] == ["scenario", "calls", "files"]
    assert one.startswith("memory, blocking, steady ")
    assert two.startswith("memory, blocking, steady, two limits ")
    trace.main(["memory, blocking, refused", "--json"])
    counted = json.loads(capsys.readouterr().out)
    assert counted["memory, blocking, refused"]["outcome"] == "refused"
    trace.main(["memory, blocking, refused", "--list"])
    title, first, *rest = capsys.readouterr().out.splitlines()
    assert title == "memory, blocking, refused: refused"
    assert first == "  sync/facade.py:SyncRateLimiter.acquire"
    assert len(rest) + 1 == counted["memory, blocking, refused"]["calls"]


@pytest.mark.parametrize(
    ("scenario", "most", "most_files"),
    [
        (Scenario("memory", "blocking", "steady"), 8, 6),
        (Scenario("memory", "async", "steady"), 8, 6),
        (Scenario("memory", "blocking", "settled", 2), 19, 7),
        (Scenario("memory", "async", "failed", 2), 15, 7),
        (Scenario("memory", "blocking", "settled", 2, depth=3), 23, 7),
        (Scenario("memory", "blocking", "slot taken and released", limits=0), 156, 33),
        (Scenario("redis", "blocking", "steady"), 26, 18),
        (Scenario("redis", "blocking", "race that ends in a refusal"), 74, 26),
        (Scenario("redis", "blocking", "settled", 2), 78, 28),
        (Scenario("redis", "blocking", "settled", 2, depth=3), 130, 28),
        (Scenario("redis", "blocking", "slot taken and released", limits=0), 154, 34),
        (Scenario("dynamodb", "blocking", "cold"), 281, 51),
    ],
    ids=lambda value: value.name if isinstance(value, Scenario) else None,
)
def test_the_way_of_an_acquire_does_not_grow(scenario: Scenario, most: int, most_files: int) -> None:
    trace = follow(scenario)
    counts = trace.counts()
    print(f"{scenario.name}: {counts['calls']} calls in {counts['files']} files, at most {most} in {most_files}")
    print(f"the bar: {BARS[scenario.name].judge(trace) if scenario.name in BARS else 'none'}")
    assert len(trace.calls) <= most
    assert int(counts["files"]) <= most_files


def test_every_bar_is_of_a_scenario_and_says_whether_it_is_exceeded() -> None:
    assert set(BARS) <= {scenario.name for scenario in SCENARIOS}
    trace = Trace((Call("a.py", "f", 0), Call("b.py", "g", 1)), "granted")
    assert Bar(2, 2).judge(trace) == "2 calls in 2 files"
    assert Bar(1).judge(trace) == "1 calls: exceeded"
    assert Bar(2, 1).judge(trace) == "2 calls in 1 files: exceeded"
