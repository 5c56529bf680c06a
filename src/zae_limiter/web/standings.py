"""From what a decision saw to what a client may know: names instead of entity ids, and hidden levels left out."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from .fields import Standing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..core.limit import Limit
    from ..core.values import LimitStatus
    from ..limiter.lease import LeaseCore
    from .fields import Fields

T = TypeVar("T")


def standings(statuses: Iterable[LimitStatus], fields: Fields) -> list[Standing]:
    """Of a refusal: each limit of each level that clients are told of."""
    rows = ((status.entity_id, status.limit, status) for status in statuses)
    return [_standing(name, status) for name, _, status in _named(rows, fields)]


def standings_of(leases: Iterable[LeaseCore], fields: Fields) -> list[Standing]:
    """Of what was let in: each limit that clients are told of, as the deciding write has left it."""
    return [
        Standing(name, limit, left, _full_in_ms(limit, left))
        for lease in leases
        for name, limit, left in _named(lease.left(), fields)
    ]


def _named(rows: Iterable[tuple[object, Limit, T]], fields: Fields) -> Iterator[tuple[str, Limit, T]]:
    """The limits of one decision by their names outside; the rows of a level stand together and have one owner."""
    depth, last = -1, None
    for owner, limit, found in rows:
        if owner is not last and owner != last:
            depth, last = depth + 1, owner
        name = fields.policy_name(depth, limit.name)
        if name is not None:
            yield name, limit, found


def _full_in_ms(limit: Limit, left: int) -> int:
    return -((left - limit.capacity) * limit.refill_period_seconds * 1000 // limit.refill_amount)


def _standing(name: str, status: LimitStatus) -> Standing:
    limit = status.limit
    seconds = status.retry_after_seconds
    retry_in_ms = round(seconds * 1000) if status.exceeded and seconds is not None else None
    return Standing(name, limit, status.available, _full_in_ms(limit, status.available), retry_in_ms)
