"""The backend: a store seen from one namespace. Everything above works through it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakSet

from .._version import __version__
from ..clock import Clock
from ..core import names
from ..core.errors import NamespaceNotFoundError, RateLimiterClosedError, VersionError
from ..core.values import AuditAction, AuditEvent, Namespace
from ..logs import AGGREGATOR_OUTDATED, log_event
from ..records import audit, keys, namespace, version
from ..records.algebra import Committed, Conflict, Image, Key, Page, Query, Write
from ..records.fields import iso
from ..records.ledger import BucketChange
from ..records.version import Deployed
from ..runtime.deadline import Deadline, stopwatch
from ..runtime.port import Runtime
from ..runtime.retries import tries
from ..runtime.single_flight import Once
from ..stores.bounded import MAX_CACHED_KEYS
from ..stores.opaque import opaque_id
from ..stores.port import KnowsCaller, Preparable, Replaceable, Store, UpdatesInPlace
from .cache import ConfigCache
from .last_seen import LastSeenBuckets

DEFAULT_NAMESPACE = "default"
AUDIT_RETENTION_DAYS = 90
BUCKET_TTL_MULTIPLIER = 7
"""How long an unused bucket is kept, as a multiple of the time that it takes to fill."""
MAX_MULTIPLIER = 1_000_000
"""Largest such multiple."""
MAX_PAGE = 10_000
"""Most records of one page."""
MAX_COMMIT = 100
"""Most writes of one commit: what every store takes."""
Prepare: TypeAlias = Callable[[], Awaitable[None]] | None
_SEQUENCE = itertools.count()


class BackendOptions(NamedTuple):
    """The options of a repository that its backend follows."""

    config_cache_ttl: float
    timeout: float | None
    max_cached_keys: int = MAX_CACHED_KEYS
    bucket_ttl_multiplier: int = BUCKET_TTL_MULTIPLIER


class Backend:
    """A store, a namespace in it, and the config cache."""

    def __init__(
        self,
        store: Store,
        runtime: Runtime,
        namespace_name: str,
        options: BackendOptions,
        prepare: Prepare | None = None,
    ) -> None:
        """Open a backend; ``prepare`` is called before the store is first used."""
        self.options = options
        self.store = store
        self.runtime = runtime
        self.prepared = None if prepare is None else Once(runtime, prepare)
        self.unprepared = store.prepare if isinstance(store, Preparable) else None
        """What the store needs before its first call; None once that is there."""
        self.clock: Clock = store.clock
        self._find_caller = store.find_caller if isinstance(store, KnowsCaller) else None
        self.namespace_name = namespace_name
        self.timeout = store.capabilities.timeout if options.timeout is None else options.timeout
        self.stopwatch = stopwatch(self.clock)
        self.cache = ConfigCache(options.config_cache_ttl, options.max_cached_keys)
        self.last_seen = LastSeenBuckets(options.max_cached_keys)
        self.audit_retention_days = AUDIT_RETENTION_DAYS
        self.has_records = store.has_records if isinstance(store, UpdatesInPlace) else None
        """Whether there is anything in a partition, where the store can tell at once."""
        self.prefetching: WeakSet[Any] = WeakSet()
        """The tokens that limiters hold, where they draw them in advance."""
        self.closed = False
        self._views: WeakSet[Backend] = WeakSet()
        self._is_view = False
        self._namespace_id: str | None = None
        self._warned = False
        if isinstance(store, Replaceable):
            store.on_replaced(self.leave_namespace)

    def log_fields(self) -> dict[str, object]:
        """Return the namespace and the kind of store, as fields of a log record."""
        return {"zae_namespace": self.namespace_name, "zae_backend": self.store.capabilities.name}

    def deadline(self, seconds: float | None = None) -> Deadline:
        """Return the deadline of a call that begins now."""
        seconds = self.timeout if seconds is None else seconds
        return Deadline(self.stopwatch() + seconds, seconds, self.stopwatch, seconds)

    async def begin(self, seconds: float | None = None) -> Deadline:
        """Return the deadline of a call that begins as soon as the store is prepared for calls."""
        if self.unprepared is not None:
            self.check_usable()
            await self.unprepared()
            self.unprepared = None
        return self.deadline(seconds)

    def check_usable(self) -> None:
        """Raise RuntimeError where the caller cannot wait for the store, `RateLimiterClosedError` after `close`."""
        self.runtime.check_running()
        if self.closed:
            raise RateLimiterClosedError

    async def close(self) -> None:
        """Close the store, and refuse whatever begins from now on; closing twice is fine, and a view closes nothing.

        With the cached config goes every remembered chain of levels, so that an acquire has to come to `ns` first.
        """
        self.runtime.check_running()
        if self._is_view:
            return
        for each in (self, *self._views):
            each.closed = True
            each.cache.clear()
        await self.store.close()

    def view(self, namespace_name: str, bucket_ttl_multiplier: int) -> Backend:
        """Return a backend of another namespace over the same store, which is usable until this one is closed."""
        options = self.options._replace(bucket_ttl_multiplier=bucket_ttl_multiplier)
        made = Backend(self.store, self.runtime, namespace_name, options)
        made.prepared, made.closed, made._is_view, made._views = self.prepared, self.closed, True, self._views
        self._views.add(made)
        return made

    @property
    def namespace_id(self) -> str | None:
        """The id of the namespace; None before its first use."""
        return self._namespace_id

    async def ns(self, deadline: Deadline) -> str:
        """Return the id of the namespace; the default one is registered on first use.

        Data that this client cannot work with are refused here, before anything is done with them.
        """
        self.check_usable()
        if self._namespace_id is None:
            self._namespace_id = await self._open_namespace(deadline)
        return self._namespace_id

    async def _open_namespace(self, deadline: Deadline) -> str:
        if self.prepared is not None:
            await self.prepared.finish(deadline)
        key = keys.namespace(self.namespace_name)
        found, stamped = await self.read([key, version.KEY], deadline)
        deployed = version.decode(stamped)
        version.check(deployed, __version__)
        self.audit_retention_days = deployed.audit_retention_days or AUDIT_RETENTION_DAYS
        if deployed.aggregator is not None and not self._warned:
            self._warned = True
            log_aggregator_warning(deployed)
        if found is None:
            await self.check_registrable(deadline)
            if self.namespace_name == DEFAULT_NAMESPACE:
                writes = namespace.register(self.new_namespace(DEFAULT_NAMESPACE))
                outcome = await self.store.commit(writes, timeout=deadline.left())
                found = outcome.images[0] if isinstance(outcome, Committed) else (await self.read([key], deadline))[0]
            if found is None:
                message = f"Namespace {self.namespace_name!r} is not registered; register it first."
                raise NamespaceNotFoundError(message, namespace_name=self.namespace_name)
        return namespace.decode(found).id

    async def check_registrable(self, deadline: Deadline) -> None:
        """Raise `VersionError` for a store to which no namespace may be added: its version or its data do not fit."""
        stamped, *older = await self.read([version.KEY, *version.UNPREFIXED], deadline)
        version.check(version.decode(stamped), __version__)
        version.check_has_namespaces(stamped, older)

    def leave_namespace(self) -> None:
        """Forget what was read of the namespace: the next call looks it up again."""
        self._namespace_id = None
        self.cache.clear()

    def new_namespace(self, name: str) -> Namespace:
        """Return a namespace with a new opaque id of 11 characters."""
        return Namespace(name, opaque_id(), namespace.ACTIVE, iso(self.clock.now_ms()))

    async def read(self, wanted: Sequence[Key], deadline: Deadline) -> list[Image | None]:
        """Return the current images."""
        self.check_usable()
        return await self.store.read(wanted, timeout=deadline.left())

    async def commit(self, writes: Sequence[Write], deadline: Deadline) -> bool:
        """Apply all writes or none; return False if another client was faster."""
        self.check_usable()
        return isinstance(await self.store.commit(writes, timeout=deadline.left()), Committed)

    async def commit_changes(self, changes: Sequence[BucketChange], deadline: Deadline) -> Committed | Conflict:
        """Apply changes of buckets with the usage that belongs to them, all or none, also after `close`.

        The images are those of the buckets.
        """
        writes = [change.write for change in changes]
        accruals = [accrual for change in changes for accrual in change.accruals]
        if not accruals:
            return await self.store.commit(writes, timeout=deadline.left())
        outcome = await self.store.commit([*writes, *accruals], timeout=deadline.left())
        return Committed(outcome.images[: len(writes)]) if isinstance(outcome, Committed) else outcome

    async def query(self, query: Query, deadline: Deadline) -> Page:
        """Return one page of a range, with nothing from another namespace than that of its key."""
        self.check_usable()
        own = query._replace(namespace=f"{query.pk.partition('/')[0]}/")
        return await self.store.query(own, timeout=deadline.left())

    async def change(
        self,
        wanted: Sequence[Key],
        plan: Callable[[list[Image | None]], Sequence[Write]],
        deadline: Deadline,
    ) -> None:
        """Read, plan, commit; again from the start if the records changed in between."""
        for _ in tries(wanted[0].pk):
            writes = plan(await self.read(wanted, deadline))
            if not writes or await self.commit(writes, deadline):
                return

    async def collect(self, query: Query, deadline: Deadline) -> list[tuple[Key, Image]]:
        """Return all records of a range, page by page."""
        return (await self.collect_some(query, None, deadline))[0]

    async def collect_some(
        self, query: Query, most: int | None, deadline: Deadline
    ) -> tuple[list[tuple[Key, Image]], bool]:
        """Return the first ``most`` records of a range, page by page, and whether these are all."""
        found: list[tuple[Key, Image]] = []
        while True:
            page_size = query.limit if most is None else min(query.limit, most - len(found))
            page = await self.query(query._replace(limit=page_size), deadline)
            found += page.items
            if page.cursor is None or len(found) == most:
                return found, page.cursor is None
            query = query._replace(after=page.cursor)

    async def principal(self, given: str | None, deadline: Deadline) -> str | None:
        """Return who makes a change, for `event`: as ``given``, else whose credentials the store uses, if it knows.

        Finding that out takes at most half of the time that is left.
        """
        if given is not None or self._find_caller is None:
            return given
        return await self._find_caller(deadline.left() / 2)

    def event(
        self,
        ns: str,
        action: AuditAction,
        subject: str,
        principal: str | None,
        resource: str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> Write:
        """Return the write that records a change; it goes into the commit of the change itself."""
        now_ms = self.clock.now_ms()
        event_id = audit.event_id(now_ms, f"{next(_SEQUENCE):08x}{os.urandom(4).hex()}")
        event = AuditEvent(event_id, iso(now_ms), action.value, subject, principal, resource, details or {})
        return audit.record(ns, event, now_ms + self.audit_retention_days * 86_400_000)


async def check_compatibility(
    read: Callable[[Sequence[Key]], Awaitable[list[Image | None]]], namespace_name: str
) -> tuple[Deployed, VersionError | None]:
    """Return the versions of a store, and why this client cannot open the namespace, if so. Registers nothing."""
    stamped, found, *older = await read([version.KEY, keys.namespace(namespace_name), *version.UNPREFIXED])
    deployed = version.decode(stamped)
    if found is None and version.is_before_namespaces(stamped, older):
        return deployed._replace(schema=version.BEFORE_NAMESPACES), version.mismatch(f"has {version.BEFORE_NAMESPACES}")
    try:
        version.check(deployed, __version__)
        if found is not None:
            namespace.decode(found)
    except VersionError as problem:
        return deployed, problem
    return deployed, None


def log_aggregator_warning(deployed: Deployed) -> None:
    """Log a warning if the aggregator has another version."""
    warning = version.aggregator_warning(deployed, __version__)
    if warning is not None:
        versions = {"zae_aggregator_version": deployed.aggregator, "zae_client_version": __version__}
        log_event(AGGREGATOR_OUTDATED, "%s", warning, **versions)


class SharedBackend(Backend):
    """A backend that shares all state with another one, except the store and the runtime.

    A limiter may replace its store, and threads have both of their own.
    """

    __slots__ = ("runtime", "store")

    def __init__(self, shared: Backend, store: Store | None = None, runtime: Runtime | None = None) -> None:
        self.__dict__ = shared.__dict__
        self.store = shared.store if store is None else store
        self.runtime = shared.runtime if runtime is None else runtime


class Operations:
    """A group of operations over one backend. Repository and limiter are composed of these."""

    _backend: Backend

    async def _deadline(self) -> Deadline:
        """Return the deadline of a call that starts now. A limiter with a time of its own replaces this."""
        return await self._backend.begin()

    async def _begin(self) -> tuple[Deadline, str]:
        """Return the deadline of a call that starts now, and the id of the namespace."""
        deadline = await self._deadline()
        return deadline, await self._backend.ns(deadline)

    async def _begin_change(self, principal: str | None) -> tuple[Deadline, str, str | None]:
        """Return the same, and who makes a change. Raise `ValidationError` for an invalid ``principal``."""
        names.principal(principal)
        deadline, ns = await self._begin()
        return deadline, ns, await self._backend.principal(principal, deadline)

    async def _begin_steps(self) -> tuple[Deadline, str]:
        """Return the same for a call over any number of records: each page or step has the full time."""
        deadline = (await self._deadline()).for_each_step()
        return deadline, await self._backend.ns(deadline)
