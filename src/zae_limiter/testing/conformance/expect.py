"""Expectations: plain functions that raise AssertionError, so that they also hold under ``python -O``."""

from __future__ import annotations

from typing import Any


def true(holds: object, claim: str) -> None:
    """Raise AssertionError unless ``claim`` holds."""
    if not holds:
        raise AssertionError(claim)


def same(found: object, expected: object, claim: str) -> None:
    """Raise AssertionError unless both are equal, with the same types all the way down: 1, 1.0 and True differ."""
    if not _alike(found, expected):
        raise AssertionError(f"{claim}\n  expected: {expected!r}\n  found:    {found!r}")


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):  # a store may hand out images of a class of its own
        return one.keys() == other.keys() and all(_alike(one[name], other[name]) for name in one)
    if type(one) is not type(other):
        return False
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_alike, one, other))
    return bool(one == other)
