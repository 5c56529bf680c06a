"""DynamoDB: ours beside the reference, the same work on the same engine in the same run.

CPU is that of the client's process only, both sides in turn, the best of several rounds. Calls and bytes are counted
on the wire by a proxy, on tables of their own. The reference lives in an environment of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from tests.aws import engine
from tests.aws.wire import Call, Wire

ROOT = Path(__file__).parents[1]
DRIVER = ROOT / "bench" / "driver.py"
PYTHON = {"ours": Path(sys.executable), "reference": ROOT / ".venv-bench-reference" / "bin" / "python"}
MODES = ("async", "blocking")
ROUNDS, CALLS, GRANTS, STEADY = 8, 250, 20, 50


class Client:
    """A driver in its own process."""

    def __init__(self, side: str, mode: str, table: str, url: str) -> None:
        self.side, self.mode = side, mode
        self._process = subprocess.Popen(
            [PYTHON[side], DRIVER, side, mode, table, url],
            env=os.environ | engine.CREDENTIALS,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, do: str, **wish: Any) -> dict[str, Any]:
        """Have it done and wait for the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps({"do": do, **wish}), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.side} ({self.mode}) gave up; its words are above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.ask("close")
        self._process.communicate()


class Traffic(NamedTuple):
    """What one kind of decision costs on the wire."""

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


def cpu(url: str) -> dict[str, float]:
    """Microseconds of client CPU per two-limit lease, steady state."""
    with ExitStack() as stack:
        clients = {
            f"{side} {mode}": stack.enter_context(Client(side, mode, f"cpu-{side}-{mode}-{os.getpid()}", url))
            for side in PYTHON
            for mode in MODES
        }
        for client in clients.values():
            client.ask("prepare")
        rounds: dict[str, list[float]] = {name: [] for name in clients}
        for _ in range(ROUNDS):
            for name, client in clients.items():
                rounds[name].append(client.ask("steady", calls=CALLS)["microseconds"])
        return {name: round(min(found), 1) for name, found in rounds.items()}


@contextmanager
def counting(wire: Wire, decisions: int, found: list[Traffic]) -> Iterator[None]:
    """Counts what happens inside."""
    mark = wire.mark()
    yield
    found.append(Traffic.of(wire.calls(since=mark), decisions))


def traffic(url: str, side: str, mode: str) -> dict[str, Traffic]:
    """Calls and bytes per decision, for the situations that make up a limiter's day."""
    kinds = ("first acquire of an entity", "steady acquire", "grant on a saturated bucket")
    found: list[Traffic] = []
    with Wire(url) as wire, Client(side, mode, f"wire-{side}-{mode}-{os.getpid()}", wire.url) as client:
        client.ask("prepare")
        with counting(wire, 1, found):
            client.ask("first")
        with counting(wire, STEADY, found):
            client.ask("steady", calls=STEADY)
        client.ask("drain")
        with counting(wire, GRANTS, found):
            client.ask("saturated", grants=GRANTS)
    return dict(zip(kinds, found, strict=True))


def measure() -> dict[str, Any]:
    """Everything, as plain values."""
    url = engine.endpoint()
    times = cpu(url)
    counted = {f"{side} {mode}": traffic(url, side, mode) for side in PYTHON for mode in MODES}
    return {
        "cpu_us": times,
        "wire": {name: {kind: each._asdict() for kind, each in kinds.items()} for name, kinds in counted.items()},
    }


def report(results: dict[str, Any]) -> Iterator[str]:
    """The lines to print; where the reference is ahead, a line says so."""
    times, wire = results["cpu_us"], results["wire"]
    ahead: list[str] = []
    yield "Client CPU per two-limit lease, steady state"
    for mode in MODES:
        ours, theirs = times[f"ours {mode}"], times[f"reference {mode}"]
        yield f"  {mode:10s} ours {ours:8.1f} us   reference {theirs:8.1f} us   ratio {ours / theirs:5.2f}"
        if ours > theirs:
            ahead.append(f"CPU, {mode}")
    yield "On the wire, per decision: calls (of which reads), bytes"
    for mode in MODES:
        for kind, ours in wire[f"ours {mode}"].items():
            theirs = wire[f"reference {mode}"][kind]
            yield f"  {mode:10s} {kind:30s} ours {_shown(ours)}   reference {_shown(theirs)}"
            ahead += [f"{unit} per {kind}, {mode}" for unit in ("calls", "bytes") if ours[unit] > theirs[unit]]
    yield from (f"  the reference is ahead: {what}" for what in ahead)
    if not ahead:
        yield "  the reference is ahead in none of these"


def _shown(traffic: dict[str, float]) -> str:
    return f"{traffic['calls']:5.2f} ({traffic['reads']:4.2f}) {traffic['bytes']:8.0f} B"


def main() -> None:
    """This section alone."""
    print("\n".join(report(measure())))


if __name__ == "__main__":
    main()
