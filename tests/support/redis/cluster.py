"""A Redis Cluster on loopback: three masters, each with a replica if wanted, and slots that can be moved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple, Self

from tests.support.redis.server import Server
from tests.support.waiting import until

SLOTS = 16384
MASTERS = 3
OPTIONS = {
    "cluster-enabled": "yes",
    "cluster-config-file": "nodes.conf",
    "cluster-node-timeout": "1000",
    "cluster-replica-validity-factor": "0",
    "repl-ping-replica-period": "1",
    "repl-diskless-sync-delay": "0",
    "cluster-announce-ip": "127.0.0.1",
}
MIGRATE_TIMEOUT_MS = 5000
BATCH = 100


class Span(NamedTuple):
    """Slots in a row that are on the same node, and the ports of that node and of its replicas."""

    first: int
    last: int
    master: int
    replicas: frozenset[int]


class Cluster:
    """The nodes are masters first, then their replicas in the same order. A failover does not reorder them."""

    def __init__(self, *, replicas: int = 0, options: Mapping[str, str] | None = None) -> None:
        assert replicas in (0, 1)
        directives = {**OPTIONS, **(options or {})}
        self.nodes = [Server(options=directives) for _ in range(MASTERS * (1 + replicas))]

    @property
    def masters(self) -> list[Server]:
        """The nodes that were masters at the start."""
        return self.nodes[:MASTERS]

    @property
    def url(self) -> str:
        """The masters of the start as a URL."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.masters)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the nodes, join them, and wait until all of them agree and take writes."""
        try:
            for node in self.nodes:
                node.start()
            self._join()
            self._attach_replicas()
            self.settle()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End all nodes and remove what they wrote."""
        for node in self.nodes:
            node.close()

    def settle(self) -> None:
        """Wait until every node that runs says that the cluster is well, and all have the same picture of it."""
        until(self._agree, "the nodes agree", pause=0.02)

    def slot_of(self, key: str) -> int:
        """The slot of a key."""
        return int(self._anyone().aside("CLUSTER", "KEYSLOT", key))

    def node_of_slot(self, slot: int) -> Server:
        """The master that serves a slot now."""
        port = next(span.master for span in spans(self._anyone()) if span.first <= slot <= span.last)
        return next(node for node in self.nodes if node.port == port)

    def node_of(self, key: str) -> Server:
        """The master that serves a key now."""
        return self.node_of_slot(self.slot_of(key))

    def begin_move(self, slot: int, target: Server, *, keys: int | None = None) -> None:
        """The first half of a move: the slot is migrating, and its keys, or only so many of them, are at ``target``.

        The source still serves the keys that it has, and answers ASK for all others.
        """
        source = self.node_of_slot(slot)
        assert source is not target, "the slot is there already"
        target.aside("CLUSTER", "SETSLOT", slot, "IMPORTING", identity(source))
        source.aside("CLUSTER", "SETSLOT", slot, "MIGRATING", identity(target))
        left = int(source.aside("CLUSTER", "COUNTKEYSINSLOT", slot)) if keys is None else keys
        while left > 0 and (names := source.aside("CLUSTER", "GETKEYSINSLOT", slot, min(left, BATCH))):
            source.aside("MIGRATE", "127.0.0.1", target.port, "", 0, MIGRATE_TIMEOUT_MS, "REPLACE", "KEYS", *names)
            left -= len(names)

    def end_move(self, slot: int, target: Server) -> None:
        """The second half: the remaining keys follow, and every node learns that the slot is at ``target``."""
        source = self.node_of_slot(slot)
        while names := source.aside("CLUSTER", "GETKEYSINSLOT", slot, BATCH):
            source.aside("MIGRATE", "127.0.0.1", target.port, "", 0, MIGRATE_TIMEOUT_MS, "REPLACE", "KEYS", *names)
        others = [node for node in self._running_masters() if node not in (source, target)]
        for node in (target, source, *others):  # were the source first, nobody would serve the slot in between
            node.aside("CLUSTER", "SETSLOT", slot, "NODE", identity(target))
        self.settle()

    def move_slot(self, slot: int, target: Server) -> None:
        """A live migration of one slot."""
        self.begin_move(slot, target)
        self.end_move(slot, target)

    def flush(self) -> None:
        """Delete everything."""
        for node in self._running_masters():
            node.flush()

    def command_stats(self) -> dict[str, int]:
        """Calls per command, summed over the nodes that run."""
        calls: Counter[str] = Counter()
        for node in self._running():
            calls.update(node.command_stats())
        return dict(calls)

    def reset_stats(self) -> None:
        """Begin to count anew, on every node that runs."""
        for node in self._running():
            node.reset_stats()

    def _running(self) -> list[Server]:
        return [node for node in self.nodes if node.running]

    def _running_masters(self) -> list[Server]:
        ports = {span.master for span in spans(self._anyone())}
        return [node for node in self._running() if node.port in ports]

    def _anyone(self) -> Server:
        return self._running()[0]

    def _join(self) -> None:
        """Every node is introduced to every other, which is quicker than waiting for gossip."""
        for epoch, node in enumerate(self.nodes, start=1):
            node.aside("CLUSTER", "SET-CONFIG-EPOCH", epoch)
        for index, node in enumerate(self.masters):
            slots = range(SLOTS * index // MASTERS, SLOTS * (index + 1) // MASTERS)
            node.aside("CLUSTER", "ADDSLOTS", *slots)
        for node in self.nodes:
            for other in self.nodes:
                if other is not node:
                    node.aside("CLUSTER", "MEET", "127.0.0.1", other.port)
        until(lambda: all(map(self._knows_all, self.nodes)), "the nodes know each other", pause=0.02)

    def _knows_all(self, node: Server) -> bool:
        lines = node.aside("CLUSTER", "NODES").splitlines()
        known = [line for line in lines if "handshake" not in line and line.split()[7] == "connected"]
        return len(lines) == len(known) == len(self.nodes)

    def _attach_replicas(self) -> None:
        for master, replica in zip(self.masters, self.nodes[MASTERS:], strict=False):
            replica.aside("CLUSTER", "REPLICATE", identity(master))
        until(lambda: all(map(in_step, self.nodes[MASTERS:])), "replicas have what their masters have", pause=0.02)

    def _agree(self) -> bool:
        pictures = set()
        for node in self._running():
            if "cluster_state:ok" not in node.aside("CLUSTER", "INFO"):
                return False
            pictures.add(spans(node))
        masters = {span.master: span.replicas for span in pictures.pop()}
        attached = sum(map(len, masters.values()))
        dead = set(masters) - {node.port for node in self._running()}
        return not pictures and not dead and attached == len(self._running()) - len(masters)


def spans(node: Server) -> tuple[Span, ...]:
    """Which node serves which slots, as one node sees it."""
    answer = node.aside("CLUSTER", "SLOTS")
    found = (Span(first, last, master[1], frozenset(r[1] for r in rest)) for first, last, master, *rest in answer)
    return tuple(sorted(found, key=lambda span: span.first))


def identity(node: Server) -> str:
    """The name of a node inside the cluster."""
    return str(node.aside("CLUSTER", "MYID"))


def in_step(replica: Server) -> bool:
    """Whether a replica is connected to its master and has had all of it."""
    return "master_link_status:up" in replica.aside("INFO", "replication")
