"""Prefetch: what becomes of corrections and of grants that are counted, whatever happens around their write."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest

from tests.limiter.test_prefetch import KEY, MODEL, RPS, Client
from tests.support.virtual_time import Distant, VirtualLoop, run_virtually
from zae_limiter import CapacityExceeded, Limit, RateLimiter, RateLimitExceeded, Repository
from zae_limiter.limiter.coalescer import PendingCharge
from zae_limiter.limiter.planning import UNKNOWN, Freshness
from zae_limiter.limiter.prefetch.bucket import PrefetchedBucket
from zae_limiter.limiter.prefetch.prefetcher import Prefetcher
from zae_limiter.runtime.blocking import ThreadCaller
from zae_limiter.runtime.housekeeper import Housekeeper
from zae_limiter.stores.memory import MemoryStore

if TYPE_CHECKING:
    from zae_limiter.limiter.grant import Grant


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw in the calling thread: while another thread writes a bucket, acquires are exact and settle at once."""
    monkeypatch.setattr(ThreadCaller, "call", lambda _, work: work())
    monkeypatch.setattr(Housekeeper, "schedule", lambda *_: None)


def prefetcher_of(client: Client) -> Prefetcher:
    prefetcher = client.limiter._inner._prefetcher
    assert prefetcher is not None
    return prefetcher


def only_bucket(client: Client) -> PrefetchedBucket:
    (bucket,) = prefetcher_of(client).active()
    return bucket


def count_grants(client: Client) -> int:
    """Take one token after the other at one instant, until there is none."""
    granted = 0
    try:
        while True:
            client.take().exit()
            granted += 1
    except RateLimitExceeded:
        return granted


@pytest.mark.parametrize("leases", [3, 10])
def test_a_debt_is_not_paid_by_give_backs_that_are_worth_nothing(leases: int) -> None:
    """Of leases of long ago: the bucket has been full since. They are corrected by the same write as the debt."""
    left = []
    for prefetch in (0.0, 0.5):
        client = Client(RPS, prefetch=prefetch)
        old = []
        for _ in range(leases):  # each of another draw
            client.heat()
            old.append(client.take({"rps": 100}))
            client.clock.advance_ms(600)
        client.heat()
        client.limiter.flush()
        client.clock.advance_ms(2_000)  # it is full
        client.heat()
        new, others = client.take(), []
        for _ in range(4):
            client.heat()
            client.limiter.flush()
            others.append(client.take({"rps": 2}))
        before = client.store.commits
        new.adjust(rps=100 * leases)
        for lease in old:
            lease.release(rps=100)
        for lease in others:
            lease.release(rps=1)
        for lease in (*old, *others, new):
            lease.exit()
        assert (client.store.commits == before) == bool(prefetch)
        client.limiter.flush()
        left.append(count_grants(client))
    assert left[1] <= left[0] <= 1_000 - 100 * leases


@pytest.mark.parametrize(
    ("on_error", "tokens"),
    [("give_back", 0), ("keep", 6), ({"rps": 2}, 2), ({"rps": 40}, 40)],
    ids=repr,
)
@pytest.mark.parametrize("settled", [False, True])
def test_a_call_that_fails_is_charged_as_on_error_says(on_error: Any, tokens: int, settled: bool) -> None:
    """Of tokens that were drawn in advance, at both levels: nothing is written before the next draw."""
    client = Client(Limit.per_day("rps", 100_000))
    client.join_organisation()
    client.heat()
    before = client.store.commits
    with pytest.raises(ZeroDivisionError), client.limiter.acquire(KEY, MODEL, {"rps": 5}, on_error=on_error) as lease:
        lease.adjust(rps=1)
        if settled:
            lease.settle(rps=7)
        raise ZeroDivisionError
    assert client.store.commits == before
    client.limiter.flush()
    assert lease.settled
    states = client.limiter.get_buckets(KEY) + client.limiter.get_buckets("org")
    assert [state.total_consumed_milli for state in states] == [(30 + (7 if settled else tokens)) * 1_000] * 2


def test_usage_that_is_settled_replaces_corrections_before_they_are_written() -> None:
    client = Client(Limit.per_day("rps", 100_000))
    client.heat()
    lease = client.take({"rps": 5})
    lease.adjust(rps=100)
    lease.settle(rps=50)
    lease.settle(rps=3)
    lease.exit(final=False)
    lease.settle(rps=9)
    client.limiter.flush()
    lease.settle(rps=4)
    client.limiter.flush()
    (state,) = client.limiter.get_buckets(KEY)
    assert state.total_consumed_milli == 34_000


def test_what_a_write_did_not_settle_after_all_is_scheduled_anew() -> None:
    client = Client(Limit.per_hour("rps", 100))
    client.heat()
    lease = client.take({"rps": 5})
    client.limiter.flush()
    client.take({"rps": 60}, exact=True).exit()
    lease.adjust(rps=50)
    lease.exit()
    bucket, prefetcher = only_bucket(client), prefetcher_of(client)
    write = bucket.begin(object())
    assert write is not None
    too_much: PendingCharge[Grant] = PendingCharge({"rps": 10**9}, prefetcher.draws.backend.deadline())
    now_ms = client.clock.now_ms()
    assert prefetcher.draws._plan_commit(bucket.chain, [too_much], now_ms, Freshness.REMEMBERED) is UNKNOWN
    client.clock.advance_ms(501)
    assert prefetcher.keep_up() is None, "the corrections are in hand"
    bucket.end(write)
    assert prefetcher._due_ms <= client.clock.now_ms()
    prefetcher.keep_up()
    assert lease.settled


def test_a_write_is_ended_once() -> None:
    """By whoever takes over from a closed event loop; what is left of the loop comes later."""
    client = Client(RPS)
    client.heat()
    bucket, loop = only_bucket(client), asyncio.new_event_loop()
    stale = bucket.begin(loop)
    assert stale is not None
    assert bucket.begin(object()) is None
    loop.close()
    write = bucket.begin(object())
    assert write is not None
    bucket.end(stale)
    assert bucket.write is not None
    bucket.end(write)
    assert bucket.write is None


async def ask_beside_the_housekeeper() -> tuple[int, int]:
    """Return how many grants there were, and how many the usage has counted."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    shared, granted = MemoryStore(loop), 0
    await Repository(shared).set_system_defaults([RPS])
    limiter = RateLimiter(Repository(Distant(shared, random.Random(1))), prefetch=0.5)
    assert limiter._prefetcher is not None

    async def ask(times: int) -> None:
        nonlocal granted
        for _ in range(times):
            async with limiter.acquire(KEY, MODEL, {"rps": 1}):
                granted += 1
            await asyncio.sleep(0.001)

    for _ in range(8):
        await ask(100)
        later_ms = shared.clock.now_ms() + 10_000
        await asyncio.gather(limiter._prefetcher.flush(due_ms=later_ms), ask(20))
    await limiter.close()
    ((snapshot,), _) = await Repository(shared).get_usage_snapshots(KEY, window_type="hourly")
    assert snapshot.counters == {"rps": granted}
    return granted, snapshot.total_events


def test_grants_beside_the_write_of_the_housekeeper_are_counted() -> None:
    granted, counted = run_virtually(ask_beside_the_housekeeper())
    assert counted == granted


def test_own_debt_of_a_level_that_nothing_is_taken_of_is_seen() -> None:
    client, cost = Client(RPS), {"rps": 1, "tpm": 0}
    client.join_organisation(Limit.per_minute("tpm", 1_000))
    client.heat(cost=cost)
    lease = client.take(cost)
    lease.adjust(tpm=5_000)
    lease.exit()
    assert client.limiter.available("org", MODEL) == {"tpm": -4_000}
    org = next(each for each in prefetcher_of(client).active() if "tpm" in each.names)
    assert org.take(cost, client.clock.now_ms()) is None


def test_what_a_lease_owes_is_not_set_off_against_what_another_one_gives_back() -> None:
    """Both have taken from one draw; the bucket was reset since, so that what is given back is worth nothing."""
    left = []
    for prefetch in (0.0, 0.5):
        client = Client(RPS, prefetch=prefetch)
        client.heat()
        owes, returns = client.take({"rps": 10}), client.take({"rps": 10})
        client.limiter.flush()
        client.limiter.reset_bucket(KEY, MODEL)
        client.take({"rps": 500}, exact=True).exit()
        owes.adjust(rps=10)
        returns.release(rps=10)
        owes.exit()
        returns.exit()
        client.limiter.flush()
        left.append(client.limiter.available(KEY, MODEL))
    assert left == [{"rps": 490}] * 2


def test_a_look_with_an_older_instant_owes_as_of_the_newest() -> None:
    client, cost = Client(RPS), {"rps": 1}
    client.join_organisation(Limit.per_second("tpm", 1_000))
    client.heat(cost=cost)
    lease = client.take(cost)
    lease.adjust(tpm=1_000)
    lease.exit()
    org = next(each for each in prefetcher_of(client).active() if "tpm" in each.names)
    assert org.take(cost, client.clock.now_ms() - 200) is not None
    client.limiter.flush()
    assert client.limiter.available("org", MODEL) == {"tpm": 0}


def test_limits_that_are_gone_by_the_time_of_the_grant_have_nothing_taken_of_them() -> None:
    client = Client(RPS)
    client.heat()
    bucket = only_bucket(client)
    taken = bucket.take_across({"gone": 1_000}, client.clock.now_ms())
    assert taken is not None
    taken.settle({"gone": 5_000})
    taken.undo()
    assert taken.is_settled


def test_what_is_available_or_asked_for_at_once_is_never_above_the_capacity() -> None:
    client = Client(RPS)
    client.heat()
    client.clock.advance_ms(300)
    assert client.held > 0
    assert client.limiter.available(KEY, MODEL) == {"rps": 1_000}
    with pytest.raises(CapacityExceeded):
        client.take({"rps": 1_001})


def test_all_tokens_of_a_draw_go_back_when_it_is_as_old_as_they_are_kept() -> None:
    client = Client(Limit.per_second("rps", 100))
    client.heat()
    (batch,) = only_bucket(client).batches[-1:]
    drawn_ms = min(advance.drawn_ms for advance in batch.advances.values())
    assert batch.until_ms == drawn_ms + 500
    assert batch.grantable(batch.until_ms)["rps"] > 0
    assert not batch.grantable(batch.until_ms + 1)
    client.clock.advance_ms(batch.until_ms + 1 - client.clock.now_ms())
    assert client.held == 0
