"""A scripted server, and a client of it in each mode."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.modes import MODES
from tests.support.scripted_server import Driven, ScriptedServer, driven


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as made:
        yield made


@pytest.fixture(params=MODES)
def subject(request: pytest.FixtureRequest, server: ScriptedServer) -> Iterator[Driven]:
    with driven(request.param, server.url) as made:
        yield made
