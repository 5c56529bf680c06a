"""The profiles: sets of header fields that tell clients about their limits.

A profile is compiled: it takes the policies of a response once and returns a `Writer`, which has only numbers left to
fill in. Responses of one rule share their policies, so writers are kept and a response costs little more than that.

``ietf`` is draft-ietf-httpapi-ratelimit-headers in revision 11, ``ietf-07`` an older revision for clients that have not
moved on. A policy is a rate: its quota ``q`` in its window ``w`` is what the bucket refills in its period, and a
capacity that differs is a vendor parameter. The effective window ``t`` ends when the bucket is full again, so that
``r`` in ``t`` never promises more than the bucket gives; for a limit that refused, it is the same number as
``Retry-After``. ``x-ratelimit`` and ``openai`` follow no standard, but many clients read them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ..core.bucket import MILLI
from ..core.errors import ValidationError
from .limit_views import choose_tightest

if TYPE_CHECKING:
    from ..core.limit import Limit
    from .limit_views import LimitView

REQUESTS = "requests"
TOKENS = "tokens"
MAX_INTEGER = 10**15 - 1
"""The largest Integer of a structured field: a huge bucket at a tiny rate takes longer than that to fill."""

Line: TypeAlias = tuple[str, str]


class Policy(NamedTuple):
    """One limit as its clients know it, without its balance."""

    place: int
    """The index of its view among those of the response."""
    name: str
    limit: Limit
    unit: str
    listed: bool
    """Whether the IETF pair names it."""
    burst: str
    """The parameter that tells a capacity which is not the rate, with its semicolon; empty if they are the same."""


class Wait(NamedTuple):
    """How long a refused client is asked to stay away: ``seconds`` are ``ms``, rounded up."""

    seconds: int
    ms: int


Writer: TypeAlias = "Callable[[Sequence[LimitView], int, Wait | None], list[Line]]"
"""Makes header lines of ``(views, now_ms, wait)``; the wait is there if and only if the request was refused."""

Profile: TypeAlias = Callable[[Sequence[Policy]], Writer]


def write_nothing(views: Sequence[LimitView], now_ms: int, wait: Wait | None) -> list[Line]:
    """Return no line: the writer of a profile that has nothing to tell."""
    return []


def quote_sf_string(text: str) -> str:
    r"""Return a String of a structured field; characters that it cannot hold are escaped the way Python does.

    >>> print(quote_sf_string('a "b"'), quote_sf_string("ü"))
    "a \"b\"" "\\xfc"
    """
    if not (text.isascii() and text.isprintable()):
        text = text.encode("unicode_escape").decode("ascii")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def ietf_11(policies: Sequence[Policy]) -> Writer:
    """``RateLimit-Policy: "rpm";q=100;w=60`` and ``RateLimit: "rpm";r=50;t=30``."""
    listed = [policy for policy in policies if policy.listed]
    if not listed:
        return write_nothing
    constant = ("RateLimit-Policy", ", ".join(map(_describe_policy, listed)))
    starts = [(policy.place, f"{quote_sf_string(policy.name)};r=") for policy in listed]

    def write(views: Sequence[LimitView], now_ms: int, wait: Wait | None) -> list[Line]:
        items = []
        for place, start in starts:
            view = views[place]
            items.append(f"{start}{view.remaining};t={_window(view, wait)}")
        return [constant, ("RateLimit", ", ".join(items))]

    return write


def _describe_policy(policy: Policy) -> str:
    unit = "" if policy.unit == REQUESTS else f";qu={quote_sf_string(policy.unit)}"
    rate = policy.limit
    return f"{quote_sf_string(policy.name)};q={rate.refill_amount}{unit};w={rate.refill_period_seconds}{policy.burst}"


def _window(view: LimitView, wait: Wait | None) -> int:
    """Return the effective window in seconds."""
    _, _, _, full_in_ms, retry_in_ms = view
    seconds = -(-full_in_ms // MILLI) or 1 if wait is None or retry_in_ms is None else wait.seconds
    return seconds if seconds < MAX_INTEGER else MAX_INTEGER


def ietf_07(policies: Sequence[Policy]) -> Writer:
    """``RateLimit-Policy: 100;w=60`` and ``RateLimit: limit=100, remaining=50, reset=5`` of the tightest policy.

    It knows neither names nor units, so only requests are told, and a client counts ``remaining`` down from ``limit``,
    so it is never above.
    """
    counted = [policy for policy in policies if policy.unit == REQUESTS]
    if not counted:
        return write_nothing
    rates = [f"{p.limit.refill_amount};w={p.limit.refill_period_seconds}{p.burst}" for p in counted]
    constant = ("RateLimit-Policy", ", ".join(rates))
    places = [policy.place for policy in counted]

    def write(views: Sequence[LimitView], now_ms: int, wait: Wait | None) -> list[Line]:
        view = choose_tightest([views[place] for place in places])
        limit = view.limit.refill_amount
        remaining = min(view.remaining, limit)
        return [constant, ("RateLimit", f"limit={limit}, remaining={remaining}, reset={_window(view, wait)}")]

    return write


def x_ratelimit(policies: Sequence[Policy]) -> Writer:
    """``X-RateLimit-Limit``, ``-Remaining`` and ``-Reset`` of the tightest policy.

    It is one that counts requests, if there is any. ``Limit`` is the capacity, which ``Remaining`` has reached at
    ``Reset``, in seconds since the epoch. On a refusal ``Reset`` is when to come again.
    """
    if not policies:
        return write_nothing
    places = [policy.place for policy in policies if policy.unit == REQUESTS] or [policy.place for policy in policies]

    def write(views: Sequence[LimitView], now_ms: int, wait: Wait | None) -> list[Line]:
        view = choose_tightest([views[place] for place in places] if wait is None else views)
        reset_ms = now_ms + (view.full_in_ms if wait is None else wait.seconds * MILLI)
        return [
            ("X-RateLimit-Limit", str(view.limit.capacity)),
            ("X-RateLimit-Remaining", str(view.remaining)),
            ("X-RateLimit-Reset", str(-(-reset_ms // MILLI))),
        ]

    return write


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

    def write(views: Sequence[LimitView], now_ms: int, wait: Wait | None) -> list[Line]:
        lines = []
        for limit, remaining, reset, places in families:
            view = choose_tightest([views[place] for place in places])
            rate = view.limit.refill_amount
            lines.append((limit, str(rate)))
            lines.append((remaining, str(min(rate, view.remaining))))
            lines.append((reset, format_duration(view.full_in_ms)))
        if wait is not None:
            lines.append(("retry-after-ms", str(wait.ms)))
        return lines

    return write


def format_duration(ms: int) -> str:
    """Return a length of time as OpenAI writes it, which is Go's way.

    >>> [format_duration(ms) for ms in (12, 6_000, 90_000, 3_720_000, 8_640)]
    ['12ms', '6s', '1m30s', '1h2m0s', '8.64s']
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


PROFILES: dict[str, Profile] = {
    "ietf": ietf_11,
    "ietf-11": ietf_11,
    "ietf-07": ietf_07,
    "x-ratelimit": x_ratelimit,
    "openai": openai,
}
"""The profiles by name; ``none`` is the absence of all."""


def check_profiles(value: object) -> tuple[str, ...]:
    """Check the names of profiles and return them; none for ``none``. Raises `ValidationError`."""
    names = (value,) if isinstance(value, str) else value
    known = f"one or several of {', '.join(PROFILES)}, or none"
    if not isinstance(names, Sequence):
        raise ValidationError("profiles", value, f"must be {known}")
    for name in names:
        if name != "none" and (not isinstance(name, str) or name not in PROFILES):
            raise ValidationError("profiles", name, f"is not a profile; choose {known}")
    if "none" in names and len(names) > 1:
        raise ValidationError("profiles", value, "'none' cannot be combined with other profiles")
    if len({name.partition("-")[0] for name in names}) < len(names):
        raise ValidationError("profiles", value, "contains two versions of one profile; keep one of them")
    return tuple(name for name in names if name != "none")
