"""The core answers what it answered when the goldens were frozen, byte for byte."""

from __future__ import annotations

from collections import Counter

import pytest

from zae_limiter.records.algebra import ABSENT, MISSING_OR_AT_MOST

from . import archive, normal, recorder
from .worlds import FLAVOURS


@pytest.mark.parametrize("kind", range(len(FLAVOURS)), ids=[flavour.name for flavour in FLAVOURS])
def test_every_step_of_every_case_comes_out_as_before(kind: int) -> None:
    for number in range(kind, recorder.CASES, len(FLAVOURS)):
        difference = archive.find_difference(number)
        assert difference is None, difference


def test_there_are_enough_steps_of_every_kind() -> None:
    kinds = Counter(line[2 : line.index('"', 2)] for number in range(recorder.CASES) for line in archive.read(number))
    assert kinds.total() >= 20_000
    assert len(kinds) == 25
    assert min(kinds.values()) >= 40


def test_guards_are_the_same_only_if_they_are_the_same_condition() -> None:
    pair = normal.guards((("tk", ">", 4), ("tk", "<=", 9), ("rf", "=", 3)))
    assert pair == normal.guards((("rf", "between", (3, 3)), ("tk", "between", (5, 9))))
    assert pair != normal.guards((("tk", ">=", 4), ("tk", "<=", 9), ("rf", "=", 3)))
    assert pair != normal.guards((("tk", ">", 4), ("tk", "<=", 9)))
    assert normal.guards((ABSENT,)) != normal.guards(())
    assert normal.guards((("ua", MISSING_OR_AT_MOST, 3),)) != normal.guards((("ua", "<=", 3),))
    assert normal.guards((("tk", ">=", -(2**62)),)) != normal.guards(())
