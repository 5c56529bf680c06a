"""The conformance suite can fail: stores with broken expiry, values and ranges are caught, and limiters on them too.

Each store here is the `Toy` of `toys`, which passes, with one thing wrong.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.conformance import LIMITER_CHECKS, SHARD_CHECKS, STORE_CHECKS, Check
from tests.laws import test_broken_stores as test_records_broken_stores
from tests.laws.test_broken_stores import fails, named
from tests.laws.toys import Toy, toys
from zae_limiter import BackendCapabilities
from zae_limiter.records.algebra import TTL, Committed, Conflict, Image, Key, Page, Query, Write
from zae_limiter.stores.ranges import cursor_of, page_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zae_limiter import Clock


# Expiry.


class Immortal(Toy):
    """Waits for somebody to delete what has expired."""

    def live(self, image: Image | None) -> bool:
        return image is not None


class ImmortalForGuards(Toy):
    """Honours expiry in reads, but not in commits."""

    async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
        self.live = lambda image: image is not None  # type: ignore[method-assign]
        try:
            return await super().commit(writes)
        finally:
            del self.live


class ImmortalInRanges(Toy):
    """Honours expiry in reads and commits, but not in queries."""

    async def query(self, query: Query, *, timeout: float | None = None) -> Page:
        self.live = lambda image: image is not None  # type: ignore[method-assign]
        try:
            return await super().query(query)
        finally:
            del self.live


class OldAttributesSurvive(Toy):
    """Writes a new record over the remains of an expired one."""

    def applied(self, old: Image | None, write: Write) -> Image | None:
        remains = json.loads(self.rows[write.key]) if write.key in self.rows else None
        if remains is not None:
            remains.pop(TTL, None)
        return super().applied(old if old is not None else remains, write)


class ForgetsExpiry(Toy):
    """Drops the expiry with every write that does not set it."""

    def applied(self, old: Image | None, write: Write) -> Image | None:
        if old is not None and write.expires_at_ms is None:
            old = {attr: value for attr, value in old.items() if attr != TTL}
        return super().applied(old, write)


class KeepsExpiry(Toy):
    """Sets an expiry once and for ever."""

    def applied(self, old: Image | None, write: Write) -> Image | None:
        if old is not None and TTL in old:
            write = write._replace(expires_at_ms=None)
        return super().applied(old, write)


class BringsExpiryNearer(Toy):
    """Sets the expiry to whatever the last writer says."""

    def applied(self, old: Image | None, write: Write) -> Image | None:
        if old is not None and write.expires_at_ms:
            old = {attr: value for attr, value in old.items() if attr != TTL}
        return super().applied(old, write)


class HastyExpiry(Toy):
    """Rounds the expiry down to the second."""

    def applied(self, old: Image | None, write: Write) -> Image | None:
        if write.expires_at_ms:
            write = write._replace(expires_at_ms=write.expires_at_ms // 1000 * 1000)
        return super().applied(old, write)


# Values.


class Doubles(Toy):
    """Counts in floating point."""

    def load(self, key: Key) -> Image | None:
        image = super().load(key)
        return image and {a: float(v) if type(v) is int and a != TTL else v for a, v in image.items()}


class Ascii(Toy):
    """Loses letters."""

    def applied(self, old: Image | None, write: Write) -> Image | None:
        new = super().applied(old, write)
        return None if new is None else json.loads(json.dumps(new, ensure_ascii=False).encode("ascii", "replace"))


class EmptyListsAreMaps(Toy):
    """Takes an empty list for an empty map, as Lua does."""

    def applied(self, old: Image | None, write: Write) -> Image | None:
        new = super().applied(old, write)
        return None if new is None else json.loads(json.dumps(new).replace("[]", "{}"))


class DropsNone(Toy):
    """Loses None inside of metadata."""

    def applied(self, old: Image | None, write: Write) -> Image | None:
        return json.loads(json.dumps(super().applied(old, write)).replace(": null", ': ""'))  # type: ignore[no-any-return]


class DottedNames(Toy):
    """Takes dots and dashes in attribute names for underscores."""

    def applied(self, old: Image | None, write: Write) -> Image | None:
        new = super().applied(old, write)
        return None if new is None else {attr.replace("-", "_").replace(".", "_"): v for attr, v in new.items()}


# Ranges.


class WithQuery(Toy):
    """Answers another query than it was asked."""

    def asked(self, query: Query) -> Query:
        return query

    async def query(self, query: Query, *, timeout: float | None = None) -> Page:
        return await super().query(self.asked(query))


class IgnoresPrefix(WithQuery):
    def asked(self, query: Query) -> Query:
        return query._replace(prefix="")


class IgnoresStart(WithQuery):
    def asked(self, query: Query) -> Query:
        return query._replace(start=None)


class ExcludesEnd(Toy):
    def page(self, rows: list[tuple[Key, Image]], query: Query) -> Page:
        sort = {key: key.sk if query.gsi is None else image[f"{query.gsi}SK"] for key, image in rows}
        return page_of([row for row in rows if sort[row[0]] != query.end], query)


class NeverDescends(WithQuery):
    def asked(self, query: Query) -> Query:
        return query._replace(descending=False)


class NoCursor(Toy):
    """Says that every page is the last."""

    def page(self, rows: list[tuple[Key, Image]], query: Query) -> Page:
        return page_of(rows, query)._replace(cursor=None)


class RepeatsAtTheCursor(Toy):
    """Begins a page with the last record of the one before."""

    def page(self, rows: list[tuple[Key, Image]], query: Query) -> Page:
        page = page_of(rows, query)
        again = [row for row in rows if self.position(row, query) == query.after]
        return page._replace(items=(*again, *page.items)[: query.limit])

    def position(self, row: tuple[Key, Image], query: Query) -> str:
        return cursor_of(row[0].sk if query.gsi is None else row[1][f"{query.gsi}SK"], row[0])


class SkipsEqualSortKeys(Toy):
    """Goes on after the sort key, not after the record."""

    def page(self, rows: list[tuple[Key, Image]], query: Query) -> Page:
        def sort(row: tuple[Key, Image]) -> str:
            return str(row[0].sk if query.gsi is None else row[1][f"{query.gsi}SK"])

        after = query.after
        if after is not None:
            rows = [row for row in rows if (sort(row) < after if query.descending else sort(row) > after)]
        page = page_of(rows, query._replace(after=None))
        return page._replace(cursor=page.cursor and page.cursor.split("\x00")[0])


class CountingCursor(Toy):
    """Takes a cursor for a number of records to leave out."""

    def page(self, rows: list[tuple[Key, Image]], query: Query) -> Page:
        done = int(query.after or 0)
        every = page_of(rows, query._replace(after=None, limit=10**6)).items
        some = every[done : done + query.limit]
        return Page(some, str(done + len(some)) if done + len(some) < len(every) else None)


class BytesCursor(Toy):
    """Gives out cursors that are not text."""

    def page(self, rows: list[tuple[Key, Image]], query: Query) -> Page:
        page = page_of(rows, query)
        return page._replace(cursor=page.cursor and page.cursor.encode())  # type: ignore[arg-type]  # that is the break


class PagesTooLong(Toy):
    def page(self, rows: list[tuple[Key, Image]], query: Query) -> Page:
        return page_of(rows, query._replace(limit=query.limit + 1))


class Wildcards(Toy):
    """Matches a prefix as a pattern."""

    def page(self, rows: list[tuple[Key, Image]], query: Query) -> Page:
        return page_of(rows, query._replace(prefix="") if set(query.prefix) & set("%*_?") else query)


class Utf16Order(Toy):
    """Sorts by UTF-16, as some databases do."""

    def page(self, rows: list[tuple[Key, Image]], query: Query) -> Page:
        page = page_of(rows, query)
        if query.after is None and page.cursor is None:
            order = sorted(page.items, key=lambda row: self.sort(row, query).encode("utf-16-be"))
            return page._replace(items=tuple(order[::-1] if query.descending else order))
        return page

    def sort(self, row: tuple[Key, Image], query: Query) -> str:
        return str(row[0].sk if query.gsi is None else row[1][f"{query.gsi}SK"])


class StaysInIndex(Toy):
    """Finds a record wherever it has ever been."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.been: dict[tuple[Key, str | None], set[str]] = {}

    def apply(self, write: Write, old: Image | None) -> Image | None:
        new = super().apply(write, old)
        for gsi in ("GSI1", "GSI2", "GSI3", "GSI4"):
            if new is not None and f"{gsi}PK" in new:
                self.been.setdefault((write.key, gsi), set()).add(new[f"{gsi}PK"])
        return new

    async def query(self, query: Query, *, timeout: float | None = None) -> Page:
        found = [key for key in self.rows if query.pk in self.been.get((key, query.gsi), ())]
        rows = [(key, {f"{query.gsi}SK": "", **(self.load(key) or {})}) for key in found]
        return self.page(rows, query) if query.gsi else await super().query(query)


class OneIndex(Toy):
    """Answers for every index by the attributes of the first."""

    def partition(self, key: Key, image: Image, gsi: str | None) -> str | None:
        every = (super(OneIndex, self).partition(key, image, each) for each in ("GSI1", "GSI2", "GSI3", "GSI4"))
        return key.pk if gsi is None else next((pk for pk in every if pk is not None), None)


class NearPartitions(Toy):
    """Takes a partition for all that begin like it."""

    async def query(self, query: Query, *, timeout: float | None = None) -> Page:
        live = [(key, image) for key in self.rows if (image := self.load(key)) is not None]
        rows = [row for row in live if (self.partition(*row, query.gsi) or "").startswith(query.pk)]
        return self.page(rows, query)


class StaleRanges(Toy):
    """Shows records in ranges as they were created."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.first: dict[Key, Image] = {}

    def page(self, rows: list[tuple[Key, Image]], query: Query) -> Page:
        return page_of([(key, {**image, **self.first.setdefault(key, image)}) for key, image in rows], query)


# The store as such.


class ByItsOwnClock(Toy):
    """Decides by another clock than it was given."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(toys(Toy, True).clock)


class NoTimeouts(Toy):
    async def read(self, keys: Sequence[Key]) -> list[Image | None]:  # type: ignore[override]  # that is the break
        return await super().read(keys)


class ClosesOnce(Toy):
    """Cannot be closed again, and takes the data along."""

    closed = False

    async def close(self) -> None:
        assert not self.closed, "closed already"
        self.closed = True
        self.rows.clear()


class ChangesItsMind(Toy):
    """Declares something else each time."""

    @property
    def capabilities(self) -> BackendCapabilities:  # type: ignore[override]  # that is the break
        self.calls = getattr(self, "calls", 0) + 1
        return BackendCapabilities(f"toy-{self.calls}", True, True, True, False, False)


CAUGHT: list[tuple[type[Toy], str]] = [
    (Immortal, "expiry.absent_for_reads"),
    (Immortal, "expiry.in_one_commit"),
    (ImmortalForGuards, "expiry.absent_for_guards"),
    (ImmortalForGuards, "expiry.deleted_when_expired"),
    (ImmortalInRanges, "expiry.absent_in_ranges"),
    (OldAttributesSurvive, "expiry.a_new_life"),
    (ForgetsExpiry, "expiry.kept_by_default"),
    (KeepsExpiry, "expiry.never"),
    (KeepsExpiry, "expiry.put_off"),
    (BringsExpiryNearer, "expiry.put_off"),
    (HastyExpiry, "expiry.absent_for_reads"),
    (Doubles, "values.big_numbers"),
    (Ascii, "values.texts"),
    (EmptyListsAreMaps, "values.nested"),
    (DropsNone, "values.nested"),
    (DottedNames, "values.attribute_names"),
    (IgnoresPrefix, "ranges.by_prefix"),
    (IgnoresStart, "ranges.by_bounds"),
    (ExcludesEnd, "ranges.by_bounds"),
    (NeverDescends, "ranges.in_order"),
    (NoCursor, "ranges.page_by_page"),
    (RepeatsAtTheCursor, "ranges.page_by_page"),
    (SkipsEqualSortKeys, "ranges.equal_sort_keys"),
    (CountingCursor, "ranges.cursor_of_the_deleted"),
    (BytesCursor, "ranges.cursor_for_anybody"),
    (PagesTooLong, "ranges.page_by_page"),
    (Wildcards, "ranges.prefix_is_no_pattern"),
    (Utf16Order, "ranges.in_order"),
    (StaysInIndex, "ranges.leaving"),
    (StaysInIndex, "ranges.moving"),
    (OneIndex, "ranges.indexes_are_apart"),
    (NearPartitions, "ranges.partitions_are_apart"),
    (StaleRanges, "ranges.up_to_date"),
    (ByItsOwnClock, "lifecycle.clock"),
    (NoTimeouts, "lifecycle.timeouts"),
    (ClosesOnce, "lifecycle.close_twice"),
    (ChangesItsMind, "lifecycle.capabilities"),
]
"""Every broken store here, and a check that is about what is wrong with it."""


@pytest.mark.parametrize("pair", CAUGHT, ids=named)
def test_caught(pair: tuple[type[Toy], str]) -> None:
    assert fails(*pair)


RACES = {"commits.race", "commits.race_of_several_writes"}
"""Caught in a test of their own, in which something is concurrent."""


def test_every_check_of_a_store_can_fail() -> None:
    """A check that nothing fails would prove nothing."""
    proved = {name for _, name in (*CAUGHT, *test_records_broken_stores.CAUGHT)} | RACES
    assert proved == {check.name for check in STORE_CHECKS}


class Amnesiac(Toy):
    """Says yes and keeps nothing but the list of namespaces."""

    def apply(self, write: Write, old: Image | None) -> Image | None:
        return super().apply(write, old) if write.key.pk.startswith("_/") else self.applied(old, write)


class Rigid(Toy):
    """Takes the first version of every record for the last."""

    def applied(self, old: Image | None, write: Write) -> Image | None:
        return super().applied(None, write) if old is None else old


@pytest.mark.parametrize("check", [*LIMITER_CHECKS, *SHARD_CHECKS], ids=str)
def test_every_check_of_the_limiter_can_fail(check: Check) -> None:
    """On a store that forgets, or forgets to forget, or takes everything, no claim about the limiter holds for all."""
    failed = []
    for kind in (Amnesiac, Rigid, test_records_broken_stores.WithoutGuards):
        try:
            check.run(toys(kind, True))
        except Exception as error:
            failed.append(error)
    assert failed
