"""Optional abilities of a remote store: a table that must be created, and calls that cost money."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..core.reports import BackendStats


@runtime_checkable
class Provisioned(Protocol):
    """A store whose table must exist before it can be used. It is only created on request."""

    async def create_table(
        self, *, wait: bool = True, tags: Mapping[str, str] | None = None, deletion_protection: bool = False
    ) -> None:
        """Create the table. A suitable one is left alone."""
        ...

    async def check_table(self) -> None:
        """Raise an error if the table is missing or unsuitable. Changes nothing."""
        ...


@runtime_checkable
class Metered(Protocol):
    """A store that counts its calls and what they cost."""

    def stats(self) -> BackendStats:
        """Return the counters as of now."""
        ...
