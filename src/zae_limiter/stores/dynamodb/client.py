"""The data plane client: signs, sends, retries where that cannot charge twice, translates errors.

It is written once, as coroutines over the sockets that are given; the blocking ones never suspend.

The retry rule: a request that was surely not carried out (never sent, throttled, lost to another transaction) is sent
again; one that may have been is sent again only if its sender says that twice does no harm. All tries share one
deadline.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from ...clock import Clock
from ...core.errors import RateLimiterUnavailable
from ...core.reports import BackendStats
from ...forks import protect
from ..outcomes import Failure, Meaning, NoneFree, NotSent, Remedy, Unknown
from .answers import REQUEST_ID, DateClock, Refused, Unreadable, date_ms_of, failure, parse_answer
from .connections import Connections
from .credentials import (
    FIND_SECONDS,
    CallerIdentity,
    Credentials,
    CredentialSource,
    Origin,
    ask_sts,
    open_session,
    signed_headers,
)
from .settings import Settings, resolve
from .sockets import AsyncSockets, BlockingSockets
from .wire import MAX_BODY, request_bytes

_API = "DynamoDB_20120810"
_encoded = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_MAX_TRIES = 5
_FIRST_PAUSE = 0.025
_LONGEST_PAUSE = 1.0
_MAX_UNITS = 1e6
"""No request costs as much; an answer that says so is not believed."""
_READS = frozenset(("GetItem", "BatchGetItem", "Query", "Scan", "TransactGetItems"))
_MEGABYTE = 1024 * 1024
_MAX_BODIES = {
    **dict.fromkeys(("Query", "Scan"), 8 * _MEGABYTE),
    **dict.fromkeys(("TransactWriteItems", "BatchWriteItem"), 16 * _MEGABYTE),
    "BatchGetItem": 24 * _MEGABYTE,
}
"""The bytes of an answer: what DynamoDB allows (1 MB, 4 MB for a transaction, 16 MB for a batch), with room for JSON.

Any other operation is about one record of at most 400 KB, or about a table: `MAX_BODY`. One of ``n`` records is at most
``n`` times as long.
"""

_NOT_SENT = Meaning(RateLimiterUnavailable, Remedy.WAIT, "it cannot be reached")
_NONE_FREE = _NOT_SENT._replace(reason="it was not asked")
_UNKNOWN = Meaning(RateLimiterUnavailable, Remedy.REPEAT, "no complete answer came, so the outcome is unknown")


class Options(NamedTuple):
    """The options of a client. A ``region`` or ``endpoint_url`` of None is looked up in the first call."""

    table: str
    region: str | None = None
    endpoint_url: str | None = None
    profile: str | None = None
    timeout: float = 5.0
    connect_timeout: float = 2.0
    max_connections: int = 50


class Stats:
    """Counters shared by all threads and loops of a client."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: Counter[str] = Counter()
        self._sums: defaultdict[str, Any] = defaultdict(int)
        protect(self._lock)

    def count(self, *calls: str, **amounts: float) -> None:
        """Count calls of operations, including repeated ones, and add to fields of `BackendStats`."""
        with self._lock:
            self._calls.update(calls)
            for name, amount in amounts.items():
                self._sums[name] += amount

    def count_answer(self, operation: str, received: int, content: Mapping[str, Any]) -> None:
        """Count the bytes of an answer, and the capacity that a good one reports in its content."""
        consumed = content.get("ConsumedCapacity")
        parts = consumed if isinstance(consumed, list) else [consumed]
        units = [part.get("CapacityUnits") for part in parts if isinstance(part, dict)]
        kind = "read_units" if operation in _READS else "write_units"
        cost = sum([float(each) for each in units if isinstance(each, (int, float)) and 0 <= each < _MAX_UNITS], 0.0)
        self.count(bytes_received=received, **{kind: cost})

    def snapshot(self) -> BackendStats:
        """Return the counters as of now."""
        with self._lock:
            return BackendStats(calls=MappingProxyType(dict(self._calls)), **self._sums)


@dataclass(slots=True)
class _Retry:
    """What one call has tried so far, and whether it may try again."""

    repeatable: bool
    tries: int = 1
    spent: set[Remedy] = field(default_factory=set)
    signed_with: Credentials | None = None
    refused: Credentials | None = None
    offset_ms: int | None = None
    """The service's time minus the host's, as a refusal of the last signature says; None for what the clock has."""

    def pause(self, remedy: Remedy, chance: Callable[[], float]) -> float | None:
        """Return the seconds until the next try, with full jitter, or None if there is none."""
        self.refused = self.signed_with if remedy is Remedy.RENEW else None
        if remedy is Remedy.NONE or (remedy is Remedy.REPEAT and not self.repeatable):
            return None
        if remedy in (Remedy.RENEW, Remedy.RESYNC):
            if remedy in self.spent:
                return None
            self.spent.add(remedy)
            return 0.0
        self.tries += 1
        if self.tries > _MAX_TRIES and remedy is not Remedy.TURN:
            return None
        return chance() * min(_LONGEST_PAUSE, _FIRST_PAUSE * (1 << min(self.tries, 10) - 2))

    def note_time(self, remedy: Remedy, date: str, received_ms: int) -> None:
        """Sign the next try with the date of a refusal, if the time was the reason for it."""
        date_ms = date_ms_of(date) if remedy is Remedy.RESYNC else None
        if date_ms is not None:
            self.offset_ms = date_ms - received_ms


class Client:
    """Calls DynamoDB's JSON API for one table. Looks up, reads and imports nothing before the first call.

    ``timer`` measures seconds and ``chance`` chooses the length of a pause; tests have their own.
    """

    def __init__(
        self,
        options: Options,
        *,
        blocking: bool,
        host_clock: Clock | None = None,
        timer: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.options = options
        self.table = options.table
        self.timeout = options.timeout
        self.clock = DateClock(host_clock)
        self.stats = Stats()
        sockets = BlockingSockets() if blocking else AsyncSockets()
        self.connections = Connections(sockets, options.connect_timeout, options.max_connections)
        self._timer = timer
        self._chance = chance
        self._session = partial(open_session, options.profile)
        self._settings: Settings | None = None
        self._credentials = CredentialSource(self._session, local=lambda: self.settings.is_local, timer=self._timer)
        self.identity = CallerIdentity(self._ask_identity, sockets, self._timer)

    def for_threads(self) -> Client:
        """Return another client of the table for any thread; clock and counters are the same."""
        client = Client(self.options, blocking=True, timer=self._timer, chance=self._chance)
        client.clock, client.stats = self.clock, self.stats
        return client

    @property
    def settings(self) -> Settings:
        """Region and endpoint, resolved on first use."""
        found = self._settings
        if found is None:
            found = self._settings = resolve(self.options.region, self.options.endpoint_url, self._session)
        return found

    @property
    def is_resolved(self) -> bool:
        """Whether region and endpoint have been looked up."""
        return self._settings is not None

    @property
    def region(self) -> str:
        """Return the region that requests are signed for."""
        return self.settings.region

    async def call(
        self, operation: str, request: Mapping[str, Any], *, timeout: float | None = None, repeatable: bool = False
    ) -> dict[str, Any]:
        """Call the service within ``timeout`` seconds; ``repeatable`` says that executing it twice does no harm."""
        body = _encoded(request).encode()
        if self._credentials.cached is None:
            await self.prepare()
        deadline = self._timer() + (self.timeout if timeout is None else timeout)
        retry = _Retry(repeatable)
        while True:
            try:
                return await self._attempt(operation, request, body, deadline, retry)
            except Refused:  # it is billed, but its answer does not say how much
                items = request.get("TransactItems")
                self.stats.count(conflicts=1, write_units=1.0 if items is None else 2.0 * len(items))
                raise
            except Failure as failed:
                if failed.throttled:
                    self.stats.count(throttled=1)
                pause = retry.pause(failed.remedy, self._chance)
                if pause is None or self._timer() + pause >= deadline:
                    raise failed.error from failed.error.__cause__
            self.stats.count(retries=1)
            if pause:
                await self.pause(pause)

    async def pause(self, seconds: float) -> None:
        """Wait, by suspending the task or by blocking the thread."""
        await self.connections.sockets.pause(seconds)

    async def close(self) -> None:
        """Close the idle connections; the next call opens new ones."""
        self.connections.close()

    async def _attempt(
        self, operation: str, request: Mapping[str, Any], body: bytes, deadline: float, retry: _Retry
    ) -> dict[str, Any]:
        """Send the request once and return the content of a good answer.

        The clock learns from answers to accepted signatures; a refusal of the time says only what to sign with next.
        """
        credentials = self._credentials.cached
        if credentials is None or retry.refused is not None:
            credentials = await self._replace_credentials(deadline, retry.refused)
        elif self._timer() >= self._credentials.due_at:
            self._credentials.renew()
        retry.signed_with = credentials
        settings, clock = self._settings or self.settings, self.clock
        most = _most_bytes(operation, request) if operation in _MAX_BODIES else MAX_BODY
        where, sent_ms = f"DynamoDB table {self.table!r} in {settings.region}", clock.host.now_ms()
        origin = Origin(credentials, settings.region, settings.host_header)
        signed_ms = sent_ms + (clock.offset_ms if retry.offset_ms is None else retry.offset_ms)
        headers = signed_headers(origin, signed_ms // 1000, f"{_API}.{operation}", body)
        data = request_bytes(settings.target, headers | settings.proxy_headers, body)
        self.stats.count(operation, bytes_sent=len(data))
        try:
            answer = await self.connections.post(settings.endpoint, data, deadline - self._timer(), most)
        except NotSent as error:
            raise failure(_NONE_FREE if isinstance(error, NoneFree) else _NOT_SENT, where, error) from error
        except Unknown as error:
            raise failure(_UNKNOWN, where, error) from error
        received_ms = clock.host.now_ms()
        content: dict[str, Any] = {}
        accepted = True
        try:
            content = parse_answer(answer, operation, request, where)
            return content
        except Failure as failed:
            accepted = False
            if isinstance(failed, Unreadable):
                self.connections.close()
            retry.note_time(failed.remedy, answer.headers.get("date", ""), received_ms)
            raise
        finally:
            if accepted and REQUEST_ID in answer.headers:  # an answer of a proxy's own does not tell the service's time
                clock.observe(answer.headers.get("date"), sent_ms, received_ms, signed_ms)
            self.stats.count_answer(operation, len(answer.body), content)

    async def prepare(self) -> None:
        """Load botocore and find region, endpoint and credentials, unless that is done: the first call needs them.

        Raise `RateLimiterUnavailable` if it takes longer than `FIND_SECONDS`, `AccessDeniedError` if there are none.
        """
        source = self._credentials
        if source.cached is None:
            run = source.renew()
            await self._wait_for(run, source.run_began + FIND_SECONDS - self._timer(), FIND_SECONDS)

    def _ask_identity(self) -> str:
        credentials = self._credentials.renew().result()
        return ask_sts(self._session(), credentials, self.region, self.options.endpoint_url)

    async def _replace_credentials(self, deadline: float, refused: Credentials | None) -> Credentials:
        """Return others than the ``refused`` ones if there are any, within the time of the call."""
        left = deadline - self._timer()
        found = await self._wait_for(self._credentials.renew(refused), left, left)
        if found == refused:  # a run that was under way answered, and had not heard of the refusal
            found = await self._wait_for(self._credentials.renew(refused), deadline - self._timer(), left)
        return found

    async def _wait_for(self, run: Future[Credentials], left: float, seconds: float) -> Credentials:
        try:
            return await self.connections.sockets.outcome(run, left)
        except TimeoutError as error:
            message = f"AWS credentials could not be found within {seconds:.3g} s; the provider of credentials hangs."
            raise RateLimiterUnavailable(message, error) from error


def _most_bytes(operation: str, request: Mapping[str, Any]) -> int:
    """Return how many bytes an answer has at most, of an operation that is about several records."""
    most = _MAX_BODIES[operation]
    records: int = request.get("Limit", most)
    for asked in request.get("RequestItems", {}).values() if operation == "BatchGetItem" else ():
        records = len(asked["Keys"])
    return min(most, records * MAX_BODY)


def open_client(table: str, *, blocking: bool, host_clock: Clock | None = None, **options: Any) -> Client:
    """Return a client for ``table`` with these `Options`."""
    return Client(Options(table, **options), blocking=blocking, host_clock=host_clock)
