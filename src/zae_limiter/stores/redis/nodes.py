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
from .resp import pack

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

    async def exchange(self, address: Address, data: bytes, count: int, deadline: float) -> list[Any]:
        """Send ``count`` commands at once and return their answers; an error of the server takes the place of one."""
        if deadline <= time.monotonic():
            raise NotSent(f"no time was left to ask {address}")
        pools = self._pools.get(address) or self._add_pools(address)
        try:
            return await pools.here().call(data, count, deadline)
        except TimeoutError as error:
            raise Unknown(f"no answer from {address} in time") from error
        except (RedisError, OSError) as error:
            raise Unknown(f"no answer from {address}: {error}") from error

    async def call(self, address: Address, command: Sequence[Any], deadline: float) -> Any:
        """Send one command and return its answer; raise `Refusal` if that is an error."""
        (answer,) = await self.exchange(address, pack(command), 1, deadline)
        if isinstance(answer, Exception):
            raise refusal(answer, str(address)) from answer
        return answer

    def close(self) -> None:
        """Close every idle connection; one in use is closed when it is done."""
        for pools in list(self._pools.values()):
            pools.close()

    def leave(self, address: Address) -> None:
        """Close the idle connections to one server."""
        if address in self._pools:
            self._pools[address].close()

    def _add_pools(self, address: Address) -> Pools[CallPool]:
        open_link = partial(_open_link, self._wire, self._login, self._connect_timeout, address)
        make = partial(self._wire.new_pool, self._limit, str(address), open_link)
        return self._pools.setdefault(address, Pools(self._wire, make))


async def _open_link(
    wire: Wire, login: dict[str, Any], connect_timeout: float, address: Address, deadline: float = math.inf
) -> Any:
    """Open a connection. Raise `NotSent` if that fails, `Refusal` if the server does not accept the login."""
    left = min(deadline - time.monotonic(), connect_timeout)
    try:
        if left <= 0:
            raise TimeoutError
        return await wire.open(address, login, left)
    except TimeoutError as error:
        raise NotSent(f"no connection to {address} in time") from error
    except (ResponseError, BusyLoadingError, AuthenticationError) as error:
        raise refusal(error, str(address)) from error
    except (RedisError, OSError) as error:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            raise refusal(error, str(address)) from error
        raise NotSent(f"no connection to {address}: {error}") from error
