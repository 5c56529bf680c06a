"""Every store in both modes: the fixtures that most tests run over."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.aws import engine
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


if engine.URL not in os.environ:  # no test can ever reach somebody's account
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
    nowhere = dict.fromkeys(("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"), os.devnull)
    os.environ.update(nowhere, AWS_EC2_METADATA_DISABLED="true")


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
