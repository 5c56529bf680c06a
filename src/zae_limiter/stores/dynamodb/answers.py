"""What DynamoDB's answers mean: the one table from error codes to our errors and remedies, and the service's time."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, cast

from ...clock import Clock
from ...core.errors import (
    AccessDeniedError,
    CorruptRecordError,
    IncompatibleSchemaError,
    InfrastructureError,
    InfrastructureNotFoundError,
    RateLimiterUnavailable,
)
from ..outcomes import Failure, Meaning, Remedy
from ..server_clock import ServerClock
from .shapes import MOST_VALUES, Malformed, check_shape, check_size
from .wire import Answer

OTHER_REGION = "if it is in another region, name that with --region, $AWS_REGION or region= in the store's URL"
"""What to try where a table or a stack is not found: it belongs to one region."""

REQUEST_ID = "x-amzn-requestid"
"""The header with the id under which the service knows a request."""

_SIGNATURE_MS = 15 * 60_000
"""DynamoDB accepts no signature that is further from its own time."""
_AGREE_MS = 10_000
"""Two answers that tell the same time may differ by as much: by the time that they took."""
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_DATE = re.compile(
    rf"[A-Z][a-z]{{2}}, ([0-9]{{2}}) ({'|'.join(_MONTHS)}) (20[0-9]{{2}}) ([0-9]{{2}}):([0-9]{{2}}):([0-9]{{2}}) GMT"
)
_LONGEST_TEXT = 500
"""Characters of what a service says that go into a message."""


class Refused(Exception):
    """A guard of the request did not hold; nothing was changed. Internal: the store turns it into a conflict."""

    def __init__(self, code: str, body: dict[str, Any]) -> None:
        super().__init__(code)
        self.code = code
        self.body = body


class ServiceError(Exception):
    """The service's own words; the cause of the error that users see."""

    def __init__(self, code: str, message: str, status: int, request_id: str | None) -> None:
        super().__init__(f"{code}: {message}" if message else code)
        self.code = code
        self.message = message
        self.status = status
        self.request_id = request_id


_THROTTLED = Meaning(RateLimiterUnavailable, Remedy.WAIT, "it is throttling requests; raise its capacity", True)
_CONFLICT = Meaning(RateLimiterUnavailable, Remedy.TURN, "other transactions hold the item")
_FAILED = Meaning(RateLimiterUnavailable, Remedy.REPEAT, "the service failed")
_UNKNOWN_KEY = Meaning(
    AccessDeniedError, Remedy.RENEW, "the credentials are invalid or expired; check them, or log in again"
)
_BAD_SIGNATURE = Meaning(AccessDeniedError, Remedy.NONE, "the secret key does not match the access key")
_SKEWED = Meaning(AccessDeniedError, Remedy.RESYNC, "the host's clock is too far from the service's")
_DENIED = Meaning(AccessDeniedError, Remedy.NONE, "access is denied; the policy of this identity lacks the action")
_MISSING = Meaning(
    InfrastructureNotFoundError,
    Remedy.NONE,
    f"it does not exist; {OTHER_REGION}, or create it with `zae-limiter deploy` or `zae-limiter create-table`",
)
_DAMAGED = Meaning(CorruptRecordError, Remedy.NONE, "a stored attribute has an unexpected type")
_FOREIGN = Meaning(
    IncompatibleSchemaError,
    Remedy.NONE,
    "it is not a zae-limiter table; `zae-limiter create-table` lists the differences and changes nothing",
)
_OTHER = Meaning(InfrastructureError, Remedy.NONE, "the request was refused")
_UNREADABLE = Meaning(RateLimiterUnavailable, Remedy.REPEAT, "the answer cannot be read")

_CODES = {
    _THROTTLED: "ProvisionedThroughputExceededException ProvisionedThroughputExceeded ThrottlingException "
    "ThrottledException ThrottlingError Throttling RequestLimitExceeded RequestThrottled RequestThrottledException "
    "TooManyRequestsException TooManyRequests BandwidthLimitExceeded SlowDown",
    _CONFLICT: "TransactionConflictException TransactionConflict ReplicatedWriteConflictException",
    _FAILED: "TransactionInProgressException InternalServerError InternalServerErrorException InternalFailure "
    "InternalError ServiceUnavailable ServiceUnavailableException",
    _UNKNOWN_KEY: "ExpiredTokenException ExpiredToken TokenRefreshRequired UnrecognizedClientException "
    "InvalidClientTokenId",
    _BAD_SIGNATURE: "InvalidSignatureException SignatureDoesNotMatch IncompleteSignature IncompleteSignatureException "
    "MissingAuthenticationToken MissingAuthenticationTokenException",
    _SKEWED: "RequestExpired RequestTimeTooSkewed",
    _DENIED: "AccessDeniedException AccessDenied NotAuthorized OptInRequired KMSAccessDeniedException",
    _MISSING: "ResourceNotFoundException TableNotFoundException",
}
MEANINGS: dict[str, Meaning] = {code: meaning for meaning, codes in _CODES.items() for code in codes.split()}
"""By the code of the answer; a status of 500 and above means `_FAILED` whatever the code, any other code `_OTHER`."""

_BY_MESSAGE: tuple[tuple[str, str, Meaning], ...] = (
    ("InvalidSignatureException", "signature expired", _SKEWED),
    ("InvalidSignatureException", "signature not yet current", _SKEWED),
    ("ValidationException", "incorrect data type", _DAMAGED),
    ("ValidationError", "incorrect data type", _DAMAGED),
    ("ValidationException", "does not match the schema", _FOREIGN),
    ("ValidationException", "missing the key", _FOREIGN),
    ("ValidationException", "contains duplicates", _FOREIGN),  # no key is asked for twice: the table takes them for one
    ("ValidationException", "does not have the specified index", _FOREIGN),
)


class Unreadable(Failure):
    """The answer is none of DynamoDB's; nobody knows what else comes over its connection."""


def parse_answer(answer: Answer, operation: str, request: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the content of a good answer to ``request``. Raise `Refused` or `Failure` for any other.

    Whatever is not an answer of DynamoDB's to this request is `Unreadable`; ``where`` opens the messages.
    """
    checksum = answer.headers.get("x-amz-crc32")
    try:
        if checksum is not None and checksum != str(zlib.crc32(answer.body)):
            raise Malformed("its checksum is wrong")
        if len(answer.body) > MOST_VALUES:
            check_size(answer.body)
        content = json.loads(answer.body)
        if type(content) is not dict:
            raise Malformed(f"it is not a JSON object but {answer.body[:60]!r}")
        check_shape(content, operation, request, answer.status)
        if answer.status != 200:
            raise _find_error(answer, content, request, where)
        return cast("dict[str, Any]", content)
    except (Malformed, ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, Malformed) else f"it is not a JSON object but {answer.body[:60]!r}"
        cause = ServiceError(f"status {answer.status}", reason, answer.status, _request_id(answer))
        raise Unreadable(_UNREADABLE.error(where, describe(cause), cause), _UNREADABLE) from error


def _find_error(answer: Answer, content: dict[str, Any], request: Mapping[str, Any], where: str) -> Refused | Failure:
    """Return the error for a bad answer with this content. Raise `Malformed` if DynamoDB does not answer so."""
    said = cut(content.get("__type") or answer.headers.get("x-amzn-errortype") or "")
    code = said.rpartition("#")[2].partition(":")[0]
    if not code.isidentifier():
        if not (answer.status == 429 or 500 <= answer.status < 600):
            raise Malformed("it names no error")
        code = f"status {answer.status}"
    if not 400 <= answer.status < 600:
        raise Malformed("its status is none that DynamoDB sends")
    message = cut(content.get("message") or content.get("Message") or "")
    if code == "ConditionalCheckFailedException":
        if "ConditionExpression" not in request:
            raise Malformed("it says that a condition failed, and there was none")
        return Refused(code, content)
    if code == "TransactionCanceledException":  # with a reason for each write
        if "TransactItems" not in request:
            raise Malformed("it says that a transaction was cancelled, and there was none")
        reasons = content.get("CancellationReasons", ())
        told = [(cut(reason.get("Code")), cut(reason.get("Message") or "")) for reason in reasons]
        if any(each == "ConditionalCheckFailed" for each, _ in told):
            return Refused(code, content)
        code, message = next((each for each in told if each[0] != "None"), (code, message))
    other = _FAILED if answer.status >= 500 else _THROTTLED if answer.status == 429 else _OTHER
    said_so = [meaning for known, part, meaning in _BY_MESSAGE if code == known and part in message.lower()]
    meaning = said_so[0] if said_so else MEANINGS.get(code, other)
    return failure(meaning, where, ServiceError(code, message, answer.status, _request_id(answer)))


def cut(said: object) -> str:
    """Return the beginning of what the service said, printable and in one line."""
    text = str(said)[:_LONGEST_TEXT]
    return text if text.isprintable() else "".join([each if each.isprintable() else " " for each in text])


def _request_id(answer: Answer) -> str | None:
    said = answer.headers.get(REQUEST_ID)
    return None if said is None else cut(said)


def is_invalid_request(error: BaseException) -> bool:
    """Return whether DynamoDB calls a request invalid, for example for the size of a key: repeating it cannot help."""
    cause = error.__cause__
    invalid = isinstance(cause, ServiceError) and cause.code in ("ValidationException", "ValidationError")
    return invalid and not isinstance(error, IncompatibleSchemaError)  # another table can be put in place


def failure(meaning: Meaning, where: str, cause: Exception) -> Failure:
    """Return the failure that a row of the table describes."""
    return Failure(meaning.error(where, describe(cause), cause), meaning)


def describe(cause: Exception) -> str:
    """Return what the service said, with the id of the request if there is one."""
    said = getattr(cause, "request_id", None)
    return f"{cause}; request {said}" if said else str(cause)


class DateClock(ServerClock):
    """DynamoDB's clock, by which all clients decide, however wrong their hosts' clocks are.

    It is learned from the ``Date`` headers of the answers, which have whole seconds. DynamoDB accepts no signature that
    is minutes old or ahead. So a date far from the signature that it answers is false, or of an engine that checks no
    signatures: it is believed when two answers in a row agree on it.
    """

    def __init__(self, host_clock: Clock | None = None) -> None:
        super().__init__("DynamoDB", host_clock)
        self._doubted_ms: int | None = None

    def observe(self, date: str | None, sent_ms: int, received_ms: int, signed_ms: int) -> None:
        """Learn from the ``Date`` of an answer to a request that was accepted as signed at ``signed_ms``.

        The other two instants are of the host's clock.
        """
        date_ms = None if date is None else date_ms_of(date)
        if date_ms is None:
            return
        doubted_ms, self._doubted_ms = self._doubted_ms, None
        if abs(date_ms - signed_ms) > _SIGNATURE_MS:
            offset_ms = date_ms - received_ms
            if doubted_ms is None or abs(offset_ms - doubted_ms) > _AGREE_MS:
                self._doubted_ms = offset_ms
                return
        self.learn(date_ms, date_ms + 1000, sent_ms, received_ms)


@lru_cache(maxsize=8)
def date_ms_of(date: str) -> int | None:
    """Return an HTTP date of this century in milliseconds, or None. It is cached: a text comes for a whole second."""
    found = _DATE.fullmatch(date)
    if found is None:
        return None
    day, hour, minute, second = map(int, found.group(1, 4, 5, 6))
    month, year = _MONTHS.index(found[2]) + 1, int(found[3])
    try:
        return int(datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp()) * 1000
    except ValueError:  # 31 February
        return None
