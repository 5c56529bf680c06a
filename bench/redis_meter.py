"""Commands per decision on a Redis server, by the server's own count."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import redis
from tests.support.redis.server import Server

if TYPE_CHECKING:
    from bench.timing import Side

MONITORED, COUNTED = 96, 480
END = "end of the count"


class Traffic(NamedTuple):
    """Per decision."""

    commands: float
    """Sent by the client, each a round trip unless sent together."""
    bytes: float
    """In and out."""
    server_us: float
    """User and system time of the server."""


def asked(server: Server, side: Side) -> Traffic:
    """Watched twice: being monitored costs bytes and time."""
    sent = _commands(server, side)
    before = _told(server)
    side(COUNTED)
    after = _told(server)
    grown = {name: after[name] - before[name] for name in after}
    overhead = _idle_bytes(server)
    volume = grown["total_net_input_bytes"] + grown["total_net_output_bytes"] - overhead
    cpu = grown["used_cpu_user"] + grown["used_cpu_sys"]
    return Traffic(
        round(sent / MONITORED, 2),
        round(volume / COUNTED),
        round(cpu * 1e6 / COUNTED, 1),
    )


def _commands(server: Server, side: Side) -> int:
    """Commands sent to the server; calls inside of scripts are not counted."""
    kinds: list[str] = []
    with redis.Redis.from_url(server.url) as client, client.monitor() as monitor:
        side(MONITORED)
        server.aside("ECHO", END)
        for command in monitor.listen():
            if END in command["command"]:
                break
            kinds.append(command["client_type"])
    return len(kinds) - kinds.count("lua")


def _told(server: Server) -> dict[str, float]:
    wanted = ("total_net_input_bytes", "total_net_output_bytes", "used_cpu_user", "used_cpu_sys")
    lines = [line.partition(":") for section in ("stats", "cpu") for line in _info(server, section)]
    return {name: float(value) for name, _, value in lines if name in wanted}


def _info(server: Server, section: str) -> list[str]:
    return str(server.aside("INFO", section)).splitlines()


def _idle_bytes(server: Server) -> float:
    """Return the bytes that one query of the counters adds to them."""
    before = _told(server)
    after = _told(server)
    return sum(after[name] - before[name] for name in after if name.startswith("total_net"))
