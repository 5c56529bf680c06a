"""Walking a page: its files are written and its commands typed, from top to bottom, in one empty folder."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.docs import engines
from tests.docs.pages import OUTPUT, Block
from tests.web.sessions import environment, steps

ELSEWHERE = ("make ", "pip install ", "python3 -m venv ", ". .venv/bin/activate", "python -m examples.")
"""How lines begin that set something up: the environment of the tests stands for it."""
MARK = "\x1e"


class Typed(NamedTuple):
    """A command, and what is shown of its output."""

    command: str
    shown: list[str]


class Saved(NamedTuple):
    """A file, and what is in it."""

    name: str
    text: str


def walk(blocks: list[Block]) -> Iterator[Typed | Saved]:
    """What somebody does who follows a page."""
    for block in blocks:
        if block.language == "console":
            for command, shown in steps(block.text):
                if not command.startswith(ELSEWHERE):
                    yield Typed(command, shown)
        elif block.title not in (None, OUTPUT):
            yield Saved(block.title or "", block.text)


def followed(blocks: list[Block], folder: Path, stack: str) -> list[Typed]:
    """Follow a page; everything that it shows must come. Returns what was typed."""
    done = [_placed(step, stack) for step in walk(blocks)]
    text = "".join(block.text for block in blocks)
    work, notes = folder / "work", folder / "notes"
    work.mkdir()
    notes.mkdir()
    run = subprocess.run(
        ["bash", "-c", _script(done, notes)],
        cwd=work,
        env={**environment(), **engines.settings(text), "NO_COLOR": "1", "COLUMNS": "100"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    typed = [step for step in done if isinstance(step, Typed)]
    printed = run.stdout.split(MARK)[1:]
    assert run.returncode == 0, f"$ {typed[len(printed) - 1].command}\n{printed[-1]}"
    for step, output in zip(typed, printed, strict=True):
        _compare(step, output)
    shutil.rmtree(work)
    return typed


def _placed(step: Typed | Saved, stack: str) -> Typed | Saved:
    """A step with the servers and the stack of the tests."""
    if isinstance(step, Saved):
        return step._replace(text=engines.redirected(step.text, stack).replace("my-app", stack))
    shown = [line.replace("my-app", stack) for line in step.shown]
    return Typed(engines.redirected(step.command, stack).replace("my-app", stack), shown)


def _script(done: list[Typed | Saved], notes: Path) -> str:
    lines = ["set -e"]
    for number, step in enumerate(done):
        if isinstance(step, Saved):
            (notes / str(number)).write_text(step.text, encoding="utf-8")
            lines.append(f"cp '{notes / str(number)}' '{step.name}'")
        else:
            lines += [f"printf '{MARK}'", step.command]
    return "\n".join(lines)


def _compare(step: Typed, output: str) -> None:
    lines = iter([line.rstrip() for line in output.splitlines()])
    for line in step.shown:
        assert line.rstrip() in lines, f"$ {step.command}\ndoes not show, in this place: {line}\n{output}"
