"""The root of all errors, and the errors of invalid input, which the values of `core` raise themselves."""

from __future__ import annotations

from typing import Any


class ZAELimiterError(Exception):
    """The base class of every error that this package raises on purpose."""


class MissingCronsim(ZAELimiterError):
    """A cron expression has to be read, and the package that does it is not installed."""


class ValidationError(ZAELimiterError, ValueError):
    """Invalid input, found before any call to the store: the ``field``, its ``value`` and the ``reason``."""

    def __init__(self, field: str, value: object, reason: str) -> None:
        shown = repr(value)
        if len(shown) > 80:
            shown = f"{shown[:60]}... ({len(shown)} characters)"
        super().__init__(f"{field} = {shown}: {reason}")
        self.field = field
        self.value = value
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.field, self.value, self.reason)


class InvalidIdentifierError(ValidationError):
    """An invalid entity id."""


class InvalidNameError(ValidationError):
    """An invalid name of a resource, limit, namespace or stack."""
