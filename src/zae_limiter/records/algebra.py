"""Guarded writes: everything a store is ever asked to do, as frozen values.

A store holds *images* (flat attribute maps) under *keys*. `Write` says what must hold for an image and
what becomes of it; a commit of several writes takes effect as a whole or not at all. A lost race comes
back with the current images, so that the next try needs no read.

An image is never changed in place: whoever is handed one may keep it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from ..core.change import MISSING_OR_AT_MOST as MISSING_OR_AT_MOST
from ..core.errors import CorruptRecordError

Image: TypeAlias = dict[str, Any]
"""The attributes of one record. Treat as read-only."""
TTL = "ttl"
"""The attribute that holds the expiry, in whole seconds since the epoch."""
NEVER = 0
"""As ``expires_at_ms``: take the expiry away."""
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Key(NamedTuple):
    """Where a record lives: partition and sort key."""

    pk: str
    sk: str


class Guard(NamedTuple):
    """A condition on one attribute of the current image.

    ``op`` is one of ``= < <= > >=``, ``between`` (value: a pair, both ends included), ``absent`` (the record
    does not exist; attr and value are ignored) and ``present`` (it does). A comparison with an attribute
    that is missing does not hold, but for `MISSING_OR_AT_MOST`: that also holds where the record lacks the attribute.
    """

    attr: str
    op: str
    value: Any = None


Guards: TypeAlias = tuple[tuple[str, str, Any], ...]
"""Conditions that must all hold. A plain ``(attr, op, value)`` is as good as a `Guard`."""

ABSENT = Guard("", "absent")
PRESENT = Guard("", "present")


class Write(NamedTuple):
    """One guarded change of one record.

    ``put`` sets attributes, ``add`` adds to numbers (a missing one counts as 0), ``remove`` drops attributes,
    in this order. ``expires_at_ms`` puts the expiry off to that instant, but never brings it nearer: whoever writes
    cannot know why it is so far. `NEVER` takes it away, None leaves it. ``delete`` removes
    the record. With no change at all it only checks its guards. A record that does not exist is created,
    unless a guard forbids it.

    ``seen`` is the image that the write was planned from, as the store has shown it. It changes nothing about what
    the write does; a store may use it to do that with less work.
    """

    key: Key
    guards: Guards = ()
    put: Mapping[str, Any] = _NOTHING
    add: Mapping[str, int] = _NOTHING
    remove: tuple[str, ...] = ()
    expires_at_ms: int | None = None
    delete: bool = False
    seen: Image | None = None

    @property
    def blind(self) -> bool:
        """Return whether it deletes whatever is there: nobody needs to look."""
        return self.delete and not self.guards

    @property
    def is_check(self) -> bool:
        """Whether it only checks."""
        return not (self.put or self.add or self.remove or self.delete or self.expires_at_ms is not None)


class Committed(NamedTuple):
    """All writes took effect; the new images in the order of the writes (None for a deleted one).

    ``undisturbed``: the store knows that every image is the one that its write was planned from (`Write.seen`) with the
    changes of that write, and no others.
    """

    images: tuple[Image | None, ...]
    undisturbed: bool = False


class Conflict(NamedTuple):
    """Nothing took effect; the current images as far as the store knows them (None: no such record)."""

    images: dict[Key, Image | None]


class Query(NamedTuple):
    """A range of records in key order.

    ``gsi`` None reads the table by its keys; ``"GSI1"`` ... ``"GSI4"`` by the attributes ``GSI1PK``, ``GSI1SK``.
    ``after`` is the cursor of the page before. ``start`` and ``end`` bound the sort key, both included. A store whose
    clients can be confined to a namespace leaves out records whose keys do not begin with ``namespace``: such a client
    can still write any index attribute, and so put a record of its own into the range of others.
    """

    pk: str
    prefix: str = ""
    gsi: str | None = None
    limit: int = 100
    after: str | None = None
    descending: bool = False
    start: str | None = None
    end: str | None = None
    namespace: str = ""


class Page(NamedTuple):
    """Records with their keys, and the cursor of the next page (None at the end)."""

    items: tuple[tuple[Key, Image], ...]
    cursor: str | None


_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    MISSING_OR_AT_MOST: operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def holds(image: Image | None, guards: Guards) -> bool:
    """Return whether every guard holds for the current image; one that cannot be compared does not."""
    if image is None:
        return all(op == "absent" for _, op, _ in guards)
    try:
        for attr, op, value in guards:
            if op == "present" or (op == MISSING_OR_AT_MOST and image.get(attr) is None):
                continue
            if op == "absent" or (current := image.get(attr)) is None:
                return False
            if not (value[0] <= current <= value[1] if op == "between" else _COMPARE[op](current, value)):
                return False
    except TypeError:
        return False
    return True


def apply_write(image: Image | None, write: Write) -> Image | None:
    """Return the image after ``write``, whose guards are taken to hold; None if it deletes."""
    _, _, put, add, remove, expires_at_ms, delete, _ = write
    if delete:
        return None
    new = {} if image is None else image.copy()
    if put:
        new.update(put)
    for attr, amount in add.items():
        try:
            new[attr] = new.get(attr, 0) + amount
        except TypeError:
            raise CorruptRecordError(f"{attr} of {write.key} is {new[attr]!r}, which is not a number") from None
    for attr in remove:
        new.pop(attr, None)
    if expires_at_ms:
        new[TTL] = max(new.get(TTL, 0), expiry_seconds(expires_at_ms))
    elif expires_at_ms == NEVER:
        new.pop(TTL, None)
    return new


def compose(first: Write, second: Write) -> Write:
    """Return one write that does what two do, one after the other, to the same record.

    ``second`` was planned from the image that ``first`` leaves. Neither of them deletes the record. An expiry that the
    first takes away and the second sets again may stay farther off than that.
    """
    guards = [*first.guards]
    for attr, op, value in second.guards:
        if attr in first.put:  # it is what the second was planned from, whatever it was before
            continue
        shift = first.add.get(attr, 0)
        guards.append((attr, op, _shift(value, -shift) if shift else value))
    put, add = {**first.put, **second.put}, {**first.add}
    for attr in second.put:
        add.pop(attr, None)
    for attr, amount in second.add.items():
        if attr in put:
            put[attr] += amount
        else:
            add[attr] = add.get(attr, 0) + amount
    remove = (*(attr for attr in first.remove if attr not in second.put), *second.remove)
    put = {attr: value for attr, value in put.items() if attr not in remove}
    expires = first.expires_at_ms if second.expires_at_ms is None else second.expires_at_ms
    if first.expires_at_ms and second.expires_at_ms:
        expires = max(first.expires_at_ms, second.expires_at_ms)
    return Write(first.key, tuple(dict.fromkeys(guards)), put, add, remove, expires, seen=first.seen)


def _shift(value: Any, amount: int) -> Any:
    """Return what a guard compares with, moved by an amount."""
    return (value[0] + amount, value[1] + amount) if isinstance(value, tuple) else value + amount


def expiry_seconds(expires_at_ms: int) -> int:
    """Return an expiry as it is stored: whole seconds, rounded up."""
    return -(-expires_at_ms // 1000)


def drop_none(attributes: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes without those that are None: what a record does not say, it does not have."""
    return {attr: value for attr, value in attributes.items() if value is not None}


def is_live(image: Image | None, now_ms: int) -> bool:
    """Return whether the record exists and has not expired: stores may delete expired records late."""
    if image is None:
        return False
    ttl = image.get(TTL)
    return ttl is None or ttl * 1000 > now_ms
