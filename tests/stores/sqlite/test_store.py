"""The SQLite store among real processes, real locks, real kills and damaged files."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from zae_limiter import (
    ConfigurationError,
    CorruptRecordError,
    IncompatibleSchemaError,
    Limit,
    RateLimiter,
    RateLimiterUnavailable,
    SyncRateLimiter,
    SyncRepository,
    ZAELimiterError,
)
from zae_limiter.records.algebra import Key
from zae_limiter.runtime import blocking
from zae_limiter.stores.sqlite import AsyncSqliteStore, SqliteStore
from zae_limiter.testing import ManualClock

NEVER_REFILLED = [Limit.custom("rpm", capacity=100, refill_amount=1, refill_period_seconds=10 * 365 * 86_400)]
PRELUDE = """
import json, os, sys
from zae_limiter import Limit, RateLimitExceeded, SyncRateLimiter
url = sys.argv[1]
slow = 10 * 365 * 86_400
def ready():
    print("ready", flush=True)
    sys.stdin.readline()
"""


@contextlib.contextmanager
def processes(count: int, code: str, *arguments: object) -> Iterator[list[subprocess.Popen[str]]]:
    """Python processes that have all reached `ready()`."""
    command = [sys.executable, "-c", PRELUDE + code, *map(str, arguments)]
    with contextlib.ExitStack() as stack:
        made = [
            stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
            )
            for _ in range(count)
        ]
        try:
            for child in made:
                assert said(child) == "ready"
            yield made
        finally:
            for child in made:
                if child.poll() is None:
                    child.kill()


def said(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def go(children: list[subprocess.Popen[str]]) -> None:
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")


@contextlib.contextmanager
def write_lock(path: Path) -> Iterator[sqlite3.Connection]:
    """Another connection in the middle of a write."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as db:
        db.execute("BEGIN IMMEDIATE")
        try:
            yield db
        finally:
            if db.in_transaction:
                db.execute("ROLLBACK")


def acquired(limiter: SyncRateLimiter, **options: Any) -> int:
    with limiter.acquire("key", "gpt-4", {"rpm": 1}, limits=options.pop("limits", NEVER_REFILLED), **options) as lease:
        return lease.available.get("rpm", -1)


def consumed(url: str) -> int:
    """Whole tokens that the bucket says were consumed; its balance must say the same."""
    with SyncRepository(url) as repo:
        (state,) = repo.get_buckets("key")
    assert state.tokens_milli + state.total_consumed_milli == state.capacity_milli
    return state.total_consumed_milli // 1000


def test_eight_processes_share_one_bucket_exactly(tmp_path: Path) -> None:
    code = """
limiter = SyncRateLimiter(url, refusal_ttl=0, timeout=60)
ready()
left = []
for _ in range(250):
    try:
        with limiter.acquire("key", "gpt-4", {"rpm": 1}, limits=[Limit.custom("rpm", 100, 1, slow)]) as lease:
            left.append(lease.available["rpm"])
    except RateLimitExceeded:
        pass
print(json.dumps(left))
"""
    url = f"sqlite:///{tmp_path}/limits.db"
    with processes(8, code, url) as children:
        go(children)
        left = [amount for child in children for amount in json.loads(said(child))]
    assert sorted(left) == list(range(100))
    assert consumed(url) == 100


def test_eight_processes_open_a_new_file_at_once(tmp_path: Path) -> None:
    code = """
for number in range(4):
    ready()
    limiter = SyncRateLimiter(f"{url}-{number}", timeout=60)
    with limiter.acquire("key", "gpt-4", {"rpm": 1}, limits=[Limit.custom("rpm", 100, 1, slow)]) as lease:
        print(lease.available["rpm"], flush=True)
"""
    url = f"sqlite:///{tmp_path}/limits.db"
    with processes(8, code, url) as children:
        for number in range(4):
            if number:
                assert {said(child) for child in children} == {"ready"}
            go(children)
            assert sorted(int(said(child)) for child in children) == list(range(92, 100))
            assert consumed(f"{url}-{number}") == 8


@pytest.mark.unix
def test_kill_9_in_the_middle_loses_no_grant_and_counts_none_twice(tmp_path: Path) -> None:
    code = """
log = os.open(sys.argv[2] + str(os.getpid()), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
limiter = SyncRateLimiter(url, timeout=60)
ready()
while True:
    with limiter.acquire("key", "gpt-4", {"rpm": 1}, limits=[Limit.custom("rpm", 10**9, 1, slow)]):
        os.write(log, b".")
        os.fsync(log)
"""
    url, chance = f"sqlite:///{tmp_path}/limits.db", random.Random(7)
    killed = 0
    for _ in range(4):
        with processes(3, code, url, tmp_path / "log-") as children:
            go(children)
            for child in children:
                log = tmp_path / f"log-{child.pid}"
                while log.stat().st_size < 20 + chance.randrange(20):
                    assert child.poll() is None, "it ended by itself"
                    time.sleep(0.001)
                os.kill(child.pid, signal.SIGKILL)
                killed += 1
        logged = sum(log.stat().st_size for log in tmp_path.glob("log-*"))
        assert logged <= consumed(url) <= logged + killed
    with contextlib.closing(sqlite3.connect(tmp_path / "limits.db")) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def damaged(path: Path) -> None:
    with SyncRepository(f"sqlite:///{path}") as repo:
        for number in range(50):
            repo.create_entity(f"key-{number}", metadata={"text": "x" * 500})
    with path.open("r+b") as file:
        file.seek(100)
        file.write(b"\xa5" * (path.stat().st_size - 100))


def foreign(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE mail (text)")
        db.commit()


def newer(path: Path) -> None:
    with SyncRepository(f"sqlite:///{path}") as repo:
        repo.register_namespace("prod")
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 99")


@pytest.mark.parametrize(
    ("spoil", "kind", "words"),
    [
        (damaged, CorruptRecordError, "damaged"),
        (lambda path: path.write_bytes(b"These are my letters. " * 500), CorruptRecordError, "not a SQLite database"),
        (foreign, IncompatibleSchemaError, "belongs to another program"),
        (newer, IncompatibleSchemaError, "Upgrade"),
        (lambda path: path.mkdir(), ConfigurationError, "cannot be opened"),
    ],
    ids=["damaged", "not a database", "another program's", "newer layout", "directory"],
)
def test_a_file_that_is_not_ours_to_use(
    tmp_path: Path, spoil: Callable[[Path], None], kind: type[ZAELimiterError], words: str
) -> None:
    path = tmp_path / "limits.db"
    spoil(path)
    before = path.read_bytes() if path.is_file() else None
    with SyncRateLimiter(f"sqlite:///{path}") as limiter:
        for _ in range(2):
            with pytest.raises(ZAELimiterError, match=words) as caught:
                acquired(limiter)
            assert type(caught.value) is kind
            assert str(path) in str(caught.value)
        if kind is not RateLimiterUnavailable:
            with pytest.raises(kind):
                acquired(limiter, on_unavailable="allow")
    assert before is None or path.read_bytes() == before


def test_a_missing_directory_is_a_wrong_path_that_no_policy_covers(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in ("no/such/dir", "file"):
        path = tmp_path / folder / "limits.db"
        words = f"there is no directory '{path.parent}'; create it, or correct the path"
        with SyncRateLimiter(f"sqlite:///{path}", on_unavailable="allow") as limiter:
            for _ in range(10):
                with pytest.raises(ConfigurationError, match=re.escape(words)):
                    acquired(limiter)
        with pytest.raises(ConfigurationError, match=re.escape(words)):
            SyncRepository.open(url=f"sqlite:///{path}")


async def test_async_clients_are_not_granted_anything_in_a_missing_directory(tmp_path: Path) -> None:
    limiter = RateLimiter(f"sqlite:///{tmp_path}/missing/limits.db", on_unavailable="allow")
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="there is no directory"):
            async with limiter.acquire("key", "gpt-4", {"rpm": 1}, NEVER_REFILLED):
                pass
    await limiter.close()


def test_a_missing_directory_may_come_later(tmp_path: Path) -> None:
    path = tmp_path / "data" / "limits.db"
    with SyncRateLimiter(f"sqlite:///{path}") as limiter:
        assert not limiter.is_available()
        with pytest.raises(ConfigurationError, match="there is no directory"):
            acquired(limiter)
        path.parent.mkdir()
        assert acquired(limiter) == 99
        assert limiter.is_available()


@contextlib.contextmanager
def without_privileges() -> Iterator[None]:
    """Root may write anywhere, so be nobody for a while."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65_534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.mark.unix
@pytest.mark.parametrize("exists", [False, True], ids=["new file", "existing file"])
def test_a_read_only_directory(exists: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "limits.db"
        url = f"sqlite:///{path}"
        if exists:
            with SyncRateLimiter(url) as limiter:
                assert acquired(limiter) == 99
            path.chmod(0o444)
        Path(folder).chmod(0o555)
        with SyncRateLimiter(url) as limiter:
            with (
                without_privileges(),
                pytest.raises(RateLimiterUnavailable, match=r"read-only|denied|may it be written"),
            ):
                acquired(limiter)
            Path(folder).chmod(0o755)
            if exists:
                path.chmod(0o644)
            assert acquired(limiter) == (98 if exists else 99)


def test_a_full_disk_changes_nothing_and_is_survived(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "limits.db")
    with SyncRateLimiter(store) as limiter:
        assert acquired(limiter) == 99
        db = store._connection
        assert db is not None
        db.execute(f"PRAGMA max_page_count = {db.execute('PRAGMA page_count').fetchone()[0]}")
        with pytest.raises(RateLimiterUnavailable, match="the disk is full; nothing was changed"):
            limiter.create_entity("big", metadata={"text": "x" * 100_000})
        assert limiter.get_entity("big") is None
        assert limiter.get_audit_events("big") == []
        db.execute("PRAGMA max_page_count = 1000000")
        limiter.create_entity("big", metadata={"text": "x" * 100_000})
        assert len(limiter.get_audit_events("big")) == 1
        assert acquired(limiter) == 98


@pytest.mark.unix
def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    code = """
import resource
from zae_limiter import RateLimiterUnavailable
limiter = SyncRateLimiter(url, timeout=60)
limiter.set_system_defaults([Limit.custom("rpm", 100, 1, slow)])
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
ready()
made = 0
try:
    while True:
        limiter.create_entity(f"key-{made}", metadata={"text": "x" * 4_000})
        made += 1
except RateLimiterUnavailable as error:
    print(json.dumps([made, str(error)]))
"""
    url = f"sqlite:///{tmp_path}/limits.db"
    with processes(1, code, url) as children:
        go(children)
        made, message = json.loads(said(children[0]))
    assert "nothing was changed" in message
    assert made > 5
    with SyncRateLimiter(url) as limiter:
        assert limiter.get_entity(f"key-{made}") is None
        for number in range(made):
            assert limiter.get_entity(f"key-{number}") is not None
            assert len(limiter.get_audit_events(f"key-{number}")) == 1
        assert acquired(limiter) == 99


def test_a_lock_held_by_another_process_past_the_timeout(tmp_path: Path) -> None:
    code = """
import sqlite3
db = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
db.execute("BEGIN IMMEDIATE")
ready()
"""
    url = f"sqlite:///{tmp_path}/limits.db"
    with SyncRateLimiter(url + "?timeout=0.2") as limiter:
        assert acquired(limiter, timeout=60) == 99
        with processes(1, code, url):
            for options in ({}, {"timeout": 0.05}):
                started = time.monotonic()
                with pytest.raises(RateLimiterUnavailable, match="locked by another process") as caught:
                    acquired(limiter, **options)
                assert 0.04 < time.monotonic() - started < 2
                assert (caught.value.entity_id, caught.value.resource) == ("key", "gpt-4")
                assert isinstance(caught.value.cause, sqlite3.OperationalError)
            assert limiter.available("key", "gpt-4", NEVER_REFILLED) == {"rpm": 99}, "reading needs no lock"
            with limiter.acquire("key", "gpt-4", {"rpm": 1}, NEVER_REFILLED, "allow", timeout=0.05) as lease:
                assert lease.degraded
        assert acquired(limiter) == 98


def test_a_turn_that_does_not_come_in_time_is_told_in_three_digits(tmp_path: Path) -> None:
    """What is left of a deadline is no round number."""
    store = SqliteStore(tmp_path / "limits.db")
    with store._lock, pytest.raises(RateLimiterUnavailable, match=r"other calls kept it busy for 0\.0123 s$"):
        blocking.run(store.read([Key("a", "b")], timeout=0.0123456))


async def test_an_answer_that_does_not_come_in_time_is_told_in_three_digits(tmp_path: Path) -> None:
    store = AsyncSqliteStore(tmp_path / "limits.db")
    done = threading.Event()
    job = store._submit(done.wait)
    with pytest.raises(RateLimiterUnavailable, match=r"no answer within 0\.0123 s$"):
        await store.read([Key("a", "b")], timeout=0.0123456)
    done.set()
    await job
    await store.close()


async def test_the_event_loop_keeps_ticking_beside_a_slow_writer(tmp_path: Path) -> None:
    limiter = RateLimiter(f"sqlite:///{tmp_path}/limits.db")

    async def take() -> None:
        async with limiter.acquire("key", "gpt-4", {"rpm": 1}, NEVER_REFILLED):
            pass

    await take()
    with write_lock(tmp_path / "limits.db") as db:
        release = threading.Timer(0.5, db.execute, ("ROLLBACK",))
        release.start()
        ticks = [time.monotonic()]
        waiting = asyncio.create_task(take())
        while not waiting.done():
            await asyncio.sleep(0.005)
            ticks.append(time.monotonic())
        release.join()
    await waiting
    await limiter.close()
    assert ticks[-1] - ticks[0] > 0.4, "the acquire waited for the lock"
    assert len(ticks) > 25, "of about 100"
    assert max(b - a for a, b in itertools.pairwise(ticks)) < 0.25


def test_the_journal_is_a_wal_and_readers_do_not_wait(tmp_path: Path) -> None:
    with SyncRateLimiter(f"sqlite:///{tmp_path}/limits.db?timeout=0.1") as limiter:
        assert acquired(limiter, timeout=60) == 99
        with write_lock(tmp_path / "limits.db") as db:
            assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
            assert limiter.available("key", "gpt-4", NEVER_REFILLED) == {"rpm": 99}


def test_expired_records_are_swept_in_passing(tmp_path: Path) -> None:
    clock = ManualClock()
    url = f"sqlite:///{tmp_path}/limits.db?usage_retention_days=0"
    with SyncRateLimiter(SyncRepository(url, clock=clock)) as limiter:
        limits = [Limit.per_second("rpm", 10)]
        for number in range(300):
            with limiter.acquire(f"key-{number}", "gpt-4", {"rpm": 1}, limits):
                pass

        def rows() -> int:
            with contextlib.closing(sqlite3.connect(tmp_path / "limits.db")) as db:
                return int(db.execute("SELECT count(*) FROM items WHERE sk = '#STATE'").fetchone()[0])

        assert rows() == 300
        clock.advance(3_600)
        for _ in range(2):  # a sweep is short, so it may need more than one
            clock.advance(60)
            with limiter.acquire("key", "gpt-4", {"rpm": 1}, limits):
                pass
        assert rows() == 1
