"""``top``: look after look at the busiest buckets, with and without a terminal."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.terminal import Terminal, fresh, words
from tests.support.deadlines import PATIENCE
from zae_limiter import Limit, SyncRateLimiter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STILL = [
    Limit.custom(name, size, refill_amount=1, refill_period_seconds=86_400)
    for name, size in (("rpm", 100), ("tpm", 10_000))
]
"""Limits that refill nothing while a test runs."""
TWICE = ("--count", "2", "--interval", "0.01")


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    """Three keys on two resources: one in debt, one half used, one hardly."""
    made = fresh(tmp_path)
    with SyncRateLimiter(made.url) as limiter:
        for entity, resource, tokens in (
            ("half", "gpt-4", 5_000),
            ("little", "gpt-4", 100),
            ("debtor", "gpt-3", 9_000),
        ):
            with limiter.acquire(entity, resource, {"rpm": 2, "tpm": tokens}, STILL) as lease:
                if entity == "debtor":
                    lease.adjust(tpm=6_000)
    return made


def looks(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def test_one_look(terminal: Terminal) -> None:
    text = terminal.text("top", "--once")
    lines = words(text)
    assert " UTC, namespace default: 6 limits in 3 records\n" in text
    assert lines[1][:6] == ["entity", "resource", "limit", "per", "second", "left"]
    rows = lines[3:-1]
    assert [row[:3] for row in rows[:3]] == [
        ["debtor", "gpt-3", "tpm"],
        ["half", "gpt-4", "tpm"],
        ["debtor", "gpt-3", "rpm"],
    ]
    assert rows[0][3:] == ["-", "-5,000", "10,000", "█" * 12, "150", "%", "15000", "d"]
    assert rows[1][3:9] == ["-", "5,000", "10,000", "█" * 6, "50", "%"]
    assert "\x1b" not in text


def test_every_look_is_a_block_and_from_the_second_on_there_are_rates(terminal: Terminal) -> None:
    first, second = terminal.text("top", *TWICE).strip().split("\n\n")
    for block, rate in ((first, "-"), (second, "0.0")):
        assert block.count("namespace default") == 1
        assert {row[3] for row in words(block)[3:]} == {rate}


def test_json_is_a_document_a_line(terminal: Terminal) -> None:
    result = terminal.run("--json", "top", *TWICE, "--limit", "1")
    first, second = looks(result.stdout)
    assert result.stderr == ""
    assert first["taken_at"] < second["taken_at"]
    assert (first["records"], first["complete"]) == (3, True)
    (busiest,) = first["buckets"]
    assert (busiest["entity_id"], busiest["available"], busiest["total_consumed_milli"]) == (
        "debtor",
        -5_000,
        15_000_000,
    )
    assert busiest["consumed_per_second"] is None
    assert second["buckets"][0]["consumed_per_second"] == 0.0


def test_what_is_shown_and_in_which_order(terminal: Terminal) -> None:
    def shown(*options: str) -> list[tuple[str, str]]:
        (look,) = looks(terminal.run("top", "--once", "--json", *options).stdout)
        return [(each["entity_id"], each["limit_name"]) for each in look["buckets"]]

    assert shown("--limit", "2") == [("debtor", "tpm"), ("half", "tpm")]
    assert shown("--sort", "left") == [
        ("debtor", "tpm"),
        *((entity, "rpm") for entity in ("debtor", "half", "little")),
        *(("half", "tpm"), ("little", "tpm")),
    ]
    assert shown("--resource", "gpt-4", "--limit", "1") == [("half", "tpm")]
    assert shown("--namespace", "default", "--resource", "none") == []


def test_it_says_when_it_was_cut_and_when_there_is_nothing(terminal: Terminal) -> None:
    cut = terminal.run("top", "--once", "--max-records", "2")
    assert "4 limits in 2 records" in cut.stdout
    assert "only the first 2 records were read" in cut.stderr
    assert looks(terminal.run("top", "--once", "--json", "--max-records", "2").stdout)[0]["complete"] is False
    empty = terminal.run("top", "--once", "--resource", "none")
    assert "resource none: 0 limits in 0 records" in empty.stdout
    assert "nothing has been consumed yet" in empty.stderr


def test_bad_input(terminal: Terminal) -> None:
    assert "cannot be combined" in terminal.run("top", "--once", "--count", "3").stderr
    for line in ("--interval 0", "--count 0", "--limit 0", "--sort name", "--max-records 0"):
        assert terminal.run("top", *line.split()).exit_code == 2, line
    assert terminal.run("top", "--once", "--resource", "a b").exit_code == 2


def test_help_tells_what_it_costs(terminal: Terminal) -> None:
    assert "On DynamoDB that costs" in " ".join(terminal.raw("top", "--help").stdout.split())


INTERRUPTIBLE = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from zae_limiter.cli import main
main()
"""
"""The command line of a shell's foreground: what runs in the background is deaf to Ctrl-C, and so is what it starts."""


def started(terminal: Terminal, output: int, **env: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", INTERRUPTIBLE, "--url", terminal.url, "top", "--interval", "0.02"]
    plain = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
    return subprocess.Popen(command, stdout=output, stderr=subprocess.PIPE, text=True, env=plain | env)


def interrupted(running: subprocess.Popen[str]) -> None:
    """Ctrl-C, as a terminal sends it, and no complaint about it."""
    running.send_signal(signal.SIGINT)
    try:
        assert running.wait(PATIENCE) == 0
    finally:
        running.kill()
    assert running.stderr is not None
    with running.stderr:
        assert running.stderr.read() == ""


def test_an_interrupt_is_a_good_end_also_in_ascii(terminal: Terminal) -> None:
    with started(terminal, subprocess.PIPE, PYTHONIOENCODING="ascii") as running:
        assert running.stdout is not None
        lines = [running.stdout.readline() for _ in range(20)]
        interrupted(running)
    assert sum("namespace default" in line for line in lines) >= 2
    (debtor, *_) = [line for line in lines if line.startswith("debtor")]
    assert "############" in debtor
    assert all(line.isascii() for line in lines)


@pytest.mark.parametrize("coloured", [True, False], ids=["colours", "NO_COLOR"])
def test_on_a_terminal_it_is_drawn_in_place_and_the_cursor_comes_back(terminal: Terminal, coloured: bool) -> None:
    env = {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"} | ({} if coloured else {"NO_COLOR": "1"})
    ours, theirs = pty.openpty()
    running = started(terminal, theirs, **env)
    os.close(theirs)
    shown = ""
    for part in parts(ours):
        shown += part
        if running.poll() is None and shown.count("namespace default") == 3:
            interrupted(running)
    os.close(ours)
    assert running.wait(PATIENCE) == 0
    assert shown.index("\x1b[?25l") < shown.index("debtor") < shown.rindex("\x1b[?25h")
    assert "\x1b[1A" in shown, "the picture before is drawn over"
    assert ("48;5;" in shown) is coloured


def shown_at(terminal: Terminal, columns: int, lines: int = 12) -> list[str]:
    """The lines of the second look, on a terminal of this size."""
    ours, theirs = pty.openpty()
    size = {"COLUMNS": str(columns), "LINES": str(lines)}
    running = started(terminal, theirs, TERM="xterm-256color", NO_COLOR="1", **size)
    os.close(theirs)
    shown = ""
    for part in parts(ours):
        shown += part
        if running.poll() is None and shown.count("namespace") >= 2:
            interrupted(running)
    os.close(ours)
    assert running.wait(PATIENCE) == 0
    looks = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown).split("UTC, namespace")
    return [line.rstrip() for line in looks[2].splitlines()]


def test_a_narrow_terminal_is_shown_resource_and_rate_and_whole_words(terminal: Terminal) -> None:
    lines = [line.split() for line in shown_at(terminal, 40)]
    assert ["debtor", "gpt-3", "tpm", "0.0", "-5,000", "150", "%"] in lines


LONG = ("customer-7f3a9b2c-1d4e-4f5a-9b8c-tenant-key-000001", "anthropic/claude-sonnet-4.5-20250929")


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_long_names_are_shortened_and_no_bucket_takes_two_lines(terminal: Terminal, columns: int) -> None:
    with SyncRateLimiter(terminal.url) as limiter, limiter.acquire(*LONG, {"rpm": 99, "tpm": 9_999}, STILL):
        pass
    lines = [line for line in shown_at(terminal, columns, 24) if line and "default" not in line]
    head, _, *rows = lines
    assert all(len(line) <= columns for line in (head, *rows))
    assert head.split()[:4] == ["entity", "resource", "limit", "per"]
    ours = [row.split() for row in rows if row.startswith("cust")]
    assert [row[2] for row in ours] == ["tpm", "rpm"]
    for entity, resource, _, rate, left, *_ in ours:
        assert all("…" in name for name in (entity, resource))
        assert (entity.endswith("001"), resource.endswith("929")) == (True, True), "the end tells names apart"
        assert (rate, left) == ("0.0", "1")
    if columns >= 80:
        assert head.split()[-2:] == ["full", "in"]
        assert "capacity" in head


def parts(descriptor: int) -> Iterator[str]:
    """What a terminal is sent, until everybody has closed it."""
    with contextlib.suppress(OSError):
        while part := os.read(descriptor, 65_536):
            yield part.decode(errors="replace")
