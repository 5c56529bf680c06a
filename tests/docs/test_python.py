"""Every Python block runs as typed, and prints what stands below it."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.docs import engines
from tests.docs.pages import BLOCKS, OUTPUT, Block, in_language

_FRESH = re.compile(r'(import|from) |"""')


def stories(blocks: Iterable[Block]) -> Iterator[list[Block]]:
    """Blocks that belong together: one that starts with an import starts afresh, any other goes on."""
    told: list[Block] = []
    for block in blocks:
        if told and (block.page != told[0].page or (block.language == "python" and _FRESH.match(block.text))):
            yield told
            told = []
        told.append(block)
    if told:
        yield told


def shown_or_run(block: Block) -> bool:
    """A block with a title is a file, which the console of its page runs."""
    return block.title == OUTPUT or (block.language == "python" and block.title is None)


STORIES = list(stories(filter(shown_or_run, BLOCKS)))


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story[0].place)
def test_a_story_runs(story: list[Block], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for variable, value in engines.settings("".join(block.text for block in story)).items():
        monkeypatch.setenv(variable, value)
    names = {"__name__": "__main__"}
    printed = ""
    for block in story:
        if block.language == "python":
            printed = run(block, names)
        else:
            assert printed == block.text, block.place


def run(block: Block, names: dict[str, str]) -> str:
    """What a block prints; what it defines stays."""
    text = "\n" * block.line + engines.redirected(block.text, "docs")
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(compile(text, block.page, "exec"), names)
    return output.getvalue()


def test_every_file_is_used() -> None:
    """A file that no command of its page names would never be run."""
    for block in in_language("python"):
        if block.title is not None:
            commands = "".join(other.text for other in in_language("console") if other.page == block.page)
            assert Path(block.title).stem in commands, block.place
