"""Nodes: sending a command to one server, over connections that are opened in time and kept.

A failure is one of three kinds: `NotSent` says that the server cannot have seen the command, `Unknown` that it may have
been carried out, `Refusal` that it was not.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from redis.exceptions import AuthenticationError, RedisError, ResponseError

from ..pools import Pools
from .answers import refusal
from .wires import Link

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..pools import Pool
    from .settings import Address
    from .wires import Wire


class NotSent(Exception):
    """The command never reached the server."""


class Unknown(Exception):
    """The command may have been carried out, but no answer says so."""


class Nodes:
    """The servers that a client talks to, under one login."""

    def __init__(self, wire: Wire, login: dict[str, Any], *, connect_timeout: float, limit: int) -> None:
        self.opened = 0
        self._wire = wire
        self._login = login
        self._connect_timeout = connect_timeout
        self._limit = limit
        self._pools: dict[Address, Pools[Link]] = {}
        self._lock = threading.Lock()

    async def call(self, address: Address, command: Sequence[Any], deadline: float, *, asking: bool = False) -> Any:
        """Send a command to one server and return its answer; ``asking`` is for a slot that is moving there."""
        pool = self._pools_of(address).here()
        left = deadline - time.monotonic()
        try:
            if not pool.turns.take_now():
                await pool.turns.take(left)
        except TimeoutError as error:
            raise NotSent(f"all {self._limit} connections to {address} were busy for {left:.3g} s") from error
        try:
            link = pool.reuse() or await self._open(address, deadline)
            if asking:
                await _exchange(pool, link, ("ASKING",), deadline, address, keep=False)
            return await _exchange(pool, link, command, deadline, address)
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
            link = await self._wire.open(address, self._login, left)
        except TimeoutError as error:
            raise NotSent(f"no connection to {address} in time") from error
        except (ResponseError, AuthenticationError) as error:
            raise refusal(error, str(address)) from error
        except (RedisError, OSError) as error:
            raise NotSent(f"no connection to {address}: {error}") from error
        self.opened += 1
        return link


async def _exchange(
    pool: Pool[Link], link: Link, command: Sequence[Any], deadline: float, address: Address, *, keep: bool = True
) -> Any:
    try:
        left = deadline - time.monotonic()
        if left <= 0:
            raise NotSent(f"no time was left to ask {address}")
        answer = await link.call(command, left)
    except ResponseError as error:
        pool.keep(link)
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
    if keep:
        pool.keep(link)
    return answer
