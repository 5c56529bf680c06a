"""A change at an entity reaches every process with its next write, though all of them have cached the old config."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import pytest

from tests.support.acquiring import granted, take
from tests.support.backends import PREFETCHING, Backend
from zae_limiter import Limit, RateLimiter, RateLimiterUnavailable, ResourceDisabled
from zae_limiter.testing import Fault, FaultyStore, Harness

Change: TypeAlias = Callable[[RateLimiter], Awaitable[object]]

HOURLY = [Limit.per_hour("t", 100)]
CUT = [Limit.per_hour("t", 20)]

SWITCHES: dict[str, Change] = {
    "for all resources": lambda limiter: limiter.disable_entity("key"),
    "for one": lambda limiter: limiter.disable_entity("key", "gpt-4"),
    "with limits": lambda limiter: limiter.set_limits("key", HOURLY, disabled=True),
    "above": lambda limiter: limiter.disable_entity("org"),
}
CUTS: dict[str, Change] = {
    "for all resources": lambda limiter: limiter.set_limits("key", CUT),
    "for one": lambda limiter: limiter.set_limits("key", CUT, "gpt-4"),
    "deleted": lambda limiter: limiter.delete_limits("key"),
    "above": lambda limiter: limiter.set_limits("org", CUT),
}


async def family(harness: Harness) -> tuple[RateLimiter, list[RateLimiter]]:
    """The limiter of an administrator and those of three processes, which have charged a key and its organisation."""
    admin = harness.limiter()
    await admin.set_system_defaults(CUT)
    await admin.create_entity("org")
    await admin.create_entity("key", parent_id="org", cascade=True)
    for entity_id in ("org", "key"):
        await admin.set_limits(entity_id, HOURLY)
    processes = [harness.limiter() for _ in range(3)]
    for limiter in processes:
        await take(limiter, {"t": 1})
    return admin, processes


@pytest.mark.parametrize("disable", SWITCHES.values(), ids=SWITCHES)
async def test_nothing_is_granted_after_an_entity_was_disabled(harness: Harness, disable: Change) -> None:
    admin, processes = await family(harness)
    await disable(admin)
    for limiter in processes:
        for _ in range(2):
            with pytest.raises(ResourceDisabled):
                await take(limiter, {"t": 1})


NEW = {**SWITCHES, "recreated": lambda limiter: recreate(limiter)}
del NEW["for one"]


async def recreate(limiter: RateLimiter) -> None:
    """Delete the key and create it again, disabled."""
    await limiter.delete_entity("key")
    await limiter.create_entity("key", parent_id="org", cascade=True)
    await limiter.disable_entity("key")


@pytest.mark.parametrize("resources", [["gpt-4"], ["claude"], ["gpt-4", "claude"], ["claude", "gemini"]], ids=str)
@pytest.mark.parametrize("disable", NEW.values(), ids=NEW)
async def test_nothing_is_granted_on_a_resource_without_a_bucket(
    harness: Harness, disable: Change, resources: list[str]
) -> None:
    """Two seconds after the processes have read the config, which they keep for a minute."""
    admin, processes = await family(harness)
    harness.clock.advance(2)
    await disable(admin)
    for limiter in processes:
        for _ in range(2):
            with pytest.raises(ResourceDisabled):
                async with limiter.acquire("key", {name: {"t": 1} for name in resources}):
                    pass


@pytest.mark.parametrize("resource", ["gpt-4", "claude"])
async def test_an_entity_that_was_created_again_has_its_new_limits(harness: Harness, resource: str) -> None:
    admin, processes = await family(harness)
    harness.clock.advance(2)
    await admin.delete_entity("key")
    await admin.create_entity("key")
    await admin.set_limits("key", [Limit.per_hour("t", 2)])
    grants = [await granted(limiter, {"t": 1}, resource=resource) for _ in range(3) for limiter in processes]
    assert sum(grants) == 2


async def test_a_process_that_refused_an_entity_learns_from_its_config_that_it_is_enabled_again(
    harness: Harness,
) -> None:
    """As the pages on the config hierarchy and on policies say."""
    admin, (refused, *others) = await family(harness)
    await admin.disable_entity("key")
    with pytest.raises(ResourceDisabled):
        await take(refused, {"t": 1})
    await admin.enable_entity("key")
    for limiter in others:
        await take(limiter, {"t": 1})
    harness.clock.advance_ms(59_000)
    with pytest.raises(ResourceDisabled):
        await take(refused, {"t": 1})
    harness.clock.advance_ms(1_001)
    await take(refused, {"t": 1})


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
async def test_a_cut_limit_is_in_force_with_the_next_write(harness: Harness, cut: Change) -> None:
    admin, processes = await family(harness)
    await cut(admin)
    grants = [await granted(limiter, {"t": 1}) for _ in range(10) for limiter in processes]
    assert sum(grants) == 20


async def test_limits_given_with_the_call_do_not_keep_a_disabled_entity_going(harness: Harness) -> None:
    admin, processes = await family(harness)
    for limiter in processes:
        await take(limiter, {"t": 1}, limits=[Limit.per_hour("t", 50)])
    await admin.disable_entity("key")
    for limiter in processes:
        with pytest.raises(ResourceDisabled):
            await take(limiter, {"t": 1}, limits=[Limit.per_hour("t", 50)])


async def test_an_entity_that_is_enabled_again_goes_on_where_it_was(harness: Harness) -> None:
    admin, processes = await family(harness)
    await admin.disable_entity("key")
    await admin.enable_entity("key")
    await admin.clear_entity_disabled("key")
    for limiter in processes:
        assert await limiter.available("key", "gpt-4") == {"t": 97}, "a switch takes nothing"
    assert (await take(processes[0], {"t": 97})).available == {"t": 0}


async def test_every_process_charges_a_new_parent_with_its_next_write(harness: Harness) -> None:
    admin, processes = await family(harness)
    await admin.create_entity("other")
    await admin.set_limits("other", HOURLY)
    await admin.update_entity("key", parent_id="other")
    for limiter in processes:
        await take(limiter, {"t": 1})
    assert await admin.available("other", "gpt-4") == {"t": 97}
    assert await admin.available("org", "gpt-4") == {"t": 97}


async def test_a_switch_that_could_not_be_announced_is_announced_when_it_is_set_again(harness: Harness) -> None:
    admin, (process, *_) = await family(harness)
    faulty = FaultyStore(harness.store())
    faulty.inject(Fault.FAIL_BEFORE, verb="query")
    with pytest.raises(RateLimiterUnavailable):
        await harness.limiter(faulty).disable_entity("key")
    await admin.disable_entity("key")
    with pytest.raises(ResourceDisabled):
        await take(process, {"t": 1})


async def test_a_lease_of_a_disabled_entity_is_settled(harness: Harness) -> None:
    admin, (process, *_) = await family(harness)
    async with process.acquire("key", "gpt-4", {"t": 50}) as lease:
        await admin.disable_entity("key")
        await lease.adjust(t=-40)
    await admin.enable_entity("key")
    assert await admin.available("key", "gpt-4") == {"t": 87}


@pytest.mark.parametrize("backend", PREFETCHING, ids=str, indirect=True)
async def test_what_is_held_is_granted_no_longer_than_prefetch(backend: Backend, harness: Harness) -> None:
    """A disabled entity and a cut limit: within `prefetch` seconds at the latest, as the page on prefetch says."""
    limits = [Limit.per_second("t", 1_000, burst=100_000)]
    admin, process = harness.limiter(prefetch=0), harness.limiter()
    await admin.set_limits("key", limits)
    for _ in range(200):
        await take(process, {"t": 1})
        harness.clock.advance_ms(2)
    await admin.disable_entity("key")
    harness.clock.advance_ms(round(backend.prefetch * 1_000) + 1)
    with pytest.raises(ResourceDisabled):
        await take(process, {"t": 1})
    await process.flush()
    assert process.repository.get_backend_stats().prefetch.lost == 0, "what was left has gone back"
