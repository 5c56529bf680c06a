"""Plan the moves that bring one partition of an old table to the present layout.

Records of the present layout need no move; invalid ones are rejected and stay.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, ParamSpec

from ...core.errors import ZAELimiterError
from ...core.names import DEFAULT_RESOURCE, RESERVED_NAMESPACE
from ...records import keys
from . import buckets, conversions
from .conversions import Scope
from .moves import Move, Old, Outcome, RejectedRecord

P = ParamSpec("P")

_BUCKET = "#BUCKET#"
_LIMIT = "#LIMIT#"
_KEY = re.compile(r"(?:(?P<ns>[^/#]+)/)?(?P<kind>ENTITY|RESOURCE|SYSTEM|AUDIT|BUCKET)#(?P<whose>.*)", re.DOTALL)


class PartitionKey(NamedTuple):
    """The parts of a partition key. ``namespace_id`` is None in layouts without namespaces."""

    namespace_id: str | None
    kind: str
    whose: str

    @classmethod
    def of(cls, pk: str) -> PartitionKey | None:
        """Parse a partition key. Return None for one that no layout has."""
        found = _KEY.fullmatch(pk)
        return None if found is None else cls(found["ns"], found["kind"], found["whose"])


class Partition(NamedTuple):
    """The records of one partition key, and the namespace that they belong to or are moved to."""

    place: PartitionKey
    namespace_id: str
    olds: Sequence[Old]
    now_ms: int

    def find(self, sk: str) -> Old | None:
        """Return the record with this sort key, or None."""
        return next((old for old in self.olds if old.key.sk == sk), None)

    def under(self, prefix: str) -> Iterator[tuple[list[str], Old]]:
        """Yield the records whose sort key starts with ``prefix``, with the parts that follow it."""
        for old in self.olds:
            if old.key.sk.startswith(prefix):
                yield old.key.sk.removeprefix(prefix).split("#"), old

    def by_resource(self, prefix: str) -> dict[str, dict[str, Old]]:
        """Return items per limit by resource and limit name; the limit is the last part of the key."""
        found: dict[str, dict[str, Old]] = defaultdict(dict)
        for parts, old in self.under(prefix):
            if len(parts) > 1:
                found["#".join(parts[:-1])][parts[-1]] = old
        return found


def plan_partition(partition: Partition) -> list[Outcome]:
    """Return the moves and rejections of a partition, the entity first: the others belong to it.

    Without a namespace every record is moved or rejected, except the version record, which is moved last.
    """
    place = partition.place
    read = _read_registry if place.namespace_id == RESERVED_NAMESPACE else _READERS[place.kind]
    found = list(read(partition))
    if place.namespace_id is None:
        known = {old.key for each in found if isinstance(each, Move) for old in each.olds}
        known |= {each.key for each in found if isinstance(each, RejectedRecord)}
        unknown = [old.key for old in partition.olds if old.key not in known and old.key.sk != keys.VERSION]
        found += [RejectedRecord(key, "it is not a record of any known layout") for key in unknown]
    return found


def attempt(
    olds: Sequence[Old], work: Callable[P, Move | None], *args: P.args, **options: P.kwargs
) -> Iterator[Outcome]:
    """Yield the move that ``work`` returns, or rejections of ``olds`` if it fails."""
    try:
        move = work(*args, **options)
    except (ZAELimiterError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        yield from (RejectedRecord(old.key, reason) for old in olds)
        return
    if move is not None:
        yield move


def _read_entity(partition: Partition) -> Iterator[Outcome]:
    ns, entity_id, now_ms = partition.namespace_id, partition.place.whose, partition.now_ms
    meta = partition.find(keys.META)
    if meta is not None:
        yield from attempt([meta], conversions.convert_entity, ns, entity_id, meta, now_ms)
    yield from _read_entity_limits(partition)
    owner = {} if meta is None else meta.fields
    for resource, parts in partition.by_resource(_BUCKET).items():
        level = buckets.level_of(ns, entity_id, resource, owner)
        yield from attempt([*parts.values()], buckets.convert_per_limit, level, parts, now_ms)
    for names, old in partition.under(_BUCKET):
        if len(names) == 1:
            level = buckets.level_of(ns, entity_id, names[0], owner)
            yield from attempt([old], buckets.convert_composite, level, old, now_ms)
    for names, old in partition.under(keys.USAGE_PREFIX):
        if len(names) == 2:
            yield from attempt([old], conversions.convert_snapshot, ns, entity_id, names[0], old, now_ms)


def _read_entity_limits(partition: Partition) -> Iterator[Outcome]:
    wholes = {"#".join(parts): old for parts, old in partition.under(f"{keys.CONFIG}#")}
    default = partition.find(keys.CONFIG)
    if default is not None:
        wholes.setdefault(DEFAULT_RESOURCE, default)
    grouped = partition.by_resource(_LIMIT)
    for resource in sorted(wholes.keys() | grouped.keys()):
        scope = Scope(partition.namespace_id, resource, partition.place.whose)
        yield from _read_config(partition, scope, wholes.get(resource), grouped.get(resource, {}))


def _read_config(partition: Partition, scope: Scope, whole: Old | None, parts: dict[str, Old]) -> Iterator[Outcome]:
    olds = [*parts.values(), *([] if whole is None else [whole])]
    if olds:
        yield from attempt(olds, conversions.convert_config, scope, whole, parts, partition.now_ms)


def _read_resource(partition: Partition) -> Iterator[Outcome]:
    parts = {parts[-1]: old for parts, old in partition.under(_LIMIT)}
    scope = Scope(partition.namespace_id, partition.place.whose)
    yield from _read_config(partition, scope, partition.find(keys.CONFIG), parts)


def _read_system(partition: Partition) -> Iterator[Outcome]:
    ns, now_ms = partition.namespace_id, partition.now_ms
    parts = {parts[0]: old for parts, old in partition.under(_LIMIT) if len(parts) == 1}
    grouped = partition.by_resource(_LIMIT)
    parts |= grouped.pop(DEFAULT_RESOURCE, {})
    yield from _read_config(partition, Scope(ns), partition.find(keys.CONFIG), parts)
    for resource, items in grouped.items():
        yield from _read_config(partition, Scope(ns, resource), None, items)
    for old in filter(None, map(partition.find, (keys.RESOURCES, keys.ENTITY_CONFIG_RESOURCES))):
        yield from attempt([old], conversions.convert_resources, partition.place.namespace_id, old, now_ms)
    stamp = partition.find(keys.VERSION)
    if stamp is not None and partition.place.namespace_id is not None:
        yield from attempt([stamp], conversions.convert_schema, stamp, now_ms)


def _read_audit(partition: Partition) -> Iterator[Outcome]:
    ns, subject, now_ms = partition.namespace_id, partition.place.whose, partition.now_ms
    for _, old in partition.under(keys.AUDIT_PREFIX):
        yield from attempt([old], conversions.convert_event, ns, subject, old, now_ms)


def _read_registry(partition: Partition) -> Iterator[Outcome]:
    for prefix in (keys.NAMESPACE_PREFIX, keys.NSID_PREFIX):
        for _, old in partition.under(prefix):
            yield from attempt([old], conversions.convert_namespace, old, partition.now_ms)


_READERS: dict[str, Callable[[Partition], Iterator[Outcome]]] = {
    "ENTITY": _read_entity,
    "RESOURCE": _read_resource,
    "SYSTEM": _read_system,
    "AUDIT": _read_audit,
    "BUCKET": lambda partition: iter(()),  # its shards are in several partitions: the runner merges them
}
