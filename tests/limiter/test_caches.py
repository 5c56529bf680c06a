"""What a limiter remembers is bounded, and forgetting it hands nothing out anew."""

from __future__ import annotations

from typing import Any

from tests.support.acquiring import granted, take
from zae_limiter import Limit
from zae_limiter.testing import Harness

RPM = [Limit.per_minute("rpm", 100)]


def remembered(root: object) -> list[Any]:
    """Every object of ours that a limiter holds, the store and what it shares apart."""
    found: list[Any] = []
    seen, todo = set(), [root]
    while todo:
        each = todo.pop()
        if id(each) in seen or not type(each).__module__.startswith("zae_limiter.") or hasattr(each, "capabilities"):
            continue
        seen.add(id(each))
        found.append(each)
        todo += list(getattr(each, "__dict__", {}).values())
    return found


async def test_what_a_client_remembers_is_bounded(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults(RPM)
    bounded = [each for each in remembered(limiter) if hasattr(each, "_max_entries")]
    assert len(bounded) >= 3, "config, chains and sights"
    most = 10_000 if limiter.repository.capabilities.name == "memory" else 131_072
    assert max(each._max_entries for each in bounded) == most
    for each in bounded:
        each._max_entries = 10
    for number in range(60):
        lease = await take(limiter, {"rpm": 60}, f"key-{number}")
        assert lease.available == {"rpm": 40}
    shared = getattr(limiter.repository.store, "images", None)
    for each in remembered(limiter):
        for name, value in getattr(each, "__dict__", {}).items():
            if isinstance(value, (dict, list, set)) and value is not shared:
                assert len(value) <= 10, f"{type(each).__name__}.{name}"
    assert limiter.repository.get_cache_stats().size <= 10
    for number in range(60):
        assert not await granted(limiter, {"rpm": 41}, f"key-{number}"), "what is forgotten is not handed out anew"


async def test_an_entity_may_use_any_number_of_resources(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults(RPM)
    await limiter.set_limits("key-1", [Limit.per_minute("rpm", 7)], "model-99")
    for number in range(150):
        limits, _, source = await limiter.resolve_limits("key-1", f"model-{number}")
        assert limits is not None
        assert (limits[0].capacity, source) == ((7, "entity") if number == 99 else (100, "system"))
