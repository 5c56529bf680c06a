"""The layers, checked: who may import whom, and what an import costs."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import zae_limiter

SOURCE = Path(zae_limiter.__file__).parent

MAY_IMPORT: dict[str, set[str]] = {
    "core": {"core"},
    "records": {"core", "records"},
    "manifest": {"core", "records", "manifest"},
    "clock": set(),
    "logs": set(),
    "forks": set(),
    "observer": {"core"},
    "runtime": {"core", "clock", "forks", "logs", "runtime"},
    "stores": {"core", "records", "clock", "forks", "logs", "stores"},
    "aws": {"core", "records", "clock", "forks", "runtime", "stores", "aws", "_version"},
    "repository": {"core", "records", "manifest", "clock", "forks", "logs"}
    | {"runtime", "stores", "aws", "repository", "_version"},
    "limiter": {"core", "records", "clock", "forks", "logs", "observer", "runtime", "stores", "repository", "limiter"},
    "kv": {"core", "clock", "forks", "logs", "runtime", "kv"},
    "web": {"core", "logs", "runtime", "limiter", "sync", "kv", "web"},
    "telemetry": {"core", "forks", "observer", "stores", "repository", "limiter", "sync", "telemetry", "_version"},
}
"""Layer by layer, lowest first: what each may use of ours. Shells (sync, cli, testing) may use everything."""

V017_HOOKS: dict[str, set[str]] = {
    "__init__": {"manager", "names"},
    "aws.health": {"old_stack"},
    "aws.stack": {"stack_tags"},
    "aws.stack_options": {"ignored"},
    "cli.commands": {"commands"},
    "cli.status": {"upgrade.command"},
    "limiter.limiter": {"ignored"},
    "limiter.options": {"ignored"},
    "manifest.fields": {"limits_file"},
    "manifest.limits": {"limits_file"},
    "manifest.parsing": {"limits_file"},
    "repository.opening": {"builder", "ignored"},
    "repository.repository": {"ignored"},
    "sync.facade": {"ignored"},
    "sync.repository": {"ignored"},
}
"""All modules that know ``v017``, and which of its modules they import. `cli.app` names its command ``upgrade``."""

IMPURE = {
    "asyncio", "concurrent", "logging", "multiprocessing", "os", "pathlib", "random", "secrets", "shutil", "socket",
    "sqlite3", "subprocess", "tempfile", "threading", "time", "urllib",
}  # fmt: skip
"""What the pure layers must not touch: clocks, I/O, threads, logging, chance."""

OPTIONAL = {
    "aiohttp", "asyncio", "boto3", "botocore", "click", "fastapi", "httpx", "hypothesis", "opentelemetry",
    "plotext", "pytest", "redis", "rich", "sqlite3", "starlette", "yaml",
}  # fmt: skip


PRIVATE_USES = {
    ("runtime.aio", "_asyncio_future_blocking"): "how asyncio's futures and tasks talk to each other",
    ("stores.redis.wires", "_sock"): "redis-py tells its socket in no other way",
    ("stores.redis.pipeline", "_writer"): "redis-py tells its transport in no other way",
    (
        "stores.memory",
        "_is_owned",
    ): "a lock tells whether the thread holds it in no other way, as threading.Condition asks it",
}
"""Attributes with a leading underscore that are used outside of their package, all of them of other people's code."""

NAMED_TUPLE = {"_asdict", "_fields", "_make", "_replace"}
"""Public, although they begin with an underscore."""


NOT_VERBS = {"A", "All", "An", "How", "One", "That", "The", "What", "When", "Where", "Whether", "Which", "Who", "Whose"}
"""No docstring of a function begins so."""


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield path.relative_to(SOURCE).parts[0].removesuffix(".py"), path


def imports(path: Path) -> Iterator[tuple[str | None, str]]:
    """``(layer of ours or None, top-level module)`` of every import in a file, wherever it stands."""
    package = path.relative_to(SOURCE).parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield None, name.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom):
            if node.level == 0:
                yield None, (node.module or "").split(".")[0]
                continue
            base = package[: len(package) - (node.level - 1)]
            target = (*base, *(node.module.split(".") if node.module else ()))
            for name in node.names:
                yield (target[0] if target else name.name), "zae_limiter"


@pytest.mark.parametrize("layer", MAY_IMPORT)
def test_layers(layer: str) -> None:
    for found, path in modules():
        if found == layer:
            for used, _ in imports(path):
                known = used is None or used in MAY_IMPORT[layer] or used == "v017"
                assert known, f"{path.relative_to(SOURCE)} imports {used}"


@cache
def trees() -> dict[str, ast.Module]:
    """Every module of ours by its dotted name below the package, ``core.tokens``."""
    named = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        named[".".join(parts)] = ast.parse(path.read_text(encoding="utf-8"))
    return named


def imported_modules(name: str) -> set[str]:
    """The modules of ours that one imports anywhere in its text, also for type checkers alone."""
    found = set()
    package = name.split(".")[:-1]
    for node in ast.walk(trees()[name]):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = [*package[: len(package) - (node.level - 1)], *(node.module.split(".") if node.module else ())]
            for each in node.names:
                paths = ([*base, each.name], base, [*base, "__init__"])
                found.add(next((dotted for path in paths if (dotted := ".".join(path)) in trees()), ""))
    return found - {"", name}


def is_old_path(name: str) -> bool:
    """Whether a module only imports, for programs that use a path of 0.17."""
    return (ast.get_docstring(trees()[name]) or "").startswith("A path of 0.17")


def test_only_the_hooks_know_what_is_for_0_17_alone() -> None:
    found = {name: imported_modules(name) for name in trees() if not (name.startswith("v017.") or is_old_path(name))}
    known = {
        name: {each.removeprefix("v017.") for each in used if each.startswith("v017.")} for name, used in found.items()
    }
    assert {name: used for name, used in known.items() if used} == V017_HOOKS


@pytest.mark.parametrize("layer", MAY_IMPORT)
def test_hooks_keep_to_the_layer_that_has_them(layer: str) -> None:
    """What a hook brings along is what its layer may import, and as pure."""
    brought = [f"v017.{each}" for name, used in V017_HOOKS.items() if name.partition(".")[0] == layer for each in used]
    seen: set[str] = set()
    while brought:
        seen.add(name := brought.pop())
        for used in imported_modules(name) - seen:
            if used.startswith("v017."):
                brought.append(used)
            else:
                assert used.partition(".")[0] in MAY_IMPORT[layer], f"{name} imports {used}"
        if layer in PURE:
            path = SOURCE / f"{name.replace('.', '/')}.py"
            assert not {module for ours, module in imports(path) if ours is None} & IMPURE, name


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = {name: imported_modules(name) for name in trees()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a cycle of imports: {' <- '.join(error.args[1])}")


def private_names(tree: ast.Module) -> Iterator[str]:
    """The names with a leading underscore that a module defines, as functions, classes or attributes of its own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_own(node):
            yield node.attr


def is_own(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def package_of(name: str) -> str:
    return name.rpartition(".")[0]


def private_uses(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """``(receiver, name)`` of every private attribute of another object that a module uses, also by `getattr`.

    The receiver is the last word of what stands before the dot, ``repository`` of ``self.repository._backend``.
    """
    for node in ast.walk(tree):
        receiver, name = None, ""
        if isinstance(node, ast.Attribute) and not is_own(node):
            receiver, name = node.value, node.attr
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr", "setattr", "delattr"):
            receiver = node.args[0]
            name = str(node.args[1].value) if isinstance(node.args[1], ast.Constant) else ""
        if receiver is not None and name.startswith("_") and not name.startswith("__") and name not in NAMED_TUPLE:
            yield ast.unparse(receiver).rpartition(".")[2].strip("_").lower(), name


def names_by_package() -> dict[str, tuple[set[str], set[str]]]:
    """For every package its private names, and the names of its modules and classes in lower case."""
    found: dict[str, tuple[set[str], set[str]]] = {}
    for name, tree in trees().items():
        private, things = found.setdefault(package_of(name), (set(), set()))
        private.update(private_names(tree))
        things.add(name.rpartition(".")[2].lower())
        things.update(node.name.lower() for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return found


def test_private_attributes_are_used_in_their_own_package() -> None:
    """Where several packages define a name, the receiver has to be called after a module or class of this one."""
    packages = names_by_package()
    outside = set()
    for name, tree in trees().items():
        private, things = packages[package_of(name)]
        for receiver, attr in private_uses(tree):
            shared = sum(attr in others for others, _ in packages.values()) > 1
            called_after = any(thing.endswith(receiver) for thing in things)
            if attr not in private or (shared and not called_after):
                outside.add((name, attr))
    assert outside <= PRIVATE_USES.keys(), f"used outside of their package: {outside - PRIVATE_USES.keys()}"
    assert PRIVATE_USES.keys() <= outside, f"is not needed any more: {PRIVATE_USES.keys() - outside}"


PURE = ("core", "records", "manifest")


@pytest.mark.parametrize("layer", PURE)
def test_pure_layers_touch_no_clock_io_or_logging(layer: str) -> None:
    for found, path in modules():
        if found == layer:
            used = {module for ours, module in imports(path) if ours is None}
            assert not used & IMPURE, f"{path.relative_to(SOURCE)} imports {used & IMPURE}"


def test_use_cases_spell_no_attribute_of_a_record() -> None:
    """They take what `records/` reads of an image, or a constant of it."""
    for name, tree in trees().items():
        if name.partition(".")[0] in {"repository", "limiter"}:
            for node in ast.walk(tree):
                if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
                    image = ast.unparse(node.value).rpartition(".")[2]
                    assert image != "image" or type(node.slice.value) is int, f"{name}: {ast.unparse(node)}"


def test_use_cases_know_no_event_loop() -> None:
    for found, path in modules():
        if found in {"core", "records", "repository", "limiter"}:
            assert "asyncio" not in {module for _, module in imports(path)}, path


def test_absolute_imports_of_ourselves_are_not_used() -> None:
    for _, path in modules():
        assert "zae_limiter" not in {module for ours, module in imports(path) if ours is None}, path


def loaded_by(statement: str) -> set[str]:
    code = f"import json, sys; {statement}; print(json.dumps(sorted(sys.modules)))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    return set(json.loads(output))


@pytest.mark.parametrize(
    "statement",
    [
        "import zae_limiter",
        "from zae_limiter import SyncRateLimiter, RateLimiter",
        "import zae_limiter.web.asgi, zae_limiter.web.wsgi, zae_limiter.web.kv",
    ],
)
def test_importing_loads_nothing_optional(statement: str) -> None:
    assert not loaded_by(statement) & OPTIONAL


def test_importing_the_package_loads_no_module_but_its_own_door() -> None:
    ours = {name for name in loaded_by("import zae_limiter") if name.startswith("zae_limiter")}
    assert ours == {"zae_limiter", "zae_limiter._version"}


def test_type_checkers_see_the_names_that_exist() -> None:
    seen = set(names_imported_by("__init__"))
    starred: dict[str, object] = {}
    exec("from zae_limiter import *", starred)
    assert seen == starred.keys() - {"__builtins__"}
    assert seen <= set(dir(zae_limiter))
    assert all(hasattr(zae_limiter, name) for name in seen)


def names_imported_by(module: str) -> Iterator[str]:
    for node in ast.walk(trees()[module]):
        if isinstance(node, ast.ImportFrom) and node.level:
            for name in node.names:
                yield from names_imported_by(node.module or "") if name.name == "*" else [name.asname or name.name]


@pytest.mark.parametrize("layer", sorted(MAY_IMPORT))
def test_docstrings_of_functions_say_what_they_do(layer: str) -> None:
    """They are contracts in the imperative; those of properties are nouns."""
    for name, tree in trees().items():
        if name.partition(".")[0] == layer:
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not is_property(node):
                    word = (ast.get_docstring(node) or "").partition(" ")[0]
                    assert word not in NOT_VERBS, f"{name}.{node.name} begins with {word!r}"


def is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("property" in ast.unparse(each) for each in node.decorator_list)


def test_files_and_functions_stay_small() -> None:
    for _, path in modules():
        text = path.read_text(encoding="utf-8")
        assert text.count("\n") <= 500, f"{path.relative_to(SOURCE)} is too long: one concept or two?"
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                doc = ast.get_docstring(node) or ""
                length = (node.end_lineno or 0) - node.lineno + 1 - len(doc.splitlines())
                assert length <= 40, f"{path.relative_to(SOURCE)}: {node.name} has {length} lines"
