"""A limit: a ceiling and a sustained rate, an allowance per window of a calendar, or so many slots at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from . import names
from .calendar import Calendar
from .policy import check_alerts, check_floors
from .schedule import ScheduleEntry, check_factor, check_new_schedule, check_schedule, find_active, read_schedule
from .validation import (
    MAX_AMOUNT as MAX_AMOUNT,
    MAX_PERIOD_SECONDS as MAX_PERIOD_SECONDS,
    ValidationError,
    as_int as as_int,
    seconds as seconds,
    whole as whole,
)

_MOST_MS = 250_000_000_000_000
"""How far from 1970 an instant may be for which a schedule is asked: it has a date in every time zone, also before."""
MAX_SLOTS = 10_000
"""Most slots of a concurrency limit."""
MAX_TTL_SECONDS = 86_400
"""Longest time for which a slot is taken without being renewed: a day."""

_REQUIRED = ("name", "capacity", "refill_amount", "refill_period_seconds")
_NUMBERS = (
    ("capacity", MAX_AMOUNT, "tokens"),
    ("refill_amount", MAX_AMOUNT, "tokens"),
    ("refill_period_seconds", MAX_PERIOD_SECONDS, "seconds"),
)
"""The fields of a limit that are numbers: the most of each, and what it counts."""


@dataclass(frozen=True, slots=True, repr=False)
class Limit:
    """At most ``capacity`` at once, and ``refill_amount`` every ``refill_period_seconds`` in the long run.

    >>> Limit.per_minute("tpm", 10_000, burst=15_000)
    Limit(name='tpm', capacity=15000, refill_amount=10000, refill_period_seconds=60)

    Args:
        name: The name: a letter, then letters, digits, ``_``, ``-`` and ``.``.
        capacity: The most tokens that can be taken at once.
        refill_amount: The tokens that are added per period.
        refill_period_seconds: The length of the period; of a quota the longest that a window can be.
        calendar: The windows of a quota, at the start of which ``refill_amount`` is added at once. None for a rate.
        soft: Whether it only counts: what is taken beyond it is granted, and told apart. So a new limit is rolled out.
        floors: By priority, the part of the capacity that requests of this priority leave for others, e.g.
            ``{"batch": 0.3}``; 0 names a priority that may take everything. Kept as sorted pairs.
        alerts: The thresholds that are announced when they are crossed, as parts of the capacity that are used, e.g.
            ``(0.8, 0.95)``: at most eight, in whole thousandths. Kept sorted.
        schedule: What it is instead at certain times: the first entry that matches is in force. `with_schedule`.
        ttl: Of a concurrency limit, the seconds after which a slot comes back unless its holder renews it; 0 for
            others. Its ``capacity`` counts slots.
        max_hold: The seconds for which a slot can be held at most; 0 for as long as its holder renews it.
    """

    name: str
    capacity: int
    refill_amount: int
    refill_period_seconds: int
    calendar: Calendar | None = None
    soft: bool = False
    floors: tuple[tuple[str, float], ...] = ()
    alerts: tuple[float, ...] = ()
    schedule: tuple[ScheduleEntry, ...] = ()
    ttl: int = 0
    max_hold: int = 0

    def __post_init__(self) -> None:
        names.limit_name(self.name)
        if self.ttl != 0 or self.max_hold != 0:
            self._check_slots()
        if type(self.soft) is not bool:
            raise ValidationError("soft", self.soft, "must be True or False")
        if self.floors != ():
            object.__setattr__(self, "floors", check_floors(self.floors))
        if self.alerts != ():
            object.__setattr__(self, "alerts", check_alerts(self.alerts))
        for field, most, unit in _NUMBERS:
            object.__setattr__(self, field, whole(field, getattr(self, field), 1, most, unit))
        if self.calendar is not None or self.schedule != ():
            self._check_times()

    def _check_slots(self) -> None:
        """Raise `ValidationError` unless it is a valid concurrency limit. What it does not have is set by the rest."""
        ttl = whole("ttl", self.ttl, 1, MAX_TTL_SECONDS, "seconds")
        capacity = whole("slots", self.capacity, 1, MAX_SLOTS, "slots")
        for field, value in (("calendar", self.calendar), ("alerts", self.alerts)):
            if value:
                raise ValidationError(field, value, "is not for a concurrency limit")
        if self.max_hold != 0 and whole("max_hold", self.max_hold, 1, MAX_PERIOD_SECONDS, "seconds") < ttl:
            raise ValidationError("max_hold", self.max_hold, f"must not be shorter than ttl, which is {ttl}")
        # All of its slots come back by themselves within a ttl, so that is the time in which it fills up.
        numbers = {"ttl": ttl, "refill_amount": capacity, "refill_period_seconds": ttl}
        for field, number in numbers.items():
            object.__setattr__(self, field, number)

    def _check_times(self) -> None:
        """Raise `ValidationError` unless the calendar is one, and the schedule has entries that fit the limit."""
        if self.calendar is not None and not isinstance(self.calendar, Calendar):
            raise ValidationError("calendar", self.calendar, "must be a Calendar; use Limit.quota to make one")
        object.__setattr__(self, "schedule", check_schedule(self.schedule))
        for entry in self.schedule:
            self._apply(entry)

    @classmethod
    def per_second(
        cls,
        name: str,
        rate: int,
        burst: int | None = None,
        *,
        soft: bool = False,
        floors: Mapping[str, float] | None = None,
        alerts: Sequence[float] = (),
    ) -> Limit:
        """Return a limit of ``rate`` tokens a second, up to ``burst`` (or ``rate``) at once; keywords: see `custom`."""
        capacity = rate if burst is None else burst
        return cls.custom(name, capacity, rate, 1, soft=soft, floors=floors, alerts=alerts)

    @classmethod
    def per_minute(
        cls,
        name: str,
        rate: int,
        burst: int | None = None,
        *,
        soft: bool = False,
        floors: Mapping[str, float] | None = None,
        alerts: Sequence[float] = (),
    ) -> Limit:
        """Return a limit of ``rate`` tokens a minute, up to ``burst`` (or ``rate``) at once; keywords: see `custom`."""
        capacity = rate if burst is None else burst
        return cls.custom(name, capacity, rate, 60, soft=soft, floors=floors, alerts=alerts)

    @classmethod
    def per_hour(
        cls,
        name: str,
        rate: int,
        burst: int | None = None,
        *,
        soft: bool = False,
        floors: Mapping[str, float] | None = None,
        alerts: Sequence[float] = (),
    ) -> Limit:
        """Return a limit of ``rate`` tokens an hour, up to ``burst`` (or ``rate``) at once; keywords: see `custom`."""
        capacity = rate if burst is None else burst
        return cls.custom(name, capacity, rate, 3_600, soft=soft, floors=floors, alerts=alerts)

    @classmethod
    def per_day(
        cls,
        name: str,
        rate: int,
        burst: int | None = None,
        *,
        soft: bool = False,
        floors: Mapping[str, float] | None = None,
        alerts: Sequence[float] = (),
    ) -> Limit:
        """Return a limit of ``rate`` tokens a day, up to ``burst`` (or ``rate``) at once; keywords: see `custom`."""
        capacity = rate if burst is None else burst
        return cls.custom(name, capacity, rate, 86_400, soft=soft, floors=floors, alerts=alerts)

    @classmethod
    def custom(
        cls,
        name: str,
        capacity: int,
        refill_amount: int,
        refill_period_seconds: int,
        *,
        soft: bool = False,
        floors: Mapping[str, float] | None = None,
        alerts: Sequence[float] = (),
    ) -> Limit:
        """Return a limit of ``refill_amount`` tokens every ``refill_period_seconds``, up to ``capacity`` at once.

        ``soft``, ``floors`` and ``alerts`` are those of the class.
        """
        return cls(
            name, capacity, refill_amount, refill_period_seconds, None, soft, check_floors(floors), check_alerts(alerts)
        )

    @classmethod
    def quota(
        cls,
        name: str,
        amount: int,
        *,
        every: str | timedelta | None = None,
        tz: str = "UTC",
        at: str | None = None,
        on: str | int | None = None,
        cron: str | None = None,
        reset_after: timedelta | None = None,
        rollover: int = 0,
        soft: bool = False,
        floors: Mapping[str, float] | None = None,
        alerts: Sequence[float] = (),
    ) -> Limit:
        """Return an allowance of ``amount`` tokens per window of a calendar, all of it back when the next one begins.

        What was used beyond it is paid by the allowances that follow.

        >>> Limit.quota("tpd", 1_000_000, every="day", tz="Europe/Berlin")
        Limit.quota(name='tpd', amount=1000000, every='day@Europe/Berlin')

        Args:
            name: The name of the limit.
            amount: The tokens of one window.
            every: ``hour``, ``day``, ``week``, ``month`` or ``year``; or a `timedelta`, for windows of that length. A
                day if None.
            tz: The time zone in which windows begin.
            at: The local time ``HH:MM`` at which a day, week, month or year begins.
            on: The day on which it begins: of a week ``monday`` to ``sunday`` or 0 to 6, of a month 1 to 31 (the last
                day where it is shorter), of a year ``MM-DD``.
            cron: An expression of five fields, e.g. ``0 9 * * 1-5``, that begins a window whenever it fires by the
                clocks of ``tz``; instead of ``every``, ``at`` and ``on``.
            reset_after: The length of a window that begins with its first use, for each bucket on its own; after its
                end the next use begins another. Instead of all that says when windows begin.
            rollover: How many tokens that were not used are kept for later windows, at most. An entity that was not
                seen before counts as one that has used nothing.
            soft: Whether it only counts, and never refuses.
            floors: By priority, the part that requests of it leave untouched.
            alerts: The thresholds that are announced when they are crossed, once per window each.
        """
        calendar = Calendar.of(every, tz, at, on, cron, reset_after)
        amount = whole("amount", amount, 1, MAX_AMOUNT, "tokens")
        capacity = amount + whole("rollover", rollover, 0, MAX_AMOUNT, "tokens")
        period, kept = -(-calendar.longest_ms // 1000), check_floors(floors)
        return cls(name, capacity, amount, period, calendar, soft, kept, check_alerts(alerts))

    @classmethod
    def concurrent(
        cls,
        name: str,
        slots: int,
        *,
        ttl: int = 60,
        max_hold: int | None = None,
        soft: bool = False,
        floors: Mapping[str, float] | None = None,
    ) -> Limit:
        """Return a limit of ``slots`` calls in flight at once, over all processes.

        An acquire takes a slot and holds it until its lease ends, also if its cost does not name the limit. The holder
        renews it meanwhile. If it dies, the slot comes back by itself within ``ttl``.

        >>> Limit.concurrent("parallel", 10, ttl=60)
        Limit.concurrent(name='parallel', slots=10, ttl=60)

        Args:
            name: The name of the limit.
            slots: How many can be taken at once, at most 10,000.
            ttl: The seconds after which a slot comes back that nobody renews. It is renewed after a third of that.
            max_hold: The seconds for which a slot can be held at most, so that a call that hangs does not keep it for
                ever; None for as long as the call takes.
            soft: Whether it only counts, and never refuses.
            floors: By priority, the part of the slots that requests of it leave untouched.
        """
        ttl = whole("ttl", ttl, 1, MAX_TTL_SECONDS, "seconds")
        held = 0 if max_hold is None else whole("max_hold", max_hold, 1, MAX_PERIOD_SECONDS, "seconds")
        return cls(name, slots, slots, ttl, None, soft, check_floors(floors), ttl=ttl, max_hold=held)

    def with_schedule(self, schedule: Iterable[ScheduleEntry]) -> Limit:
        """Return the limit with other numbers at certain times; without any for an empty list.

        The first entry of ``schedule`` whose pattern matches is in force, the limit itself while none does. Where that
        changes, a raise keeps the tokens that there are, and a cut clamps them. Raise `ValidationError` for an entry
        that is never in force because an earlier one matches whenever it does.
        """
        return replace(self, schedule=check_new_schedule(schedule))

    def with_reset_schedule(self, reset_schedule: Iterable[Calendar]) -> Limit:
        """Return the quota with other windows: those that the one entry of ``reset_schedule`` begins.

        `ScheduleEntry.reset` makes it; one cron expression can name several times.
        """
        entries = tuple(reset_schedule)
        if self.calendar is None:
            raise ValidationError("reset_schedule", entries, "is for a quota; make one with Limit.quota(cron=...)")
        if len(entries) != 1:
            raise ValidationError("reset_schedule", entries, "must hold one entry; join the times in one expression")
        found = Limit.quota(self.name, self.refill_amount, cron=entries[0].cron, tz=entries[0].tz)
        return replace(self, calendar=found.calendar, refill_period_seconds=found.refill_period_seconds)

    def in_force(self, instant_ms: int) -> Limit:
        """Return what the limit is at an instant, in milliseconds since the epoch, without its schedule."""
        if not self.schedule:
            return self
        whole("instant_ms", instant_ms, -_MOST_MS // 5, _MOST_MS, "milliseconds")
        entry = find_active(self.schedule, instant_ms)
        return replace(self, schedule=()) if entry is None else self._apply(entry)

    def states(self) -> list[Limit]:
        """Return all that the limit can be by its schedule."""
        return [self, *map(self._apply, self.schedule)]

    def _apply(self, entry: ScheduleEntry) -> Limit:
        plain = replace(self, schedule=())
        if entry.scale is not None:
            return plain.scale(entry.scale)
        numbers = {field: getattr(entry, field) for field in _REQUIRED[1:] if getattr(entry, field) is not None}
        if self.ttl and numbers.keys() != {"capacity"}:
            raise ValidationError("schedule", entry.text, "can only change the slots of a limit of them, or scale it")
        if self.calendar is not None:
            if numbers.keys() != {"capacity"}:
                raise ValidationError("schedule", entry.text, "can only change the capacity of a quota, or scale it")
            amount = whole("capacity", entry.capacity, 1, MAX_AMOUNT, "tokens")
            numbers = {"capacity": amount + self.rollover, "refill_amount": amount}
        return replace(plain, **numbers)

    def scale(self, factor: float) -> Limit:
        """Return the limit with its capacity and its refill multiplied; the capacity is rounded down, to 1 at least.

        >>> Limit.per_minute("rpm", 5).scale(0.5)
        Limit(name='rpm', capacity=2, refill_amount=2, refill_period_seconds=48)
        """
        from fractions import Fraction

        check_factor(factor)
        part = Fraction(repr(float(factor)))
        capacity, amount = (max(1, int(number * part)) for number in (self.capacity, self.refill_amount))
        rate = Fraction(self.refill_amount, self.refill_period_seconds) * part
        times = max(1, self.refill_period_seconds // rate.denominator)
        exact = rate.denominator <= MAX_PERIOD_SECONDS and rate.numerator * times <= MAX_AMOUNT
        period = self.refill_period_seconds
        if self.calendar is None and self.refill_amount * part != amount and exact:
            amount, period = rate.numerator * times, rate.denominator * times
        return replace(self, capacity=capacity, refill_amount=amount, refill_period_seconds=period)

    def __repr__(self) -> str:
        made_by, shown = "Limit", {field: getattr(self, field) for field in _REQUIRED}
        if self.calendar is not None:
            made_by, shown = "Limit.quota", {"name": self.name, "amount": self.refill_amount}
            shown |= {"every": self.calendar.text, "rollover": self.rollover}
        if self.ttl:
            made_by, shown = "Limit.concurrent", {"name": self.name, "slots": self.capacity}
            shown |= {"ttl": self.ttl, "max_hold": self.max_hold}
        shown |= {"soft": self.soft, "floors": dict(self.floors), "alerts": self.alerts, "schedule": self.schedule}
        fields = ", ".join(f"{field}={value!r}" for field, value in shown.items() if value)
        return f"{made_by}({fields})"

    def floor(self, priority: str | None) -> float:
        """Return the part of the capacity that requests of a priority leave untouched; 0 for one without a floor."""
        return dict(self.floors).get(priority or "", 0.0)

    def begin_window(self, start_ms: int | None) -> Limit:
        """Return the limit as a bucket has it whose window has begun with its first use; any other as it is."""
        calendar = None if self.calendar is None else self.calendar.begin(start_ms)
        return self if calendar is self.calendar else replace(self, calendar=calendar)

    @property
    def kind(self) -> str:
        """``rate``, ``quota`` or ``concurrency``."""
        if self.ttl:
            return "concurrency"
        return "rate" if self.calendar is None else "quota"

    @property
    def is_concurrency(self) -> bool:
        """Whether it limits how many are in flight at once."""
        return self.ttl > 0

    @property
    def is_quota(self) -> bool:
        """Whether it is an allowance per window."""
        return self.calendar is not None

    @property
    def reset_schedule(self) -> tuple[Calendar, ...]:
        """The cron expression that begins the windows of a quota, with ``cron`` and ``tz``; none for other limits."""
        return (self.calendar,) if self.calendar is not None and self.calendar.cron else ()

    @property
    def reset_after_seconds(self) -> int | None:
        """The length of the windows of a quota that begin with their first use; None for other limits."""
        first_use = self.calendar is not None and self.calendar.unit == names.FIRST_USE
        return self.refill_period_seconds if first_use else None

    @property
    def rollover(self) -> int:
        """Return the tokens that a quota keeps beyond the allowance of one window; 0 for a rate."""
        return 0 if self.calendar is None else self.capacity - self.refill_amount

    @property
    def refill_rate(self) -> float:
        """Tokens a second, for display."""
        return self.refill_amount / self.refill_period_seconds

    @property
    def time_to_fill_ms(self) -> int:
        """Milliseconds from empty to full, rounded up."""
        return -(-self.capacity * self.refill_period_seconds * 1000 // self.refill_amount)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name; those that only some limits have are left out of the others."""
        data = {field: getattr(self, field) for field in _REQUIRED}
        if self.calendar is not None:
            data["calendar"] = self.calendar.text
        data |= {"soft": self.soft, "floors": dict(self.floors), "alerts": list(self.alerts)}
        data |= {"schedule": [entry.to_dict() for entry in self.schedule], "ttl": self.ttl, "max_hold": self.max_hold}
        return {field: value for field, value in data.items() if value}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Limit:
        """Return the limit of a dictionary made by `to_dict`. Raise `ValidationError` if a field is missing."""
        if not isinstance(data, Mapping):
            raise ValidationError("limit", data, "must be a dictionary as to_dict makes it")
        missing = set(_REQUIRED) - data.keys()
        if missing:
            raise ValidationError("limit", data, f"lacks {', '.join(sorted(missing))}")
        given = {field: data[field] for field in (*_REQUIRED, "soft") if field in data}
        if data.get("calendar") is not None:
            given["calendar"] = Calendar.parse(names.text(data["calendar"], "calendar"))
        given |= {"floors": check_floors(data.get("floors")), "alerts": check_alerts(data.get("alerts"))}
        given |= {field: data[field] for field in ("ttl", "max_hold") if data.get(field) is not None}
        return cls(**given, schedule=read_schedule(data.get("schedule") or ()))

    @classmethod
    def from_bucket_state(cls, state: Any) -> Limit:
        """Return the limit that a bucket, a `BucketState`, was last written under, as far as the bucket knows it."""
        capacity, amount = state.capacity_milli // 1000, state.refill_amount_milli // 1000
        if state.ttl_ms:
            return cls.concurrent(state.limit_name, capacity, ttl=state.ttl_ms // 1000)
        if state.calendar is None:
            return cls(state.limit_name, capacity, amount, state.refill_period_ms // 1000)
        return cls.quota(state.limit_name, amount, every=state.calendar, rollover=capacity - amount)


def check_limits(limits: object) -> tuple[Limit, ...]:
    """Return the limits sorted by name. Raise `ValidationError` unless there is one at least and no name twice."""
    if isinstance(limits, Limit):
        raise ValidationError("limits", limits, "must be a list of limits; put brackets around it")
    try:
        given: tuple[object, ...] = tuple(limits)  # type: ignore[arg-type]  # what the except is for
    except TypeError:
        raise ValidationError("limits", limits, "must be a list of Limit values") from None
    if not given:
        raise ValidationError("limits", limits, "must hold at least one limit; delete stored limits instead")
    by_name: dict[str, Limit] = {}
    for limit in given:
        if not isinstance(limit, Limit):
            raise ValidationError("limits", limit, "must be a Limit, e.g. Limit.per_minute('rpm', 100)")
        if limit.name in by_name:
            raise ValidationError("limits", limit.name, "names a limit twice")
        by_name[limit.name] = limit.with_schedule(limit.schedule) if limit.schedule else limit
    return tuple(by_name[name] for name in sorted(by_name))
