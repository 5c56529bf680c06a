"""The version record of a store: which schema its data have, and what was deployed around them.

    schema_version          the layout of the records
    client_min_version      the oldest client that can work with them
    lambda_version          the version of the aggregator that was deployed, where there is one
    audit_retention_days    how long audit events are kept

It stands in the registry, so one read brings it along with the namespace. A store without one has the present schema.
Schemas of the same major number can be used by all clients of that number; a lower one waits for `zae-limiter upgrade`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ..core.errors import CorruptRecordError, IncompatibleSchemaError, VersionMismatchError
from . import keys
from .algebra import Key, Write
from .namespace import SCHEMA_VERSION

if TYPE_CHECKING:
    from .algebra import Image

OLDEST_CLIENT = "0.1.0"
"""The oldest client that can work with the present schema."""

UNFINISHED = "0.0.0"
"""The schema of a store whose upgrade has begun and is not done."""

UPGRADE = "run `zae-limiter upgrade` with the name of this table"

UNPREFIXED = tuple(Key("SYSTEM#", sk) for sk in (keys.VERSION, keys.CONFIG, keys.RESOURCES))
"""Records that only a store of the time before namespaces has."""

Order: TypeAlias = tuple[tuple[int, ...], int, int]
"""A version in a form that compares: numbers, stage, number of the stage."""

_TEXT = re.compile(
    r"v?(?P<numbers>\d{1,9}(?:\.\d{1,9}){0,3})"
    r"(?:[-._]?(?P<stage>dev|alpha|a|beta|b|preview|pre|rc|c|post|rev|r)[-._]?(?P<count>\d{0,9})(?:[-._][a-z0-9.]+)?)?"
    r"(?:\+[a-z0-9._-]+)?",
    re.IGNORECASE,
)
_STAGES = {
    "dev": -4, "alpha": -3, "a": -3, "beta": -2, "b": -2, "preview": -1, "pre": -1, "rc": -1, "c": -1, "": 0,
    "post": 1, "rev": 1, "r": 1,
}  # fmt: skip


class Deployed(NamedTuple):
    """The contents of a version record."""

    schema: str = SCHEMA_VERSION
    client_min: str = OLDEST_CLIENT
    aggregator: str | None = None
    audit_retention_days: int | None = None


def key() -> Key:
    """Return the key of the record."""
    return Key(keys.registry(), keys.VERSION)


def stamp(deployed: Deployed) -> Write:
    """Return the write that stores it; what is None stays as it was."""
    put: dict[str, Any] = {"schema_version": deployed.schema, "client_min_version": deployed.client_min}
    if deployed.aggregator is not None:
        put["lambda_version"] = deployed.aggregator
    if deployed.audit_retention_days is not None:
        put["audit_retention_days"] = deployed.audit_retention_days
    return Write(key(), (), put)


def decode(image: Image | None) -> Deployed:
    """Return what the record says; without one, what this client would write. Raise `CorruptRecordError` if damaged."""
    if image is None:
        return Deployed()
    found = Deployed(
        schema=image.get("schema_version", SCHEMA_VERSION),
        client_min=image.get("client_min_version", OLDEST_CLIENT),
        aggregator=image.get("lambda_version"),
        audit_retention_days=image.get("audit_retention_days"),
    )
    _check_record(found)
    return found


def _check_record(found: Deployed) -> None:
    named = {"schema_version": found.schema, "client_min_version": found.client_min}
    if found.aggregator is not None:
        named["lambda_version"] = found.aggregator
    for attr, text in named.items():
        try:
            order(text)
        except ValueError:
            raise _damaged(attr, text) from None
    days = found.audit_retention_days
    if days is not None and (type(days) is not int or not 1 <= days <= 36_500):
        raise _damaged("audit_retention_days", days)


def _damaged(attr: str, value: object) -> CorruptRecordError:
    where = key()
    return CorruptRecordError(
        f"The version record {where.pk} {where.sk} cannot be read: {attr} is {value!r}. "
        "`zae-limiter upgrade` rewrites it."
    )


def order(text: object) -> Order:
    """Return a version in a form that compares by its numbers; a pre-release is before its release.

    >>> order("1.10") > order("1.9.2"), order("1.0.0.dev0") < order("1.0.0a1") < order("1.0.0")
    (True, True)
    """
    found = _TEXT.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise ValueError(f"{text!r} is not a version")
    numbers = tuple(int(part) for part in found["numbers"].split("."))
    padded = numbers + (0,) * (4 - len(numbers))
    return padded, _STAGES[(found["stage"] or "").lower()], int(found["count"] or 0)


def major(text: str) -> int:
    """Return the first number of a version."""
    return order(text)[0][0]


def needs_upgrade(deployed: Deployed) -> bool:
    """Return whether the data have an older layout than this client's."""
    return major(deployed.schema) < major(SCHEMA_VERSION)


def check(deployed: Deployed, client: str) -> None:
    """Raise `VersionError` for data that this client cannot work with, naming both versions and the fix."""
    if major(deployed.schema) > major(SCHEMA_VERSION):
        raise IncompatibleSchemaError(
            f"The store has schema {deployed.schema}; zae-limiter {client} knows schema {SCHEMA_VERSION}. "
            f"Install zae-limiter {deployed.client_min} or later."
        )
    if order(client) < order(deployed.client_min):
        raise IncompatibleSchemaError(
            f"The store needs zae-limiter {deployed.client_min} or later; this is {client}. Install a later one."
        )
    if needs_upgrade(deployed):
        unfinished = deployed.schema == UNFINISHED
        raise mismatch("is in the middle of an upgrade" if unfinished else f"has schema {deployed.schema}")


def mismatch(what: str) -> VersionMismatchError:
    """Return the error of data that need an upgrade."""
    return VersionMismatchError(f"The store {what}; this client needs schema {SCHEMA_VERSION}: {UPGRADE}.")
