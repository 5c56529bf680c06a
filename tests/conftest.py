"""How tests are run, and every store in both modes: the fixtures that most tests run over."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.support import deadlines
from tests.support.aws import engine
from tests.support.backends import BACKENDS, Backend
from zae_limiter.testing import Harness

if TYPE_CHECKING:
    from collections.abc import Iterator

settings.register_profile(
    "default",
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.register_profile("deep", parent=settings.get_profile("default"), derandomize=False, max_examples=2000)
settings.register_profile("fast", parent=settings.get_profile("default"), max_examples=20)
settings.load_profile("default")

deadlines.lengthen()

if engine.URL not in os.environ:  # no test can ever reach somebody's account
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
    nowhere = dict.fromkeys(("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"), os.devnull)
    os.environ.update(nowhere, AWS_EC2_METADATA_DISABLED="true")


HANG = "hang_seconds"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let ``-o hang_seconds=...`` say when a test hangs."""
    parser.addini(HANG, "fail a test whose setup, call or teardown takes longer than this; 0: never", default="180")


@pytest.hookimpl(wrapper=True)
def _fail_if_it_hangs(item: pytest.Item) -> Iterator[None]:
    """Fail a phase of a test that does not end."""
    seconds = float(item.config.getini(HANG))
    with deadlines.ends_within(seconds) if seconds else contextlib.nullcontext():
        yield


pytest_runtest_setup = pytest_runtest_call = pytest_runtest_teardown = _fail_if_it_hangs


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function: in the mode of its harness if it has one, else in an event loop."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    harness = next((value for value in arguments.values() if isinstance(value, Harness)), None)
    (asyncio.run if harness is None else harness.run)(pyfuncitem.obj(**arguments))
    return True


@pytest.fixture(params=BACKENDS, ids=str)
def backend(request: pytest.FixtureRequest) -> Backend:
    """A store and a mode."""
    found: Backend = request.param
    return found


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where stores keep their files. One folder for all, as no name is used twice: a folder per test costs more."""
    return tmp_path_factory.mktemp("files")


@pytest.fixture
def harness(backend: Backend, files: Path) -> Iterator[Harness]:
    """The backend on data of its own, with a manual clock."""
    with backend.harness(files) as made:
        yield made


LONGEST = (
    "laws/test_laws.py",
    "laws/test_conformance.py",
    "aws/test_local_cli.py",
    "docs/test_console.py",
    "limiter/test_rates.py",
    "laws/test_shards_simulation.py",
    "repository/test_usage_processes.py",
    "aggregator/test_exactly_once.py",
    "repository/test_usage_kept.py",
    "stores/dynamodb/test_borders.py",
    "cli/test_demo.py",
    "laws/test_model.py",
    "web/test_asgi_servers.py",
    "laws/test_crowd_simulation.py",
    "repository/test_audit.py",
    "aws/test_deployment.py",
    "stores/redis/test_sweep.py",
    "repository/test_entities.py",
    "web/test_examples.py",
    "aws/test_end_to_end.py",
    "v017/test_upgrade.py",
    "aws/test_adoption.py",
    "stores/redis/test_records.py",
    "stores/redis/test_cluster_failover.py",
    "stores/redis/test_processes.py",
    "stores/redis/test_rig.py",
    "stores/redis/test_sentinel.py",
)
"""The files that take longest, longest first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take long come first, so that workers which take a file at a time end together."""
    here = Path(__file__).parent
    places = {here / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(LONGEST)))
