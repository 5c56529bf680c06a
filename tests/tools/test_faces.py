"""The blocking classes say what the async ones say, and the tool that writes it does only that."""

from __future__ import annotations

import doctest
import inspect

import pytest
from tools.faces import FACES, Docstring, blocking_words, docstrings, rewrite

from zae_limiter.sync import facade

FOUND = [pytest.param(each, id=f"{each.owner.__name__}.{each.name or '__doc__'}") for each in docstrings()]


@pytest.mark.parametrize("docstring", FOUND)
def test_the_docstring_is_that_of_the_async_name_in_blocking_words(docstring: Docstring) -> None:
    assert docstring.wanted, "the async name has no docstring"
    assert docstring.text == docstring.wanted, "run python -m tools.faces"


def test_every_public_name_of_the_blocking_classes_is_compared() -> None:
    compared = {(each.owner, each.name) for each in docstrings()}
    for twin, face in FACES:
        for name in vars(face):
            assert name.startswith("_") or (face, name) in compared
        shared = {name for name in dir(face) if not name.startswith("_") and (face, name) not in compared}
        assert all(inspect.getdoc(getattr(face, name)) for name in shared)
        assert {name for name in dir(twin) if not name.startswith("_")} <= {*dir(face), *vars(twin)}


def test_what_has_to_differ_differs() -> None:
    text = (
        ">>> import asyncio\n>>> async def take(limiter: RateLimiter) -> None:\n...     async with limiter.acquire():\n"
        "...         await limiter.close()\n>>> asyncio.run(take(RateLimiter()))\n"
        "A `Repository` and a `Lease`; `RateLimiterClosedError` and `SyncLease` stay."
    )
    assert blocking_words(text) == (
        ">>> def take(limiter: SyncRateLimiter) -> None:\n...     with limiter.acquire():\n"
        "...         limiter.close()\n>>> take(SyncRateLimiter())\n"
        "A `SyncRepository` and a `SyncLease`; `RateLimiterClosedError` and `SyncLease` stay."
    )


def test_rewriting_replaces_docstrings_and_nothing_else() -> None:
    source = (
        'class Lease:\n    """Old."""\n\n    def close(self) -> None:\n        """Old.\n\n        Long.\n        """\n'
    )
    owner = type("Lease", (), {})
    found = [Docstring(owner, None, "Old.", "New.\n\nLonger."), Docstring(owner, "close", "Old.", "Shorter.")]
    assert rewrite(source, found) == (
        'class Lease:\n    """New.\n\n    Longer.\n    """\n\n    def close(self) -> None:\n        """Shorter."""\n'
    )


def test_the_examples_in_blocking_docstrings_run() -> None:
    done = doctest.testmod(facade)
    assert done.attempted
    assert not done.failed
