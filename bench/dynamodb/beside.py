"""Both sides in turn. CPU is that of the client's process only. Calls and bytes are counted on the wire by a proxy, on
tables of their own. The reference lives in an environment of its own.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from botocore.session import Session
from tests.support.aws import engine
from tests.support.aws.wire import Call, Wire

from bench.dynamodb.billing import pictured, write_units
from bench.hammering import Log, merged
from bench.oracle import Bound, Verdict, verdict
from bench.partner import ROOT, Partner
from bench.timing import typical

PYTHON: dict[str, str] = {
    "ours": sys.executable,
    "reference": str(ROOT / ".venv-bench-reference" / "bin" / "python"),
}
MODES = ("async", "blocking")
ROUNDS, CALLS, GRANTS, STEADY = 10, 100, 20, 50
CROWDED = Bound(20, 10.0)
PROCESSES, CROWD_S, QUIET_S, BURST_S, SOON_S = 4, 2.0, 2.5, 1.0, 0.05
"""The quiet time fills the bucket more than once over."""


class Client(Partner):
    """A driver in its own process, and with it a table if it is the owner."""

    def __init__(self, side: str, mode: str, table: str, url: str, role: str = "owner") -> None:
        environment = {name: value for name, value in os.environ.items() if side == "ours" or name != "PYTHONPATH"}
        command = [PYTHON[side], "-m", "bench.dynamodb.driver", side, mode, table, url, role]
        super().__init__(*command, env=environment | engine.CREDENTIALS)

    def do(self, what: str, **wish: Any) -> dict[str, Any]:
        """Have it done and wait for the answer."""
        answer: dict[str, Any] = self.ask({"do": what, **wish})
        return answer


class Traffic(NamedTuple):
    """Wire cost of one kind of decision."""

    calls: float
    reads: float
    bytes: float

    @staticmethod
    def of(calls: list[Call], decisions: int) -> Traffic:
        """Per decision."""
        total = sum(call.sent + call.received for call in calls)
        return Traffic(
            len(calls) / decisions, sum(call.reads for call in calls) / decisions, round(total / decisions, 1)
        )


def table_of(purpose: str, side: str, mode: str) -> str:
    """A name that no other run has."""
    return f"{purpose}-{side}-{mode}-{os.getpid()}"


def steady(url: str) -> dict[str, dict[str, float]]:
    """Microseconds per two-limit lease, by side and mode: as waited for, and of the client's CPU."""
    with ExitStack() as stack:
        clients = {
            f"{side} {mode}": stack.enter_context(Client(side, mode, table_of("cpu", side, mode), url))
            for side in PYTHON
            for mode in MODES
        }
        for client in clients.values():
            client.do("prepare")
        rounds: dict[str, list[dict[str, float]]] = {name: [] for name in clients}
        chance = random.Random(0)
        for _ in range(ROUNDS):
            for name in chance.sample(list(clients), len(clients)):
                rounds[name].append(clients[name].do("steady", calls=CALLS))
        return {
            name: {figure: typical([each[figure] for each in found]) for figure in ("wall_us", "cpu_us")}
            for name, found in rounds.items()
        }


@contextmanager
def counting(wire: Wire, decisions: int, found: list[Traffic]) -> Iterator[None]:
    """Counts what happens inside."""
    mark = wire.mark()
    yield
    found.append(Traffic.of(wire.calls(since=mark), decisions))


def traffic(url: str, side: str, mode: str) -> dict[str, Any]:
    """Calls and bytes per decision, for the situations that make up a limiter's day."""
    kinds = ("first acquire of an entity", "steady acquire", "grant on a saturated bucket")
    found: list[Traffic] = []
    with Wire(url) as wire, Client(side, mode, table_of("wire", side, mode), wire.url) as client:
        client.do("prepare")
        with counting(wire, 1, found):
            client.do("first")
        with counting(wire, STEADY, found):
            client.do("steady", calls=STEADY)
        client.do("drain")
        with counting(wire, GRANTS, found):
            client.do("saturated", grants=GRANTS)
    return {kind: each._asdict() for kind, each in zip(kinds, found, strict=True)}


def billed(url: str, side: str, mode: str) -> int:
    """Write units of one steady acquire."""
    table, settings = table_of("units", side, mode), engine.CREDENTIALS
    with Client(side, mode, table, url) as client:
        client.do("prepare")
        reader = Session().create_client(
            "dynamodb",
            region_name=settings["AWS_DEFAULT_REGION"],
            endpoint_url=url,
            aws_access_key_id=settings["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=settings["AWS_SECRET_ACCESS_KEY"],
        )
        before = pictured(reader, table)
        client.do("steady", calls=1)
        return write_units(before, pictured(reader, table))


def burst(url: str, side: str, mode: str) -> Verdict:
    """One token, a quiet time, then more demand than the limit gives."""
    with Client(side, mode, table_of("burst", side, mode), url) as client:
        client.do("prepare")
        client.do("one")
        return crowded([client], QUIET_S, BURST_S)


def saturated(url: str, side: str, mode: str) -> Verdict:
    """Several processes on one bucket from the start."""
    table = table_of("crowd", side, mode)
    with ExitStack() as stack:
        owner = stack.enter_context(Client(side, mode, table, url))
        owner.do("prepare")
        others = [stack.enter_context(Client(side, mode, table, url, "guest")) for _ in range(PROCESSES - 1)]
        for client in others:
            client.do("warm")
        return crowded([owner, *others], SOON_S, CROWD_S)


def crowded(clients: list[Client], wait_s: float, seconds: float) -> Verdict:
    """Let all ask at once, and judge what they got."""
    start_ns = time.monotonic_ns() + round(wait_s * 1e9)
    until_ns = start_ns + round(seconds * 1e9)
    for client in clients:
        client.tell({"do": "crowd", "start_ns": start_ns, "until_ns": until_ns})
    log = merged([Log.of(client.hear()["log"]) for client in clients])
    return verdict(log, CROWDED, start_ns, until_ns)


def reference_version() -> str:
    """Of its own environment."""
    code = "from importlib.metadata import version; print(version('zae-limiter'))"
    command = [PYTHON["reference"], "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True, env={}).stdout.strip()


def measure() -> dict[str, Any]:
    """Everything, as plain values."""
    url = engine.endpoint()
    pairs = [(side, mode) for side in PYTHON for mode in MODES]
    return {
        "reference": reference_version(),
        "steady": steady(url),
        "wire": {f"{side} {mode}": traffic(url, side, mode) for side, mode in pairs},
        "write_units": {f"{side} {mode}": billed(url, side, mode) for side, mode in pairs},
        "contention": {
            "a burst after a quiet time": {f"{side} {mode}": burst(url, side, mode)._asdict() for side, mode in pairs},
            "saturated": {f"{side} {mode}": saturated(url, side, mode)._asdict() for side, mode in pairs},
        },
    }
