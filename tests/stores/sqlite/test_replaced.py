"""A SQLite file that is deleted or replaced while it is open."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from zae_limiter import Limit, RateLimiter, RateLimiterUnavailable, SyncRateLimiter, ValidationError

RPM = [Limit.per_hour("rpm", 10)]


def delete(path: Path) -> None:
    for part in path.parent.glob(f"{path.name}*"):
        part.unlink()


def take(limiter: SyncRateLimiter, amount: int = 1, limits: list[Limit] | None = None) -> int:
    with limiter.acquire("key", "gpt-4", {"rpm": amount}, limits) as lease:
        return lease.available["rpm"]


def test_a_deleted_file_is_noticed_once_and_made_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "limits.db"
    with SyncRateLimiter(f"sqlite:///{path}") as limiter, caplog.at_level(logging.INFO, "zae_limiter"):
        limiter.set_system_defaults(RPM)
        assert take(limiter) == 9
        delete(path)
        with pytest.raises(RateLimiterUnavailable, match="deleted or replaced"):
            take(limiter)
        with pytest.raises(ValidationError, match="no limits are stored"):
            take(limiter)
        assert take(limiter, limits=RPM) == 9
        assert path.exists()
    events = [record.zae_event for record in caplog.records]  # type: ignore[attr-defined]  # a field of ours
    assert events.count("store.replaced") == 1


def test_all_clients_of_a_deleted_file_meet_in_the_new_one(tmp_path: Path) -> None:
    """Nobody goes on spending from a file that no other process can open, nor in a namespace that is not there."""
    path = tmp_path / "limits.db"
    url = f"sqlite:///{path}"
    with SyncRateLimiter(url) as old, SyncRateLimiter(url) as other:
        assert [take(old, 4, RPM), take(other, 4, RPM)] == [6, 2]
        delete(path)
        with SyncRateLimiter(url) as newcomer:
            assert take(newcomer, 4, RPM) == 6
            for limiter in (old, other):
                with pytest.raises(RateLimiterUnavailable):
                    take(limiter, 1, RPM)
            assert [take(old, 1, RPM), take(other, 1, RPM), take(newcomer, 1, RPM)] == [5, 4, 3]


def test_a_restored_backup_is_in_force_at_once(tmp_path: Path) -> None:
    path, backup = tmp_path / "limits.db", tmp_path / "backup.db"
    with SyncRateLimiter(f"sqlite:///{path}") as limiter:
        limiter.set_system_defaults(RPM)
    shutil.copy(path, backup)
    with SyncRateLimiter(f"sqlite:///{path}") as limiter:
        limiter.set_system_defaults([Limit.per_hour("rpm", 1_000)])
        assert take(limiter) == 999
        delete(path)
        backup.rename(path)
        with pytest.raises(RateLimiterUnavailable):
            take(limiter)
        assert take(limiter) == 9


@pytest.mark.parametrize("policy", ["allow", "block"])
def test_the_policy_decides_for_the_call_that_notices(tmp_path: Path, policy: str) -> None:
    path = tmp_path / "limits.db"
    with SyncRateLimiter(f"sqlite:///{path}", on_unavailable=policy) as limiter:
        assert take(limiter, limits=RPM) == 9
        delete(path)
        if policy == "block":
            with pytest.raises(RateLimiterUnavailable):
                take(limiter, limits=RPM)
        else:
            with limiter.acquire("key", "gpt-4", {"rpm": 1}, RPM) as lease:
                assert lease.degraded
        assert take(limiter, limits=RPM) == 9


@pytest.mark.parametrize("closes", [False, True])
async def test_async_clients_notice_too(tmp_path: Path, closes: bool) -> None:
    path = tmp_path / "limits.db"
    limiter = RateLimiter(f"sqlite:///{path}")
    async with limiter.acquire("key", "gpt-4", {"rpm": 4}, RPM):
        pass
    delete(path)
    if closes:
        await limiter.repository.store.close()
    with pytest.raises(RateLimiterUnavailable):
        await limiter.available("key", "gpt-4", RPM)
    assert await limiter.available("key", "gpt-4", RPM) == {"rpm": 10}
    await limiter.close()


def test_a_directory_that_is_gone_is_an_outage(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    with SyncRateLimiter(f"sqlite:///{folder}/limits.db") as limiter:
        assert take(limiter, limits=RPM) == 9
        shutil.rmtree(folder)
        for _ in range(2):
            with pytest.raises(RateLimiterUnavailable):
                take(limiter, limits=RPM)
        with limiter.acquire("key", "gpt-4", {"rpm": 1}, RPM, on_unavailable="allow") as lease:
            assert lease.degraded
        folder.mkdir()
        assert take(limiter, limits=RPM) == 9
