"""What a lease uses of the limiter that made it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..records.slots import TakenSlot
    from ..repository.outlook import Reserving
    from .grant import Grant, GrantFields
    from .options import AcquireOptions, AcquireRequest
    from .slot_holder import SlotHolder

    TakeNow: TypeAlias = Callable[[Reserving, str, str, dict[str, int], AcquireOptions], GrantFields | None]
    SettleNow: TypeAlias = Callable[[str, str, GrantFields, Mapping[str, int]], bool]


class Corrections(NamedTuple):
    """What a lease still has to write when it ends.

    ``shares`` are the corrections of each of its grants, in millitokens by limit; the grant is None if nothing was
    taken before. ``disclaim`` is called with a correction that may not have been written.
    """

    request: AcquireRequest
    shares: Sequence[tuple[Grant | None, Mapping[str, int]]]
    disclaim: Callable[[Mapping[str, int]], None]
    holder: SlotHolder | None = None

    @property
    def slots(self) -> Sequence[TakenSlot]:
        """The slots of the lease."""
        return () if self.holder is None else self.holder.slots


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

    def notify(self, request: AcquireRequest, taken: Mapping[str, int], correction: Mapping[str, int]) -> None:
        """Tell the observers how a lease that has ``taken`` so much is corrected."""


@dataclass(slots=True)
class LeasePort:
    """How leases reach what charges them: the limiter replaces it when observers come or go."""

    log_fields: Mapping[str, object]
    """The namespace and the kind of store, as fields of log records."""
    charger: Charges = field(init=False)
