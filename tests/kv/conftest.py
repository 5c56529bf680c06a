"""A mode and a clock: what most tests of the key-value limiter run over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kv.support import Mode
from tests.support.modes import MODES
from zae_limiter.testing import ManualClock


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> Iterator[Mode]:
    """Async or blocking."""
    made = Mode(request.param)
    yield made
    made.close()


@pytest.fixture
def clock() -> ManualClock:
    """Time that stands still."""
    return ManualClock()
