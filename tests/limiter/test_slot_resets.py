"""What becomes of held slots when a bucket is reset, and of a bucket when its slots are renewed."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.limiter.test_observers import Observed
from tests.limiter.test_slot_bounds import Watched
from tests.limiter.test_slot_leases import WHOSE, turn
from tests.support.waiting import until
from zae_limiter import Limit, RateLimiter, SlotLost, SyncRateLimiter, ValidationError
from zae_limiter.testing import Harness

LIMITS = [Limit.concurrent("parallel", 2, ttl=60), Limit.per_minute("rpm", 10)]


# Losses.


@pytest.mark.parametrize("names", [None, ["parallel"]], ids=["bucket", "limit"])
@pytest.mark.parametrize("adjusts", [False, True], ids=["as taken", "adjusted"])
@pytest.mark.parametrize("fails", [False, True], ids=["ends", "raises"])
async def test_a_loss_that_only_the_end_of_a_lease_notices_is_told(
    harness: Harness, caplog: pytest.LogCaptureFixture, names: list[str] | None, adjusts: bool, fails: bool
) -> None:
    scene, told = Observed(harness), list[object]()
    await scene.limiter.set_system_defaults(LIMITS)
    lease = scene.limiter.acquire("key-1", "gpt-4", {"rpm": 1}, on_lost=told.append)
    await lease.enter()
    await harness.limiter().reset_bucket("key-1", "gpt-4", names)
    if adjusts:
        await lease.adjust(rpm=1)
    with caplog.at_level(logging.WARNING, "zae_limiter"):
        await lease.exit(give_back=fails)
    assert lease.lost
    assert scene.told.lost == [SlotLost("key-1", "gpt-4", "parallel")]
    assert [vars(each)["zae_event"] for each in caplog.records] == ["lease.slot_lost"]
    await turn(harness)
    until(lambda: told, "the callback")
    assert told == [lease]


async def test_a_lease_of_several_resources_has_lost_what_any_of_them_has(harness: Harness) -> None:
    limiter, other = harness.limiter(), harness.limiter()
    await limiter.set_resource_defaults("tool", [Limit.per_minute("rpm", 10)])
    await limiter.set_resource_defaults("model", LIMITS)
    lease = limiter.acquire("key", {"tool": {"rpm": 1}, "model": {}})
    await lease.enter()
    assert (lease.holds_slots, lease.lost) == (True, False)
    await other.reset_bucket("key", "model")
    harness.clock.advance(20)
    await limiter.renew_slots()
    assert (lease.lost, lease.resource("model").lost) == (True, True)
    await lease.exit()
    assert lease.lost


async def _note(lease: object) -> None:
    """A callback that nobody would await."""


class _Noting:
    async def note(self, lease: object) -> None:
        """The same as a method."""


@pytest.mark.parametrize("on_lost", [_note, _Noting().note, "cancle", 5], ids=["function", "method", "text", "number"])
@pytest.mark.parametrize("kind", [RateLimiter, SyncRateLimiter])
def test_what_cannot_be_called_on_a_loss_is_refused(kind: Any, on_lost: Any) -> None:
    wanted = "must be a plain function that takes the lease"
    with pytest.raises(ValidationError, match=wanted) as wrong:
        kind("memory://").acquire(*WHOSE, {}, on_lost=on_lost)
    assert wrong.value.field == "on_lost"
    with pytest.raises(ValidationError, match=wanted):
        kind("memory://", on_lost=on_lost)


# Expiry.


@pytest.mark.parametrize("credited", [True, False], ids=["credit for ever", "no credit"])
async def test_a_renewal_lets_no_bucket_expire_that_has_credit_for_ever(harness: Harness, credited: bool) -> None:
    store = Watched(harness.store())
    limiter = harness.limiter(store)
    await limiter.set_system_defaults(LIMITS)
    async with limiter.acquire(*WHOSE, {"rpm": 1}):
        pass
    if credited:
        await limiter.top_up(*WHOSE, {"rpm": 1_000})
    lease = limiter.acquire(*WHOSE, {"rpm": 1})
    await lease.enter()
    store.written.clear()
    harness.clock.advance(20)
    await limiter.renew_slots()
    (renewal,) = [write for write in store.written if any(attr.startswith("s_parallel_") for attr in write.put)]
    assert (renewal.expires_at_ms is None) is credited
    if credited:  # the process is killed, and nobody asks for a year
        harness.clock.advance(400 * 86_400)
        assert (await harness.limiter().available(*WHOSE))["rpm"] >= 1_000
    await lease.exit()
