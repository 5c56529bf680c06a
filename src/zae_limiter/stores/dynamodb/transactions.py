"""Commits: one write as a conditional call, several as a transaction, unconditional deletes in batches.

A failed condition returns the image that it was checked against. If the guards do hold for that image, only the form of
the write was wrong, and it is sent again in the form that fits.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from typing import TYPE_CHECKING, Any

from ...core.errors import CorruptRecordError, InfrastructureError, RateLimiterUnavailable, ValidationError
from ...records.algebra import Committed, Conflict, Image, Key, Write, holds
from .access import Access, TimeBudget, live_image
from .answers import Refused
from .expressions import Form, changes_nothing, first_form, is_impossible, next_form, request_parts
from .values import decode, encode_key

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST_WRITES = 100
_DELETES = 25
_TRIES = 12

_SINGLE = {Form.CHANGE: "UpdateItem", Form.KEEP: "UpdateItem", Form.CREATE: "PutItem", Form.DELETE: "DeleteItem"}
_IN_TRANSACTION = {Form.CHANGE: "Update", Form.KEEP: "Update", Form.CREATE: "Put", Form.DELETE: "Delete"}
_PASSING = frozenset(("TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded"))


async def commit(access: Access, writes: Sequence[Write], deadline: TimeBudget) -> Committed | Conflict:
    """Apply all writes if all guards hold, else none."""
    if len(writes) > 1 and all(write.blind for write in writes):
        return await _delete_all(access, [write.key for write in writes], deadline)
    if len(writes) > MOST_WRITES:
        raise ValidationError("writes", len(writes), f"DynamoDB commits at most {MOST_WRITES} records at once")
    if any(is_impossible(write) for write in writes):
        found = await access.read([write.key for write in writes], deadline)
        return Conflict({write.key: found.get(write.key) for write in writes})
    if len(writes) > 1:
        return await _Transaction(access, writes, deadline).commit()
    return await _commit_one(access, writes[0], deadline) if writes else Committed(())


async def _commit_one(access: Access, write: Write, deadline: TimeBudget) -> Committed | Conflict:
    form, now_ms = first_form(write), access.clock.now_ms()
    if form is Form.CHECK:
        image = (await access.read([write.key], deadline)).get(write.key)
        return Committed((image,)) if holds(image, write.guards) else Conflict({write.key: image})
    for _ in range(_TRIES):
        request = _address(access, request_parts(write, form, now_ms // 1000))
        if "UpdateExpression" in request:
            request["ReturnValues"] = "ALL_NEW"
        try:
            answer = await access.call(_SINGLE[form], request, deadline, repeatable=write.blind)
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


def _address(access: Access, request: dict[str, Any]) -> dict[str, Any]:
    request["TableName"] = access.table
    if "ConditionExpression" in request:
        request["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
    return request


def _contention_error(access: Access, key: Key) -> RateLimiterUnavailable:
    return RateLimiterUnavailable(f"DynamoDB table {access.table!r}: too much contention on {key.pk}; try again later.")


class _Transaction:
    """Several writes that take effect together."""

    def __init__(self, access: Access, writes: Sequence[Write], deadline: TimeBudget) -> None:
        self._access = access
        self._now_ms = access.clock.now_ms()
        self._deadline = deadline
        self._writes = writes
        self._forms = [first_form(write) for write in writes]
        self._requests: list[dict[str, Any]] = []

    async def commit(self) -> Committed | Conflict:
        """Send the writes until all have taken effect or a guard does not hold."""
        for attempt in range(_TRIES):
            self._requests = [
                _address(self._access, request_parts(write, form, self._now_ms // 1000))
                for write, form in zip(self._writes, self._forms, strict=True)
            ]
            sent = [place for place in range(len(self._writes)) if not self._is_empty_check(place)]
            try:
                await self._send(sent)
            except Refused as refused:
                reasons = refused.body.get("CancellationReasons") or [{}] * len(sent)
                lost = self._judge(dict(zip(sent, reasons, strict=False)))
                if lost:
                    return Conflict(lost)
                if any(reason.get("Code") in _PASSING for reason in reasons):
                    await self._access.pause(attempt, self._deadline)
                continue
            return Committed(await self._images())
        raise _contention_error(self._access, self._writes[0].key)

    def _is_empty_check(self, place: int) -> bool:
        return self._forms[place] is Form.CHECK and "ConditionExpression" not in self._requests[place]

    async def _send(self, sent: Sequence[int]) -> None:
        if not sent:
            return
        items = []
        for place in sent:
            form = self._forms[place]
            checks = changes_nothing(self._writes[place], form)
            items.append({"ConditionCheck" if checks else _IN_TRANSACTION[form]: self._requests[place]})
        request = {"TransactItems": items, "ClientRequestToken": os.urandom(16).hex()}
        await self._access.call("TransactWriteItems", request, self._deadline, repeatable=True)

    def _judge(self, reasons: Mapping[int, Mapping[str, Any]]) -> dict[Key, Image | None]:
        """Return the images for which a guard does not hold. Choose fitting forms for the others."""
        lost: dict[Key, Image | None] = {}
        for place, reason in reasons.items():
            code = reason.get("Code", "None")
            if code == "ConditionalCheckFailed":
                write = self._writes[place]
                image = live_image(reason.get("Item"), self._now_ms)
                following = next_form(write, image)
                if following is None or following is self._forms[place]:
                    lost[write.key] = image
                else:
                    self._forms[place] = following
            elif code != "None" and code not in _PASSING:
                raise CorruptRecordError(
                    f"DynamoDB cannot apply the change of {self._writes[place].key}: {reason.get('Message', code)}"
                )
        return lost

    async def _images(self) -> tuple[Image | None, ...]:
        """Return the new images. Those of updates are read back in one call, as DynamoDB does not return them.

        The transaction is done: if the read fails, an image is None and the commit still counts.
        """
        unknown = [
            write.key
            for write, form in zip(self._writes, self._forms, strict=True)
            if form is not Form.CREATE and not write.delete
        ]
        found: dict[Key, Image] = {}
        if unknown:
            with contextlib.suppress(InfrastructureError):
                found = await self._access.read(unknown, self._deadline)
        return tuple(
            [
                decode(request["Item"]) if form is Form.CREATE else found.get(write.key)
                for write, form, request in zip(self._writes, self._forms, self._requests, strict=True)
            ]
        )


async def _delete_all(access: Access, keys: Sequence[Key], deadline: TimeBudget) -> Committed:
    wanted = list(dict.fromkeys(keys))
    for start in range(0, len(wanted), _DELETES):
        chunk = wanted[start : start + _DELETES]
        pending: dict[str, Any] = {access.table: [{"DeleteRequest": {"Key": encode_key(key)}} for key in chunk]}
        for attempt in itertools.count():
            answer = await access.call("BatchWriteItem", {"RequestItems": pending}, deadline, repeatable=True)
            pending = answer.get("UnprocessedItems") or {}
            if not pending:
                break
            await access.pause(attempt, deadline)
    return Committed((None,) * len(keys))
