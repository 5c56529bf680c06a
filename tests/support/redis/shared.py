"""The server and the cluster that most tests share: one of each per test run, started by the first test that asks."""

from __future__ import annotations

import atexit
import functools
import os

from tests.support.redis.cluster import Cluster
from tests.support.redis.endpoint import Endpoint
from tests.support.redis.server import Server

URL = "ZAE_TEST_REDIS_URL"


@functools.cache
def server() -> Endpoint:
    """The server named by the environment, else one of our own. It is everybody's: it can be flushed, not killed."""
    given = os.environ.get(URL)
    if given:
        found = Endpoint(given)
        atexit.register(found.close)
        return found
    started = Server()
    atexit.register(started.close)  # which leaves it alone in a fork
    started.start()
    return started


@functools.cache
def cluster() -> Cluster:
    """Three masters of our own."""
    started = Cluster()
    atexit.register(started.close)
    started.start()
    return started
