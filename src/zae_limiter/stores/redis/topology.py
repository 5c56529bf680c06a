"""Topologies: which server holds a key. A single one, the master that sentinels name, or a cluster's slots."""

from __future__ import annotations

import time
from bisect import bisect_right
from operator import itemgetter
from typing import TYPE_CHECKING, TypeAlias

from redis.crc import key_slot

from ...core.errors import RateLimiterUnavailable
from ..outcomes import NotSent, Unknown
from .answers import Refusal
from .nodes import Nodes, Wire
from .settings import Address, Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Ranges: TypeAlias = list[tuple[int, int, Address]]


class Topology:
    """Knows which server holds a key.

    It is ``movable`` if the data may be found elsewhere when a server fails. Its ``master`` is the server that holds
    all keys, if there is one and it is known.
    """

    movable = True
    master: Address | None = None

    def known(self, key: str) -> Address | None:
        """Return the server that holds a key, or None if a server has to be asked for it."""
        return self.master

    async def locate(self, key: str, deadline: float) -> Address:
        """Ask which server holds a key. Raise `NotSent` if nobody knows, `Refusal` if we are not allowed to ask."""
        raise NotImplementedError

    def relocate(self, key: str, target: Address | None) -> None:
        """Forget where a key was; it is at ``target`` now, if that is known."""
        self.master = None

    def close(self) -> None:
        """Close the connections of its own."""


class Single(Topology):
    """One server."""

    movable = False

    def __init__(self, address: Address) -> None:
        self.master = address

    def relocate(self, key: str, target: Address | None) -> None:
        """Do nothing: there is no other server."""


class Sentinels(Topology):
    """The master of a service, as the sentinels name it."""

    def __init__(self, sentinels: Sequence[Address], service: str, nodes: Nodes) -> None:
        self._sentinels = list(sentinels)
        self._service = service
        self._nodes = nodes

    async def locate(self, key: str, deadline: float) -> Address:
        """Ask for the master; the Sentinel that knows it is asked first the next time."""
        self.master = found = await self._ask(deadline)
        return found

    def close(self) -> None:
        """Close the connections to the sentinels."""
        self._nodes.close()

    async def _ask(self, deadline: float) -> Address:
        problems = []
        for sentinel, until in _shares(tuple(self._sentinels), deadline):
            try:
                found = await self._nodes.call(sentinel, ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service), until)
            except (NotSent, Unknown, Refusal) as error:
                problems.append(_describe(error))
                continue
            if found is not None:
                self._sentinels = [sentinel, *(other for other in self._sentinels if other != sentinel)]
                return _address(found)
            problems.append(f"{sentinel} does not know {self._service!r}")
        raise NotSent(f"no Sentinel names a master: {'; '.join(problems)}")


class Cluster(Topology):
    """The nodes of a cluster, by slot. Any node can tell them all."""

    def __init__(self, seeds: Sequence[Address], nodes: Nodes) -> None:
        self._seeds = tuple(seeds)
        self._nodes = nodes
        self._order = list(seeds)
        """The order in which nodes are asked: the one that answered last first, the one that failed last at the end."""
        self._ranges: Ranges = []
        self._moved: dict[int, Address] = {}

    def known(self, key: str) -> Address | None:
        """Return the node that has the key's slot."""
        slot = key_slot(key.encode())
        return self._moved.get(slot) or _holder(self._ranges, slot)

    async def locate(self, key: str, deadline: float) -> Address:
        """Ask a node for all slots."""
        slot = key_slot(key.encode())
        found = _holder(await self._refresh(deadline), slot)  # what others lose meanwhile does not matter
        if found is None:
            raise NotSent(f"no node of the cluster has slot {slot}")
        return found

    def relocate(self, key: str, target: Address | None) -> None:
        """Remember where a slot is now; if that is not known, forget all slots of its node and ask that node last."""
        if target is not None:
            self._moved[key_slot(key.encode())] = target
            return
        gone = self.known(key)
        if gone is not None:
            self._moved = {slot: node for slot, node in self._moved.items() if node != gone}
            self._ranges = [span for span in self._ranges if span[2] != gone]
            self._order = sorted(self._order, key=lambda node: node == gone)

    async def _refresh(self, deadline: float) -> Ranges:
        problems = []
        for address, until in _shares(self._order, deadline):
            try:
                table = await self._nodes.call(address, ("CLUSTER", "SLOTS"), until)
            except (NotSent, Unknown, Refusal) as error:
                problems.append(_describe(error))
                continue
            ranges = sorted((first, last, _address(node, address.host)) for first, last, node, *_ in table)
            self._ranges, self._moved = ranges, {}
            self._order = list(dict.fromkeys((address, *(master for _, _, master in ranges), *self._seeds)))
            return ranges
        raise NotSent(f"no node of the cluster answers: {'; '.join(problems)}")


def _holder(ranges: Ranges, slot: int) -> Address | None:
    place = bisect_right(ranges, slot, key=itemgetter(0)) - 1
    return ranges[place][2] if place >= 0 and slot <= ranges[place][1] else None


def _shares(addresses: Sequence[Address], deadline: float) -> Iterator[tuple[Address, float]]:
    """Yield each address with the time until which it may answer: each gets an equal share of what is left."""
    for left in range(len(addresses), 0, -1):
        now = time.monotonic()
        yield addresses[-left], now + (deadline - now) / left


def _describe(error: Exception) -> str:
    """Return why this server did not tell; raise the error if no other can, as it is not for lack of a server."""
    if isinstance(error, Refusal) and not isinstance(error.error, RateLimiterUnavailable):
        raise error
    return str(error)


def _address(told: Sequence[bytes | int], asked: str = "") -> Address:
    """Return an address that a server named; an empty host is that of the server itself."""
    host = told[0].decode() if isinstance(told[0], bytes) else ""
    return Address(host or asked, int(told[1]))


def open_topology(settings: Settings, nodes: Nodes, wire: Wire) -> Topology:
    """Return the topology that a URL names; ``nodes`` are the data nodes."""
    if settings.kind == "cluster":
        return Cluster(settings.addresses, nodes)
    if settings.kind == "sentinel":
        login = settings.sentinel_login
        asked = Nodes(wire, login, connect_timeout=settings.connect_timeout, limit=settings.max_connections)
        return Sentinels(settings.addresses, settings.service, asked)
    return Single(settings.addresses[0])
