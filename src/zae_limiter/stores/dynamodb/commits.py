"""Commits: guarded writes as conditional calls and transactions, unconditional deletes in batches.

A write takes one of five forms, by what is known of its record. What a form cannot do in one call (an expired record
must start from nothing, an expiry must never come nearer) its condition prevents. A failed condition returns the image
that it was checked against: if the guards do hold for that, only the form was wrong, and the write is sent again in
the form that fits. The text of an expression depends only on the shape of a write, so it is made once per shape.
"""

from __future__ import annotations

import contextlib
import enum
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from ...core.errors import CorruptRecordError, InfrastructureError, RateLimiterUnavailable, ValidationError
from ...records.algebra import (
    ABSENT,
    MISSING_OR_AT_MOST,
    NEVER,
    TTL,
    Committed,
    Conflict,
    Image,
    Key,
    Write,
    apply_write,
    expiry_seconds,
    holds,
)
from .access import Access, live_image
from .answers import Refused, cut
from .values import PK, decode, encode_all, encode_item, encode_key, key_of


class Form(enum.Enum):
    """The form in which a write is sent to DynamoDB."""

    CHANGE = enum.auto()
    """Update a live record, or one that does not exist; the expiry may be put off."""
    KEEP = enum.auto()
    """Update a live record whose expiry is already later than the write would have it."""
    CREATE = enum.auto()
    """Put a new record where there is none, or only what is left of an expired one."""
    DELETE = enum.auto()
    CHECK = enum.auto()


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


MOST_WRITES = 100
_DELETES = 25
_TRIES = 12

_OPERATIONS = {Form.CHANGE: "UpdateItem", Form.KEEP: "UpdateItem", Form.CREATE: "PutItem", Form.DELETE: "DeleteItem"}
_PASSING = frozenset(("TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded"))


async def commit(access: Access, writes: Sequence[Write]) -> Committed | Conflict:
    """Apply all writes if all guards hold, else none."""
    if len(writes) > 1 and all(write.blind for write in writes):
        return await _delete_all(access, [write.key for write in writes])
    if len(writes) > MOST_WRITES:
        raise ValidationError("writes", len(writes), f"DynamoDB commits at most {MOST_WRITES} records at once")
    forms = [form for write in writes if (form := first_form(write)) is not None]
    if len(forms) < len(writes):  # no record at all fits the guards of a write: only the images are of interest
        found = await access.read([write.key for write in writes])
        return Conflict({write.key: found.get(write.key) for write in writes})
    if len(writes) > 1:
        return await _commit_several(access, writes, forms)
    return await _commit_one(access, writes[0], forms[0]) if writes else Committed(())


async def _commit_one(access: Access, write: Write, form: Form) -> Committed | Conflict:
    if form is Form.CHECK:
        image = (await access.read([write.key])).get(write.key)
        return Committed((image,)) if holds(image, write.guards) else Conflict({write.key: image})
    now_ms = access.clock.now_ms()
    for _ in range(_TRIES):
        request = write_request(access.client.table, write, form, now_ms // 1000)
        if "UpdateExpression" in request:
            request["ReturnValues"] = "ALL_NEW"
        try:
            answer = await access.call(_OPERATIONS[form], request, repeatable=write.blind)
        except Refused as refused:
            image = live_image(refused.body.get("Item"), now_ms)
            following = next_form(write, image)
            if following is None or following is form:
                return Conflict({write.key: image})
            if changes_nothing(write, following):
                return Committed((image,))
            form = following
            continue
        item = request.get("Item") or answer.get("Attributes")
        return Committed((None if item is None or write.delete else decode(item),))
    raise _contention_error(access, write.key)


async def _commit_several(access: Access, writes: Sequence[Write], forms: list[Form]) -> Committed | Conflict:
    """Send writes that take effect together until all have, or a guard does not hold."""
    now_ms = access.clock.now_ms()
    for attempt in range(_TRIES):
        sent: dict[int, dict[str, Any]] = {}
        for place, (write, form) in enumerate(zip(writes, forms, strict=True)):
            request = write_request(access.client.table, write, form, now_ms // 1000)
            if form is not Form.CHECK or "ConditionExpression" in request:
                verb = "ConditionCheck" if changes_nothing(write, form) else _OPERATIONS[form].removesuffix("Item")
                sent[place] = {verb: request}
        try:
            if sent:
                whole = {"TransactItems": list(sent.values()), "ClientRequestToken": os.urandom(16).hex()}
                await access.call("TransactWriteItems", whole, repeatable=True)
        except Refused as refused:
            reasons = refused.body.get("CancellationReasons") or [{}] * len(sent)
            lost = _choose_forms(writes, forms, dict(zip(sent, reasons, strict=False)), now_ms)
            if lost:
                return Conflict(lost)
            if any(reason.get("Code") in _PASSING for reason in reasons):
                await access.pause(attempt)
            continue
        return Committed(await _read_back(access, writes, sent.values()))
    raise _contention_error(access, writes[0].key)


def _choose_forms(
    writes: Sequence[Write], forms: list[Form], reasons: Mapping[int, Mapping[str, Any]], now_ms: int
) -> dict[Key, Image | None]:
    """Put fitting forms in place of those that failed. Return the images for which a guard does not hold.

    ``reasons`` has DynamoDB's reason for each place in ``forms`` that was sent.
    """
    lost: dict[Key, Image | None] = {}
    for place, reason in reasons.items():
        code, write = reason.get("Code", "None"), writes[place]
        if code == "ConditionalCheckFailed":
            image = live_image(reason.get("Item"), now_ms)
            following = next_form(write, image)
            if following is None or following is forms[place]:
                lost[write.key] = image
            else:
                forms[place] = following
        elif code != "None" and code not in _PASSING:
            message = cut(reason.get("Message", code))
            raise CorruptRecordError(f"DynamoDB cannot apply the change of {write.key}: {message}")
    return lost


async def _read_back(access: Access, writes: Sequence[Write], sent: Iterable[Any]) -> tuple[Image | None, ...]:
    """Return the new images. Those of updates are read in one call, as a transaction does not return them.

    The transaction is done: if the read fails, an image is None and the commit still counts.
    """
    items = [request["Put"]["Item"] for request in sent if "Put" in request]
    found = {key_of(item): decode(item) for item in items}
    unknown = [write.key for write in writes if write.key not in found and not write.delete]
    if unknown:
        with contextlib.suppress(InfrastructureError):
            found |= await access.read(unknown)
    return tuple([found.get(write.key) for write in writes])


async def _delete_all(access: Access, keys: Sequence[Key]) -> Committed:
    requests = [{"DeleteRequest": {"Key": encode_key(key)}} for key in dict.fromkeys(keys)]
    for start in range(0, len(requests), _DELETES):
        await access.write_batch(requests[start : start + _DELETES])
    return Committed((None,) * len(keys))


def _contention_error(access: Access, key: Key) -> RateLimiterUnavailable:
    table = access.client.table
    return RateLimiterUnavailable(f"DynamoDB table {table!r}: too much contention on {key.pk}; try again later.")
