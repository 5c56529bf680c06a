"""Overhead of a limiter per request: server CPU over sockets, beside the same app without one, all in turn.

Every app has a process of its own and is asked over keep-alive connections, in many short rounds; overhead is a quiet
round of an app less a quiet round of the bare one. Where a process happens to lie in memory costs it a few
microseconds, so all are started several times. The in-process figures leave the server out.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import ExitStack
from importlib.metadata import version
from typing import Any

from bench.web import asgi_apps, wsgi_apps
from bench.web.cores import keeping_to_the_first
from bench.web.driving import in_process
from bench.web.load import Clients, Round, Server

APPS = {"asgi": tuple(asgi_apps.APPS), "wsgi": tuple(wsgi_apps.APPS)}
"""The names, the bare app first."""
BARE = "bare"
RIVALS = ("slowapi", "asgi-ratelimit", "flask-limiter")
CONNECTIONS = {"asgi": 8, "wsgi": 1}
"""With more than one, the two threads of waitress fight for the interpreter and nothing else can be seen."""
PLENTY, SCARCE, SENT = 10**9, 50, 100
GENERATIONS, ROUNDS_S, REQUESTS = 3, 6.0, 100


def measure() -> dict[str, Any]:
    """Everything, as plain values."""
    return {
        "versions": {name: version(name) for name in (*RIVALS, "starlette", "flask", "uvicorn", "waitress")},
        **{
            kind: {"sockets": over_sockets(kind), "in_process": without_server(kind), "scarce": scarce(kind)}
            for kind in APPS
        },
    }


def over_sockets(kind: str) -> dict[str, dict[str, float]]:
    """Server CPU per request in microseconds, what of that is overhead, and requests a second, by app."""
    rounds: dict[str, list[Round]] = {name: [] for name in APPS[kind]}
    with asyncio.Runner() as runner:
        for _ in range(GENERATIONS):
            _generation(runner, kind, rounds)
    return {name: _figures(found, rounds[BARE]) for name, found in rounds.items()}


def _generation(runner: asyncio.Runner, kind: str, rounds: dict[str, list[Round]]) -> None:
    """Start all apps and ask them in turn, in an order that changes: nobody always follows the same one."""
    with ExitStack() as stack:
        servers = {name: stack.enter_context(Server(kind, name, PLENTY)) for name in rounds}
        stack.enter_context(keeping_to_the_first())
        number = CONNECTIONS[kind]
        clients = {name: stack.enter_context(Clients(runner, server, number)) for name, server in servers.items()}
        for each in clients.values():
            each.ask(REQUESTS)
        chance = random.Random(0)
        until = time.monotonic() + ROUNDS_S
        while True:
            for name in chance.sample(list(clients), len(clients)):
                rounds[name].append(clients[name].ask(REQUESTS))
            if time.monotonic() >= until:
                return


def _figures(found: list[Round], bare: list[Round]) -> dict[str, float]:
    cpu = _quiet([each.cpu_us for each in found])
    return {
        "cpu_us": round(cpu, 1),
        "overhead_us": round(cpu - _quiet([each.cpu_us for each in bare]), 1),
        "requests_per_s": round(1e6 / _quiet([each.wall_us for each in found])),
    }


def _quiet(found: list[float]) -> float:
    """Return the tenth percentile of the rounds: the very best one may have been luck."""
    return sorted(found)[len(found) // 10]


def without_server(kind: str) -> dict[str, dict[str, float]]:
    """CPU per request in microseconds, and what of that is overhead, by app."""
    found = in_process(kind, PLENTY)
    return {name: {"cpu_us": round(cpu, 1), "overhead_us": round(cpu - found[BARE], 1)} for name, cpu in found.items()}


def scarce(kind: str) -> dict[str, dict[str, int]]:
    """Return the answers of each limiter to `SENT` requests on a limit of `SCARCE`, by status."""
    counted = {}
    with asyncio.Runner() as runner:
        for name in APPS[kind][1:]:
            with Server(kind, name, SCARCE) as server, Clients(runner, server, CONNECTIONS[kind]) as clients:
                statuses = clients.ask(SENT).statuses
            counted[name] = {str(status): number for status, number in sorted(statuses.items())}
    return counted
