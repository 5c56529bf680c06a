"""Cursors as users see them: opaque text that a URL, a shell and JSON can carry."""

from __future__ import annotations

import base64
import binascii

from ..core.errors import ValidationError

_MARK = "c1"


def encode(cursor: str | None) -> str | None:
    """A store's cursor for the outside."""
    if cursor is None:
        return None
    return _MARK + base64.urlsafe_b64encode(cursor.encode()).decode().rstrip("=")


def decode(field: str, value: str | None) -> str | None:
    """The store's cursor again; anything else is an error before any I/O."""
    if value is None:
        return None
    if isinstance(value, str) and value.startswith(_MARK):
        body = value.removeprefix(_MARK)
        try:
            return base64.b64decode(body + "=" * (-len(body) % 4), b"-_", validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            pass
    raise ValidationError(field, value, "is no cursor; pass what the page before came with")
