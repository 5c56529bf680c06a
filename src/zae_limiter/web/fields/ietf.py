"""The fields of draft-ietf-httpapi-ratelimit-headers: revision 11, and revision 07 for clients that have not moved on.

A policy is a rate: its quota ``q`` in its window ``w`` is what the bucket refills in its period, and a capacity that
differs is a vendor parameter. The effective window ``t`` ends when the bucket is full again, so that ``r`` in ``t``
never promises more than the bucket gives; for a limit that refused, it is the same number as ``Retry-After``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .policy import REQUESTS, silent
from .standing import tightest, whole_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .policy import Line, Policy, Wait, Writer
    from .standing import Standing

MAX_INTEGER = 10**15 - 1
"""The largest Integer of a structured field: a huge bucket at a tiny rate takes longer than that to fill."""


def sf_string(text: str) -> str:
    r"""A String of a structured field; what such a string cannot hold is escaped the way Python does.

    >>> print(sf_string('a "b"'), sf_string("ü"))
    "a \"b\"" "\\xfc"
    """
    if not (text.isascii() and text.isprintable()):
        text = text.encode("unicode_escape").decode("ascii")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _window(standing: Standing, wait: Wait | None) -> int:
    """The effective window in seconds."""
    seconds = whole_seconds(standing.full_in_ms) if wait is None or standing.retry_in_ms is None else wait.seconds
    return seconds if seconds < MAX_INTEGER else MAX_INTEGER


def _item(policy: Policy) -> str:
    unit = "" if policy.unit == REQUESTS else f";qu={sf_string(policy.unit)}"
    rate = policy.limit
    return f"{sf_string(policy.name)};q={rate.refill_amount}{unit};w={rate.refill_period_seconds}{policy.burst}"


def ietf_11(policies: Sequence[Policy]) -> Writer:
    """``RateLimit-Policy: "rpm";q=100;w=60`` and ``RateLimit: "rpm";r=50;t=30``."""
    listed = [policy for policy in policies if policy.listed]
    if not listed:
        return silent
    constant = ("RateLimit-Policy", ", ".join(map(_item, listed)))
    starts = [(policy.place, f"{sf_string(policy.name)};r=") for policy in listed]

    def write(standings: Sequence[Standing], now_ms: int, wait: Wait | None) -> list[Line]:
        items = []
        for place, start in starts:
            standing = standings[place]
            items.append(f"{start}{standing.remaining};t={_window(standing, wait)}")
        return [constant, ("RateLimit", ", ".join(items))]

    return write


def ietf_07(policies: Sequence[Policy]) -> Writer:
    """``RateLimit-Policy: 100;w=60`` and ``RateLimit: limit=100, remaining=50, reset=5`` of the tightest policy.

    It knows neither names nor units, so only requests are told, and a client counts ``remaining`` down from ``limit``,
    so it is never above.
    """
    counted = [policy for policy in policies if policy.unit == REQUESTS]
    if not counted:
        return silent
    rates = [f"{p.limit.refill_amount};w={p.limit.refill_period_seconds}{p.burst}" for p in counted]
    constant = ("RateLimit-Policy", ", ".join(rates))
    places = [policy.place for policy in counted]

    def write(standings: Sequence[Standing], now_ms: int, wait: Wait | None) -> list[Line]:
        standing = tightest([standings[place] for place in places])
        limit = standing.limit.refill_amount
        remaining = min(standing.remaining, limit)
        return [constant, ("RateLimit", f"limit={limit}, remaining={remaining}, reset={_window(standing, wait)}")]

    return write
