"""A master, a replica and the sentinel that watches them."""

from __future__ import annotations

import contextlib
from typing import Self

from tests.support.redis.cluster import in_step
from tests.support.redis.server import Server
from tests.support.waiting import until

NAME = "mymaster"


class Sentinel(Server):
    """A server that serves no data but knows who the master is."""

    arguments = ("--sentinel",)

    def __init__(self, master: Server) -> None:
        self._master = master
        super().__init__()

    def configuration(self) -> list[str]:
        """Quick to notice, and sufficient alone."""
        return [
            *self._place(),
            f"sentinel monitor {NAME} 127.0.0.1 {self._master.port} 1",
            f"sentinel down-after-milliseconds {NAME} 500",
            f"sentinel failover-timeout {NAME} 3000",
        ]


class Sentinels:
    """Who of the two servers is the master is whatever the sentinel says."""

    def __init__(self) -> None:
        self._end = contextlib.ExitStack()
        self.servers: list[Server] = []
        self.sentinel: Sentinel

    @property
    def url(self) -> str:
        """The URL by the sentinel."""
        return f"redis+sentinel://127.0.0.1:{self.sentinel.port}/{NAME}/0"

    @property
    def master(self) -> Server:
        """The server that the sentinel names."""
        port = int(self.sentinel.aside("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)[1])
        return next(server for server in self.servers if server.port == port)

    @property
    def replica(self) -> Server:
        """The other one."""
        master = self.master
        return next(server for server in self.servers if server is not master)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start all three, and wait until the sentinel could fail over.

        The sentinel comes last: it asks a replica how it is only every ten seconds, and the first answer must be good.
        """
        with contextlib.ExitStack() as undo:
            master = undo.enter_context(Server())
            replica = undo.enter_context(Server(options={"replicaof": f"127.0.0.1 {master.port}"}))
            self.servers = [master, replica]
            until(lambda: in_step(replica), "the replica has what its master has")
            self.sentinel = undo.enter_context(Sentinel(master))
            until(self._could_fail_over, "the sentinel knows the replica")
            self._end = undo.pop_all()

    def close(self) -> None:
        """End all three, the sentinel first."""
        self._end.close()

    def fail_over(self) -> None:
        """Let the sentinel exchange master and replica; returns when it names the other one and that takes writes."""
        old = self.master
        until(self._asked_to_fail_over, "the sentinel begins a failover")
        until(lambda: self.master is not old, "the sentinel names the other server")
        until(lambda: self.master.aside("ROLE")[0] == "master", "the other server takes writes")

    def _could_fail_over(self) -> bool:
        (replica,) = self.sentinel.aside("SENTINEL", "REPLICAS", NAME) or [()]
        said = dict(zip(replica[::2], replica[1::2], strict=True))
        return said.get("flags") == "slave" and said.get("master-link-status") == "ok"

    def _asked_to_fail_over(self) -> bool:
        """It refuses, which is an error, while the last failover is not over or the replica is not known to be well."""
        return bool(self.sentinel.aside("SENTINEL", "FAILOVER", NAME) == "OK")
