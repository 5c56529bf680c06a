"""Expectations of checks: those of the public suite, and of errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from zae_limiter.testing.conformance.check import same as same, true as true

if TYPE_CHECKING:
    from types import TracebackType

E = TypeVar("E", bound=BaseException)


class raises(Generic[E]):  # noqa: N801  # reads as a verb: `with raises(ValidationError) as caught`
    """The block must raise exactly this kind of error; it is kept as ``error``."""

    def __init__(self, kind: type[E], claim: str = "") -> None:
        self._kind = kind
        self._claim = claim
        self.error: E

    def __enter__(self) -> raises[E]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None:
            raise AssertionError(f"expected {self._kind.__name__}, but nothing was raised: {self._claim}")
        if type(error) is not self._kind:
            return False
        self.error = error
        return True
