"""The tags of a stack: those by which it is known as ours, and those of its user."""

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


def of_stack(tags: Mapping[str, str] | None) -> dict[str, str]:
    """The user's tags and ours."""
    return {**(tags or {}), MANAGED: "true", VERSION: __version__, SCHEMA: SCHEMA_VERSION}


def of_user(tags: Mapping[str, str]) -> dict[str, str] | None:
    """The user's tags of a stack; None where there are none."""
    return {key: text for key, text in tags.items() if key not in (MANAGED, VERSION, SCHEMA)} or None
