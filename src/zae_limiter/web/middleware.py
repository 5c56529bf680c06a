"""What the middlewares for ASGI and WSGI are made from: an app and its guard."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic, TypeVar

from .fields import Fields
from .guard import Guard
from .prefixes import Prefixes
from .proxies import Proxies

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..core.limit import Limit
    from .guard import Respond
    from .modes import Mode
    from .rules import Key, Rule

AppT = TypeVar("AppT")
LimiterT = TypeVar("LimiterT")


class Middleware(ABC, Generic[AppT, LimiterT]):
    """An app behind a guard."""

    def __init__(
        self,
        app: AppT,
        limiter: LimiterT | str,
        *,
        limits: Sequence[Limit] | None = None,
        rules: Sequence[Rule] | None = None,
        key: Key | None = None,
        proxies: Proxies | int | Sequence[str] | None = None,
        headers: Fields | str | Sequence[str] | None = "ietf",
        respond: Respond | None = None,
        prefixes: Sequence[str] | None = None,
    ) -> None:
        self.app = app
        self._prefixes = Prefixes(prefixes, app)
        self.guard: Guard = Guard(
            self._mode(limiter), rules, limits, key, Proxies.of(proxies), Fields.of(headers), respond
        )

    @abstractmethod
    def _mode(self, limiter: LimiterT | str) -> Mode:
        """How leases of the limiter are held."""
