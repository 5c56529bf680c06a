"""Validate names and identifiers.

Everything that a user names becomes part of a storage key in which ``#`` separates the parts, so no part may contain
it. Validation happens before any I/O, and the error names field, value and reason.
"""

from __future__ import annotations

import re

from .validation import InvalidIdentifierError, InvalidNameError, ValidationError

DEFAULT_RESOURCE = "_default_"
"""The resource name under which an entity's limits for all resources are stored."""

RESERVED_NAMESPACE = "_"
"""The namespace of the registry itself."""

INFRASTRUCTURE_LIMIT = "wcu"
"""The name of the hidden limit that tracks write pressure on a bucket's partition."""

ADDRESS_TAG = "ip:"
"""The prefix of entity ids that are addresses of clients. The middleware makes them, and anybody may."""

_ENTITY_MAX = 256
_ENTITY_BYTES = 900
"""An id is part of sort keys, and DynamoDB's have 1,024 bytes."""
_NAME_MAX = 128
_STACK_MIN = 3
"""A stack's table has its name, and those of DynamoDB have three characters at least."""
_STACK = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,54}\Z")
_RESOURCE = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*\Z")
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*\Z")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def is_address(entity_id: str) -> bool:
    """Return whether an entity id is the address of a client, of which there can be any number."""
    return entity_id.startswith(ADDRESS_TAG)


def entity_id(value: object, field: str = "entity_id") -> str:
    """Check an entity id: 1 to 256 characters of at most 900 bytes in UTF-8, no ``#``, no control characters."""
    if not isinstance(value, str):
        raise InvalidIdentifierError(field, value, f"must be a string, not {type(value).__name__}")
    if not value:
        raise InvalidIdentifierError(field, value, "must not be empty")
    if len(value) > _ENTITY_MAX:
        raise InvalidIdentifierError(
            field, value, f"has {len(value)} characters, at most {_ENTITY_MAX} are allowed; hash longer ids first"
        )
    if len(value) * 4 > _ENTITY_BYTES and len(value.encode(errors="replace")) > _ENTITY_BYTES:
        size = len(value.encode(errors="replace"))
        reason = f"has {size} bytes in UTF-8, at most {_ENTITY_BYTES} are allowed; hash longer ids first"
        raise InvalidIdentifierError(field, value, reason)
    if "#" in value:
        raise InvalidIdentifierError(field, value, "must not contain '#', which separates the parts of a storage key")
    if _UNPRINTABLE.search(value):
        raise InvalidIdentifierError(field, value, "must not contain control characters or lone surrogates")
    if value == "$SYSTEM" or value.startswith(("$RESOURCE:", "$NAMESPACE:")):
        raise InvalidIdentifierError(field, value, "is reserved for the audit log; choose another id")
    return value


def audit_subject(value: object, field: str = "entity_id") -> str:
    """Check the subject of audit events: an entity id, ``$SYSTEM``, ``$RESOURCE:{name}`` or ``$NAMESPACE:{name}``."""
    if value == "$SYSTEM":
        return "$SYSTEM"
    for prefix, check in (("$RESOURCE:", resource), ("$NAMESPACE:", namespace)):
        if isinstance(value, str) and value.startswith(prefix):
            try:
                check(value.removeprefix(prefix))
            except InvalidNameError as error:
                raise InvalidIdentifierError(field, value, f"names nothing: {error.reason}") from None
            return value
    return entity_id(value, field)


def text(value: object, field: str) -> str:
    """Check a free text: a string that every store can keep."""
    if not isinstance(value, str):
        raise ValidationError(field, value, f"must be a string, not {type(value).__name__}")
    if _UNPRINTABLE.search(value):
        raise ValidationError(field, value, "must not contain control characters or lone surrogates")
    return value


def principal(value: object) -> None:
    """Check who makes a change: a text, or nobody."""
    if value is not None:
        text(value, "principal")


def _name(value: object, field: str, pattern: re.Pattern[str], letters: str, limit: int = _NAME_MAX) -> str:
    if not isinstance(value, str):
        raise InvalidNameError(field, value, f"must be a string, not {type(value).__name__}")
    if not value:
        raise InvalidNameError(field, value, "must not be empty")
    if len(value) > limit:
        raise InvalidNameError(field, value, f"has {len(value)} characters, at most {limit} are allowed")
    if not pattern.match(value):
        raise InvalidNameError(field, value, f"must start with a letter and then use only letters, digits, {letters}")
    return value


def resource(value: object, field: str = "resource") -> str:
    """Check a resource name: a letter, then letters, digits, ``_ - . /``."""
    return _name(value, field, _RESOURCE, "'_', '-', '.' and '/'")


def config_resource(value: object, field: str = "resource") -> str:
    """Check a resource name in entity limits, where ``_default_`` stands for every resource."""
    return DEFAULT_RESOURCE if value == DEFAULT_RESOURCE else resource(value, field)


def limit_name(value: object, field: str = "name") -> str:
    """Check a limit name: a letter, then letters, digits, ``_ - .``."""
    if value == INFRASTRUCTURE_LIMIT:
        raise InvalidNameError(field, value, "is reserved for the store's own write-pressure limit")
    return _name(value, field, _PLAIN, "'_', '-' and '.'")


def namespace(value: object, field: str = "namespace") -> str:
    """Check a namespace name: a letter, then letters, digits, ``_ - .``."""
    return _name(value, field, _PLAIN, "'_', '-' and '.'")


def stack(value: object, field: str = "name") -> str:
    """Check a stack name: a letter, then letters, digits and hyphens, 3 to 55 characters."""
    checked = _name(value, field, _STACK, "and hyphens", limit=55)
    if len(checked) < _STACK_MIN:
        raise InvalidNameError(field, value, f"has {len(checked)} characters, at least {_STACK_MIN} are needed")
    return checked
