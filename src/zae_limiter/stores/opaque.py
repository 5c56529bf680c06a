"""Opaque ids, for what must be told apart by no more than chance."""

from __future__ import annotations


def opaque_id() -> str:
    """Return eleven random characters that fit into a key and into a shell."""
    from secrets import token_urlsafe  # on first use: it brings the cryptography modules along

    found = token_urlsafe(8)
    while not found[0].isalnum():  # an id that starts with a hyphen looks like an option to a shell
        found = token_urlsafe(8)
    return found
