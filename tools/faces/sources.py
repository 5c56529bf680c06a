"""Read the modules of the async classes: their code, and where the names in it come from."""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
from collections.abc import Iterable, Iterator
from functools import cache
from typing import NamedTuple


class Origin(NamedTuple):
    """The absolute name of a module, and that of something in it; None for the module itself."""

    module: str
    name: str | None


@cache
def read_module(name: str) -> ast.Module:
    """Return the code of a module, by its absolute name."""
    return ast.parse(inspect.getsource(importlib.import_module(name)))


def read_class(kind: type) -> ast.ClassDef:
    """Return the code of a class."""
    body = read_module(kind.__module__).body
    return next(node for node in body if isinstance(node, ast.ClassDef) and node.name == kind.__name__)


def find_origins(module: str) -> dict[str, Origin]:
    """Return where each name comes from that a module imports or defines."""
    found: dict[str, Origin] = {}
    for node in ast.walk(read_module(module)):
        if isinstance(node, ast.Import):
            found |= {each.asname or each.name: Origin(each.name, None) for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = module.split(".")[: -node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            found |= {each.asname or each.name: Origin(base, each.name) for each in node.names}
    return found | {name: Origin(module, name) for name in _bound(read_module(module).body)}


def used_names(module: ast.Module) -> dict[str, bool]:
    """Return the names that code takes from elsewhere, and whether it needs them to run, not only for type hints."""
    found: dict[str, bool] = {}
    for name, is_hint in _uses(module, frozenset(dir(builtins)), is_hint=False):
        found[name] = found.get(name, False) or not is_hint
    return found


def _uses(node: ast.AST, known: frozenset[str], *, is_hint: bool) -> Iterator[tuple[str, bool]]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in known:
        yield node.id, is_hint
    elif isinstance(node, ast.Module):
        known |= _bound(node.body)
    elif isinstance(node, ast.FunctionDef | ast.Lambda):
        inside = list(ast.walk(node))
        known |= {each.arg for each in inside if isinstance(each, ast.arg)} | _bound(inside)
    for field, value in ast.iter_fields(node):
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, ast.AST):
                yield from _uses(part, known, is_hint=is_hint or field in ("annotation", "returns"))


def _bound(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names that these definitions and assignments bind."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.Name):
            names = (each for each in ast.walk(node) if isinstance(each, ast.Name))
            found |= {each.id for each in names if isinstance(each.ctx, ast.Store)}
    return found
