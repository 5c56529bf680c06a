"""Whoever walks the pages notices what is wrong on them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import Block
from tests.docs.test_python import stories
from tests.docs.walking import followed


def block(text: str, language: str = "console", title: str | None = None) -> Block:
    """A block of a page that does not exist."""
    return Block("page.md", 1, language, title, text)


def test_files_are_written_and_commands_share_a_shell(tmp_path: Path) -> None:
    page = [
        block("print('from the file')\n", "python", "first.py"),
        block("$ export GREETING=hello\n$ pip install nothing-at-all\n$ python first.py\nfrom the file\n"),
        block("$ echo $GREETING; echo skipped; echo end\nhello\n...\nend\n"),
    ]
    assert [step.command.split()[0] for step in followed(page, tmp_path, "stack")] == ["export", "python", "echo"]


@pytest.mark.parametrize(
    "session",
    ["$ false\n$ echo later\n", "$ echo one\ntwo\n", "$ printf 'a\\nb\\n'\nb\na\n", "$ echo one\n$ no-such-command\n"],
    ids=["fails", "shows-something-else", "in-another-order", "does-not-exist"],
)
def test_what_is_wrong_is_found(session: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        followed([block(session)], tmp_path, "stack")


@pytest.mark.parametrize(
    "session",
    [
        "$ printf 'a\\nb\\n'\na\n",
        "$ printf 'a\\nb\\n'\n",
        "$ printf 'a\\nb\\n'\n...\na\n",
        "$ echo retry in 5 h\nretry in 6 h\n",
    ],
    ids=["less", "nothing", "before-the-gap", "differs"],
)
def test_what_is_left_out_is_found_where_all_is_to_be_shown(session: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        followed([block(session)], tmp_path, "stack", in_full=True)


def test_gaps_moments_and_waits_may_differ_where_all_is_to_be_shown(tmp_path: Path) -> None:
    page = [
        block("$ printf 'a\\nb\\n\\nc\\n'\n...\nc\n$ true\n"),
        block("$ echo at $(date '+%Y-%m-%d %H:%M:%S'): retry in 17.1 s by $LOGNAME\n"),
    ]
    page[1] = page[1]._replace(text=page[1].text + "at 2026-11-17 02:43:06: retry in 17279.1 s by ann\n")
    assert len(followed(page, tmp_path, "stack", in_full=True)) == 3


def test_an_import_starts_a_story() -> None:
    texts = ["import a\n", "go_on()\n", "from b import c\n"]
    told = [[each.text for each in story] for story in stories([block(text, "python") for text in texts])]
    assert told == [texts[:2], texts[2:]]
