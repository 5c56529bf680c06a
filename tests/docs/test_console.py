"""Every command in a console block runs as typed, and shows what stands below it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import PAGES, Block, named, on_page
from tests.docs.walking import Saved, Typed, followed, walk

START = "docs/getting-started.md"
WALKED = {named(page): on_page(page) for page in PAGES if any(isinstance(step, Typed) for step in walk(on_page(page)))}


def test_pages_with_commands_are_found() -> None:
    assert {"README.md", START} <= WALKED.keys()


@pytest.mark.parametrize(("page", "blocks"), WALKED.items(), ids=WALKED)
def test_a_page_can_be_followed(page: str, blocks: list[Block], tmp_path: Path) -> None:
    typed = followed(blocks, tmp_path, f"docs-{Path(page).stem}", in_full=page == START)
    assert typed


def test_a_stranger_gets_from_nothing_to_a_limit_that_holds() -> None:
    """The first page leads through a file of Python, the shell and a store that processes share, in this order."""
    steps = list(walk(WALKED[START]))
    files = [step.name for step in steps if isinstance(step, Saved)]
    typed = [step.command for step in steps if isinstance(step, Typed)]
    assert next(command for command in typed if command.startswith("python ")) == f"python {files[0]}"
    assert any("redis://" in command for command in typed)
    assert any(command.startswith("zae-limiter acquire") and "exit code" in command for command in typed)
    assert all(step.shown for step in steps if isinstance(step, Typed) and step.command.startswith("python "))
