"""Extra abilities of a store outside the process: a table that somebody has to create, and calls that cost money."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..core.values import BackendStats


@runtime_checkable
class Provisioned(Protocol):
    """A store whose table has to exist before it can be used. It is never created unless that is asked for."""

    async def create_table(
        self, *, wait: bool = True, tags: Mapping[str, str] | None = None, deletion_protection: bool = False
    ) -> None:
        """Create the table; one that is there already and fits is left as it is."""
        ...

    async def check_table(self) -> None:
        """Refuse a table that is missing or does not fit; nothing is changed."""
        ...


@runtime_checkable
class Metered(Protocol):
    """A store that counts its calls and what they cost."""

    def stats(self) -> BackendStats:
        """The counters as of now."""
        ...
