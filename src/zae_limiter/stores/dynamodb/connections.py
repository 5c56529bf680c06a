"""Keep-alive connections to one endpoint: opened in time, used by one request at a time, reused while fresh.

A failure is one of two kinds, and everything about retries hangs on which: `NotSent` says that the service cannot
have seen the request, `Unknown` that it may have been carried out.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import time
import weakref
from queue import Empty
from typing import NamedTuple

from ...core.errors import ConfigurationError
from ..outcomes import NotSent, Unknown
from ..pools import Pool, Pools
from ..tls import find_wrong_setting, first_bytes, is_tls
from .sockets import Sockets, seconds_left
from .wire import MAX_BODY, Answer, Broken, Reader, connect_bytes

_HTTP = b"GET / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_TLS_SHARE = 0.75
"""The part of the time that a TLS connection has; the rest is for asking a silent server whether it speaks TLS."""
_PROBE_SECONDS = 1.0
"""How long an endpoint that has never answered may take to show which protocol it speaks."""


class Proxy(NamedTuple):
    """An HTTP proxy on the way."""

    host: str
    port: int
    authorization: str | None = None


class Endpoint(NamedTuple):
    """Where the service listens."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    proxy: Proxy | None = None


class _Connection:
    """One socket, with TLS as bytes in and out, so that both kinds of socket share it."""

    def __init__(self, sockets: Sockets, sock: socket.socket) -> None:
        self._sockets = sockets
        self._sock = sock
        self._tls: ssl.SSLObject | None = None
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.first = b""
        self.idle_since = 0.0
        self.fresh_seconds = 0.0
        self.close = weakref.finalize(self, sock.close)
        """Close the socket, at the latest when the connection is collected; no loop is needed."""

    def usable(self) -> bool:
        """Return whether there is nothing to read: on an idle connection that would be its end."""
        if self._sock.fileno() < 0:
            return False
        if not hasattr(select, "poll"):  # pragma: no cover - Windows
            return not select.select([self._sock], [], [], 0)[0]
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return not poll.poll(0)

    async def exchange(
        self, data: bytes, deadline: float, most: int = MAX_BODY, *, tunnel: bool = False
    ) -> tuple[Answer, bool]:
        """Send a request; return its answer of up to ``most`` bytes, and whether the connection may be used again.

        It may not if anything came behind the answer, which TLS may hold without the socket showing it.
        """
        tls = self._tls
        if tls is None:
            await self._sockets.send(self._sock, data, deadline)
        else:
            tls.write(data)
            await self._flush(deadline)
        reader = Reader(tunnel, most)
        while True:
            receive = self._sockets.receive(self._sock, deadline) if tls is None else self._decrypt(tls, deadline)
            data = await receive
            self.first = self.first or data
            answer = reader.feed(data)
            if answer is not None:
                return answer, reader.keep_alive and (tls is None or not (tls.pending() or self._incoming.pending))
            await self._sockets.yield_thread()

    async def ask(self, data: bytes, deadline: float) -> bytes:
        """Send bytes and return the first that come back."""
        await self._sockets.send(self._sock, data, deadline)
        return await self._sockets.receive(self._sock, deadline)

    async def secure(self, endpoint: Endpoint, context: ssl.SSLContext, deadline: float) -> None:
        """Speak TLS with the endpoint from here on, through a tunnel if there is a proxy."""
        if endpoint.proxy is not None:
            request = connect_bytes(endpoint.host, endpoint.port, endpoint.proxy.authorization)
            answer, _ = await self.exchange(request, deadline, tunnel=True)
            if not 200 <= answer.status < 300:
                raise Broken(f"the proxy answered {answer.status} to CONNECT")
        tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=endpoint.host)
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                if not await self._fill(deadline):
                    raise Broken("the connection was closed during the TLS handshake") from None
        await self._flush(deadline)
        self._tls = tls

    async def _decrypt(self, tls: ssl.SSLObject, deadline: float) -> bytes:
        while True:
            try:
                return tls.read(1 << 18)
            except ssl.SSLWantReadError:
                if not await self._fill(deadline):
                    return b""
            except ssl.SSLZeroReturnError:
                return b""

    async def _flush(self, deadline: float) -> None:
        data = self._outgoing.read()
        if data:
            await self._sockets.send(self._sock, data, deadline)

    async def _fill(self, deadline: float) -> bool:
        """Send what TLS has to say and receive more. Return False if the connection has ended."""
        await self._flush(deadline)
        data = await self._sockets.receive(self._sock, deadline)
        self._incoming.write(data)
        return bool(data)


class Connections:
    """The connections of a client to its endpoint, per event loop or for all threads."""

    def __init__(self, sockets: Sockets, connect_timeout: float, limit: int) -> None:
        self.sockets = sockets
        self._connect_timeout = connect_timeout
        self._pools: Pools[Pool[_Connection]] = Pools(sockets.per_loop, lambda: Pool(sockets.slots(limit)))
        self._understood = False
        """Whether the endpoint has ever answered, and so is not addressed by the wrong protocol."""

    async def post(self, endpoint: Endpoint, data: bytes, timeout: float, most: int = MAX_BODY) -> Answer:
        """Send one request and return its answer of up to ``most`` bytes, within ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        if timeout <= 0:
            raise NotSent("no time was left")
        pool = self._pools.here()
        try:
            pool.slots.take_now()
        except Empty:
            await pool.slots.take(timeout)
        again = False
        try:
            connection = pool.reuse() or await self._open(endpoint, deadline)
            try:
                answer, again = await connection.exchange(data, deadline, most)
            except TimeoutError as error:
                raise Unknown("no answer came in time") from error
            except (OSError, Broken) as error:
                if endpoint.tls is None:
                    await self._check_plain(endpoint, connection.first, deadline)
                raise Unknown(str(error) or type(error).__name__) from error
            finally:
                if again:
                    pool.keep(connection)
                else:
                    connection.close()
            self._understood = True
            return answer
        finally:
            pool.slots.give_back()

    def close(self) -> None:
        """Close every idle connection; one in use is closed when it is done."""
        self._pools.close()

    async def _open(self, endpoint: Endpoint, deadline: float) -> _Connection:
        """Open a connection, through the proxy and with TLS if the endpoint has them. Raise `NotSent` if that fails."""
        now = time.monotonic()
        until = now + min(deadline - now, self._connect_timeout) * (_TLS_SHARE if endpoint.tls else 1)
        host, port = (endpoint.proxy or endpoint)[:2]
        try:
            connection = await self._connect(host, port, until)
            try:
                if endpoint.tls is not None:
                    await connection.secure(endpoint, endpoint.tls, until)
                return connection
            except BaseException:
                connection.close()
                raise
        except TimeoutError as error:
            await self._check_secure(endpoint, deadline)
            raise NotSent(f"no connection to {host}:{port} in time") from error
        except (OSError, Broken, UnicodeError) as error:
            wrong = find_wrong_setting(error)
            if wrong is not None:
                raise _refused_handshake(endpoint, wrong) from error
            if isinstance(error, Broken | ConnectionResetError | ssl.SSLEOFError):
                await self._check_secure(endpoint, deadline)
            raise NotSent(f"no connection to {host}:{port}: {str(error) or type(error).__name__}") from error

    async def _check_plain(self, endpoint: Endpoint, first: bytes, deadline: float) -> None:
        """Raise `ConfigurationError` if an endpoint without TLS gave no answer because it speaks TLS.

        ``first`` are the first bytes that it sent; some servers send none to clients that do not speak TLS.
        """
        if self._understood or endpoint.proxy:
            return
        if not first:
            first = await self._probe(endpoint, first_bytes(endpoint.host), deadline)
        if is_tls(first):
            where = f"AWS endpoint {endpoint.host}:{endpoint.port}"
            raise ConfigurationError(f"{where} speaks TLS; write https://", option="endpoint_url")

    async def _check_secure(self, endpoint: Endpoint, deadline: float) -> None:
        """Raise `ConfigurationError` if there was no TLS handshake because the endpoint speaks plain HTTP."""
        if endpoint.tls is None or self._understood or endpoint.proxy:
            return
        if (await self._probe(endpoint, _HTTP, deadline)).startswith(b"HTTP/"):
            where = f"AWS endpoint {endpoint.host}:{endpoint.port}"
            raise ConfigurationError(f"{where} does not speak TLS; write http://", option="endpoint_url")

    async def _probe(self, endpoint: Endpoint, data: bytes, deadline: float) -> bytes:
        deadline = min(deadline, time.monotonic() + _PROBE_SECONDS)
        with contextlib.suppress(OSError, UnicodeError):
            connection = await self._connect(endpoint.host, endpoint.port, deadline)
            try:
                return await connection.ask(data, deadline)
            finally:
                connection.close()
        return b""

    async def _connect(self, host: str, port: int, deadline: float) -> _Connection:
        """Connect to the first address that answers; each gets its share of the time that is left."""
        addresses = await self.sockets.resolve(host, port, deadline)
        failure: Exception = OSError("the name has no address")
        for left, (family, _, _, _, address) in zip(range(len(addresses), 0, -1), addresses, strict=True):
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                share = seconds_left(deadline) / left
                await self.sockets.connect(sock, address, time.monotonic() + share)
                return _Connection(self.sockets, sock)
            except OSError as error:
                sock.close()
                failure = error
            except BaseException:
                sock.close()
                raise
        raise failure


def _refused_handshake(endpoint: Endpoint, wrong: ssl.SSLError) -> ConfigurationError:
    """Return the error for an endpoint with which no TLS connection comes about, whatever the time."""
    where = f"AWS endpoint {endpoint.host}:{endpoint.port}"
    if "WRONG_VERSION_NUMBER" in str(wrong):
        return ConfigurationError(f"{where} does not speak TLS; write http:// ({wrong})", option="endpoint_url")
    reason = "its certificate is not trusted; see AWS_CA_BUNDLE, or ca_bundle in the profile"
    return ConfigurationError(f"{where}: {reason} ({wrong})", option="ca_bundle")
