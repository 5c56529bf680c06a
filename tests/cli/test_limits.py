"""Limits and amounts as they are written on the command line."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, strategies as st

from zae_limiter import Limit
from zae_limiter.cli.arguments import parse_amount
from zae_limiter.cli.spelling import spell_limit, spell_rate
from zae_limiter.core.errors import spell_duration
from zae_limiter.core.kinds import parse_limit


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("tpm:100000", Limit.per_minute("tpm", 100_000)),
        ("tpm:100_000", Limit.per_minute("tpm", 100_000)),
        ("rpm:1000/min", Limit.per_minute("rpm", 1_000)),
        ("tpm:10000/min:15000", Limit.per_minute("tpm", 10_000, burst=15_000)),
        ("tpm:10000:15000", Limit.per_minute("tpm", 10_000, burst=15_000)),
        ("a.b-c:5/SEC", Limit.per_second("a.b-c", 5)),
        ("x:5/s", Limit.per_second("x", 5)),
        ("x:5/second", Limit.per_second("x", 5)),
        ("x:5/m", Limit.per_minute("x", 5)),
        ("x:5/minute", Limit.per_minute("x", 5)),
        ("x:5/h", Limit.per_hour("x", 5)),
        ("x:5/hour:9", Limit.per_hour("x", 5, burst=9)),
        ("x:5/d", Limit.per_day("x", 5)),
        ("x:5/day", Limit.per_day("x", 5)),
        ("x:10/30s", Limit.custom("x", 10, 10, 30)),
        ("x:10/5min:3", Limit.custom("x", 3, 10, 300)),
        ("x:10,batch=0,free=0.5,soft", Limit.per_minute("x", 10, soft=True, floors={"batch": 0, "free": 0.5})),
        ("x:10/day@UTC,at=09:00,alert=0.8", Limit.quota("x", 10, at="09:00", alerts=[0.8])),
        ("x:10/2 hours", Limit.custom("x", 10, 10, 7200)),
        ("x:10/concurrent", Limit.concurrent("x", 10)),
        ("x:10/concurrent,ttl=2min,max_hold=600", Limit.concurrent("x", 10, ttl=120, max_hold=600)),
        ("x:10/concurrent,soft,batch=0.5", Limit.concurrent("x", 10, soft=True, floors={"batch": 0.5})),
        ("x:10,ttl=0.5,max_hold=0.25", Limit.per_minute("x", 10, floors={"ttl": 0.5, "max_hold": 0.25})),
    ],
)
def test_limits(text: str, limit: Limit) -> None:
    assert parse_limit(text) == limit


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "''"),
        ("rpm", "'rpm'"),
        ("rpm:", "'rpm:'"),
        (":5", "':5'"),
        ("rpm:/min", "'rpm:/min'"),
        ("rpm:abc", "'abc'"),
        ("rpm:-5", "'-5'"),
        ("rpm:1.5", "'1.5'"),
        ("rpm:1__0", "'1__0'"),
        ("rpm:٣", "'٣'"),
        ("rpm:5/fortnight", "'fortnight'"),
        ("rpm:5/", "the period ''"),
        ("rpm:5/30", "'30'"),
        ("rpm:5/min:", "the burst ''"),
        ("rpm:5/min:x", "'x'"),
        ("rpm:5/min:6:7", "'6:7'"),
        ("rpm:0", "must be between 1"),
        ("rpm:5/0s", "must be between 1"),
        ("rpm:9999999999999", "must be between 1"),
        ("5rpm:1", "must start with a letter"),
        ("tpm:10,soft=1", "'soft=1' has a value, and 'soft' takes none"),
        ("tpm:10,soft=true", "'soft' takes none"),
        ("tpm:10,soft=0.5", "'soft' takes none"),
        ("tpm:10,soft=", "'soft' takes none"),
        ("tpm:10,softly", "'softly' is neither"),
        ("tpm:10,soft,soft", "'soft' is given twice"),
        ("tpm:10,at=09:00", "'at=09:00' is for a quota, not for a rate"),
        ("tpm:10/day,on=15", "'on=15' is for a quota, not for a rate"),
        ("tpm:10/day@UTC,at=09:00,at=10:00", "'at' is given twice"),
        ("tpm:10,batch=0.1,batch=0.2", "'batch' is given twice"),
        ("tpm:10,batch=1", "from 0 to below 1"),
        ("tpm:10,batch=nan", "from 0 to below 1"),
        ("x:/concurrent", "number of slots ''"),
        ("x:0/concurrent", "between 1 and 10000"),
        ("x:5/concurrent:9", "the period 'concurrent'"),
        ("x:5/concurrent,ttl=soon", "'ttl=soon' is not a time"),
        ("x:5/concurrent,ttl=0", "between 1"),
        ("x:5/concurrent,ttl=5,ttl=6", "'ttl' is given twice"),
        ("x:5/concurrent,max_hold=30", "must not be shorter than ttl"),
        ("x:5/concurrent,at=09:00", "'at=09:00' is for a quota, not for a limit of slots"),
        ("x:5/concurrent,alert=0.8", "is not for a concurrency limit"),
    ],
)
def test_a_wrong_limit_is_named_with_the_accepted_forms(text: str, part: str) -> None:
    with pytest.raises(ValueError, match="NAME:RATE") as error:
        parse_limit(text)
    assert repr(text) in str(error.value)
    assert part in str(error.value)
    assert "tpm:10000/min:15000" in str(error.value)


AMOUNTS = st.integers(1, 10**12)
UNITS = st.sampled_from([("s", 1), ("min", 60), ("h", 3600), ("d", 86_400)])


@given(AMOUNTS, AMOUNTS, UNITS)
def test_what_is_written_is_what_is_meant(rate: int, burst: int, unit: tuple[str, int]) -> None:
    assert parse_limit(f"x:{rate}/{unit[0]}:{burst}") == Limit("x", burst, rate, unit[1])


TTLS = st.integers(1, 86_400)


@given(st.integers(1, 10_000), TTLS, st.none() | TTLS)
def test_a_concurrency_limit_is_shown_as_it_is_written(slots: int, ttl: int, longer: int | None) -> None:
    limit = Limit.concurrent("x", slots, ttl=ttl, max_hold=None if longer is None else ttl + longer)
    assert parse_limit(f"x:{spell_rate(limit)}") == limit
    assert parse_limit(spell_limit(limit).replace(" ", ":", 1)) == limit


@given(st.text(st.characters(exclude_categories=["Nd", "Cs"])))
def test_text_without_a_number_is_refused_politely(text: str) -> None:
    with pytest.raises(ValueError, match="NAME:RATE"):
        parse_limit(text)


@pytest.mark.parametrize(("text", "amount"), [("rpm:1", 1), ("tpm:+1500", 1500), ("tpm:-200", -200), ("x:1_000", 1000)])
def test_amounts(text: str, amount: int) -> None:
    assert parse_amount(text) == (text.partition(":")[0], amount)


@pytest.mark.parametrize("text", ["", "rpm", "rpm:", ":1", "rpm:one", "rpm:1.5", "rpm:--1", "rpm:1:2"])
def test_a_wrong_amount_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="NAME:NUMBER") as error:
        parse_amount(text)
    assert repr(text) in str(error.value)


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        (Limit.per_second("x", 5), "5/s"),
        (Limit.per_minute("x", 10_000), "10,000/min"),
        (Limit.custom("x", 1, 10, 30), "10/30 s"),
        (Limit.custom("x", 1, 10, 90), "10/90 s"),
        (Limit.custom("x", 1, 10, 7200), "10/2 h"),
        (Limit.quota("x", 1_000, reset_after=timedelta(hours=5)), "1,000/5h@first-use"),
        (Limit.quota("x", 5, every=timedelta(minutes=90)), "5/90min@"),
        (Limit.quota("x", 5, every=timedelta(milliseconds=1_500)), "5/1500ms@"),
        (Limit.quota("x", 5, every="week", on="sunday"), "5/week@UTC,on=sunday"),
        (Limit.custom("x", 1, 10, 7 * 86_400), "10/7 day"),
        (Limit.concurrent("x", 10), "10/concurrent,ttl=60"),
        (Limit.concurrent("x", 5_000, ttl=7, max_hold=90), "5000/concurrent,ttl=7,max_hold=90"),
    ],
)
def test_rates_are_spelt(limit: Limit, text: str) -> None:
    assert spell_rate(limit) == text


def test_limits_are_spelt() -> None:
    assert spell_limit(Limit.per_minute("tpm", 10)) == "tpm 10/min"
    assert spell_limit(Limit.per_minute("tpm", 10, burst=1500)) == "tpm 10/min (burst 1,500)"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.001, "0.001 s"),
        (3.2, "3.2 s"),
        (59.9994, "59.999 s"),
        (60, "1 min"),
        (61.2, "1 min 2 s"),
        (3600, "1 h"),
        (86_399, "24 h"),
        (86_400, "1 d"),
        (90_001, "1 d 2 h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert spell_duration(seconds) == text
