"""Plan the moves that bring one partition of an old table to the present layout.

Records of the present layout need no move; invalid ones are rejected and stay.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVarTuple

from ...core.errors import ZAELimiterError
from ...core.names import DEFAULT_RESOURCE, RESERVED_NAMESPACE
from ...records import keys
from . import buckets, conversions
from .conversions import Scope
from .moves import Move, Old, Outcome, RejectedRecord

Ts = TypeVarTuple("Ts")

_BUCKET = "#BUCKET#"
LIMIT = "#LIMIT#"
"""The sort keys of limits that are stored one by one begin with it."""
_PROVISIONER = "#PROVISIONER"
PRESENT = (
    keys.ALERT_PREFIX,
    *(keys.META, keys.CONFIG, keys.STATE, keys.VERSION, keys.RESOURCES, keys.ENTITY_CONFIG_RESOURCES),
    *(keys.AUDIT_PREFIX, keys.USAGE_PREFIX, keys.ONCE_PREFIX, keys.NAMESPACE_PREFIX, keys.NSID_PREFIX),
)
"""The sort keys of the present layout begin so."""
_KEY = re.compile(r"(?:(?P<ns>[^/#]+)/)?(?P<kind>ENTITY|RESOURCE|SYSTEM|AUDIT|ALERT|BUCKET)#(?P<whose>.*)", re.DOTALL)


def attempt(olds: Sequence[Old], work: Callable[[*Ts], Move | None], *args: *Ts) -> Iterator[Outcome]:
    """Yield the move that ``work`` returns, or rejections of ``olds`` if it fails."""
    try:
        move = work(*args)
    except (ZAELimiterError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        yield from (RejectedRecord(old.key, reason) for old in olds)
        return
    if move is not None:
        yield move


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

    def plan(self) -> list[Outcome]:
        """Return the moves and rejections, the entity first: the others belong to it.

        Every record of an old layout is moved or rejected, except the version record, which is moved last.
        """
        is_registry = self.place.namespace_id == RESERVED_NAMESPACE
        found = list(_READERS["registry" if is_registry else self.place.kind](self))
        present = (keys.VERSION,) if self.place.namespace_id is None else PRESENT
        known = {old.key for each in found if isinstance(each, Move) for old in each.olds}
        known |= {each.key for each in found if isinstance(each, RejectedRecord)}
        unknown = [old.key for old in self.olds if old.key not in known and not old.key.sk.startswith(present)]
        return found + [RejectedRecord(key, "it is not a record of any known layout") for key in unknown]

    def _find(self, sk: str) -> Old | None:
        """Return the record with this sort key, or None."""
        return next((old for old in self.olds if old.key.sk == sk), None)

    def _under(self, prefix: str) -> Iterator[tuple[list[str], Old]]:
        """Yield the records whose sort key starts with ``prefix``, with the parts that follow it."""
        for old in self.olds:
            if old.key.sk.startswith(prefix):
                yield old.key.sk.removeprefix(prefix).split("#"), old

    def _by_resource(self, prefix: str) -> dict[str, dict[str, Old]]:
        """Return items per limit by resource and limit name; the limit is the last part of the key."""
        found: dict[str, dict[str, Old]] = defaultdict(dict)
        for parts, old in self._under(prefix):
            if len(parts) > 1:
                found["#".join(parts[:-1])][parts[-1]] = old
        return found

    def _read_entity(self) -> Iterator[Outcome]:
        ns, entity_id, now_ms = self.namespace_id, self.place.whose, self.now_ms
        meta = self._find(keys.META)
        if meta is not None:
            yield from attempt([meta], conversions.convert_entity, ns, entity_id, meta, now_ms)
        yield from self._read_entity_limits()
        owner = {} if meta is None else meta.fields
        for resource, parts in self._by_resource(_BUCKET).items():
            level = buckets.level_of(ns, entity_id, resource, owner)
            yield from attempt([*parts.values()], buckets.convert_per_limit, level, parts, now_ms)
        for names, old in self._under(_BUCKET):
            if len(names) == 1:
                level = buckets.level_of(ns, entity_id, names[0], owner)
                yield from attempt([old], buckets.convert_composite, level, old, now_ms)
        for names, old in self._under(keys.USAGE_PREFIX):
            if len(names) == 2:
                yield from attempt([old], conversions.convert_snapshot, ns, entity_id, names[0], old, now_ms)

    def _read_entity_limits(self) -> Iterator[Outcome]:
        wholes = {"#".join(parts): old for parts, old in self._under(f"{keys.CONFIG}#")}
        default = self._find(keys.CONFIG)
        if default is not None:
            wholes.setdefault(DEFAULT_RESOURCE, default)
        grouped = self._by_resource(LIMIT)
        for resource in sorted(wholes.keys() | grouped.keys()):
            scope = Scope(self.namespace_id, resource, self.place.whose)
            yield from self._read_config(scope, wholes.get(resource), grouped.get(resource, {}))

    def _read_config(self, scope: Scope, whole: Old | None, parts: dict[str, Old]) -> Iterator[Outcome]:
        olds = [*parts.values(), *([] if whole is None else [whole])]
        if olds:
            yield from attempt(olds, conversions.convert_config, scope, whole, parts, self.now_ms)

    def _read_resource(self) -> Iterator[Outcome]:
        parts = {parts[-1]: old for parts, old in self._under(LIMIT)}
        return self._read_config(Scope(self.namespace_id, self.place.whose), self._find(keys.CONFIG), parts)

    def _read_system(self) -> Iterator[Outcome]:
        ns, stored_ns = self.namespace_id, self.place.namespace_id
        parts = {parts[0]: old for parts, old in self._under(LIMIT) if len(parts) == 1}
        grouped = self._by_resource(LIMIT)
        parts |= grouped.pop(DEFAULT_RESOURCE, {})
        yield from self._read_config(Scope(ns), self._find(keys.CONFIG), parts)
        for resource, items in grouped.items():
            yield from self._read_config(Scope(ns, resource), None, items)
        yield from self._read_each(conversions.convert_provisioner, _PROVISIONER)
        for old in filter(None, map(self._find, (keys.RESOURCES, keys.ENTITY_CONFIG_RESOURCES))):
            yield from attempt([old], conversions.convert_resources, stored_ns, old, self.now_ms)
        stamp = self._find(keys.VERSION)
        if stamp is not None and stored_ns is not None:
            yield from attempt([stamp], conversions.convert_schema, stamp, self.now_ms)

    def _read_audit(self) -> Iterator[Outcome]:
        ns, subject = self.namespace_id, self.place.whose
        for _, old in self._under(keys.AUDIT_PREFIX):
            yield from attempt([old], conversions.convert_event, ns, subject, old, self.now_ms)

    def _read_each(self, convert: Callable[[Old, int], Move | None], *prefixes: str) -> Iterator[Outcome]:
        for _, old in (found for prefix in prefixes for found in self._under(prefix)):
            yield from attempt([old], convert, old, self.now_ms)


_READERS: dict[str, Callable[[Partition], Iterator[Outcome]]] = {
    "ENTITY": Partition._read_entity,
    "RESOURCE": Partition._read_resource,
    "SYSTEM": Partition._read_system,
    "AUDIT": Partition._read_audit,
    "registry": lambda place: place._read_each(conversions.convert_namespace, keys.NAMESPACE_PREFIX, keys.NSID_PREFIX),
    "ALERT": lambda _: iter(()),  # older layouts have none
    # its shards are in several partitions: the runner merges them
    "BUCKET": lambda bucket: bucket._read_each(conversions.convert_operation, conversions.OPERATION_PREFIX),
}
