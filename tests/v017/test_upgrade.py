"""Upgrades on a real engine: every balance, limit, entity, event and number is there afterwards, whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.v017 import old_tables
from tests.v017.old_layouts import LAYOUTS, check_everything, fill, old_pools, per_limit, upgrade
from tests.v017.old_tables import NOW, OTHER, Item, OldTable, old_table
from zae_limiter import VersionMismatchError
from zae_limiter.records import version
from zae_limiter.records.algebra import Committed, Conflict, Write
from zae_limiter.runtime.blocking import run
from zae_limiter.stores.dynamodb.store import DynamoStore
from zae_limiter.sync import BlockingRateLimiter, BlockingRepository
from zae_limiter.v017.upgrade.runner import Runner

layouts = pytest.mark.parametrize("items", LAYOUTS.values(), ids=LAYOUTS)


@layouts
def test_everything_is_there_after_the_upgrade(items: Callable[[], list[Item]]) -> None:
    with old_table() as table:
        made = items()
        fill(table, made)
        with pytest.raises(VersionMismatchError, match="zae-limiter upgrade"):
            run(BlockingRepository(table.store()).get_entity("key-1"))
        before = table.items()
        planned = upgrade(table, dry_run=True)
        assert table.items() == before
        report = upgrade(table)
        assert report.moved == planned.moved
        assert report.refused == {}
        assert report.moved["entity"] == 3
        run(check_everything(table, made))
        after = table.items()
        assert upgrade(table).is_empty
        assert table.items() == after
        unprefixed = {key for key in table.present() if not key.pk.startswith(("_/", OTHER)) and "/" not in key.pk}
        assert unprefixed == {version.UNPREFIXED[0]}, "it keeps older clients out"


@layouts
def test_a_bucket_goes_on_as_it_was(items: Callable[[], list[Item]]) -> None:
    """What users see at the instant of the upgrade: debt refuses, a full bucket grants."""
    with old_table() as table:
        made = items()
        fill(table, made)
        upgrade(table)
        expected = old_pools(made)

        async def work() -> None:
            limiter = BlockingRateLimiter(BlockingRepository(table.store()))
            found = await limiter.available("key-1", "gpt-4")
            assert found == {each.limit: each.level(NOW) // 1000 for each in expected["key-1", "gpt-4"]}
            async with limiter.acquire("key-1", "gpt-4", {"rpm": 1}):
                pass
            after = await limiter.available("key-1", "gpt-4")
            assert after == {**found, "rpm": found["rpm"] - 1}

        run(work())


class Interrupted(Exception):
    """The run was killed."""


class Mortal(DynamoStore):
    """A store whose client is killed before some commit."""

    left = 10**9

    async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
        self.left -= 1
        if self.left < 0:
            raise Interrupted
        return await super().commit(writes, timeout=timeout)


def check_closed(table: OldTable) -> None:
    """Nobody opens a table whose upgrade is not done."""
    stamped = run(table.store().read([version.KEY]))[0]
    if stamped is None or stamped["schema_version"] == version.UNFINISHED:
        with pytest.raises(VersionMismatchError, match="zae-limiter upgrade"):
            run(BlockingRepository(table.store()).get_entity("key-1"))
    else:
        assert upgrade(table).is_empty


@pytest.mark.parametrize(("name", "step"), [("nested", 1), ("newest", 3)])
def test_killed_at_any_commit_and_run_again(name: str, step: int) -> None:
    with old_table() as table:
        made = LAYOUTS[name]()
        for survived in range(0, 10**6, step):
            table.empty()
            fill(table, made)
            store = Mortal(table.store().client, table.clock)
            store.left = survived
            try:
                run(Runner(store).run())
            except Interrupted:
                check_closed(table)
            else:
                break
            upgrade(table)
            run(check_everything(table, made))
        assert survived > 5


def test_two_at_once_take_work_from_each_other() -> None:
    with old_table() as table:
        made = per_limit(nested=True)
        fill(table, made)
        with ThreadPoolExecutor(4) as workers:
            list(workers.map(lambda _: upgrade(table), range(4)))
        run(check_everything(table, made))
        assert upgrade(table).is_empty


class Meddler(DynamoStore):
    """A store beside which an old client writes once more, just before the first bucket is moved."""

    meddle: Callable[[], None] | None = None

    async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
        if self.meddle is not None and any("BUCKET#" in write.key.pk for write in writes):
            self.meddle()
            self.meddle = None
        return await super().commit(writes, timeout=timeout)


def test_what_an_old_client_takes_at_the_last_moment_is_taken() -> None:
    with old_table() as table:
        before = old_tables.Pool("rpm", 50_000, NOW, 60_000, 60_000, 60_000, consumed=10_000)
        after = before._replace(tokens=20_000, consumed=40_000)
        table.put(old_tables.version(), old_tables.per_limit_bucket("key", "gpt-4", before, nested=True))
        store = Meddler(table.store().client, table.clock)
        store.meddle = lambda: table.put(old_tables.per_limit_bucket("key", "gpt-4", after, nested=True))
        assert run(Runner(store).run()).moved["bucket"] == 1
        (state,) = run(BlockingRepository(table.store()).get_buckets("key"))
        assert (state.tokens_milli, state.total_consumed_milli) == (20_000, 40_000)
