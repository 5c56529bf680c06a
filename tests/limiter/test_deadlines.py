"""``timeout`` is the deadline of the whole call: over resolving, lost races, several levels and the settlement."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import pytest

from zae_limiter import Limit, RateLimiter, RateLimiterUnavailable, Repository, Store
from zae_limiter.records.algebra import Committed, Conflict, Write
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.stores.opening import open_store
from zae_limiter.sync import BlockingRepository
from zae_limiter.testing import Fault, FaultyStore, Harness, ManualClock

T = TypeVar("T")

RPM = [Limit.per_hour("rpm", 100)]
TIMEOUT = 5.0


class SlowStore(FaultyStore):
    """Every call takes ``seconds`` of the clock, and answers nothing if that is more than it was given."""

    seconds = 0.0
    conflicts = 0
    """How many commits are answered with a conflict."""

    async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
        if self.conflicts:
            self.conflicts -= 1
            self.calls["commit"] += 1
            await self._delay("commit", self.seconds, timeout)
            keys = [write.key for write in writes]
            return Conflict(dict(zip(keys, await self.inner.read(keys), strict=True)))
        return await super().commit(writes, timeout=timeout)

    async def _call(self, verb: str, act: Callable[[], Awaitable[T]], timeout: float | None) -> T:
        await self._delay(verb, self.seconds, timeout)
        return await super()._call(verb, act, timeout)


class Scene:
    """A limiter over a slow store, and how much time its calls take."""

    def __init__(self, harness: Harness, *, side_by_side: bool = False, **options: Any) -> None:
        self.clock = harness.clock
        self.store = SlowStore(harness.store(), free_atomic_commit=False if side_by_side else None)
        self.repository = harness.repository(self.store, timeout=TIMEOUT, config_cache_ttl=60)
        self.limiter: RateLimiter = harness.limiter(self.repository, **options)
        self.clean: RateLimiter = harness.limiter()

    async def prepare(self) -> None:
        """A chain of three levels; the limiter itself has seen nothing of it."""
        await self.clean.set_system_defaults(RPM)
        await self.clean.create_entity("org")
        await self.clean.create_entity("team", parent_id="org", cascade=True)
        await self.clean.create_entity("key", parent_id="team", cascade=True)

    async def warm(self, entity: str = "key") -> None:
        async with self.limiter.acquire(entity, "gpt-4", {"rpm": 1}):
            pass

    async def fails_in_time(self, work: Awaitable[object]) -> None:
        """The work gives up exactly when its time is up."""
        started_ms = self.clock.now_ms()
        with pytest.raises(RateLimiterUnavailable):
            await work
        assert self.clock.now_ms() - started_ms == TIMEOUT * 1000

    async def take(self, entity: str = "key", **options: Any) -> None:
        async with self.limiter.acquire(entity, "gpt-4", {"rpm": 1}, **options):
            pass


async def test_reading_level_after_level_has_one_deadline(harness: Harness) -> None:
    scene = Scene(harness)
    await scene.prepare()
    scene.store.seconds = 2.0
    await scene.fails_in_time(scene.take())


async def test_lost_races_have_one_deadline(harness: Harness) -> None:
    scene = Scene(harness)
    await scene.prepare()
    await scene.warm("org")
    scene.store.seconds, scene.store.conflicts = 2.0, 50
    await scene.fails_in_time(scene.take("org"))
    assert scene.store.conflicts >= 47, "asked as often as there was time for"


async def test_a_call_whose_time_is_up_asks_nothing_more(harness: Harness) -> None:
    scene = Scene(harness)
    await scene.prepare()
    await scene.warm("org")
    scene.store.seconds, scene.store.conflicts = TIMEOUT, 1
    before = scene.store.calls.total()
    await scene.fails_in_time(scene.take("org"))
    assert scene.store.calls.total() - before == 1


async def test_levels_side_by_side_and_what_goes_back_have_one_deadline(harness: Harness) -> None:
    """One level never answers: the other one is given back in the time that was kept for it."""
    scene = Scene(harness, side_by_side=True)
    await scene.prepare()
    await scene.warm("team")
    scene.store.inject(Fault.DELAY, verb="commit", seconds=600)
    started_ms = scene.clock.now_ms()
    with pytest.raises(RateLimiterUnavailable):
        await scene.take("team")
    assert scene.clock.now_ms() - started_ms <= TIMEOUT * 1000
    left = [(await scene.clean.available(entity, "gpt-4"))["rpm"] for entity in ("team", "org")]
    assert left == [99, 99]


async def test_the_settlement_has_one_deadline(harness: Harness) -> None:
    """A lease that took tokens three times settles three times; all of it within the time of one."""
    scene = Scene(harness)
    await scene.prepare()
    await scene.warm("org")

    async def spend() -> None:
        async with scene.limiter.acquire("org", "gpt-4", {"rpm": 1}) as lease:
            await lease.consume(rpm=1)
            await lease.consume(rpm=1)
            await lease.release(rpm=3)
            scene.store.seconds = 2.0

    await scene.fails_in_time(spend())


async def test_giving_back_after_an_exception_has_one_deadline(harness: Harness) -> None:
    scene = Scene(harness)
    await scene.prepare()
    await scene.warm("org")
    started_ms = scene.clock.now_ms()
    with pytest.raises(ZeroDivisionError):
        async with scene.limiter.acquire("org", "gpt-4", {"rpm": 1}) as lease:
            await lease.consume(rpm=1)
            await lease.consume(rpm=1)
            scene.store.seconds = 2.0
            raise ZeroDivisionError
    assert scene.clock.now_ms() - started_ms == TIMEOUT * 1000


CALLS: dict[str, Callable[[RateLimiter, Repository], Awaitable[object]]] = {
    "available": lambda limiter, _: limiter.available("key", "gpt-4"),
    "get_status": lambda limiter, _: limiter.get_status("key", "gpt-4"),
    "time_until_available": lambda limiter, _: limiter.time_until_available("key", "gpt-4", {"rpm": 1}),
    "create_entity": lambda _, repository: repository.create_entity("new", parent_id="key"),
    "update_entity": lambda _, repository: repository.update_entity("key", parent_id="org"),
    "get_entity": lambda _, repository: repository.get_entity("key"),
    "set_limits": lambda _, repository: repository.set_limits("key", RPM),
    "get_limits": lambda _, repository: repository.get_limits("key"),
    "set_system_defaults": lambda _, repository: repository.set_system_defaults(RPM),
    "resolve_limits": lambda _, repository: repository.resolve_limits("key", "gpt-4"),
    "list_entities": lambda _, repository: repository.list_entities_with_custom_limits(limit=10),
    "reset_bucket": lambda _, repository: repository.reset_bucket("key", "gpt-4"),
    "register_namespace": lambda _, repository: repository.register_namespace("new"),
    "delete_namespace": lambda _, repository: repository.delete_namespace("old"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_looking_and_administering_have_one_deadline(
    harness: Harness, call: Callable[[RateLimiter, Repository], Awaitable[object]]
) -> None:
    """Each of them asks the store at least twice, the first time for its namespace."""
    scene = Scene(harness)
    await scene.prepare()
    await harness.repository().register_namespace("old")
    scene.store.seconds = 4.0
    await scene.fails_in_time(call(scene.limiter, scene.repository))


async def test_what_lists_any_number_of_records_has_the_time_for_each_page(harness: Harness) -> None:
    scene = Scene(harness)
    await scene.prepare()
    scene.store.seconds = 4.0
    assert [child.id for child in await scene.repository.get_children("org")] == ["team"]
    assert len(await scene.repository.get_buckets("org")) == 0
    assert await scene.repository.list_entities_with_custom_limits() == ([], None)
    assert (await scene.repository.survey_buckets()).complete


LISTINGS: dict[str, Callable[[RateLimiter], Awaitable[object]]] = {
    "delete_entity": lambda limiter: limiter.delete_entity("key"),
    "get_audit_events": lambda limiter: limiter.get_audit_events("key"),
    "get_buckets": lambda limiter: limiter.get_buckets("key"),
    "get_children": lambda limiter: limiter.get_children("org"),
    "get_resource_capacity": lambda limiter: limiter.get_resource_capacity("gpt-4", "rpm"),
    "get_usage_snapshots": lambda limiter: limiter.get_usage_snapshots("key"),
    "get_usage_summary": lambda limiter: limiter.get_usage_summary("key"),
    "list_entities": lambda limiter: limiter.list_entities_with_custom_limits(),
}


@pytest.mark.parametrize("warm", [False, True], ids=["first use", "namespace known"])
@pytest.mark.parametrize("call", LISTINGS.values(), ids=LISTINGS)
async def test_the_timeout_of_a_limiter_goes_before_that_of_its_repository_where_records_are_listed(
    harness: Harness, call: Callable[[RateLimiter], Awaitable[object]], *, warm: bool
) -> None:
    scene = Scene(harness, timeout=3 * TIMEOUT)
    await scene.prepare()
    if warm:
        await scene.warm()
    scene.store.inject(Fault.DELAY, times=100, seconds=600)
    started_ms = scene.clock.now_ms()
    with pytest.raises(RateLimiterUnavailable):
        await call(scene.limiter)
    assert scene.clock.now_ms() - started_ms == 3 * TIMEOUT * 1000


@pytest.mark.parametrize("call", LISTINGS.values(), ids=LISTINGS)
async def test_each_page_or_step_has_the_timeout_of_the_limiter(
    harness: Harness, call: Callable[[RateLimiter], Awaitable[object]]
) -> None:
    """Every step takes longer than the repository has, and all of them longer than the limiter has for one."""
    scene = Scene(harness, timeout=3 * TIMEOUT)
    await scene.prepare()
    scene.store.seconds = 2.5 * TIMEOUT
    started_ms = scene.clock.now_ms()
    await call(scene.limiter)
    assert scene.clock.now_ms() - started_ms > 3 * TIMEOUT * 1000


async def test_waiting_for_tokens_is_beside_the_timeout(harness: Harness) -> None:
    """The timeout is shorter than the wait, and long enough for a real server on a busy machine."""
    scene = Scene(harness, timeout=20)
    await scene.prepare()
    async with scene.limiter.acquire("org", "gpt-4", {"rpm": 100}):
        pass
    scene.store.seconds = 2.0
    started_ms = scene.clock.now_ms()
    await scene.take("org", max_wait=60)
    assert scene.clock.now_ms() - started_ms >= 36_000


async def test_a_waiter_is_over_after_its_wait_and_the_timeout(harness: Harness) -> None:
    """The bucket promises tokens in 36 s and the store dies meanwhile."""
    scene = Scene(harness)
    await scene.prepare()
    async with scene.limiter.acquire("org", "gpt-4", {"rpm": 100}):
        pass
    scene.store.inject(Fault.DELAY, verb="commit", seconds=600)
    started_ms = scene.clock.now_ms()
    with pytest.raises(RateLimiterUnavailable):
        await scene.take("org", max_wait=36)
    assert scene.clock.now_ms() - started_ms <= (36 + TIMEOUT) * 1000


@pytest.mark.parametrize("url", ["sqlite:///{}/limits.db?timeout=0.25", "redis://127.0.0.1:1?timeout=0.25"])
def test_the_default_is_the_time_that_the_url_gives_the_store(tmp_path: Any, url: str) -> None:
    for blocking, kind in ((False, Repository), (True, BlockingRepository)):
        store = open_store(url.format(tmp_path), blocking=blocking)
        assert store.capabilities.timeout == 0.25
        assert kind(store)._backend.deadline().seconds == 0.25


async def test_without_any_timeout_the_store_s_own_is_the_deadline() -> None:
    """Ten calls of four seconds each would be within what each of them may take."""
    clock = ManualClock()
    store = SlowStore(MemoryStore(clock))
    limiter = RateLimiter(store)
    await limiter.set_system_defaults(RPM)
    async with limiter.acquire("key", "gpt-4", {"rpm": 1}):
        pass
    store.seconds, store.conflicts = 4.0, 10
    started_ms = clock.now_ms()
    with pytest.raises(RateLimiterUnavailable):
        async with limiter.acquire("key", "gpt-4", {"rpm": 1}):
            pass
    assert clock.now_ms() - started_ms == 5_000


class Recording(SlowStore):
    """Notes what each commit was given."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner, suspend=True)
        self.given: list[float | None] = []
        self.held: asyncio.Event | None = None

    async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
        self.given.append(timeout)
        if self.held is not None and len(self.given) == 1:
            await self.held.wait()
        return await super().commit(writes, timeout=timeout)


async def test_a_write_for_many_has_the_time_of_the_most_patient_and_keeps_their_order() -> None:
    store = Recording(MemoryStore())
    limiter = RateLimiter(store)
    served: list[str] = []

    async def take(name: str, timeout: float) -> None:
        async with limiter.acquire("key", "gpt-4", {"rpm": 40}, RPM, timeout=timeout):
            served.append(name)

    await limiter.available("key", "gpt-4", RPM)
    store.held = asyncio.Event()
    store.given.clear()
    tasks = [asyncio.create_task(take("first", 60))]
    while not store.given:  # noqa: ASYNC110  # the store has no event to wait for
        await asyncio.sleep(0)
    tasks += [asyncio.create_task(take(name, timeout)) for name, timeout in (("a", 5), ("b", 60), ("c", 5))]
    for _ in range(20):
        await asyncio.sleep(0)
    store.held.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert served == ["first", "a"], "what is left goes to who came first"
    assert len(store.given) == 2
    assert store.given[1] is not None
    assert 5 < store.given[1] <= 60
