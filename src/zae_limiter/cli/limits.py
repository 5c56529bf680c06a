"""Limits and amounts as they are written on the command line.

NAME:RATE             tpm:100000              100000 a minute
NAME:RATE/PERIOD      rpm:1000/min            sec, min, hour, day, or a number of them: 10/30s
NAME:RATE/PERIOD:BURST  tpm:10000/min:15000   10000 a minute, up to 15000 at once
NAME:AMOUNT           rpm:1, tpm:+1500        what a call costs, or an adjustment
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..core.errors import ValidationError
from ..core.limit import Limit
from .grid import Grid

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")

FORMS = "NAME:RATE[/PERIOD][:BURST], e.g. tpm:100000, rpm:1000/min, tpm:10000/min:15000 or jobs:10/30s"

_SECONDS = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hour", "hours"), 3_600),
    **dict.fromkeys(("d", "day", "days"), 86_400),
}
_NAMES = {1: "s", 60: "min", 3_600: "h", 86_400: "day"}


def parse_limit(text: str) -> Limit:
    """Return the limit of a text of ``-l``. Raise `ValueError` naming the part that is wrong."""
    name, colon, rest = text.partition(":")
    pace, has_burst, burst_text = rest.partition(":")
    rate_text, slash, period_text = pace.partition("/")
    if not name or not colon or not rate_text:
        raise ValueError(f"{text!r} is not a limit; write {FORMS}")
    rate = _whole(text, "rate", rate_text)
    period = _period(text, period_text) if slash else 60
    burst = _whole(text, "burst", burst_text) if has_burst else rate
    try:
        return Limit(name, burst, rate, period)
    except ValidationError as error:
        raise ValueError(f"{text!r}: {error}; write {FORMS}") from None


def parse_amount(text: str) -> tuple[str, int]:
    """Return a name and a whole number, which may have a sign. Raise `ValueError` for anything else."""
    name, _, amount = text.partition(":")
    if not name or not re.fullmatch(r"[+-]?[0-9]+(_[0-9]+)*", amount):
        raise ValueError(f"{text!r} is not an amount; write NAME:NUMBER, e.g. rpm:1 or tpm:500")
    return name, int(amount)


def spell_rate(limit: Limit) -> str:
    """Return the sustained rate, e.g. ``10,000/min`` or ``10/30 s``."""
    return f"{limit.refill_amount:,}/{spell_period(limit.refill_period_seconds)}"


def spell_period(seconds: int) -> str:
    """Return a refill period, e.g. ``min``, ``30 s`` or ``2 h``."""
    if seconds in _NAMES:
        return _NAMES[seconds]
    size = max(size for size in _NAMES if seconds % size == 0)
    return f"{seconds // size} {_NAMES[size]}"


def spell_limit(limit: Limit) -> str:
    """Return a limit for people, e.g. ``tpm 10,000/min (burst 15,000)``."""
    burst = "" if limit.capacity == limit.refill_amount else f" (burst {limit.capacity:,})"
    return f"{limit.name} {spell_rate(limit)}{burst}"


def limits_grid(limits: Sequence[Limit], empty: str = "No limits.") -> Grid:
    """Return limits as a table."""
    rows = [(limit.name, spell_rate(limit), limit.capacity) for limit in limits]
    return Grid(("limit", "rate", "burst"), rows, empty)


def limit_option(command: Callable[..., Any], required: bool = False) -> Callable[..., Any]:
    """Add ``-l``, which takes limits."""
    return click.option(
        "--limit",
        "-l",
        "limits",
        multiple=True,
        required=required,
        metavar="LIMIT",
        callback=_limits,
        help="NAME:RATE[/PERIOD][:BURST], may be repeated: tpm:100000 (a minute), rpm:1000/min, "
        "tpm:10000/min:15000, jobs:10/30s.",
    )(command)


def required_limit_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``-l``, required."""
    return limit_option(command, required=True)


def amount_option(*names: str, **settings: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return an option that collects ``NAME:AMOUNT``."""
    return click.option(*names, multiple=True, metavar="NAME:AMOUNT", callback=_amounts, **settings)


def _whole(text: str, part: str, digits: str) -> int:
    if not re.fullmatch(r"[0-9]+(_[0-9]+)*", digits):
        raise ValueError(f"{text!r}: the {part} {digits!r} is not a whole number; write {FORMS}")
    return int(digits)


def parse_span(text: str) -> int | None:
    """Return the seconds of ``30s``, ``24h`` or ``day``, or None if it is not a span of time."""
    match = re.fullmatch(r"([0-9]*) ?([a-z]+)", text.lower())
    return None if match is None or match[2] not in _SECONDS else int(match[1] or 1) * _SECONDS[match[2]]


def _period(text: str, period: str) -> int:
    found = parse_span(period)
    if found is None:
        raise ValueError(
            f"{text!r}: the period {period!r} is not one of sec, min, hour, day, or a number of them such as 30s; "
            f"write {FORMS}"
        )
    return found


def _limits(ctx: click.Context, param: click.Parameter, texts: Sequence[str]) -> list[Limit]:
    return [_parse_option(ctx, param, parse_limit, text) for text in texts]


def _amounts(ctx: click.Context, param: click.Parameter, texts: Sequence[str]) -> dict[str, int]:
    amounts: dict[str, int] = {}
    for text in texts:
        name, amount = _parse_option(ctx, param, parse_amount, text)
        if name in amounts:
            raise click.BadParameter(f"{name!r} is passed twice.", ctx, param)
        amounts[name] = amount
    return amounts


def _parse_option(ctx: click.Context, param: click.Parameter, parse: Callable[[str], T], text: str) -> T:
    try:
        return parse(text)
    except ValueError as error:
        raise click.BadParameter(f"{error}.", ctx, param) from None
