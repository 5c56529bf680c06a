"""Amounts and moments as they are written on the command line, and options that take limits (`core.kinds`).

NAME:AMOUNT           rpm:1, tpm:+1500        what a call costs, or an adjustment
KEY=VALUE             plan=pro                metadata and tags
2026-11-16T12:00:00Z  RFC 3339, with its time zone
2026-11-16            midnight UTC
24h, 7d, 30min        so long ago
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Any, TypeAlias, TypeVar

import click

from ..core.kinds import FORMS, WHOLE, parse_limit, parse_span

Decorator: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]
K = TypeVar("K")
V = TypeVar("V")

_MIDNIGHT = "(midnight UTC) or how long"


def parse_amount(text: str) -> tuple[str, int]:
    """Return a name and a whole number, which may have a sign. Raise `ValueError` for anything else."""
    name, _, amount = text.partition(":")
    if not name or not re.fullmatch(f"[+-]?{WHOLE}", amount):
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
    span = parse_span(text) if text[:1].isdigit() else None
    try:
        moment = datetime.fromisoformat(text) if span is None else now + sign * timedelta(seconds=span)
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is not {what}; write {forms}") from None
    if re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
        return moment.replace(tzinfo=UTC)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone; end it with Z for UTC, or with an offset such as +09:00")
    return moment


def limit_option(*, required: bool = False) -> Decorator:
    """Return the option ``-l``, which takes limits."""
    help = f"{FORMS}. Behind it ,soft, floors such as ,batch=0.3 or thresholds such as ,alert=0.8. May be repeated."
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
