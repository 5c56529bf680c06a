"""Validate names, identifiers and hierarchies of entities.

Everything that a user names becomes part of a storage key in which ``#`` separates the parts, so no part may contain
it. Validation happens before any I/O, and the error names field, value and reason.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from .validation import InvalidIdentifierError, InvalidNameError, ValidationError, is_plain, show_url

DEFAULT_RESOURCE = "_default_"
"""The resource name under which an entity's limits for all resources are stored."""

RESERVED_NAMESPACE = "_"
"""The namespace of the registry itself."""

INFRASTRUCTURE_LIMIT = "wcu"
"""The name of the hidden limit that tracks write pressure on a bucket's partition."""

FIRST_USE = "first-use"
"""The kind of windows that begin, for each bucket on its own, with their first use; written where a zone would be."""

ADDRESS_TAG = "ip:"
"""The prefix of entity ids that are addresses of clients. The middleware makes them, and anybody may."""

USAGE_WINDOWS = ("hourly", "daily", "monthly")
"""The kinds of windows over which usage is counted, the finest first."""

MAX_DEPTH = 8
"""Most levels of a hierarchy, the entity itself included."""

_ENTITY_BYTES = 900
"""An id is part of sort keys, and DynamoDB's have 1,024 bytes."""
_STACK = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,54}\Z")
_RESOURCE = re.compile(r"[A-Za-z][A-Za-z0-9_./:-]*\Z")
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*\Z")
_NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*\Z")
_USUAL_ID = re.compile(r"[A-Za-z0-9_.:@/|-]{1,225}\Z")
"""Ids that are valid at a glance; others may be valid too."""
_URL_ADVICE = 'pass a store URL as url=, such as Repository.open(url="redis://host:6379")'
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def is_address(entity_id: str) -> bool:
    """Return whether an entity id is the address of a client, of which there can be any number."""
    return entity_id.startswith(ADDRESS_TAG)


def _check_length(error: type[ValidationError], value: object, field: str, most: int, remedy: str = "") -> str:
    if not isinstance(value, str):
        raise error(field, value, f"must be a string, not {type(value).__name__}")
    if not value:
        raise error(field, value, "must not be empty")
    if len(value) > most:
        raise error(field, value, f"has {len(value)} characters, at most {most} are allowed{remedy}")
    return value


def entity_id(value: object, field: str = "entity_id") -> str:
    """Check an entity id: 1 to 256 characters of at most 900 bytes in UTF-8, no ``#``, no control characters."""
    if type(value) is str and _USUAL_ID.match(value):
        return value
    value = _check_length(InvalidIdentifierError, value, field, 256, "; hash longer ids first")
    if len(value) * 4 > _ENTITY_BYTES and (size := len(value.encode(errors="replace"))) > _ENTITY_BYTES:
        reason = f"has {size} bytes in UTF-8, at most {_ENTITY_BYTES} are allowed; hash longer ids first"
        raise InvalidIdentifierError(field, value, reason)
    if "#" in value:
        raise InvalidIdentifierError(field, value, "must not contain '#', which separates the parts of a storage key")
    if not value.isprintable() and _UNPRINTABLE.search(value):
        raise InvalidIdentifierError(field, value, "must not contain control characters or lone surrogates")
    if value == "$SYSTEM" or value.startswith(("$RESOURCE:", "$NAMESPACE:")):
        raise InvalidIdentifierError(field, value, "is reserved for the audit log; choose another id")
    return value


def audit_subject(value: object) -> str:
    """Check the subject of audit events: an entity id, ``$SYSTEM``, ``$RESOURCE:{name}`` or ``$NAMESPACE:{name}``."""
    if value == "$SYSTEM":
        return "$SYSTEM"
    for prefix, check in (("$RESOURCE:", resource), ("$NAMESPACE:", namespace)):
        if isinstance(value, str) and value.startswith(prefix):
            try:
                check(value.removeprefix(prefix))
            except InvalidNameError as error:
                reason = f"names nothing: {error.reason}"
                raise InvalidIdentifierError("entity_id", f"{prefix}{error.value}", reason) from None
            return value
    return entity_id(value)


def text(value: object, field: str) -> str:
    """Check a free text: a string that every store can keep."""
    if not isinstance(value, str):
        raise ValidationError(field, value, f"must be a string, not {type(value).__name__}")
    if _UNPRINTABLE.search(value):
        raise ValidationError(field, value, "must not contain control characters or lone surrogates")
    return value


def stored_id(value: object, field: str) -> str:
    """Check an id that this library has made: a text that is not empty."""
    if not text(value, field):
        raise ValidationError(field, value, "must not be empty; pass an id as a listing returns it")
    return str(value)


def principal(value: object) -> None:
    """Check who makes a change: a text, or nobody."""
    if value is not None:
        text(value, "principal")


def _name(
    value: object, field: str, pattern: re.Pattern[str], letters: str, most: int = 128, first: str = "a letter"
) -> str:
    value = _check_length(InvalidNameError, value, field, most)
    if not pattern.match(value):
        raise InvalidNameError(field, value, f"must start with {first} and then use only letters, digits, {letters}")
    return value


def resource(value: object, field: str = "resource") -> str:
    """Check a resource name: a letter, then letters, digits, ``_ - . / :``."""
    return _name(value, field, _RESOURCE, "'_', '-', '.', '/' and ':'")


def config_resource(value: object) -> str:
    """Check a resource name in entity limits, where ``_default_`` stands for every resource."""
    return DEFAULT_RESOURCE if value == DEFAULT_RESOURCE else resource(value)


def limit_name(value: object, field: str = "name") -> str:
    """Check a limit name: a letter, then letters, digits, ``_ - .``."""
    if value == INFRASTRUCTURE_LIMIT:
        raise InvalidNameError(field, value, "is reserved for the store's own write-pressure limit")
    return _name(value, field, _PLAIN, "'_', '-' and '.'")


def namespace(value: object, field: str = "namespace") -> str:
    """Check a namespace name: a letter or digit, then letters, digits, ``_ - .``. Return it as a plain string."""
    if isinstance(value, str) and any(mark in value for mark in ("://", "@", "=")):
        raise InvalidNameError(field, value, f"is not a namespace; {_URL_ADVICE}")
    return str(_name(value, field, _NAMESPACE, "'_', '-' and '.'", first="a letter or digit"))


def stack(value: object, field: str = "name") -> str:
    """Check a stack name: a letter, then letters, digits and hyphens, 3 to 55 characters."""
    if isinstance(value, str) and "://" in value:
        raise InvalidNameError(field, value, f"is not the name of a stack; {_URL_ADVICE}")
    if isinstance(value, str) and not is_plain(value):
        reason = "is neither the name of a stack nor a store URL, which begins with its scheme: redis://host:6379"
        raise InvalidNameError(field, show_url(value), reason)
    checked = _name(value, field, _STACK, "and hyphens", most=55)
    if len(checked) < 3:  # as the name of its table
        raise InvalidNameError(field, value, f"has {len(checked)} characters, at least 3 are needed")
    return checked


def check_ancestry(entity_id: str, ancestors: Sequence[str], height: int = 1) -> None:
    """Raise `ValidationError` for a parent that would close a cycle or exceed `MAX_DEPTH`.

    ``ancestors`` starts with the parent and goes up; ``height`` is the number of levels from the entity down, itself
    included.
    """
    parent = ancestors[0] if ancestors else None
    if entity_id in ancestors:
        path = " -> ".join((entity_id, *ancestors[: ancestors.index(entity_id) + 1]))
        raise ValidationError("parent_id", parent, f"would close a cycle: {path}")
    if len(ancestors) + height > MAX_DEPTH:
        path = " -> ".join(ancestors)
        raise ValidationError("parent_id", parent, f"would make the hierarchy deeper than {MAX_DEPTH} levels: {path}")


def validate_identifier(value: str, field_name: str = "entity_id") -> None:
    """Raise `InvalidIdentifierError` that names ``field_name`` unless ``value`` is an entity id."""
    entity_id(value, field_name)


def validate_name(value: str, field_name: str = "name") -> None:
    """Raise `InvalidNameError` that names ``field_name`` unless ``value`` is a name of a limit."""
    limit_name(value, field_name)


def validate_resource(value: str, field_name: str = "resource") -> None:
    """Raise `InvalidNameError` that names ``field_name`` unless ``value`` is a name of a resource."""
    resource(value, field_name)
