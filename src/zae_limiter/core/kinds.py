"""The kinds of limits: how each is written as a text and in a limits file, and how it is told to people.

A kind is one object in `KINDS`, by `Limit.kind`: nothing else asks how a limit is written. What a kind makes over time
is its `Rule`, or that it counts slots.

NAME:RATE             tpm:100000              100000 a minute
NAME:RATE/PERIOD      rpm:1000/min            sec, min, hour, day, or a number of them: 10/30s
NAME:RATE/PERIOD:BURST  tpm:10000/min:15000   10000 a minute, up to 15000 at once
NAME:AMOUNT/WINDOW@ZONE  tpd:1000000/day@Europe/Berlin  a quota, back when the next window begins there
                         tpd:1000/cron(0 9 * * 1-5)@UTC  the same, whenever a cron expression fires
                         chat:1000/5h@first-use  the same, in windows that begin with their first use
NAME:SLOTS/concurrent  parallel:10/concurrent,ttl=120,max_hold=600  so many at once; seconds, or 2min
...,soft,PRIORITY=PART  tpm:10000,soft  rpm:60,batch=0.3  a limit that never refuses; floors of priorities
...,alert=PART        tpm:10000,alert=0.8,alert=0.95  thresholds that are announced
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from .calendar import Calendar
from .limit import Limit
from .names import FIRST_USE
from .production import MILLI

_OUTSIDE_COMMA = r",(?![^()]*\))"
"""A comma that is not part of a cron expression."""
WHOLE = "[0-9]+(_[0-9]+)*"
_CONCURRENT = "/concurrent"
_SECONDS = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hour", "hours"), 3_600),
    **dict.fromkeys(("d", "day", "days"), 86_400),
}
LENGTHS = {86_400_000: "d", 3_600_000: "h", 60_000: "min", 1_000: "s", 1: "ms"}
"""The units of the lengths of windows, by their size in ms, the largest first."""


class Kind:
    """A kind of limit: a rate, and what others do like one. They override the rest."""

    called = "rate"
    form = "NAME:RATE[/PERIOD][:BURST], e.g. tpm:100000 (a minute), rpm:1000/min, tpm:10000/min:15000, jobs:10/30s"
    options: tuple[str, ...] = ()
    """The options behind a text that only this kind has."""
    comeback = ", when {} has refilled"
    """Says what happens by the time that a cost fits."""

    def reads(self, text: str) -> bool:
        """Return whether a text is meant as a limit of this kind."""
        return True

    def parse(self, name: str, text: str, options: Mapping[str, str]) -> Limit:
        """Return the limit of a text and of the options of this kind. Raise `ValueError` for the part that is wrong."""
        pace, has_burst, burst_text = text.partition(":")
        rate_text, slash, period_text = pace.partition("/")
        period = parse_span(period_text) if slash else 60
        if period is None:
            units = "sec, min, hour, day, or a number of them such as 30s"
            raise ValueError(f"the period {period_text!r} is not one of {units}")
        rate = _parse_whole("rate", rate_text)
        return Limit(name, _parse_whole("burst", burst_text) if has_burst else rate, rate, period)

    def spell(self, limit: Limit) -> str:
        """Return what a limit allows, for people: ``10,000/min``, ``10/30 s`` or ``5/2 h``."""
        count, unit = _count_units(limit.refill_period_seconds * MILLI)
        return f"{limit.refill_amount:,}/{'' if count == 1 else f'{count} '}{unit.replace('d', 'day')}"

    def note(self, limit: Limit) -> str:
        """Return what a capacity is for that is not the amount."""
        return f"burst {limit.capacity:,}"

    def describe(self, limit: Limit) -> str:
        """Return what a limit allows, as errors show it."""
        return f"{limit.refill_amount}/{limit.refill_period_seconds} s"

    def write(self, limit: Limit) -> dict[str, Any]:
        """Return the keys of a limits file that only this kind has."""
        count, unit = _count_units(limit.refill_period_seconds * MILLI)
        per = {"d": "day", "h": "hour"}.get(unit, unit) if count == 1 else f"{count}{unit}"
        burst = {} if limit.capacity == limit.refill_amount else {"burst": limit.capacity}
        return {"rate": limit.refill_amount, "per": per, **burst}


class Quota(Kind):
    """An allowance per window."""

    called = "quota"
    form = (
        "a quota NAME:AMOUNT[+ROLLOVER]/WINDOW@ZONE, e.g. tpd:1000000/day@Europe/Berlin, "
        "usd:30/month@UTC,on=15,at=09:00, 'tpd:1000/cron(0 9 * * 1-5)@UTC', "
        "chat:1000/5h@first-use (from the first use on)"
    )
    options = ("at", "on")
    comeback = ", when a new window of {} has begun"

    def reads(self, text: str) -> bool:
        return "@" in text

    def parse(self, name: str, text: str, options: Mapping[str, str]) -> Limit:
        numbers, _, window = text.partition("/")
        amount_text, has_rollover, rollover_text = numbers.partition("+")
        amount = _parse_whole("amount", amount_text)
        rollover = _parse_whole("rollover", rollover_text) if has_rollover else 0
        return Limit.quota(name, amount, every=",".join([window, *options.values()]), rollover=rollover)

    def spell(self, limit: Limit) -> str:
        """Return the amount and its windows: ``1,000/day@UTC``, lengths in their largest unit: ``5h@first-use``."""
        calendar = _windows_of(limit)
        return f"{limit.refill_amount:,}/{_spell_every(calendar)}@{calendar.text.partition('@')[2]}"

    def note(self, limit: Limit) -> str:
        return f"rollover {limit.rollover:,}"

    def write(self, limit: Limit) -> dict[str, Any]:
        calendar = _windows_of(limit)
        rollover = {"rollover": limit.rollover} if limit.rollover else {}
        every = _spell_every(calendar)
        if calendar.unit == FIRST_USE:
            return {"quota": limit.refill_amount, "reset_after": every, **rollover}
        zone, *options = calendar.text.partition("@")[2].split(",")
        given: dict[str, Any] = dict(option.partition("=")[::2] for option in options)
        if given.get("on", "").isdecimal():
            given["on"] = int(given["on"])
        window = {"cron": calendar.cron} if calendar.cron else {"every": every}
        named = {} if zone in ("", "UTC") else {"tz": zone}
        return {"quota": limit.refill_amount, **window, **named, **given, **rollover}


class Concurrency(Kind):
    """So many slots at once."""

    called = "limit of slots"
    form = "so many at once NAME:SLOTS/concurrent[,ttl=T][,max_hold=T], e.g. parallel:10/concurrent,ttl=2min"
    options = ("ttl", "max_hold")
    comeback = " at the latest, when slots of {} have come back"

    def reads(self, text: str) -> bool:
        return text.endswith(_CONCURRENT)

    def parse(self, name: str, text: str, options: Mapping[str, str]) -> Limit:
        slots = _parse_whole("number of slots", text.removesuffix(_CONCURRENT))
        times = {key: _parse_seconds(option) for key, option in options.items()}
        return Limit.concurrent(name, slots, ttl=times.get("ttl", 60), max_hold=times.get("max_hold"))

    def spell(self, limit: Limit) -> str:
        """Return the text of a limit, with its times in seconds: ``10/concurrent,ttl=60``."""
        times = {"ttl": limit.ttl, "max_hold": limit.max_hold}
        return f"{limit.capacity}{_CONCURRENT}" + "".join(f",{key}={each}" for key, each in times.items() if each)

    def describe(self, limit: Limit) -> str:
        return f"{limit.capacity} at once"

    def write(self, limit: Limit) -> dict[str, Any]:
        held = {"max_hold": limit.max_hold} if limit.max_hold else {}
        return {"concurrent": limit.capacity, "ttl": limit.ttl, **held}


KINDS: dict[str, Kind] = {"rate": Kind(), "quota": Quota(), "concurrency": Concurrency()}
"""The kinds by their names; of those that read a text the last one counts."""
FORMS = "; or ".join(kind.form for kind in KINDS.values())
"""Says how limits are written as texts."""


def kind_of(limit: Limit) -> Kind:
    """Return the kind of a limit."""
    return KINDS[limit.kind]


def describe_limit(limit: Limit) -> str:
    """Return a limit as errors show it: ``rpm 100/60 s``."""
    return f"{limit.name} {kind_of(limit).describe(limit)}"


def parse_limit(text: str) -> Limit:
    """Return the limit of a text of ``-l``. Raise `ValueError` naming the part that is wrong."""
    name, colon, rest = text.partition(":")
    head, *options = re.split(_OUTSIDE_COMMA, rest)
    try:
        if not name or not colon or not head:
            raise ValueError("it has no rate")
        kind = [kind for kind in KINDS.values() if kind.reads(head)][-1]
        own, policy = _read_options(kind, options)
        return replace(kind.parse(name, head, own), **policy)
    except ValueError as error:  # of which `ValidationError` is one
        raise ValueError(f"{text!r}: {error}; write {FORMS}") from None


def _read_options(kind: Kind, options: Iterable[str]) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the options that only a kind has, and those of any limit as its fields.

    Raise `ValueError` for one that has no meaning, or is given twice.
    """
    own: dict[str, str] = {}
    policy: dict[str, Any] = {"soft": False, "floors": {}, "alerts": []}
    for option in options:
        key, _, value = option.partition("=")
        if key in own or key in policy["floors"] or (key == "soft" and policy["soft"]):
            raise ValueError(f"{key!r} is given twice")
        if key in kind.options:
            own[key] = option
        elif key in Quota.options:  # others are names of priorities elsewhere
            raise ValueError(f"{option!r} is for a quota, not for a {kind.called}")
        elif key == "alert":
            policy["alerts"].append(_parse_part(option, value))
        elif key != "soft":
            policy["floors"][key] = _parse_part(option, value)
        elif option != "soft":
            raise ValueError(f"{option!r} has a value, and 'soft' takes none")
        else:
            policy["soft"] = True
    return own, policy


def parse_span(text: str) -> int | None:
    """Return the seconds of ``30s``, ``24h`` or ``day``, or None if it is not a span of time."""
    match = re.fullmatch(r"([0-9]*) ?([a-z]+)", text.lower())
    return None if match is None or match[2] not in _SECONDS else int(match[1] or 1) * _SECONDS[match[2]]


def _parse_seconds(option: str) -> int:
    text = option.partition("=")[2]
    seconds = int(text) if re.fullmatch(WHOLE, text) else parse_span(text)
    if seconds is None:
        raise ValueError(f"{option!r} is not a time; write seconds, or a number of sec, min, hour or day such as 2min")
    return seconds


def _parse_whole(what: str, text: str) -> int:
    if not re.fullmatch(WHOLE, text):
        raise ValueError(f"the {what} {text!r} is not a whole number")
    return int(text)


def _parse_part(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(
            f"{option!r} is neither 'soft' nor a floor such as batch=0.3 nor a threshold such as alert=0.8"
        ) from None


def _count_units(length_ms: int) -> tuple[int, str]:
    """Return a length in its largest unit."""
    size = next(size for size in LENGTHS if length_ms % size == 0)
    return length_ms // size, LENGTHS[size]


def _windows_of(limit: Limit) -> Calendar:
    assert limit.calendar is not None  # it is a quota
    return limit.calendar


def _spell_every(calendar: Calendar) -> str:
    """Return the windows of a quota without their zone, their length in its largest unit: ``5h``."""
    count, unit = _count_units(calendar.period_ms)
    return f"{count}{unit}" if count else calendar.text.partition("@")[0]
