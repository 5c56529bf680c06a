"""Two writes to one record as one."""

from __future__ import annotations

from typing import Any

from hypothesis import assume, given, strategies as st

from zae_limiter.records.algebra import NEVER, TTL, Key, Write, apply_write, compose, holds

KEY = Key("p", "s")
ATTRIBUTES = ("a", "b", "c")
numbers = st.integers(-5, 5)


@st.composite
def writes(draw: st.DrawFn) -> Write:
    """A write as they are made: no attribute is put and added to at once, guards are on numbers."""
    put = draw(st.dictionaries(st.sampled_from(ATTRIBUTES), numbers, max_size=2))
    add = draw(st.dictionaries(st.sampled_from(ATTRIBUTES), numbers, max_size=2))
    add = {attr: amount for attr, amount in add.items() if attr not in put}
    ends = st.tuples(numbers, numbers).map(lambda pair: (min(pair), max(pair)))
    guard = st.tuples(st.sampled_from(ATTRIBUTES), st.sampled_from(["=", "<=", ">", ">=", "<"]), numbers)
    between = st.tuples(st.sampled_from(ATTRIBUTES), st.just("between"), ends)
    guards: list[tuple[str, str, Any]] = draw(st.lists(guard | between, max_size=3))
    expires = draw(st.none() | st.sampled_from([0, 5_000, 9_000]))
    return Write(KEY, tuple(guards), put, add, (), expires)


@given(first=writes(), second=writes(), a=numbers, b=numbers, c=numbers, ttl=st.none() | st.integers(1, 10))
def test_it_does_what_both_do_one_after_the_other(
    first: Write, second: Write, a: int, b: int, c: int, ttl: int | None
) -> None:
    """Where the second holds for the image that it was planned from."""
    assume(first.expires_at_ms != NEVER or not second.expires_at_ms)  # then it may stay farther off
    image = {"a": a, "b": b, "c": c} | ({} if ttl is None else {TTL: ttl})
    middle = apply_write(image, first)
    planned = second._replace(
        guards=tuple(guard for guard in second.guards if guard[0] not in first.put or holds(middle, (guard,)))
    )
    both = compose(first, planned)
    assert apply_write(image, both) == apply_write(middle, planned)
    assert holds(image, both.guards) == (holds(image, first.guards) and holds(middle, planned.guards))
    assert not both.put.keys() & both.add.keys(), "a store cannot do both to one attribute"


def test_what_is_removed_and_put_again_stays() -> None:
    first, second = Write(KEY, remove=("a", "b")), Write(KEY, put={"a": 1}, remove=("c",))
    image = {"a": 7, "b": 8, "c": 9}
    assert apply_write(image, compose(first, second)) == {"a": 1}
