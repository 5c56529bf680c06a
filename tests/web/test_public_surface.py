"""The web layer is one integration among others: it uses of the limiter and its leases what everybody may use."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import zae_limiter.web

FILES = sorted(Path(zae_limiter.web.__file__).parent.glob("*.py"))
INHERITED = {"_replace"}
"""Public in spite of its name: a named tuple has it."""


def foreign_private_attributes(tree: ast.Module) -> Iterator[str]:
    """Attributes with a leading underscore that are used, and belong to no class or instance of the module."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    own = {node.attr for node in nodes if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")}
    for node in nodes:
        if node.attr.startswith("_") and not node.attr.startswith("__") and node.attr not in own | INHERITED:
            yield f"{ast.unparse(node)} in line {node.lineno}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_private_attribute_of_another_module_is_used(path: Path) -> None:
    assert not list(foreign_private_attributes(ast.parse(path.read_text(encoding="utf-8"))))


def test_a_private_attribute_of_another_module_would_be_found() -> None:
    found = foreign_private_attributes(ast.parse("class A:\n    def f(self, lease):\n        self._a = lease._open\n"))
    assert list(found) == ["lease._open in line 3"]
