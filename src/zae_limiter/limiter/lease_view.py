"""What a lease says of itself: whose tokens it has, how many, and what was left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.production import MILLI
from ..core.values import LimitStatus
from .amounts import in_tokens
from .grant import Grant, GrantFields, find_overdrawn, new_grant, read_credits, read_left
from .planning import add_up

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..core.limit import Limit
    from ..records.level import Level
    from ..records.slots import TakenSlot
    from .lease_port import Limiter
    from .options import AcquireOptions


class LeaseView:
    """One acquire, as far as others can look at it."""

    degraded: bool = False
    """Whether the lease counts against no limit, because the store was unavailable and the policy is to allow."""
    _extra: tuple[Grant, ...] = ()
    _delta: dict[str, int] | None
    """The corrections so far, in millitokens by limit; None as long as there is nothing to write."""
    _others: Sequence[LeaseView] = ()
    """The leases of the other resources, where it is of several."""

    def __init__(
        self,
        limiter: Limiter,
        entity_id: str,
        resource: str | tuple[str, ...],
        cost: dict[str, int],
        options: AcquireOptions,
    ) -> None:
        self._limiter = limiter
        self._entity_id = entity_id
        self._resource = resource
        self._cost = cost
        self._options = options
        self._open = False
        self._granted: GrantFields | Grant | None = None
        self._delta = None

    @property
    def _grant(self) -> Grant | None:
        """The grant. It is made when somebody looks at it: most leases end as they began."""
        granted = self._granted
        if granted is None or isinstance(granted, Grant):
            return granted
        self._granted = grant = new_grant(granted)
        return grant

    @property
    def resources(self) -> tuple[str, ...]:
        """The resources of the lease, in the order in which the acquire has named them."""
        return self._own_resources

    @property
    def _own_resources(self) -> tuple[str, ...]:
        """The resources that its own tokens are from."""
        return self._resource if isinstance(self._resource, tuple) else (self._resource,)

    @property
    def consumed(self) -> dict[str, int]:
        """Return what the caller has asked for so far, adjustments included; once, not once per level."""
        total = add_up([*(grant.cost for grant in self._grants()), self._delta or {}])
        return {name: amount // MILLI for name, amount in total.items()}

    @property
    def statuses(self) -> tuple[LimitStatus, ...]:
        """Every limit of every level right after this acquire, by the write that granted it."""
        grant = self._grant
        asked, now_ms = ({}, 0) if grant is None else (in_tokens(grant.cost), grant.now_ms)
        credit = {} if grant is None or grant.parts is None else read_credits(grant)
        found = []
        for level, limit, left in self.left():
            whose = (level.entity_id, level.resource, limit.name)
            lent = credit.get((level.entity_id, limit.name), 0)
            need = asked.get(limit.name, 0)
            found.append(LimitStatus(*whose, limit, left, need, False, 0.0, instant_ms=now_ms, credit=lent))
        return tuple(found)

    def left(self) -> list[tuple[Level, Limit, int]]:
        """Return what was left of every limit of every level right after this acquire, in whole tokens."""
        return [] if self._granted is None else read_left(self._granted)

    @property
    def overdrawn(self) -> tuple[str, ...]:
        """The limits, sorted, of which more was taken than there was: soft ones, and those of a bypassed level."""
        return () if self._granted is None else find_overdrawn(self._granted)

    @property
    def bypassed(self) -> bool:
        """Return whether a switch has admitted it without asking the limits of one of its levels."""
        return any(level.bypassed for level, _, _ in self.left())

    @property
    def lost(self) -> bool:
        """Whether a slot that it holds was lost: not renewed in time, or taken away. Its call goes on without."""
        now_ms = self._limiter._backend.clock.now_ms()
        slots = [slot for part in (self, *self._others) for slot in part._slots()]
        return any(slot.lost or (not slot.ended and slot.until_ms <= now_ms) for slot in slots)

    @property
    def settled(self) -> bool:
        """Whether it has ended and its corrections are written; with ``prefetch`` that may be as many seconds later."""
        return not self._open and all(grant.is_settled for grant in self._grants())

    @property
    def holds_slots(self) -> bool:
        """Whether it holds slots of concurrency limits, which `exit` frees."""
        return any(grant.holds_slots for part in (self, *self._others) for grant in part._grants())

    @property
    def available(self) -> dict[str, int]:
        """Return what was left right after this acquire: the least over all levels."""
        left: dict[str, int] = {}
        for status in self.statuses:
            left[status.limit_name] = min(status.available, left.get(status.limit_name, status.available))
        return left

    @property
    def limits(self) -> tuple[Limit, ...]:
        """The limits of the entity itself that were charged."""
        return () if self._grant is None else self._grant.chain.homes[0].level.limits

    @property
    def is_open(self) -> bool:
        """Whether the lease was entered and has not ended."""
        return self._open

    def log_fields(self, error: Exception | None = None) -> dict[str, object]:
        """Return the fields of a log record about this lease: namespace, store, entity, resource, type of ``error``."""
        kind = {} if error is None else {"zae_error_type": type(error).__name__}
        whose = {"zae_entity_id": self._entity_id, "zae_resource": self._own_resources[0]}
        return {**self._limiter._backend.log_fields(), **whose, **kind}

    def _grants(self) -> tuple[Grant, ...]:
        return () if self._grant is None else (self._grant, *self._extra)

    def _slots(self) -> list[TakenSlot]:
        """Return the slots that were taken for it."""
        return [slot for grant in self._grants() for part in grant.parts or () for slot in part.slots]
