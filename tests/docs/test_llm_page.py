"""The recipe for streams charges what was produced, in every way in which a stream can end."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import pytest

from tests.docs.pages import on_page
from tests.support.paths import ROOT
from zae_limiter import Limit, RateLimiter

PROMPT = "Say hello."
PROMPT_TOKENS = 2
DAY = 1_000

Streamed = Callable[[RateLimiter, str, str], AsyncGenerator[str, None]]


@pytest.fixture
def page() -> dict[str, Any]:
    """What the Python blocks of the page define, down to the streams."""
    names: dict[str, Any] = {"__name__": "page"}
    for block in on_page(ROOT / "docs" / "guide" / "llm.md"):
        if block.language == "python" and "streamed" not in names:
            with contextlib.redirect_stdout(io.StringIO()):
                exec(block.text, names)
    return names


async def _charged(limiter: RateLimiter) -> tuple[int, int]:
    left = await limiter.available("key-1", "gpt-4")
    return 60 - left["rpm"], DAY - left["tpm"]


async def _limiter() -> RateLimiter:
    limiter = RateLimiter("memory://")
    await limiter.set_system_defaults([Limit.per_hour("rpm", 60), Limit.per_day("tpm", DAY)])
    return limiter


async def test_a_reader_that_stops_pays_for_what_it_has_heard(page: dict[str, Any]) -> None:
    streamed: Streamed = page["streamed"]

    async def main() -> tuple[int, int]:
        async with await _limiter() as limiter:
            async with aclosing(streamed(limiter, "key-1", PROMPT)) as stream:
                assert [await anext(stream), await anext(stream)] == ["never", "buffered"]
            return await _charged(limiter)

    assert await main() == (1, PROMPT_TOKENS + 2)


async def test_a_provider_that_fails_halfway_is_charged_and_its_error_is_raised(page: dict[str, Any]) -> None:
    streamed: Streamed = page["streamed"]

    async def failing(prompt: str) -> AsyncIterator[str]:
        yield "never"
        raise ConnectionError("the provider hung up")

    page["words"] = failing

    async def main() -> tuple[int, int]:
        async with await _limiter() as limiter:
            with pytest.raises(ConnectionError, match="hung up"):
                [word async for word in streamed(limiter, "key-1", PROMPT)]
            return await _charged(limiter)

    assert await main() == (1, PROMPT_TOKENS + 1)


async def test_a_task_that_is_cancelled_is_charged_and_stays_cancelled(page: dict[str, Any]) -> None:
    streamed: Streamed = page["streamed"]
    heard = asyncio.Event()

    async def hanging(prompt: str) -> AsyncIterator[str]:
        yield "never"
        heard.set()
        await asyncio.Event().wait()

    page["words"] = hanging

    async def main() -> tuple[int, int]:
        async with await _limiter() as limiter:

            async def listen() -> list[str]:
                return [word async for word in streamed(limiter, "key-1", PROMPT)]

            task = asyncio.create_task(listen())
            await heard.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return await _charged(limiter)

    assert await main() == (1, PROMPT_TOKENS + 1)
