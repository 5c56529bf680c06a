"""The slots that the leases of one limiter hold: they are renewed until the leases end.

A slot is taken for a time to live. After a third of that, one write renews all slots in one record, whatever the number
of leases. A thread does it; if only event loops can use the store, those of the leases, each on its own. Slots of a
forgotten lease (without references, or of a closed event loop) expire. A child process renews and frees nothing of its
parent's.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from ..clock import Clock
from ..core.change import Change
from ..core.errors import RateLimiterUnavailable
from ..core.production import MILLI
from ..core.slots import SlotOwner
from ..forks import after_fork, protect
from ..logs import CHORE_FAILED, SLOT_LOST, log_event
from ..observer import SlotLost
from ..records import ledger, pressure
from ..records.algebra import Committed, Image, Key
from ..records.charging import is_expiring, write_of
from ..records.ledger import BucketChange
from ..records.level import SHARDS
from ..records.slots import SeenSlots, TakenSlot, renew_slots
from ..repository.backend import Backend
from ..repository.last_seen import Reserving
from ..runtime.blocking import BlockingRuntime, run
from ..runtime.deadline import Deadline
from ..runtime.housekeeper import HOUSEKEEPER
from ..runtime.port import Caller, Runtime
from ..runtime.retries import tries
from ..stores.port import Store
from .background import BackgroundStore
from .charge_path import BucketShard
from .grant import Grant
from .observers import Observers
from .options import CANCEL, AcquireRequest

_RENEWALS, _RETRIES = 3, 12
"""How often within its time to live a slot is renewed, and a renewal that has failed is tried again."""
_MOST_RENEWED = 50
"""How many slots one write renews if the store bounds the size of a write."""
_AT_ONCE = 16
"""How many records are renewed in parallel."""


class SlotHolder:
    """The slots of one lease, and how to reach the code that has entered it.

    Only the lease refers to it, and it refers to the lease weakly: slots of a forgotten lease expire.
    """

    def __init__(self, lease: Reserving, request: AcquireRequest, caller: Caller, clock: Clock) -> None:
        self.request = request
        self.caller = caller
        self.slots: list[TakenSlot] = []
        self._lease = weakref.ref(lease)
        self._clock = clock
        self._told = False

    @property
    def holds(self) -> bool:
        """Whether a slot is held that was neither freed nor lost."""
        return any(not slot.ended for slot in self.slots)

    @property
    def has_lost(self) -> bool:
        """Whether a slot was lost: not renewed in time, or taken away."""
        now_ms = self._clock.now_ms()
        return any(slot.lost or (not slot.ended and slot.until_ms <= now_ms) for slot in self.slots)

    def tell_lost(self, call_back: Callable[[str, Callable[[], object]], None]) -> None:
        """Do what ``on_lost`` asks for, by ``call_back`` if it is a function of the user: once, from any thread."""
        on_lost, lease, told = self.request.options.on_lost, self._lease(), self._told
        self._told = True
        if told or lease is None:
            return
        if on_lost == CANCEL:
            self.caller.cancel(lambda: lease.is_open)
        elif callable(on_lost):
            self.caller.call(partial(call_back, "on_lost", partial(on_lost, lease)))


@dataclass(slots=True)
class HeldRecord:
    """The slots that are held in one record, each with the lease that holds it; and when they are renewed next."""

    shard: BucketShard
    due_ms: int
    slots: dict[TakenSlot, weakref.ref[SlotHolder]] = field(default_factory=dict)

    @property
    def shortest_ttl_ms(self) -> int:
        return min([slot.ttl_ms for slot in tuple(self.slots)], default=MILLI)

    def callers(self) -> dict[object, Caller]:
        """Return by event loop one who has a lease there."""
        holders = [ref() for ref in tuple(self.slots.values())]
        return {holder.caller.scope: holder.caller for holder in holders if holder is not None}

    def is_due(self, now_ms: int) -> bool:
        """Return whether it is time to renew: also if that is a long time off, as the clock was set back then."""
        return self.due_ms <= now_ms or self.due_ms > now_ms + self.shortest_ttl_ms // _RENEWALS

    def wait(self, now_ms: int, often: int) -> None:
        """Be due ``often`` times within the shortest time to live, and when the first slot ends."""
        ends = [slot.until_ms for slot in tuple(self.slots)]
        self.due_ms = min([now_ms + self.shortest_ttl_ms // often, *ends])


@dataclass(frozen=True)
class Renewal:
    """A chore: renewing what is due of the leases of one event loop; without a ``scope``, of all leases."""

    slot_leases: SlotLeases
    scope: object = None

    def __call__(self) -> float | None:
        return self.slot_leases._renew_in_thread(self.scope)


class SlotLeases:
    """The slots that the leases of one limiter hold. Leases come and go in any thread, one thread renews."""

    def __init__(self, backend: Backend, background: BackgroundStore, observers: Observers) -> None:
        self._backend = backend
        self._background = background
        self._observers = observers
        self._lock = threading.RLock()
        self._records: dict[Key, HeldRecord] = {}
        self._places: dict[TakenSlot, HeldRecord] = {}
        """The record of each slot."""
        self._closed = False
        self._most_renewed = _MOST_RENEWED if backend.store.capabilities.partition_writes else None
        protect(self._lock)
        after_fork(self._forget)

    def count(self) -> Counter[SlotOwner]:
        """Return how many slots are held, by whose they are."""
        held: Counter[SlotOwner] = Counter()
        for record in tuple(self._records.values()):
            level = record.shard.level
            held.update([SlotOwner(level.entity_id, level.resource, slot.limit_name) for slot in tuple(record.slots)])
        return held

    def hold(self, holder: SlotHolder, grant: Grant) -> None:
        """Renew the slots that a grant has taken for a lease, until they are let go."""
        for part, image in zip(grant.parts or (), grant.images, strict=bool(grant.parts)):
            if not part.slots:
                continue
            table = part.shard.seen.slots_of(image)
            for slot in part.slots:
                slot.in_flight = table.of(slot.limit_name).count(grant.now_ms)
            due_ms = grant.now_ms + min([slot.ttl_ms for slot in part.slots]) // _RENEWALS
            holder.slots += part.slots
            self._add(part.shard, dict.fromkeys(part.slots, weakref.ref(holder)), due_ms)

    def let_go(self, slots: Iterable[TakenSlot]) -> None:
        """Renew slots no more."""
        with self._lock:
            for slot in slots:
                record = self._places.pop(slot, None)
                if record is not None:
                    del record.slots[slot]
                    self._forget_empty(record)

    def _forget_empty(self, record: HeldRecord) -> None:
        key = record.shard.level.key
        if not record.slots and self._records.get(key) is record:  # else another one has come in its place
            del self._records[key]

    def close(self) -> None:
        """Renew nothing any more: slots of leases that are still open come back within their time to live."""
        self._closed = True
        for scope in {None, *(scope for record in self._find_records(None) for scope in record.callers())}:
            HOUSEKEEPER.cancel(Renewal(self, scope))

    def _add(self, shard: BucketShard, slots: dict[TakenSlot, weakref.ref[SlotHolder]], due_ms: int) -> None:
        with self._lock:
            record = self._records.get(shard.level.key)
            if record is None:
                record = self._records[shard.level.key] = HeldRecord(shard, due_ms)
            if shard.level.shard_count <= record.shard.level.shard_count:
                record.shard = shard  # the limits of now; slots may have moved on with splits: `_follow_split` looks
            record.due_ms = min(record.due_ms, due_ms)
            record.slots |= slots
            self._places |= dict.fromkeys(slots, record)
        for scope in record.callers() if self._background.needs_loops else (None,):
            HOUSEKEEPER.schedule(Renewal(self, scope), self._seconds_until(due_ms))

    def _seconds_until(self, instant_ms: int) -> float:
        return max(0, instant_ms - self._backend.clock.now_ms()) / MILLI

    def _forget(self) -> None:
        """Let go of all slots in a child process: they are the parent's."""
        for slot in self._places:
            slot.ended = True
        self._records, self._places = {}, {}

    def _renew_in_thread(self, scope: object = None) -> float | None:
        """Renew what is due, in a thread of the housekeeper. Return the seconds until more is, None for never."""
        if self._closed:
            return None
        if scope is None:
            run(self.renew_due(self._background.open(), BlockingRuntime()))
        else:
            self._renew_in_loop(scope)
        due_ms = min([record.due_ms for record in self._find_records(scope)], default=None)
        return None if due_ms is None else self._seconds_until(due_ms)

    def _renew_in_loop(self, scope: object) -> None:
        """Renew what is due of the leases of an event loop, in it; if it is blocked, this is tried again soon."""
        self._drop_expired(self._find_records(scope))
        due = self._find_due(scope)
        callers = [record.callers().get(scope) for record in due]
        caller = next((caller for caller in callers if caller is not None), None)
        if caller is None:
            return
        backend = self._backend
        seconds = min([backend.timeout, *(record.shortest_ttl_ms / _RENEWALS / MILLI for record in due)])
        try:
            caller.run(partial(self.renew_due, backend.store, backend.runtime, scope), seconds)
        except TimeoutError as error:
            self._note_failure(error, self._find_due(scope))

    def _find_records(self, scope: object) -> list[HeldRecord]:
        """Return the records with leases of an event loop; all of them without one."""
        return [each for each in tuple(self._records.values()) if scope is None or scope in each.callers()]

    def _find_due(self, scope: object) -> list[HeldRecord]:
        """Return the records with leases of an event loop, or of any, that are due, the most urgent first."""
        now_ms = self._backend.clock.now_ms()
        due = [record for record in self._find_records(scope) if record.is_due(now_ms)]
        return sorted(due, key=lambda record: record.due_ms)

    def _note_failure(self, error: Exception, records: Iterable[HeldRecord]) -> None:
        """Have records tried again soon, and until their slots have expired."""
        if not isinstance(error, RateLimiterUnavailable):
            message = "slots could not be renewed, which is tried again: %r"
            log_event(CHORE_FAILED, message, error, zae_error_type=type(error).__name__)
        with self._lock:
            for record in records:
                record.wait(self._backend.clock.now_ms(), _RETRIES)

    async def renew_due(self, store: Store, runtime: Runtime, scope: object = None) -> None:
        """Renew all slots of every record that is due, by one write per record; with a ``scope``, of its leases."""
        due = self._find_due(scope)
        if store.capabilities.instant:
            for record in due:
                await self._renew_record(record, store)
            return
        for first in range(0, len(due), _AT_ONCE):
            await runtime.run_together([self._renew_record(each, store) for each in due[first : first + _AT_ONCE]])

    async def _renew_record(self, record: HeldRecord, store: Store) -> None:
        """Renew the slots of a record, and say when it is due again. Raises nothing but interrupts."""
        seconds = record.shortest_ttl_ms / _RENEWALS / MILLI
        now_ms = self._backend.clock.now_ms()
        with self._lock:
            if not record.is_due(now_ms):  # it was begun in another event loop
                return
            record.wait(now_ms, _RETRIES)
        try:
            await self._renew(record, store, self._backend.deadline(min(self._backend.timeout, seconds)))
        except Exception as error:
            self._note_failure(error, [record])
            self._drop_expired([record])
            return
        with self._lock:
            record.wait(now_ms, _RENEWALS)

    async def _renew(self, record: HeldRecord, store: Store, deadline: Deadline) -> None:
        """Renew the slots of a record, except those that are taken meanwhile, and notify the leases of lost ones."""
        begun, begun_ms = tuple(record.slots), self._backend.clock.now_ms()
        image = record.shard.seen.image
        if image is None or not all(slot.is_ours(image) for slot in begun):  # what was seen may be older than the slots
            (image,) = await store.read([record.shard.level.key], timeout=deadline.left())
            record.shard.show(image, self._backend.clock.now_ms())
        for _ in tries(record.shard.level.key.pk):
            if image is not None and image.get(SHARDS, 1) > record.shard.level.shard_count:
                self._follow_split(record, image)
            self._drop_expired([record])
            held, now_ms = [slot for slot in begun if slot in record.slots], self._backend.clock.now_ms()
            mine = [slot for slot in held if image is not None and slot.is_ours(image)]
            self._lose(record, [slot for slot in held if slot not in mine])
            due = [slot for slot in mine if slot.is_due(begun_ms, now_ms)]
            if image is None or not due:
                return
            change = self._plan(record, image, due := due[: self._most_renewed], now_ms)
            outcome = await store.commit([change.write, *change.accruals], timeout=deadline.left())
            if isinstance(outcome, Committed):
                for slot in due:
                    slot.until_ms, slot.counted_ms = slot.renewed_until(now_ms), now_ms
                image = outcome.images[0]
                if image is None:  # it was written, but what is there now is not known
                    return
            else:
                image = outcome.images.get(change.write.key)
            if isinstance(outcome, Committed) and outcome.undisturbed:
                record.shard.seen.show(image, now_ms, write=change.write)
            else:
                record.shard.show(image, now_ms)

    def _plan(self, record: HeldRecord, image: Image, slots: Sequence[TakenSlot], now_ms: int) -> BucketChange:
        (level, seen), change = record.shard, Change()
        renew_slots(SeenSlots(image, seen.slots_of(image), now_ms), change, slots)
        if level.partition_writes:
            pressure.count(level, image, now_ms, change.put, change.add)
        change.expires_ms = now_ms + level.lifetime_ms if is_expiring(level, image) else None
        return ledger.with_usage(level, image, write_of(change, level.key, image), now_ms)

    def _follow_split(self, record: HeldRecord, image: Image) -> None:
        """Go on with the slots that are still in a shard that was split; the others move to the record they are in."""
        level, seen = record.shard
        count = level.shard_count
        with self._lock:
            while count < image[SHARDS]:
                sibling, count = level.at(level.shard + count, 2 * count), 2 * count
                moved = {slot: ref for slot, ref in record.slots.items() if slot.is_in_shard(sibling.shard, count)}
                for slot in moved:
                    del record.slots[slot]
                if moved:
                    self._add(BucketShard(sibling, self._backend.last_seen.of(sibling.key)), moved, due_ms=0)
            record.shard = BucketShard(level.at(level.shard, count), seen)
            self._forget_empty(record)

    def _drop_expired(self, records: Iterable[HeldRecord]) -> None:
        """Let go of slots whose leases are gone, and notify the leases of those that have expired."""
        now_ms = self._backend.clock.now_ms()
        for record in records:
            held = [(slot, ref()) for slot, ref in tuple(record.slots.items())]
            self.let_go([slot for slot, holder in held if slot.ended or holder is None or holder.caller.is_gone])
            self._lose(record, [slot for slot, _ in held if slot.until_ms <= now_ms])

    def _lose(self, record: HeldRecord, slots: Sequence[TakenSlot]) -> None:
        """Let go of slots that others may have by now, and notify their leases; what was let go is not lost."""
        with self._lock:
            lost = [(slot, record.slots[slot]()) for slot in slots if slot in record.slots]
            for slot, _ in lost:
                slot.lost = slot.ended = True
            self.let_go([slot for slot, _ in lost])
        for slot, holder in lost:
            if holder is not None:
                self.announce_losses(holder, [slot])

    def announce_losses(self, holder: SlotHolder, slots: Iterable[TakenSlot]) -> None:
        """Log that a lease has lost slots, and notify the observers and the lease."""
        for slot in slots:
            message = "a slot of %s was lost: it was not renewed in time, or somebody has taken it away"
            fields = {**self._backend.log_fields(), **holder.request.log_fields(), "zae_limit": slot.limit_name}
            log_event(SLOT_LOST, message, slot.limit_name, **fields)
            self._observers.notify("on_slot_lost", SlotLost(*slot.owner))
            holder.tell_lost(self._observers.call_back)
