"""The places at which the middleware is tested: stores and modes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.support.backends import BACKENDS
from tests.web.scripted import MODES, Place
from tests.web.servers.site import Site, Visit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PLACES = [
    pytest.param((backend, mode), id=f"{backend.kind}-{mode}")
    for backend in BACKENDS
    for mode in MODES
    if backend.kind in ("memory", "sqlite", "redis")
    and backend.blocking == mode.startswith("wsgi")
    and (backend.kind == "memory" or mode != "wsgi-lazy")
]


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, files: Path) -> Iterator[Place]:
    """A store on data of its own, with a manual clock, and a mode."""
    backend, mode = request.param
    with backend.harness(files) as harness:
        yield Place(harness, mode)


@pytest.fixture
def visit(site: Site, request: pytest.FixtureRequest) -> Visit:
    """A client of a running server, with full buckets."""
    return Visit(site, re.sub(r"\W+", "-", request.node.name))
