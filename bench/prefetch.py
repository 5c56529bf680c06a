"""``python -m bench.prefetch``: an acquire of a hot key, with prefetch and without, beside the memory store and rivals.

Every side runs in a process of its own, so that what one does in the background disturbs no other; they take turns.
A round of a side is: ask until the key is hot, then time every acquire, then give back what was drawn in advance.
"""

from __future__ import annotations

import json
import os
import random
import sys
from contextlib import ExitStack, closing
from itertools import count
from typing import Any, NamedTuple

from tests.support.aws import engine
from tests.support.aws.plain import Plain
from tests.support.redis.server import Server

from bench.hot_key import DYNAMODB, MODES, REDIS, SIDES, Sample, Side
from bench.partner import Partner
from bench.timing import typical
from zae_limiter.stores.dynamodb.table import table_definition

ROUNDS, WARM_S, MEASURED_S = 7, 0.6, 0.5
THOUSAND = 1000


class Places(NamedTuple):
    """Where the stores are."""

    server: Server
    dynamodb: str

    def url(self, side: Side) -> str:
        """Return the URL of the store of a side."""
        return {REDIS: self.server.url, DYNAMODB: self.dynamodb}.get(side.store, "memory://")


class Client(Partner):
    """A side in a process of its own."""

    def __init__(self, side: Side, mode: str, places: Places) -> None:
        self._side = side
        self._server = places.server
        command = [sys.executable, "-m", "bench.hot_key", side.name, mode, places.url(side)]
        super().__init__(*command, env=os.environ | engine.CREDENTIALS)

    def measured(self, warm_s: float, seconds: float) -> Sample:
        """Have one round done. The calls are those that the server has counted, where it is Redis."""
        self.ask(["warm", warm_s])
        self._server.reset_stats()
        found = Sample(*self.ask(["measure", seconds]))
        if self._side.store == REDIS:  # where each of them sends scripts only
            found = found._replace(calls=self._server.command_stats().get("evalsha", 0))
        self.ask(["rest"])
        return found


def measure(rounds: int = ROUNDS, warm_s: float = WARM_S, seconds: float = MEASURED_S) -> dict[str, Any]:
    """Return the figures of every side, by mode."""
    with Server() as server:
        places = Places(server, make_table())
        return {mode: _in_turn(places, mode, rounds, warm_s, seconds) for mode in MODES}


_TABLES = count()


def make_table(endpoint: str | None = None) -> str:
    """Make a table in the local engine, which ends with this process. Return its URL, at that endpoint if given."""
    definition = table_definition(f"hot-{os.getpid()}-{next(_TABLES)}")
    name = definition.pop("TableName")
    with closing(Plain(engine.endpoint())) as direct:
        direct.create(name, **definition)
    return f"dynamodb://{name}?region={engine.region()}&endpoint_url={endpoint or engine.endpoint()}"


def _in_turn(places: Places, mode: str, rounds: int, warm_s: float, seconds: float) -> dict[str, dict[str, float]]:
    with ExitStack() as stack:
        clients = {name: stack.enter_context(Client(side, mode, places)) for name, side in SIDES.items()}
        for client in clients.values():
            client.hear()
        found: dict[str, list[Sample]] = {name: [] for name in clients}
        chance = random.Random(0)
        for _ in range(rounds):
            for name in chance.sample(list(clients), len(clients)):
                found[name].append(clients[name].measured(warm_s, seconds))
    return {name: figures(samples) for name, samples in found.items()}


def figures(samples: list[Sample]) -> dict[str, float]:
    """Sum up the rounds of a side: what was asked of the store in all of them, and the times of the quiet ones.

    These are the half in which other processes have interrupted it least. Who takes a little longer is interrupted a
    little more often, and on a busy machine that alone decides whether it happens to one of a hundred acquires.
    """
    decisions = sum(each.decisions for each in samples)
    quiet = sorted(samples, key=lambda each: each.interruptions)[: (len(samples) + 1) // 2]
    return {
        "median_us": typical([each.median_us for each in quiet]),
        "p99_us": typical([each.p99_us for each in quiet]),
        "decisions": decisions,
        "calls_per_1000": round(sum(each.calls for each in samples) / decisions * THOUSAND, 3),
        "write_units_per_1000": round(sum(each.write_units for each in samples) / decisions * THOUSAND, 3),
    }


def main() -> None:
    """Measure this part alone, and write it into the results and the page."""
    from bench.report import prefetch
    from bench.report.__main__ import RESULTS, written

    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    results["prefetch"] = measure()
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    written(results)
    print(prefetch.section(results["prefetch"]))


if __name__ == "__main__":
    main()
