"""Topologies: which server holds a key. A single one, the master that sentinels name, or a cluster's slots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from redis.crc import key_slot

from ...core.errors import AccessDeniedError
from .answers import Refusal
from .nodes import Nodes, NotSent, Unknown
from .settings import Address, Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .wires import Wire


class Topology(Protocol):
    """Where keys are."""

    movable: bool
    """Whether the data may be found elsewhere when a server fails."""

    def known(self, key: str) -> Address | None:
        """The server that holds a key, as far as is known without asking."""
        ...

    async def locate(self, key: str, deadline: float) -> Address:
        """Find out which server holds a key."""
        ...

    def moved(self, key: str, target: Address | None) -> None:
        """What is known of a key is out of date; it is at ``target``, if anybody knows."""
        ...

    def close(self) -> None:
        """Close the connections of its own."""
        ...


class Single:
    """One server."""

    movable = False

    def __init__(self, address: Address) -> None:
        self._address = address

    def known(self, key: str) -> Address | None:
        """Always the same."""
        return self._address

    async def locate(self, key: str, deadline: float) -> Address:
        """Always the same."""
        return self._address

    def moved(self, key: str, target: Address | None) -> None:
        """There is nothing else to know."""

    def close(self) -> None:
        """There are no connections of its own."""


class Sentinels:
    """The master of a service, as the sentinels name it."""

    movable = True

    def __init__(self, sentinels: Sequence[Address], service: str, nodes: Nodes) -> None:
        self._sentinels = list(sentinels)
        self._service = service
        self._nodes = nodes
        self._master: Address | None = None

    def known(self, key: str) -> Address | None:
        """The master that was named last."""
        return self._master

    async def locate(self, key: str, deadline: float) -> Address:
        """Ask for the master; the first sentinel that knows it is asked first the next time."""
        self._master = found = await self._ask(deadline)
        return found

    def moved(self, key: str, target: Address | None) -> None:
        """Ask the sentinels again."""
        self._master = None

    def close(self) -> None:
        """Close the connections to the sentinels."""
        self._nodes.close()

    async def _ask(self, deadline: float) -> Address:
        problems = []
        for sentinel in tuple(self._sentinels):
            try:
                found = await self._nodes.call(
                    sentinel, ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service), deadline
                )
            except (NotSent, Unknown, Refusal) as error:
                problems.append(_survived(error))
                continue
            if found is not None:
                self._sentinels.remove(sentinel)
                self._sentinels.insert(0, sentinel)
                return _address(found)
            problems.append(f"{sentinel} does not know {self._service!r}")
        raise NotSent(f"no sentinel names a master: {'; '.join(problems)}")


class Cluster:
    """The nodes of a cluster, by slot. Any node can tell them all."""

    movable = True

    def __init__(self, seeds: Sequence[Address], nodes: Nodes) -> None:
        self._seeds = tuple(seeds)
        self._nodes = nodes
        self._masters: list[Address] = []
        self._slots: dict[int, Address] = {}

    def known(self, key: str) -> Address | None:
        """The node that has the key's slot."""
        return self._slots.get(key_slot(key.encode()))

    async def locate(self, key: str, deadline: float) -> Address:
        """Ask for all slots."""
        await self._refresh(deadline)
        found = self.known(key)
        if found is None:
            raise NotSent(f"no node of the cluster has slot {key_slot(key.encode())}")
        return found

    def moved(self, key: str, target: Address | None) -> None:
        """Note where one slot has gone; if nobody knows, ask for all of them the next time."""
        if target is None:
            self._slots = {}
        else:
            self._slots[key_slot(key.encode())] = target

    def close(self) -> None:
        """All connections are those of the data nodes."""

    async def _refresh(self, deadline: float) -> None:
        problems = []
        for address in dict.fromkeys((*self._masters, *self._seeds)):
            try:
                table = await self._nodes.call(address, ("CLUSTER", "SLOTS"), deadline)
            except (NotSent, Unknown, Refusal) as error:
                problems.append(_survived(error))
                continue
            self._slots = {
                slot: _address(master, address.host)
                for first, last, master, *_ in table
                for slot in range(first, last + 1)
            }
            self._masters = list(dict.fromkeys(self._slots.values()))
            return
        raise NotSent(f"no node of the cluster answers: {'; '.join(problems)}")


def _survived(error: Exception) -> str:
    """Why this server could not tell; another one may, unless we are not let in."""
    if isinstance(error, Refusal) and isinstance(error.error, AccessDeniedError):
        raise error
    return str(error)


def _address(told: Sequence[bytes | int], asked: str = "") -> Address:
    """An address as servers tell it; an empty host is the one that was asked."""
    host = told[0].decode() if isinstance(told[0], bytes) else ""
    return Address(host or asked, int(told[1]))


def open_topology(settings: Settings, nodes: Nodes, wire: Wire) -> Topology:
    """The topology that a URL names; ``nodes`` are the data nodes."""
    if settings.kind == "cluster":
        return Cluster(settings.addresses, nodes)
    if settings.kind == "sentinel":
        login = settings.sentinel_login
        asked = Nodes(wire, login, connect_timeout=settings.connect_timeout, limit=settings.max_connections)
        return Sentinels(settings.addresses, settings.service, asked)
    return Single(settings.addresses[0])
