"""Find old records in a table and move them, partition by partition.

Every move is one commit, so an interrupted run has lost nothing and the next one continues; two runs at once only
share the work. From the first move on, the table's version says that an upgrade is unfinished, which keeps clients
out; the present version is written last. Clients of the old layout should be stopped: what they write after their
partition was moved is left to the next run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from ...core.errors import CorruptRecordError, RateLimiterUnavailable
from ...core.values import Namespace
from ...records import bucket, entity, keys, namespace, version
from ...records.algebra import Committed, Guard, Image, Key, Write
from ...records.fields import iso
from ...runtime.retries import tries
from ...stores.damage import read_each
from ...stores.dynamodb.store import DynamoStore
from ...stores.dynamodb.table import describe
from ...stores.dynamodb.values import decode, key_of
from ...stores.opaque import opaque_id
from . import buckets
from .changes import Change, ChangeLog
from .moves import Move, Old, Outcome, RejectedRecord, merge_writes, split_batches
from .partition import LIMIT, Partition, PartitionKey, attempt

_TRIES = 20
_MOST_CHILDREN = 2**62
_NEW_NAMESPACE = "?"
"""Stands for the id of a namespace that a dry run does not register."""


class MoveReport(NamedTuple):
    """The numbers of moved records by kind, and the rejected records with the reasons."""

    moved: dict[str, int]
    refused: dict[Key, str]
    merged: int = 0
    """Old buckets whose debts went to a bucket that clients already used."""
    superseded: int = 0
    """Old records of which clients had already written newer ones."""
    resources: frozenset[str] = frozenset()
    """The resources of buckets from before namespaces."""
    changes: tuple[Change, ...] = ()
    """What means something else afterwards; only a dry run says so."""

    @property
    def is_empty(self) -> bool:
        """Whether there was nothing to do."""
        return not (self.moved or self.merged or self.superseded)


NOTHING = MoveReport({}, {})


class Runner:
    """One run over one table. Data from before namespaces are moved to ``namespace_name``."""

    def __init__(
        self,
        store: DynamoStore,
        namespace_name: str = "default",
        *,
        dry_run: bool = False,
        progress: Callable[[int, int], object] | None = None,
        remember: str | None = None,
    ) -> None:
        """Prepare a run. ``remember`` are the resources that are noted in the version record when it begins."""
        self._store = store
        self._namespace_name = namespace_name
        self._dry_run = dry_run
        self._remember = remember
        self._progress = progress or (lambda done, total: None)
        self._namespace_id: str | None = None
        self._begun = False
        self._closed = False
        self._trail: list[str] = []
        self._counts: Counter[str] = Counter()
        self._merged = self._superseded = 0
        self._refused: dict[Key, str] = {}
        self._resources: set[str] = set()
        self._changes = ChangeLog(namespace_name)
        self._whole: set[tuple[str, ...]] = set()
        self._counters: dict[Key, Image | CorruptRecordError | None] = {}
        """What a dry run has read of the records beside those that it would write."""

    async def run(self) -> MoveReport:
        """Move all old records and return a report. A second run finds nothing."""
        older, found = await self._store.read([version.UNPREFIXED[0], keys.namespace(self._namespace_name)])
        self._namespace_id = None if found is None else str(found["namespace_id"])
        self._closed = version.refuses_older(older)
        self._counts["version"] += older is not None and not self._closed
        table = await describe(self._store.client) or {}
        done, total = 0, int(table.get("ItemCount", 0))
        moved = ""
        async for page in self._pages("Scan", {}):
            by_partition: dict[str, list[Old]] = {}  # a partition on two pages comes in two parts
            for old in page:
                by_partition.setdefault(old.key.pk, []).append(old)
            for pk, olds in by_partition.items():
                if pk != moved and await self._move_if_old(pk, olds):
                    moved = pk
                done += len(olds)
                self._progress(done, max(done, total))
        await self._finish()
        return MoveReport(
            dict(sorted((+self._counts).items())),
            self._refused,
            self._merged,
            self._superseded,
            frozenset(self._resources),
            self._changes.report() if self._dry_run else (),
        )

    async def _pages(self, operation: str, asked: dict[str, Any]) -> AsyncIterator[list[Old]]:
        """Yield the records of the table, expired ones too, page by page; undecodable ones are rejected."""
        client = self._store.client
        request = {**asked, "TableName": client.table, "ConsistentRead": True}
        while True:
            answer = await client.call(operation, request, timeout=30.0, repeatable=True)
            olds: list[Old] = []
            for item in answer.get("Items", ()):
                try:
                    olds.append(Old(key_of(item), decode(item)))
                except CorruptRecordError as error:
                    self._refused[key_of(item)] = str(error)
            yield olds
            if not answer.get("LastEvaluatedKey"):
                return
            request["ExclusiveStartKey"] = answer["LastEvaluatedKey"]

    async def _move_if_old(self, pk: str, olds: Sequence[Old]) -> bool:
        """Move a whole partition if these of its records show that it is old. Return whether it did."""
        place = PartitionKey.of(pk)
        if place is None:
            self._changes.add_unknown(olds)
            return False
        if place.kind in ("RESOURCE", "SYSTEM") and any(each.key.sk.startswith((keys.CONFIG, LIMIT)) for each in olds):
            self._changes.cover(place.whose or None)
        old = place.namespace_id is None or bool(self._plan(place, olds))
        if old:
            await self._move_partition(pk, place)
        if place.kind == "BUCKET" and any(
            each.key.sk == keys.STATE and buckets.is_old_shard(each.image) for each in olds
        ):
            await self._move_bucket(pk)
            return True
        return old

    async def _move_partition(self, pk: str, place: PartitionKey) -> None:
        self._trail.append(pk)
        condition = {"KeyConditionExpression": "PK = :pk", "ExpressionAttributeValues": {":pk": {"S": pk}}}
        for _ in _tries(pk):
            olds = [old async for page in self._pages("Query", condition) for old in page]
            if await self._commit_moves(self._plan(place, olds)):
                break
        self._trail.pop()

    async def _move_bucket(self, pk: str) -> None:
        """Merge all shards of a bucket into one record."""
        try:
            whose = keys.parse_bucket_pk(pk)
        except ValueError as error:
            self._refused[Key(pk, keys.STATE)] = str(error)
            return
        for _ in _tries(pk):
            if await self._commit_moves(await self._plan_shards(whose)):
                return

    async def _plan_shards(self, whose: keys.BucketKey) -> list[Outcome]:
        there = await self._read_shards({0, whose.shard_id}, whose)
        number = min(buckets.count_shards(there.values()), buckets.MOST_SHARDS) if there else 0
        if number > len(there):
            there = await self._read_shards({*range(number), whose.shard_id}, whose)
        shards = {shard: old for shard, old in there.items() if buckets.is_old_shard(old.image)}
        if shards and all(buckets.is_present(old.image) for old in there.values()):
            shards = there  # an older client has stated limits in some of them
        if not shards or (self._dry_run and whose[:3] in self._whole):
            return []
        self._whole.add(whose[:3])
        olds = [*shards.values()]
        if len(shards) < len(there):
            return [RejectedRecord(old.key, "a bucket of the present layout stands beside it") for old in olds]
        return list(attempt(olds, buckets.merge_shards, shards, self._now_ms()))

    async def _read_shards(self, shards: set[int], whose: keys.BucketKey) -> dict[int, Old]:
        """Return those of some shards of a bucket that exist; none, with all refused, if one cannot be read."""
        wanted = {keys.bucket(*whose._replace(shard_id=shard)): shard for shard in sorted(shards)}
        images, damaged = await self._read(list(wanted))
        if damaged:
            beside = f"it belongs to {damaged[0].pk}, which cannot be read"
            self._refused = {**dict.fromkeys(images, beside), **self._refused}
            return {}
        return {wanted[key]: Old(key, image) for key, image in images.items()}

    async def _read(self, wanted: Sequence[Key]) -> tuple[dict[Key, Image], list[Key]]:
        """Return the records that exist and can be read, and the keys of those that cannot, which are refused."""
        found = await read_each(self._store.read, wanted)
        damaged = {key: str(image) for key, image in found.items() if isinstance(image, CorruptRecordError)}
        self._refused |= damaged
        images = {key: image for key, image in found.items() if isinstance(image, dict)}
        return images, list(damaged)

    def _plan(self, place: PartitionKey, olds: Sequence[Old]) -> list[Outcome]:
        ns = place.namespace_id or self._namespace_id or _NEW_NAMESPACE
        return Partition(place, ns, olds, self._now_ms()).plan()

    async def _commit_moves(self, found: Sequence[Outcome]) -> bool:
        """Commit the moves and note the rejections. Return False if the records must be read again."""
        moves = [each for each in found if isinstance(each, Move)]
        self._refused |= {each.key: each.reason for each in found if isinstance(each, RejectedRecord)}
        self._resources |= {move.resource for move in moves if move.resource is not None}
        if self._dry_run:
            await self._count_planned(moves)
        if self._dry_run or not moves:
            return True
        if not await self._prepare(moves):
            return False
        whole = True
        for batch in split_batches([await self._with_parent(move) for move in moves]):
            with suppress(CorruptRecordError):  # then each has to be looked at, as after a lost race
                if await self._commit(merge_writes(batch)):
                    self._counts.update(move.kind for move in batch)
                    continue
            for move in batch:
                try:
                    whole = await self._commit_or_merge(move) and whole
                except CorruptRecordError as error:
                    self._refuse(move, str(error))
        return whole

    async def _count_planned(self, moves: Sequence[Move]) -> None:
        """Count what a run would do. In a table that was upgraded before, old records may meet newer ones."""
        self._changes.add(moves)
        targets = [move.target for move in moves if move.target is not None] if self._closed else []
        taken, damaged = await self._read(targets)
        for move in moves:
            if move.target in damaged:
                self._refuse(move, f"{' '.join(move.target)}, where it belongs, is damaged")
            elif spoilt := await self._find_spoilt_counter(move):
                self._refuse(move, f"{' '.join(spoilt)}, where it is counted, is damaged")
            elif move.target is None or move.target not in taken:
                self._counts[move.kind] += 1
            elif move.kind != "bucket":
                self._superseded += 1
            else:
                try:
                    if not buckets.is_old_shard(taken[move.target]):  # one of an older client is converted before
                        bucket.inspect(move.target, taken[move.target])
                    self._merged += 1
                except CorruptRecordError as error:
                    self._refuse(move, str(error))

    async def _find_spoilt_counter(self, move: Move) -> Key | None:
        """Return the key of a record beside the moved one that cannot be counted up; None if there is none."""
        counters = {write.key: write.add for write in move.writes[1:] if write.add}
        self._counters |= await read_each(self._store.read, [key for key in counters if key not in self._counters])
        for key, added in counters.items():
            image = self._counters[key] or {}
            if isinstance(image, CorruptRecordError) or any(type(image.get(attr, 0)) is not int for attr in added):
                return key
        return None

    async def _prepare(self, moves: Sequence[Move]) -> bool:
        """Before the first move, mark the table and find the namespace for data that have none, or register it.

        Return False if the namespace was unknown until now: the moves must be planned again.
        """
        if not self._begun:
            unfinished = version.Deployed(version.UNFINISHED, resources_moved=self._remember)
            await self._store.commit([version.stamp(unfinished), version.refuse_older()])
            self._begun = True
        if not any(write.key.pk.startswith(f"{_NEW_NAMESPACE}/") for move in moves for write in move.writes):
            return True
        key = keys.namespace(self._namespace_name)
        for _ in _tries(key.pk):
            found = (await self._store.read([key]))[0]
            if found is not None:
                self._namespace_id = str(found["namespace_id"])
                break
            made = Namespace(self._namespace_name, opaque_id(), namespace.ACTIVE, iso(self._now_ms()))
            await self._store.commit(namespace.register(made))
        return False

    async def _with_parent(self, move: Move) -> Move:
        """Return the move with the count of its parent, which is moved first."""
        if move.parent is None:
            return move
        found, damaged = await self._read([move.parent])
        if not damaged and entity.CHILDREN not in found.get(move.parent, ()):
            here = PartitionKey.of(move.olds[0].key.pk)
            pk = move.parent.pk if here is None or here.namespace_id else move.parent.pk.partition("/")[2]
            place = PartitionKey.of(pk)
            if place is not None and pk not in self._trail:  # else it waits for this one: a cycle is left uncounted
                await self._move_partition(pk, place)
                found, _ = await self._read([move.parent])
        count = found.get(move.parent, {}).get(entity.CHILDREN)
        if type(count) is not int or abs(count) > _MOST_CHILDREN:  # damage that is not ours to repair
            return move
        counted = Write(move.parent, (Guard(entity.CHILDREN, ">=", -_MOST_CHILDREN),), add={entity.CHILDREN: 1})
        return move._replace(writes=(*move.writes, counted))

    async def _commit_or_merge(self, move: Move) -> bool:
        """Commit a single move. What a client has already written there is newer: keep it, and merge only buckets.

        Return False to plan it again.
        """
        outcome = await self._store.commit(move.writes)
        if isinstance(outcome, Committed):
            self._counts[move.kind] += 1
            return True
        target = move.target
        current = None if target is None else outcome.images.get(target)
        if target is None or current is None:
            return False
        is_bucket = move.kind == "bucket"
        if is_bucket and buckets.is_old_shard(current):  # it is converted first; the move fails with it
            await self._move_bucket(target.pk)
            reason = self._refused.get(target)
            if reason is not None:
                self._refused |= {old.key: f"the bucket that it belongs to stays: {reason}" for old in move.olds}
            return reason is not None
        writes = [write for write in move.writes if write.delete]
        if is_bucket:
            writes = buckets.merge_bucket(move, bucket.inspect(target, current), self._now_ms())
        done = await self._commit(writes)
        self._merged += done and is_bucket
        self._superseded += done and not is_bucket
        return done

    def _refuse(self, move: Move, reason: str) -> None:
        """Leave the records of a move where they are, because one that it writes to is damaged."""
        self._refused = {**{old.key: reason for old in move.olds}, **self._refused}

    async def _finish(self) -> None:
        """Write the present version and how many records are left, and keep clients from before namespaces out."""
        stamped = (await self._store.read([version.KEY]))[0]
        unfinished = stamped is not None and is_unfinished(stamped)
        left = len(self._refused)
        changed = unfinished or not self._closed or left != count_left(stamped) or name_older_aggregator(stamped)
        if not self._dry_run and (self._begun or changed):
            done = version.stamp(version.Deployed(records_left=left))._replace(remove=name_older_aggregator(stamped))
            await self._store.commit([done, version.refuse_older()])

    async def _commit(self, writes: Sequence[Write]) -> bool:
        return isinstance(await self._store.commit(writes), Committed)

    def _now_ms(self) -> int:
        return self._store.clock.now_ms()


def is_unfinished(stamped: Image) -> bool:
    """Return whether a version record must be rewritten: an upgrade is unfinished, or it is unreadable."""
    try:
        return version.needs_upgrade(version.decode(stamped))
    except CorruptRecordError:
        return True


def count_left(stamped: Image | None) -> int:
    """Return how many records an upgrade has left where they were, by a version record that can be read."""
    return version.decode(stamped).records_left or 0


def name_older_aggregator(stamped: Image | None) -> tuple[str, ...]:
    """Return the attribute of an aggregator before 1.0, which is of another stack: this version cannot renew it."""
    aggregator = None if stamped is None else stamped.get(version.AGGREGATOR)
    return (version.AGGREGATOR,) if isinstance(aggregator, str) and aggregator.startswith("0.") else ()


def _tries(pk: str) -> Iterator[int]:
    busy = RateLimiterUnavailable(f"Too much contention on {pk}; stop the old clients and try again.")
    return tries(pk, _TRIES, busy)
