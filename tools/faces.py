"""Keep the docstrings of the blocking classes those of the async ones: ``python -m tools.faces`` rewrites them.

The text is written once, at the async method. The blocking one has the same, without ``await`` and with its own class
names, as text in its source: editors and the API reference read it there.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from zae_limiter import (
    Lease,
    RateLimiter,
    Repository,
    RepositoryBuilder,
    StackManager,
    SyncLease,
    SyncRateLimiter,
    SyncRepository,
    SyncRepositoryBuilder,
    SyncStackManager,
)

FACES: tuple[tuple[type, type], ...] = (
    (RateLimiter, SyncRateLimiter),
    (Repository, SyncRepository),
    (Lease, SyncLease),
    (RepositoryBuilder, SyncRepositoryBuilder),
    (StackManager, SyncStackManager),
)
WORDS = (
    (re.compile(r"^>>> import asyncio\n", re.MULTILINE), ""),
    (re.compile(r"\basyncio\.run\((.*)\)"), r"\1"),
    (re.compile(r"\basync (?=with\b|def\b)"), ""),
    (re.compile(r"\bawait "), ""),
    (re.compile(r"\b(?=(?:RateLimiter|Repository|RepositoryBuilder|Lease)\b)"), "Sync"),
)
"""What has to differ: each pattern of an async docstring, and what stands for it in the blocking one."""


class Docstring(NamedTuple):
    """A docstring of a blocking class: whose it is, what it says and what it should say."""

    owner: type
    name: str | None
    text: str | None
    wanted: str


def blocking_words(text: str) -> str:
    """Return the docstring of an async name as it reads for the blocking one."""
    for pattern, replacement in WORDS:
        text = pattern.sub(replacement, text)
    return text


def docstrings() -> Iterator[Docstring]:
    """Yield the docstring of every blocking class and of every public name in it that is not the async one's own."""
    for twin, face in FACES:
        yield Docstring(face, None, inspect.getdoc(face), blocking_words(inspect.getdoc(twin) or ""))
        for name in dir(face):
            owner = next(kind for kind in face.__mro__ if name in kind.__dict__)
            if not name.startswith("_") and owner not in twin.__mro__:
                wanted = blocking_words(inspect.getdoc(getattr(twin, name)) or "")
                yield Docstring(owner, name, inspect.getdoc(getattr(face, name)), wanted)


def rewrite(source: str, found: list[Docstring]) -> str:
    """Return the source of a module with these docstrings as they should be."""
    lines = source.splitlines(keepends=True)
    classes = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}
    for each in sorted(found, key=lambda each: _node(classes, each).body[0].lineno, reverse=True):
        node = _node(classes, each)
        first = node.body[0]
        if ast.get_docstring(node) is None:
            raise ValueError(f"{each.owner.__name__}.{each.name} has no docstring to replace")
        lines[first.lineno - 1 : first.end_lineno] = _quoted(each.wanted, " " * first.col_offset)
    return "".join(lines)


def _node(classes: dict[str, ast.ClassDef], each: Docstring) -> ast.ClassDef | ast.FunctionDef:
    owner = classes[each.owner.__name__]
    if each.name is None:
        return owner
    found = [node for node in owner.body if isinstance(node, ast.FunctionDef) and node.name == each.name]
    return found[-1]  # after its overloads


def _quoted(text: str, indent: str) -> list[str]:
    first, *rest = text.splitlines()
    if not rest:
        return [f'{indent}"""{first}"""\n']
    return [f'{indent}"""{first}\n', *(f"{indent}{line}".rstrip() + "\n" for line in rest), f'{indent}"""\n']


def main() -> None:
    """Rewrite the docstrings that differ, and say which."""
    wrong = {(each.owner, each.name): each for each in docstrings() if each.text != each.wanted}
    for module in sorted({owner.__module__ for owner, _ in wrong}):
        path = Path(sys.modules[module].__file__ or "")
        found = [each for each in wrong.values() if each.owner.__module__ == module]
        path.write_text(rewrite(path.read_text(encoding="utf-8"), found), encoding="utf-8")
    for owner, name in wrong:
        print(f"rewritten: {owner.__name__}{f'.{name}' if name else ''}")


if __name__ == "__main__":
    main()
