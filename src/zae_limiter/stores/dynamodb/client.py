"""The data plane client: signs, sends, retries where that cannot charge twice, translates errors.

It is written once, as coroutines over the sockets that are given; the blocking ones never suspend.

The retry rule: a request that was surely not carried out (never sent, throttled, lost to another transaction) is sent
again; one that may have been is sent again only if its sender says that twice does no harm. All tries share one
deadline.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ...clock import Clock
from ...core.errors import RateLimiterUnavailable
from ..outcomes import Failure, Meaning, NoneFree, NotSent, Remedy, Unknown
from .answers import Refused, failure, parse_answer, request_id
from .connections import Connections
from .credentials import CredentialSource, open_session
from .date_clock import DateClock
from .settings import Settings, resolve
from .signing import Credentials, Origin, signed_headers
from .sockets import AsyncSockets, BlockingSockets
from .stats import Stats
from .wire import Answer, request_bytes

_API = "DynamoDB_20120810"
_encoded = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_MAX_TRIES = 5
_FIRST_PAUSE = 0.025
_LONGEST_PAUSE = 1.0

_NOT_SENT = Meaning(RateLimiterUnavailable, Remedy.WAIT, "it cannot be reached")
_NONE_FREE = _NOT_SENT._replace(reason="it was not asked")
_UNKNOWN = Meaning(RateLimiterUnavailable, Remedy.REPEAT, "no complete answer came, so the outcome is unknown")


class Options(NamedTuple):
    """What a client is told at its birth; nothing is looked up before the first call."""

    table: str
    region: str | None = None
    endpoint_url: str | None = None
    timeout: float = 5.0
    profile: str | None = None


class Chance(NamedTuple):
    """Time and chance, so that tests own them."""

    timer: Callable[[], float] = time.monotonic
    random: Callable[[], float] = random.random


class _Retry:
    """What one call has tried so far, and whether it may try again."""

    __slots__ = ("_repeatable", "_spent", "_tries", "refused", "signed_with")

    def __init__(self, repeatable: bool) -> None:
        self._repeatable = repeatable
        self._tries = 1
        self._spent: set[Remedy] = set()
        self.signed_with: Credentials | None = None
        self.refused: Credentials | None = None

    def pause(self, remedy: Remedy, chance: Callable[[], float]) -> float | None:
        """Seconds until the next try, with full jitter; None when there is none."""
        self.refused = self.signed_with if remedy is Remedy.RENEW else None
        if remedy is Remedy.NONE or (remedy is Remedy.REPEAT and not self._repeatable):
            return None
        if remedy in (Remedy.RENEW, Remedy.RESYNC):
            if remedy in self._spent:
                return None
            self._spent.add(remedy)
            return 0.0
        self._tries += 1
        if self._tries > _MAX_TRIES and remedy is not Remedy.TURN:
            return None
        return chance() * min(_LONGEST_PAUSE, _FIRST_PAUSE * (1 << min(self._tries, 10) - 2))


class Client:
    """Calls DynamoDB's JSON API for one table."""

    def __init__(
        self, options: Options, connections: Connections, clock: DateClock, chance: Chance | None = None
    ) -> None:
        self.table = options.table
        self.timeout = options.timeout
        self.clock = clock
        self.stats = Stats()
        self.connections = connections
        self._options = options
        self._chance = chance or Chance()
        self._settings: Settings | None = None
        self._credentials = CredentialSource(
            self._session, local=lambda: self.settings.is_local, timer=self._chance.timer
        )

    @property
    def settings(self) -> Settings:
        """Region and endpoint, resolved on first use."""
        found = self._settings
        if found is None:
            found = self._settings = resolve(self._options.region, self._options.endpoint_url, self._session)
        return found

    @property
    def options(self) -> Options:
        """Return the options that the client was made with."""
        return self._options

    @property
    def region(self) -> str:
        """Return the region that requests are signed for."""
        return self.settings.region

    @property
    def endpoint(self) -> str:
        """Return the URL that requests are sent to."""
        return self.settings.url

    async def call(
        self, operation: str, request: Mapping[str, Any], *, timeout: float | None = None, repeatable: bool = False
    ) -> dict[str, Any]:
        """Call the service within ``timeout`` seconds; ``repeatable`` says that executing it twice does no harm."""
        body = _encoded(request).encode()
        deadline = self._chance.timer() + (self.timeout if timeout is None else timeout)
        retry = _Retry(repeatable)
        while True:
            try:
                return await self._attempt(operation, body, deadline, retry)
            except Refused:
                self.stats.count_conflict(request)
                raise
            except Failure as failed:
                if failed.throttled:
                    self.stats.count("throttled")
                pause = retry.pause(failed.remedy, self._chance.random)
                if pause is None or self._chance.timer() + pause >= deadline:
                    raise failed.error from failed.error.__cause__
            self.stats.count("retries")
            if pause:
                await self.pause(pause)

    async def pause(self, seconds: float) -> None:
        """Wait, by suspending the task or by blocking the thread."""
        await self.connections.sockets.pause(seconds)

    async def close(self) -> None:
        """Close the idle connections; the next call opens new ones."""
        self.connections.close()

    async def _attempt(self, operation: str, body: bytes, deadline: float, retry: _Retry) -> dict[str, Any]:
        """Send the request once."""
        retry.signed_with = credentials = await self._signer(deadline, retry.refused)
        settings = self.settings
        origin = Origin(credentials, settings.region, settings.host_header)
        headers = signed_headers(origin, self.clock.now_ms() // 1000, f"{_API}.{operation}", body)
        data = request_bytes(settings.endpoint.target, headers | settings.endpoint.headers, body)
        answer = await self._exchange(operation, data, deadline)
        content = parse_answer(answer, self._where())
        self.stats.count_capacity(operation, content)
        return content

    async def _exchange(self, operation: str, data: bytes, deadline: float) -> Answer:
        """Send a request and return its answer, good or bad; learn the service's time from it."""
        self.stats.count_call(operation, len(data))
        host = self.clock.host
        sent_ms = host.now_ms()
        try:
            answer = await self.connections.post(self.settings.endpoint, data, deadline - self._chance.timer())
        except NotSent as error:
            meaning = _NONE_FREE if isinstance(error, NoneFree) else _NOT_SENT
            raise failure(meaning, self._where(), error) from error
        except Unknown as error:
            raise failure(_UNKNOWN, self._where(), error) from error
        self.stats.count_received(len(answer.body))
        if request_id(answer) is not None:  # an answer of a proxy's own does not tell the service's time
            self.clock.observe(answer.headers.get("date"), sent_ms, host.now_ms())
        return answer

    async def _signer(self, deadline: float, refused: Credentials | None) -> Credentials:
        """Return the credentials to sign with; wait for them only in the first call, or after a refusal."""
        source = self._credentials
        found = source.at_hand
        if found is not None and refused is None:
            if source.due:
                self.connections.sockets.start(source.ask)
            return found
        left = deadline - self._chance.timer()
        aside = self.connections.sockets.aside
        try:
            found = await aside(lambda: self._prepare(refused), left)
            if found == refused:  # a run that was under way answered, and had not heard of the refusal
                found = await aside(lambda: self._prepare(refused), left)
            return found
        except TimeoutError as error:
            raise RateLimiterUnavailable(f"No AWS credentials were found within {left:.3g} s.", error) from error

    def _prepare(self, refused: Credentials | None) -> Credentials:
        """Return credentials, after all that may read files or the network before a request can be signed."""
        _ = self.settings
        return self._credentials.ask(refused)

    def _session(self) -> Any:
        return open_session(self._options.profile)

    def _where(self) -> str:
        return f"DynamoDB table {self.table!r} in {self.region}"


def open_client(
    table: str,
    *,
    blocking: bool,
    region: str | None = None,
    endpoint_url: str | None = None,
    host_clock: Clock | None = None,
    timeout: float = 5.0,
    connect_timeout: float = 2.0,
    max_connections: int = 50,
    profile: str | None = None,
) -> Client:
    """Return a client for ``table``. Looks up, reads and imports nothing before the first call."""
    connections = Connections(
        BlockingSockets() if blocking else AsyncSockets(), connect_timeout=connect_timeout, limit=max_connections
    )
    return Client(Options(table, region, endpoint_url, timeout, profile), connections, DateClock(host_clock))
