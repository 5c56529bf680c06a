"""The client: runs scripts and commands where their keys are.

The rule about sending again: only what was surely not carried out, which is what a server refused for a reason that
has a remedy, and what never reached a server that may have a successor. A command whose answer is missing is never sent
again.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from ...core.errors import RateLimiterUnavailable, quote
from ...core.values import BackendStats
from ..outcomes import NoneFree, NotSent, Unknown
from .answers import Refusal, Remedy
from .nodes import Nodes
from .settings import Address

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .scripts import Script
    from .topology import Topology

_MAX_TRIES = 5


class Client:
    """Commands to a Redis deployment. Usable from any number of threads and event loops at once."""

    def __init__(self, nodes: Nodes, topology: Topology, timeout: float) -> None:
        self.nodes = nodes
        self.topology = topology
        self.timeout = timeout
        self.conflicts = 0
        self._calls: Counter[str] = Counter()

    def deadline(self, timeout: float | None) -> float:
        """When a call has to be done that has ``timeout`` seconds."""
        return time.monotonic() + (self.timeout if timeout is None else timeout)

    async def run(self, script: Script, keys: Sequence[str], arguments: Sequence[str], deadline: float) -> Any:
        """Run a script where its first key is; a server that does not know it gets the whole text, once."""
        rest = (len(keys), *keys, *arguments)
        try:
            return await self._send(keys[0], ("EVALSHA", script.digest, *rest), deadline)
        except Refusal as refused:
            if refused.remedy is not Remedy.LOAD:
                raise refused.error from refused
        return await self.command(keys[0], ("EVAL", script.text, *rest), deadline)

    async def command(self, key: str, command: Sequence[Any], deadline: float) -> Any:
        """Run a command where ``key`` is."""
        try:
            return await self._send(key, command, deadline)
        except Refusal as refused:
            raise refused.error from refused

    async def commands(self, wanted: Sequence[tuple[str, Sequence[Any]]], deadline: float) -> list[Any]:
        """Run commands that only read, each where its key is, those of a server all at once; answers in their order."""
        places: dict[Address, list[int]] = {}
        for place, (key, _) in enumerate(wanted):
            try:
                address = self.topology.known(key) or await self._located(key, deadline)
            except Refusal as refused:
                raise refused.error from refused
            places.setdefault(address, []).append(place)
        answers: list[Any] = [None] * len(wanted)
        for address, mine in places.items():
            self._calls.update(wanted[place][1][0] for place in mine)
            try:
                given = await self.nodes.call_all(address, [wanted[place][1] for place in mine], deadline)
            except (NotSent, Unknown, Refusal) as error:
                given = [error] * len(mine)
            for place, answer in zip(mine, given, strict=True):  # reading again does no harm
                failed = isinstance(answer, Exception)
                answers[place] = await self.command(*wanted[place], deadline) if failed else answer
        return answers

    def stats(self) -> BackendStats:
        """What was sent so far."""
        return BackendStats(calls=dict(self._calls), conflicts=self.conflicts)

    async def close(self) -> None:
        """Close the idle connections; the next call opens new ones."""
        self.nodes.close()
        self.topology.close()

    async def _send(self, key: str, command: Sequence[Any], deadline: float) -> Any:
        """Send a command to the server that holds ``key``, wherever that has gone."""
        target: Address | None = None
        for tries in range(1, _MAX_TRIES + 1):
            asking = target is not None
            address = target or self.topology.known(key) or await self._located(key, deadline)
            target = None
            self._calls[command[0]] += 1
            try:
                return await self.nodes.call(address, command, deadline, asking=asking)
            except NotSent as error:
                self.topology.moved(key, None)
                if not self.topology.movable or tries == _MAX_TRIES or time.monotonic() >= deadline:
                    raise _unsent(error) from error
            except Unknown as error:
                self.topology.moved(key, None)
                message = f"Redis gave no whole answer, so the outcome is unknown: {quote(error)}."
                raise RateLimiterUnavailable(message, error) from error
            except Refusal as refused:
                if not self.topology.movable or tries == _MAX_TRIES:
                    self._leave(address, refused)
                    raise
                target = self._redirected(key, address, refused)
        raise AssertionError("every last try returns or raises")

    async def _located(self, key: str, deadline: float) -> Address:
        try:
            return await self.topology.locate(key, deadline)
        except NotSent as error:
            raise _unsent(error) from error

    def _leave(self, address: Address, refused: Refusal) -> None:
        """A server that is not what we need may have been replaced under the same name: connect anew."""
        if refused.remedy is Remedy.LOCATE:
            self.nodes.leave(address)

    def _redirected(self, key: str, address: Address, refused: Refusal) -> Address | None:
        """Learn from a refusal where to go next; the node to ask just this once, where there is one."""
        if refused.remedy is Remedy.FOLLOW:
            host, _, port = refused.target.rpartition(":")
            target = Address(host or address.host, int(port))
            if refused.asking:
                return target
            self.topology.moved(key, target)
            return None
        if refused.remedy is Remedy.LOCATE:
            self._leave(address, refused)
            self.topology.moved(key, None)
            return None
        raise refused


def _unsent(error: NotSent) -> RateLimiterUnavailable:
    """The error of a command that was not sent: for want of a server, or of a connection of our own."""
    problem = "Redis was not asked" if isinstance(error, NoneFree) else "Redis cannot be reached"
    return RateLimiterUnavailable(f"{problem}: {quote(error)}.", error)
