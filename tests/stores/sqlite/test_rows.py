"""Rows of a SQLite file that are no records: expired ones, and those that something else has written."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from zae_limiter import CorruptRecordError, Limit, SyncRateLimiter, SyncRepository
from zae_limiter.testing import ManualClock

RPM = [Limit.per_hour("rpm", 100)]
NEVER_REFILLED = [Limit.custom("rpm", capacity=100, refill_amount=1, refill_period_seconds=10 * 365 * 86_400)]


def taken(limiter: SyncRateLimiter) -> int:
    with limiter.acquire("key", "gpt-4", {"rpm": 1}, NEVER_REFILLED) as lease:
        return lease.available["rpm"]


def test_an_expired_row_that_was_not_deleted_yet_is_absent(tmp_path: Path) -> None:
    clock = ManualClock()
    url = f"sqlite:///{tmp_path}/limits.db?usage_retention_days=0"
    limiter = SyncRateLimiter(SyncRepository(url, clock=clock))
    with limiter.acquire("key", "gpt-4", {"rpm": 100}, RPM):
        pass
    clock.advance(8 * 3_600)
    with contextlib.closing(sqlite3.connect(tmp_path / "limits.db")) as db:
        assert db.execute("SELECT count(*) FROM items WHERE sk = '#STATE'").fetchone() == (1,)
    assert limiter.get_buckets("key") == []
    assert limiter.get_resource_capacity("gpt-4", "rpm").entities == ()
    with limiter.acquire("key", "gpt-4", {"rpm": 1}, RPM) as lease:
        assert lease.available == {"rpm": 99}
    limiter.close()


@pytest.mark.parametrize("attrs", ["{", "[]", '"text"', "{}"])
def test_a_row_that_is_no_record_is_an_error_until_it_is_repaired(tmp_path: Path, attrs: str) -> None:
    with SyncRateLimiter(f"sqlite:///{tmp_path}/limits.db") as limiter:
        taken(limiter)
        with contextlib.closing(sqlite3.connect(tmp_path / "limits.db")) as db:
            db.execute("UPDATE items SET attrs = ? WHERE sk = '#STATE'", (attrs,))
            db.commit()
        for victim in (limiter, SyncRateLimiter(f"sqlite:///{tmp_path}/limits.db")):
            with pytest.raises(CorruptRecordError):
                taken(victim)
        limiter.reset_bucket("key", "gpt-4")
        assert taken(limiter) == 99
