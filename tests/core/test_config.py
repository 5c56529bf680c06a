"""Which limits are in force, and who stands above whom."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from zae_limiter import Access, Limit, ValidationError
from zae_limiter.core.config import CUSTOM, SOURCES, Config, resolve
from zae_limiter.core.names import MAX_DEPTH, check_ancestry

LEVELS = st.lists(
    st.builds(
        Config,
        limits=st.none() | st.just(()) | st.tuples(st.just(Limit.per_minute("rpm", 1))),
        version=st.integers(0, 10**6),
        access=st.none() | st.sampled_from(Access),
        cascade=st.none() | st.booleans(),
        changed_ms=st.integers(0, 10**6),
    ),
    min_size=4,
    max_size=4,
)


@given(LEVELS)
def test_the_most_specific_level_that_says_something_wins(
    levels: list[Config],
) -> None:
    found = resolve(levels)
    speaking = [source for source, level in zip(SOURCES, levels, strict=True) if level.limits]
    assert found.source == (speaking[0] if speaking else None)
    assert found.limits == (levels[SOURCES.index(speaking[0])][0] if speaking else None)
    switches = [(level.access, source) for source, level in zip(SOURCES, levels, strict=True) if level.access]
    assert found.access == (switches[0] if switches else None)
    cascades = [level.cascade for level in levels if level.cascade is not None]
    assert found.cascade == (cascades[0] if cascades else None)


@given(LEVELS, st.integers(0, 3), st.integers(1, 100))
def test_a_change_at_any_level_raises_the_version(levels: list[Config], place: int, by: int) -> None:
    """Also a change that hides or uncovers another level: versions only rise."""
    before = levels[place]
    for changed in (before.limits, None, (Limit.per_minute("tpm", 5),)):
        after = [*levels[:place], before._replace(limits=changed, version=before.version + by), *levels[place + 1 :]]
        assert resolve(after).version > resolve(levels).version


@given(LEVELS)
def test_limits_are_in_force_since_the_latest_change_of_those_that_decide(levels: list[Config]) -> None:
    """The level they come from decides, and the more specific ones, which have none: one may have been deleted."""
    speaking = [place for place, level in enumerate(levels) if level.limits]
    deciding = levels[: speaking[0] + 1] if speaking else levels
    *empty, last = deciding
    assert resolve(levels).since == {
        limit.name: max([last.since.get(limit.name, last.changed_ms), *(level.changed_ms for level in empty)])
        for limit in last.limits or ()
    }
    defaults = resolve([Config(), Config(), *levels[2:]])
    assert resolve(levels[:2], defaults) == resolve(levels)


def test_levels_of_the_entity_itself_are_custom() -> None:
    assert SOURCES == ("entity", "entity_default", "resource", "system")
    assert set(SOURCES[:2]) == CUSTOM


def test_a_tree_may_be_eight_levels_deep() -> None:
    ancestors = [f"level-{number}" for number in range(MAX_DEPTH)]
    check_ancestry("key", [])
    check_ancestry("key", ancestors[: MAX_DEPTH - 1])
    with pytest.raises(ValidationError, match="deeper than 8 levels: level-0 -> level-1"):
        check_ancestry("key", ancestors)


@given(st.lists(st.text(min_size=1), min_size=1, max_size=6, unique=True), st.integers(0, 5))
def test_nobody_is_above_himself(ancestors: list[str], place: int) -> None:
    itself = ancestors[place % len(ancestors)]
    with pytest.raises(ValidationError, match="would close a cycle") as caught:
        check_ancestry(itself, ancestors)
    assert caught.value.field == "parent_id"
