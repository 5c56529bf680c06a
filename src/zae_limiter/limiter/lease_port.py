"""What a lease uses of the limiter that made it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..repository.backend import Backend
    from .availability import StoreAvailability
    from .chains import Chains
    from .engine import Engine
    from .grant import Grant, GrantFields
    from .holding import Holdings
    from .observers import Observers
    from .waiting import Lines


class Limiter(Protocol):
    """What a lease uses of the limiter that made it."""

    _availability: StoreAvailability
    _backend: Backend
    _chains: Chains
    _engine: Engine
    _holdings: Holdings
    _lines: Lines
    _observers: Observers

    @property
    def _take_now(self) -> Callable[[Any], GrantFields | None] | None: ...
    @property
    def _settle_now(self) -> Callable[[Any, GrantFields, Mapping[str, int]], bool] | None: ...

    async def _take(self, lease: Any, cost: Mapping[str, int], max_wait_ms: int, holder: str | None) -> Grant: ...
    async def flush(self) -> None: ...
    async def _check(self, lease: Any) -> None: ...
