"""Amounts users pass: checked, and turned into millitokens."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, TypeAlias

from ..core import names
from ..core.errors import ValidationError
from ..core.limit import MAX_AMOUNT, whole
from ..core.production import MILLI

OnError: TypeAlias = Literal["give_back", "keep"] | Mapping[str, int] | Mapping[str, Mapping[str, int]]
"""What a block that raises is charged: nothing, as if it had not raised, or amounts, by resource if it has several."""


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


MAX_RESOURCES = 16
"""Most resources of one acquire."""


def check_costs(resource: object, consume: object, also: object) -> dict[str, dict[str, int]]:
    """Return ``{resource: {limit name: millitokens}}`` of an acquire of several resources, in their order.

    ``resource`` maps resources to amounts, or it is the first one and ``also`` has the others. Raise `ValidationError`
    if it is not that.
    """
    if isinstance(resource, Mapping):
        if consume is not None:
            raise ValidationError("consume", consume, "cannot be combined with a mapping of resources")
        wanted = {**resource}
    else:
        wanted = {names.resource(resource): consume}
    further = {} if also is None else also
    if not isinstance(further, Mapping):
        raise ValidationError("also", also, "must map resources to amounts, e.g. {'tools': {'rpm': 1}}")
    for name in further:
        if name in wanted:
            raise ValidationError("also", name, "is named twice")
    wanted |= further
    if not 1 <= len(wanted) <= MAX_RESOURCES:
        raise ValidationError("resource", list(wanted), f"must name 1 to {MAX_RESOURCES} resources")
    several = len(wanted) > 1 or isinstance(resource, Mapping)
    return {
        names.resource(name): check_amounts(f"consume[{name!r}]" if several else "consume", amounts)
        for name, amounts in wanted.items()
    }


def check_on_error(
    on_error: object, costs: Mapping[str, Mapping[str, int]], *, by_resource: bool
) -> Mapping[str, Mapping[str, int]] | None:
    """Return the millitokens that stay charged if a block raises, by resource and limit; None for all of them.

    ``on_error`` maps limits to amounts; if it is ``by_resource``, resources to such mappings. Raise `ValidationError`
    if it does neither, or names something that is not among the ``costs``.
    """
    if isinstance(on_error, str) and on_error in ("give_back", "keep"):
        return None if on_error == "keep" else {}
    if not isinstance(on_error, Mapping):
        reason = "must be 'give_back', 'keep' or the amounts that stay charged, e.g. {'tpm': 120}"
        raise ValidationError("on_error", on_error, reason)
    kept = {}
    for resource, amounts in on_error.items() if by_resource else [(next(iter(costs)), on_error)]:
        field = f"on_error[{resource!r}]" if by_resource else "on_error"
        if resource not in costs:
            reason = "must name a resource of this acquire, with the amounts that stay charged"
            raise ValidationError(field, amounts, f"{reason}; there are {', '.join(costs)}")
        kept[resource] = check_amounts(field, amounts)
        for name, amount in kept[resource].items():
            if name not in costs[resource]:
                reason = "is not in consume, so it is not charged at all; reserve it there, if only with 0"
                raise ValidationError(f"{field}[{name!r}]", amount // MILLI, reason)
    return kept


def qualify(limit_name: str, resource: str) -> str:
    """Return the name of a limit in a cost of several resources; no limit name has an ``@`` of its own."""
    return f"{limit_name}@{resource}"


def check_known(field: str, amounts: Mapping[str, int], known: Collection[str]) -> None:
    """Raise `ValidationError` unless every name is a limit of the entity or of one above it."""
    for name, amount in amounts.items():
        if name not in known:
            limit_name, _, resource = name.rpartition("@")
            mine = [each.partition("@")[0] for each in known if each.endswith(f"@{resource}")]  # of several resources
            if mine:
                field, name = f"{field}[{resource!r}]", limit_name
            reason = f"no such limit; there are {', '.join(sorted(mine or known))}"
            raise ValidationError(f"{field}[{name!r}]", amount // MILLI, reason)


def check_request(
    cost: Mapping[str, int],
    kept: Mapping[str, Mapping[str, int]] | None,
    names: Collection[str],
    slot_names: Collection[str],
) -> None:
    """Raise `ValidationError` if a cost names an unknown limit, or slots are to stay taken if a block raises."""
    check_known("consume", cost, names)
    for resource, amounts in (kept or {}).items():
        for name, amount in amounts.items():
            if name in slot_names or qualify(name, resource) in slot_names:
                reason = "is a concurrency limit: its slots are always freed"
                raise ValidationError(f"on_error[{name!r}]", amount // MILLI, reason)


def in_tokens(amounts: Mapping[str, int]) -> dict[str, int]:
    """Return millitokens as whole tokens, without those that are 0."""
    return {name: amount // MILLI for name, amount in amounts.items() if amount}
