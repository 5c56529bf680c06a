"""Old records, the moves that replace them, and the commits that carry out moves.

A move is one commit: the new record is created where there is none, and the old ones are deleted only if they are
unchanged. So no record is ever there twice or missing, wherever a run ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from ...records.algebra import ABSENT, TTL, Guard, Image, Key, Write, is_live
from ...stores.dynamodb.commits import MOST_WRITES

NESTED = "data"
"""The attribute in which the oldest records keep all their fields."""

_MOST_GUARDS = 60
_MOST_OLDS = 90
"""Old records per commit, beside the new one and what changes with it."""
_TELLING = ("rf", "version", "config_version", "tokens_milli", "last_refill_ms", "total_consumed_milli", NESTED)


class Old(NamedTuple):
    """A stored record of an old layout."""

    key: Key
    image: Image

    @property
    def fields(self) -> Image:
        """The attributes, including those that the oldest layout nests."""
        nested = self.image.get(NESTED)
        if not isinstance(nested, dict):
            return self.image
        return {**{name: value for name, value in self.image.items() if name != NESTED}, **nested}


class Move(NamedTuple):
    """The replacement of some old records by one. ``writes`` begin with the new record, if there is one."""

    kind: str
    olds: tuple[Old, ...]
    writes: tuple[Write, ...]
    parent: Key | None = None
    """The entity that has one child more by it."""

    @property
    def target(self) -> Key | None:
        """The key of the new record, or None if there is none or it stays in place."""
        first = self.writes[0]
        return first.key if ABSENT in first.guards else None

    @property
    def resource(self) -> str | None:
        """The resource of a bucket from before namespaces, or None of anything else."""
        is_old = self.kind == "bucket" and "/" not in self.olds[0].key.pk.partition("#")[0]
        return str(self.writes[0].put["resource"]) if is_old else None


class RejectedRecord(NamedTuple):
    """A record that is left where it is because it is invalid."""

    key: Key
    reason: str


Outcome: TypeAlias = Move | RejectedRecord


def plan_move(
    kind: str, olds: Sequence[Old], key: Key, image: Mapping[str, Any], now_ms: int, beside: Iterable[Write] = ()
) -> Move | None:
    """Return the move of ``olds`` to one record at ``key``, or None if there is nothing to do.

    A new record expires with the last of them, and never if one of them never does.
    """
    if len(olds) > _MOST_OLDS:
        raise ValueError(f"{len(olds)} records are more than one commit can move")
    here = next((old for old in olds if old.key == key), None)
    gone = tuple(delete_if_unchanged(old, now_ms) for old in olds if old is not here)
    if here is None:
        expiries = [ttl for ttl in (old.image.get(TTL) for old in olds) if isinstance(ttl, int)]
        latest_ms = max(expiries) * 1000 if expiries and len(expiries) == len(olds) else None
        first = Write(key, (ABSENT,), dict(image), expires_at_ms=latest_ms)
        return Move(kind, tuple(olds), (first, *gone, *beside))
    put = {name: value for name, value in image.items() if name not in here.image or here.image[name] != value}
    remove = tuple(name for name in here.image if name not in image and name != TTL)
    if not (put or remove or gone) or not is_live(here.image, now_ms):
        return None
    return Move(kind, tuple(olds), (Write(key, unchanged_guards(here.image), put, remove=remove), *gone, *beside))


def delete_if_unchanged(old: Old, now_ms: int) -> Write:
    """Return the write that deletes a record if it is unchanged, or unconditionally if it has expired."""
    guards = unchanged_guards(old.image) if is_live(old.image, now_ms) else ()
    return Write(old.key, guards, delete=True)


def unchanged_guards(image: Image) -> tuple[Guard, ...]:
    """Return guards that hold while the record is unchanged, starting with what every write changes."""
    names = [name for name in image if _is_comparable(image[name])]
    names.sort(key=lambda name: (name not in _TELLING and not name.endswith(("_tk", "_tc")), name))
    return tuple(Guard(name, "=", image[name]) for name in names[:_MOST_GUARDS]) or (Guard("", "present"),)


def _is_comparable(value: object) -> bool:
    """Return whether a value reads back exactly: a list may have been a set, a fraction may be rounded."""
    if isinstance(value, dict):
        return all(part is None or _is_comparable(part) for part in value.values())
    return isinstance(value, (int, str))


def split_batches(moves: Iterable[Move]) -> Iterator[list[Move]]:
    """Yield groups of moves that fit into one commit: no record is written twice except to add to a counter."""
    batch: list[Move] = []
    for move in moves:
        if batch and not _fits_one_commit([*batch, move]):
            yield batch
            batch = []
        batch.append(move)
    if batch:
        yield batch


def _fits_one_commit(moves: Sequence[Move]) -> bool:
    fixed: list[Key] = []
    counted: set[Key] = set()
    for write in (write for move in moves for write in move.writes):
        if write.add and not write.delete and not write.remove and write.expires_at_ms is None:
            counted.add(write.key)
        else:
            fixed.append(write.key)
    once = len(fixed) == len(set(fixed)) and counted.isdisjoint(fixed)
    return once and len(fixed) + len(counted) <= MOST_WRITES


def merge_writes(moves: Sequence[Move]) -> list[Write]:
    """Return the writes of some moves; additions to the same record become one write."""
    found: dict[Key, Write] = {}
    for write in (each for move in moves for each in move.writes):
        before = found.get(write.key)
        if before is not None:
            sums = {name: before.add.get(name, 0) + write.add.get(name, 0) for name in {**before.add, **write.add}}
            write = before._replace(add=sums)
        found[write.key] = write
    return list(found.values())


def whole_number(fields: Mapping[str, Any], name: str, least: int | None = None, default: int | None = None) -> int:
    """Return a field that must be a whole number. Raise `ValueError` if it is not."""
    value = fields.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > 2**60:
        raise ValueError(f"{name} is {value!r}, not a whole number")
    if least is not None and value < least:
        raise ValueError(f"{name} is {value}, less than {least}")
    return value
