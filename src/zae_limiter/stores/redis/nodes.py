"""Nodes: sending a command to one server, over connections that are opened in time and kept.

A failure is one of three kinds: `NotSent` says that the server cannot have seen the command, `Unknown` that it may have
been carried out, `Refusal` that it was not.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from redis.exceptions import AuthenticationError, BusyLoadingError, RedisError, ResponseError

from ..pools import Pools
from .answers import refusal
from .wires import Link

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .settings import Address
    from .wires import Wire


class NotSent(Exception):
    """The command never reached the server."""


class NoneFree(NotSent):
    """All connections that this client may have were in use, whatever the server does."""


class Unknown(Exception):
    """The command may have been carried out, but no answer says so."""


class Nodes:
    """The servers that a client talks to, under one login."""

    def __init__(self, wire: Wire, login: dict[str, Any], *, connect_timeout: float, limit: int) -> None:
        self._wire = wire
        self._login = login
        self._connect_timeout = connect_timeout
        self._limit = limit
        self._pools: dict[Address, Pools[Link]] = {}

    async def call(self, address: Address, command: Sequence[Any], deadline: float, *, asking: bool = False) -> Any:
        """Send a command to one server and return its answer; ``asking`` is for a slot that is moving there."""
        answer = (await self.call_all(address, (("ASKING",), command) if asking else (command,), deadline))[-1]
        if isinstance(answer, Exception):
            raise refusal(answer, str(address)) from answer
        return answer

    async def call_all(self, address: Address, commands: Sequence[Sequence[Any]], deadline: float) -> list[Any]:
        """Send commands to one server, all at once; an error that it answers with takes the place of the answer."""
        pool = self._pools_of(address).here()
        left = deadline - time.monotonic()
        try:
            if not pool.turns.take_now():
                await pool.turns.take(left)
        except TimeoutError as error:
            mine = f"all {self._limit} connections of this client to {address} were in use for {left:.3g} s"
            raise NoneFree(f"{mine}; ?max_connections= raises their number") from error
        try:
            link = pool.reuse() or await self._open(address, deadline)
            answers = await _exchange(link, commands, deadline, address)
            pool.keep(link)
            return answers
        finally:
            pool.turns.give_back()

    def close(self) -> None:
        """Close every idle connection; one in use is closed when it is done."""
        for pools in list(self._pools.values()):
            pools.close()

    def leave(self, address: Address) -> None:
        """Close the idle connections to one server."""
        if address in self._pools:
            self._pools[address].close()

    def _pools_of(self, address: Address) -> Pools[Link]:
        found = self._pools.get(address)
        return found or self._pools.setdefault(address, Pools(self._wire, self._limit))

    async def _open(self, address: Address, deadline: float) -> Link:
        left = min(deadline - time.monotonic(), self._connect_timeout)
        try:
            if left <= 0:
                raise TimeoutError
            return await self._wire.open(address, self._login, left)
        except TimeoutError as error:
            raise NotSent(f"no connection to {address} in time") from error
        except (ResponseError, BusyLoadingError, AuthenticationError) as error:
            raise refusal(error, str(address)) from error
        except (RedisError, OSError) as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise refusal(error, str(address)) from error
            raise NotSent(f"no connection to {address}: {error}") from error


async def _exchange(link: Link, commands: Sequence[Sequence[Any]], deadline: float, address: Address) -> list[Any]:
    """The answers; a connection on which anything else has happened is closed."""
    left = deadline - time.monotonic()
    try:
        if left <= 0:
            raise NotSent(f"no time was left to ask {address}")
        return await link.call(commands, left)
    except (BusyLoadingError, AuthenticationError) as error:  # redis-py counts these among broken connections
        link.close()
        raise refusal(error, str(address)) from error
    except TimeoutError as error:
        link.close()
        raise Unknown(f"no answer from {address} in time") from error
    except (RedisError, OSError) as error:
        link.close()
        raise Unknown(f"no answer from {address}: {error}") from error
    except BaseException:
        link.close()
        raise
