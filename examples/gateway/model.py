"""A language model that repeats what it is told: a word is a token. Put the call of a real one in its place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TypeAlias

Model: TypeAlias = Callable[[str, int], AsyncIterator[str]]
"""Called with a prompt and the most tokens to answer with; gives the tokens as they are made."""

_PACE = 0.02


async def echo(prompt: str, max_tokens: int) -> AsyncIterator[str]:
    """Repeat the prompt, at a pace at which a stream can be watched."""
    for word in prompt.split()[:max_tokens]:
        await asyncio.sleep(_PACE)
        yield f"{word} "


def count(prompt: str) -> int:
    """How many tokens a prompt has. Real ones are counted by a tokenizer, or by the model itself."""
    return len(prompt.split())


def estimate(prompt: str, max_tokens: int) -> int:
    """How many tokens a call will take, guessed before it is made: cheap, and rather too many than too few."""
    return len(prompt) // 4 + max_tokens
