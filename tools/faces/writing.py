"""Put the faces into their modules, with the imports that they need."""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from . import phrasing
from .sources import Origin, find_origins, read_class, used_names
from .specials import ENTRY, MODULES, REPHRASED, WRAPPED

ROOT = Path(__file__).parents[2]
PACKAGE = "zae_limiter"
NOTE = "Written by ``python -m tools.faces``: change the async classes, not this."


def async_classes() -> list[type]:
    """Return the classes that have a face, bases before those that inherit from them."""
    bases = [base for kind in WRAPPED for base in reversed(kind.__mro__[:-1])]
    wrapped = [base for base in bases if phrasing.public_members(read_class(base))]
    return [*dict.fromkeys(wrapped), *REPHRASED]


def face_module(kind: type) -> str:
    """Return the module of the face of a class."""
    name = kind.__module__.removeprefix(f"{PACKAGE}.")
    return f"{PACKAGE}.{MODULES.get(name, 'sync.' + name.rpartition('.')[2])}"


@cache
def write_faces() -> dict[str, str]:
    """Return the source of every module that is written here, by its name."""
    kinds = async_classes()
    faces = {kind.__name__: f"Sync{kind.__name__}" for kind in kinds}
    own = {node.name for kind in REPHRASED for node in read_class(kind).body if isinstance(node, ast.AsyncFunctionDef)}
    modules: dict[str, list[type]] = {}
    for kind in kinds:
        modules.setdefault(face_module(kind), []).append(kind)
    origins = find_origins(f"{PACKAGE}.limiter.blocking") | {"run": Origin(f"{PACKAGE}.runtime.blocking", "run")}
    origins |= {faces[kind.__name__]: Origin(face_module(kind), faces[kind.__name__]) for kind in kinds}
    written = {f"{PACKAGE}.sync.__init__": ENTRY.format(note=NOTE)}
    for module, held in modules.items():
        code = [
            phrasing.rephrase(read_class(kind), faces, own)
            if kind in REPHRASED
            else phrasing.wrap(read_class(kind), _bases(kind, kinds), faces)
            for kind in held
        ]
        known = {name: origin for kind in held for name, origin in find_origins(kind.__module__).items()}
        written[module] = _module(module, [kind.__name__ for kind in held], code, known | origins)
    return {module: _formatted(text) for module, text in written.items()}


def _bases(kind: type, kinds: list[type]) -> list[str]:
    """Return the faces that the face of a class inherits from: instead of a base without a face, those of its bases."""
    found = [[f"Sync{base.__name__}"] if base in kinds else _bases(base, kinds) for base in kind.__bases__]
    return list(dict.fromkeys(name for names in found for name in names))


def _module(module: str, kinds: list[str], classes: list[ast.ClassDef], origins: Mapping[str, Origin]) -> str:
    code = ast.fix_missing_locations(ast.Module([*classes], []))
    needed = used_names(code)
    running = sorted(_import(module, name, origins) for name, runs in needed.items() if runs)
    hints = sorted(f"    {_import(module, name, origins)}" for name, runs in needed.items() if not runs)
    if hints:
        running += ["from typing import TYPE_CHECKING", "if TYPE_CHECKING:", *hints]
    title = textwrap.fill(f"The blocking form of {', '.join(f'`{kind}`' for kind in kinds)}.", 118)
    head = f'"""{title}\n\n{NOTE}\n"""\n\nfrom __future__ import annotations\n'
    return "\n".join([head, *running, "", ast.unparse(code)])


def _import(module: str, name: str, origins: Mapping[str, Origin]) -> str:
    """Return the statement that imports a name."""
    if name not in origins:
        raise ValueError(f"{module} needs the name {name}, which the modules of its async classes do not have")
    origin = origins[name]
    renamed = "" if name in origin else f" as {name}"
    if origin.name is None:
        return f"import {origin.module}{renamed}"
    return f"from {_relative(module, origin.module)} import {origin.name}{renamed}"


def _relative(module: str, other: str) -> str:
    """Return how a module calls another one in its imports."""
    if not other.startswith(f"{PACKAGE}."):
        return other
    here, there = module.split(".")[:-1], other.split(".")
    while here and there and here[0] == there[0]:
        here, there = here[1:], there[1:]
    return "." * (len(here) + 1) + ".".join(there)


def _formatted(text: str) -> str:
    """Return the source as ruff writes it, imports sorted."""
    for command in (["check", "--select=I", "--fix"], ["format"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--quiet", "--stdin-filename=src/zae_limiter/sync/face.py", "-"]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return text


def find_changes(source: Path) -> Iterator[tuple[Path, str | None]]:
    """Yield the files of a source folder that are not as they should be, with what they should be; None for no file."""
    wanted = {source.joinpath(*name.split(".")).with_suffix(".py"): text for name, text in write_faces().items()}
    for path in sorted({*wanted, *(source / PACKAGE / "sync").glob("*.py")}):
        text = path.read_text(encoding="utf-8") if path.exists() else None
        if text != wanted.get(path):
            yield path, wanted.get(path)
