"""Who may read the file: only its owner, unless the URL says otherwise."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from zae_limiter import Limit, RateLimiter, SyncRateLimiter, SyncRepository, ValidationError
from zae_limiter.stores.sqlite import AsyncSqliteStore

pytestmark = pytest.mark.unix
RPM = [Limit.per_minute("rpm", 100)]


@contextlib.contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def modes(folder: Path) -> dict[str, str]:
    return {path.name: f"{path.stat().st_mode & 0o777:04o}" for path in folder.iterdir()}


async def use(url: str, *, blocking: bool, folder: Path) -> dict[str, str]:
    """Take a token, and return the permissions of all files that are there then."""
    if blocking:
        with SyncRateLimiter(url) as limiter:
            with limiter.acquire("key", "gpt-4", {"rpm": 1}, limits=RPM):
                pass
            return modes(folder)
    async with RateLimiter(url) as limiter:
        async with limiter.acquire("key", "gpt-4", {"rpm": 1}, limits=RPM):
            pass
        return modes(folder)


@pytest.mark.parametrize("blocking", [False, True], ids=["async", "blocking"])
@pytest.mark.parametrize("mask", [0, 0o022, 0o077])
@pytest.mark.parametrize(("query", "mode"), [("", "0600"), ("?file_mode=0660", "0660"), ("?file_mode=644", "0644")])
def test_files_are_created_with_their_permissions(
    tmp_path: Path, blocking: bool, mask: int, query: str, mode: str
) -> None:
    import asyncio

    with umask(mask):
        found = asyncio.run(use(f"sqlite:///{tmp_path}/limits.db{query}", blocking=blocking, folder=tmp_path))
    assert found == dict.fromkeys(("limits.db", "limits.db-shm", "limits.db-wal"), mode)


def test_a_file_that_exists_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "limits.db"
    with SyncRepository(f"sqlite:///{path}") as repository:
        repository.create_entity("key")
    path.chmod(0o640)
    with SyncRepository(f"sqlite:///{path}?file_mode=0666") as repository:
        assert repository.get_entity("key") is not None
        assert set(modes(tmp_path).values()) == {"0640"}


def test_the_target_of_a_link_is_created_with_them_too(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (tmp_path / "link.db").symlink_to(folder / "limits.db")
    with SyncRepository(f"sqlite:///{tmp_path}/link.db") as repository:
        repository.create_entity("key")
        assert set(modes(folder).values()) == {"0600"}


def test_the_store_for_threads_creates_files_with_them_too(tmp_path: Path) -> None:
    store = AsyncSqliteStore(tmp_path / "limits.db", file_mode=0o660)
    assert store.for_threads().file_mode == 0o660


@pytest.mark.parametrize("text", ["", "0800", "rw", "-600", "0o600", "0400", "0077", "1777", "6_00", " 600"])
def test_permissions_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="file_mode"):
        SyncRepository(f"sqlite:///limits.db?file_mode={text}")
