"""The pages of the documentation and the fenced blocks on them; docs/contributing/testing.md has the conventions."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

from tests.support.paths import ROOT

PAGES = [ROOT / "README.md", ROOT / "examples" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

_FENCED = re.compile(r"^( *)```([^`\n]*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
_TITLE = re.compile(r'\btitle="([^"]*)"')
_FENCE = re.compile(r"^\s*(```|~~~)", re.MULTILINE)

OUTPUT = "Output"
"""The title of a text block that shows what the block above it prints."""


class Block(NamedTuple):
    """A fenced block, where it stands, and the name it is given."""

    page: str
    line: int
    language: str
    title: str | None
    text: str

    @property
    def place(self) -> str:
        """Where to look when it is wrong."""
        return f"{self.page}:{self.line}"


def named(page: Path) -> str:
    """A page by its path in the repository."""
    return page.relative_to(ROOT).as_posix()


def on_page(page: Path) -> list[Block]:
    """The blocks of a page, in their order; those inside of lists and tabs too."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _FENCED.finditer(text):
        language, _, options = match[2].strip().partition(" ")
        title = _TITLE.search(options)
        line = text.count("\n", 0, match.start()) + 1
        found.append(Block(named(page), line, language, title and title[1], dedent(match[3])))
    return found


def unread(page: Path) -> int:
    """How many fences belong to no block that could be read."""
    return len(_FENCE.findall(page.read_text(encoding="utf-8"))) - 2 * len(on_page(page))


BLOCKS = [block for page in PAGES for block in on_page(page)]


def in_language(language: str) -> list[Block]:
    """All blocks of a language."""
    return [block for block in BLOCKS if block.language == language]
