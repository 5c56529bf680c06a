"""Nodes: sending a command to one server, over connections that are opened in time and kept.

A failure is one of three kinds: `NotSent` says that the server cannot have seen the command, `Unknown` that it may have
been carried out, `Refusal` that it was not.
"""

from __future__ import annotations

import math
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from redis.exceptions import AuthenticationError, BusyLoadingError, RedisError, ResponseError

from ..outcomes import NotSent, Unknown
from ..pools import Pools
from .answers import refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .settings import Address
    from .wires import CallPool, Wire


class Nodes:
    """The servers that a client talks to, under one login."""

    def __init__(self, wire: Wire, login: dict[str, Any], *, connect_timeout: float, limit: int) -> None:
        self._wire = wire
        self._login = login
        self._connect_timeout = connect_timeout
        self._limit = limit
        self._pools: dict[Address, Pools[CallPool]] = {}

    async def call(self, address: Address, command: Sequence[Any], deadline: float, *, asking: bool = False) -> Any:
        """Send a command to one server and return its answer; ``asking`` is for a slot that is moving there."""
        answer = (await self.call_all(address, (("ASKING",), command) if asking else (command,), deadline))[-1]
        if isinstance(answer, Exception):
            raise refusal(answer, str(address)) from answer
        return answer

    async def call_all(self, address: Address, commands: Sequence[Sequence[Any]], deadline: float) -> list[Any]:
        """Send commands to one server, all at once; an error that it answers with takes the place of the answer."""
        if deadline <= time.monotonic():
            raise NotSent(f"no time was left to ask {address}")
        pool = self._pools_of(address).here()
        try:
            return await pool.call(commands, deadline, partial(self._open, address))
        except TimeoutError as error:
            raise Unknown(f"no answer from {address} in time") from error
        except (RedisError, OSError) as error:
            raise Unknown(f"no answer from {address}: {error}") from error

    def close(self) -> None:
        """Close every idle connection; one in use is closed when it is done."""
        for pools in list(self._pools.values()):
            pools.close()

    def leave(self, address: Address) -> None:
        """Close the idle connections to one server."""
        if address in self._pools:
            self._pools[address].close()

    def _pools_of(self, address: Address) -> Pools[CallPool]:
        found = self._pools.get(address)
        if found is None:
            make = partial(self._wire.new_pool, self._limit, str(address))
            found = self._pools.setdefault(address, Pools(self._wire, make))
        return found

    async def _open(self, address: Address, deadline: float = math.inf) -> Any:
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
