"""Cursors as users see them: opaque text that is safe in URLs, shells and JSON."""

from __future__ import annotations

from contextlib import suppress

from ..core.errors import ValidationError

_MARK = "c1"


def encode(cursor: str | None) -> str | None:
    """Return a store's cursor in its opaque form."""
    if cursor is None:
        return None
    import base64

    return _MARK + base64.urlsafe_b64encode(cursor.encode()).decode().rstrip("=")


def decode(field: str, value: str | None) -> str | None:
    """Return the store's cursor of an opaque one. Raise `ValidationError` for anything else."""
    if value is None:
        return None
    if isinstance(value, str) and value.startswith(_MARK):
        import base64

        body = value.removeprefix(_MARK)
        with suppress(ValueError):
            return base64.b64decode(body + "=" * (-len(body) % 4), b"-_", validate=True).decode()
    raise ValidationError(field, value, "is not a cursor; pass the one that came with the previous page")
