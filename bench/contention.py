"""Several threads or processes on one key: what they are granted together."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

from bench.demands import COST, KEY, Demand
from bench.hammering import Log, hammer, merged
from bench.oracle import Verdict, verdict
from bench.partner import Partner
from bench.rivals.ours import OURS
from bench.rivals.port import Rival

THREADS, PROCESSES = 8, 4
TRIES = 5
SOON_NS = 50_000_000
WAITED_NS = 20_000_000
"""A grant is late if it took longer than that."""


def of_threads(rival: Rival, demand: Demand, number: int = THREADS) -> Verdict:
    """Judge threads that share a limiter in memory.

    A rival that is broken by its threads is measured again: some start their timers without a lock. Ours is not.
    """
    for _ in range(0 if rival is OURS else TRIES - 1):
        with suppress(RuntimeError):
            return _of_threads(rival, demand, number)
    return _of_threads(rival, demand, number)


def _of_threads(rival: Rival, demand: Demand, number: int) -> Verdict:
    taker = rival.open("memory://", [demand.quota])
    start_ns, until_ns = demand.window(time.monotonic_ns() + SOON_NS)
    if demand.quiet_s:
        taker.take(KEY, COST)
    with ThreadPoolExecutor(number) as pool:
        logs = [pool.submit(hammer, lambda: taker.take(KEY, COST), start_ns, until_ns) for _ in range(number)]
    taker.close()
    return verdict(merged([log.result() for log in logs]), demand.bound, start_ns, until_ns)


def of_processes(rival: Rival, mode: str, url: str, demand: Demand, number: int = PROCESSES) -> Verdict:
    """Processes that share a store. If a rival has callers wait instead, its late grants count as refusals as well."""
    log, start_ns, until_ns = run(rival, mode, url, demand, number)
    if rival.waits:
        late = sum(grant.answered_ns - grant.asked_ns > WAITED_NS for grant in log.grants)
        log = Log([grant for grant in log.grants if grant.answered_ns <= until_ns], late)
    return verdict(log, demand.bound, start_ns, until_ns)


def run(rival: Rival, mode: str, url: str, demand: Demand, number: int) -> tuple[Log, int, int]:
    """Return the answers to all processes, and the interval in which they asked."""
    rival.open(url, [demand.quota]).close()  # limits that are stored are stored before anybody asks
    command = [sys.executable, "-m", "bench.contender", rival.name, mode, url, demand.name]
    with ExitStack() as stack:
        contenders = [stack.enter_context(Partner(*command)) for _ in range(number)]
        for each in contenders:
            each.hear()
        begin = time.monotonic_ns() + SOON_NS
        for place, each in enumerate(contenders):
            each.tell([begin, place == 0])
        return merged([Log.of(each.hear()) for each in contenders]), *demand.window(begin)
