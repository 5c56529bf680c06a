"""Examples in docstrings, which the API reference shows."""

from __future__ import annotations

import doctest
import importlib

import pytest

MODULES = ["core.bucket", "core.limit", "stores.urls", "testing", "testing.clock"]


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_docstring_examples(module: str) -> None:
    result = doctest.testmod(importlib.import_module(f"zae_limiter.{module}"))
    assert result.attempted > 0
    assert result.failed == 0
