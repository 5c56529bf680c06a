"""The runner: finds what is old in a table and moves it, partition by partition.

Every move is one commit, so a run that ends anywhere has lost nothing and the next one goes on; two at once only take
work from each other. From the first move on the table's version says that an upgrade is unfinished, which keeps clients
from opening half of it; the present version is stamped last. Clients of the old layout should be stopped: what they
write after their partition was moved waits for the next run.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from ...core.errors import CorruptRecordError, RateLimiterUnavailable
from ...core.values import Namespace
from ...records import entity, keys, namespace, version
from ...records.algebra import Committed, Guard, Key, Write
from ...records.instants import iso
from ...stores.dynamodb.table import describe
from ...stores.opaque import opaque_id
from . import merging, sharded
from .batches import batches, together
from .items import Move, Old, Place, Refused, withdrawn
from .pages import Pages
from .partition import Partition, attempt, outcomes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ...records.algebra import Image
    from ...stores.dynamodb.store import DynamoStore
    from .items import Outcome

_TRIES = 20
_NEW_NAMESPACE = "?"
"""Stands for the id of a namespace that a dry run does not register."""


class Report(NamedTuple):
    """What was moved, or would be: numbers of new records by kind; what stays, with the reason."""

    moved: dict[str, int]
    refused: dict[Key, str]
    merged: int = 0
    """Old buckets whose debts went to a bucket that clients already used."""
    superseded: int = 0
    """Old records of which clients had already written newer ones."""

    @property
    def is_empty(self) -> bool:
        """Whether there was nothing to do."""
        return not (self.moved or self.merged or self.superseded)


class Runner:
    """One run over one table. Data of the time before namespaces go to ``namespace_name``."""

    def __init__(
        self,
        store: DynamoStore,
        namespace_name: str = "default",
        *,
        dry_run: bool = False,
        progress: Callable[[int, int], object] | None = None,
    ) -> None:
        self._store = store
        self._namespace_name = namespace_name
        self._dry_run = dry_run
        self._progress = progress or (lambda done, total: None)
        self._namespace_id: str | None = None
        self._begun = False
        self._trail: list[str] = []
        self._counts: Counter[str] = Counter()
        self._merged = self._superseded = 0
        self._refused: dict[Key, str] = {}
        self._pages = Pages(store.client, self._refused)
        self._whole: set[tuple[str, ...]] = set()

    async def run(self) -> Report:
        """Move everything that is old; a second run finds nothing."""
        table = await describe(self._store.client) or {}
        done, total = 0, int(table.get("ItemCount", 0))
        moved = ""
        async for found in self._pages.partitions():
            for pk, olds in found.items():
                if pk != moved and await self._look(pk, olds):
                    moved = pk
                done += len(olds)
                self._progress(done, max(done, total))
        await self._finish()
        return Report(dict(sorted(self._counts.items())), self._refused, self._merged, self._superseded)

    async def _look(self, pk: str, olds: Sequence[Old]) -> bool:
        """Move a partition as a whole if the part of it that was found says that it is old; whether it did."""
        place = Place.of(pk)
        if place is None:
            return False
        if place.kind == "BUCKET":
            old = any(each.key.sk == keys.STATE and sharded.is_old(each.image) for each in olds)
            if old:
                await self._bucket(pk)
            return old
        old = place.namespace_id is None or bool(self._outcomes(place, olds))
        if old:
            await self._partition(pk, place)
        return old

    async def _partition(self, pk: str, place: Place) -> None:
        self._trail.append(pk)
        for _ in range(_TRIES):
            moves = self._noted(self._outcomes(place, await self._pages.partition(pk)))
            if await self._moved(moves):
                self._trail.pop()
                return
        raise _busy(pk)

    async def _bucket(self, pk: str) -> None:
        """Make one record of all shards of a bucket."""
        try:
            whose = keys.parse_bucket_pk(pk)
        except ValueError as error:
            self._refused[Key(pk, keys.STATE)] = str(error)
            return
        for _ in range(_TRIES):
            moves = self._noted(await self._shards(whose))
            if await self._moved(moves):
                return
        raise _busy(pk)

    async def _shards(self, whose: keys.BucketKey) -> list[Outcome]:
        there = await self._olds({0, whose.shard_id}, whose)
        number = min(sharded.count(there.values()), sharded.MOST_SHARDS) if there else 0
        if number > len(there):
            there = await self._olds({*range(number), whose.shard_id}, whose)
        shards = {shard: old for shard, old in there.items() if sharded.is_old(old.image)}
        if not shards or (self._dry_run and whose[:3] in self._whole):
            return []
        self._whole.add(whose[:3])
        olds = [*shards.values()]
        if len(shards) < len(there):
            return [Refused(old.key, "a bucket of the present layout stands beside it") for old in olds]
        return list(attempt(olds, sharded.adopt, shards, self._now_ms()))

    async def _olds(self, shards: set[int], whose: keys.BucketKey) -> dict[int, Old]:
        """Those of some shards of a bucket that are there."""
        wanted = {shard: keys.bucket(*whose._replace(shard_id=shard)) for shard in sorted(shards)}
        images = await self._store.read(list(wanted.values()))
        return {
            shard: Old(key, image)
            for (shard, key), image in zip(wanted.items(), images, strict=True)
            if image is not None
        }

    def _outcomes(self, place: Place, olds: Sequence[Old]) -> list[Outcome]:
        ns = place.namespace_id or self._namespace_id or _NEW_NAMESPACE
        return outcomes(Partition(place, ns, olds, self._now_ms()))

    def _noted(self, found: Iterable[Outcome]) -> list[Move]:
        """The moves; what is refused is kept for the report."""
        moves: list[Move] = []
        for each in found:
            if isinstance(each, Refused):
                self._refused[each.key] = each.reason
            else:
                moves.append(each)
        return moves

    async def _moved(self, moves: Sequence[Move]) -> bool:
        """Commit the moves; False where the records have changed since they were read, or were read too early."""
        if self._dry_run:
            self._counts.update(move.kind for move in moves)
            return True
        if not moves:
            return True
        if not await self._ready(moves):
            return False
        whole = True
        for batch in batches([await self._with_parent(move) for move in moves]):
            if await self._commit(together(batch)):
                self._counts.update(move.kind for move in batch)
            else:
                for move in batch:
                    whole = await self._one(move) and whole
        return whole

    async def _ready(self, moves: Sequence[Move]) -> bool:
        """Before the first move: mark the table, and know the namespace; False where only now it is known."""
        if not self._begun:
            begun = version.Deployed(version.UNFINISHED)
            await self._store.commit([version.stamp(begun)])
            self._begun = True
        unknown = any(write.key.pk.startswith(f"{_NEW_NAMESPACE}/") for move in moves for write in move.writes)
        if unknown:
            self._namespace_id = await self._namespace()
        return not unknown

    async def _namespace(self) -> str:
        """The id of the namespace for data that have none; it is registered if need be."""
        key = keys.namespace(self._namespace_name)
        for _ in range(_TRIES):
            found = (await self._store.read([key]))[0]
            if found is not None:
                return str(found["namespace_id"])
            made = Namespace(self._namespace_name, opaque_id(), namespace.ACTIVE, iso(self._now_ms()))
            await self._store.commit(namespace.register(made))
        raise _busy(key.pk)

    async def _with_parent(self, move: Move) -> Move:
        """The move with the count of its parent, which is moved before it."""
        if move.parent is None:
            return move
        image = (await self._store.read([move.parent]))[0]
        if image is None or entity.CHILDREN not in image:
            await self._parent_first(move)
            image = (await self._store.read([move.parent]))[0]
        if image is None or entity.CHILDREN not in image:
            return move
        counted = Write(move.parent, (Guard(entity.CHILDREN, ">=", -(2**62)),), add={entity.CHILDREN: 1})
        return move._replace(writes=(*move.writes, counted))

    async def _parent_first(self, move: Move) -> None:
        """Move the parent's partition, unless it is waiting for this very one: a circle is closed without a count."""
        assert move.parent is not None  # whoever calls has one
        here = Place.of(move.olds[0].key.pk)
        pk = move.parent.pk if here is None or here.namespace_id else move.parent.pk.partition("/")[2]
        place = Place.of(pk)
        if place is not None and pk not in self._trail:
            await self._partition(pk, place)

    async def _one(self, move: Move) -> bool:
        """Commit a move by itself; where a client was faster with the new record, what it wrote stays."""
        outcome = await self._store.commit(move.writes)
        if isinstance(outcome, Committed):
            self._counts[move.kind] += 1
            return True
        current = None if move.target is None else outcome.images.get(move.target)
        if current is None:
            return False
        is_bucket = move.kind == "bucket"
        if is_bucket and sharded.is_old(current):
            return await self._after_shards(move)
        gone = [write for write in move.writes if write.delete]
        writes = merging.merged(move, current, self._now_ms()) if is_bucket else gone
        done = await self._commit(writes)
        self._merged += done and is_bucket
        self._superseded += done and not is_bucket
        return done

    async def _after_shards(self, move: Move) -> bool:
        """Bring the older bucket at the target of a move to the present layout first; the move then comes again."""
        assert move.target is not None  # there is something at it
        await self._bucket(move.target.pk)
        reason = self._refused.get(move.target)
        if reason is not None:
            self._refused |= {old.key: f"the bucket that it belongs to stays: {reason}" for old in move.olds}
        return reason is not None

    async def _finish(self) -> None:
        """Stamp the present version, and forget that of the time before namespaces."""
        stamped, old = await self._store.read([version.key(), version.UNPREFIXED[0]])
        if old is not None:
            self._counts["version"] += 1
        unfinished = stamped is not None and _is_unfinished(stamped)
        if self._dry_run or not (self._begun or unfinished or old is not None):
            return
        writes = [version.stamp(version.Deployed())]
        if old is not None:
            writes.append(withdrawn(Old(version.UNPREFIXED[0], old), self._now_ms()))
        if not await self._commit(writes):
            await self._store.commit(writes[:1])

    async def _commit(self, writes: Sequence[Write]) -> bool:
        return isinstance(await self._store.commit(writes), Committed)

    def _now_ms(self) -> int:
        return self._store.clock.now_ms()


def _is_unfinished(stamped: Image) -> bool:
    """Whether a version record is to be written anew: it says so, or says nothing that can be read."""
    try:
        return version.needs_upgrade(version.decode(stamped))
    except CorruptRecordError:
        return True


def _busy(pk: str) -> RateLimiterUnavailable:
    return RateLimiterUnavailable(f"{pk} is being changed by others all the time; stop the old clients and try again.")
