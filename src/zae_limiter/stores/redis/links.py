"""Links and nodes: opening a connection to one server, finding out why that fails, and sending commands over it.

A setting that is wrong is no outage. TLS files are checked again when a connection fails; a certificate that either
side refuses is a `ConfigurationError`, and so is a server that speaks TLS where we do not, or the other way round. Such
a server never says so: it closes the connection, or waits for more. So it is asked in its own way.

A command fails in one of three ways: `NotSent` says that the server cannot have seen it, `Unknown` that it may have
been carried out, `ErrorReply` that it was not. The pools raise the first two, where they know which of them it is.
"""

from __future__ import annotations

import math
import socket
import ssl
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import redis
from redis.exceptions import AuthenticationError, BusyLoadingError, RedisError, ResponseError

from ...core.errors import ConfigurationError
from ...logs import EVICTION, log_event
from ..outcomes import NotSent, Unknown
from ..pools import Pools
from ..tls import check_files, find_wrong_setting, first_bytes, is_tls
from .answers import ErrorReply, read_eviction_policy
from .pipeline import AsyncLink, SharedPool
from .resp import pack
from .settings import Address
from .wires import BlockingLink, BlockingPool, Wire

MEMORY = ("INFO", "memory")
_HELLO = pack(("HELLO", 2))
_PING = b"PING\r\n"
_TLS_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_TLS_SHARE = 0.75
"""The part of the time that a TLS handshake has; the rest is for asking a silent server whether it speaks TLS."""
_PROBE_SECONDS = 1.0
"""Longest wait for a server to show which protocol it speaks, in seconds."""
_HEAR_SECONDS = 2.0
"""How long we wait for a server that has closed a connection to say why."""
_MALFORMED = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What redis-py raises when it cannot read the answers to a login."""


def check_login(login: dict[str, Any]) -> None:
    """Raise `ConfigurationError` if a file of the login cannot be used."""
    check_files({option: login.get(option) for option in _TLS_OPTIONS})


class LinkOpener:
    """Opens the connections of one client under one login.

    ``backend`` is what log records call the servers; None for sentinels, which hold no records.
    """

    def __init__(self, wire: Wire, login: dict[str, Any], connect_timeout: float, backend: str | None = None) -> None:
        self.policies: dict[Address, str] = {}
        """What the servers do when their memory is full, as far as they have said it."""
        self._wire = wire
        self._login = login
        self._tls = "ssl_cert_reqs" in login
        self._connect_timeout = connect_timeout
        self._greeting = _HELLO if backend is None else pack(MEMORY)
        self._backend = backend
        self._greeted: set[Address] = set()
        self._silent: set[Address] = set()
        """Servers that did not answer to TLS in time: they are asked in their own way first."""

    async def open(self, address: Address, deadline: float = math.inf) -> Any:
        """Open a connection. Raise `NotSent` if that fails, `ErrorReply` if the server does not accept the login.

        Raise `ConfigurationError` if it fails because of a setting.
        """
        until = min(deadline, time.monotonic() + self._connect_timeout)
        if address in self._silent:
            await self._check_protocol(address, deadline)
            self._silent.discard(address)
        link = None
        try:
            link = await self._connect(address, until)
            if self._tls or address not in self._greeted:
                await self._greet(link, address, until)
            return link
        except (ResponseError, BusyLoadingError, AuthenticationError) as error:
            raise ErrorReply(error, str(address)) from error
        except (TimeoutError, redis.TimeoutError) as error:
            if self._tls:
                self._silent.add(address)
                await self._check_protocol(address, deadline)
            raise NotSent(f"no connection to {address} in time") from error
        except (RedisError, OSError, Unknown) as error:
            await self._check_settings(error, address, deadline)
            if link is not None:
                self._greeted.add(address)  # it may be a proxy that ends the connection for an unknown command
            raise NotSent(f"no connection to {address}: {error}") from error
        except _MALFORMED as error:
            raise NotSent(f"no connection to {address}: its answers cannot be read ({error!r:.60})") from error

    def distrust(self, address: Address) -> None:
        """Greet a server again that did not answer: it may have become another one."""
        self._greeted.discard(address)

    async def _connect(self, address: Address, until: float) -> BlockingLink | AsyncLink:
        left = (until - time.monotonic()) * (_TLS_SHARE if self._tls else 1)
        if left <= 0:
            raise TimeoutError
        return await self._wire.open(address, self._login, left)

    async def _greet(self, link: Any, address: Address, until: float) -> None:
        """Ask a first question, whatever the answer: that there is one shows that both sides speak the same protocol.

        With TLS a server refuses our certificate only after the handshake.
        """
        try:
            answer = await self._wire.ask(link, self._greeting, until)
        except BaseException:
            link.close()
            raise
        self._greeted.add(address)
        if self._backend is not None:
            self.note_eviction(address, read_eviction_policy(answer))

    def note_eviction(self, address: Address, policy: str | None) -> None:
        """Remember what a server does when its memory is full. Warn if it deletes records, once for each server."""
        if policy is None or self.policies.get(address) == policy:
            return
        self.policies[address] = policy
        if policy != "noeviction":
            message = (
                "Redis at %s evicts records when its memory is full (maxmemory-policy %s): limits start again full"
            )
            log_event(EVICTION, message, address, policy, zae_backend=self._backend, zae_policy=policy)

    async def _check_settings(self, error: BaseException, address: Address, deadline: float) -> None:
        wrong = find_wrong_setting(error)
        if self._tls:
            check_login(self._login)
            wrong = wrong or await self._hear_refusal(address, deadline)
        if wrong is None:
            if not isinstance(_root(error), socket.gaierror | ConnectionRefusedError):
                await self._check_protocol(address, deadline)
            return
        if "WRONG_VERSION_NUMBER" in str(wrong):
            raise _no_tls(address) from error
        if "CERTIFICATE_VERIFY_FAILED" in str(wrong):
            advice = "its certificate is not trusted; see ?ssl_ca_certs="
        else:
            advice = "it refuses the TLS handshake; see ?ssl_certfile= and ?ssl_keyfile="
        raise ConfigurationError(f"Redis at {address}: {advice} ({wrong})") from error

    async def _hear_refusal(self, address: Address, deadline: float) -> ssl.SSLError | None:
        """Return the reason for which a server ends a TLS connection after the handshake, if it gives one.

        Such a server has closed the connection already: whoever writes to it does not hear the reason. So we only read.
        """
        until = min(deadline, time.monotonic() + _HEAR_SECONDS)
        try:
            link: Any = await self._connect(address, until)
        except (RedisError, OSError, *_MALFORMED) as error:
            return find_wrong_setting(error)
        try:
            await self._wire.ask(link, b"", until)
        except (RedisError, OSError, Unknown) as error:
            return find_wrong_setting(error)
        finally:
            link.close()
        return None

    async def _check_protocol(self, address: Address, deadline: float) -> None:
        """Raise `ConfigurationError` if a server speaks TLS and we do not, or the other way round."""
        left = min(deadline - time.monotonic(), self._connect_timeout, _PROBE_SECONDS)
        if not address.port or left <= 0 or (address in self._greeted and not self._tls):
            return
        answer = await self._wire.probe(address, _PING if self._tls else first_bytes(address.host), left)
        if self._tls and answer[:1] in (b"+", b"-"):
            raise _no_tls(address)
        if not self._tls and is_tls(answer):
            raise ConfigurationError(f"Redis at {address}: it speaks TLS; use the scheme with ss, such as rediss://")


def _no_tls(address: Address) -> ConfigurationError:
    return ConfigurationError(f"Redis at {address}: it does not speak TLS; name its TLS port, or use redis://")


def _root(error: BaseException) -> BaseException:
    while (earlier := error.__cause__ or error.__context__) is not None:
        error = earlier
    return error


class Nodes(dict["Address", Pools[BlockingPool | SharedPool]]):
    """The connections to the servers that a client talks to under one login, by address; made on first use."""

    def __init__(
        self, wire: Wire, login: dict[str, Any], *, connect_timeout: float, limit: int, backend: str | None = None
    ) -> None:
        self.opener = LinkOpener(wire, login, connect_timeout, backend)
        self._wire = wire
        self._limit = limit

    def __missing__(self, address: Address) -> Pools[BlockingPool | SharedPool]:
        make = partial(self._wire.new_pool, self._limit, str(address), partial(self.opener.open, address))
        return self.setdefault(address, Pools(self._wire.per_loop, make))

    async def call(self, address: Address, command: Sequence[Any], deadline: float) -> Any:
        """Send one command and return its answer; raise `ErrorReply` if that is an error."""
        (answer,) = await self[address].here().call(pack(command), 1, deadline)
        if isinstance(answer, Exception):
            raise ErrorReply(answer, str(address)) from answer
        return answer

    def close(self) -> None:
        """Close every idle connection; one in use is closed when it is done."""
        for pools in list(self.values()):
            pools.close()

    def leave(self, address: Address) -> None:
        """Close the idle connections to one server."""
        if address in self:
            self[address].close()
