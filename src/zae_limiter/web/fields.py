"""Which header fields a response carries, and under which names limits are known outside."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import lru_cache
from operator import itemgetter
from typing import TypeAlias

from ..core.errors import ValidationError
from ..core.limit import Limit, whole
from ..core.production import MILLI
from ..core.refusals import StatusFields
from ..limiter.lease_core import LeaseCore
from .profiles import (
    CONCURRENT,
    PROFILES,
    REGISTERED,
    REQUESTS,
    TOKENS,
    LimitView,
    Line,
    Policy,
    Writer,
    merge_names,
    new_view,
    round_up_seconds,
)

LEVELS = ("", "parent", "grandparent")
"""The default names of the levels of a hierarchy, from the client upwards."""

UNITS = {
    **dict.fromkeys(("rps", "rpm", "rph", "rpd", "requests"), REQUESTS),
    **dict.fromkeys(("tps", "tpm", "tph", "tpd", "tokens"), TOKENS),
}
"""The units of limits whose name says what they count; every other rate or quota counts requests."""

_EXPOSE = "Access-Control-Expose-Headers"
_PAIR = frozenset({"ratelimit", "ratelimit-policy"})
_MAX_WRITERS = 1024
"""For how many sets of policies writers are kept: one per rule, and per entity with limits of its own."""
_MAX_JITTER_SECONDS = 3_600
_LEVEL = re.compile(r"[A-Za-z][A-Za-z0-9_-]*\Z")
_UNIT = re.compile(r"[a-z][a-z0-9-]*\Z")
_VENDOR = re.compile(r"[a-z][a-z0-9_-]*\Z")

_Policies: TypeAlias = tuple[tuple[str, Limit], ...]
_policy_of = itemgetter(0, 1)
"""Returns the part of a `LimitView` that is the same in every response: its name and its limit."""


@dataclass(frozen=True, slots=True)
class Fields:
    """The rate limit fields of responses.

    ``profiles``: the name of a profile, or several: ``ietf``, ``ietf-07``, ``x-ratelimit``, ``openai``, ``none``.
    ``units``: what limits count, by limit name, if the name does not say so. ``levels``: the name of each level of a
    hierarchy in policy names, the client's own first, ``""`` for no prefix; clients are told nothing of further levels.
    ``show_parents``: whether clients see the numbers of the levels above their own; without it, a refusal says which of
    those limits it was, and no more.
    ``all_units``: whether the IETF pair lists also limits that count neither requests nor calls in flight, under units
    that no registry knows; it lists those that refused in any case. ``expose``: whether scripts of other origins may
    read the fields. ``vendor``: the prefix of vendor parameters. ``jitter_seconds``: up to how many seconds later, at
    random, a refused client is asked to come again. ``chance``: returns a whole number between two, both included, for
    the jitter.

    >>> Fields("ietf").lines([LimitView("rpm", Limit.per_minute("rpm", 100), 50, 30_000)], 0)
    [('RateLimit-Policy', '"rpm";q=100;w=60'), ('RateLimit', '"rpm";r=50;t=30')]
    """

    profiles: str | Sequence[str] = "ietf"
    _: KW_ONLY
    units: Mapping[str, str] | None = field(default=None, hash=False)
    levels: Sequence[str] = LEVELS
    show_parents: bool = False
    all_units: bool = False
    expose: bool = False
    vendor: str = "zae"
    jitter_seconds: int = 0
    chance: Callable[[int, int], int] = field(default=random.randint, repr=False, compare=False)
    _shown: int = field(default=0, init=False, repr=False, compare=False)
    """The number of levels whose numbers clients see."""
    _writers: dict[_Policies, Writer] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "profiles", _check_profiles(self.profiles))
        object.__setattr__(self, "levels", _check_levels(self.levels))
        object.__setattr__(self, "units", _check_units(self.units))
        if not isinstance(self.show_parents, bool):
            raise ValidationError("show_parents", self.show_parents, "must be True or False")
        object.__setattr__(self, "_shown", len(self.levels) if self.show_parents else min(1, len(self.levels)))
        if not isinstance(self.vendor, str) or not _VENDOR.match(self.vendor):
            raise ValidationError("vendor", self.vendor, "must be lower case: a letter, then letters, digits, '_', '-'")
        jitter = whole("jitter_seconds", self.jitter_seconds, 0, _MAX_JITTER_SECONDS, "seconds")
        object.__setattr__(self, "jitter_seconds", jitter)

    @classmethod
    def of(cls, value: str | Sequence[str] | Fields | None) -> Fields:
        """Return `Fields` for what a user may pass: a profile, several, `Fields`, or None for no fields."""
        return value if isinstance(value, Fields) else cls("none" if value is None else value)

    def policy_name(self, depth: int, limit_name: str) -> str | None:
        """Return the name of a limit at a level of the hierarchy, 0 for the client's own; None if it is not told.

        Two different limits never share a name: if a limit of the nameless level reads like one of a named level,
        it gets a dot in front.

        >>> [Fields().policy_name(depth, "rpm") for depth in (0, 1, 7)], Fields().policy_name(0, "parent.rpm")
        (['rpm', 'parent.rpm', None], '.parent.rpm')
        """
        if depth >= len(self.levels):
            return None
        level = self.levels[depth]
        if level or ("." in limit_name and limit_name.partition(".")[0] in self.levels):
            return f"{level}.{limit_name}"
        return limit_name

    def unit(self, limit_name: str) -> str:
        """Return what a limit counts: ``requests``, ``tokens`` or a unit of the user's."""
        return (self.units or {}).get(limit_name) or UNITS.get(limit_name, REQUESTS)

    def wait(self, ms: int) -> int:
        """Return how many milliseconds a client is asked to stay away that fits in ``ms``: those, and the jitter."""
        jitter = self.chance(0, self.jitter_seconds) if self.jitter_seconds else 0
        return max(1, ms) + jitter * MILLI

    def retry_after(self, ms: int) -> int:
        """Return `wait` as ``Retry-After`` says it: whole seconds, rounded up, at least 1."""
        return round_up_seconds(self.wait(ms))

    def view_statuses(self, statuses: Iterable[StatusFields]) -> tuple[list[LimitView], list[str]]:
        """Return the views of a refusal, each limit of each level that clients see, and what refused beyond these.

        Of the latter they are told the names, if the level has one.
        """
        views: list[LimitView] = []
        hidden: list[str | None] = []
        owners: set[str] = set()
        depth, owner = -1, None
        for entity_id, _, _, limit, available, _, exceeded, wait, _, now_ms, _ in statuses:
            if entity_id != owner:  # the limits of a level stand together
                depth, owner = depth + 1, entity_id
            self._add_view(views, depth, limit, available, now_ms, wait if exceeded else None)
            owners.add(entity_id)
            if exceeded and len(owners) > self._shown:
                hidden.append(self.policy_name(len(owners) - 1, limit.name))
        return views, [name for name in hidden if name is not None]

    def view_leases(self, leases: Iterable[LeaseCore], now_ms: int) -> list[LimitView]:
        """Return the views of what was granted: each limit that clients are told of, as the deciding write left it."""
        views: list[LimitView] = []
        for lease in leases:
            depth, owner = -1, None
            for level, limit, left in lease.left():
                if level is not owner:
                    depth, owner = depth + 1, level
                self._add_view(views, depth, limit, left, now_ms)
        return views

    def _add_view(
        self, to: list[LimitView], depth: int, limit: Limit, left: int, now_ms: int, wait: float | None = None
    ) -> None:
        """Add the view of a limit, if clients see its level."""
        if depth < self._shown:
            name, capacity = limit.name, limit.capacity
            if self.levels[depth] or "." in name:
                name = self.policy_name(depth, name) or name
            missing = capacity - left if left < capacity else 0
            in_flight = missing if limit.is_concurrency else None
            full_in_ms: int | None
            if in_flight is not None:
                full_in_ms = None  # when those calls are done, which is unknown
            elif limit.calendar is None:
                full_in_ms = -(-missing * limit.refill_period_seconds * MILLI // limit.refill_amount)
            elif missing == 0 and limit.calendar.is_idle(now_ms):
                full_in_ms = 0
            else:
                limit, end_ms = _in_window(limit, limit.calendar.index(now_ms))
                full_in_ms = end_ms - now_ms
            retry_in_ms = None if wait is None else round(wait * MILLI)
            to.append(new_view((name, limit, left if left > 0 else 0, full_in_ms, retry_in_ms, in_flight)))

    def lines(
        self, views: Sequence[LimitView], now_ms: int, retry_after_s: int | None = None, wait_ms: int | None = None
    ) -> list[Line]:
        """Return the header lines of a response, in a fixed order, without ``Retry-After`` itself.

        ``views``: the limits to tell. ``now_ms``: the present instant. ``retry_after_s``: what ``Retry-After`` says,
        given if and only if the response refuses. ``wait_ms``: the same wait before it was rounded up, for the profiles
        that tell milliseconds.
        """
        policies = tuple(map(_policy_of, views))
        write = self._writers.get(policies) or self._compile(policies)
        if retry_after_s is not None:
            wait_ms = wait_ms or retry_after_s * MILLI
        return write(views, now_ms, wait_ms)

    def _compile(self, policies: _Policies) -> Writer:
        """Return the writer of all profiles for these policies."""
        described = []
        for place, (name, limit) in enumerate(policies):
            unit = CONCURRENT if limit.is_concurrency else self.unit(limit.name)
            burst = "" if limit.capacity == limit.refill_amount else f";{self.vendor}-burst={limit.capacity}"
            described.append(Policy(place, name, limit, unit, self.all_units or unit in REGISTERED, burst))
        writers = [writer for name in self.profiles if (writer := PROFILES[name](described)) is not None]
        repeated = len({policy.name for policy in described}) < len(described)

        def write(views: Sequence[LimitView], now_ms: int, wait_ms: int | None) -> list[Line]:
            if repeated:
                return self.lines(merge_names(views), now_ms, None, wait_ms)
            lines = [line for each in writers for line in each(views, now_ms, wait_ms)]
            names = [name for name, _ in lines] if wait_ms is None else ["Retry-After", *(name for name, _ in lines)]
            return [*lines, (_EXPOSE, ", ".join(names))] if self.expose and names else lines

        if len(self._writers) >= _MAX_WRITERS:
            self._writers.clear()
        chosen = write if repeated or self.expose or len(writers) != 1 else writers[0]
        return self._writers.setdefault(policies, chosen)


@lru_cache(1024)
def _in_window(limit: Limit, number: int) -> tuple[Limit, int]:
    """Return a quota with the length of one of its windows as its period, and the instant at which that ends."""
    calendar = limit.calendar
    assert calendar is not None  # it is a quota
    start_ms, end_ms = calendar.start(number), calendar.start(number + 1)
    return replace(limit, refill_period_seconds=(end_ms - start_ms) // MILLI or 1), end_ms


def omit_present(lines: list[Line], present: Set[str]) -> list[Line]:
    """Return the lines whose fields are not in ``present``, names in lower case; of the IETF pair both or neither.

    The fields that scripts may read are a list that can go on in another line, so that line always stays.
    """
    taken = present | _PAIR if not _PAIR.isdisjoint(present) else present
    return [line for line in lines if line[0].lower() not in taken or line[0] == _EXPOSE]


def _check_profiles(value: object) -> tuple[str, ...]:
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


def _check_levels(value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        reason = "must be a list of names, the client's own level first, e.g. ['', 'team']"
        raise ValidationError("levels", value, reason)
    for name in value:
        if not isinstance(name, str) or (name and not _LEVEL.match(name)):
            raise ValidationError("levels", name, "must be empty or a letter, then letters, digits, '_' and '-'")
    if len(set(value)) < len(value):
        raise ValidationError("levels", value, "contains a name twice; give each level its own name")
    return tuple(value)


def _check_units(value: object) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValidationError("units", value, "must map limit names to units, e.g. {'images': 'tokens'}")
    for unit in value.values():
        if not isinstance(unit, str) or not _UNIT.match(unit):
            raise ValidationError("units", unit, "must be lower case: a letter, then letters, digits and '-'")
    return dict(value)
