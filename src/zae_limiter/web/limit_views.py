"""One limit as a client may see it: a name instead of an entity id, and hidden levels left out."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ..core.bucket import MILLI

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import TypeAlias

    from ..core.limit import Limit
    from ..core.values import LimitStatus
    from ..limiter.lease_core import LeaseCore

    NamePolicy: TypeAlias = Callable[[int, str], str | None]
    """Returns the name of a limit at a level as clients know it; None if they are not told of it."""


class _LimitView(NamedTuple):
    name: str
    limit: Limit
    remaining: int
    full_in_ms: int
    retry_in_ms: int | None


class LimitView(_LimitView):
    """One limit at one level as of a decision.

    ``name``: how clients know it; it tells no entity. ``limit``: the limit itself. ``remaining``: whole tokens, 0 while
    in debt. ``full_in_ms``: when the bucket is full, in milliseconds, at least 0. ``retry_in_ms``: when the cost fits;
    None if it did fit.
    """

    __slots__ = ()

    def __new__(
        cls, name: str, limit: Limit, remaining: int, full_in_ms: int, retry_in_ms: int | None = None
    ) -> LimitView:
        """Create a view; negative numbers become 0."""
        remaining = remaining if remaining > 0 else 0
        return tuple.__new__(cls, (name, limit, remaining, full_in_ms if full_in_ms > 0 else 0, retry_in_ms))

    @property
    def violated(self) -> bool:
        """Whether this limit refused."""
        return self.retry_in_ms is not None


_new_view = partial(tuple.__new__, LimitView)
"""`LimitView` of numbers that are not negative, without a call of its own."""


def view_statuses(statuses: Iterable[LimitStatus], name_policy: NamePolicy) -> list[LimitView]:
    """Return the views of a refusal: each limit of each level that clients are told of."""
    views: list[LimitView] = []
    depth, owner = -1, None
    for status in statuses:
        if status.entity_id != owner:  # the limits of a level stand together
            depth, owner = depth + 1, status.entity_id
        name = name_policy(depth, status.limit_name)
        if name is not None:
            seconds = status.retry_after_seconds if status.exceeded else None
            _add_view(views, name, status.limit, status.available, None if seconds is None else round(seconds * MILLI))
    return views


def view_leases(leases: Iterable[LeaseCore], name_policy: NamePolicy) -> list[LimitView]:
    """Return the views of what was granted: each limit that clients are told of, as the deciding write left it."""
    views: list[LimitView] = []
    for lease in leases:
        depth, owner = -1, None
        for level, limit, left in lease.left():
            if level is not owner:
                depth, owner = depth + 1, level
            name = name_policy(depth, limit.name)
            if name is not None:
                _add_view(views, name, limit, left, None)
    return views


def _add_view(views: list[LimitView], name: str, limit: Limit, left: int, retry_in_ms: int | None) -> None:
    missing = limit.capacity - left if left < limit.capacity else 0
    full_in_ms = -(-missing * limit.refill_period_seconds * MILLI // limit.refill_amount)
    views.append(_new_view((name, limit, left if left > 0 else 0, full_in_ms, retry_in_ms)))


def choose_tightest(views: Sequence[LimitView]) -> LimitView:
    """Return the view nearest to exhaustion, the first one of equals; ``views`` must not be empty.

    That is the violated one that takes longest, else the one with the least remaining part.
    """
    return views[0] if len(views) == 1 else max(views, key=_tightness)


def _tightness(view: LimitView) -> tuple[int, float]:
    retry = view.retry_in_ms
    return -1 if retry is None else retry, -view.remaining / view.limit.capacity


def merge_names(views: Sequence[LimitView]) -> Sequence[LimitView]:
    """Return every name once, by its tightest view: a client tells policies apart by nothing else."""
    if len(views) < 2:
        return views
    by_name: dict[str, LimitView] = {}
    for view in views:
        other = by_name.get(view.name)
        by_name[view.name] = view if other is None else choose_tightest((other, view))
    return list(by_name.values())


def round_up_seconds(ms: int) -> int:
    """Return the whole seconds that are not over before ``ms`` are, at least 1.

    >>> round_up_seconds(0), round_up_seconds(1000), round_up_seconds(1001)
    (1, 1, 2)
    """
    return -(-ms // MILLI) if ms > 0 else 1
