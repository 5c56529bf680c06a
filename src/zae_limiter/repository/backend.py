"""The backend: a store seen from one namespace. Everything above works through it."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Any

from ..core.errors import NamespaceNotFoundError, RateLimiterUnavailable
from ..core.values import AuditAction, AuditEvent, Namespace
from ..records import audit, keys, namespace
from ..records.algebra import Committed, Image, Key, Query, Write
from ..records.instants import iso
from .cache import ConfigCache
from .sights import Sights

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..clock import Clock
    from ..runtime.port import Runtime
    from ..stores.port import Store

DEFAULT_NAMESPACE = "default"
AUDIT_RETENTION_DAYS = 90
_SEQUENCE = itertools.count()


class Backend:
    """A store, a namespace in it, and the config cache."""

    def __init__(
        self,
        store: Store,
        runtime: Runtime,
        namespace_name: str,
        config_cache_ttl: float,
        timeout: float | None,
    ) -> None:
        self.store = store
        self.runtime = runtime
        self.clock: Clock = store.clock
        self.namespace_name = namespace_name
        self.timeout = timeout
        self.cache = ConfigCache(config_cache_ttl)
        self.sights = Sights()
        self._namespace_id: str | None = None

    async def ns(self, timeout: float | None = None) -> str:
        """The id of the namespace; the default one is registered on first use."""
        if self._namespace_id is None:
            key = keys.namespace(self.namespace_name)
            found = (await self.read([key], timeout))[0]
            if found is None and self.namespace_name == DEFAULT_NAMESPACE:
                found = await self._register_default(key, timeout)
            if found is None:
                raise NamespaceNotFoundError(
                    f"Namespace {self.namespace_name!r} is not registered. Register it with "
                    "register_namespace() or `zae-limiter namespace register`."
                )
            self._namespace_id = namespace.decode(found).id
        return self._namespace_id

    def leave_namespace(self, name: str) -> None:
        """Look a namespace up again that is not what it was."""
        if name == self.namespace_name:
            self._namespace_id = None
            self.cache.clear()

    async def _register_default(self, key: Key, timeout: float | None) -> Image | None:
        writes = namespace.register(self.new_namespace(self.namespace_name))
        outcome = await self.store.commit(writes, timeout=self.timeout if timeout is None else timeout)
        if isinstance(outcome, Committed):
            return outcome.images[0]
        return (await self.read([key], timeout))[0]

    def new_namespace(self, name: str) -> Namespace:
        """A namespace with a fresh opaque id of 11 characters."""
        from secrets import token_urlsafe  # on first use: it brings the cryptography modules along

        opaque = token_urlsafe(8)
        while not opaque[0].isalnum():  # an id that starts with a hyphen looks like an option to a shell
            opaque = token_urlsafe(8)
        return Namespace(name, opaque, namespace.ACTIVE, iso(self.clock.now_ms()))

    async def read(self, wanted: Sequence[Key], timeout: float | None = None) -> list[Image | None]:
        """The current images."""
        return await self.store.read(wanted, timeout=self.timeout if timeout is None else timeout)

    async def commit(self, writes: Sequence[Write]) -> bool:
        """Apply all writes or none; False where somebody else was faster."""
        return isinstance(await self.store.commit(writes, timeout=self.timeout), Committed)

    async def change(self, wanted: Sequence[Key], plan: Callable[[list[Image | None]], Sequence[Write]]) -> None:
        """Read, plan, commit; again from the start if the records changed in between."""
        for _ in range(100):
            writes = plan(await self.read(wanted))
            if not writes or await self.commit(writes):
                return
        raise RateLimiterUnavailable(f"{wanted[0].pk} is being changed by others all the time; try again later.")

    async def collect(self, query: Query, most: int | None = None) -> list[tuple[Key, Image]]:
        """All records of a range, page by page, or the first ``most``."""
        found: list[tuple[Key, Image]] = []
        while True:
            page = await self.store.query(query, timeout=self.timeout)
            found += page.items
            if page.cursor is None or (most is not None and len(found) >= most):
                return found[:most]
            query = query._replace(after=page.cursor)

    def event(
        self,
        ns: str,
        action: AuditAction,
        subject: str,
        principal: str | None,
        resource: str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> Write:
        """The write that records a change; it goes into the commit of the change itself."""
        now_ms = self.clock.now_ms()
        event = AuditEvent(
            event_id=audit.event_id(now_ms, f"{next(_SEQUENCE):08x}{os.urandom(4).hex()}"),
            timestamp=iso(now_ms),
            action=action.value,
            entity_id=subject,
            principal=principal,
            resource=resource,
            details=details or {},
        )
        return audit.record(ns, event, now_ms + AUDIT_RETENTION_DAYS * 86_400_000)
