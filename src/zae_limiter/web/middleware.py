"""The base of the middlewares for ASGI and WSGI: an app and the limiter of its requests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic, TypeVar

from ..core.errors import ValidationError
from .fields import Fields
from .prefixes import Prefixes
from .proxies import Proxies
from .request_limiter import RequestLimiter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..core.limit import Limit
    from ..limiter.limiter import RateLimiter
    from ..sync.facade import SyncRateLimiter
    from .request_limiter import Respond
    from .rules import Key, Rule

AppT = TypeVar("AppT")
LimiterT = TypeVar("LimiterT", "RateLimiter", "SyncRateLimiter")


class Middleware(ABC, Generic[AppT, LimiterT]):
    """An app whose requests are limited. `zae_limiter.web.asgi.RateLimitMiddleware` explains the parameters."""

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
        self._opened_here = isinstance(limiter, str)
        opened = open_limiter(limiter, self._limiter_type())
        self.limiter: RequestLimiter = RequestLimiter(
            opened, rules, limits, key, Proxies.of(proxies), Fields.of(headers), respond
        )

    @abstractmethod
    def _limiter_type(self) -> type[LimiterT]:
        """Return the class of limiter that serves this kind of app."""

    async def _close_store(self) -> None:
        """Close the store of a limiter that was opened here. The next request opens it again.

        A server may end the lifespan of an app that goes on serving: an app without lifespan ends it at once.
        """
        if self._opened_here:
            await self.limiter.limiter.repository.store.close()


def open_limiter(limiter: LimiterT | str, kind: type[LimiterT]) -> LimiterT:
    """Return a limiter, opened where ``limiter`` is the URL of a store. Raises `ValidationError` for anything else."""
    opened = kind(limiter) if isinstance(limiter, str) else limiter
    if not isinstance(opened, kind):
        raise ValidationError("limiter", limiter, f"must be a {kind.__name__} or a store URL such as 'memory://'")
    return opened
