"""Docstrings of async names in the words of blocking code."""

from __future__ import annotations

import inspect
import re

WORDS = (
    (re.compile(r"^>>> import asyncio\n", re.MULTILINE), ""),
    (re.compile(r"\basyncio\.run\((.*)\)"), r"\1"),
    (re.compile(r"\basync (?=with\b|def\b)"), ""),
    (re.compile(r"\bawait "), ""),
    (re.compile(r"\b(?=(?:RateLimiter|Repository|RepositoryBuilder|Lease)\b)"), "Sync"),
)
"""Each pattern of an async docstring that has to differ, and its replacement."""


def blocking_words(text: str) -> str:
    """Return the docstring of an async name as it reads for the blocking one."""
    text = inspect.cleandoc(text)
    for pattern, replacement in WORDS:
        text = pattern.sub(replacement, text)
    return text
