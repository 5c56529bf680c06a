"""What a lease uses of the limiter that made it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

from ..repository.last_seen import Reserving
from .grant import Grant, GrantFields
from .options import AcquireOptions, AcquireRequest
from .slot_leases import SlotHolder

TakeNow: TypeAlias = Callable[[Reserving, str, str, dict[str, int], AcquireOptions], GrantFields | None]
SettleNow: TypeAlias = Callable[[str, str, GrantFields, Mapping[str, int]], bool]


class Corrections(NamedTuple):
    """What a lease still has to write when it ends."""

    request: AcquireRequest
    shares: Sequence[tuple[Grant | None, Mapping[str, int]]]
    """By grant, or None if nothing was taken before: its correction, in millitokens by limit."""
    disclaim: Callable[[Mapping[str, int]], None]
    """Called with a correction that may not have been written."""
    holder: SlotHolder | None = None


class Charges(Protocol):
    """What charges the requests of leases."""

    take_now: TakeNow | None
    """Take from one resource. None, with nothing taken, if that has to wait for something."""
    settle_now: SettleNow | None
    """Settle one grant. False, with nothing done, if that has to wait for something."""
    is_observed: bool
    """Whether `notify` reaches an observer."""

    async def take(self, request: AcquireRequest) -> Grant | None:
        """Take tokens, or raise. Return None if the store is unavailable and the caller goes on without it."""

    async def settle(self, corrections: Sequence[Corrections], failed: bool) -> None:
        """Write corrections, even if the caller is cancelled. If the calls have ``failed``, a loss is only logged."""

    async def check(self, request: AcquireRequest) -> bool:
        """Raise what `take` would raise, but take nothing. Return False if the caller goes on without the store."""

    def hold(self, lease: Reserving, request: AcquireRequest, grant: Grant, holder: SlotHolder | None) -> SlotHolder:
        """Renew the slots of a grant until they are settled. Return the holder of all slots of the lease."""

    def notify(self, entity_id: str, resource: str, taken: Mapping[str, int], delta: Mapping[str, int]) -> None:
        """Tell the observers how a lease that has ``taken`` so much is corrected, in millitokens by limit."""


@dataclass(slots=True)
class LeasePort:
    """How leases reach what charges them: the limiter replaces it when observers come or go."""

    log_fields: Mapping[str, object]
    """The namespace and the kind of store, as fields of log records."""
    charger: Charges = field(init=False)
