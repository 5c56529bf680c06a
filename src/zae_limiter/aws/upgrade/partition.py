"""Plan the moves that bring one partition of an old table to the present layout.

Records of the present layout need no move; invalid ones are rejected and stay.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, ParamSpec

from ...core.errors import ZAELimiterError
from ...core.names import DEFAULT_RESOURCE, RESERVED_NAMESPACE
from ...records import keys
from . import composite, configs, entities, history, per_limit, registry
from .buckets import Holding, Owner, encode_bucket
from .items import Move, Old, Outcome, PartitionKey, RejectedRecord, plan_drop, plan_move

P = ParamSpec("P")

BUCKET = "#BUCKET#"
LIMIT = "#LIMIT#"


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
    """Return the moves and rejections of a partition, the entity first: the others belong to it."""
    if partition.place.namespace_id == RESERVED_NAMESPACE:
        return list(_of_registry(partition))
    found = list(_READERS[partition.place.kind](partition))
    if partition.place.namespace_id is None:
        found += _reject_unknown(partition, found)
    return found


def _reject_unknown(partition: Partition, found: Sequence[Outcome]) -> Iterator[RejectedRecord]:
    """Yield rejections of records that no layout has, except the version record, which is moved last."""
    known = {old.key for each in found if isinstance(each, Move) for old in each.olds}
    known |= {each.key for each in found if isinstance(each, RejectedRecord)}
    for old in partition.olds:
        if old.key not in known and old.key.sk != keys.VERSION:
            yield RejectedRecord(old.key, "it is not a record of any known layout")


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


def _of_entity(partition: Partition) -> Iterator[Outcome]:
    ns, entity_id, now_ms = partition.namespace_id, partition.place.whose, partition.now_ms
    meta = partition.find(keys.META)
    if meta is not None:
        yield from attempt([meta], entities.convert, ns, entity_id, meta, now_ms)
    yield from _entity_limits(partition)
    yield from _buckets(partition, meta)
    for parts, old in partition.under(keys.USAGE_PREFIX):
        if len(parts) == 2:
            yield from attempt([old], history.convert_snapshot, ns, entity_id, parts[0], old, now_ms)


def _entity_limits(partition: Partition) -> Iterator[Outcome]:
    wholes: dict[str, Old] = {}
    if (default := partition.find(keys.CONFIG)) is not None:
        wholes[DEFAULT_RESOURCE] = default
    wholes |= {"#".join(parts): old for parts, old in partition.under(f"{keys.CONFIG}#")}
    grouped = partition.by_resource(LIMIT)
    for resource in sorted(wholes.keys() | grouped.keys()):
        whole, parts = wholes.get(resource), grouped.get(resource, {})
        yield from _config(
            partition, whole, parts, configs.Scope.entity, partition.namespace_id, partition.place.whose, resource
        )


def _config(
    partition: Partition,
    whole: Old | None,
    parts: dict[str, Old],
    scope: Callable[P, configs.Scope],
    *args: P.args,
    **options: P.kwargs,
) -> Iterator[Outcome]:
    def convert() -> Move | None:
        return configs.convert(scope(*args, **options), whole, parts, partition.now_ms)

    olds = [*parts.values(), *([] if whole is None else [whole])]
    if olds:
        yield from attempt(olds, convert)


def _buckets(partition: Partition, meta: Old | None) -> Iterator[Outcome]:
    who = {} if meta is None else meta.fields
    owner = Owner(
        partition.namespace_id, partition.place.whose, "", bool(who.get("cascade")), who.get("parent_id") or None
    )
    now_ms = partition.now_ms
    for resource, parts in partition.by_resource(BUCKET).items():
        yield from attempt([*parts.values()], _of_limits, owner._replace(resource=resource), parts, now_ms)
    for names, old in partition.under(BUCKET):
        if len(names) == 1:
            yield from attempt([old], _of_composite, owner._replace(resource=names[0]), old, now_ms)


def _of_limits(owner: Owner, parts: dict[str, Old], now_ms: int) -> Move | None:
    held = [per_limit.read_holding(name, old) for name, old in parts.items()]
    return _bucket(owner, [*parts.values()], held, per_limit.LAYOUT, now_ms)


def _of_composite(owner: Owner, old: Old, now_ms: int) -> Move | None:
    return _bucket(owner, [old], composite.read_holdings(old), composite.LAYOUT, now_ms)


def _bucket(owner: Owner, olds: list[Old], held: list[Holding], layout: str, now_ms: int) -> Move | None:
    image = encode_bucket(owner, held, layout)
    return plan_move("bucket", olds, keys.bucket(owner.namespace_id, owner.entity_id, owner.resource), image, now_ms)


def _of_resource(partition: Partition) -> Iterator[Outcome]:
    parts = {parts[-1]: old for parts, old in partition.under(LIMIT)}
    whole = partition.find(keys.CONFIG)
    yield from _config(partition, whole, parts, configs.Scope.resource, partition.namespace_id, partition.place.whose)


def _of_system(partition: Partition) -> Iterator[Outcome]:
    ns, now_ms = partition.namespace_id, partition.now_ms
    parts = {parts[0]: old for parts, old in partition.under(LIMIT) if len(parts) == 1}
    grouped = partition.by_resource(LIMIT)
    parts |= grouped.pop(DEFAULT_RESOURCE, {})
    yield from _config(partition, partition.find(keys.CONFIG), parts, configs.Scope.system, ns)
    for resource, items in grouped.items():
        yield from _config(partition, None, items, configs.Scope.resource, ns, resource)
    namespaced = partition.place.namespace_id is not None
    for sk in (keys.RESOURCES, keys.ENTITY_CONFIG_RESOURCES):
        listed = partition.find(sk)
        if listed is not None:
            yield from attempt([listed], registry.convert_resources if namespaced else _drop_list, ns, listed, now_ms)
    stamp = partition.find(keys.VERSION)
    if stamp is not None and namespaced:
        yield from attempt([stamp], registry.convert_schema, stamp, now_ms)


def _drop_list(ns: str, old: Old, now_ms: int) -> Move:
    """Return the move that drops a list of resources; the moved configs recreate it."""
    return plan_drop("registry", old, now_ms)


def _of_audit(partition: Partition) -> Iterator[Outcome]:
    ns, subject, now_ms = partition.namespace_id, partition.place.whose, partition.now_ms
    for _, old in partition.under(keys.AUDIT_PREFIX):
        yield from attempt([old], history.convert_event, ns, subject, old, now_ms)


def _of_registry(partition: Partition) -> Iterator[Outcome]:
    for prefix in (keys.NAMESPACE_PREFIX, keys.NSID_PREFIX):
        for _, old in partition.under(prefix):
            yield from attempt([old], registry.convert_namespace, old, partition.now_ms)


def _of_bucket(partition: Partition) -> Iterator[Outcome]:
    """Yield nothing: shards are in several partitions, and the runner merges them by `sharded.merge_shards`."""
    return iter(())


_READERS: dict[str, Callable[[Partition], Iterator[Outcome]]] = {
    "ENTITY": _of_entity,
    "RESOURCE": _of_resource,
    "SYSTEM": _of_system,
    "AUDIT": _of_audit,
    "BUCKET": _of_bucket,
}
