"""Check switches and cascade policies as users write them."""

from __future__ import annotations

from typing import Any

from ..core.errors import ValidationError
from ..core.values import Access
from .unset import UNSET, Unset

_ACCESS: dict[bool | str, Access] = {True: Access.DISABLED, False: Access.ENABLED, "bypass": Access.BYPASSED}
DISABLED: dict[Access | None, bool | str | None] = {None: None, **{each: given for given, each in _ACCESS.items()}}
"""A switch as ``disabled`` of `set_limits` takes it."""


def check_cascade(value: object) -> bool:
    """Return a cascade policy. Raise `ValidationError` for anything but True and False."""
    if not isinstance(value, bool):
        raise ValidationError("cascade", value, "must be True or False")
    return value


def check_policies(disabled: bool | str | Unset | None, cascade: bool | Unset | None) -> dict[str, Any]:
    """Return the fields of a config that are given: ``access`` and ``cascade``, with None for those to be removed."""
    found: dict[str, Any] = {}
    if disabled is not UNSET:
        if disabled is not None and (not isinstance(disabled, bool | str) or disabled not in _ACCESS):
            raise ValidationError("disabled", disabled, "must be True, False, 'bypass' or None")
        found["access"] = None if disabled is None else _ACCESS[disabled]
    if cascade is not UNSET:
        found["cascade"] = None if cascade is None else check_cascade(cascade)
    return found
