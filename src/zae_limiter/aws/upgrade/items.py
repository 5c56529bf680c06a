"""Old records, and the moves that replace them.

A move is one commit: the new record appears where none was, and the old ones go only if they are still as they were
read. So nothing is ever there twice or not at all, wherever a run ends.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ...records.algebra import ABSENT, TTL, Guard, Image, Key, Write, is_live

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

NESTED = "data"
"""The attribute in which the oldest records keep all their fields."""

_PLACE = re.compile(r"(?:(?P<ns>[^/#]+)/)?(?P<kind>ENTITY|RESOURCE|SYSTEM|AUDIT|BUCKET)#(?P<whose>.*)", re.DOTALL)
_MOST_GUARDS = 60
_MOST_OLDS = 90
"""A commit holds so many old records, the new one, and what changes beside it."""
_TELLING = ("rf", "version", "config_version", "tokens_milli", "last_refill_ms", "total_consumed_milli", NESTED)


class Old(NamedTuple):
    """A record as it is found."""

    key: Key
    image: Image

    @property
    def fields(self) -> Image:
        """Its attributes, those that the oldest layout nests among them."""
        nested = self.image.get(NESTED)
        if not isinstance(nested, dict):
            return self.image
        return {**{name: value for name, value in self.image.items() if name != NESTED}, **nested}


class Place(NamedTuple):
    """The parts of a partition key; ``namespace_id`` is None where there were no namespaces."""

    namespace_id: str | None
    kind: str
    whose: str

    @classmethod
    def of(cls, pk: str) -> Place | None:
        """Take a partition key apart; None for one that no layout has."""
        found = _PLACE.fullmatch(pk)
        return None if found is None else cls(found["ns"], found["kind"], found["whose"])


class Move(NamedTuple):
    """What replaces some old records by one: ``writes`` begin with the new record, if there is one."""

    kind: str
    olds: tuple[Old, ...]
    writes: tuple[Write, ...]
    parent: Key | None = None
    """The entity that has one child more by it."""

    @property
    def target(self) -> Key | None:
        """Where the new record is; None where the old ones only go, or stay where they are."""
        first = self.writes[0]
        return first.key if ABSENT in first.guards else None


class Refused(NamedTuple):
    """A record that stays where it is, as it cannot be what it says."""

    key: Key
    reason: str


Outcome: TypeAlias = Move | Refused


def moved(
    kind: str, olds: Sequence[Old], key: Key, image: Mapping[str, Any], now_ms: int, beside: Iterable[Write] = ()
) -> Move | None:
    """Make one record of some old ones, at a new key or in place; None where nothing is to be done."""
    if len(olds) > _MOST_OLDS:
        raise ValueError(f"{len(olds)} records are more than one commit can move")
    here = next((old for old in olds if old.key == key), None)
    gone = tuple(withdrawn(old, now_ms) for old in olds if old is not here)
    if here is None:
        first = Write(key, (ABSENT,), dict(image), expires_at_ms=_expiry(olds))
        return Move(kind, tuple(olds), (first, *gone, *beside))
    put = {name: value for name, value in image.items() if name not in here.image or here.image[name] != value}
    remove = tuple(name for name in here.image if name not in image and name != TTL)
    if not (put or remove or gone) or not is_live(here.image, now_ms):
        return None
    return Move(kind, tuple(olds), (Write(key, unchanged(here.image), put, remove=remove), *gone, *beside))


def dropped(kind: str, old: Old, now_ms: int) -> Move:
    """A record that nothing replaces."""
    return Move(kind, (old,), (withdrawn(old, now_ms),))


def withdrawn(old: Old, now_ms: int) -> Write:
    """Delete a record if it is as it was read; one that has expired whatever it is, as nobody can see it."""
    guards = unchanged(old.image) if is_live(old.image, now_ms) else ()
    return Write(old.key, guards, delete=True)


def unchanged(image: Image) -> tuple[Guard, ...]:
    """The guards that hold while nobody has written the record; what changes with every write goes first."""
    names = [name for name in image if _compares(image[name])]
    names.sort(key=lambda name: (name not in _TELLING and not name.endswith(("_tk", "_tc")), name))
    return tuple(Guard(name, "=", image[name]) for name in names[:_MOST_GUARDS]) or (Guard("", "present"),)


def _compares(value: object) -> bool:
    """Whether a value goes back to the store as it came: a list may have been a set, a fraction has no exact form."""
    if isinstance(value, dict):
        return all(part is None or _compares(part) for part in value.values())
    return isinstance(value, (int, str))


def _expiry(olds: Sequence[Old]) -> int | None:
    """The latest expiry, in ms; None where one of them never expires."""
    seconds = [old.image.get(TTL) for old in olds]
    known = [value for value in seconds if isinstance(value, int)]
    return max(known) * 1000 if known and len(known) == len(seconds) else None


def whole_number(fields: Mapping[str, Any], name: str, least: int | None = None, default: int | None = None) -> int:
    """A field that must be a whole number; ValueError says why it is not."""
    value = fields.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > 2**60:
        raise ValueError(f"{name} is {value!r}, not a whole number")
    if least is not None and value < least:
        raise ValueError(f"{name} is {value}, less than {least}")
    return value
