"""The demo: repeatable, honest, and able to notice a limit that was passed."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, strategies as st
from rich.console import Console

from zae_limiter import Limit, SyncRateLimiter, SyncRepository
from zae_limiter.cli import tables
from zae_limiter.cli.app import root
from zae_limiter.cli.demo import command, results, simulation
from zae_limiter.cli.demo.results import examine
from zae_limiter.cli.demo.simulation import COST, Entry, Simulation
from zae_limiter.cli.demo.views import draw_picture, show_live
from zae_limiter.testing import ManualClock

if TYPE_CHECKING:
    from pathlib import Path

TEN_A_SECOND = Limit.per_second("x", 10, burst=100)


def demo(*words: str) -> Result:
    runner = CliRunner(env={"ZAE_LIMITER_URL": "sqlite:////not/to/be/touched.db"})
    return runner.invoke(root, ["demo", *words], catch_exceptions=False)


def log(*entries: tuple[int, int, int]) -> list[Entry]:
    """A log of ``(instant, call, tokens)``."""
    return [Entry(at_ms, at_ms, call, tokens) for at_ms, call, tokens in entries]


# The oracle.


def test_a_full_bucket_and_the_refill_are_allowed() -> None:
    found = examine(TEN_A_SECOND, log((0, 1, 100), (1000, 2, 10), (1500, 3, 5)))
    assert found is not None
    assert (found.charged, found.allowed, found.passed) == (100, 100.0, False)


@pytest.mark.parametrize(
    "entries",
    [
        [(0, 1, 101)],
        [(0, 1, 100), (1000, 2, 11)],
        [(0, 1, 50), (60_000, 2, 100), (60_050, 3, 1)],
        [(0, 1, 100), (0, 1, -10), (0, 2, 11)],
        [(0, 1, 10), (500, 1, 96), (500, 2, 5)],
        [(0, 1, 10), (60_000, 1, 50), (60_000, 2, 100)],
    ],
    ids=["burst", "rate", "window in the middle", "after a refund", "beside a debt", "beside a debt of an idle bucket"],
)
def test_too_much_is_noticed(entries: list[tuple[int, int, int]]) -> None:
    found = examine(TEN_A_SECOND, log(*entries))
    assert found is not None
    assert found.passed
    assert found.charged > found.allowed


@pytest.mark.parametrize(
    "entries",
    [
        [(0, 1, 100), (0, 1, -10), (0, 2, 10)],
        [(0, 1, 10), (500, 1, 500)],
        [(0, 1, 10), (500, 1, 95), (600, 2, 1)],
        [(0, 1, 10), (60_000, 1, 50), (60_000, 2, 50)],
    ],
    ids=["a refund", "debt itself", "debt repaid", "debt of an idle bucket"],
)
def test_what_is_allowed_is_not_noticed(entries: list[tuple[int, int, int]]) -> None:
    found = examine(TEN_A_SECOND, log(*entries))
    assert found is not None
    assert not found.passed


def test_the_time_in_which_a_grant_was_made_is_allowed_for() -> None:
    assert not _passed([Entry(0, 7, 1, 100), Entry(93, 100, 2, 1)])
    assert _passed([Entry(0, 7, 1, 100), Entry(92, 99, 2, 1)])


def _passed(entries: list[Entry]) -> bool:
    found = examine(TEN_A_SECOND, entries)
    return found is not None and found.passed


def test_nothing_granted_is_nothing_to_examine() -> None:
    assert examine(TEN_A_SECOND, []) is None


def slowly(limit: Limit, entries: list[Entry]) -> tuple[int, bool]:
    """Every window, one by one, by the definition."""
    period = limit.refill_period_seconds * 1000
    first = {entry.call: number for number, entry in reversed(list(enumerate(entries)))}
    worst = -(10**18)
    for end, last in enumerate(entries):
        if first[last.call] != end:
            continue
        for start, begin in enumerate(entries[: end + 1]):
            if begin.tokens > 0:
                tokens = sum(entry.tokens for entry in entries[start : end + 1])
                length = last.after_ms - begin.before_ms
                worst = max(worst, (tokens - limit.capacity) * period - limit.refill_amount * length)
    return worst, worst * 1000 > period


@st.composite
def logs(draw: st.DrawFn) -> list[Entry]:
    entries: list[Entry] = []
    at_ms, calls = 0, 0
    for _ in range(draw(st.integers(1, 14))):
        at_ms += draw(st.sampled_from([0, 1, 99, 100, 1000, 7000]))
        later_ms = at_ms + draw(st.sampled_from([0, 0, 3]))
        if calls and draw(st.booleans()):
            entries.append(Entry(at_ms, later_ms, draw(st.integers(1, calls)), draw(st.integers(-60, 150))))
        else:
            calls += 1
            entries.append(Entry(at_ms, later_ms, calls, draw(st.integers(1, 120))))
        at_ms = later_ms
    return entries


@given(logs())
def test_the_oracle_finds_what_looking_at_every_window_finds(entries: list[Entry]) -> None:
    found = examine(TEN_A_SECOND, entries)
    beyond, passed = slowly(TEN_A_SECOND, entries)
    assert found is not None
    assert found.passed is passed
    assert found.charged - found.allowed == pytest.approx(beyond / 1000)


# A run.


def simulate(seed: int, seconds: float = 12, limits: dict[str, list[Limit]] | None = None) -> list[results.Line]:
    """A run in memory on a manual clock; ``limits`` are set behind the back of the demo."""
    clock = ManualClock()
    with SyncRepository("memory://", clock=clock) as repository:
        limiter = SyncRateLimiter(repository)
        simulation.install(limiter)
        for entity_id, given_limits in (limits or {}).items():
            limiter.set_limits(entity_id, given_limits, simulation.RESOURCE)
        run = Simulation(limiter, clock, seed, seconds)
        assert run.play(clock.advance, 100, run.balances)
        return results.judge(run, results.read_counts(limiter))


@pytest.mark.parametrize("seed", range(8))
def test_no_limit_is_passed_and_the_books_balance(seed: int) -> None:
    lines = simulate(seed, 20)
    assert all(line.is_right for line in lines)
    assert sum(line.refused for line in lines) > 0
    assert sum(line.overshot for line in lines) > 0
    assert sum(line.refunded for line in lines) > 0
    windows = [line.tightest_window for line in lines if line.tightest_window]
    assert max(window.charged / window.allowed for window in windows) > 0.95
    used = {(line.entity_id, line.limit.name): line.used for line in lines}
    for name in ("rpm", "tpm"):
        assert used["acme", name] == sum(used[party.id, name] for party in simulation.KEYS)


@pytest.mark.parametrize("looser", ["web", "batch", "acme"])
def test_a_limiter_with_looser_limits_is_caught(looser: str) -> None:
    party = simulation.BY_ID[looser]
    loose = [
        Limit(limit.name, limit.capacity * 4, limit.refill_amount * 4, limit.refill_period_seconds)
        for limit in party.limits
    ]
    caught = {
        line.entity_id for seed in range(6) for line in simulate(seed, 20, {looser: loose}) if not line.never_over
    }
    assert caught == {looser}


def entered(calls: int) -> tuple[Simulation, dict[tuple[str, str], int]]:
    """A run of a second without traffic, but with so many calls of a key in its logs, and what these used."""
    clock = ManualClock()
    with SyncRepository("memory://", clock=clock) as repository:
        run = Simulation(SyncRateLimiter(repository), clock, 0, 0)
    for call in range(calls):
        run._enter("web", call, COST, clock.now_ms())
    clock.advance(1)
    return run, {name: sum(entry.tokens for entry in entries) for name, entries in run.logs.items()}


def test_a_log_that_is_over_fails_the_closing() -> None:
    run, counted = entered(20)
    lines = results.judge(run, counted)
    assert not all(line.is_right for line in lines)
    assert {line.entity_id for line in lines if not line.never_over} == {"web", "chat", "acme"}
    good, text = results.find_verdicts(lines, run.logs)[0]
    assert not good
    assert text == "OVER THE LIMIT: acme rpm charged 20 in 0.000 s, allowed are 14.000."
    assert "YES" in drawn(lines, 120)


def drawn(lines: list[results.Line], width: int) -> str:
    """The table of a result on a terminal of this width."""
    console = Console(file=io.StringIO(), width=width)
    console.print(tables.fit_table(results.make_grid(lines), width))
    shown: str = console.file.getvalue()  # type: ignore[attr-defined]  # a StringIO
    return shown


def test_a_store_that_counts_otherwise_fails_the_closing() -> None:
    run, counted = entered(1)
    lines = results.judge(run, counted | {("chat", "tpm"): 399})
    assert not all(line.is_right for line in lines)
    sentence = "The store and the log disagree about what was used: chat tpm."
    assert (False, sentence) in results.find_verdicts(lines, run.logs)


def test_a_violation_is_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "read_counts", lambda limiter: {("web", "tpm"): -1})
    result = demo("--fast", "--seed", "1", "--seconds", "2")
    assert result.exit_code == 20
    assert "✗ The store and the log disagree" in result.stdout


# What is shown.


def test_the_same_seed_is_the_same_run() -> None:
    first, second, other = (demo("--plain", "--fast", "--seed", seed, "--seconds", "10") for seed in ("7", "7", "8"))
    assert first.exit_code == 0
    assert first.stdout == second.stdout
    assert first.stdout != other.stdout


def test_the_same_seed_is_the_same_run_in_another_process() -> None:
    outputs = {_process(hash_seed) for hash_seed in ("1", "2")}
    assert len(outputs) == 1
    assert b"Never over the limit" in outputs.pop()


def _process(hash_seed: str) -> bytes:
    words = [sys.executable, "-m", "zae_limiter", "demo", "--fast", "--seed", "7"]
    env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONIOENCODING": "utf-8"}
    return subprocess.run(words, env=env, capture_output=True, check=True).stdout


def test_plain_output_tells_the_story() -> None:
    text = demo("--fast", "--seed", "1").stdout
    assert text.startswith("zae-limiter demo · memory:// · seed 1\n")
    for second in range(13):
        assert f"\n{second:6.2f} s  -- granted" in text
    for word in (" refused ", "retry after", " settled ", " repaid ", "out of debt", " failed ", "given back"):
        assert word in text
    assert text.count(" never") == 2 * len(simulation.PARTIES)
    assert "✓ Never over the limit: 14 limits" in text
    assert "✓ The books balance" in text
    assert "\x1b" not in text


def test_json_is_the_closing_alone() -> None:
    result = demo("--fast", "--seed", "1", "--json")
    data: dict[str, Any] = json.loads(result.stdout)
    assert (data["ok"], data["seed"], data["seconds"], len(data["limits"])) == (True, 1, 12.0, 14)
    row = data["limits"][1]
    assert (row["entity_id"], row["limit"]["name"], row["never_over"]) == ("acme", "tpm", True)
    assert row["used"] == row["estimated"] - row["refunded"] + row["overshot"] == row["counted_by_store"]
    assert row["at_most"] == row["limit"]["capacity"] + row["limit"]["refill_amount"] / 60 * 12


def test_a_narrow_terminal_gets_a_narrow_table() -> None:
    lines = simulate(1)
    for width in (40, 80, 103, 115, 200):
        shown = drawn(lines, width)
        assert "…" not in shown
        assert shown.count(" never") == 2 * len(simulation.PARTIES)
        assert ("overshot" in shown) is (width >= 103)
        assert ("estimated" in shown) is (width >= 80)


def on_a_terminal(columns: int, lines: int, seconds: str) -> list[str]:
    """What the demo has written to a terminal of this size, without its control codes."""
    ours, theirs = pty.openpty()
    size = {"TERM": "xterm-256color", "NO_COLOR": "1", "COLUMNS": str(columns), "LINES": str(lines)}
    words = [sys.executable, "-m", "zae_limiter", "demo", "--seconds", seconds, "--seed", "3"]
    running = subprocess.Popen(words, stdout=theirs, env={**os.environ, **size})
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # the end of a terminal
        while part := os.read(ours, 65_536):
            shown += part
    os.close(ours)
    assert running.wait(60) == 0
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode()).replace("\r", "").split("\n")


def test_on_a_terminal_it_says_what_it_shows_and_the_end_fits_the_screen() -> None:
    lines = on_a_terminal(80, 24, "1")
    opening = lines.index(next(line for line in lines if line.startswith("╭")))
    assert lines[0].startswith("Four API keys call a model.")
    assert "debt." in lines[opening - 1]
    end = next(place for place, line in enumerate(lines) if line.startswith("╰") and " s " not in line)
    assert end + 1 <= 23, "the text stays above the picture"
    table = max(place for place, line in enumerate(lines) if "granted" in line and "at most" in line)
    closed = lines[table:]
    assert closed[-1] == ""
    assert len(closed) <= 24, "with the line of the prompt"
    assert all(len(line) <= 80 for line in closed)
    assert sum(line.endswith(" never") for line in closed) == 2 * len(simulation.PARTIES)
    assert [line[:1] for line in closed[-3:-1]] == ["✓", "✓"]


def test_a_terminal_too_narrow_for_the_picture_gets_lines() -> None:
    lines = on_a_terminal(40, 24, "0.5")
    assert not any(line.startswith("╭") for line in lines)
    assert all(len(line) <= 40 for line in lines[2:6])
    assert " ".join(lines[2:6]).startswith("Four API keys call a model.")


def test_the_live_view() -> None:
    clock = ManualClock()
    out = io.StringIO()
    console = Console(
        file=out, force_terminal=True, width=80, height=40, color_system="truecolor", legacy_windows=False
    )
    with SyncRepository("memory://", clock=clock) as repository:
        limiter = SyncRateLimiter(repository)
        simulation.install(limiter)
        run = Simulation(limiter, clock, 1, 12)
        assert show_live(run, console, "the title", clock.advance)
        still = Console(file=io.StringIO(), width=80)
        still.print(draw_picture(run, "the title", 80))
    frames = out.getvalue()
    assert frames.count("the title") > 140
    shown: str = still.file.getvalue()  # type: ignore[attr-defined]  # a StringIO
    assert "12.0 of 12 s" in shown
    assert "…" not in shown.split("╰")[0]
    assert all(len(line) == 80 for line in shown.splitlines())
    for party in simulation.PARTIES:
        assert party.id in shown


@pytest.mark.parametrize(
    ("available", "drawn"),
    [
        (100, "    │██████████"),
        (50, "    │█████     "),
        (1, "    │▏         "),
        (0, "    │          "),
        (-10, "   █│          "),
        (-25, " ▌██│          "),
        (-40, "████│          "),
        (-41, "◀███│          "),
        (-4000, "◀███│          "),
    ],
)
def test_bars(available: int, drawn: str) -> None:
    assert tables.bar(available, 100, 10, 4).plain == drawn


@given(st.integers(-(10**6), 10**4), st.integers(1, 10**4), st.integers(5, 60), st.integers(0, 20))
def test_bars_are_as_wide_as_told(available: int, capacity: int, width: int, debt: int) -> None:
    drawn = tables.bar(min(available, capacity), capacity, width, debt)
    assert len(drawn.plain) == width + (debt + 1 if debt else 0)


# Where it runs.


def test_it_runs_on_a_file_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path / 'demo.db'}"
    clock = ManualClock()
    monkeypatch.setattr(command, "_choose_clock", lambda fast: (clock, clock.advance))
    result = demo("--url", url, "--seconds", "3", "--seed", "1")
    assert result.exit_code == 0, result.output
    assert url in result.stdout
    with SyncRepository(url) as repository:
        assert repository.list_namespaces() == []
        assert repository.list_orphan_namespaces() == []


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--url", "redis://localhost"], "embedded store"),
        (["--name", "my-app"], "embedded store"),
        (["--fast", "--url", "sqlite:///demo.db"], "--fast"),
        (["--seconds", "0"], "--seconds"),
    ],
)
def test_it_runs_nowhere_else(words: list[str], text: str) -> None:
    result = demo(*words)
    assert result.exit_code == 2
    assert text in result.stderr


def test_an_interrupted_run_is_settled_and_closed() -> None:
    clock = ManualClock()
    with SyncRepository("memory://", clock=clock) as repository:
        limiter = SyncRateLimiter(repository)
        simulation.install(limiter)
        run = Simulation(limiter, clock, 1, 12)

        def frame() -> None:
            if run.counts["granted"] >= 5:
                signal.raise_signal(signal.SIGINT)

        before = signal.getsignal(signal.SIGINT)
        assert not run.play(clock.advance, 100, frame)
        assert signal.getsignal(signal.SIGINT) is before
        assert run.elapsed_ms < 12_000
        lines = results.judge(run, results.read_counts(limiter))
    assert all(line.is_right for line in lines)


def test_an_interrupted_command_shows_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Simulation, "play", lambda *run: False)
    result = demo("--fast", "--seed", "1")
    assert result.exit_code == 130
    assert "books balance" in result.stdout


def test_a_run_waits_exactly_until_something_is_due() -> None:
    clock = ManualClock()
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.advance(seconds)

    with SyncRepository("memory://", clock=clock) as repository:
        limiter = SyncRateLimiter(repository)
        simulation.install(limiter)
        assert Simulation(limiter, clock, 1, 3).play(sleep, 250, lambda: None)
    assert min(slept) > 0
    assert max(slept) <= 0.25
    assert sum(slept) == pytest.approx(3)


def test_real_time_waits_for_real() -> None:
    clock, sleep = command._choose_clock(False)
    assert sleep is time.sleep
    assert clock.now_ms() > 1_700_000_000_000
