"""Commands on terminals of 40 and 80 columns: everything is there, no number in pieces, no line too long."""

from __future__ import annotations

import re

import pytest

from tests.cli.terminal import Terminal, fresh
from tests.cli.test_usage import on_a_terminal
from zae_limiter import Limit, SyncRateLimiter
from zae_limiter.cli.grid import Grid
from zae_limiter.cli.tables import draw_table, fit_table, measure, shorten

KEY = "customer-7f3a9b2c-1d4e-4f5a-9b8c-tenant-key-000001"
ORGANISATION = "organisation-acme-production"
MODEL = "anthropic/claude-sonnet-4.5-20250929"
SLOW = [Limit.per_day("rpm", 10, 2_000), Limit.per_day("tpm", 1_000_000, 3_000_000)]
SIZES = pytest.mark.parametrize("columns", [40, 80])


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Terminal:
    """A key with a long name, of an organisation with a long name, on a model with a long name."""
    made = fresh(tmp_path_factory.mktemp("narrow"))
    with SyncRateLimiter(made.url) as limiter:
        limiter.set_system_defaults(SLOW)
        limiter.set_resource_defaults(MODEL, SLOW)
        limiter.create_entity(ORGANISATION)
        limiter.create_entity(KEY, None, ORGANISATION, True)
        with limiter.acquire(KEY, MODEL, {"rpm": 2_000, "tpm": 1_234_567}):
            pass
    return made


def shown(terminal: Terminal, columns: int, *words: str) -> str:
    env = {"TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": "24", "NO_COLOR": "1"}
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", on_a_terminal(("--url", terminal.url, *words), env))
    for line in text.splitlines():
        assert len(line.rstrip()) <= columns, line
    return text


def letters(text: str) -> str:
    """The text without its line breaks and its blanks: where a name may have been folded."""
    return "".join(text.split())


@SIZES
def test_explain(terminal: Terminal, columns: int) -> None:
    text = shown(terminal, columns, "explain", KEY, MODEL, "-c", "rpm:1")
    assert "rpm" in text
    for number in ("2,000", "3,000,000", "1,000,000/day", "in 2 h 24 min"):
        assert number in text
    if columns == 40:
        assert KEY in letters(text)
        assert ORGANISATION in letters(text)
        assert "limits from  resource (over system)\n" in text.replace("\r", "")
        assert text.count("level  ") == 2, "once per level"


@SIZES
def test_usage(terminal: Terminal, columns: int) -> None:
    listed = shown(terminal, columns, "usage", "list", "-e", KEY)
    added = shown(terminal, columns, "usage", "summary", "-e", KEY)
    for text in (listed, added):
        assert "1,234,567" in text
        assert "2,000" in text
    if columns == 40:
        assert KEY in letters(listed)
        assert MODEL in letters(listed)
    assert KEY in letters(added)


@SIZES
def test_other_tables(terminal: Terminal, columns: int) -> None:
    assert "3,000,000" in shown(terminal, columns, "entity", "buckets", KEY)
    assert "entity_created" in shown(terminal, columns, "audit", "list", KEY)
    assert KEY in letters(shown(terminal, columns, "entity", "show", KEY))
    assert "1,000,000/day" in shown(terminal, columns, "system", "get-defaults")


def test_columns_move_together_before_anything_is_folded() -> None:
    grid = Grid(("name", "count"), [("x" * 30, 1_234_567)])
    natural = measure(draw_table(grid)).maximum
    assert measure(fit_table(grid, natural)).maximum == natural
    assert measure(fit_table(grid, natural - 2)).maximum == natural - 2
    assert measure(fit_table(grid, natural - 10)).maximum <= natural - 10


@pytest.mark.parametrize("width", [1, 2, 5, 9, 12])
@pytest.mark.parametrize("name", ["abcdefghij", "名前名前名前", "a", ""])
def test_a_shortened_name_fits(name: str, width: int) -> None:
    from rich.cells import cell_len

    cut = shorten(name, width)
    assert cell_len(cut) <= max(width, 1)
    assert cut == name or "…" in cut
