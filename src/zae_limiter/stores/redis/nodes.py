"""Nodes: sending commands to one server, over connections that are opened in time and kept.

A failure is one of three kinds: `NotSent` says that the server cannot have seen the command, `Unknown` that it may have
been carried out, `Refusal` that it was not. The pools raise the first two, where they know which of them it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from ..pools import Pools
from .answers import Refusal
from .links import LinkOpener
from .pipeline import SharedPool
from .resp import pack
from .settings import Address
from .wires import BlockingPool, Wire


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
        return self.setdefault(address, Pools(self._wire, make))

    async def call(self, address: Address, command: Sequence[Any], deadline: float) -> Any:
        """Send one command and return its answer; raise `Refusal` if that is an error."""
        (answer,) = await self[address].here().call(pack(command), 1, deadline)
        if isinstance(answer, Exception):
            raise Refusal(answer, str(address)) from answer
        return answer

    def close(self) -> None:
        """Close every idle connection; one in use is closed when it is done."""
        for pools in list(self.values()):
            pools.close()

    def leave(self, address: Address) -> None:
        """Close the idle connections to one server."""
        if address in self:
            self[address].close()
