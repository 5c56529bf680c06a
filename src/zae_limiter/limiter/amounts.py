"""Amounts users pass: checked, and turned into millitokens."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ..core.bucket import MILLI
from ..core.errors import ValidationError
from ..core.limit import MAX_AMOUNT, whole


def check_amounts(field: str, amounts: object, least: int = 0) -> dict[str, int]:
    """Return ``{limit name: whole tokens}`` in millitokens. Raise `ValidationError` if it is not that."""
    if type(amounts) is not dict and not isinstance(amounts, Mapping):
        raise ValidationError(field, amounts, "must map limit names to whole numbers, e.g. {'rpm': 1}")
    checked = {}
    for name, amount in amounts.items():
        if type(name) is not str or type(amount) is not int or not least <= amount <= MAX_AMOUNT:
            if not isinstance(name, str):
                raise ValidationError(field, name, "must name limits by strings")
            amount = whole(f"{field}[{name!r}]", amount, least, MAX_AMOUNT, "tokens")
        checked[name] = amount * MILLI
    return checked


def check_known(field: str, amounts: Mapping[str, int], known: Collection[str]) -> None:
    """Raise `ValidationError` unless every name is a limit of the entity or of one above it."""
    for name in amounts:
        if name not in known:
            limits = ", ".join(sorted(known))
            raise ValidationError(f"{field}[{name!r}]", amounts[name] // MILLI, f"no such limit; there are {limits}")
