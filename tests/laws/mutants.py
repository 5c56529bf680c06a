"""Mutations: a change of the source of one function, put in wherever the package uses it.

Each names the check that has to fail by it. A mutation that survives is a hole in the checks.
"""

from __future__ import annotations
import __future__

import inspect
import sys
import textwrap
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.conformance import LIMITER_CHECKS, SHARD_CHECKS
from tests.laws.toys import Distant, Hot, Toy, toys
from tests.support.deadlines import Hangs, ends_within
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import Harness

if TYPE_CHECKING:
    from zae_limiter import Clock

CHECKS = {check.name: check for check in (*LIMITER_CHECKS, *SHARD_CHECKS)}
ORACLE = ("tests.conformance", "zae_limiter.testing.conformance")


class Mutation(NamedTuple):
    """``old`` becomes ``new`` in a function; ``killer`` is the check that must not live with it."""

    function: str
    old: str
    new: str
    killer: str
    where: str = "toy"

    def __str__(self) -> str:
        return f"{self.function}: {self.old} -> {self.new}"


def replace_everywhere(monkeypatch: pytest.MonkeyPatch, original: object, mutant: object) -> None:
    """Put ``mutant`` wherever a module or one of its classes has ``original``, but for the oracle."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("zae_limiter", "tests") and not name.startswith(ORACLE):
            for owner in (module, *(value for value in vars(module).values() if isinstance(value, type))):
                for attribute, value in list(vars(owner).items()):
                    if value is original:
                        monkeypatch.setattr(owner, attribute, mutant)


def original_of(mutation: Mutation) -> Any:
    """The function as it is."""
    module, _, name = mutation.function.rpartition(".")
    package, _, owner = module.rpartition(".")
    if owner[0].isupper():
        return getattr(getattr(import_module(f"zae_limiter.{package}"), owner), name)
    return getattr(import_module(f"zae_limiter.{module}"), name)


def mutant_of(mutation: Mutation) -> Any:
    """The function with its source changed, in the namespace of its module."""
    original = original_of(mutation)
    source = textwrap.dedent(inspect.getsource(original))
    assert source.count(mutation.old) == 1, f"there {source.count(mutation.old)} times: {mutation}"
    changed = source.replace(mutation.old, mutation.new)
    code = compile(changed, "<mutant>", "exec", flags=__future__.annotations.compiler_flag)
    made: dict[str, Any] = {}
    exec(code, vars(sys.modules[original.__module__]), made)
    return made[original.__name__]


def memory_harness() -> Harness:
    """The memory store, which lends its records."""
    shared: list[MemoryStore] = []

    def opened(clock: Clock, blocking: bool) -> MemoryStore:
        shared[:] = shared or [MemoryStore(clock)]
        return shared[0]

    return Harness(opened, blocking=True)


HARNESSES: dict[str, Callable[[], Harness]] = {
    "toy": lambda: toys(Toy, True),
    "memory": memory_harness,
    "distant": lambda: toys(Distant, True),
    "distant, async": lambda: toys(Distant, False),
    "hot": lambda: toys(Hot, True),
}


def fails(killer: str, where: str) -> bool:
    """Return whether a check notices, by an AssertionError or by never coming to an end."""
    try:
        with ends_within(10):
            CHECKS[killer].run(HARNESSES[where]())
    except (AssertionError, Hangs):
        return True
    return False


@cache
def passes_unchanged(killer: str, where: str) -> bool:
    """Return whether a check passes without any mutation; to be asked while there is none."""
    return not fails(killer, where)


def forget_results() -> None:
    """Forget what functions have remembered, with or without a mutation."""
    for name, module in list(sys.modules.items()):
        if name.startswith("zae_limiter."):
            for value in vars(module).values():
                if hasattr(value, "cache_clear"):
                    value.cache_clear()


def check_killed(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the killer of a mutation passes without it and fails with it."""
    assert passes_unchanged(mutation.killer, mutation.where), "the check passes without the mutation"
    replace_everywhere(monkeypatch, original_of(mutation), mutant_of(mutation))
    forget_results()
    try:
        assert fails(mutation.killer, mutation.where), f"survives: {mutation}"
    finally:
        forget_results()
