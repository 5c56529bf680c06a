"""The records of shards: whatever is split, and whenever, those that exist are together the bucket."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings, strategies as st

from tests.conformance.shards import split
from tests.limiter.test_shards import begun, drain, levels, opened, still, store_of, take
from tests.support.charges import charge, create, migrate, settle
from zae_limiter import Limit
from zae_limiter.core.balances import Tokens, balance, wait_ms
from zae_limiter.core.change import Change
from zae_limiter.core.production import Rule
from zae_limiter.core.tokens import split_balance
from zae_limiter.records import bucket, keys, splitting
from zae_limiter.records.algebra import TTL, Committed, Conflict, Image, Key, Write, apply_write, holds
from zae_limiter.records.charging import write_of
from zae_limiter.records.level import BucketLimits, attribute, token_fields, token_limits_for
from zae_limiter.records.settlement import Receipt

NOW = 1_800_000_000_000
RULES = st.builds(Rule, st.integers(1, 10**7), st.integers(1, 10**6), st.integers(1, 10**8), st.just(0), st.none())
TREES = st.lists(st.integers(0, 10**6), max_size=40)


def grown(choices: list[int], most: int = 256) -> list[tuple[int, int]]:
    """A tree of splits: each choice splits one of the shards there are."""
    shards = [(0, 1)]
    for choice in choices:
        shard, count = shards.pop(choice % len(shards))
        shards += [(shard, 2 * count), (shard + count, 2 * count)] if count < most else [(shard, count)]
    return shards


def make(limits: list[Limit], *, lifetime_ms: int = 0, version: int | None = 3) -> BucketLimits:
    key, given = keys.bucket("ns", "key", "gpt-4"), tuple(limits)
    return BucketLimits(
        key, "ns", "key", "gpt-4", given, token_limits_for(given), "system", version, lifetime_ms, partition_writes=1000
    )


@given(RULES, TREES, st.integers(0, 2 * NOW))
def test_shares_make_up_the_whole(rule: Rule, choices: list[int], instant: int) -> None:
    shares = [rule.share(*shard) for shard in grown(choices)]
    assert sum(share.capacity for share in shares) == rule.capacity
    assert sum(share.produced(instant) for share in shares) == rule.produced(instant)


@given(RULES, TREES, st.integers(-(10**7), 10**7), st.integers(0, 10**6), st.integers(-1000, 10**7), st.data())
def test_a_split_mints_nothing_and_loses_nothing(
    rule: Rule, choices: list[int], tokens: int, age: int, later: int, data: st.DataObject
) -> None:
    shard, count = data.draw(st.sampled_from(grown(choices, most=128)))
    old, rf = rule.share(shard, count), NOW - age
    anchor = max(NOW, rf + 1)
    mine, other = (rule.share(index, 2 * count) for index in (shard, shard + count))
    change, at = Change(), token_fields("rpm")
    gift = split_balance(change, at, tokens, old, mine, (rf, anchor), NOW) - other.produced_between(anchor, NOW)
    write = write_of(change, keys.bucket("ns", "key", "gpt-4"), None)
    assert holds({at.tokens: tokens}, write.guards)
    left = apply_write({at.tokens: tokens}, write)
    assert left is not None
    balances = [Tokens(mine, left[at.tokens], anchor), Tokens(other, gift, anchor)]
    before = old.level(tokens, rf, NOW)
    assert sum(pot.level(NOW) for pot in balances) == before
    assert abs(balances[0].level(NOW) - balances[1].level(NOW)) <= 1
    together = sum(pot.level(NOW + later) for pot in balances)
    held = before + old.produced_between(NOW, NOW + later)
    if later >= 0:
        assert together <= min(old.capacity, held)
        assert together >= min(old.capacity, held) - 1, "at most one is lost, to two ceilings where there was one"


@given(RULES, TREES, st.data())
def test_the_promised_moment_is_exact_over_any_shards(rule: Rule, choices: list[int], data: st.DataObject) -> None:
    shares = [rule.share(*shard) for shard in grown(choices)]
    tokens = st.integers(-(10**15), 10**7)
    balances = [Tokens(share, data.draw(tokens), NOW - data.draw(st.integers(0, 10**5))) for share in shares]
    cost = data.draw(st.integers(1, rule.capacity))
    wait = wait_ms(balances, cost, NOW)
    assert balance(balances, NOW + wait) >= cost
    assert wait == 0 or balance(balances, NOW + wait - 1) < cost


def shards_of(before: BucketLimits, image: Image, now_ms: int) -> tuple[Image, Image]:
    first, second = splitting.split(before, image, now_ms)
    assert holds(image, first.guards)
    mine, other = apply_write(image, first), apply_write(None, second)
    assert mine is not None
    assert other is not None
    return bucket.inspect(first.key, mine), bucket.inspect(second.key, other)


def test_a_split_keeps_what_is_not_tokens() -> None:
    one = make([Limit.per_hour("rpm", 100), Limit.per_second("tpm", 7, burst=1001)], lifetime_ms=1000)
    image = apply_write(None, create(one, {"rpm": 3_000, "tpm": 1_000}, NOW))
    assert image is not None
    assert TTL in image
    mine, other = shards_of(one, image, NOW)
    for half in (mine, other):
        assert half["shard_count"] == 2
        assert half["cv"] == 3
        assert TTL not in half
        assert half["b_wcu_tk"] == half["b_wcu_cp"]
        assert {name: half[attribute(name, "cp")] for name in one.token_limits} == {"rpm": 100_000, "tpm": 1_001_000}
    assert [mine["b_rpm_tc"], other["b_rpm_tc"]] == [3_000, 0]
    assert [mine["GSI3SK"], other["GSI3SK"]] != [mine["GSI3SK"]] * 2
    assert other["entity_id"] == "key"


def test_who_has_not_seen_the_split_loses_the_race() -> None:
    one = make([Limit.per_hour("rpm", 100)])
    image = apply_write(None, create(one, {}, NOW))
    assert image is not None
    charged = Receipt.of(one, image, NOW, {})
    stale = [
        charge(one, image, {"rpm": 1_000}, NOW),
        settle(one, image, {"rpm": -1_000}, charged, NOW),
        settle(one, image, {"rpm": 1_000}, charged, NOW),
        migrate(one, image, {}, NOW),
        splitting.split(one, image, NOW)[0],
    ]
    mine, _ = shards_of(one, image, NOW)
    for write in stale:
        assert write is not None
        assert not holds(mine, write.guards)


class Table:
    """Records, and writers who have seen them at some time."""

    def __init__(self, one: BucketLimits) -> None:
        self.one = one
        made = apply_write(None, create(one, {}, NOW))
        assert made is not None
        self.images: dict[Key, Image] = {one.key: made}

    def commit(self, writes: list[Write]) -> bool:
        if not all(holds(self.images.get(write.key), write.guards) for write in writes):
            return False
        for write in writes:
            after = apply_write(self.images.get(write.key), write)
            assert after is not None
            self.images[write.key] = after
        return True

    def at(self, key: Key, image: Image) -> BucketLimits:
        return self.one.at(keys.parse_bucket_pk(key.pk).shard_id, image["shard_count"])

    def levels(self, now_ms: int) -> list[int]:
        return [pot.level(now_ms) for pot in bucket.stored_balances(list(self.images.items()), "rpm")]


@settings(max_examples=150)
@given(st.integers(0, 2**32))
def test_a_split_that_races_with_charges_never_mints(seed: int) -> None:
    """Writers act on what they saw long ago; whoever wins, what is granted is within the one bucket's law."""
    chance = random.Random(seed)
    limit = Limit.custom("rpm", capacity=chance.choice([3, 20, 100]), refill_amount=1, refill_period_seconds=1)
    table, now_ms, granted, asked = Table(make([limit])), NOW, 0, 0
    old = dict(table.images)
    for _ in range(60):
        now_ms += chance.choice([0, 0, 0, 100, 2500])
        key, image = chance.choice(list({**old}.items()))
        if chance.random() < 0.3:
            old = dict(table.images)
        cost = chance.randint(1, 1 + limit.capacity // 4)
        asked += cost
        if chance.random() < 0.15 and image["shard_count"] < 16:
            table.commit(splitting.split(table.at(key, image), image, now_ms))
        else:
            write = charge(table.at(key, image), image, {"rpm": cost * 1000}, now_ms)
            granted += cost * 1000 if write is not None and table.commit([write]) else 0
        made = Rule.of(limit).produced_between(NOW, now_ms)
        assert min(table.levels(now_ms)) >= 0, "a charge or a split takes what is there"
        assert sum(table.levels(now_ms)) + granted <= limit.capacity * 1000 + made
    assert sum(image["b_rpm_tc"] for image in table.images.values()) == granted


def test_debt_is_split_and_paid_by_both() -> None:
    one = make([Limit.per_second("rpm", 1, burst=10)])
    image = apply_write(None, create(one, {"rpm": 25_000}, NOW))
    assert image is not None
    mine, other = shards_of(one, image, NOW)
    balances = bucket.stored_balances([(one.key, mine), (one.at(1, 2).key, other)], "rpm")
    assert [pot.level(NOW) for pot in balances] == [-7_500, -7_500]
    assert wait_ms(balances, 1_000, NOW) == 16_000


def test_more_debt_meanwhile_is_seen_before_a_split() -> None:
    """Else the new shard would grant while the old one still owes."""
    one = make([Limit.per_second("rpm", 1, burst=10)])
    image = apply_write(None, create(one, {"rpm": 11_000}, NOW))
    assert image is not None
    owed = apply_write(image, settle(one, image, {"rpm": 50_000}, Receipt.of(one, image, NOW, {}), NOW))
    first, _ = splitting.split(one, image, NOW)
    assert not holds(owed, first.guards)


# Shards that are gone.


@pytest.mark.parametrize("blocking", [False, True], ids=["async", "blocking"])
@pytest.mark.parametrize("times", [1, 8])
def test_who_believes_in_shards_that_are_gone_finds_one_new_bucket(blocking: bool, times: int) -> None:
    harness = opened(blocking=blocking)

    async def work() -> None:
        first, second = await begun(harness, still(64), clients=2)
        await first.create_entity("key")
        await take(first, 1)
        await split(first, times)
        for limiter in (first, second):
            assert await take(limiter, 9) is None
        await second.delete_entity("key")
        assert await levels(second) == {}
        harness.clock.advance(2)  # until then it refuses by what it saw
        assert await take(first, 60) is None
        assert await drain(second) + await drain(first) == 4
        assert len(await levels(second)) == 1

    harness.run(work())


@pytest.mark.parametrize("blocking", [False, True], ids=["async", "blocking"])
@pytest.mark.parametrize("times", [1, 8])
def test_a_reset_fills_all_shards(blocking: bool, times: int) -> None:
    """Those that do not fit into one commit, too."""
    harness = opened(blocking=blocking)

    async def work() -> None:
        first, second = await begun(harness, still(64), clients=2)
        await take(first, 1)
        await split(first, times)
        for limiter in (first, second):
            assert await take(limiter, 9) is None
        assert (await second.reset_bucket("key", "gpt-4")).shards == 2**times
        assert len(await levels(second)) == 2**times
        harness.clock.advance(2)  # until then it refuses by what it saw
        assert await take(first, 60) is None
        assert await drain(second) + await drain(first) == 4

    harness.run(work())


@pytest.mark.parametrize("blocking", [False, True], ids=["async", "blocking"])
def test_a_split_during_a_reset_leaves_no_shard_over(blocking: bool) -> None:
    harness = opened(blocking=blocking)

    async def work() -> None:
        first, second = await begun(harness, still(100), times=1)
        assert await take(second, 4) is None
        store_of(first).before_commit = lambda: split(second)
        assert (await first.reset_bucket("key", "gpt-4")).shards == len(await levels(first)) > 2
        assert await drain(second) + await drain(first) == 100

    harness.run(work())


@pytest.mark.parametrize("blocking", [False, True], ids=["async", "blocking"])
def test_a_shard_that_is_left_over_is_not_counted(blocking: bool) -> None:
    harness = opened(blocking=blocking)

    async def work() -> None:
        first, second = await begun(harness, still(100), times=2)
        ns = await first._backend.ns(first._backend.deadline())
        await take(second, 1)
        await store_of(first).commit([Write(keys.bucket(ns, "key", "gpt-4"), delete=True)])
        third = harness.limiter()
        assert await drain(third) == 100
        assert await third.available("key", "gpt-4") == {"rpm": 0}
        assert await second.available("key", "gpt-4") == {"rpm": 0}
        assert await take(second, 30) is not None

    harness.run(work())


@pytest.mark.parametrize("blocking", [False, True], ids=["async", "blocking"])
def test_the_first_shard_never_expires_for_a_debt_of_before(blocking: bool) -> None:
    harness = opened(blocking=blocking)

    async def work() -> None:
        made = [harness.limiter(bucket_ttl_refill_multiplier=1) for _ in range(3)]
        await made[0].set_system_defaults([Limit.per_second("rpm", 1, burst=10)])
        leases = [limiter.acquire("key", "gpt-4", {"rpm": 1}) for limiter in made[:2]]
        for lease in leases:
            await lease.enter()
            await lease.adjust({"rpm": 50})
        await leases[0].exit()

        store = store_of(made[1])
        settled = store.commit

        async def commit(writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
            if not writes[0].put and not writes[0].add and writes[0].expires_at_ms:
                await split(made[2])
            return await settled(writes, timeout=timeout)

        store.commit = commit  # type: ignore[method-assign]  # to act between the settlement and what follows it
        await leases[1].exit()
        harness.clock.advance(300)
        assert sorted(await levels(made[2])) == [0, 1]

    harness.run(work())
