"""The SQLite store: one file shared by many processes of a machine.

WAL journal and `BEGIN IMMEDIATE` for every commit, so guards are checked and writes made under the file's write lock.
A record is a row with its attributes as JSON. `SqliteStore` blocks; `AsyncSqliteStore` does the same in a thread, so
that an event loop never waits for the disk or for another process.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sqlite3
import stat
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import resources
from typing import TYPE_CHECKING, Any, TypeVar

from ..clock import Clock, SystemClock
from ..core.errors import (
    ConfigurationError,
    CorruptRecordError,
    IncompatibleSchemaError,
    InfrastructureError,
    RateLimiterUnavailable,
)
from ..core.values import BackendCapabilities
from ..forks import before_fork, protect
from ..logs import STORE_REPLACED, log_event
from ..records.algebra import TTL, Committed, Conflict, Image, Key, Page, Query, Write, apply_write, holds, is_live
from ..records.usage import USAGE_RETENTION_DAYS
from .ranges import INDEXES, cursor_of, index_entry

if TYPE_CHECKING:
    import asyncio

A = TypeVar("A")
T = TypeVar("T")

CAPABILITIES = BackendCapabilities(
    name="sqlite",
    instant=False,
    free_atomic_commit=True,
    own_clock=True,
    several_processes=True,
    several_hosts=False,
    usage_retention_days=USAGE_RETENTION_DAYS,
)

_APPLICATION = 0x5A41454C  # "ZAEL": marks a file as ours
_LAYOUT = 1
_SWEEP_EVERY_MS = 10_000
_SWEEP_ROWS = 256

_REASONS = {
    sqlite3.SQLITE_NOTADB: "it is not a SQLite database; choose another path",
    sqlite3.SQLITE_CORRUPT: "it is damaged; restore it from a backup or move it away",
    sqlite3.SQLITE_BUSY: "it is locked by another process; raise ?timeout= or find the holder",
    sqlite3.SQLITE_LOCKED: "a table is locked by another connection of this process",
    sqlite3.SQLITE_READONLY: "it is read-only; check the permissions of file and directory",
    sqlite3.SQLITE_PERM: "access is denied; check the permissions of file and directory",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened; does the directory still exist and may it be written?",
    sqlite3.SQLITE_FULL: "the disk is full; nothing was changed",
    sqlite3.SQLITE_IOERR: "the disk reported an error; nothing was changed",
}


class SqliteStore:
    """A SQLite file for blocking code: the coroutines never suspend. Only one thread at a time uses its one connection.

    Args:
        path: The file. It is created with the first call.
        clock: Replaces the clock of the host, e.g. in tests.
        timeout: The seconds that a call may take unless it says otherwise.
        usage_retention_days: The days for which usage is kept, 0 for none.
        file_mode: The permissions with which the file is created, whatever the umask. SQLite gives the files beside it
            the same ones. A file that exists keeps its own.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        clock: Clock | None = None,
        timeout: float = 5.0,
        usage_retention_days: int = USAGE_RETENTION_DAYS,
        file_mode: int = 0o600,
    ) -> None:
        self.path = os.fspath(path)
        self.file_mode = file_mode
        self.capabilities = replace(CAPABILITIES, usage_retention_days=usage_retention_days, timeout=timeout)
        self.clock: Clock = clock or SystemClock()
        self.timeout = timeout
        self._swept_ms = 0
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self._was_open = False
        self._busy_ms = -1
        self._watchers: list[weakref.WeakMethod[Callable[[], None]]] = []
        protect(self._lock)
        before_fork(self._disconnect)  # SQLite's locks belong to the process that took them

    async def read(self, keys: Sequence[Key], *, timeout: float | None = None) -> list[Image | None]:
        """Return the current images, in the order of the keys."""
        return await self._run(self._read, keys, timeout)

    async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
        """Apply all writes if all guards hold, else none."""
        return await self._run(self._commit, writes, timeout)

    async def query(self, query: Query, *, timeout: float | None = None) -> Page:
        """Return one page of a range."""
        return await self._run(self._query, query, timeout)

    async def close(self) -> None:
        """Close the connection. The next use opens it again."""
        self._close()

    def on_replaced(self, forget: Callable[[], None]) -> None:
        """Call ``forget`` whenever the file turns out to have been replaced. Keeps a weak reference to it."""
        self._watchers.append(weakref.WeakMethod(forget))

    async def _run(self, work: Callable[[A, float | None], T], argument: A, timeout: float | None) -> T:
        return work(argument, timeout)

    def _read(self, keys: Sequence[Key], timeout: float | None) -> list[Image | None]:
        now_ms = self.clock.now_ms()
        with self._connect(timeout) as db:
            return [_load(db, key, now_ms) for key in keys]

    def _commit(self, writes: Sequence[Write], timeout: float | None) -> Committed | Conflict:
        with self._connect(timeout) as db:
            db.execute("BEGIN IMMEDIATE")
            now_ms = self.clock.now_ms()
            pairs = [(write, None if write.blind else _load(db, write.key, now_ms)) for write in writes]
            if not all(holds(old, write.guards) for write, old in pairs):
                return Conflict({write.key: old for write, old in pairs})
            images = tuple(_apply(db, write, old) for write, old in pairs)
            self._sweep(db, now_ms)
            db.execute("COMMIT")
            return Committed(images)

    def _query(self, query: Query, timeout: float | None) -> Page:
        sql, values = _select(query, self.clock.now_ms() // 1000)
        with self._connect(timeout) as db:
            found = db.execute(sql, values).fetchall()
        page = found[: query.limit]
        items = tuple((Key(pk, sk), _parse(Key(pk, sk), attrs)) for _, pk, sk, attrs in page)
        return Page(items, cursor_of(page[-1][0], items[-1][0]) if len(found) > len(page) else None)

    def _close(self) -> None:
        with self._lock:
            self._disconnect()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextlib.contextmanager
    def _connect(self, timeout: float | None) -> Iterator[sqlite3.Connection]:
        patience = self.timeout if timeout is None else timeout
        deadline = time.monotonic() + patience
        if not self._lock.acquire(timeout=max(0.0, patience)):
            raise RateLimiterUnavailable(f"SQLite file {self.path!r}: other calls kept it busy for {patience:.3g} s")
        try:
            if self._identity is not None and self._identify() != self._identity:
                raise self._drop_replaced_file()
            db = self._connection
            if db is None:
                db = self._connection = self._open(deadline)
                self._identity, self._was_open = self._identify(), True
            self._limit_waiting(db, deadline)
            try:
                yield db
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise self._translate(error) from error
        finally:
            self._lock.release()

    def _translate(self, error: sqlite3.Error) -> InfrastructureError:
        """Return the library's error for an error of SQLite's.

        A directory that does not exist when the file is first opened is a wrong path. One that vanishes later is an
        outage.
        """
        code, where = getattr(error, "sqlite_errorcode", 0) & 0xFF, f"SQLite file {self.path!r}"
        message = f"{where}: {_REASONS.get(code, error)} ({error})"
        if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            return CorruptRecordError(message)
        if os.path.isdir(self.path):
            return ConfigurationError(f"{where}: it cannot be opened: it is a directory")
        folder = os.path.dirname(os.path.realpath(self.path))
        if not self._was_open and _is_no_directory(folder):
            reason = f"there is no directory {folder!r}; create it, or correct the path in the store URL"
            return ConfigurationError(f"{where}: it cannot be opened: {reason}")
        return RateLimiterUnavailable(message, error)

    def _identify(self) -> tuple[int, int] | None:
        with contextlib.suppress(OSError):
            found = os.stat(self.path)
            return found.st_dev, found.st_ino
        return None

    def _drop_replaced_file(self) -> RateLimiterUnavailable:
        """Close a file that is no longer the one at the path, and return the error to raise."""
        self._disconnect()
        self._identity = None
        for forget in filter(None, [watcher() for watcher in self._watchers]):
            forget()
        reason = "it was deleted or replaced while it was open; the next call opens what is there, or makes a new one"
        log_event(STORE_REPLACED, "SQLite file %r: %s", self.path, reason, zae_backend=self.capabilities.name)
        return RateLimiterUnavailable(f"SQLite file {self.path!r}: {reason}")

    def _limit_waiting(self, db: sqlite3.Connection, deadline: float) -> None:
        left_ms = max(0, math.ceil((deadline - time.monotonic()) * 1000))
        if left_ms != self._busy_ms:
            db.execute(f"PRAGMA busy_timeout = {left_ms}")
            self._busy_ms = left_ms

    def _create_file(self) -> None:
        with contextlib.suppress(OSError):
            path = os.path.realpath(self.path)  # of a link to a file that does not exist yet
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            os.chmod(path, self.file_mode)

    def _open(self, deadline: float) -> sqlite3.Connection:
        self._create_file()
        db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        self._busy_ms = -1
        try:
            self._limit_waiting(db, deadline)
            db.execute("BEGIN")
            tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            application = db.execute("PRAGMA application_id").fetchone()[0]
            layout = db.execute("PRAGMA user_version").fetchone()[0]
            db.execute("COMMIT")
            if application == 0 and tables == 0:
                self._create_schema(db, deadline)
            elif application != _APPLICATION:
                raise IncompatibleSchemaError(
                    f"SQLite file {self.path!r} belongs to another program (application id {application:#x}); "
                    "nothing was changed. Choose another path."
                )
            elif layout > _LAYOUT:
                raise IncompatibleSchemaError(
                    f"SQLite file {self.path!r} has layout {layout}, this version reads {_LAYOUT}. Upgrade zae-limiter."
                )
            db.execute("PRAGMA synchronous = NORMAL")
        except BaseException:
            db.close()
            raise
        return db

    def _create_schema(self, db: sqlite3.Connection, deadline: float) -> None:
        while True:  # SQLite does not wait itself if another process is switching the journal too
            try:
                db.execute("PRAGMA journal_mode = WAL")
                break
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.005)
        schema = resources.files(__package__).joinpath("schema.sql").read_text(encoding="utf-8")
        self._limit_waiting(db, deadline)
        db.execute("BEGIN IMMEDIATE")
        for statement in filter(str.strip, schema.split(";")):
            db.execute(statement)
        db.execute(f"PRAGMA application_id = {_APPLICATION}")
        db.execute(f"PRAGMA user_version = {_LAYOUT}")
        db.execute("COMMIT")

    def _sweep(self, db: sqlite3.Connection, now_ms: int) -> None:
        if 0 <= now_ms - self._swept_ms < _SWEEP_EVERY_MS:
            return
        self._swept_ms = now_ms
        db.execute(
            "DELETE FROM items WHERE (pk, sk) IN (SELECT pk, sk FROM items WHERE ttl <= ? LIMIT ?)",
            (now_ms // 1000, _SWEEP_ROWS),
        )


class AsyncSqliteStore(SqliteStore):
    """A SQLite file for async code. Every call runs in a thread beside the event loop."""

    _pool: ThreadPoolExecutor | None = None
    _pid = 0

    def for_threads(self) -> SqliteStore:
        """Return a store of the same file for any thread."""
        days = self.capabilities.usage_retention_days
        made = SqliteStore(self.path, self.clock, self.timeout, days, self.file_mode)
        made._was_open = self._was_open
        return made

    async def close(self) -> None:
        """Close the connection and end the thread."""
        await self._submit(self._close)
        if self._pool is not None:
            self._pool.shutdown(wait=False)
            self._pool = None

    async def _run(self, work: Callable[[A, float | None], T], argument: A, timeout: float | None) -> T:
        """Do ``work`` in the thread with the seconds that are left when it starts."""
        import asyncio

        patience = self.timeout if timeout is None else timeout
        deadline = time.monotonic() + patience
        job = self._submit(lambda: work(argument, max(0.0, deadline - time.monotonic())))
        try:
            return await asyncio.wait_for(job, patience)
        except TimeoutError as error:
            message = f"SQLite file {self.path!r}: no answer within {patience:.3g} s"
            raise RateLimiterUnavailable(message, error) from error

    def _submit(self, work: Callable[[], T]) -> asyncio.Future[T]:
        import asyncio

        if self._pool is None or self._pid != os.getpid():
            self._pid = os.getpid()
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="zae-limiter-sqlite")
        return asyncio.get_running_loop().run_in_executor(self._pool, work)


def _is_no_directory(path: str) -> bool:
    """Return whether there is certainly no directory at a path. One that may not be looked at may exist."""
    try:
        return not stat.S_ISDIR(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False


def _load(db: sqlite3.Connection, key: Key, now_ms: int) -> Image | None:
    row = db.execute("SELECT attrs FROM items WHERE pk = ? AND sk = ?", key).fetchone()
    if row is None:
        return None
    image = _parse(key, row[0])
    return image if is_live(image, now_ms) else None


def _parse(key: Key, attrs: str) -> Image:
    try:
        image = json.loads(attrs)
    except (ValueError, RecursionError):
        image = None
    if not isinstance(image, dict):
        raise CorruptRecordError(
            f"The record {key.pk} {key.sk} is damaged: {attrs[:40]!r}. Delete it, or reset it if it is a bucket."
        )
    return image


def _apply(db: sqlite3.Connection, write: Write, old: Image | None) -> Image | None:
    if write.is_check:
        return old
    new = apply_write(old, write)
    if new is None:
        db.execute("DELETE FROM items WHERE pk = ? AND sk = ?", write.key)
        return None
    attrs = json.dumps(new, ensure_ascii=False, separators=(",", ":"))
    if old is not None and not write.remove and not any(attr.startswith("GSI") for attr in write.put):
        db.execute("UPDATE items SET attrs = ?, ttl = ? WHERE pk = ? AND sk = ?", (attrs, new.get(TTL), *write.key))
    else:
        entries = [part for name in INDEXES for part in (index_entry(name, new) or (None, None))]
        values = (*write.key, attrs, new.get(TTL), *entries)
        db.execute("INSERT OR REPLACE INTO items VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
    return new


def _select(query: Query, now_s: int) -> tuple[str, list[Any]]:
    partition, sort = ("pk", "sk") if query.gsi is None else (f"{query.gsi}pk".lower(), f"{query.gsi}sk".lower())
    conditions = [f"{partition} = ?", f"substr({sort}, 1, ?) = ?", f"{sort} >= ?", "(ttl IS NULL OR ttl > ?)"]
    values: list[Any] = [query.pk, len(query.prefix), query.prefix, max(query.prefix, query.start or ""), now_s]
    if query.end is not None:
        conditions.append(f"{sort} <= ?")
        values.append(query.end)
    if query.after is not None:
        conditions.append(f"({sort}, pk, sk) {'<' if query.descending else '>'} (?, ?, ?)")
        values += query.after.split("\x00")
    order = "DESC" if query.descending else "ASC"
    sql = (
        f"SELECT {sort}, pk, sk, attrs FROM items WHERE {' AND '.join(conditions)} "
        f"ORDER BY {sort} {order}, pk {order}, sk {order} LIMIT ?"
    )
    return sql, [*values, query.limit + 1]
