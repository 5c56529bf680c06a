"""A server, a proxy in front of it and a mode: what most tests of Redis run over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.stores.redis.support import Driven, driven
from tests.support.modes import MODES
from tests.support.redis.proxy import Proxy
from tests.support.redis.server import Server


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    """The server of a module; most want it empty: `server`."""
    with Server() as started:
        yield started


@pytest.fixture
def server(running: Server) -> Server:
    """A server with nothing in it."""
    running.flush()
    return running


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    """What can lose answers of the server."""
    with Proxy(server) as started:
        yield started


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> Iterator[Driven]:
    """Async or blocking; what was opened is closed at the end."""
    with driven(request.param) as made:
        yield made
