"""What the tests of the Redis store share: limiters and stores in either mode, called as blocking code."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, Self, TypeVar

from tests.support import ports
from tests.support.modes import Mode
from tests.support.redis.endpoint import Endpoint
from tests.support.redis.resp import Frames, command_name
from zae_limiter import AccessDeniedError, Limit, RateLimiter, RateLimiterUnavailable, RateLimitExceeded
from zae_limiter.stores.redis.settings import parse
from zae_limiter.stores.redis.store import RedisStore, open_redis
from zae_limiter.sync import BlockingRateLimiter

T = TypeVar("T")

RPM = [Limit.per_hour("rpm", 100)]
"""So slow a refill that no test sees any of it."""


class Driven(Mode):
    """A mode in which limiters and stores are opened."""

    def __init__(self, mode: str) -> None:
        super().__init__(mode)
        self._opened: list[RateLimiter | RedisStore] = []

    def limiter(self, url_or_store: str | RedisStore, **options: Any) -> RateLimiter:
        """A limiter that is closed at the end."""
        made = (BlockingRateLimiter if self.blocking else RateLimiter)(url_or_store, **options)
        self._opened.append(made)
        return made

    def store(self, url: str, **options: Any) -> RedisStore:
        """A store that is closed at the end."""
        made = open_redis(parse(url), blocking=self.blocking, **options)
        self._opened.append(made)
        return made

    def take(self, limiter: RateLimiter, amount: int = 1, entity: str = "key", **options: Any) -> str:
        """What comes of an acquire: ``granted``, ``refused``, ``degraded`` or ``unavailable``."""
        return self.run(take(limiter, amount, entity, **options))

    def left(self, url: str, entity: str = "key") -> int:
        """What a client of its own sees in the bucket."""
        return self.run(self.limiter(url).available(entity, "gpt-4", RPM))["rpm"]

    def close(self) -> None:
        """Close whatever was opened, then the loop."""
        for opened in self._opened:
            self.run(opened.close())
        super().close()


@contextlib.contextmanager
def driven(mode: str) -> Iterator[Driven]:
    """A mode in which everything that was opened is closed at the end."""
    with contextlib.closing(Driven(mode)) as made:
        yield made


async def take(limiter: RateLimiter, amount: int = 1, entity: str = "key", **options: Any) -> str:
    """What comes of an acquire: ``granted``, ``refused``, ``degraded`` or ``unavailable``."""
    try:
        async with limiter.acquire(entity, "gpt-4", {"rpm": amount}, **{"limits": RPM, **options}) as lease:
            return "degraded" if lease.degraded else "granted"
    except RateLimitExceeded:
        return "refused"
    except AccessDeniedError:
        raise
    except RateLimiterUnavailable:
        return "unavailable"


def contents(server: Endpoint) -> dict[str, Any]:
    """Everything that is stored, for a comparison."""
    readers: dict[str, tuple[str, ...]] = {
        "string": ("GET",),
        "zset": ("ZRANGE", "0", "-1", "WITHSCORES"),
        "list": ("LRANGE", "0", "-1"),
        "hash": ("HGETALL",),
    }
    found = {}
    for key in sorted(server.aside("KEYS", "*")):
        verb, *rest = readers[server.aside("TYPE", key)]
        found[key] = server.aside(verb, key, *rest)
    return found


def attributes(server: Endpoint, key: str) -> dict[str, str]:
    """A stored record, its values as the texts that they are stored as."""
    lines = server.aside("GET", key).strip("\n").split("\n")
    return dict(line.split("=", 1) for line in lines)


def bucket_key(server: Endpoint, entity: str = "key") -> str:
    """The key of an entity's only bucket."""
    (found,) = [key for key in server.aside("KEYS", "*") if f"BUCKET#{entity}#" in key]
    return str(found)


_EXPIRY = "local t = redis.call('TIME') return {redis.call('PTTL', KEYS[1]), t[1], t[2]}"


def expires_at(server: Endpoint, key: str) -> int | None:
    """The second at which the server drops a key by itself; None: never."""
    left_ms, seconds, microseconds = map(int, server.aside("EVAL", _EXPIRY, 1, key))
    return None if left_ms < 0 else round((left_ms + seconds * 1000 + microseconds // 1000) / 1000)


class Scripted:
    """A server that lets anybody in and then answers every request with the same bytes."""

    ends = False
    """Whether it closes the connection after an answer."""
    slots: bytes | None = None
    """The answer to CLUSTER SLOTS, if that is another one."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.asked: list[str] = []
        self._threads: list[threading.Thread] = []
        self._open: list[socket.socket] = []

    @property
    def connections(self) -> int:
        """How many there have been."""
        return len(self._open)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._listener.getsockname()[1])

    @property
    def url(self) -> str:
        """Where it listens, as a single server."""
        return f"redis://127.0.0.1:{self.port}/0"

    def __enter__(self) -> Self:
        self._listener = ports.listener()
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _start(self, work: Any, *args: Any) -> None:
        thread = threading.Thread(target=work, args=args)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._open.append(connection)
                self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        frames = Frames()
        with connection, contextlib.suppress(OSError):
            while data := connection.recv(65536):
                for request in frames.feed(data):
                    name = command_name(request)
                    introduction = name in ("client", "select", "auth", "hello", "info")
                    if not introduction:
                        self.asked.append(name)
                    answer = self.slots if name == "cluster" and self.slots else self.answer
                    connection.sendall(b"+OK\r\n" if introduction else answer)
                    if self.ends and not introduction and answer is self.answer:
                        return


def in_a_fork(work: Callable[[], object]) -> bool:
    """Whether ``work`` came to its end in a fork of this process."""
    child = os.fork()
    if not child:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0
