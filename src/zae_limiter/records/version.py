"""The version record of a store: which schema its data have, and what was deployed around them.

    schema_version          the layout of the records
    client_min_version      the oldest client that compares the schema
    lambda_version          the version of the aggregator that was deployed, where there is one
    audit_retention_days    how long audit events are kept
    records_left            how many records the last upgrade could not move and has left where they were
    resources_moved         the resources of the buckets that upgrades have moved from before namespaces

It stands in the registry, so one read brings it along with the namespace. A store without one has the present schema.
Schemas of the same major number can be used by all clients of that number; a lower one waits for `zae-limiter upgrade`.

A second record stands where clients from before namespaces look: those that know their own version (0.8 and 0.9) refuse
to work beside it, where they would take the table for an empty one of theirs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from ..core.errors import CorruptRecordError, IncompatibleSchemaError, VersionMismatchError
from . import keys
from .algebra import ABSENT, Image, Key, Write, drop_none

SCHEMA_VERSION = "1.0.0"

OLDEST_CLIENT = "0.1.0"
"""The oldest client that compares the schema; versions before 1.0 go on where this is later than they are."""

UNFINISHED = "0.0.0"
"""The schema of a store whose upgrade has begun and is not done."""

UNPREFIXED = tuple(Key("SYSTEM#", sk) for sk in (keys.VERSION, keys.CONFIG, keys.RESOURCES))
"""Records that a store of the time before namespaces has; the first of them also keeps clients of that time out."""

BEFORE_NAMESPACES = "the layout of zae-limiter 0.1 to 0.9, from before namespaces"

_TEXT = (
    r"v?(?P<numbers>\d{1,9}(?:\.\d{1,9}){0,3})"
    r"(?:[-._]?(?P<stage>dev|alpha|a|beta|b|preview|pre|rc|c|post|rev|r)[-._]?(?P<count>\d{0,9})(?:[-._][a-z0-9.]+)?)?"
    r"(?:\+[a-z0-9._-]+)?"
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
    records_left: int | None = None
    resources_moved: str | None = None


KEY = Key(keys.REGISTRY, keys.VERSION)
"""The key of the record."""
AGGREGATOR = "lambda_version"
"""The attribute with the version of the aggregator."""
_ATTRIBUTES = (
    *("schema_version", "client_min_version", AGGREGATOR, "audit_retention_days", "records_left", "resources_moved"),
)
"""The attributes of a `Deployed`, in the order of its fields."""


def stamp(deployed: Deployed) -> Write:
    """Return the write that stores it; what is None stays as it was."""
    return Write(KEY, (), drop_none(dict(zip(_ATTRIBUTES, deployed, strict=True))))


def refuse_older() -> Write:
    """Return the write that makes clients from before namespaces refuse the store, if they know their own version.

    They compare the schema only where the oldest client is not newer than they are.
    """
    versions = {"schema_version": SCHEMA_VERSION, "client_min_version": OLDEST_CLIENT}
    return Write(UNPREFIXED[0], (), versions, remove=("data",))


def stamp_new(deployed: Deployed) -> list[Write]:
    """Return the writes of both version records of a new store, unless it has one."""
    return [write._replace(guards=(ABSENT,)) for write in (stamp(deployed), refuse_older())]


def refuses_older(image: Image | None) -> bool:
    """Return whether the version record without a namespace is the one of `refuse_older`, not of an older client."""
    if image is None or _match(image.get("schema_version")) is None:
        return False
    return major(image["schema_version"]) >= _OWN_LAYOUT


def decode(image: Image | None) -> Deployed:
    """Return what the record says; without one, what this client would write. Raise `CorruptRecordError` if damaged."""
    if image is None:
        return Deployed()
    found = Deployed._make(image.get(attr, default) for attr, default in zip(_ATTRIBUTES, Deployed(), strict=True))
    days, left = found.audit_retention_days, found.records_left
    valid = (
        _match(found.schema),
        _match(found.client_min),
        found.aggregator is None or _match(found.aggregator),
        days is None or (type(days) is int and 1 <= days <= 36_500),
        left is None or (type(left) is int and left >= 0),
    )
    wrong = [f"{attr} is {value!r}" for attr, value, fine in zip(_ATTRIBUTES, found, valid, strict=False) if not fine]
    if wrong:
        raise CorruptRecordError(
            f"The version record {' '.join(KEY)} cannot be read: {', '.join(wrong)}. `zae-limiter upgrade` rewrites it."
        )
    return found if isinstance(found.resources_moved, str) else found._replace(resources_moved=None)


def _match(text: object) -> re.Match[str] | None:
    return re.fullmatch(_TEXT, text, re.IGNORECASE) if isinstance(text, str) else None


def order(text: object) -> tuple[tuple[int, ...], int, int]:
    """Return a version as numbers, stage and number of the stage, which compare; a pre-release is before its release.

    >>> order("1.10") > order("1.9.2"), order("1.0.0.dev0") < order("1.0.0a1") < order("1.0.0")
    (True, True)
    """
    found = _match(text)
    if found is None:
        raise ValueError(f"{text!r} is not a version")
    numbers = tuple([int(part) for part in found["numbers"].split(".")])
    padded = numbers + (0,) * (4 - len(numbers))
    return padded, _STAGES[(found["stage"] or "").lower()], int(found["count"] or 0)


def major(text: str) -> int:
    """Return the first number of a version."""
    return order(text)[0][0]


_OWN_LAYOUT = major(SCHEMA_VERSION)


def needs_upgrade(deployed: Deployed) -> bool:
    """Return whether the data have an older layout than this client's."""
    return major(deployed.schema) < _OWN_LAYOUT


def check(deployed: Deployed, client: str) -> None:
    """Raise `VersionError` for data that this client cannot work with, naming both versions and the fix."""
    (found, *_), _, _ = order(deployed.schema)
    if found > _OWN_LAYOUT:
        raise IncompatibleSchemaError(
            f"The store has schema {deployed.schema}; zae-limiter {client} knows schema {SCHEMA_VERSION}. "
            f"Install zae-limiter {deployed.client_min} or later.",
            client_version=client,
            schema_version=deployed.schema,
        )
    if order(client) < order(deployed.client_min):
        raise IncompatibleSchemaError(
            f"The store needs zae-limiter {deployed.client_min} or later; this is {client}. Install a later one.",
            client_version=client,
            schema_version=deployed.schema,
        )
    if found < _OWN_LAYOUT:
        unfinished = deployed.schema == UNFINISHED
        layout = f"has the layout of zae-limiter 0.x, schema {deployed.schema}"
        versions = {"schema_version": deployed.schema, "lambda_version": deployed.aggregator}
        raise mismatch("is in the middle of an upgrade" if unfinished else layout, client_version=client, **versions)


def is_before_namespaces(stamped: Image | None, older: Sequence[Image | None]) -> bool:
    """Return whether a store holds data from before namespaces that no upgrade has moved."""
    return stamped is None and any(older) and not refuses_older(older[0])


def check_has_namespaces(stamped: Image | None, older: Sequence[Image | None]) -> None:
    """Raise `VersionMismatchError` for data from before namespaces, unless an upgrade has moved them."""
    if is_before_namespaces(stamped, older):
        raise mismatch(f"has {BEFORE_NAMESPACES}")


def aggregator_warning(deployed: Deployed, client: str) -> str | None:
    """Return a warning about an aggregator of another version, or None. It still counts correctly."""
    if deployed.aggregator is None or order(deployed.aggregator) == order(client):
        return None
    return (
        f"The aggregator has version {deployed.aggregator}, this client {client}; "
        "`zae-limiter upgrade --lambda-only` renews it; `zae-limiter upgrade` removes this note if it is gone."
    )


def is_aggregator_older(deployed: Deployed, client: str) -> bool:
    """Return whether the aggregator has an older version than the client."""
    return deployed.aggregator is not None and order(deployed.aggregator) < order(client)


def mismatch(what: str, **fields: str | None) -> VersionMismatchError:
    """Return the error of data that need an upgrade; ``fields`` are its versions, where they are known."""
    return VersionMismatchError(
        f"The store {what}; this client needs the layout of zae-limiter 1.0: "
        "run `zae-limiter upgrade` with the name of this table.",
        **fields,
    )
