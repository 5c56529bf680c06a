"""What an acquire asks for: amounts, turned into millitokens, and options, its limiter's or stated by the call."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from ..core import names
from ..core.errors import ValidationError
from ..core.limit import MAX_AMOUNT, Limit, check_limits, seconds, whole
from ..core.production import MILLI
from ..core.validation import flag
from ..core.values import OnUnavailable
from ..repository.backend import Backend
from ..repository.configs import check_policy

if TYPE_CHECKING:
    from ..v017.ignored import EarlierOptions


OnError: TypeAlias = Literal["give_back", "keep"] | Mapping[str, int] | Mapping[str, Mapping[str, int]]
"""What a block that raises is charged: nothing, as if it had not raised, or amounts, by resource if it has several."""
OnLost: TypeAlias = Literal["cancel"] | Callable[[Any], object]

CANCEL = "cancel"
"""As ``on_lost``: cancel the task that has entered the lease."""
MOST_PREFETCH_MS = 60_000
"""For how long tokens that were drawn in advance may be kept at most."""
MAX_HOLDER = 64
"""Most characters of the name of a holder."""
MAX_RESOURCES = 16
"""Most resources of one acquire."""


class Override(NamedTuple):
    """What an acquire asks for besides what is stored: limits instead of the stored ones, and a priority."""

    limits: tuple[Limit, ...] | None = None
    priority: str | None = None


@dataclass(frozen=True, slots=True)
class AcquireOptions:
    """What an acquire asks for besides tokens."""

    given: Override | None
    policy: OnUnavailable | None
    max_wait_ms: int
    timeout: float
    atomic: bool
    holder: str | None
    """The name that is shown with its slots; None takes only slots that the cost names."""
    on_lost: OnLost | None
    """What happens when it loses a slot."""
    exact: bool
    """Whether the store is asked even if tokens of it are held."""
    kept: Mapping[str, Mapping[str, int]] | None
    """The millitokens that stay charged if its block raises, by resource and limit; None for all of them."""
    plain: bool
    """Whether it may be served at once: no waiting, no deadline and no transaction of its own."""

    def for_more(self) -> AcquireOptions:
        """Return the options for taking more during the block: without waiting, and no slots unless they are named."""
        return replace(self, max_wait_ms=0, holder=None)


class AcquireRequest(NamedTuple):
    """What an acquire asks for. A request for several resources names its limits as `qualify` does."""

    entity_id: str
    resource: str | tuple[str, ...]
    cost: Mapping[str, int]
    """Millitokens by limit."""
    options: AcquireOptions

    @property
    def name(self) -> tuple[str, str | tuple[str, ...], Override | None]:
        """The name of the chain that is charged."""
        return self.entity_id, self.resource, self.options.given

    @property
    def resources(self) -> tuple[str, ...]:
        """The resources, in the order in which the acquire has named them."""
        return self.resource if isinstance(self.resource, tuple) else (self.resource,)

    def log_fields(self, error: Exception | None = None) -> dict[str, object]:
        """Return the fields of a log record about it: entity, resource, type of ``error``."""
        fields: dict[str, object] = {"zae_entity_id": self.entity_id, "zae_resource": self.resources[0]}
        return fields if error is None else {**fields, "zae_error_type": type(error).__name__}


class OptionChecks:
    """Turns the arguments of acquires of one limiter into options. ``usual`` are those of a call that states none."""

    def __init__(
        self,
        backend: Backend,
        on_unavailable: OnUnavailable | str | None,
        timeout: float,
        atomic: bool,
        on_lost: OnLost | None,
    ) -> None:
        policy = None if on_unavailable is None else check_policy(on_unavailable)
        self._able = backend.store.capabilities
        self._can_cancel = backend.runtime.can_cancel
        on_lost = self._check_on_lost(on_lost)
        self.usual = AcquireOptions(
            None, policy, 0, timeout, self._check_atomic(atomic), "", on_lost, False, {}, plain=True
        )

    def check(
        self, resource: object, consume: object, also: object, stated: tuple[Any, ...]
    ) -> tuple[AcquireOptions, list[tuple[str, dict[str, int]]]]:
        """Return what an acquire asks for besides tokens, and the cost of each resource.

        ``stated`` are its options, in their order. Raises `ValidationError` for invalid values.
        """
        limits, on_unavailable, max_wait, timeout, atomic, priority, holder, on_lost, exact, on_error = stated
        costs = check_costs(resource, consume, also)
        kept = check_on_error(on_error, costs, by_resource=also is not None or not isinstance(resource, str))
        usual = self.usual
        options = AcquireOptions(
            check_override(limits, priority),
            usual.policy if on_unavailable is None else check_policy(on_unavailable),
            0 if max_wait is None else round(seconds("max_wait", max_wait, zero=True) * 1000),
            usual.timeout if timeout is None else seconds("timeout", timeout, zero=False),
            usual.atomic if atomic is None else self._check_atomic(atomic),
            "" if holder is None else _check_holder(holder),
            usual.on_lost if on_lost is None else self._check_on_lost(on_lost),
            flag("exact", exact),
            kept,
            plain=not max_wait and timeout is None and atomic is None,
        )
        return options, list(costs.items())

    def _check_atomic(self, atomic: bool) -> bool:
        able = self._able
        if atomic and not able.wide_commits:
            reason = f"is not supported on {able.name}, where entities live in different slots"
            raise ValidationError("atomic", atomic, f"{reason}; without it, tokens go back when a level refuses")
        return atomic

    def _check_on_lost(self, on_lost: OnLost | None) -> OnLost | None:
        if on_lost == CANCEL and not self._can_cancel:
            reason = "cannot be had in blocking code, where nobody can be interrupted; look at lease.lost"
            raise ValidationError("on_lost", on_lost, reason)
        if on_lost is None or on_lost == CANCEL:
            return on_lost
        from inspect import iscoroutinefunction  # on first use: it brings a lot along

        if not callable(on_lost) or iscoroutinefunction(on_lost):
            reason = 'must be a plain function that takes the lease, or "cancel"; in it, start a task for what awaits'
            raise ValidationError("on_lost", on_lost, reason)
        return on_lost


def _check_holder(holder: object) -> str:
    """Return the name of a holder. Raise `ValidationError` unless it is a short text that can be shown."""
    if not isinstance(holder, str) or not 1 <= len(holder) <= MAX_HOLDER or not holder.isprintable():
        raise ValidationError("holder", holder, f"must be a text of 1 to {MAX_HOLDER} printable characters")
    return holder


def check_override(limits: Sequence[Limit] | None, priority: str | None) -> Override | None:
    """Return what is asked for besides what is stored, None for nothing. Raise `ValidationError` for invalid values."""
    chosen = None if limits is None else check_limits(limits)
    if priority is not None:
        names.limit_name(priority, "priority")
    return None if chosen is None and priority is None else Override(chosen, priority)


def read_earlier(given: EarlierOptions, on_unavailable: OnUnavailable | str | None) -> OnUnavailable | str | None:
    """Return the policy of a limiter, which a program written for 0.17 may pass among its other options."""
    if not given:
        return on_unavailable
    from ..v017 import ignored

    return ignored.read_earlier(given, on_unavailable)


def warn_stored_limits(given: object) -> None:
    """Warn that ``use_stored_limits`` has no effect, if a program written for 0.17 passes it."""
    if given is not False:
        from ..v017.ignored import warn_ignored

        warn_ignored({"use_stored_limits": given})


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


def in_tokens(amounts: Mapping[str, int]) -> dict[str, int]:
    """Return millitokens as whole tokens, without those that are 0."""
    return {name: amount // MILLI for name, amount in amounts.items() if amount}
