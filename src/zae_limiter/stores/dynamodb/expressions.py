"""Translate guarded writes to DynamoDB's conditions and updates.

A write takes one of five forms, by what is known of its record. What a form cannot do in one call (an expired record
must start from nothing, an expiry must never come nearer) its condition prevents; the image in DynamoDB's answer then
tells which form fits. The text of an expression depends only on the shape of a write, so it is made once per shape.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from ...records.algebra import (
    ABSENT,
    MISSING_OR_AT_MOST,
    NEVER,
    TTL,
    Image,
    Write,
    apply_write,
    expiry_seconds,
    holds,
)
from .values import PK, encode_all, encode_item, encode_key


class Form(enum.Enum):
    """The form in which a write is sent to DynamoDB."""

    CHANGE = enum.auto()
    """Update a live record, or one that does not exist; the expiry may be put off."""
    KEEP = enum.auto()
    """Update a live record whose expiry is already later than the write would have it."""
    CREATE = enum.auto()
    """Put a new record where there is none, or only what is left of an expired one."""
    DELETE = enum.auto()
    """Delete the record."""
    CHECK = enum.auto()
    """Change nothing."""


_CHANGING = frozenset((Form.CHANGE, Form.KEEP))
_NOW = ":now"


def first_form(write: Write) -> Form | None:
    """Return the form to try first, when nothing is known of the record. Return None if its guards hold for none."""
    ops = {op for _, op, _ in write.guards}
    never = any(value is None and op not in ("absent", "present") for _, op, value in write.guards)
    if never or ("absent" in ops and len(ops) > 1):
        return None
    if write.is_check or (write.delete and "absent" in ops):
        return Form.CHECK
    if write.delete:
        return Form.DELETE
    return Form.CREATE if "absent" in ops else Form.CHANGE


def next_form(write: Write, image: Image | None) -> Form | None:
    """Return the form that fits the current live image, or None if a guard does not hold."""
    if not holds(image, write.guards):
        return None
    if write.delete or write.is_check:
        return first_form(write)
    if image is None:
        return Form.CREATE
    later = write.expires_at_ms and image.get(TTL, 0) > expiry_seconds(write.expires_at_ms)
    return Form.KEEP if later else Form.CHANGE


def changes_nothing(write: Write, form: Form) -> bool:
    """Return whether nothing is left to change in this form."""
    return form is Form.CHECK or (form is Form.KEEP and not (write.put or write.add or write.remove))


def write_request(table: str, write: Write, form: Form, now_s: int) -> dict[str, Any]:
    """Return the request for a write in a form, for a single call or as an item of a transaction."""
    request: dict[str, Any] = {"TableName": table}
    if form is Form.CREATE:
        request["Item"] = encode_item(write.key, apply_write(None, write) or {})
        write = Write(write.key, (ABSENT,))
    else:
        request["Key"] = encode_key(write.key)
        write = _separate(write) if form in _CHANGING else Write(write.key, write.guards)
    _, guards, put, add, remove, expires_at_ms, _, _ = write
    values: list[Any] = []
    for _, op, value in guards:
        if op == "between":
            values += value
        elif op not in ("present", "absent"):
            values.append(value)
    values += put.values()
    values += add.values()
    expiry = ""
    if expires_at_ms:
        until = expiry_seconds(expires_at_ms)
        expiry = "later" if form is Form.KEEP else "until"
        values.append(max(until, now_s) if form is Form.KEEP else until)
    elif expires_at_ms == NEVER:
        expiry = "never"
    shape = tuple([(attr, op) for attr, op, _ in guards])
    parts, slots = _compile(form, shape, tuple(put), tuple(add), remove, expiry)
    if _NOW in slots:
        values.append(now_s)
    if values:
        request["ExpressionAttributeValues"] = dict(zip(slots, encode_all(values), strict=True))
    return request | parts


def _separate(write: Write) -> Write:
    """Return the write with every attribute in only one of put, add and remove: an expression may name it once."""
    put, add, remove = write.put, write.add, write.remove
    if remove:
        put = {name: value for name, value in put.items() if name not in remove}
        add = {name: value for name, value in add.items() if name not in remove}
        remove = tuple(dict.fromkeys(remove))
    both = put.keys() & add.keys() if put and add else ()
    if both:
        sums = apply_write(None, Write(write.key, (), put, {name: add[name] for name in both}))
        put, add = sums or {}, {name: amount for name, amount in add.items() if name not in both}
    elif not write.remove:
        return write
    return write._replace(put=put, add=add, remove=remove)


@lru_cache(maxsize=1024)
def _compile(
    form: Form,
    guards: tuple[tuple[str, str], ...],
    put: tuple[str, ...],
    add: tuple[str, ...],
    remove: tuple[str, ...],
    expiry: str,
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the constant parts of a request for writes of one shape, and the placeholders of its values in order."""
    names: defaultdict[str, str] = defaultdict(lambda: f"#{len(names)}")
    slots: list[str] = []

    def slot() -> str:
        slots.append(f":{len(slots)}")
        return slots[-1]

    conditions = [_guard(attr, op, names, slot) for attr, op in guards]
    if any(op == MISSING_OR_AT_MOST for _, op in guards):
        conditions.append(f"attribute_exists({names[PK]})")
    sets = [f"{names[attr]} = {slot()}" for attr in put]
    adds = [f"{names[attr]} {slot()}" for attr in add]
    until = slot() if expiry in ("until", "later") else ""
    if expiry == "until":
        sets.append(f"{names[TTL]} = {until}")
    removes = [names[attr] for attr in (*remove, *((TTL,) if expiry == "never" else ()))]
    if form in _CHANGING or (guards and all(op != "absent" for _, op in guards)):
        ttl = names[TTL]  # the record has not expired, and its expiry is not brought nearer
        nearer = f" AND {ttl} <= {until}" if expiry == "until" else ""
        live = f"(attribute_not_exists({ttl}) OR {ttl} > {_NOW}{nearer})"
        conditions.append(f"{ttl} > {until}" if expiry == "later" else live)
    condition = " AND ".join(conditions)
    clauses = (("SET", sets), ("REMOVE", removes), ("ADD", adds))
    parts = {
        "UpdateExpression": " ".join(f"{verb} {', '.join(each)}" for verb, each in clauses if each),
        "ConditionExpression": condition,
        "ExpressionAttributeNames": {placeholder: attr for attr, placeholder in names.items()},
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD" if condition else "",
    }
    if _NOW in condition:
        slots.append(_NOW)
    return {name: part for name, part in parts.items() if part}, tuple(slots)


def _guard(attr: str, op: str, names: defaultdict[str, str], slot: Callable[[], str]) -> str:
    if op == "absent":
        return f"(attribute_not_exists({names[PK]}) OR {names[TTL]} <= {_NOW})"
    if op == "present":
        return f"attribute_exists({names[PK]})"
    if op == "between":  # as two comparisons: DynamoDB refuses a BETWEEN whose bounds are in the wrong order
        return f"{names[attr]} >= {slot()} AND {names[attr]} <= {slot()}"
    if op == MISSING_OR_AT_MOST:
        return f"(attribute_not_exists({names[attr]}) OR {names[attr]} <= {slot()})"
    return f"{names[attr]} {op} {slot()}"
