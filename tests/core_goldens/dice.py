"""Choices by a seed. Of `random.Random` only ``random()`` is used, which is the same in every version of Python."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")


class Dice:
    """A source of choices."""

    def __init__(self, seed: str) -> None:
        self._next = random.Random(seed).random

    def below(self, count: int) -> int:
        """Return a number from 0 to below ``count``."""
        return int(self._next() * count)

    def chance(self, probability: float) -> bool:
        """Return whether something happens that happens with this probability."""
        return self._next() < probability

    def pick(self, options: Sequence[T]) -> T:
        """Return one of some options."""
        return options[self.below(len(options))]

    def some(self, options: Sequence[T], probability: float = 0.5) -> list[T]:
        """Return some of the options, each with this probability, in their order."""
        return [each for each in options if self._next() < probability]

    def weigh(self, weights: Sequence[tuple[T, float]]) -> T:
        """Return one of some options, each as often as its weight says."""
        point = self._next() * sum(weight for _, weight in weights)
        for option, weight in weights:
            point -= weight
            if point < 0:
                return option
        return weights[-1][0]
