"""Where a chain is charged in a store inside the process: its buckets, and their limits as plain numbers.

A plan is made by a look at every bucket, and good until an instant at which one of them needs another look: the config
is read again, an hour or a window ends, an expiry has to be put off, or numbers get large.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field

from ..core.errors import CapacityExceeded, RateLimitExceeded
from ..core.production import MILLI
from ..core.tokens import OwnedLimit
from ..records.algebra import TTL, Image, expiry_seconds
from ..records.charging import Frame
from ..records.level import ANCHOR, HOUR_END, NEWEST, BucketLimits
from ..records.watching import find_quiet_bounds
from ..repository.last_seen import LastSeen
from .charge_path import BucketShard, ChargePath
from .grant import NOTHING

_FAR = 1 << 62


@dataclass(slots=True, eq=False)
class PlannedBucket:
    """One bucket of a plan, whose anchor and limits stay what they are while ``seen.epoch`` is ``epoch``."""

    level: BucketLimits
    seen: LastSeen
    frame: Frame
    until_ms: int
    draws: Sequence[OwnedLimit]
    settles: Sequence[OwnedLimit]
    """With what a debt has to leave so that it crosses no threshold."""
    windows: Sequence[tuple[str, int]]
    """The quotas whose tokens count only in the window in which they were taken, with the start of the present one."""
    pk: str = field(init=False)
    epoch: object = field(init=False)
    counts: bool = field(init=False)
    """Whether it counts the changes of an hour, for the usage."""
    is_plain: bool = field(init=False)
    """Whether what comes back always counts in full: it has no quota, and no soft limit."""
    overdrafts: Sequence[tuple[str, str]] = field(init=False)
    """The soft limits with the attributes that count what is overdrawn."""

    def __post_init__(self) -> None:
        limits = self.level.token_limits
        self.pk, self.epoch, self.counts = self.level.key.pk, self.seen.epoch, self.level.usage_days > 0
        self.is_plain = not limits.soft and not limits.quotas
        self.overdrafts = tuple(self.level.overdrafts().items()) if limits.soft else ()

    @classmethod
    def look(cls, home: BucketShard, now_ms: int) -> PlannedBucket | None:
        """Return a bucket as it can be charged from ``now_ms`` on; None if it has to be moved first, or has credits.

        All chains that pass through the bucket under the same limits share it.
        """
        level, seen = home
        known: PlannedBucket | None = seen.planned
        is_same = known is not None and known.level is level and known.epoch is seen.epoch
        if known is None or not is_same or not known.is_good(now_ms) or level.token_limits.watched:
            frame = seen.limits(level, seen.image or {}, now_ms)
            known = None if frame is None or frame.with_lots else _read_numbers(home, frame, now_ms)
            seen.planned = known
        return known if known is not None and now_ms <= known.until_ms else None

    def is_good(self, now_ms: int) -> bool:
        return self.frame.window[0] <= now_ms <= self.until_ms

    def returns_count(self, charged: Image, charged_ms: int, delta: Mapping[str, int]) -> bool:
        """Return whether all that comes back of a charge that left ``charged`` counts, and is known to the token."""
        limits = self.level.token_limits
        if limits.first_use:
            return False
        for name, window_ms in self.windows:
            if delta.get(name, 0) < 0 and max(charged_ms, charged[NEWEST]) < window_ms:
                return False
        return not limits.soft or charged[ANCHOR] == self.frame.anchor_ms

    def return_overdraft(
        self, image: Image, charged: Image, charged_ms: int, cost: Mapping[str, int], delta: Mapping[str, int]
    ) -> None:
        """Take off in an image what a correction gives back of what its charge, which left ``charged``, overdrew."""
        for name, ov in self.overdrafts:
            back = delta.get(name, 0)
            if back < 0:
                limit = self.frame.by_name[name]
                overdrawn = min(cost.get(name, 0), -limit.level(charged, charged_ms))
                if overdrawn > 0:
                    image[ov] += max(back, -overdrawn)

    def note_debt(self, image: Image, delta: Mapping[str, int], now_ms: int) -> None:
        """Note in an image what ``delta`` owes at ``now_ms``: as a charge, and by an expiry after it is repaid."""
        for name, owed in delta.items():
            limit = self.frame.by_name.get(name)
            if limit is None or owed <= 0:
                continue
            if now_ms > image[NEWEST]:
                image[NEWEST] = now_ms
            tokens = image[limit.at.tokens]
            if tokens < 0 and self.level.lifetime_ms and limit.level(image, now_ms) < 0:
                rule = self.level.token_limits[name].rule
                full_ms = rule.fits_at(tokens, limit.anchor_ms, rule.capacity)
                image[TTL] = max(image.get(TTL, 0), expiry_seconds(full_ms))


def _read_numbers(home: BucketShard, frame: Frame, now_ms: int) -> PlannedBucket:
    """Return a bucket with its limits as plain numbers."""
    level, seen = home
    image, limits = seen.image or {}, level.token_limits
    hour_end = image.get(HOUR_END, 0) if level.usage_days else _FAR
    until_ms = min(frame.until_ms, frame.window[1], hour_end - 1, image.get(TTL, _FAR) * MILLI - 1)
    quiet = find_quiet_bounds(level, image, now_ms) if limits.watched else NOTHING
    draws, settles = [], []
    for name, limit in frame.by_name.items():
        (capacity, *_), anchor_ms, at, amount, period, rest = limit[:6]
        numbers = name, capacity, amount, period, anchor_ms, rest, at.tokens, at.consumed
        bound = quiet.get(name, -_FAR)
        # A window that begins with its first use moves the bucket.
        is_idle = name in frame.idle
        ov = at.overdrawn if limit.soft and not is_idle and name not in quiet else ""
        draws.append((*numbers, _FAR if is_idle else max(limit.floor, bound), ov))
        settles.append((*numbers, max(0, bound) if limit.soft else bound, ov))
    windows = []
    for name in limits.quotas:
        rule = limits[name].rule
        if rule.calendar is not None and rule.capacity == rule.amount:
            windows.append((name, rule.calendar.start(rule.calendar.index(now_ms))))
    return PlannedBucket(level, seen, frame, until_ms, tuple(draws), tuple(settles), tuple(windows))


@dataclass(slots=True, eq=False)
class DrawPlan:
    """The buckets of a chain, good from one instant until another while the chain is.

    The chain keeps it, so it does not keep the chain: nothing is left to the garbage collector.
    """

    chain: InitVar[ChargePath]
    buckets: Sequence[PlannedBucket]
    since_ms: int = field(init=False)
    until_ms: int = field(init=False)
    renew_ms: int = field(init=False)
    """After that a charge puts the expiry of a bucket off."""
    may_overdraw: bool = field(init=False)
    is_complete: bool = field(init=False)
    """Whether these numbers tell why it refuses: no limit has a schedule, thresholds or anything else beside them."""

    def __post_init__(self, chain: ChargePath) -> None:
        self.since_ms = max([chain.since_ms, *(each.frame.window[0] for each in self.buckets)])
        self.until_ms = min([chain.valid_until_ms - 1, *(each.until_ms for each in self.buckets)])
        self.note_renewal()
        self.may_overdraw, self.is_complete = False, True
        for each in self.buckets:
            level = each.level
            self.may_overdraw = self.may_overdraw or bool(each.overdrafts)
            if level.scheduled or level.token_limits.has_more or len(each.draws) < len(level.limits):
                self.is_complete = False

    def note_renewal(self) -> None:
        """Note when an expiry has to be put off next."""
        self.renew_ms = min([_renewal(each.level, each.seen.image or {}) for each in self.buckets], default=_FAR)

    def refuse(self, chain: ChargePath, cost: Mapping[str, int], asked_ms: int) -> None:
        """Raise the refusal of a cost by its buckets as they are; return if these numbers do not tell it."""
        if not self.is_complete:
            return
        kind = RateLimitExceeded
        for level, _ in chain.primary_shards:
            for name, need in cost.items():
                limit = level.token_limits.get(name)
                if limit is not None and need + limit.floor > limit.rule.capacity:
                    kind = CapacityExceeded
        raise chain.refusal(kind, cost, asked_ms)


def renew_expiry(level: BucketLimits, image: Image, now_ms: int) -> Image:
    """Return an image with the expiry that a charge at ``now_ms`` gives it."""
    if now_ms <= _renewal(level, image):
        return image
    renewed = {name: value for name, value in image.items() if name != TTL}
    if level.lifetime_ms:
        renewed[TTL] = expiry_seconds(now_ms + level.lifetime_ms)
    return renewed


def _renewal(level: BucketLimits, image: Image) -> int:
    """Return the last instant at which a charge leaves the expiry of a bucket as it is."""
    if level.lifetime_ms:
        return int(image.get(TTL, 0)) * MILLI - level.lifetime_ms
    return 0 if TTL in image else _FAR
