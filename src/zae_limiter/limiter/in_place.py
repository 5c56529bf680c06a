"""Charging and settling in a store inside the process: one step under its lock, without guards or a coroutine.

Every level is drawn on a copy of its image, and nothing is stored until all levels agree: a refusal undoes itself. What
needs more than the numbers of a `DrawPlan` (slots, credits, changed limits, a threshold that may be crossed, waiting)
is left to `Engine`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..core.tokens import draw_all
from ..records import charging
from ..records.algebra import TTL, Image, expiry_seconds
from ..records.bucket import inspect
from ..records.level import CHANGES, MADE, NEWEST, BucketLimits
from ..repository.backend import Backend
from ..repository.last_seen import Reserving
from ..runtime.blocking import run
from ..runtime.serials import serials
from ..stores.port import UpdatesInPlace
from .charge_path import BucketShard, ChargePath
from .charge_paths import ChargePaths, Name
from .draw_plan import DrawPlan, PlannedBucket, renew_expiry
from .grant import NOTHING, GrantFields
from .observers import Announcer
from .options import AcquireOptions
from .waiting import Lines


class InPlace:
    """Charges and settles leases in a store inside the process."""

    def __init__(
        self, store: UpdatesInPlace, backend: Backend, chains: ChargePaths, lines: Lines, announcer: Announcer
    ) -> None:
        self._store = store
        self._lock = store.lock
        self._images = store.images
        self._returned = store.returned
        self._is_inside = store.is_inside
        self._backend = backend
        self._clock = backend.clock
        self._cache = backend.cache
        self._chains = chains
        self._lines = lines
        self._announcer = announcer

    # Taking.

    def take(
        self, lease: Reserving, entity_id: str, resource: str, cost: dict[str, int], options: AcquireOptions
    ) -> GrantFields | None:
        """Take a cost at every level, making buckets if need be, and return the fields of the `Grant` of a lease.

        Raise `RateLimitExceeded` if a level does not hold it. Return None, with nothing taken, if it needs more than
        that.
        """
        if not options.plain or self._lines.waiting or self._is_inside():
            return None
        now_ms, name = self._clock.now_ms(), (entity_id, resource, options.given)
        try:
            chain = self._chains.get(name)
        except TypeError:  # not hashable: no name, as `ChargePaths.resolve` will say
            return None
        plan: DrawPlan | None = None
        if chain is not None and chain.generation == self._cache.generation:
            plan = chain.plan
        if chain is None or plan is None or not plan.since_ms <= now_ms <= plan.until_ms:
            return self._take_afresh(lease, name, cost, options, now_ms)
        if options.kept:
            self._chains.check_cost(chain, cost, options.kept)
        if chain.has_quotas:
            chain.note_reservation(lease, cost)  # should it be refused, the lease is not open
        with self._lock:
            after = self._draw(chain, plan, cost, now_ms, now_ms)
        if after is None:
            return self._take_afresh(lease, name, cost, options, now_ms)
        if plan.may_overdraw:
            self._log_overdrafts(plan, after, cost, now_ms)
        self._cache.hits += 1
        return chain, cost, after, now_ms, NOTHING, None, None, None

    def _draw(
        self, chain: ChargePath, plan: DrawPlan, cost: Mapping[str, int], now_ms: int, asked_ms: int
    ) -> list[Image] | None:
        """Take ``cost`` from all buckets of a plan, under the lock, and return their images.

        Return None, with nothing taken, if the plan is out of date or takes more than its numbers to decide. Raise
        `RateLimitExceeded` if a bucket does not hold the cost.
        """
        images, names = self._images, chain.names
        after: list[Image] = []
        for name in cost:
            if name not in names:
                return None
        for bucket in plan.buckets:
            seen = bucket.seen
            image: Image = seen.image  # type: ignore[assignment]  # there is one in the epoch of the plan
            if seen.epoch is not bucket.epoch or images.get(bucket.pk) is not image or seen.seen_ms > now_ms:
                return None
            drawn = draw_all(bucket.draws, image, cost, now_ms)
            if drawn is None:
                plan.refuse(chain, cost, asked_ms)
                return None
            if drawn is not image:
                if now_ms > drawn[NEWEST]:
                    drawn[NEWEST] = now_ms
                if bucket.counts:
                    drawn[CHANGES] += 1
            after.append(drawn)
        for place, bucket in enumerate(plan.buckets):  # a strict zip takes a tenth of the whole call
            seen = bucket.seen
            images[bucket.pk] = seen.image = after[place]
            seen.seen_ms, seen.refused = now_ms, False
        return after if now_ms <= plan.renew_ms else self._renew(plan, now_ms)

    def _log_overdrafts(
        self, plan: DrawPlan, after: Sequence[Image | None], taken: Mapping[str, int], now_ms: int
    ) -> None:
        """Log the soft limits of which more was taken than there was."""
        for bucket, image in zip(plan.buckets, after, strict=True):
            for name, _ in bucket.overdrafts:
                if image is not None and taken.get(name, 0) > 0:
                    limit = bucket.frame.by_name[name]
                    if image[limit.at.tokens] + limit.since(now_ms) < 0:
                        self._announcer.log_overdrafts(bucket.level, (name,), now_ms)

    def _renew(self, plan: DrawPlan, now_ms: int, before: Sequence[Image | None] = ()) -> list[Image]:
        """Put off the expiries of the buckets that changed since ``before``, and return the images of all."""
        after = [bucket.seen.image or {} for bucket in plan.buckets]
        for place, bucket in enumerate(plan.buckets):
            if not before or after[place] is not before[place]:
                after[place] = renewed = renew_expiry(bucket.level, after[place], now_ms)
                self._images[bucket.pk] = bucket.seen.image = renewed
        plan.note_renewal()
        return after

    def _take_afresh(
        self, lease: Reserving, name: Name, cost: dict[str, int], options: AcquireOptions, now_ms: int
    ) -> GrantFields | None:
        """Take a cost after a look at its config and every bucket, making those that are missing."""
        chain = run(self._chains.find(name, self._backend.deadline(options.timeout)))
        if chain.slot_names or chain.multi_resource:
            return None
        if options.kept or tuple(cost) not in chain.checked:
            self._chains.check_cost(chain, cost, options.kept)
        if chain.has_quotas:
            chain.note_reservation(lease, cost)
        with self._lock:
            granted = self._take_seen(chain, cost, now_ms)
            plan = chain.plan
        if granted is not None and plan is not None and plan.may_overdraw:
            self._log_overdrafts(plan, granted[2], cost, granted[3])
        return granted

    def _take_seen(self, chain: ChargePath, cost: Mapping[str, int], asked_ms: int) -> GrantFields | None:
        """Take ``cost`` after a look at every bucket, under the lock; None if it needs more than that.

        The clock may have stepped back since a bucket was last seen: then it is decided as of that instant.
        """
        plan, missing, now_ms = self._look(chain, asked_ms)
        if plan is None or (missing and any(level.is_unsure(now_ms) for level in chain.levels)):
            return None
        if not all(_fits_new(level, cost) for level, _ in missing):
            return None
        chain.plan = None if missing else plan
        is_told = plan.is_complete or not missing
        after = self._draw(chain, plan, cost, now_ms, asked_ms) if is_told else None
        if after is None:
            return None
        if missing:
            images = {bucket.pk: image for bucket, image in zip(plan.buckets, after, strict=True)}
            for level, seen in missing:
                images[level.key.pk] = self._make_bucket(level, cost, now_ms)
                seen.show(None, now_ms)  # most new keys do not come back soon: the image is left to the store alone
            after = [images[level.key.pk] for level, _ in chain.primary_shards]
        return chain, cost, after, now_ms, NOTHING, None, None, None

    def _make_bucket(self, level: BucketLimits, cost: Mapping[str, int], now_ms: int) -> Image:
        """Add a bucket from which ``cost`` was taken to the store, and return it."""
        entries, full_ms = level.token_limits, now_ms
        cost = {name: need for name, need in cost.items() if name in entries}
        for name, need in cost.items():
            rule = entries[name].rule
            full_ms = max(full_ms, rule.fits_at(rule.capacity - need, now_ms, rule.capacity))
        image, expires_ms = charging.new_bucket(level, cost, now_ms, 1, next(serials))
        if expires_ms is not None:
            image[TTL] = expiry_seconds(expires_ms)
        self._store.insert_bucket(level.key, image, now_ms, full_ms)
        return image

    # Looking.

    def _look(self, chain: ChargePath, asked_ms: int) -> tuple[DrawPlan | None, list[BucketShard], int]:
        """Look at all buckets of a chain, under the lock, as of now or as of the instant at which one was seen later.

        Return a plan of those that exist, None if one of them cannot be charged in place; those that do not exist; and
        the instant.
        """
        missing: list[BucketShard] = []
        now_ms, homes = asked_ms, () if chain.sharded else chain.primary_shards
        for home in homes:
            level, seen = home
            image = self._store.find_bucket(level.key, asked_ms)
            if image is None:
                seen.show(None, asked_ms)
                missing.append(home)
                continue
            if image is not seen.image:
                seen.show(inspect(level.key, image), asked_ms)
            now_ms = max(now_ms, seen.seen_ms)
        found = [PlannedBucket.look(home, now_ms) for home in homes if home.seen.image is not None]
        there = tuple([each for each in found if each is not None])
        is_plain = len(there) == len(found) and not chain.sharded
        return DrawPlan(chain, there) if is_plain else None, missing, now_ms

    # Settling.

    def settle(self, entity_id: str, resource: str, granted: GrantFields, delta: Mapping[str, int]) -> bool:
        """Add ``delta`` to the consumption of a grant by `take`. Return False, with nothing done, if it needs more."""
        chain, _, _, _, _, parts, settled, held = granted
        is_plain = parts is None and settled is None and held is None and not self._backend.closed
        if not is_plain or self._lines.waiting or self._is_inside():
            return False
        owes = returns = False
        for amount in delta.values():
            if amount > 0:
                owes = True
            elif amount:
                returns = True
        if not (owes or returns):
            return True
        now_ms, current = self._clock.now_ms(), self._chains.get((entity_id, resource, chain.given))
        if current is None or current.generation != self._cache.generation:  # debt counts under the limits in force
            return False
        if current is not chain and not current.is_like(chain):
            return False
        with self._lock:
            plan: DrawPlan | None = current.plan
            if plan is None or not self._settle(plan, granted, delta, (owes, returns), now_ms):
                if not current.since_ms <= now_ms < current.valid_until_ms:
                    return False
                plan, missing, instant_ms = self._look(current, now_ms)
                if plan is None or missing or instant_ms != now_ms:
                    return False
                current.plan = plan
                if not self._settle(plan, granted, delta, (owes, returns), now_ms):
                    return False
        if plan.may_overdraw:
            self._log_overdrafts(plan, [bucket.seen.image for bucket in plan.buckets], delta, now_ms)
        if self._lines.occupied:
            self._lines.stir(chain.roots)
        return True

    def _settle(
        self, plan: DrawPlan, granted: GrantFields, delta: Mapping[str, int], signs: tuple[bool, bool], now_ms: int
    ) -> bool:
        """Settle a charge to the buckets of a plan, under the lock.

        ``signs`` say whether ``delta`` owes something, and whether it returns something. Return False, with nothing
        done, if the plan is out of date or it needs more.
        """
        if not plan.since_ms <= now_ms <= plan.until_ms:
            return False
        images, charged, charged_ms = self._images, granted[2], granted[3]
        owes, returns = signs
        after: list[Image] = []
        for bucket in plan.buckets:
            seen, left = bucket.seen, charged[len(after)] or {}
            image: Image = seen.image  # type: ignore[assignment]  # there is one in the epoch of the plan
            if seen.epoch is not bucket.epoch or images.get(bucket.pk) is not image or seen.seen_ms > now_ms:
                return False
            if image[MADE] != left.get(MADE):
                return False
            if not (bucket.is_plain or bucket.returns_count(left, charged_ms, delta)):
                return False
            settled = draw_all(bucket.settles, image, delta, now_ms)
            if settled is None:
                return False
            if settled is not image:
                if owes:
                    bucket.note_debt(settled, delta, now_ms)
                if returns and bucket.overdrafts:
                    bucket.return_overdraft(settled, left, charged_ms, granted[1], delta)
                if bucket.counts:
                    settled[CHANGES] += 1
            after.append(settled)
        before = [bucket.seen.image for bucket in plan.buckets] if now_ms > plan.renew_ms else ()
        for place, bucket in enumerate(plan.buckets):
            seen = bucket.seen
            images[bucket.pk] = seen.image = after[place]
            seen.seen_ms, seen.refused = now_ms, False
            if returns and bucket.pk not in self._returned:  # less may be missing than the store knows
                self._store.note_return(bucket.level.key)
        if before:
            self._renew(plan, now_ms, before)
        return True


def _fits_new(level: BucketLimits, cost: Mapping[str, int]) -> bool:
    """Return whether a new bucket holds a cost, and can be made of its numbers alone."""
    entries = level.token_limits
    for name, need in cost.items():
        entry = entries.get(name)
        if entry is not None and (need > entry.rule.capacity or need + entry.floor > entry.rule.capacity):
            return False
    return not entries.watched and not entries.first_use
