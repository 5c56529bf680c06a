"""Commits: one write as a conditional call, several as a transaction, unconditional deletes in batches.

A failed condition returns the image that it was checked against. If the guards do hold for that image, only the form of
the write was wrong, and it is sent again in the form that fits.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...core.errors import CorruptRecordError, InfrastructureError, RateLimiterUnavailable, ValidationError
from ...records.algebra import Committed, Conflict, Image, Key, Write, holds
from .access import Access, live_image
from .answers import Refused, cut
from .expressions import Form, changes_nothing, first_form, next_form, write_request
from .values import decode, encode_key, key_of

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
