"""Places in a file, and the errors of files and of plans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..core.validation import ZAELimiterError


class Place(NamedTuple):
    """A line and a column of a file, both counted from 1."""

    line: int = 1
    column: int = 1


class Problem(NamedTuple):
    """A mistake in a file: its place, the keys that lead to it, and what is wrong."""

    place: Place
    path: str
    message: str

    def __str__(self) -> str:
        where = f"{self.path}: " if self.path else ""
        return f"{self.place.line}:{self.place.column}: {where}{self.message}"


class ManifestError(ZAELimiterError):
    """A file with mistakes: all of its ``problems``, in the order of the file."""

    def __init__(self, problems: Sequence[Problem], file: str = "limits") -> None:
        self.problems = tuple(sorted(set(problems)))
        self.file = file
        count = len(self.problems)
        lines = "\n".join(f"{file}:{problem}" for problem in self.problems)
        super().__init__(f"{count} mistake{'' if count == 1 else 's'} in {file}, nothing was changed.\n{lines}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problems, self.file)


class PlanOutdatedError(ZAELimiterError):
    """Others have changed what a plan is about: ``conflicts`` says what, ``applied`` how many changes were made."""

    def __init__(self, conflicts: Sequence[str], applied: int = 0) -> None:
        self.conflicts = tuple(conflicts)
        self.applied = applied
        before = f"{applied} change{'' if applied == 1 else 's'} made before it" if applied else "Nothing was changed"
        lines = "\n".join(f"  {conflict}" for conflict in self.conflicts)
        super().__init__(f"Changed by others since the plan:\n{lines}\n{before}; make a new plan.")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.conflicts, self.applied)
