"""Tags of a stack: ours, by which it is found, and the user's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._version import __version__
from ..records.namespace import SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping

MANAGED = "zae-limiter:managed"
VERSION = "zae-limiter:version"
SCHEMA = "zae-limiter:schema-version"
OLDER = ("ManagedBy", "zae-limiter")
"""The tag that versions before 1.0 gave their stacks."""


def stack_tags(tags: Mapping[str, str] | None) -> dict[str, str]:
    """Return the user's tags together with ours."""
    return {**(tags or {}), MANAGED: "true", VERSION: __version__, SCHEMA: SCHEMA_VERSION}


def user_tags(tags: Mapping[str, str]) -> dict[str, str] | None:
    """Return the user's tags of a stack, or None."""
    return {key: text for key, text in tags.items() if key not in (MANAGED, VERSION, SCHEMA)} or None
