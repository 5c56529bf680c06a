"""Charging and settling in a store inside the process: one step under its lock, without a coroutine.

Everything else (several levels, a threshold that may be crossed, changed limits, a new hour, waiting) is left to
`Engine`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ..core.bucket import FOR_EVER, MILLI, first_instant, full_instant
from ..core.decide import describe_limit
from ..core.draw import draw_all
from ..core.errors import CapacityExceeded, RateLimitExceeded
from ..records import bucket, charging
from ..records.algebra import TTL, expiry_seconds
from ..records.level import CHANGES, HOUR_END, MADE, NEWEST
from ..records.watching import watched_limits
from ..runtime.blocking import run
from ..runtime.serials import serials
from .grant import NOTHING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..core.bucket import Rule
    from ..core.draw import AnchoredLimit
    from ..core.errors import StatusFields
    from ..records.algebra import Image
    from ..records.level import Level
    from ..repository.backend import Backend
    from ..repository.last_seen import LastSeen
    from ..stores.port import UpdatesInPlace
    from .chain import Chain
    from .chains import Chains
    from .grant import GrantFields
    from .lease_core import LeaseCore
    from .waiting import Lines

_FOR_EVER = 1 << 62


class InPlace:
    """Charges and settles leases that need one bucket of a store inside the process."""

    def __init__(self, store: UpdatesInPlace, backend: Backend, chains: Chains, lines: Lines) -> None:
        self._store = store
        self._lock = store.lock
        self._images = store.images
        self._is_inside = store.is_inside
        self._backend = backend
        self._clock = backend.clock
        self._cache = backend.cache
        self._chains = chains
        self._get_chain = chains.get
        self._lines = lines

    def take(self, lease: LeaseCore) -> GrantFields | None:
        """Take the cost of a lease from its bucket, which is made if need be, and return the fields of its `Grant`.

        Raise `RateLimitExceeded` where the bucket does not hold it. Return None, with nothing taken, where it needs
        more than that.
        """
        options = lease._options
        if not options.plain or self._lines.waiting or self._is_inside():
            return None
        now_ms, generation = self._clock.now_ms(), self._cache.generation
        name = (lease._entity_id, lease._resource, options.given)
        try:
            chain = self._get_chain(name)
        except TypeError:  # not hashable: no name, as `Chains.resolve` will say
            return None
        # As `Chains.known`.
        if chain is None or chain.generation != generation or not chain.since_ms <= now_ms < chain.valid_until_ms:
            chain = run(self._chains.find(*name, self._backend.deadline(options.timeout)))
        else:
            self._cache.hits += 1
        if len(chain.homes) != 1 or chain.slot_names:
            return None
        if chain.has_quotas:
            chain.note_reservation(lease, lease._cost)  # should it be refused, the lease is not open
        with self._lock:
            return self._draw(chain, lease._cost, now_ms)

    def _draw(self, chain: Chain, cost: Mapping[str, int], now_ms: int) -> GrantFields | None:
        """Take ``cost`` from the only bucket of a chain, under the lock."""
        level, seen = chain.homes[0]
        pk, asked_ms = level.key.pk, now_ms
        image = self._images.get(pk)
        known_level, limits, until_ms, renew_ms = seen.spendable
        if (
            image is None
            or image is not seen.image
            or known_level is not level
            or not seen.seen_ms <= now_ms <= until_ms
        ):
            now_ms = max(now_ms, seen.seen_ms)  # the clock may have stepped back
            image = self._look(level, seen, now_ms)
            if image is None:
                return None if chain.is_unsure(now_ms) else self._make(chain, cost, asked_ms)
            _, limits, until_ms, renew_ms = seen.spendable
            if now_ms > until_ms:
                return None
        try:
            after = draw_all(limits, image, cost, now_ms)
        except KeyError:  # a name that is no limit, as `Engine.take` will say
            return None
        if after is None:
            is_rare = level.scheduled or level.token_limits.has_more or len(limits) < len(level.limits)
            if is_rare or not cost.keys() <= limits.keys():
                return None  # it takes more than these numbers to decide
            seen.seen_ms = now_ms
            raise _refuse(level, limits, image, cost, asked_ms)
        if after is not image:
            if now_ms > after[NEWEST]:
                after[NEWEST] = now_ms
            if level.usage_days:
                after[CHANGES] += 1
        if now_ms > renew_ms:
            after, renew_ms = _renew(level, after, now_ms)
            seen.spendable = level, limits, until_ms, renew_ms
        self._images[pk] = seen.image = after
        seen.seen_ms = now_ms
        seen.refused = False
        return chain, cost, (after,), now_ms, NOTHING, None, None, None

    def settle(self, granted: GrantFields, delta: Mapping[str, int]) -> bool:
        """Add ``delta`` to the consumption of a grant by `take`. Return False, with nothing done, if it needs more."""
        chain, _, images, charged_ms, _, parts, settled, held = granted
        is_plain = parts is None and settled is None and held is None and not self._backend.closed
        if not is_plain or self._lines.waiting or self._is_inside():
            return False
        if not any(delta.values()):
            return True
        with self._lock:
            done = self._settle(chain, images[0], charged_ms, delta, self._clock.now_ms())
        if self._lines.occupied:
            self._lines.stir(chain.roots)
        return done

    def _settle(
        self, chain: Chain, charged: Image | None, charged_ms: int, delta: Mapping[str, int], now_ms: int
    ) -> bool:
        """Settle a charge that left the only bucket of a chain as ``charged``, under the lock."""
        level, seen = chain.homes[0]
        entries, owes = level.token_limits, max(delta.values()) > 0
        image = self._images.get(level.key.pk)
        known_level, limits, until_ms, renew_ms = seen.spendable
        if image is None or charged is None or image is not seen.image or known_level is not level:
            return False
        if not seen.seen_ms <= now_ms <= min(until_ms, renew_ms) or image[MADE] != charged[MADE]:
            return False
        if entries.first_use or (owes and (entries.has_more or not self._is_current(chain, now_ms))):
            return False
        after = image.copy()
        for name, amount in delta.items():
            limit = limits.get(name)
            if limit is None:
                return False
            after[limit.tc] += amount
            if amount <= 0:
                if not limit.amount and not _counts_still(entries[name].rule, max(charged_ms, charged[NEWEST]), now_ms):
                    return False
                after[limit.tk] -= amount
                continue
            since = limit.since(now_ms)
            left = min(limit.capacity, image[limit.tk] + since) - amount
            if left < 0 and level.lifetime_ms:  # debt puts the expiry off
                return False
            after[limit.tk] = left - since
            after[NEWEST] = max(now_ms, after[NEWEST])  # as `SettlementDraft.owe`
        if level.usage_days:
            after[CHANGES] += 1
        self._images[level.key.pk] = seen.image = after
        seen.seen_ms = now_ms
        seen.refused = False
        if min(delta.values()) < 0:
            self._store.note_return(level.key)
        return True

    def _is_current(self, chain: Chain, now_ms: int) -> bool:
        """Return whether the limits of a chain are those in force, as far as this process knows."""
        return chain.generation == self._cache.generation and chain.since_ms <= now_ms < chain.valid_until_ms

    def _look(self, level: Level, seen: LastSeen, now_ms: int) -> Image | None:
        """Find the bucket, and note in ``seen`` what can be spent of it; until before ``now_ms`` where it cannot."""
        image = self._store.find_bucket(level.key, now_ms)
        if image is not None:
            limits = seen.limits(level, bucket.inspect(level.key, image), now_ms)
            seen.show(image, now_ms)
            if limits is not None and not limits.lots:
                hour_end = image.get(HOUR_END, 0) if level.usage_days else _FOR_EVER
                until_ms = min(limits.until_ms, limits.window[1], hour_end - 1, image.get(TTL, _FOR_EVER) * MILLI - 1)
                by_name = watched_limits(level, image, limits, now_ms) if level.token_limits.watched else limits.by_name
                if limits.idle:
                    by_name = {name: limit for name, limit in by_name.items() if name not in limits.idle}
                seen.spendable = level, by_name, until_ms, _renewal(level, image)
        return image

    def _make(self, chain: Chain, cost: Mapping[str, int], now_ms: int) -> GrantFields | None:
        """Make a bucket from which ``cost`` is taken; return None if it does not fit."""
        level, seen = chain.homes[0]
        entries = level.token_limits
        if level.shard_count > 1 or entries.watched or entries.first_use or not cost.keys() <= entries.keys():
            return None
        full_ms = now_ms
        for name, need in cost.items():
            entry = entries[name]
            capacity, amount, period, _, calendar = entry.rule
            if need > capacity or need + entry.least > capacity:
                return None
            full_ms = max(full_ms, full_instant(capacity - need, now_ms, capacity, amount, period, 1, calendar))
        image, expires_ms = charging.new_bucket(level, cost, now_ms, 1, next(serials))
        if expires_ms is not None:
            image[TTL] = expiry_seconds(expires_ms)
        self._store.insert_bucket(level.key, image, now_ms, full_ms)
        seen.show(None, now_ms)  # most new keys do not come back soon: the image is left to the store alone
        return chain, cost, (image,), now_ms, NOTHING, None, None, None


def _counts_still(quota: Rule, charged_ms: int, now_ms: int) -> bool:
    """Return whether what was taken from a quota counts when it comes back: with rollover, or in the same window."""
    calendar = quota.calendar
    return calendar is not None and (
        quota.capacity > quota.amount or calendar.start(calendar.index(now_ms)) <= charged_ms
    )


def _renewal(level: Level, image: Image) -> int:
    """Return the last instant at which a draw leaves the expiry of a bucket as it is."""
    if level.lifetime_ms:
        return int(image.get(TTL, 0)) * MILLI - level.lifetime_ms
    return 0 if TTL in image else _FOR_EVER


def _renew(level: Level, image: Image, now_ms: int) -> tuple[Image, int]:
    """Return the image with the expiry that a draw at ``now_ms`` gives it, and the `_renewal` of that."""
    renewed = {name: value for name, value in image.items() if name != TTL}
    if level.lifetime_ms:
        renewed[TTL] = expiry_seconds(now_ms + level.lifetime_ms)
    return renewed, _renewal(level, renewed)


def _refuse(
    level: Level, limits: Mapping[str, AnchoredLimit], image: Image, cost: Mapping[str, int], now_ms: int
) -> RateLimitExceeded:
    """Return the refusal by one bucket that holds the limits of its level."""
    describe = partial(_describe, level, limits, image, cost, now_ms)
    for name, need in cost.items():
        if need + limits[name].least > limits[name].capacity:
            return CapacityExceeded(describe)
    return RateLimitExceeded(describe)


def _describe(
    level: Level, limits: Mapping[str, AnchoredLimit], image: Image, cost: Mapping[str, int], now_ms: int
) -> list[StatusFields]:
    """Return the fields of the statuses of a refusal."""
    found = []
    for limit in level.limits:
        anchored, need = limits[limit.name], cost.get(limit.name)
        tokens, least = image[anchored.tk], anchored.least
        held = anchored.level(tokens, now_ms)
        lacking = (need or 0) + least
        if held >= lacking:
            fits_ms = now_ms
        elif lacking > anchored.capacity:
            fits_ms = FOR_EVER + now_ms
        elif anchored.amount:
            fits_ms = anchored.reaches(lacking - tokens - 1) + 1
        else:
            entry = level.token_limits_of(image)[limit.name]
            fits_ms = first_instant(entry.rule, tokens, anchored.anchor_ms, lacking)
            limit = limit.begin_window(image.get(entry.ws))
        whose = (level.entity_id, level.resource, limit)
        found.append(describe_limit(*whose, held, need, fits_ms - now_ms, least, now_ms))
    return found
