"""Topologies: which server holds a key. A single one, the master that sentinels name, or a cluster's slots."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import TypeVar

from redis.crc import key_slot

from ...core.errors import RateLimiterUnavailable, quote
from ..outcomes import NotSent, Unknown
from .answers import ErrorReply, Ranges, read_address, read_slots
from .links import Nodes
from .settings import Address, Settings
from .wires import Wire

T = TypeVar("T")


class Topology:
    """Knows which server holds a key; this one knows one server.

    It is ``movable`` if the data may be found elsewhere when a server fails. Its ``master`` is the server that holds
    all keys, if there is one and it is known.
    """

    movable = False

    def __init__(self, master: Address | None = None) -> None:
        self.master = master

    def masters(self) -> list[Address]:
        """Return the servers that hold keys, as far as they are known."""
        return [] if self.master is None else [self.master]

    def known(self, key: str) -> Address | None:
        """Return the server that holds a key, or None if a server has to be asked for it."""
        return self.master

    async def locate(self, key: str, deadline: float) -> Address:
        """Ask which server holds a key. Raise `NotSent` if nobody knows, `ErrorReply` if we are not allowed to ask."""
        raise NotImplementedError

    def relocate(self, key: str, target: Address | None) -> None:
        """Forget where a key was; it is at ``target`` now, if that is known."""

    def close(self) -> None:
        """Close the connections of its own."""


class Sentinels(Topology):
    """The master of a service, as the sentinels name it."""

    movable = True

    def __init__(self, sentinels: Sequence[Address], service: str, nodes: Nodes) -> None:
        super().__init__()
        self._sentinels = list(sentinels)
        self._service = service
        self._nodes = nodes

    async def locate(self, key: str, deadline: float) -> Address:
        """Ask for the master; the Sentinel that knows it is asked first the next time."""
        command = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service)
        sentinels = tuple(self._sentinels)
        problem = "no Sentinel names a master"
        sentinel, found = await _ask(self._nodes, sentinels, command, deadline, problem, read_address)
        self._sentinels = [sentinel, *(other for other in sentinels if other != sentinel)]
        self.master = found
        return found

    def relocate(self, key: str, target: Address | None) -> None:
        """Forget the master."""
        self.master = None

    def close(self) -> None:
        """Close the connections to the sentinels."""
        self._nodes.close()


class Cluster(Topology):
    """The nodes of a cluster, by slot. Any node can tell them all."""

    movable = True

    def __init__(self, seeds: Sequence[Address], nodes: Nodes) -> None:
        super().__init__()
        self._seeds = tuple(seeds)
        self._nodes = nodes
        self._order = list(seeds)
        """The order in which nodes are asked: the one that answered last first, the one that failed last at the end."""
        self._ranges: Ranges = []
        self._moved: dict[int, Address] = {}

    def masters(self) -> list[Address]:
        """Return the nodes that have slots."""
        return list(dict.fromkeys(master for _, _, master in self._ranges))

    def known(self, key: str) -> Address | None:
        """Return the node that has the key's slot."""
        slot = key_slot(key.encode())
        return self._moved.get(slot) or _holder(self._ranges, slot)

    async def locate(self, key: str, deadline: float) -> Address:
        """Ask a node for all slots."""
        problem = "no node of the cluster answers"
        address, ranges = await _ask(self._nodes, self._order, ("CLUSTER", "SLOTS"), deadline, problem, read_slots)
        self._ranges, self._moved = ranges, {}
        self._order = list(dict.fromkeys((address, *(master for _, _, master in ranges), *self._seeds)))
        slot = key_slot(key.encode())
        found = _holder(ranges, slot)  # what others lose meanwhile does not matter
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


def _holder(ranges: Ranges, slot: int) -> Address | None:
    place = bisect_right(ranges, slot, key=itemgetter(0)) - 1
    return ranges[place][2] if place >= 0 and slot <= ranges[place][1] else None


async def _ask(
    nodes: Nodes,
    addresses: Sequence[Address],
    command: Sequence[str],
    deadline: float,
    problem: str,
    read: Callable[[object, str], T],
) -> tuple[Address, T]:
    """Ask servers in turn until one answers; return it and its answer. Each gets an equal share of the time left.

    ``read`` takes an answer and the host that gave it. Raise `NotSent` with the ``problem`` if no server answers.
    """
    reasons = []
    for left in range(len(addresses), 0, -1):
        address, now = addresses[-left], time.monotonic()
        try:
            told = await nodes.call(address, command, now + (deadline - now) / left)
            if told is not None:
                return address, read(told, address.host)
            reasons.append(f"{address} does not know {command[-1]!r}")
        except RateLimiterUnavailable as error:
            reasons.append(f"{address}: {quote(error)}")
        except (NotSent, Unknown, ErrorReply) as error:
            if isinstance(error, ErrorReply) and type(error.error) is not RateLimiterUnavailable:
                raise  # it is not for lack of a server, so no other can tell
            reasons.append(str(error))
    raise NotSent(f"{problem}: {'; '.join(reasons)}")


def open_topology(settings: Settings, nodes: Nodes, wire: Wire) -> Topology:
    """Return the topology that a URL names; ``nodes`` are the data nodes."""
    if settings.kind == "cluster":
        return Cluster(settings.addresses, nodes)
    if settings.kind == "sentinel":
        login = settings.sentinel_login
        asked = Nodes(wire, login, connect_timeout=settings.connect_timeout, limit=settings.max_connections)
        return Sentinels(settings.addresses, settings.service, asked)
    return Topology(settings.addresses[0])
