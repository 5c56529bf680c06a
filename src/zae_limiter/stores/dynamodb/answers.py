"""What DynamoDB's answers mean: the one table from its error codes to our errors and to what may be done next."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

from ...core.errors import (
    AccessDeniedError,
    CorruptRecordError,
    IncompatibleSchemaError,
    InfrastructureError,
    InfrastructureNotFoundError,
    RateLimiterUnavailable,
)
from ..outcomes import Failure, Meaning, Remedy
from .wire import Answer

OTHER_REGION = "if it is in another region, name that with --region, $AWS_REGION or region= in the store's URL"
"""What to try where a table or a stack is not found: it belongs to one region."""


class Refused(Exception):
    """A guard of the request did not hold; nothing was changed. Internal: the store turns it into a conflict."""

    def __init__(self, code: str, body: dict[str, Any]) -> None:
        super().__init__(code)
        self.code = code
        self.body = body


class ServiceError(Exception):
    """What the service itself said; the cause of the error that users see."""

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

MEANINGS: dict[str, Meaning] = {
    **dict.fromkeys(
        (
            "ProvisionedThroughputExceededException",
            "ProvisionedThroughputExceeded",
            "ThrottlingException",
            "ThrottledException",
            "ThrottlingError",
            "Throttling",
            "RequestLimitExceeded",
            "RequestThrottled",
            "RequestThrottledException",
            "TooManyRequestsException",
            "TooManyRequests",
            "BandwidthLimitExceeded",
            "SlowDown",
        ),
        _THROTTLED,
    ),
    **dict.fromkeys(
        ("TransactionConflictException", "TransactionConflict", "ReplicatedWriteConflictException"), _CONFLICT
    ),
    **dict.fromkeys(
        (
            "TransactionInProgressException",
            "InternalServerError",
            "InternalServerErrorException",
            "InternalFailure",
            "InternalError",
            "ServiceUnavailable",
            "ServiceUnavailableException",
        ),
        _FAILED,
    ),
    **dict.fromkeys(
        (
            "ExpiredTokenException",
            "ExpiredToken",
            "TokenRefreshRequired",
            "UnrecognizedClientException",
            "InvalidClientTokenId",
        ),
        _UNKNOWN_KEY,
    ),
    **dict.fromkeys(
        (
            "InvalidSignatureException",
            "SignatureDoesNotMatch",
            "IncompleteSignature",
            "IncompleteSignatureException",
            "MissingAuthenticationToken",
            "MissingAuthenticationTokenException",
        ),
        _BAD_SIGNATURE,
    ),
    **dict.fromkeys(("RequestExpired", "RequestTimeTooSkewed"), _SKEWED),
    **dict.fromkeys(
        ("AccessDeniedException", "AccessDenied", "NotAuthorized", "OptInRequired", "KMSAccessDeniedException"), _DENIED
    ),
    **dict.fromkeys(("ResourceNotFoundException", "TableNotFoundException"), _MISSING),
}
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

_REFUSED = "ConditionalCheckFailed"


def parse_answer(answer: Answer, where: str) -> dict[str, Any]:
    """Return the content of a good answer. Raise `Refused` or `Failure` for any other; ``where`` opens the messages."""
    content = _content(answer, where)
    if answer.status == 200:
        return content
    code = _code(answer, content)
    if code == f"{_REFUSED}Exception":
        raise Refused(code, content)
    message = str(content.get("message") or content.get("Message") or "")
    if code == "TransactionCanceledException":
        reasons = _reasons(content)
        if _REFUSED in (reason for reason, _ in reasons):
            raise Refused(code, content)
        code, message = next(((found, text) for found, text in reasons if found != "None"), (code, message))
    error = ServiceError(code, message, answer.status, request_id(answer))
    raise failure(_meaning(code, message, answer.status), where, error)


def failure(meaning: Meaning, where: str, cause: Exception) -> Failure:
    """Return the failure that a row of the table describes."""
    said = getattr(cause, "request_id", None)
    details = f"{cause}; request {said}" if said else str(cause)
    return Failure(meaning.error(where, details, cause), meaning)


def request_id(answer: Answer) -> str | None:
    """Return the id under which the service knows the request, or None."""
    return answer.headers.get("x-amzn-requestid")


def _meaning(code: str, message: str, status: int) -> Meaning:
    for known, part, meaning in _BY_MESSAGE:
        if code == known and part in message.lower():
            return meaning
    return MEANINGS.get(code) or (_FAILED if status >= 500 else _THROTTLED if status == 429 else _OTHER)


def _content(answer: Answer, where: str) -> dict[str, Any]:
    """Return the JSON object of an answer. Raise `Failure` if it is incomplete or something else."""
    checksum = answer.headers.get("x-amz-crc32")
    if checksum is not None and checksum != str(zlib.crc32(answer.body)):
        raise _unreadable(answer, where, "its checksum is wrong")
    try:
        content = json.loads(answer.body)
    except ValueError:
        raise _unreadable(answer, where, f"it is not JSON but {answer.body[:60]!r}") from None
    if not isinstance(content, dict):
        raise _unreadable(answer, where, f"it is not a JSON object but {answer.body[:60]!r}")
    return content


def _unreadable(answer: Answer, where: str, reason: str) -> Failure:
    error = ServiceError(f"status {answer.status}", reason, answer.status, request_id(answer))
    return failure(Meaning(RateLimiterUnavailable, Remedy.REPEAT, "the answer cannot be read"), where, error)


def _code(answer: Answer, content: Mapping[str, Any]) -> str:
    """Return the name of the error, from the body or from the header."""
    said = content.get("__type") or answer.headers.get("x-amzn-errortype") or f"status {answer.status}"
    return str(said).rpartition("#")[2].partition(":")[0]


def _reasons(content: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the code and the message for each write of a cancelled transaction."""
    given = content.get("CancellationReasons")
    reasons = [reason for reason in given if isinstance(reason, dict)] if isinstance(given, list) else []
    return [(str(reason.get("Code")), str(reason.get("Message") or "")) for reason in reasons]
