"""The client: runs scripts and commands where their keys are.

The rule about sending again: only what was surely not carried out, which is what a server refused for a reason that
has a remedy, and what never reached a server that may have a successor. A command whose answer is missing is never sent
again.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...core.errors import InfrastructureError, RateLimiterUnavailable, quote
from ..outcomes import NoneFree, NotSent, Remedy, Unknown
from .answers import ErrorReply, read_redirection
from .links import Nodes
from .resp import Script, pack
from .settings import Address

if TYPE_CHECKING:
    from ...core.reports import BackendStats
    from .topology import Topology

_MAX_TRIES = 5
_ASKING = pack(("ASKING",))


@dataclass
class Counts:
    """How many commands were sent, by name, and how many commits have met somebody else's write."""

    calls: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    conflicts: int = 0


class Client:
    """Commands to a Redis deployment. Usable from any number of threads and event loops at once."""

    def __init__(self, nodes: Nodes, topology: Topology, timeout: float) -> None:
        self.nodes = nodes
        self.topology = topology
        self.timeout = timeout
        self.counts = Counts()

    def deadline(self, timeout: float | None) -> float:
        """Return the instant, by the monotonic clock, at which a call of ``timeout`` seconds must be done."""
        return time.monotonic() + (self.timeout if timeout is None else timeout)

    async def call(self, key: str, command: Sequence[Any], deadline: float) -> Any:
        """Send a command to the server that holds ``key``, wherever that has moved, and return its answer."""
        return await self.run(key, pack(command), deadline, None, command[0])

    async def run(self, key: str, data: bytes, deadline: float, script: Script | None, name: str = "EVALSHA") -> Any:
        """Send a command that is packed already and runs a ``script``; a server that does not know that gets its text.

        Other commands are sent by `call`.
        """
        asked: Address | None = None
        tries_left = _MAX_TRIES
        while True:
            tries_left -= 1
            address = asked or self.topology.master or self.topology.known(key) or await self._locate(key, deadline)
            self.counts.calls[name] += 1
            try:
                pools = self.nodes[address]
                call = (pools.shared or pools.here()).call
                answers = await (call(_ASKING + data, 2, deadline) if asked else call(data, 1, deadline))
                answer = answers[-1]
                if not isinstance(answer, Exception):
                    return answer
                raise ErrorReply(answer, str(address)) from answer
            except NotSent as error:
                self.topology.relocate(key, None)
                if not (tries_left and self.topology.movable) or time.monotonic() >= deadline:
                    raise _unsent(error) from error
                asked = None
            except Unknown as error:
                self.nodes.opener.distrust(address)
                self.topology.relocate(key, None)
                message = f"Redis gave no complete answer, so the outcome is unknown: {quote(error)}."
                raise RateLimiterUnavailable(message, error) from error
            except ErrorReply as refused:
                if refused.remedy is Remedy.LOAD and script is not None:
                    data, script, name = script.spell_out(data), None, "EVAL"
                    tries_left = _MAX_TRIES
                else:
                    asked = self._follow(key, address, refused, last=not tries_left)

    async def commands(self, wanted: Sequence[tuple[str, Sequence[Any]]], deadline: float) -> list[Any]:
        """Run commands that only read, each where its key is, and return their answers in the same order.

        Those of a server are sent at once.
        """
        places: dict[Address, list[int]] = {}
        for place, (key, _) in enumerate(wanted):
            address = self.topology.known(key) or await self._locate(key, deadline)
            places.setdefault(address, []).append(place)
        answers: list[Any] = [None] * len(wanted)
        for address, mine in places.items():
            for place in mine:
                self.counts.calls[wanted[place][1][0]] += 1
            try:
                data = b"".join([pack(wanted[place][1]) for place in mine])
                given = await self.nodes[address].here().call(data, len(mine), deadline)
            except (NotSent, Unknown, ErrorReply) as error:
                given = [error] * len(mine)
            for place, answer in zip(mine, given, strict=True):  # reading again does no harm
                failed = isinstance(answer, Exception)
                answers[place] = await self.call(*wanted[place], deadline) if failed else answer
        return answers

    async def ask_masters(self, command: Sequence[Any], deadline: float) -> list[Any]:
        """Return the answers of all servers that hold keys, without those that give none."""
        answers = []
        with contextlib.suppress(InfrastructureError):
            if not self.topology.masters():
                await self._locate("", deadline)
        for address in self.topology.masters():
            with contextlib.suppress(InfrastructureError, NotSent, Unknown, ErrorReply):
                answers.append(await self.nodes.call(address, command, deadline))
        return answers

    def stats(self) -> BackendStats:
        """Return what was counted so far."""
        from ...core.reports import BackendStats

        return BackendStats(calls=dict(self.counts.calls), conflicts=self.counts.conflicts)

    async def close(self) -> None:
        """Close the idle connections; the next call opens new ones."""
        self.nodes.close()
        self.topology.close()

    async def _locate(self, key: str, deadline: float) -> Address:
        try:
            return await self.topology.locate(key, deadline)
        except NotSent as error:
            raise _unsent(error) from error
        except ErrorReply as refused:
            raise refused.error from refused

    def _follow(self, key: str, address: Address, refused: ErrorReply, *, last: bool) -> Address | None:
        """Learn from a refusal of ``address`` where ``key`` is; return the node to ask just this once, if there is one.

        Raise the error of the refusal if nothing helps, or if it was the last try.
        """
        if refused.remedy is Remedy.LOCATE:
            self.nodes.leave(address)  # it may have been replaced under the same name: connect anew
        if last or not self.topology.movable or refused.remedy not in (Remedy.FOLLOW, Remedy.LOCATE):
            raise refused.error from refused
        if refused.remedy is Remedy.LOCATE:
            self.topology.relocate(key, None)
            return None
        target = read_redirection(refused.text, address.host)
        if refused.asking:
            return target
        self.topology.relocate(key, target)
        return None


def _unsent(error: NotSent) -> RateLimiterUnavailable:
    """Return the error of a command that was not sent: no server was reached, or no connection was free."""
    problem = "Redis was not asked" if isinstance(error, NoneFree) else "Redis cannot be reached"
    return RateLimiterUnavailable(f"{problem}: {quote(error)}.", error)
