"""The profiles: sets of header fields that tell clients about their limits.

A profile is compiled: it takes the policies of a response once and returns a `Writer`, which has only numbers left to
fill in. Responses of one rule share their policies, so writers are kept and a response costs little more than that.

``ietf`` is draft-ietf-httpapi-ratelimit-headers in revision 11, ``ietf-07`` an older revision for clients that have not
moved on. A policy is a rate: its quota ``q`` in its window ``w`` is what the bucket refills in its period, and a
capacity that differs is a vendor parameter. The effective window ``t`` ends when the bucket is full again, so that
``r`` in ``t`` never promises more than the bucket gives; for a limit that refused, it is the same number as
``Retry-After``. ``x-ratelimit`` and ``openai`` follow no standard, but many clients read them.

A concurrency limit is no rate: its quota are the slots, and they are free again when the calls in flight are done, an
unknown time. So it has no window, and an effective one only if it has refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

from ..core.limit import Limit
from ..core.production import MILLI

REQUESTS = "requests"
TOKENS = "tokens"
CONCURRENT = "concurrent-requests"
REGISTERED = frozenset({REQUESTS, CONCURRENT})
"""The units of ours that the draft registers."""
MAX_INTEGER = 10**15 - 1
"""The largest Integer of a structured field: a huge bucket at a tiny rate takes longer than that to fill."""

Line: TypeAlias = tuple[str, str]


class _LimitView(NamedTuple):
    name: str
    limit: Limit
    remaining: int
    full_in_ms: int | None
    retry_in_ms: int | None
    in_flight: int | None


class LimitView(_LimitView):
    """One limit at one level as of a decision, as a client may see it.

    ``name``: how clients know it; it tells no entity. ``limit``: the limit itself. ``remaining``: whole tokens, 0 while
    in debt. ``full_in_ms``: when the bucket is full, in milliseconds, at least 0; None for a concurrency limit, whose
    slots come back when their calls are done. ``retry_in_ms``: when the cost fits, of slots at the latest; None if it
    did fit. ``in_flight``: how many slots are taken; None for other limits.
    """

    __slots__ = ()

    def __new__(
        cls,
        name: str,
        limit: Limit,
        remaining: int,
        full_in_ms: int | None,
        retry_in_ms: int | None = None,
        in_flight: int | None = None,
    ) -> LimitView:
        """Create a view; negative numbers become 0."""
        full_in_ms = None if full_in_ms is None else max(0, full_in_ms)
        return new_view((name, limit, max(0, remaining), full_in_ms, retry_in_ms, in_flight))

    @property
    def violated(self) -> bool:
        """Whether this limit refused."""
        return self.retry_in_ms is not None


new_view: Callable[[tuple[str, Limit, int, int | None, int | None, int | None]], LimitView] = partial(
    tuple.__new__, LimitView
)
"""`LimitView` of numbers that are not negative, without a call of its own."""


def choose_tightest(views: Sequence[LimitView]) -> LimitView:
    """Return the view nearest to exhaustion, the first one of equals; ``views`` must not be empty.

    That is the violated one that takes longest, else the one with the least remaining part.
    """
    return views[0] if len(views) == 1 else max(views, key=_tightness)


def _tightness(view: LimitView) -> tuple[int, float]:
    retry = view.retry_in_ms
    return -1 if retry is None else retry, -view.remaining / view.limit.capacity


def merge_names(views: Sequence[LimitView]) -> Sequence[LimitView]:
    """Return every name once, by its tightest view: a client tells policies apart by nothing else."""
    if len(views) < 2:
        return views
    by_name: dict[str, LimitView] = {}
    for view in views:
        other = by_name.get(view.name)
        by_name[view.name] = view if other is None else choose_tightest((other, view))
    return list(by_name.values())


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


Writer: TypeAlias = Callable[[Sequence[LimitView], int, int | None], list[Line]]
"""Makes header lines of ``(views, now_ms, wait_ms)``; the wait is there if and only if the request was refused."""


def round_up_seconds(ms: int) -> int:
    """Return the whole seconds that are not over before ``ms`` are, at least 1.

    >>> round_up_seconds(0), round_up_seconds(1000), round_up_seconds(1001)
    (1, 1, 2)
    """
    return -(-ms // MILLI) if ms > 0 else 1


def quote_sf_string(text: str) -> str:
    r"""Return a String of a structured field; characters that it cannot hold are escaped the way Python does.

    >>> print(quote_sf_string('a "b"'), quote_sf_string("ü"))
    "a \"b\"" "\\xfc"
    """
    if not (text.isascii() and text.isprintable()):
        text = text.encode("unicode_escape").decode("ascii")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def ietf_11(policies: Sequence[Policy]) -> Writer | None:
    """``RateLimit-Policy: "rpm";q=100;w=60`` and ``RateLimit: "rpm";r=50;t=30``.

    A concurrency limit is ``"parallel";q=5;qu="concurrent-requests"`` and ``"parallel";r=3``, with ``t`` if it refused.
    A limit that refused is there even if it is not listed otherwise.
    """
    rates = [_write_rate(policy) for policy in policies]
    constant = ("RateLimit-Policy", ", ".join(rates[policy.place] for policy in policies if policy.listed))
    starts = [(policy.place, policy.listed, f"{quote_sf_string(policy.name)};r=") for policy in policies]

    def write(views: Sequence[LimitView], now_ms: int, wait_ms: int | None) -> list[Line]:
        items, shown = [], constant
        if wait_ms is not None:
            named = [rates[place] for place, listed, _ in starts if listed or views[place].violated]
            shown = ("RateLimit-Policy", ", ".join(named))
        for place, listed, start in starts:
            _, _, remaining, full_in_ms, retry_in_ms, _ = views[place]
            if not listed and (wait_ms is None or retry_in_ms is None):
                continue
            window_ms = full_in_ms if wait_ms is None or retry_in_ms is None else wait_ms
            if window_ms is None:
                items.append(f"{start}{remaining}")
                continue
            seconds = -(-window_ms // MILLI) or 1
            items.append(f"{start}{remaining};t={seconds if seconds < MAX_INTEGER else MAX_INTEGER}")
        return [shown, ("RateLimit", ", ".join(items))] if items else []

    return write


def _write_rate(policy: Policy) -> str:
    """Return an item of ``RateLimit-Policy``."""
    quoted, unit, rate = quote_sf_string(policy.name), policy.unit, policy.limit
    counted = "" if unit == REQUESTS else f";qu={quote_sf_string(unit)}"
    if unit == CONCURRENT:
        return f"{quoted};q={rate.capacity}{counted}"
    return f"{quoted};q={rate.refill_amount}{counted};w={rate.refill_period_seconds}{policy.burst}"


def ietf_07(policies: Sequence[Policy]) -> Writer | None:
    """``RateLimit-Policy: 100;w=60`` and ``RateLimit: limit=100, remaining=50, reset=5`` of the tightest policy.

    It knows neither names nor units, so only rates of requests are told, and others if they have refused. A client
    counts ``remaining`` down from ``limit``, so it is never above.
    """
    rates = [
        (p.place, p.unit == REQUESTS, f"{p.limit.refill_amount};w={p.limit.refill_period_seconds}{p.burst}")
        for p in policies
        if p.unit != CONCURRENT
    ]

    def write(views: Sequence[LimitView], now_ms: int, wait_ms: int | None) -> list[Line]:
        refused = wait_ms is not None
        shown = [(place, rate) for place, counted, rate in rates if counted or (refused and views[place].violated)]
        if not shown:
            return []
        constant = ("RateLimit-Policy", ", ".join(rate for _, rate in shown))
        view = choose_tightest([views[place] for place, _ in shown])
        limit = view.limit.refill_amount
        reset_ms = view.full_in_ms if wait_ms is None or view.retry_in_ms is None else wait_ms
        reset = min(round_up_seconds(reset_ms or 0), MAX_INTEGER)
        return [constant, ("RateLimit", f"limit={limit}, remaining={min(view.remaining, limit)}, reset={reset}")]

    return write


def x_ratelimit(policies: Sequence[Policy]) -> Writer | None:
    """``X-RateLimit-Limit``, ``-Remaining`` and ``-Reset`` of the tightest policy.

    It is one that counts requests, if there is any. ``Limit`` is the capacity, which ``Remaining`` has reached at
    ``Reset``, in seconds since the epoch; so concurrency limits are left out. On a refusal ``Reset`` is when to come
    again, whatever has refused.
    """
    if not policies:
        return None
    filling = [policy for policy in policies if policy.unit != CONCURRENT]
    places = [policy.place for policy in filling if policy.unit == REQUESTS] or [policy.place for policy in filling]

    def write(views: Sequence[LimitView], now_ms: int, wait_ms: int | None) -> list[Line]:
        shown = [views[place] for place in places] if wait_ms is None else views
        if not shown:
            return []
        view = choose_tightest(shown)
        reset_ms = now_ms + ((view.full_in_ms or 0) if wait_ms is None else round_up_seconds(wait_ms) * MILLI)
        return [
            ("X-RateLimit-Limit", str(view.limit.capacity)),
            ("X-RateLimit-Remaining", str(view.remaining)),
            ("X-RateLimit-Reset", str(-(-reset_ms // MILLI))),
        ]

    return write


def openai(policies: Sequence[Policy]) -> Writer | None:
    """``x-ratelimit-{limit,remaining,reset}-{requests,tokens}``, each of the tightest policy of its unit.

    The limit is the rate, and ``remaining`` never above it; ``reset`` is how long until the bucket is full. There is no
    field for a concurrency limit. A refusal adds ``retry-after-ms``, which the SDKs prefer to ``Retry-After``.
    """
    units = [(unit, [policy.place for policy in policies if policy.unit == unit]) for unit in (REQUESTS, TOKENS)]
    families = [
        (f"x-ratelimit-limit-{unit}", f"x-ratelimit-remaining-{unit}", f"x-ratelimit-reset-{unit}", places)
        for unit, places in units
        if places
    ]

    def write(views: Sequence[LimitView], now_ms: int, wait_ms: int | None) -> list[Line]:
        lines: list[Line] = []
        for limit, remaining, reset, places in families:
            view = choose_tightest([views[place] for place in places])
            rate = view.limit.refill_amount
            left = (remaining, str(min(rate, view.remaining)))
            lines += ((limit, str(rate)), left, (reset, format_duration(view.full_in_ms or 0)))
        if wait_ms is not None:
            lines.append(("retry-after-ms", str(wait_ms)))
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


PROFILES: dict[str, Callable[[Sequence[Policy]], Writer | None]] = {
    "ietf": ietf_11,
    "ietf-11": ietf_11,
    "ietf-07": ietf_07,
    "x-ratelimit": x_ratelimit,
    "openai": openai,
}
"""The profiles by name, ``none`` being the absence of all; they return None if they have nothing to tell."""
