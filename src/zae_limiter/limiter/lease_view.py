"""What a lease says of itself: whose tokens it has, how many, and what was left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from ..core.limit import Limit
from ..core.production import MILLI
from ..core.values import LimitStatus
from ..records.level import BucketLimits
from .charger import LeasePort
from .grant import Grant, GrantFields, find_overdrawn, new_grant, read_credits, read_left
from .options import AcquireOptions, AcquireRequest, in_tokens
from .planning import add_up
from .slot_leases import SlotHolder


@dataclass(eq=False, repr=False)
class LeaseView:
    """One acquire, as far as others can look at it.

    A lease of several resources is the lease of the first one, which begins and ends those of the others.
    """

    _port: LeasePort
    _entity_id: str
    _resource: str
    _cost: dict[str, int]
    _options: AcquireOptions
    _others: Sequence[Any] = ()
    """The leases of the other resources."""
    degraded: bool = field(default=False, init=False)
    """Whether the lease counts against no limit, because the store was unavailable and the policy is to allow."""
    _open: bool = field(default=False, init=False)
    _granted: GrantFields | Grant | None = field(default=None, init=False)
    _extra: tuple[Grant, ...] = field(default=(), init=False)
    """What was taken during the block."""
    _delta: Mapping[str, int] | None = field(default=None, init=False)
    """The corrections so far, in millitokens by limit; None as long as there is nothing to write."""
    _holder: SlotHolder | None = field(default=None, init=False)

    @property
    def resources(self) -> tuple[str, ...]:
        """The resources of the lease, in the order in which the acquire has named them."""
        return tuple([lease._resource for lease in self._leases])

    @property
    def consumed(self) -> dict[str, int]:
        """Return what the caller has asked for so far, adjustments included; once, not once per level."""
        total = add_up([*(grant.cost for grant in self._grants), self._delta or {}])
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

    def left(self) -> list[tuple[BucketLimits, Limit, int]]:
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
        return any(lease._holder is not None and lease._holder.has_lost for lease in self._leases)

    @property
    def settled(self) -> bool:
        """Whether it has ended and its corrections are written; with ``prefetch`` that may be as many seconds later."""
        return not self._open and all(grant.is_settled for grant in self._grants)

    @property
    def holds_slots(self) -> bool:
        """Whether it holds slots of concurrency limits, which `exit` frees."""
        return any(lease._holder is not None and lease._holder.holds for lease in self._leases)

    @property
    def available(self) -> dict[str, int]:
        """Return what was left right after this acquire: the least over all levels."""
        left: dict[str, int] = {}
        for _, limit, here in self.left():
            left[limit.name] = min(here, left.get(limit.name, here))
        return left

    @property
    def limits(self) -> tuple[Limit, ...]:
        """The limits of the entity itself that were charged."""
        return () if self._granted is None else self._granted[0].primary_shards[0].level.limits

    @property
    def is_open(self) -> bool:
        """Whether the lease was entered and has not ended."""
        return self._open

    def log_fields(self, error: Exception | None = None) -> dict[str, object]:
        """Return the fields of a log record about this lease: namespace, store, entity, resource, type of ``error``."""
        return {**self._port.charger.backend.log_fields(), **self._request.log_fields(error)}

    @property
    def _request(self) -> AcquireRequest:
        """What it asks for of its own resource."""
        return AcquireRequest(self._entity_id, self._resource, self._cost, self._options)

    @property
    def _grant(self) -> Grant | None:
        """The grant, made on first use: most leases end without one."""
        granted = self._granted
        if granted is None or isinstance(granted, Grant):
            return granted
        self._granted = grant = new_grant(granted)
        return grant

    @property
    def _grants(self) -> tuple[Grant, ...]:
        grant = self._grant
        return () if grant is None else (grant, *self._extra)

    @property
    def _leases(self) -> tuple[Self, ...]:
        """The leases of each resource."""
        return (self, *self._others)
