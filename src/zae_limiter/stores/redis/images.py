"""Writes and records as the scripts take and keep them, which is texts of lines; and commits as compare-and-swap.

A record is a line break, then ``attr=value`` and a line break for each attribute. Values are JSON, in which a line
break cannot occur; whole numbers are plain digits.

An image of this store knows the text it is stored as. A swap sends a digest of the text that was seen, and the text
from the first number that changes on; the server need not look at guards.

A bucket may have thousands of lines for its slots. These are its *rows* and stand behind all others, its *head*. A swap
digests the head and the rows that its write names, and sends the rows that it puts, which go to the end.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Collection, Iterable
from functools import lru_cache
from hashlib import sha1
from operator import itemgetter
from typing import Any, NamedTuple

from ...core.errors import CorruptRecordError
from ...records.algebra import NEVER, TTL, Image, Key, Write, apply_write, expiry_seconds, holds
from ...records.slot_table import ROWS, SLOTS, UNTIL_PREFIX
from .resp import pack_arguments

_CHECK, _CHANGE, _DELETE = "0", "1", "2"
_KEEP = "-"
_LEAST, _MOST = -(2**53), 2**53
"""Whole numbers that a script adds exactly."""
_WHOLE = re.compile(r"-?\d+", re.ASCII)
FULL_COMMITS = 16
"""How many commits in a row without another writer use the full script before the next swap."""
MOST_ROWS = 64
"""Maximum number of rows that a swap names; one that changes more sends all rows."""
_SLOT = itemgetter(slice(len(UNTIL_PREFIX), None))
_ROW_BYTES = tuple([prefix.encode() for prefix in ROWS])

_canonical = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode


def encode(value: Any) -> str:
    """Return the text of an attribute's value: equal values have equal texts."""
    return str(value) if type(value) is int else _canonical(value)


def tokens_of(write: Write, index: int) -> list[str]:
    """Return the tokens of a write for ``commit.lua``.

    ``index`` is the position of the record's index set among the keys, or 0; it is negative if entries change only
    when the record begins to expire.
    """
    key, guards, put, add, remove, expires_at_ms, delete, _ = write
    tokens = [
        _DELETE if delete else _CHECK if write.is_check else _CHANGE,
        str(index),
        _KEEP if expires_at_ms is None else str(expiry_seconds(expires_at_ms)),
        *(str(len(each)) for each in (guards, put, add, remove)),
    ]
    for attr, op, value in guards:
        if op == "between":
            tokens += (attr, op, encode(value[0]), encode(value[1]))
        elif op in ("absent", "present"):
            tokens += (attr, op)
        else:
            tokens += (attr, op, encode(value))
    for attr, value in (*put.items(), *add.items()):
        tokens += (attr, encode(value))
    tokens += remove
    return [*tokens, *key] if index else tokens


def can_change_index(write: Write) -> bool:
    """Return whether a write may add or remove index entries: it may create or delete the record, or moves it."""
    if write.delete or any(attr.startswith("GSI") for attrs in (write.put, write.remove) for attr in attrs):
        return True
    return all(op == "absent" for _, op, _ in write.guards) and not write.is_check


class _Form(NamedTuple):
    """The head of a record in which the whole numbers of ``attrs`` are left open, and where it is stored.

    ``naming`` makes the ``name`` of its Redis key, see `Layout`; that and ``kept``, which is ``start``, are packed.
    ``numbers`` returns the numbers in the order of the text, of which ``start`` is the place of the first; ``tail`` is
    the head from there on, with ``%d`` for each.
    """

    key: Key
    naming: str
    name: bytes
    attrs: frozenset[str]
    numbers: Callable[[Image], Any]
    start: int
    kept: bytes
    tail: bytes


class StoredImage(dict[str, Any]):
    """An image with the text it is stored as, its ``head`` and its ``rows``.

    ``mixed`` is that text if rows stand between other lines, else None. ``full_commits`` is how many more commits must
    find that nobody else has written in between before the record is swapped again. ``form`` is that of the swap
    before: the next one mostly changes no other numbers.
    """

    __slots__ = ("form", "full_commits", "head", "mixed", "rows")

    full_commits: int
    form: _Form | None
    head: bytes
    rows: bytes
    mixed: bytes | None

    @property
    def text(self) -> bytes:
        """The text that the server has."""
        return self.head + self.rows if self.mixed is None else self.mixed


def plan_swap(write: Write, naming: str, *, expire: bool) -> tuple[bytes, bytes, StoredImage] | None:
    """Return the key and the three arguments of ``swap.lua`` that amount to ``write``, packed, and the image after it.

    ``naming % key`` is the name of the record. A new expiry is among the arguments if the server is to ``expire``
    records. Return None if the full script is needed: unless the write was planned from an image of this store, its
    guards hold for that, and it changes only whole numbers and rows.
    """
    key, guards, put, add, remove, expires_at_ms, delete, seen = write
    if type(seen) is not StoredImage or seen.full_commits or delete or not holds(seen, guards):
        return None
    after, changed, rows = StoredImage(seen), [*put, *add], None
    after.update(put)
    if SLOTS in seen:
        rows = _name_rows(write)
        changed = [attr for attr in changed if attr not in rows]
    if (remove and not _remove_rows(after, remove, rows)) or (expires_at_ms == NEVER and TTL in seen):
        return None
    if expires_at_ms:
        after[TTL] = max(after.get(TTL, 0), expiry_seconds(expires_at_ms))
        changed.append(TTL)
    try:
        for attr, amount in add.items():
            after[attr] += amount
        for attr in changed:
            if type(value := after[attr]) is not int or not _LEAST <= value <= _MOST:
                return None  # a script can add whole numbers only
    except (KeyError, TypeError):
        return None
    form = seen.form
    if form is None or form.key != key or form.naming is not naming or not form.attrs.issuperset(changed):
        form = _find_form(key, naming, seen, {*changed, *(form.attrs if form else ())})
        if form is None:
            return None
    text = form.tail % form.numbers(after)
    after.head, after.rows, after.mixed = seen.head[: form.start] + text, b"", None
    after.form, after.full_commits = form, 0
    expires = after[TTL] if expire and after.get(TTL) != seen.get(TTL) else _KEEP
    digested, numbers = seen.head, form.kept
    if rows is not None or expires != _KEEP:
        parts = _swap_rows(seen, after, rows, (form.start, text, expires))
        if parts is None:
            return None
        digested, numbers, text = parts
    digest = sha1(digested, usedforsecurity=False).hexdigest().encode()
    return form.name, b"$40\r\n%b\r\n%b$%d\r\n%b\r\n" % (digest, numbers, len(text), text), after


def _find_form(key: Key, naming: str, seen: StoredImage, attrs: set[str]) -> _Form | None:
    places = []
    for attr in attrs:
        old = seen.get(attr)
        name, digits = f"\n{attr}=".encode(), str(old).encode()
        place = seen.head.find(b"%b%b\n" % (name, digits))
        if type(old) is not int or not _LEAST <= old <= _MOST or place < 0:
            return None  # it is not there, or written with other digits
        places.append((place + len(name), attr, len(digits)))
    if not places:
        return None
    places.sort()
    start = end = places[0][0]
    tail = b""
    for place, _, length in places:
        tail += seen.head[end:place].replace(b"%", b"%%") + b"%d"
        end = place + length
    tail += seen.head[end:].replace(b"%", b"%%")
    open_attrs, numbers = _open_numbers(tuple([attr for _, attr, _ in places]))
    name, kept = pack_arguments(naming % key), pack_arguments(start)
    return _Form(key, naming, name, open_attrs, numbers, start, kept, tail)


@lru_cache(maxsize=256)
def _open_numbers(attrs: tuple[str, ...]) -> tuple[frozenset[str], Callable[[Image], Any]]:
    """Return some attributes as a set, and what gets their values; buckets under the same limits share them."""
    return frozenset(attrs), itemgetter(*attrs)


def _name_rows(write: Write) -> dict[str, None]:
    """Return the rows that a write changes, or guards as they were seen, a slot's instant before its token."""
    guarded = [attr for attr, op, _ in write.guards if op == "="]
    return dict.fromkeys([attr for attr in (*write.put, *write.remove, *guarded) if attr.startswith(ROWS)])


def _remove_rows(image: Image, attrs: Iterable[str], rows: Collection[str] | None) -> bool:
    for attr in attrs:
        if rows is None or attr not in rows:
            return False
        image.pop(attr, None)
    return True


def _swap_rows(
    seen: StoredImage, after: StoredImage, named: Collection[str] | None, head: tuple[int, bytes, Any]
) -> tuple[bytes, bytes, bytes] | None:
    """Return what is digested of a record, the packed numbers and the text of its swap.

    ``named`` are the rows that the write names, None if the record has no slots; ``head`` says how many bytes are kept,
    what follows, and the expiry. Note in ``after`` how it is stored. That a row is missing follows from the head: slots
    are counted there when they are taken. None if a row is not written as this client writes it.
    """
    start, text, expires = head
    if named is None:
        return seen.head, pack_arguments(f"{start} {expires}"), text
    if seen.mixed is not None or len(named) > MOST_ROWS:
        after.rows = b"".join([_spell(after, attr) for attr in after if attr.startswith(ROWS)])
        if seen.mixed is None:
            return seen.text, pack_arguments(f"{start} {expires}"), text + after.rows
        return seen.mixed, pack_arguments(f"0 {expires}"), after.text
    ordered = sorted(named, key=_SLOT)
    spans = _find_rows(seen, [attr for attr in ordered if attr in seen])
    if spans is None:
        return None
    view, size, end = memoryview(seen.rows), len(seen.head), 0
    named_rows, stay, numbers = [], [], f"{start} {expires} {size + len(view)} {size} {len(text)}"
    for first, stop in spans:
        named_rows.append(view[first:stop])
        stay.append(view[end:first])
        numbers += f" {size + first + 1} {size + stop}"
        end = stop
    new = b"".join([_spell(after, attr) for attr in ordered if attr in after])
    after.rows = b"".join([*stay, view[end:], new])
    return b"".join([seen.head, *named_rows]), pack_arguments(numbers), text + new


def _spell(image: Image, attr: str) -> bytes:
    return f"{attr}={encode(image[attr])}\n".encode()


def _find_rows(seen: StoredImage, attrs: Iterable[str]) -> list[tuple[int, int]] | None:
    """Return from where to where some rows stand among all; None if one is written in another way."""
    spans: list[tuple[int, int]] = []
    stop = 0
    for attr in attrs:
        line, start = _spell(seen, attr), stop
        if not (stop and seen.rows.startswith(line, stop)):
            start = seen.rows.rfind(b"\n" + line) + 1
            if not start and not seen.rows.startswith(line):
                return None
        stop = start + len(line)
        if spans and spans[-1][1] == start:
            start, _ = spans.pop()
        spans.append((start, stop))
    return sorted(spans)


def decode_image(write: Write, text: str, *, committed: bool) -> StoredImage | None:
    """Return the image of the record after a commit of ``write``, or None if ``text`` is empty.

    The next commits are full unless it is what ``write`` was planned from, changed by it if it was committed.
    """
    if not text:
        return None
    seen, full_commits = write.seen, 0
    if type(seen) is StoredImage:
        image, changed = _decode_changes(write.key, text, seen)
        same = _is_result(write, seen, image, changed) if committed else not changed
        full_commits = max(0, seen.full_commits - committed) if same else FULL_COMMITS
    else:
        image = StoredImage(_decode(write.key, _lines(text)))
    image.form, image.full_commits = None, full_commits
    image.head, image.rows, image.mixed = _divide(text.encode()) if SLOTS in image else (text.encode(), b"", None)
    return image


def _is_result(write: Write, seen: Image, image: Image, changed: Iterable[str]) -> bool:
    """Return whether an image is what a write makes of what was seen, given the attributes that have changed."""
    try:
        expected = apply_write(seen, write)
    except CorruptRecordError:
        return False
    attrs = {TTL, *changed, *write.put, *write.add, *write.remove}
    return expected is not None and all(image.get(attr) == expected.get(attr) for attr in attrs)


def _divide(text: bytes) -> tuple[bytes, bytes, bytes | None]:
    """Return the head and the rows of a record, and the text itself if these are mixed in it."""
    starts = [place + 1 for prefix in _ROW_BYTES if (place := text.find(b"\n" + prefix)) >= 0]
    start = min(starts, default=len(text))
    head, rows = text[:start], text[start:]
    if not rows or sum(rows.count(b"\n" + prefix) for prefix in _ROW_BYTES) == rows.count(b"\n") - 1:
        return head, rows, None
    lines = [line + b"\n" for line in text[1:-1].split(b"\n")]
    head, rows = (b"".join([line for line in lines if line.startswith(_ROW_BYTES) is row]) for row in (False, True))
    return b"\n" + head, rows, text


def _decode(key: Key, lines: Iterable[str]) -> Image:
    """Return the attributes in some lines of a record. Raise `CorruptRecordError` if one has no value."""
    image: Image = {}
    for attr, _, value in [line.partition("=") for line in lines]:
        attr = sys.intern(attr)  # all buckets have the same few names
        try:
            if value[:1] == '"' and "\\" not in value:
                image[attr] = value[1:-1]
            else:
                image[attr] = int(value) if _WHOLE.fullmatch(value) else json.loads(value)
        except (ValueError, RecursionError):
            raise CorruptRecordError(
                f"The record {key.pk} {key.sk} is not a zae-limiter record: it holds {attr[:40]}={value[:40]}. "
                "Delete it; reset_bucket() deletes a bucket."
            ) from None
    return image


def _lines(text: str) -> list[str]:
    return text[1:-1].split("\n") if len(text) > 1 else []


def _decode_changes(key: Key, text: str, seen: StoredImage) -> tuple[StoredImage, set[str]]:
    """Decode a record of which ``seen`` is an earlier state; return its image and the attributes that have changed."""
    lines, older = _lines(text), _lines(seen.text.decode())
    new, old, image = {*lines}, {*older}, StoredImage(seen)
    put = _decode(key, new - old)
    gone = {line.partition("=")[0] for line in old - new}.difference(put)
    for attr in gone:
        image.pop(attr, None)
    image.update(put)
    if len(image) != len(lines):  # an attribute stands there twice
        image = StoredImage(_decode(key, lines))
    return image, gone.union(put)
