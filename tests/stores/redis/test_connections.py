"""Connections: how many there are, whose they are, and that none outlives its use, its loop, its process."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.stores.redis.support import RPM, Driven, driven, in_a_fork, take
from tests.support.redis.proxy import Proxy
from tests.support.redis.server import Server
from tests.support.waiting import until
from zae_limiter import RateLimiter, RateLimiterClosedError, RateLimiterUnavailable, SyncRateLimiter
from zae_limiter.records.algebra import Key, Write
from zae_limiter.stores.outcomes import NotSent
from zae_limiter.stores.redis import pipeline
from zae_limiter.stores.redis.resp import pack
from zae_limiter.stores.redis.settings import parse
from zae_limiter.stores.redis.store import RedisStore, open_redis
from zae_limiter.stores.redis.wires import AsyncWire

MANY = 20


@contextlib.contextmanager
def nothing_left_open() -> Iterator[None]:
    """Whatever is collected inside was closed before."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
        gc.collect()
    assert [str(warning.message) for warning in caught if issubclass(warning.category, ResourceWarning)] == []


def clients(server: Server) -> int:
    """How many connections the server has, besides that of the rig."""
    return int(server.aside("CLIENT", "LIST").count("\n")) - 1


def fill(server: Server, count: int) -> list[Key]:
    """Records that are all different."""
    keys = [Key("p", f"#{number}") for number in range(count)]
    with driven("blocking") as aside:
        store = aside.store(server.url)
        aside.run(store.commit([Write(key, (), {"sk": key.sk}) for key in keys]))
    return keys


# How many


async def test_many_tasks_share_the_one_connection_that_is_allowed(server: Server, proxy: Proxy) -> None:
    async def work() -> list[str]:
        async with RateLimiter(f"{proxy.url}?max_connections=1") as limiter:
            return await asyncio.gather(*(take(limiter, entity=f"key-{number}") for number in range(MANY)))

    assert Counter(await work()) == {"granted": MANY}
    assert proxy.accepted == 1


def test_many_threads_share_the_one_connection_that_is_allowed(server: Server, proxy: Proxy) -> None:
    with SyncRateLimiter(f"{proxy.url}?max_connections=1") as limiter, ThreadPoolExecutor(MANY) as pool:

        def work(number: int) -> int:
            with limiter.acquire(f"key-{number}", "gpt-4", {"rpm": 1}, RPM) as lease:
                return lease.available["rpm"]

        assert list(pool.map(work, range(MANY))) == [99] * MANY
    assert proxy.accepted == 1


OUR_OWN = (
    r"^Redis was not asked: all 1 connections of this client to 127\.0\.0\.1:\d+ were in use for [\d.]+ s; "
    r"\?max_connections= raises their number\.$"
)


def test_whoever_gets_no_connection_in_time_hears_why(mode: Driven, server: Server, proxy: Proxy) -> None:
    """Nothing was sent, so nothing was charged."""
    store = mode.store(f"{proxy.url}?max_connections=1")
    (key, *_) = fill(server, 2)
    mode.run(store.read([key]))
    proxy.hold()
    first: list[object] = []
    if mode.blocking:
        thread = threading.Thread(target=lambda: first.append(mode.run(store.read([key]))))
        thread.start()
        until(lambda: proxy.held == 1, "the only connection is in use")
        with pytest.raises(RateLimiterUnavailable, match=OUR_OWN):
            mode.run(store.read([key], timeout=0.1))
        proxy.release()
        thread.join()
    else:
        first += mode.run(_one_waits_for_all_others(store, proxy, key))
    assert first == [[{"sk": key.sk}]]


async def _one_waits_for_all_others(store: RedisStore, proxy: Proxy, key: Key) -> list[object]:
    tasks = [asyncio.ensure_future(store.read([key])) for _ in range(pipeline.DEPTH)]
    await _eventually(lambda: proxy.held == pipeline.DEPTH)
    with pytest.raises(RateLimiterUnavailable, match=OUR_OWN):
        await store.read([key], timeout=0.1)
    proxy.release()
    (found,) = {str(each): each for each in await asyncio.gather(*tasks)}.values()
    return [found]


async def _eventually(condition: Callable[[], bool]) -> None:
    """Wait inside a loop, with a bound, and let the loop go on meanwhile."""
    await asyncio.to_thread(until, condition, "it happens", seconds=5)


def test_a_turn_is_given_back_whatever_happens(mode: Driven, proxy: Proxy) -> None:
    limiter = mode.limiter(f"{proxy.url}?max_connections=1")
    for _ in range(3):
        assert mode.take(limiter) == "granted"
        proxy.refuse()
        assert mode.take(limiter, timeout=0.5) == "unavailable"
        proxy.accept()
        until(lambda: mode.take(limiter) == "granted", "it is there again")


def test_a_steady_acquire_needs_no_task_and_no_timer_of_its_own(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        made: Counter[str] = Counter()
        call_at = loop.call_at

        def counting(*args: Any, **options: Any) -> asyncio.TimerHandle:
            made["timers"] += 1
            return call_at(*args, **options)

        def task(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
            made["tasks"] += 1
            return asyncio.Task(work, loop=loop, **options)

        async with RateLimiter(server.url) as limiter:
            assert await take(limiter) == "granted"
            monkeypatch.setattr(loop, "call_at", counting)
            loop.set_task_factory(task)
            assert [await take(limiter) for _ in range(20)] == ["granted"] * 20
            loop.set_task_factory(None)
        assert made["tasks"] == 0
        assert made["timers"] <= 1, "that of the connection"

    asyncio.run(work())


# Whose answer


def test_answers_go_to_whoever_asked(mode: Driven, server: Server) -> None:
    keys = fill(server, 50)
    store = mode.store(f"{server.url}?max_connections=3")

    async def ask(key: Key) -> bool:
        return await store.read([key]) == [{"sk": key.sk}]

    if mode.blocking:
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(lambda key: mode.run(ask(key)), keys * 4))
    else:

        async def everybody() -> list[bool]:
            return await asyncio.gather(*(ask(key) for key in keys * 4))

        assert all(mode.run(everybody()))


async def test_a_cancelled_call_leaves_no_answer_for_the_next_one(server: Server, proxy: Proxy) -> None:
    one, two = fill(server, 2)

    with nothing_left_open():
        store = open_redis(parse(f"{proxy.url}?max_connections=1"), blocking=False)
        await store.read([one])
        proxy.hold()
        task = asyncio.ensure_future(store.read([one]))
        await _eventually(lambda: proxy.held == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        proxy.release()
        assert await store.read([two]) == [{"sk": two.sk}]
        assert proxy.accepted == 1, "the connection has taken the answer that nobody waited for"
        await store.close()


def test_a_call_that_timed_out_leaves_no_answer_for_the_next_one(mode: Driven, server: Server, proxy: Proxy) -> None:
    one, two = fill(server, 2)
    store = mode.store(f"{proxy.url}?max_connections=1")
    mode.run(store.read([one]))
    proxy.hold()
    with pytest.raises(RateLimiterUnavailable, match="in time"):
        mode.run(store.read([one], timeout=0.1))
    proxy.release()
    assert mode.run(store.read([two])) == [{"sk": two.sk}]
    assert proxy.accepted == 2


def test_a_call_that_timed_out_costs_those_beside_it_nothing(server: Server, proxy: Proxy) -> None:
    """They go on on the connection that is given up, and whoever comes later gets a new one."""
    one, two = fill(server, 2)

    async def work() -> None:
        store = open_redis(parse(proxy.url), blocking=False)
        await store.read([one])
        proxy.hold()
        patient = asyncio.ensure_future(store.read([one]))
        with pytest.raises(RateLimiterUnavailable, match="in time"):
            await store.read([two], timeout=0.1)
        assert proxy.held == 2
        proxy.release()
        assert await patient == [{"sk": one.sk}]
        assert await store.read([two]) == [{"sk": two.sk}]
        assert proxy.accepted == 2
        await _eventually(lambda: clients(server) == 1)
        await store.close()

    with nothing_left_open():
        asyncio.run(work())


def test_a_connection_that_answers_nobody_is_given_up_although_all_callers_are_cancelled(
    server: Server, proxy: Proxy
) -> None:
    (key,) = fill(server, 1)

    async def work() -> None:
        store = open_redis(parse(proxy.url), blocking=False)
        await store.read([key])
        proxy.hold()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(store.read([key], timeout=0.2), 0.1)
        await _eventually(lambda: clients(server) == 0)
        proxy.release()
        assert await store.read([key]) == [{"sk": key.sk}]
        await store.close()

    with nothing_left_open():
        asyncio.run(work())


def test_tasks_share_a_connection_until_many_calls_are_under_way(server: Server, proxy: Proxy) -> None:
    (key,) = fill(server, 1)

    async def work() -> None:
        store = open_redis(parse(proxy.url), blocking=False)
        await store.read([key])
        proxy.hold()
        tasks = [asyncio.ensure_future(store.read([key])) for _ in range(pipeline.DEPTH)]
        await _eventually(lambda: proxy.held == pipeline.DEPTH)
        assert proxy.accepted == 1
        tasks.append(asyncio.ensure_future(store.read([key])))
        await _eventually(lambda: proxy.held == pipeline.DEPTH + 1)
        assert proxy.accepted == 2
        proxy.release()
        await asyncio.gather(*tasks)
        await store.close()

    with nothing_left_open():
        asyncio.run(work())


def test_whoever_waits_for_a_busy_connection_does_not_mind_that_no_other_can_be_opened(server: Server) -> None:
    async def work() -> None:
        wire = AsyncWire()
        settings = parse(server.url)
        opened = 0

        async def open_link() -> pipeline.AsyncLink:
            nonlocal opened
            opened += 1
            if opened > 1:
                raise NotSent("no more")
            return await wire.open(settings.addresses[0], settings.login, 5)

        pool = pipeline.SharedPool(2, "there", open_link)
        echoes = [pack(("ECHO", number)) for number in range(2 * pipeline.DEPTH)]
        calls = [pool.call(echo, 1, time.monotonic() + 5) for echo in echoes]
        assert await asyncio.gather(*calls) == [[str(number).encode()] for number in range(2 * pipeline.DEPTH)]
        assert opened > 1
        pool.close()

    with nothing_left_open():
        asyncio.run(work())


def test_those_whose_connection_is_cut_all_hear_that_the_outcome_is_unknown(server: Server, proxy: Proxy) -> None:
    (key,) = fill(server, 1)

    async def work() -> list[object]:
        store = open_redis(parse(proxy.url), blocking=False)
        await store.read([key])
        proxy.hold()
        tasks = [asyncio.ensure_future(store.read([key])) for _ in range(3)]
        await _eventually(lambda: proxy.held == 3)
        proxy.refuse()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        await store.close()
        return list(found)

    with nothing_left_open():
        assert ["outcome is unknown" in str(error) for error in asyncio.run(work())] == [True] * 3


@pytest.mark.parametrize("deliver", [True, False])
async def test_a_cancelled_acquire_gives_back_what_it_took(server: Server, proxy: Proxy, deliver: bool) -> None:
    async with RateLimiter(proxy.url, timeout=0.3) as limiter:
        for _ in range(2):  # the server knows both scripts then
            assert await take(limiter) == "granted"
        proxy.hold()
        task = asyncio.ensure_future(take(limiter, 10))
        await _eventually(lambda: proxy.held == 1)
        task.cancel()
        await asyncio.sleep(0)
        proxy.release(deliver=deliver)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await take(limiter) == "granted"
    with driven("blocking") as aside:
        assert aside.left(server.url) == (97 if deliver else 87), "without an answer nobody knows what to give back"


# Whose loop


def test_one_limiter_serves_loops_one_after_another(server: Server) -> None:
    with nothing_left_open():
        limiter = RateLimiter(server.url)
        for _ in range(5):
            assert asyncio.run(take(limiter)) == "granted"
        assert asyncio.run(limiter.available("key", "gpt-4", RPM)) == {"rpm": 95}
        asyncio.run(limiter.close())
        del limiter
    until(lambda: clients(server) == 0, "the server has seen them go")


def test_one_limiter_serves_loops_in_several_threads(server: Server) -> None:
    limiter = RateLimiter(server.url)

    async def work() -> list[str]:
        return [await take(limiter) for _ in range(10)]

    with nothing_left_open():
        with ThreadPoolExecutor(4) as pool:
            outcomes = [outcome for found in pool.map(lambda _: asyncio.run(work()), range(4)) for outcome in found]
        assert Counter(outcomes) == {"granted": 40}
        assert asyncio.run(limiter.available("key", "gpt-4", RPM)) == {"rpm": 60}
        asyncio.run(limiter.close())


def test_a_loop_that_is_run_by_hand_ends_without_its_connections(server: Server) -> None:
    store = open_redis(parse(server.url), blocking=False)
    with nothing_left_open():
        for _ in range(3):
            loop = asyncio.new_event_loop()
            loop.run_until_complete(store.read([Key("p", "#1")]))
            loop.run_until_complete(store.close())
            loop.close()
    until(lambda: clients(server) == 0, "the server has seen them go")


# Closing


def test_a_limiter_that_is_closed_leaves_nothing_open(server: Server) -> None:
    async def work() -> None:
        async with RateLimiter(server.url) as limiter:
            await asyncio.gather(*(take(limiter, entity=f"key-{number}") for number in range(5)))

    with nothing_left_open():
        asyncio.run(work())
        with SyncRateLimiter(server.url) as limiter, limiter.acquire("key", "gpt-4", {"rpm": 1}, RPM):
            pass
        del limiter
    until(lambda: clients(server) == 0, "the server has seen them go")


def test_a_closed_store_opens_again_when_it_is_used(mode: Driven, server: Server) -> None:
    store = mode.store(server.url)
    for _ in range(3):
        mode.run(store.read([Key("p", "#1")]))
        assert clients(server) == 1
        mode.run(store.close())
        mode.run(store.close())
        until(lambda: clients(server) == 0, "the server has seen it go")


def test_a_store_that_is_used_after_its_end_can_be_closed_again(mode: Driven, server: Server) -> None:
    limiter = mode.limiter(server.url)
    for _ in range(2):
        assert mode.take(limiter) == "granted"
        mode.run(limiter.repository.store.close())
        until(lambda: clients(server) == 0, "the server has seen it go", seconds=5)


def test_a_limiter_that_is_used_after_its_end_opens_no_connection(mode: Driven, server: Server) -> None:
    limiter = mode.limiter(server.url)
    assert mode.take(limiter) == "granted"
    mode.run(limiter.close())
    until(lambda: clients(server) == 0, "the server has seen it go", seconds=5)
    with pytest.raises(RateLimiterClosedError):
        mode.take(limiter)
    assert clients(server) == 0


def test_a_connection_in_use_is_closed_when_it_is_done(server: Server, proxy: Proxy) -> None:
    (key,) = fill(server, 1)

    async def work() -> None:
        store = open_redis(parse(proxy.url), blocking=False)
        await store.read([key])
        proxy.hold()
        task = asyncio.ensure_future(store.read([key]))
        await _eventually(lambda: proxy.held == 1)
        await store.close()
        proxy.release()
        assert await task == [{"sk": key.sk}]
        await _eventually(lambda: clients(server) == 0)

    with nothing_left_open():
        asyncio.run(work())


def test_failures_leave_nothing_open(mode: Driven, server: Server, proxy: Proxy) -> None:
    with nothing_left_open():
        store = mode.store(proxy.url.replace("/0", "/3"))
        for only in ("evalsha", "select"):
            proxy.cut_after_request(only=only)
            with pytest.raises(RateLimiterUnavailable):
                mode.run(store.read([Key("p", "#1")]))
        proxy.refuse()
        with pytest.raises(RateLimiterUnavailable):
            mode.run(store.read([Key("p", "#1")]))
        mode.run(store.close())
        del store
        mode._opened.clear()
    until(lambda: clients(server) == 0, "the server has seen them go")


# Forks


def test_a_fork_has_connections_of_its_own_and_leaves_its_parents_alone(server: Server) -> None:
    with SyncRateLimiter(server.url) as limiter:

        def use() -> None:
            with limiter.acquire("key", "gpt-4", {"rpm": 1}, RPM):
                pass

        def use_and_close() -> None:
            use()
            limiter.close()

        use()
        assert in_a_fork(use)
        use()
        assert in_a_fork(use_and_close)
        use()
        assert limiter.available("key", "gpt-4", RPM) == {"rpm": 95}
        assert limiter.repository.get_backend_stats().calls["EVALSHA"] >= 5


def test_a_fork_of_a_loop_leaves_its_parents_connections_alone(server: Server, proxy: Proxy) -> None:
    """A fork shares the selector of its parent's loop: what it takes out of there its parent never hears of again."""

    async def work() -> None:
        async with RateLimiter(proxy.url) as limiter:
            assert await take(limiter) == "granted"

            def child() -> None:
                assert asyncio.run(take(limiter)) == "granted"
                asyncio.run(limiter.close())

            for way in (child, lambda: asyncio.run(limiter.close())):
                assert in_a_fork(way)
                assert await take(limiter) == "granted"

    asyncio.run(work())
    with driven("blocking") as aside:
        assert aside.left(server.url) == 96
