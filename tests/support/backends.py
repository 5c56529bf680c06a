"""The backends under test. A new store is added here, and to the tables by kind in a few tests."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from tests.support.aws import abilities, engine
from tests.support.aws.plain import Plain
from tests.support.redis import shared
from zae_limiter.stores.dynamodb.client import Client, open_client
from zae_limiter.stores.dynamodb.credentials import CredentialSource
from zae_limiter.stores.dynamodb.store import DynamoStore
from zae_limiter.stores.dynamodb.table import table_definition
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.stores.opening import open_store
from zae_limiter.stores.redis.settings import parse
from zae_limiter.stores.redis.store import open_redis
from zae_limiter.testing import Harness

if TYPE_CHECKING:
    from pathlib import Path

    from zae_limiter import Clock, Store

    Opener: TypeAlias = Callable[[Clock, bool], Store]

REGION = engine.region()
_COUNT = itertools.count()
_CREDENTIALS: dict[str, CredentialSource] = {}


@contextlib.contextmanager
def _memory(folder: Path) -> Iterator[Opener]:
    shared: list[MemoryStore] = []

    def opened(clock: Clock, blocking: bool) -> Store:
        if not shared:
            shared.append(MemoryStore(clock))
        return shared[0]

    yield opened


@contextlib.contextmanager
def _sqlite(folder: Path) -> Iterator[Opener]:
    path = folder / f"{next(_COUNT)}.db"
    yield lambda clock, blocking: open_store(f"sqlite:///{path}", blocking=blocking, clock=clock)


@contextlib.contextmanager
def dynamodb_table() -> Iterator[str]:
    """A fresh table of ours in the engine under test; it is gone afterwards."""
    name = f"zae-test-{engine.RUN}-{os.getpid()}-{next(_COUNT)}"
    definition = table_definition(name)
    with contextlib.closing(Plain(engine.endpoint())) as direct:
        direct.create(definition.pop("TableName"), **definition)
        try:
            yield name
        finally:
            direct.call("DeleteTable", TableName=name)


def dynamodb_client(table: str, *, blocking: bool) -> Client:
    """A client of the engine under test. All share their credentials: looking them up takes longer than most tests."""
    client = open_client(table, blocking=blocking, region=REGION, endpoint_url=engine.endpoint())
    client._credentials = _CREDENTIALS.setdefault(engine.endpoint(), client._credentials)
    return client


@contextlib.contextmanager
def _dynamodb(folder: Path) -> Iterator[Opener]:
    abilities.skip_where_lacking()
    with dynamodb_table() as name:
        yield lambda clock, blocking: DynamoStore(dynamodb_client(name, blocking=blocking), clock)


@contextlib.contextmanager
def _redis(folder: Path) -> Iterator[Opener]:
    with _redis_at(shared.server().url) as opener:
        yield opener


@contextlib.contextmanager
def _cluster(folder: Path) -> Iterator[Opener]:
    with _redis_at(shared.cluster().url) as opener:
        yield opener


@contextlib.contextmanager
def _redis_at(url: str) -> Iterator[Opener]:
    """Keys of its own in a server that all share; nobody clears it, as it is gone with the run."""
    settings = parse(f"{url}?prefix=t{os.getpid()}-{next(_COUNT)}")
    yield lambda clock, blocking: open_redis(settings, blocking=blocking, clock=clock)


@dataclass(frozen=True)
class Backend:
    """A kind of store and a mode."""

    kind: str
    blocking: bool
    opener: Callable[[Path], AbstractContextManager[Opener]]
    prefetch: float = 0

    def __str__(self) -> str:
        mode = "blocking" if self.blocking else "async"
        return f"{self.kind}-{mode}-prefetch-{self.prefetch:g}" if self.prefetch else f"{self.kind}-{mode}"

    @contextlib.contextmanager
    def harness(self, folder: Path) -> Iterator[Harness]:
        """A harness on fresh data; every store that was opened is closed at the end."""
        opened: list[Store] = []

        def open_and_note(opener: Opener, clock: Clock, blocking: bool) -> Store:
            store = opener(clock, blocking)
            opened.append(store)
            return store

        with self.opener(folder) as opener:
            opened_by = functools.partial(open_and_note, opener)
            made = Harness(opened_by, blocking=self.blocking, prefetch=self.prefetch)
            try:
                yield made
            finally:
                for store in opened:
                    made.run(store.close())


_KINDS = {"memory": _memory, "sqlite": _sqlite, "dynamodb": _dynamodb, "redis": _redis, "redis-cluster": _cluster}

BACKENDS = [Backend(kind, blocking, opener) for kind, opener in _KINDS.items() for blocking in (False, True)]

PREFETCHING = [
    replace(backend, prefetch=seconds) for backend in BACKENDS if backend.kind != "memory" for seconds in (0.5, 60)
]
"""Those on which tokens can be drawn in advance: of keys that are asked for often, and of nearly all keys."""

KEEPING = [backend for backend in BACKENDS if backend.kind != "dynamodb"]
"""Those whose writes keep usage; on DynamoDB the aggregator does."""
