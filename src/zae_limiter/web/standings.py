"""From what a decision saw to what a client may know: names instead of entity ids, and hidden levels left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .fields import Standing

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..core.limit import Limit
    from ..core.values import LimitStatus
    from ..limiter.lease import LeaseCore
    from .fields import Fields


def standings(decisions: Iterable[Sequence[LimitStatus]], fields: Fields) -> list[Standing]:
    """Each limit of each level that clients are told of, decision by decision."""
    found = []
    for statuses in decisions:
        depth, owner = -1, None
        for status in statuses:
            if status.entity_id != owner:
                depth, owner = depth + 1, status.entity_id
            name = fields.policy_name(depth, status.limit_name)
            if name is not None:
                found.append(_standing(name, status))
    return found


def standings_of(leases: Iterable[LeaseCore], fields: Fields) -> list[Standing]:
    """`standings` of what was let in: each limit as the deciding write has left it."""
    found = []
    for lease in leases:
        depth, last = -1, None
        for level, limit, left in lease.left():
            if level is not last:
                depth, last = depth + 1, level
            name = fields.policy_name(depth, limit.name)
            if name is not None:
                found.append(Standing(name, limit, left, _full_in_ms(limit, left)))
    return found


def _full_in_ms(limit: Limit, left: int) -> int:
    return -((left - limit.capacity) * limit.refill_period_seconds * 1000 // limit.refill_amount)


def _standing(name: str, status: LimitStatus) -> Standing:
    limit = status.limit
    seconds = status.retry_after_seconds
    retry_in_ms = round(seconds * 1000) if status.exceeded and seconds is not None else None
    return Standing(name, limit, status.available, _full_in_ms(limit, status.available), retry_in_ms)
