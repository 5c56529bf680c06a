"""The fields that no standard describes and many clients read: ``X-RateLimit-*``, and OpenAI's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.bucket import MILLI
from .policy import REQUESTS, TOKENS, silent
from .standing import tightest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .policy import Line, Policy, Wait, Writer
    from .standing import Standing


def x_ratelimit(policies: Sequence[Policy]) -> Writer:
    """``X-RateLimit-Limit``, ``-Remaining`` and ``-Reset`` of the tightest policy.

    It is one that counts requests, if there is any. ``Limit`` is the capacity, which ``Remaining`` has reached at
    ``Reset``, in seconds since the epoch. On a refusal ``Reset`` is when to come again.
    """
    if not policies:
        return silent
    places = [policy.place for policy in policies if policy.unit == REQUESTS] or [policy.place for policy in policies]

    def write(standings: Sequence[Standing], now_ms: int, wait: Wait | None) -> list[Line]:
        told = [standings[place] for place in places] if wait is None else standings
        standing = tightest(told)
        reset_ms = now_ms + (standing.full_in_ms if wait is None else wait.seconds * MILLI)
        return [
            ("X-RateLimit-Limit", str(standing.limit.capacity)),
            ("X-RateLimit-Remaining", str(standing.remaining)),
            ("X-RateLimit-Reset", str(-(-reset_ms // MILLI))),
        ]

    return write


def duration(ms: int) -> str:
    """A length of time as OpenAI writes it, which is Go's way.

    >>> duration(12), duration(6_000), duration(90_000), duration(3_720_000), duration(8_640)
    ('12ms', '6s', '1m30s', '1h2m0s', '8.64s')
    """
    if 0 < ms < MILLI:
        return f"{ms}ms"
    whole, thousandths = divmod(ms, MILLI)
    minutes, seconds = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{seconds}.{thousandths:03}".rstrip("0") if thousandths else str(seconds)
    if hours:
        return f"{hours}h{minutes}m{text}s"
    return f"{minutes}m{text}s" if minutes else f"{text}s"


def openai(policies: Sequence[Policy]) -> Writer:
    """``x-ratelimit-{limit,remaining,reset}-{requests,tokens}``, each of the tightest policy of its unit.

    The limit is the rate, and ``remaining`` never above it; ``reset`` is how long until the bucket is full. A refusal
    adds ``retry-after-ms``, which the SDKs prefer to ``Retry-After``.
    """
    units = [(unit, [policy.place for policy in policies if policy.unit == unit]) for unit in (REQUESTS, TOKENS)]
    families = [
        (f"x-ratelimit-limit-{unit}", f"x-ratelimit-remaining-{unit}", f"x-ratelimit-reset-{unit}", places)
        for unit, places in units
        if places
    ]

    def write(standings: Sequence[Standing], now_ms: int, wait: Wait | None) -> list[Line]:
        lines = []
        for limit, remaining, reset, places in families:
            standing = tightest([standings[place] for place in places])
            rate = standing.limit.refill_amount
            lines.append((limit, str(rate)))
            lines.append((remaining, str(min(rate, standing.remaining))))
            lines.append((reset, duration(standing.full_in_ms)))
        if wait is not None:
            lines.append(("retry-after-ms", str(wait.ms)))
        return lines

    return write
