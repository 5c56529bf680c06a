"""A site as a test sees it: a port, a stage, and the balances."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.web.apps import FULL, LIMITS, Stores, asgi_site, wsgi_site
from tests.web.servers.asgi import hypercorn, uvicorn
from tests.web.servers.calls import FIVE
from tests.web.servers.client import Connection, Response
from tests.web.servers.gunicorn import gunicorn
from tests.web.servers.stage import Stage
from tests.web.servers.wsgi import waitress
from zae_limiter import Limit, RateLimiter, SyncRateLimiter
from zae_limiter.clock import Clock
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import Fault, FaultyStore, ManualClock

BLOB = b"".join(hashlib.sha256(b"%d" % number).digest() for number in range(98_304)) + b"tail"
"""Three MiB and a bit, no two parts alike."""


@dataclass(frozen=True, slots=True)
class Site:
    """A running server; ``ledger`` is a limiter on the same data as the server's."""

    name: str
    port: int
    stage: Stage
    ledger: SyncRateLimiter

    @property
    def reads_ahead(self) -> bool:
        """Whether the app is called only when the whole request has arrived."""
        return self.name == "waitress"

    @property
    def keeps(self) -> bool:
        """Whether a connection is kept although the app has left a body unread."""
        return self.name in ("uvicorn", "waitress")

    @property
    def hurries(self) -> bool:
        """Whether a body is asked for with 100 Continue although the app has not asked for it."""
        return self.name in ("hypercorn", "waitress", "gunicorn-wsgi")

    @property
    def is_deaf(self) -> bool:
        """Whether an app learns that its client has left only when it sends something."""
        return self.name in ("waitress", "gunicorn-wsgi")

    @property
    def cancels(self) -> bool:
        """Whether the app's task is cancelled when the client leaves."""
        return self.name == "gunicorn-asgi"


@dataclass(frozen=True, slots=True)
class Visit:
    """What one test does at a site: it is a client of its own."""

    site: Site
    client: str

    def connect(self) -> Connection:
        """A new connection."""
        return Connection(self.site.port)

    def ask(self, path: str, method: str = "GET", *, headers: Sequence[tuple[str, str]] = ()) -> Response:
        """A request on a connection of its own, and its answer."""
        with self.connect() as connection:
            return connection.ask(method, path, self.client, headers=headers)

    def tell(self, name: str) -> None:
        """Let the app go on."""
        self.site.stage.note(self.client, name)

    def hear(self, name: str, count: int = 1) -> list[str]:
        """Wait for the app."""
        return self.site.stage.wait(self.client, name, count)

    def heard(self, name: str) -> list[str]:
        """What the app has said so far."""
        return self.site.stage.notes(self.client, name)

    def left(
        self, resource: str = "api", limits: Sequence[Limit] = LIMITS, client: str | None = None
    ) -> dict[str, int]:
        """The balances at this moment."""
        return self.site.ledger.available(client or self.client, resource, limits=limits)

    def in_flight(self, resource: str = "five") -> int:
        """How many slots are taken at this moment."""
        return 5 - self.left(resource, FIVE)["parallel"]

    def spend(self, **amounts: int) -> None:
        """Take tokens behind the server's back."""
        with self.site.ledger.acquire(self.client, "api", amounts, limits=LIMITS):
            pass

    def charged(self, **amounts: int) -> None:
        """Check what has been taken so far, exactly."""
        assert self.left() == {name: full - amounts.get(name, 0) for name, full in FULL.items()}

    def settled(self, calls: int = 1, **amounts: int) -> None:
        """Wait until the middleware has returned from ``calls`` calls: then all is settled and stays so."""
        assert len(self.hear("over", calls)) == calls
        self.charged(**amounts)


@contextlib.contextmanager
def opened(server: str, folder: Path, clock: Callable[[], Clock] = ManualClock) -> Iterator[Site]:
    """A site on one of the servers: ``uvicorn``, ``hypercorn``, ``waitress``, ``gunicorn-asgi``, ``gunicorn-wsgi``.

    ``clock`` is for the servers in this process; those on a file go by the system's.
    """
    stage = Stage(folder)
    (folder / "blob.bin").write_bytes(BLOB)
    running: contextlib.AbstractContextManager[int]
    if server.startswith("gunicorn"):
        url = f"sqlite:///{folder / 'limits.db'}"
        app = f"tests.web.apps:{server.removeprefix('gunicorn-')}_in_file({url!r}, {str(folder)!r})"
        running = gunicorn(app, folder / "server.log", *WORKERS[server])
        ledger = SyncRateLimiter(url)
    else:
        store = MemoryStore(clock())
        ledger = SyncRateLimiter(store)
        running = THREADS[server](store, stage)
    with ledger, running as port:
        yield Site(server, port, stage, ledger)


WORKERS = {
    "gunicorn-asgi": ("--worker-class", "asgi", "--asgi-lifespan", "on", "--asgi-disconnect-grace-period", "0"),
    "gunicorn-wsgi": ("--worker-class", "gthread", "--workers", "2", "--threads", "8", "--preload"),
}


def _uvicorn(store: MemoryStore, stage: Stage) -> contextlib.AbstractContextManager[int]:
    return uvicorn(asgi_site(_stores(RateLimiter, store), stage))


def _hypercorn(store: MemoryStore, stage: Stage) -> contextlib.AbstractContextManager[int]:
    """On a store that gives way to others at each call, as one behind a network does."""
    return hypercorn(asgi_site(_stores(RateLimiter, FaultyStore(store, suspend=True)), stage))


def _waitress(store: MemoryStore, stage: Stage) -> contextlib.AbstractContextManager[int]:
    return waitress(wsgi_site(_stores(SyncRateLimiter, store), stage))


THREADS = {"uvicorn": _uvicorn, "hypercorn": _hypercorn, "waitress": _waitress}


def _stores(kind: type[RateLimiter] | type[SyncRateLimiter], main: MemoryStore | FaultyStore) -> Stores:
    """A store, and two that are down."""
    down = FaultyStore(MemoryStore(ManualClock()))
    down.inject(Fault.FAIL_BEFORE, times=1_000)
    return Stores(kind(main), *(kind(down, on_unavailable=policy) for policy in ("block", "allow")))


def served_by(*servers: str, clock: Callable[[], Clock] = ManualClock) -> Any:
    """A fixture ``site``: one server for all tests of a module; they do not meet, as each is a client of its own."""

    @pytest.fixture(scope="module", params=servers)
    def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
        with opened(request.param, tmp_path_factory.mktemp("site"), clock) as found:
            yield found

    return site
