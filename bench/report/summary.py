"""The figures that matter, in one table; and how other limiters compare, a row each with its proof."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bench.report import llm, prefetch, reserving
from bench.report.comparing import LEVEL, STORES, comparisons
from bench.report.judging import KEEPS, judged
from bench.report.tables import number, table

SHOWN = {
    "memory": ("one limit", "two limits", "over the limit"),
    "redis": ("one limit", "two limits", "over the limit", "32 callers at once"),
}
"""The kinds of work that are told first."""
MODE = "async"


def figures(results: Mapping[str, Any]) -> str:
    """Time per decision of every limiter, then what was lost to refusals and how often the bound was kept."""
    names = _names(results)
    ours, llm_calls = names[0], results["llm"]
    rows = [
        [f"an LLM call {place}, ours settled, µs", *(number(_llm(llm_calls, store, each, ours)) for each in names)]
        for store, place in STORES.items()
    ]
    rows += [
        [f"{work} {STORES[store]}, µs", *(number(_time(results, store, work, name)) for name in names)]
        for store, works in SHOWN.items()
        for work in works
    ]
    rows.append(["a hot key on Redis, ours with prefetch, µs", *map(number, _hot(results, names))])
    rows.append(["`rpm` taken by refused calls, on Redis", *(number(results["redis"]["lost"][name]) for name in names)])
    crowds = {name: list(_crowds(results, name)) for name in names}
    most = len(crowds[names[0]])
    rows.append([f"of {most} crowds, granted what was due", *(str(_kept(crowds[name])) for name in names)])
    return table([f"per decision, {MODE}", *names], rows)


def _llm(found: Mapping[str, Any], store: str, name: str, ours: str) -> float:
    return llm.figures_of(found, store, MODE, name, ours)["wall_us"]


def standing(results: Mapping[str, Any]) -> str:
    """Say in how many comparisons a rival is ahead."""
    found = list(comparisons(results))
    behind = sum(each.behind for each in found)
    return f"In {behind} of {len(found)} comparisons a rival is ahead by more than {LEVEL:.0%}".replace("%", " %")


class Alternative(NamedTuple):
    """Another limiter, when to take it, when to take this one, and what was measured."""

    name: str
    take_it: str
    take_this: str
    measured: str


def alternatives(results: Mapping[str, Any], benchmarks: str) -> str:
    """The limiters that somebody would otherwise choose; ``benchmarks`` is the address of the page."""
    head = ("instead of", "take it for", "take zae-limiter for", "measured")
    rows = (
        _token_throttle(results),
        _queued(results),
        _limits(results),
        _slowapi(results),
        _litellm(),
        _pyrate(results),
        _reference(results),
    )
    lines = (f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows))
    return "\n".join(lines).replace("BENCHMARKS", benchmarks)


def _token_throttle(results: Mapping[str, Any]) -> Alternative:
    return Alternative(
        "[token-throttle](https://github.com/Elijas/token-throttle)",
        "one level of limits per model, from Python 3.12 on, with a counter of OpenAI's tokens",
        "keys under projects under organisations, all or nothing; calls in flight; DynamoDB",
        _reserving(results, "token-throttle", ("memory", "redis")),
    )


def _queued(results: Mapping[str, Any]) -> Alternative:
    return Alternative(
        "[LLMRateLimiter](https://github.com/Ameyanagi/LLMRateLimiter)",
        "async calls that are to wait in one queue per model, from Python 3.12 on, on Redis",
        "refusals with a moment to come back, and waiting if you want it; blocking code, other stores",
        _reserving(results, "LLMRateLimiter", ("redis",)),
    )


def _reserving(results: Mapping[str, Any], rival: str, stores: Sequence[str]) -> str:
    """Compare a rival that reserves and settles with ours."""
    found = results["reserving"]
    if found is None:
        return "not measured: it needs Python 3.12, and none was found"
    ours = _names(results)[0]
    page = "BENCHMARKS#limiters-that-reserve"
    parts = []
    for store in stores:
        calls = found["works"][store][MODE]["three levels"]
        theirs, own = (number(calls[name]["cpu_us"]) for name in (rival, ours))
        parts.append(f"{theirs} µs {STORES[store]}, ours {own}")
    exact = found["exactness"]["redis"]
    cancelled = f"{number(exact['cancelled'][rival])}, ours {number(exact['cancelled'][ours])}"
    waits = f"{number(exact['delayed_s'][rival])} s, ours {number(exact['delayed_s'][ours])}"
    kept, crowds = reserving.kept(found, rival, ours)
    ours_kept, _ = reserving.kept(found, ours, rival)
    return (
        f"[CPU of an LLM call]({page}) of three levels, settled: {'; '.join(parts)}; on Redis `tpm` kept by "
        f"cancelled calls: {cancelled}; longest wait after a process was killed: {waits}; granted what was due in "
        f"{kept} of {crowds} crowds, ours in {ours_kept}"
    )


def _limits(results: Mapping[str, Any]) -> Alternative:
    windows = [name for name in _names(results) if name.startswith("limits, ")]
    return Alternative(
        "[limits](https://limits.readthedocs.io)",
        "one limit per call and a cost that is known beforehand; memcached or MongoDB as the store",
        "several limits per call, all or nothing, and a cost that is corrected afterwards",
        _side_by_side(results, *windows),
    )


def _pyrate(results: Mapping[str, Any]) -> Alternative:
    return Alternative(
        "[PyrateLimiter](https://pyratelimiter.readthedocs.io)",
        "several rates with one cost per call; Postgres as the store",
        "requests and tokens that cost different amounts; keys of projects of organisations",
        _side_by_side(results, "PyrateLimiter"),
    )


def _slowapi(results: Mapping[str, Any]) -> Alternative:
    found = results["http"]["asgi"]["sockets"]
    ours, theirs = (number(found[name]["overhead_us"]) for name in ("zae-limiter", "slowapi, headers"))
    return Alternative(
        "[slowapi](https://slowapi.readthedocs.io)",
        "a decorator on FastAPI routes, with a cost that is known beforehand",
        "requests whose cost is known with their answer; also WSGI, websockets and code without HTTP",
        f"[CPU that it adds](BENCHMARKS#behind-http) to a request, with headers: {theirs} µs, ours {ours}",
    )


def _litellm() -> Alternative:
    return Alternative(
        "[LiteLLM's limiter](https://docs.litellm.ai/docs/proxy/users)",
        "calls that go through the LiteLLM gateway anyway",
        "limits inside of your own process, for calls of any kind, with no gateway to run",
        "not measured: it is a part of its gateway",
    )


def _reference(results: Mapping[str, Any]) -> Alternative:
    found = results["dynamodb"]
    units = [f"{found['write_units'][f'{side} {MODE}']:g}" for side in _SIDES]
    calls = [f"{found['wire'][f'{side} {MODE}']['first acquire of an entity']['calls']:g}" for side in _SIDES]
    crowds = [
        [demand[f"{side} {mode}"] for demand in found["contention"].values() for mode in ("blocking", "async")]
        for side in _SIDES
    ]
    kept = [_kept(verdicts) for verdicts in crowds]
    return Alternative(
        f"zae-limiter {'.'.join(found['reference'].split('.')[:2])}, an older program",
        "a release that is on PyPI today",
        "exact limits, on SQLite, Redis and in memory too",
        f"[on DynamoDB](BENCHMARKS#on-dynamodb-beside-the-reference): {units[1]} write units per acquire, ours "
        f"{units[0]}; {calls[1]} calls for the first one, ours {calls[0]}; granted what was due in {kept[1]} of "
        f"{len(crowds[1])} crowds, ours in {kept[0]}",
    )


_SIDES = ("ours", "reference")


def _side_by_side(results: Mapping[str, Any], *rivals: str) -> str:
    """Compare one rival, in one or more of its forms, with ours."""
    ours, *_ = everybody = [_names(results)[0], *rivals]
    times = {name: number(_time(results, "redis", "two limits", name)) for name in everybody}
    lost = {name: number(results["redis"]["lost"][name]) for name in everybody}
    kept = {name: str(_kept(_crowds(results, name))) for name in everybody}
    crowds = len(list(_crowds(results, ours)))
    return (
        f"[two limits on Redis](BENCHMARKS#on-redis): {_either(times, rivals)} µs, ours {times[ours]}; "
        f"[`rpm` taken by refused calls](BENCHMARKS#all-or-nothing): {_either(lost, rivals)}, ours {lost[ours]}; "
        f"[granted what was due](BENCHMARKS#four-processes-on-one-key) in {_either(kept, rivals)} of {crowds} crowds, "
        f"ours in {kept[ours]}"
    )


def _either(figure: Mapping[str, str], rivals: Sequence[str]) -> str:
    """The figure of each form of a rival, told once where they agree."""
    return " or ".join(dict.fromkeys(figure[name] for name in rivals))


def _names(results: Mapping[str, Any]) -> list[str]:
    return [each["name"] for each in results["rivals"]]


def _time(results: Mapping[str, Any], store: str, work: str, name: str) -> float:
    found: float = results[store]["works"][work][MODE][name]["wall_us"]
    return found


def _hot(results: Mapping[str, Any], names: Sequence[str]) -> Iterator[float]:
    """The median of an acquire of a hot key on Redis; ours with prefetch."""
    found = results["prefetch"][MODE]
    for name in (prefetch.PREFETCHING, *names[1:]):
        yield found[name + prefetch.ON_REDIS]["median_us"]


def _crowds(results: Mapping[str, Any], name: str) -> Iterator[Mapping[str, Any]]:
    """Every run of a limiter under more demand than its limit gives, in memory and on Redis."""
    for store in STORES:
        for modes in results[store]["contention"].values():
            for verdicts in modes.values():
                yield verdicts[name]


def _kept(verdicts: Iterable[Mapping[str, Any]]) -> int:
    """Count the runs in which neither more nor less than the bound was granted."""
    return sum(judged(dict(each)) == KEEPS for each in verdicts)
