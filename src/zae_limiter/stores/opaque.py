"""Opaque strings: random ids, and cursors that are safe in URLs, shells and JSON."""

from __future__ import annotations

from contextlib import suppress

from ..core.errors import ValidationError

_MARK = "c1"


def opaque_id() -> str:
    """Return eleven random characters that fit into a key and into a shell."""
    from secrets import token_urlsafe  # on first use: it brings the cryptography modules along

    found = token_urlsafe(8)
    while not found[0].isalnum():  # an id that starts with a hyphen looks like an option to a shell
        found = token_urlsafe(8)
    return found


def encode_cursor(cursor: str | None) -> str | None:
    """Return a store's cursor in its opaque form."""
    if cursor is None:
        return None
    import base64

    return _MARK + base64.urlsafe_b64encode(cursor.encode()).decode().rstrip("=")


def decode_cursor(field: str, value: str | None) -> str | None:
    """Return the store's cursor of an opaque one. Raise `ValidationError` for anything else."""
    if value is None:
        return None
    if isinstance(value, str) and value.startswith(_MARK):
        import base64

        body = value.removeprefix(_MARK)
        with suppress(ValueError):
            return base64.b64decode(body + "=" * (-len(body) % 4), b"-_", validate=True).decode()
    raise ValidationError(field, value, "is not a cursor; pass the one that came with the previous page")
