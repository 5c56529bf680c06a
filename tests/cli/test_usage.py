"""``usage list`` and ``usage summary``: what is asked for, and every form of the answer."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from tests.cli.terminal import Terminal, fresh, run as run_command, words
from tests.cli.test_top import parts
from tests.repository.test_usage import HOUR, START, consumed
from tests.support.aws import engine
from tests.support.backends import REGION, dynamodb_table
from tests.support.deadlines import PATIENCE
from zae_limiter import SyncRepository, UsageSnapshot
from zae_limiter.cli import usage as usage_command
from zae_limiter.cli.arguments import parse_moment
from zae_limiter.cli.charts import PIPE_WIDTH, group_series, load_plotext, print_charts
from zae_limiter.cli.usage import SNAPSHOT_COLUMNS, SUMMARY_COLUMNS
from zae_limiter.records import usage
from zae_limiter.runtime.blocking import run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    """A fresh file."""
    return fresh(tmp_path)


def record(terminal: Terminal, at_ms: int, used: Mapping[str, int], entity: str = "key", on: str = "gpt-4") -> None:
    """One consumption, in all windows that hold it."""
    with SyncRepository(terminal.url) as repository:
        ns = repository.get_namespace("default").id
        run(repository.store.commit([consumed(ns, window, at_ms, used, entity, on) for window in usage.WINDOWS]))


@pytest.fixture
def used(terminal: Terminal) -> Terminal:
    """Two keys over three hours of two days; an hour between them without anything."""
    record(terminal, START, {"rpm": 1, "tpm": 9_000})
    record(terminal, START + 1, {"rpm": 1, "tpm": 1_000}, on="gpt-3")
    record(terminal, START + 2 * HOUR, {"rpm": 4, "tpm": 2_000})
    record(terminal, START + 2 * HOUR, {"rpm": 7}, "other")
    return terminal


def test_what_was_beyond_a_soft_limit_is_shown_where_there_is_any(terminal: Terminal) -> None:
    record(terminal, START, {"rpm": 1, "tpm": 9_000, usage.overdrawn("tpm"): 500})
    record(terminal, START + 2 * HOUR, {"rpm": 4, "tpm": 2_000})
    assert words(terminal.text("usage", "list", "--entity", "key"))[2:] == [
        ["2026-01-31", "22:00", "key", "gpt-4", "1", "9,000", "500", "1"],
        ["2026-02-01", "00:00", "key", "gpt-4", "4", "2,000", "-", "1"],
    ]
    assert [each["overdrawn"] for each in terminal.json("usage", "list", "-e", "key")] == [{"tpm": 500}, {}]
    assert words(terminal.text("usage", "summary", "--entity", "key"))[-1] == ["tpm", "11,000", "5,500.0", "500"]
    lines = terminal.text("usage", "summary", "--entity", "key", "--csv").splitlines()
    assert [line.split(",")[-4] for line in lines] == ["overdrawn", "0", "500"]
    assert terminal.json("usage", "summary", "-e", "key")["overdrawn"] == {"tpm": 500}


def _cells(text: str) -> list[list[str]]:
    """The cells of every line of a table, which are two blanks apart at least."""
    return [re.split(r" {2,}", line.strip()) for line in text.splitlines()]


def test_slots_are_shown_as_what_was_in_flight(terminal: Terminal) -> None:
    """Not as tokens: slot-seconds beside them would read as consumption."""
    for hour, (peak, seconds) in enumerate([(10, 5_400), (2, 18)]):
        with SyncRepository(terminal.url) as repository:
            ns, at_ms = repository.get_namespace("default").id, START + hour * HOUR
            write = consumed(ns, "hourly", at_ms, {"rpm": 3, usage.held("parallel"): seconds})
            run(repository.store.commit([write._replace(put={**write.put, usage.reached("parallel", peak): peak})]))
    assert _cells(terminal.text("usage", "list", "-e", "key"))[2:] == [
        ["2026-01-31 22:00", "key", "gpt-4", "3", "peak 10, average 1.5", "1"],
        ["2026-01-31 23:00", "key", "gpt-4", "3", "peak 2, average 0.005", "1"],
    ]
    (first, _), summary = terminal.json("usage", "list", "-e", "key"), terminal.json("usage", "summary", "-e", "key")
    assert first["counters"] == {"rpm": 3}
    assert first["in_flight"] == {"parallel": {"peak": 10, "average": 1.5, "slot_seconds": 5_400}}
    assert summary["in_flight"] == {"parallel": {"peak": 10, "average": 0.7525, "slot_seconds": 5_418}}
    shown = _cells(terminal.text("usage", "summary", "-e", "key"))
    assert shown[-2:] == [["parallel", "-", "-", "peak 10, average 0.752"], ["rpm", "6", "3.0", "-"]]
    rows = list(csv.DictReader(io.StringIO(terminal.text("usage", "list", "-e", "key", "--csv"))))
    slots = ("limit_name", "consumed", "peak_in_flight", "average_in_flight", "slot_seconds")
    assert [rows[0][column] for column in slots] == ["parallel", "", "10", "1.5", "5400"]
    assert [rows[1][column] for column in slots] == ["rpm", "3", "", "", ""]
    total = list(csv.DictReader(io.StringIO(terminal.text("usage", "summary", "-e", "key", "--csv"))))
    assert [total[0][column] for column in ("total", "peak_in_flight", "slot_seconds")] == ["", "10", "5418"]
    assert "parallel of key, hourly, 2026-01-31 22:00 to 2026-01-31 23:00 (UTC): peak 10\n" in terminal.text(
        "usage", "list", "-e", "key", "--plot"
    )


def test_a_summary_of_an_entity_on_a_resource_says_when_its_quotas_are_back(terminal: Terminal) -> None:
    terminal.text("system", "set-defaults", "-l", "tpd:1000/day@Europe/Berlin", "-l", "rpm:10/min")
    terminal.text("acquire", "key", "gpt-4", "-c", "tpd:400", "-c", "rpm:1")
    asked = ("usage", "summary", "-e", "key", "-r", "gpt-4")
    shown = terminal.text(*asked)
    assert re.search(r"^tpd: 600 of 1,000 left, back \d{4}-\d\d-\d\d 00:00 Europe/Berlin$", shown, re.M)
    assert "rpm: " not in shown
    json.loads(terminal.text(*asked, "--json"))
    terminal.text("entity", "disable", "key")
    assert "left, back" not in terminal.text(*asked)


def test_list_by_entity_and_by_resource(used: Terminal) -> None:
    assert words(used.text("usage", "list", "--entity", "key"))[2:] == [
        ["2026-01-31", "22:00", "key", "gpt-3", "1", "1,000", "1"],
        ["2026-01-31", "22:00", "key", "gpt-4", "1", "9,000", "1"],
        ["2026-02-01", "00:00", "key", "gpt-4", "4", "2,000", "1"],
    ]
    assert words(used.text("usage", "list", "-r", "gpt-4", "--window", "daily")) == [
        ["from", "(UTC)", "entity", "resource", "rpm", "tpm", "events"],
        ["─" * 53],
        ["2026-01-31", "key", "gpt-4", "1", "9,000", "1"],
        ["2026-02-01", "key", "gpt-4", "4", "2,000", "1"],
        ["2026-02-01", "other", "gpt-4", "7", "-", "1"],
    ]
    found = used.json("usage", "list", "-e", "key", "-r", "gpt-4", "--window", "monthly")
    assert [(each["window_start"], each["counters"]) for each in found] == [
        ("2026-01-01T00:00:00Z", {"rpm": 1, "tpm": 9_000}),
        ("2026-02-01T00:00:00Z", {"rpm": 4, "tpm": 2_000}),
    ]


def test_list_between_two_moments(used: Terminal) -> None:
    def starts(*bounds: str) -> list[str]:
        found = used.json("usage", "list", "-e", "key", "-r", "gpt-4", *bounds)
        return [each["window_start"][5:13] for each in found]

    assert starts("--start", "2026-02-01") == ["02-01T00"]
    assert starts("--end", "2026-02-01") == ["01-31T22"]
    assert starts("--start", "2026-02-01T09:00:00+09:00") == ["02-01T00"]
    assert starts("--start", "2026-01-31T22:00:01Z", "--end", "2026-02-01T00:00:00Z") == []
    assert starts("--start", "24h") == []


def test_list_pages_and_says_where_it_stopped(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_command, "PAGE", 40)
    with SyncRepository(terminal.url) as repository:
        ns = repository.get_namespace("default").id
        for start in (0, 60):
            hours = range(start, start + 60)
            run(repository.store.commit([consumed(ns, "hourly", START + h * HOUR, {"rpm": 1}) for h in hours]))
    for asked, count in (([], 100), (["--limit", "7"], 7), (["--limit", "80"], 80)):
        result = terminal.run("usage", "list", "-e", "key", *asked)
        assert len(result.stdout.splitlines()) == 2 + count
        assert f"{count:,} windows are shown, there may be more: use --all" in result.stderr
    for asked in (["--all"], ["--limit", "120"]):
        result = terminal.run("usage", "list", "-e", "key", *asked)
        assert (len(result.stdout.splitlines()), result.stderr) == (2 + 120, "")
    assert terminal.text("usage", "list", "-e", "key", "--plot").splitlines()[0].endswith("(UTC): 120")


def test_what_is_cut_off_comes_before_what_is_shown(terminal: Terminal) -> None:
    for hour, resource in enumerate(("zeta", "alpha", "zeta", "alpha")):
        record(terminal, START + hour * HOUR, {"rpm": 1}, on=resource)
    everything = terminal.json("usage", "list", "-e", "key", "--all")
    assert terminal.json("usage", "list", "-e", "key", "--limit", "3") == everything[-3:]


def test_csv_has_a_line_per_window_and_limit(used: Terminal) -> None:
    text = used.text("usage", "list", "-e", "key", "-r", "gpt-4", "--csv")
    assert "\r" not in text
    rows = list(csv.DictReader(io.StringIO(text)))
    assert tuple(rows[0]) == SNAPSHOT_COLUMNS
    assert [(row["window_start"], row["limit_name"], row["consumed"]) for row in rows] == [
        ("2026-01-31T22:00:00Z", "rpm", "1"),
        ("2026-01-31T22:00:00Z", "tpm", "9000"),
        ("2026-02-01T00:00:00Z", "rpm", "4"),
        ("2026-02-01T00:00:00Z", "tpm", "2000"),
    ]
    assert {row["total_events"] for row in rows} == {"1"}
    totals = list(csv.DictReader(io.StringIO(used.text("usage", "summary", "-e", "key", "--csv"))))
    assert tuple(totals[0]) == SUMMARY_COLUMNS
    assert [(row["limit_name"], row["total"], row["snapshot_count"]) for row in totals] == [
        ("rpm", "6", "3"),
        ("tpm", "12000", "3"),
    ]


def test_the_columns_of_csv_are_told(terminal: Terminal) -> None:
    assert ",".join(SNAPSHOT_COLUMNS) in terminal.raw("usage", "list", "--help").stdout
    assert ",".join(SUMMARY_COLUMNS) in terminal.raw("usage", "summary", "--help").stdout


def test_summary(used: Terminal) -> None:
    text = used.text("usage", "summary", "-r", "gpt-4", "--window", "hourly")
    assert text.startswith("gpt-4: 3 hourly snapshots, from 2026-01-31 22:00 to 2026-02-01 00:00 (UTC)\n")
    assert ["rpm", "12", "4.0"] in words(text)
    assert ["tpm", "11,000", "3,666.7"] in words(text)
    found = used.json("usage", "summary", "-e", "key", "--start", "2026-02-01", "--window", "daily")
    assert (found["snapshot_count"], found["total"]) == (1, {"rpm": 4, "tpm": 2_000})


def test_a_summary_is_of_the_windows_that_it_names(terminal: Terminal) -> None:
    """Where an aggregator keeps days only, hours are nothing, and days are days."""
    with SyncRepository(terminal.url) as repository:
        ns = repository.get_namespace("default").id
        run(repository.store.commit([consumed(ns, "daily", START, {"rpm": 1})]))
    unnamed = terminal.run("usage", "summary", "-e", "key")
    assert (unnamed.stdout, "No hourly usage of key" in unnamed.stderr) == ("", True)
    assert terminal.text("usage", "summary", "-e", "key", "--window", "daily").startswith("key: 1 daily snapshots")


def test_nothing_found_says_what_to_check(terminal: Terminal) -> None:
    for command in ("list", "summary"):
        for form in ([], ["--plot"]):
            result = terminal.run("usage", command, "-e", "key", *form)
            assert (result.exit_code, result.stdout) == (0, "")
            assert "No hourly usage of key has been recorded" in result.stderr
            assert "usage_retention_days" in result.stderr
        header = ",".join(SNAPSHOT_COLUMNS if command == "list" else SUMMARY_COLUMNS)
        assert terminal.run("usage", command, "-e", "key", "--csv").stdout == f"{header}\n"
    assert terminal.json("usage", "list", "-e", "key") == []
    assert terminal.json("usage", "summary", "-e", "key")["snapshot_count"] == 0


def test_nothing_found_on_dynamodb_asks_for_the_aggregator() -> None:
    with dynamodb_table() as name:
        store = ("--name", name, "--region", REGION, "--endpoint-url", engine.endpoint())
        result = run_command(*store, "usage", "list", "-e", "key")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "`zae-limiter status` shows whether it is deployed" in result.stderr


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("-e key --json --csv", "--json and --csv cannot be combined"),
        ("-e key --plot --csv", "--csv and --plot cannot be combined"),
        ("-e key --plot --json", "--json and --plot cannot be combined"),
        ("--start 24h", "Pass --entity ID, --resource NAME or both"),
        ("-e key --start 2026-02-01 --end 2026-02-01", "--start must be before --end"),
        ("-e key --start 1h --end 2h", "--start must be before --end"),
        ("-e key --start yesterday", "'yesterday' is not a moment; write 2026-11-16T12:00:00Z"),
        ("-e key --start 2026-02-30", "'2026-02-30' is not a moment"),
        ("-e key --end 99999999999999d", "is not a moment"),
        ("-e key --end 2026-02-01T12:00", "has no time zone; end it with Z"),
        ("-e key --window weekly", "weekly"),
    ],
)
@pytest.mark.parametrize("command", ["list", "summary"])
def test_bad_input_opens_no_store(tmp_path: Path, command: str, line: str, reason: str) -> None:
    nowhere = Terminal(tmp_path / "none.db")
    result = nowhere.run("usage", command, *line.split())
    assert (result.exit_code, result.stdout) == (2, "")
    assert reason in (json.loads(result.stderr)["message"] if "--json" in line else " ".join(result.stderr.split()))
    assert not (tmp_path / "none.db").exists()


def test_limit_and_all_exclude_each_other(terminal: Terminal) -> None:
    assert "cannot be combined" in terminal.run("usage", "list", "-e", "key", "--limit", "5", "--all").stderr


def test_moments() -> None:
    now = datetime(2026, 11, 16, 12, tzinfo=UTC)
    assert parse_moment("24h", now) == now - timedelta(days=1)
    assert parse_moment("7d", now) == now - timedelta(days=7)
    assert parse_moment("90min", now) == now - timedelta(minutes=90)
    assert parse_moment("2026-11-16", now) == datetime(2026, 11, 16, tzinfo=UTC)
    east = timezone(timedelta(hours=9))
    assert parse_moment("2026-11-16T12:00:00+09:00", now) == datetime(2026, 11, 16, 12, tzinfo=east)
    with pytest.raises(ValueError, match="is not a moment"):
        parse_moment("day", now)


# Charts.


def test_a_chart_per_limit_of_fixed_width_and_without_control_codes(used: Terminal) -> None:
    text = used.text("usage", "list", "-e", "key", "-r", "gpt-4", "--plot")
    rpm, tpm = text.split("\n\n")
    assert rpm.startswith("rpm of key on gpt-4, hourly, 2026-01-31 22:00 to 2026-02-01 00:00 (UTC): 5\n")
    assert tpm.startswith("tpm of key on gpt-4, hourly, 2026-01-31 22:00 to 2026-02-01 00:00 (UTC): 11,000\n")
    assert "\x1b" not in text
    for chart in (rpm, tpm):
        assert {len(line) for line in chart.splitlines() if line.endswith("│")} == {PIPE_WIDTH}
    assert "9,000┤" in tpm
    assert "01-31 22:00" in tpm.splitlines()[-1]


def test_bars_stand_in_their_windows_and_are_as_high_as_their_share(used: Terminal) -> None:
    lines = used.text("usage", "list", "-e", "key", "-r", "gpt-4", "--plot").split("\n\n")[1].splitlines()
    drawn = [line[len("9,000┤") : -1] for line in lines if line.endswith("│")]
    third = len(drawn[0]) // 3
    heights = [sum("█" in row[place : place + third] for row in drawn) for place in (0, third, 2 * third)]
    assert heights[0] == len(drawn)
    assert heights[1] == 0, "an hour without anything is blank"
    assert 0 < heights[2] < len(drawn) / 2


def test_a_series_has_every_window_between_the_first_and_the_last() -> None:
    def snapshot(entity: str, start: str, **counters: int) -> UsageSnapshot:
        return UsageSnapshot(entity, "gpt-4", start, "", "monthly", counters, 1)

    january, april = "2026-01-01T00:00:00Z", "2026-04-01T00:00:00Z"
    found = group_series(
        [snapshot("b", april, tpm=5), snapshot("a", january, rpm=1, tpm=2), snapshot("a", april, tpm=1)]
    )
    assert [(each.limit_name, each.consumed) for each in found] == [("rpm", [1]), ("tpm", [2, 0, 0, 6])]
    assert [start[:7] for start in found[1].starts] == ["2026-01", "2026-02", "2026-03", "2026-04"]


def test_where_windows_share_a_column_an_empty_one_hides_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    hours = (usage.window_of("hourly", START + hour * HOUR) for hour in range(0, 401, 2))
    found = [UsageSnapshot("key", "gpt-4", hour.start, hour.end, "hourly", {"rpm": 5}, 1) for hour in hours]
    print_charts(load_plotext(), found, "key")
    drawn = [line[2:-1] for line in capsys.readouterr().out.splitlines() if line.endswith("│")]
    assert {"".join(set(row)) for row in drawn} == {"█"}


def test_more_was_given_back_than_taken(terminal: Terminal) -> None:
    record(terminal, START, {"tpm": 500})
    record(terminal, START + HOUR, {"tpm": -200})
    text = terminal.text("usage", "list", "-e", "key", "--plot")
    assert "-200┤" in text
    assert "(UTC): 300\n" in text


def test_summary_draws_its_windows_above(used: Terminal) -> None:
    text = used.text("usage", "summary", "-r", "gpt-4", "--window", "daily", "--plot")
    assert text.startswith("rpm of gpt-4, daily, 2026-01-31 to 2026-02-01 (UTC): 12\n")
    assert ["rpm", "12", "4.0"] in words(text)


@pytest.mark.parametrize("coloured", [True, False], ids=["colours", "NO_COLOR"])
def test_on_a_terminal_a_chart_is_as_wide_as_it_is(used: Terminal, coloured: bool) -> None:
    env = {"TERM": "xterm-256color", "COLUMNS": "60", "LINES": "30"} | ({} if coloured else {"NO_COLOR": "1"})
    shown = on_a_terminal(("--url", used.url, "usage", "list", "-e", "key", "--plot"), env)
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in shown.splitlines()]
    assert {len(line) for line in lines if line.endswith("│")} == {60}
    assert ("\x1b[" in shown) is coloured


def on_a_terminal(arguments: Sequence[str], env: Mapping[str, str]) -> str:
    """What a command shows to a terminal."""
    ours, theirs = pty.openpty()
    plain = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    running = subprocess.Popen([sys.executable, "-m", "zae_limiter", *arguments], stdout=theirs, env={**plain, **env})
    os.close(theirs)
    shown = "".join(parts(ours))
    os.close(ours)
    assert running.wait(PATIENCE) == 0
    return shown


def test_without_plotext_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotext", None)
    result = Terminal(tmp_path / "none.db").run("usage", "list", "-e", "key", "--plot")
    assert result.exit_code == 2
    assert 'pip install "zae-limiter[plot]"' in result.stderr
    assert not (tmp_path / "none.db").exists()


@pytest.mark.parametrize("version", ["6.1.0", "4.2.0"])
def test_another_plotext_is_refused_with_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """Version 6 has no functions to draw with: without this it ends in an AttributeError, after all was read."""
    other = ModuleType("plotext")
    other.__version__ = version  # type: ignore[attr-defined]  # as libraries have it
    monkeypatch.setitem(sys.modules, "plotext", other)
    result = Terminal(tmp_path / "none.db").run("usage", "list", "-e", "key", "--plot")
    assert result.exit_code == 2
    assert f"needs plotext 5, and version {version} is installed" in result.stderr
    assert 'pip install "zae-limiter[plot]"' in result.stderr
    assert not (tmp_path / "none.db").exists()
