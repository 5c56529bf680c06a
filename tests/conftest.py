"""Every store in both modes: the fixtures that most tests run over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.backends import BACKENDS, Backend

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from zae_limiter.testing import Harness

settings.register_profile(
    "default",
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.register_profile("deep", parent=settings.get_profile("default"), derandomize=False, max_examples=2000)
settings.load_profile("default")


@pytest.fixture(params=BACKENDS, ids=str)
def backend(request: pytest.FixtureRequest) -> Backend:
    """A store and a mode."""
    found: Backend = request.param
    return found


@pytest.fixture
def harness(backend: Backend, tmp_path: Path) -> Iterator[Harness]:
    """The backend on data of its own, with a manual clock."""
    with backend.harness(tmp_path) as made:
        yield made
