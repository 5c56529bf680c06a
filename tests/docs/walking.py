"""Walking a page: its files are written and its commands typed, from top to bottom, in one empty folder."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.docs import engines
from tests.docs.pages import OUTPUT, Block
from tests.web.sessions import GAP, environment, steps

ELSEWHERE = ("make ", "pip install ", "python3 -m venv ", ". .venv/bin/activate", "python -m examples.")
"""How lines begin that set something up: the environment of the tests stands for it."""
MARK = "\x1e"
USER = "ann"
"""Who follows the pages."""
VARIES = {
    r"\d{4}-\d\d-\d\d([ T])\d\d:\d\d:\d\d(\.\d+Z)?": r"0000-00-00\g<1>00:00:00",
    r"retry in [\d.]+ s": "retry in 0 s",
}
"""What is another thing each time, and what stands for it."""


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


def followed(blocks: list[Block], folder: Path, stack: str, *, in_full: bool = False) -> list[Typed]:
    """Follow a page and return what was typed. Everything that it shows must come; `in_full`, and nothing else."""
    done = [_placed(step, stack) for step in walk(blocks)]
    text = "".join(block.text for block in blocks)
    work, notes = folder / "work", folder / "notes"
    work.mkdir()
    notes.mkdir()
    run = subprocess.run(
        ["bash", "-c", _script(done, notes)],
        cwd=work,
        env={**environment(), **engines.settings(text), "NO_COLOR": "1", "COLUMNS": "100", "LOGNAME": USER},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    typed = [step for step in done if isinstance(step, Typed)]
    printed = run.stdout.split(MARK)[1:]
    assert run.returncode == 0, f"$ {typed[len(printed) - 1].command}\n{printed[-1]}"
    compare = _compare_all if in_full else _compare
    for step, output in zip(typed, printed, strict=True):
        compare(step, output)
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
    for line in filter(GAP.__ne__, step.shown):
        assert line.rstrip() in lines, f"$ {step.command}\ndoes not show, in this place: {line}\n{output}"


def _compare_all(step: Typed, output: str) -> None:
    """Compare every line but empty ones; a gap stands for any number of them."""
    printed = "".join(f"{_lasting(line)}\n" for line in output.splitlines() if line.strip())
    expected = "".join(r"(?:.*\n)*" if line == GAP else re.escape(_lasting(line)) + r"\n" for line in step.shown)
    assert re.fullmatch(expected, printed), f"$ {step.command}\nprints something else:\n{output}"


def _lasting(line: str) -> str:
    """A line without what varies."""
    for pattern, instead in VARIES.items():
        line = re.sub(pattern, instead, line)
    return line.rstrip()
