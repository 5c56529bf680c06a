"""Limits, amounts and moments as they are written on the command line. `spelling` shows them.

NAME:RATE             tpm:100000              100000 a minute
NAME:RATE/PERIOD      rpm:1000/min            sec, min, hour, day, or a number of them: 10/30s
NAME:RATE/PERIOD:BURST  tpm:10000/min:15000   10000 a minute, up to 15000 at once
NAME:AMOUNT/WINDOW@ZONE  tpd:1000000/day@Europe/Berlin  a quota, back when the next window begins there
                         tpd:1000/cron(0 9 * * 1-5)@UTC  the same, whenever a cron expression fires
                         chat:1000/5h@first-use  the same, in windows that begin with their first use
NAME:SLOTS/concurrent  parallel:10/concurrent,ttl=120,max_hold=600  so many at once; seconds, or 2min
...,soft,PRIORITY=PART  tpm:10000,soft  rpm:60,batch=0.3  a limit that never refuses; floors of priorities
...,alert=PART        tpm:10000,alert=0.8,alert=0.95  thresholds that are announced
NAME:AMOUNT           rpm:1, tpm:+1500        what a call costs, or an adjustment
KEY=VALUE             plan=pro                metadata and tags
2026-11-16T12:00:00Z  RFC 3339, with its time zone
2026-11-16            midnight UTC
24h, 7d, 30min        so long ago
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Any, NamedTuple, TypeAlias, TypeVar

import click

from ..core.limit import Limit, check_alerts, check_floors
from .spelling import CONCURRENT

Decorator: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]
K = TypeVar("K")
V = TypeVar("V")

_LIMIT_FORMS = (
    "NAME:RATE[/PERIOD][:BURST], e.g. tpm:100000, rpm:1000/min, tpm:10000/min:15000 or jobs:10/30s; or a quota "
    "NAME:AMOUNT[+ROLLOVER]/WINDOW@ZONE, e.g. tpd:1000000/day@Europe/Berlin, tpd:1000/cron(0 9 * * 1-5)@UTC or "
    "tpd:1000/5h@first-use; or so many at once NAME:SLOTS/concurrent[,ttl=T][,max_hold=T], e.g. "
    "parallel:10/concurrent,ttl=60"
)
_MIDNIGHT = "(midnight UTC) or how long"
_OUTSIDE_COMMA = r",(?![^()]*\))"
"""A comma that is not part of a cron expression."""
_WHOLE = "[0-9]+(_[0-9]+)*"
_SECONDS = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hour", "hours"), 3_600),
    **dict.fromkeys(("d", "day", "days"), 86_400),
}
_HOLDING = ("ttl", "max_hold")
"""Options of a concurrency limit alone: behind others they would be floors of these names."""


def parse_limit(text: str) -> Limit:
    """Return the limit of a text of ``-l``. Raise `ValueError` naming the part that is wrong."""
    name, colon, rest = text.partition(":")
    head, *options = re.split(_OUTSIDE_COMMA, rest)
    try:
        if not name or not colon or not head:
            raise ValueError("it has no rate")
        concurrent = head.rpartition("/")[2] == CONCURRENT
        given = _parse_options(options, _HOLDING if concurrent else ())
        if "@" in head:
            limit = _parse_quota(name, head, given.window)
        elif given.window:
            kind = "limit of slots" if concurrent else "rate"
            raise ValueError(f"{given.window[0]!r} is for a quota, not for a {kind}")
        else:
            limit = _parse_slots(name, head, given.holding) if concurrent else _parse_rate(name, head)
        floors, alerts = check_floors(given.floors), check_alerts(given.alerts)
        return replace(limit, soft=given.soft, floors=floors, alerts=alerts)
    except ValueError as error:  # of which `ValidationError` is one
        raise ValueError(f"{text!r}: {error}; write {_LIMIT_FORMS}") from None


class _Options(NamedTuple):
    """What stands behind a limit.

    ``window`` are the parts that say when the windows of a quota begin, ``holding`` the times of a concurrency limit.
    """

    soft: bool
    window: list[str]
    holding: dict[str, int]
    alerts: list[float]
    floors: dict[str, float]


def _parse_options(options: Sequence[str], times: Sequence[str]) -> _Options:
    """Return the options of a limit, those in ``times`` in seconds.

    Raise `ValueError` for one that has no meaning, or is given twice.
    """
    seen: set[str] = set()
    window: list[str] = []
    holding: dict[str, int] = {}
    alerts: list[float] = []
    floors: dict[str, float] = {}
    for option in options:
        key, _, value = option.partition("=")
        if key in seen and key != "alert":
            raise ValueError(f"{key!r} is given twice")
        seen.add(key)
        if key in ("at", "on"):
            window.append(option)
        elif key in times:
            holding[key] = _parse_seconds(option, value)
        elif key == "alert":
            alerts.append(_parse_part(option, value))
        elif key != "soft":
            floors[key] = _parse_part(option, value)
        elif option != "soft":
            raise ValueError(f"{option!r} has a value, and 'soft' takes none")
    return _Options("soft" in seen, window, holding, alerts, floors)


def _parse_rate(name: str, text: str) -> Limit:
    pace, has_burst, burst_text = text.partition(":")
    rate_text, slash, period_text = pace.partition("/")
    period = _parse_span(period_text) if slash else 60
    if period is None:
        units = "sec, min, hour, day, or a number of them such as 30s"
        raise ValueError(f"the period {period_text!r} is not one of {units}")
    rate = _parse_whole("rate", rate_text)
    return Limit(name, _parse_whole("burst", burst_text) if has_burst else rate, rate, period)


def _parse_quota(name: str, text: str, when: Sequence[str]) -> Limit:
    numbers, _, window = text.partition("/")
    amount_text, has_rollover, rollover_text = numbers.partition("+")
    amount = _parse_whole("amount", amount_text)
    rollover = _parse_whole("rollover", rollover_text) if has_rollover else 0
    return Limit.quota(name, amount, every=",".join([window, *when]), rollover=rollover)


def _parse_slots(name: str, text: str, holding: Mapping[str, int]) -> Limit:
    slots = _parse_whole("number of slots", text.removesuffix(f"/{CONCURRENT}"))
    return Limit.concurrent(name, slots, ttl=holding.get("ttl", 60), max_hold=holding.get("max_hold"))


def _parse_seconds(option: str, text: str) -> int:
    seconds = int(text) if re.fullmatch(_WHOLE, text) else _parse_span(text)
    if seconds is None:
        raise ValueError(f"{option!r} is not a time; write seconds, or a number of sec, min, hour or day such as 2min")
    return seconds


def _parse_whole(what: str, text: str) -> int:
    if not re.fullmatch(_WHOLE, text):
        raise ValueError(f"the {what} {text!r} is not a whole number")
    return int(text)


def _parse_part(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(
            f"{option!r} is neither 'soft' nor a floor such as batch=0.3 nor a threshold such as alert=0.8"
        ) from None


def parse_amount(text: str) -> tuple[str, int]:
    """Return a name and a whole number, which may have a sign. Raise `ValueError` for anything else."""
    name, _, amount = text.partition(":")
    if not name or not re.fullmatch(f"[+-]?{_WHOLE}", amount):
        raise ValueError(f"{text!r} is not an amount; write NAME:NUMBER, e.g. rpm:1 or tpm:500")
    return name, int(amount)


def parse_pair(text: str) -> tuple[str, str]:
    """Return a key and its value. Raise `ValueError` for anything but ``KEY=VALUE``."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ValueError(f"{text!r} is not KEY=VALUE, e.g. plan=pro")
    return key, value


def parse_moment(text: str, now: datetime) -> datetime:
    """Return the moment of a text, a span of time being so long ago. Raise `ValueError` that says how to write one."""
    forms = f"2026-11-16T12:00:00Z, 2026-11-16 {_MIDNIGHT} ago, such as 24h or 7d"
    return _parse_time(text, now, -1, "a moment", forms)


def parse_expiry(text: str, now: datetime) -> datetime:
    """Return the moment of a text at which something expires. Raise `ValueError` that says how to write one."""
    forms = f"2026-12-31T00:00Z, 2026-12-31 {_MIDNIGHT} from now, such as 30d or 12h"
    moment = _parse_time(text, now, 1, "an expiry", forms)
    if moment <= now:
        raise ValueError(f"{text!r} must be in the future; it is {now:%Y-%m-%dT%H:%M:%SZ} now")
    return moment


def _parse_time(text: str, now: datetime, sign: int, what: str, forms: str) -> datetime:
    span = _parse_span(text) if text[:1].isdigit() else None
    try:
        moment = datetime.fromisoformat(text) if span is None else now + sign * timedelta(seconds=span)
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is not {what}; write {forms}") from None
    if re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
        return moment.replace(tzinfo=UTC)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone; end it with Z for UTC, or with an offset such as +09:00")
    return moment


def _parse_span(text: str) -> int | None:
    """Return the seconds of ``30s``, ``24h`` or ``day``, or None if it is not a span of time."""
    match = re.fullmatch(r"([0-9]*) ?([a-z]+)", text.lower())
    return None if match is None or match[2] not in _SECONDS else int(match[1] or 1) * _SECONDS[match[2]]


def limit_option(*, required: bool = False) -> Decorator:
    """Return the option ``-l``, which takes limits."""
    help = (
        "NAME:RATE[/PERIOD][:BURST], may be repeated: tpm:100000 (a minute), rpm:1000/min, "
        "tpm:10000/min:15000, jobs:10/30s. A quota is NAME:AMOUNT[+ROLLOVER]/WINDOW@ZONE: "
        "tpd:1000000/day@Europe/Berlin, usd:30/month@UTC,on=15,at=09:00, 'tpd:1000/cron(0 9 * * 1-5)@UTC', "
        "chat:1000/5h@first-use (from the first use on). So many at once is NAME:SLOTS/concurrent: "
        "parallel:10/concurrent, parallel:10/concurrent,ttl=2min,max_hold=1h. "
        "Behind it ,soft, floors such as ,batch=0.3 or thresholds such as ,alert=0.8."
    )
    names = ("--limit", "-l", "limits")
    return _make_option(parse_limit, *names, multiple=True, required=required, metavar="LIMIT", help=help)


def amount_option(*names: str, **settings: Any) -> Decorator:
    """Return an option that collects ``NAME:AMOUNT`` in a dict."""

    def collect(ctx: click.Context, param: click.Parameter, amounts: Sequence[tuple[str, int]]) -> dict[str, int]:
        return _collect(amounts, "{!r} is passed twice.", ctx, param)

    return _make_option(parse_amount, *names, multiple=True, metavar="NAME:AMOUNT", callback=collect, **settings)


def costs_option(*names: str, help: str) -> Decorator:
    """Return an option that collects ``RESOURCE:NAME:AMOUNT`` in a dict of amounts by resource."""

    def parse(text: str) -> tuple[tuple[str, str], int]:
        resource, _, cost = text.rpartition(":")[0].rpartition(":")  # a resource may have colons itself
        try:
            if not resource:
                raise ValueError
            return (resource, cost), parse_amount(text.removeprefix(f"{resource}:"))[1]
        except ValueError:
            raise ValueError(f"{text!r} is not an amount of a resource; write RESOURCE:NAME:NUMBER") from None

    def collect(
        ctx: click.Context, param: click.Parameter, costs: Sequence[tuple[tuple[str, str], int]]
    ) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        for (resource, name), amount in _collect(costs, "{0[0]}:{0[1]} is passed twice.", ctx, param).items():
            found.setdefault(resource, {})[name] = amount
        return found

    return _make_option(parse, *names, multiple=True, metavar="RESOURCE:NAME:AMOUNT", callback=collect, help=help)


def pairs_option(*names: str, help: str) -> Decorator:
    """Return an option that collects ``KEY=VALUE`` in a dict, and is None if it is not passed."""

    def collect(ctx: click.Context, param: click.Parameter, pairs: Sequence[tuple[str, str]]) -> dict[str, str] | None:
        return _collect(pairs, "{!r} is passed more than once; keep one of them.", ctx, param) or None

    return _make_option(parse_pair, *names, multiple=True, metavar="KEY=VALUE", callback=collect, help=help)


def _collect(pairs: Sequence[tuple[K, V]], twice: str, ctx: click.Context, param: click.Parameter) -> dict[K, V]:
    """Return the pairs as a dict. Raise a usage error for a key that is passed twice."""
    found: dict[K, V] = {}
    for key, value in pairs:
        if key in found:
            raise click.BadParameter(twice.format(key), ctx, param)
        found[key] = value
    return found


def number_option(
    *names: str, least: int = 1, most: int | None = None, kind: click.ParamType[Any] | None = None, **settings: Any
) -> Decorator:
    """Return an option that takes a whole number in a range, or another kind of value, and shows its default."""
    settings = {"metavar": None if kind else "N", "show_default": "default" in settings, **settings}
    return click.option(*names, type=kind or click.IntRange(least, most), **settings)


def moment_option(*names: str, help: str, parse: Callable[[str, datetime], datetime] = parse_moment) -> Decorator:
    """Return an option that takes a moment, in the past unless it is parsed otherwise."""
    return _make_option(lambda text: parse(text, datetime.now(UTC)), *names, metavar="WHEN", help=help)


def _make_option(parse: Callable[[str], object], *names: str, **settings: Any) -> Decorator:
    """Return an option that takes what ``parse`` makes of a text; its `ValueError` becomes a usage error."""

    def convert(text: str) -> object:
        try:
            return parse(text)
        except ValueError as error:
            raise click.BadParameter(f"{error}.") from None

    return click.option(*names, type=convert, **settings)


def combine(*options: Decorator) -> Decorator:
    """Return a decorator that adds all the options to a command, in this order."""
    return lambda command: reduce(lambda made, option: option(made), reversed(options), command)
