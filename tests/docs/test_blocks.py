"""No block goes unwatched: every language on every page has somebody who takes care of it."""

from __future__ import annotations

import itertools
import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.pages import BLOCKS, OUTPUT, PAGES, Block, in_language, named, unread
from tests.support.paths import ROOT

RUN = {"python": "test_python.py", "console": "test_console.py"}
REPLAYED = {
    "shell-session": {"docs/guide/web/gateway.md", "examples/README.md", "docs/contributing/local-aws.md"},
    "http": {"docs/guide/web/answers.md"},
    "diff": {"docs/contributing/kinds.md"},
}
"""Sessions with a running server, and what it answers: tests/web/test_examples.py and tests/aws/test_local_cli.py.

A change of the sources: tests/docs/test_kinds_page.py.
"""
PARSED: dict[str, Callable[[str], Any]] = {"json": json.loads, "toml": tomllib.loads, "yaml": yaml.safe_load}
DIAGRAMS = ("flowchart", "sequenceDiagram", "stateDiagram-v2")
TYPED = re.compile(r"^\s*(\$ |>>> |zae-limiter |pip install |(import|from) \w+)", re.MULTILINE)


def _place(block: Block) -> str:
    return block.place


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_fence_belongs_to_a_block(page: Path) -> None:
    assert unread(page) == 0


def test_every_language_is_taken_care_of() -> None:
    watched = {*RUN, *PARSED, "text", "mermaid"}
    lost = [block.place for block in BLOCKS if block.language not in watched and not _replayed(block)]
    assert lost == [], "no test looks at these blocks: choose a language of docs/contributing/testing.md"


def _replayed(block: Block) -> bool:
    return block.page in REPLAYED.get(block.language, ())


@pytest.mark.parametrize("language", RUN)
def test_what_is_run_is_there(language: str) -> None:
    """A parser that finds nothing would let everything pass."""
    assert len(in_language(language)) >= 10


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language in PARSED], ids=_place)
def test_data_can_be_read(block: Block) -> None:
    assert PARSED[block.language](block.text)


@pytest.mark.parametrize("block", in_language("mermaid"), ids=_place)
def test_diagrams_say_what_they_are(block: Block) -> None:
    """A semicolon would end a line of a sequence."""
    kind = block.text.split()[0]
    assert kind in DIAGRAMS
    assert kind != "sequenceDiagram" or ";" not in block.text


@pytest.mark.parametrize("block", in_language("text"), ids=_place)
def test_plain_text_hides_nothing_that_could_be_run(block: Block) -> None:
    assert TYPED.search(block.text) is None


def test_an_output_stands_below_what_prints_it() -> None:
    for before, block in itertools.pairwise(BLOCKS):
        if block.title == OUTPUT:
            assert (before.page, before.language) == (block.page, "python"), block.place


@pytest.mark.parametrize("command", ["make", "pip"], ids=str)
def test_what_is_set_up_elsewhere_exists(command: str) -> None:
    """Targets of the Makefile and extras of the package: CI uses the one and the tests need the other."""
    known = {"make": r"^([\w-]+):", "pip": r"^([\w-]+) = \["}
    source = {"make": ROOT / "Makefile", "pip": ROOT / "pyproject.toml"}[command].read_text(encoding="utf-8")
    mentions = {"make": r"^\$ make ([\w-]+)", "pip": r"(?:zae-limiter|\"\.)\[([\w,-]+)\]"}[command]
    told = {name for page in PAGES for name in re.findall(mentions, page.read_text(encoding="utf-8"), re.MULTILINE)}
    wanted = {each for name in told for each in name.split(",")}
    assert wanted
    assert wanted <= set(re.findall(known[command], source, re.MULTILINE))


def test_what_the_readme_installs_is_this_program() -> None:
    """Until this version is released the name alone is that of another one."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    installed = re.findall(r"pip install (\S+)", text)
    assert installed[0] == "."
    assert [each for each in installed if not each.startswith((".", '".'))] == ["zae-limiter`"]
    assert "`pip install zae-limiter` brings 0.17" in text


MENTIONED = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "examples/README.md")]


@pytest.mark.parametrize("source", [*MENTIONED, *sorted((ROOT / "src").rglob("*.py"))], ids=named)
def test_pages_that_are_mentioned_exist(source: Path) -> None:
    """Links and names of pages outside of the documentation, which its own build does not see."""
    for path in re.findall(r"\bdocs/[\w./-]+\.(?:md|svg)", source.read_text(encoding="utf-8")):
        assert (ROOT / path).is_file(), path
