"""Concurrency limits on the command line: set, shown with those who hold slots, taken and freed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cli.terminal import Terminal, fresh, words
from zae_limiter import Limit, SyncRateLimiter
from zae_limiter.core.kinds import parse_limit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """Of three slots two are taken: by a worker with a name, and by one without."""
    made = fresh(tmp_path)
    made.text("system", "set-defaults", "-l", "parallel:3/concurrent,ttl=10min,max_hold=1h", "-l", "rpm:10/day")
    with (
        SyncRateLimiter(made.url) as limiter,
        limiter.acquire("key", "gpt-4", {"rpm": 1}, holder="worker-7"),
        limiter.acquire("key", "gpt-4", {"rpm": 1}),
    ):
        yield made


def test_limits_are_shown_as_they_were_written(terminal: Terminal) -> None:
    (limit, _) = terminal.json("system", "get-defaults")["limits"]
    assert Limit.from_dict(limit) == Limit.concurrent("parallel", 3, ttl=600, max_hold=3600)
    shown = next(row for row in words(terminal.text("system", "get-defaults")) if "parallel" in row)
    assert shown == ["parallel", "3/concurrent,ttl=600,max_hold=3600", "3"]
    assert parse_limit(":".join(shown[:2])) == Limit.from_dict(limit)


def test_buckets_show_who_holds_slots(terminal: Terminal) -> None:
    lines = words(terminal.text("entity", "buckets", "key"))
    assert lines[0] == ["resource", "limit", "in", "flight", "stored", "capacity", "rate", "used", "in", "all"]
    assert ["gpt-4", "parallel", "2", "1", "3", "3/concurrent,ttl=600", "0"] in lines
    assert ["gpt-4", "rpm", "-", "8", "10", "10/day", "2"] in lines
    held = [line for line in lines if line[:2] == ["gpt-4", "parallel"] and line[-1] in ("worker-7", "-")]
    assert [line[-1] for line in held] == ["worker-7", "-"]
    assert {line[2] for line in held} < {"0", "1", "2"}
    (state, _) = terminal.json("entity", "buckets", "key")
    assert [slot["holder"] for slot in state["slots"]] == ["worker-7", None]
    assert {slot["until_ms"] - slot["since_ms"] for slot in state["slots"]} == {600_000}
    assert state["ttl_ms"] == 600_000


def test_explain_shows_what_is_in_flight_and_who_holds_it(terminal: Terminal) -> None:
    text = terminal.text("explain", "key", "gpt-4", "-c", "parallel:1")
    lines = words(text)
    assert "in flight" in text
    assert ["key", "system", "parallel", "3/concurrent,ttl=600,max_hold=3600", "3", "2", "1", "now"] in lines
    assert [line[-1] for line in lines if line[:2] == ["key", "parallel"]] == ["worker-7", "-"]
    assert text.endswith("\nparallel 1 fits now.\n")
    limit = terminal.json("explain", "key", "gpt-4")["levels"][0]["limits"][0]
    assert (limit["kind"], limit["in_flight"], limit["available"]) == ("concurrency", 2, 1)
    assert (limit["ttl"], limit["max_hold"]) == (600, 3600)
    assert [slot["holder"] for slot in limit["slots"]] == ["worker-7", None]
    assert all(0 <= slot["held_seconds"] < 600 for slot in limit["slots"])
    late = terminal.text("explain", "key", "gpt-4", "-c", "parallel:2")
    assert "at the latest, when slots of parallel of key have come back." in late
    assert "in flight" not in terminal.text("explain", "key", "gpt-4", "-l", "rpm:10")


def test_of_many_slots_the_longest_held_are_shown_and_json_has_all(terminal: Terminal) -> None:
    with SyncRateLimiter(terminal.url) as limiter:
        leases = [limiter.acquire("busy", "gpt-4", {}, [Limit.concurrent("parallel", 50)]) for _ in range(25)]
        for lease in leases:
            lease.__enter__()
        result = terminal.run("entity", "buckets", "busy")
        assert sum(line[:2] == ["gpt-4", "parallel"] for line in words(result.stdout)) == 1 + 20
        assert "5 more slots are taken; --json shows all." in result.stderr
        (state,) = terminal.json("entity", "buckets", "busy")
        assert len(state["slots"]) == 25
        for lease in leases:
            lease.__exit__(None, None, None)


def test_top_counts_slots(terminal: Terminal) -> None:
    (row,) = [line for line in words(terminal.text("top", "--once")) if "parallel" in line]
    assert row[:6] == ["key", "gpt-4", "parallel", "-", "1", "3"]
    assert row[-5:] == ["67", "%", "2", "in", "flight"]
    loads = terminal.json("top", "--once")["buckets"]
    assert {load["limit_name"]: load["in_flight"] for load in loads} == {"parallel": 2, "rpm": None}


def test_an_acquire_takes_a_slot_and_frees_it(terminal: Terminal) -> None:
    granted = terminal.json("acquire", "key", "gpt-4", "-c", "rpm:1", "--holder", "shell")
    assert granted["consumed"] == {"parallel": 1, "rpm": 1}
    assert granted["available"] == {"parallel": 0, "rpm": 7}
    assert terminal.json("available", "key", "gpt-4")["available"] == {"parallel": 1, "rpm": 7}
    refused = terminal.run("acquire", "key", "gpt-4", "-c", "parallel:2")
    assert refused.exit_code == 3
    assert "parallel has 2 of 3 in flight, 2 requested" in refused.stderr
    assert terminal.run("acquire", "key", "gpt-4", "-c", "rpm:1", "--holder", "").exit_code == 2


def test_a_reset_frees_slots(terminal: Terminal) -> None:
    done = terminal.json("entity", "reset", "key", "-r", "gpt-4", "--limit", "parallel")
    assert done["amounts"] == {"parallel": 2}
    assert terminal.json("available", "key", "gpt-4")["available"] == {"parallel": 3, "rpm": 8}
    refused = terminal.run("entity", "top-up", "key", "-r", "gpt-4", "--add", "parallel:5")
    assert refused.exit_code == 2
    assert "raise the limit instead" in refused.stderr


def test_the_audit_log_tells_them(terminal: Terminal) -> None:
    assert "parallel 3/concurrent,ttl=600,max_hold=3600, rpm 10/day" in terminal.text("audit", "list", "$SYSTEM")


def test_a_file_states_and_exports_slots(terminal: Terminal, tmp_path: Path) -> None:
    file = tmp_path / "limits.yaml"
    terminal.text("limits", "export", "-f", str(file))
    assert "parallel: {concurrent: 3, ttl: 600, max_hold: 3600}" in file.read_text()
    assert "No changes" in terminal.text("limits", "plan", "-f", str(file), "--prune")
    file.write_text("system: {limits: {parallel: '4/concurrent,soft'}}")
    plan = terminal.text("limits", "plan", "-f", str(file))
    assert "~ parallel 3/concurrent,ttl=600,max_hold=3600 -> 4/concurrent,ttl=60 (soft)" in plan
