"""Smoke test for an environment with the wheel and its requirements only."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from importlib import metadata, resources
from pathlib import Path

import zae_limiter
from zae_limiter import CapacityExceeded, Limit, RateLimiter, RateLimitExceeded, SyncRateLimiter

LIMITS = [Limit.per_day("requests", 3), Limit.per_day("tokens", 1_000)]
URLS = ("memory://", "sqlite:///smoke.db")


def check_installation(version: str) -> None:
    """Check that the installed package is the one that was built, with its data files, and not the repository's."""
    assert zae_limiter.__version__ == metadata.version("zae-limiter") == version, zae_limiter.__version__
    assert "site-packages" in Path(zae_limiter.__file__ or "").parts, zae_limiter.__file__
    files = resources.files("zae_limiter")
    for name in ("py.typed", "stores/schema.sql", "aws/template.yaml"):
        assert files.joinpath(name).is_file(), f"{name} is not in the wheel"


def check_commands(version: str) -> None:
    """Check that the command line starts, grants and refuses."""
    command = str(Path(sys.executable).with_name("zae-limiter"))
    said = subprocess.run([command, "--version"], capture_output=True, text=True, check=True).stdout
    assert version in said, said
    acquire = [command, "--url", "sqlite:///commands.db", "acquire", "key", "gpt-4", "-c", "rpm:60", "-l", "rpm:60/day"]
    codes = [subprocess.run(acquire, capture_output=True, check=False).returncode for _ in range(2)]
    assert codes[0] == 0, codes
    assert codes[1] != 0, codes


def check_blocking(url: str) -> None:
    """Check an organisation and its key, an adjustment into debt, and both kinds of refusal."""
    with SyncRateLimiter(url) as limiter:
        limiter.set_system_defaults(LIMITS)
        limiter.create_entity("acme")
        limiter.create_entity("key-1", parent_id="acme", cascade=True)
        with limiter.acquire("key-1", "gpt-4", {"requests": 1, "tokens": 500}) as lease:
            lease.adjust(tokens=700)
        assert limiter.available("acme", "gpt-4") == {"requests": 2, "tokens": -200}
        assert refusal_of(limiter, {"tokens": 1}) is RateLimitExceeded
        assert refusal_of(limiter, {"tokens": 2_000}) is CapacityExceeded


def refusal_of(limiter: SyncRateLimiter, cost: dict[str, int]) -> type[RateLimitExceeded] | None:
    """Return the kind of refusal that an acquire gets, or None if it is granted."""
    try:
        with limiter.acquire("key-1", "gpt-4", cost):
            return None
    except RateLimitExceeded as refused:
        return type(refused)


async def check_async(url: str) -> None:
    """Check that async code sees what blocking code has taken, where a store is shared, and can take more."""
    async with RateLimiter(url) as limiter:
        await limiter.set_system_defaults(LIMITS)
        async with limiter.acquire("key-2", "gpt-4", {"requests": 1, "tokens": 10}):
            pass
        assert await limiter.available("key-2", "gpt-4") == {"requests": 2, "tokens": 990}


def main(version: str) -> None:
    """Check everything; an ``AssertionError`` says what does not work."""
    check_installation(version)
    check_commands(version)
    for url in URLS:
        check_blocking(url)
        asyncio.run(check_async(url))
    print(f"zae-limiter {version} works in an environment of its own, on {' and '.join(URLS)}")


if __name__ == "__main__":
    main(sys.argv[1])
