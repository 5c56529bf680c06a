"""A table that the real 0.17 has written, upgraded: every decision is the same before and after."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

import zae_limiter
from tests.cli.terminal import run
from tests.reference import writes_everything
from tests.support.aws import engine
from tests.support.paths import ROOT
from zae_limiter import Limit, SyncRateLimiter
from zae_limiter.core.values import Access

PYTHON = Path(os.environ.get("ZAE_TEST_REFERENCE", ROOT / ".venv-bench-reference/bin/python"))
REGION = "us-east-1"

pytestmark = [
    pytest.mark.reference,
    pytest.mark.skipif(not PYTHON.exists(), reason="version 0.17 is not installed; `make bench` sets it up"),
]
_COUNT = itertools.count()


def write(*left_out: str) -> tuple[str, dict[str, Any]]:
    """Let 0.17 write a table, and return its name and how 0.17 decides there."""
    table = f"reference-{os.getpid()}-{next(_COUNT)}"
    env = {**os.environ, **engine.CREDENTIALS, "PYTHONPATH": ""}
    command = [str(PYTHON), writes_everything.__file__, table, engine.endpoint(), *left_out]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    answers: dict[str, Any] = json.loads(done.stdout)
    return table, answers


def upgrade(table: str, *words: str, code: int) -> dict[str, Any]:
    store = ("--name", table, "--region", REGION, "--endpoint-url", engine.endpoint())
    result = run(*store, "upgrade", *words, "--json", env=dict(engine.CREDENTIALS))
    assert result.exit_code == code, result.output
    data: dict[str, Any] = json.loads(result.stdout)
    return data


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in engine.CREDENTIALS.items():
        monkeypatch.setenv(name, value)


def test_every_decision_is_the_same_after_the_upgrade(credentials: None) -> None:
    table, before = write()
    assert upgrade(table, "--yes", code=0)["refused"] == []
    with SyncRateLimiter(f"dynamodb://{table}?region={REGION}&endpoint_url={engine.endpoint()}") as limiter:
        after = writes_everything.answer(limiter, zae_limiter)
        assert after == before
        assert limiter.get_resource_cascade("steep") is True
        assert limiter.get_entity_cascade("no-cascade") is False
        assert limiter.resolve_access("vip", "gpt-4") == (Access.BYPASSED, "entity")
        assert limiter.get_limits("own", "a:b") == [Limit("rpm", 3, 1, writes_everything.SLOW)]
        assert "steep" not in limiter.list_resources_with_defaults()
        assert limiter.list_resources_with_entity_configs() == ["_default_", "a:b", "gpt-4"]
        assert limiter.get_system_defaults()[1] == "allow"
        again = limiter.top_up("topped-cron", "cron", {"tpy": 500}, idempotency_key="paid-2")
        assert (again.amounts, limiter.available("topped-cron", "cron")) == ({"tpy": 500}, {"tpy": 500})
        with pytest.raises(zae_limiter.ValidationError, match="used for another request"):
            limiter.reset_bucket("topped-cron", "cron", idempotency_key="paid-2")
        parents = {who: getattr(limiter.get_entity(who), "parent_id", None) for who in ("team", "moved", "orphaned")}
        assert parents == {"team": "org", "moved": "new-org", "orphaned": None}
    assert upgrade(table, "--yes", "--force", code=0)["records"] == {}


def test_what_has_no_counterpart_is_named_and_nothing_is_changed(credentials: None) -> None:
    table, _ = write(writes_everything.AWKWARD)
    told = upgrade(table, "--dry-run", code=25)
    refused = {(each["pk"].split("/")[1], each["sk"].split("#")[1]): each["reason"] for each in told["refused"]}
    assert upgrade(table, "--yes", code=25)["changed"] is False
    assert upgrade(table, "--dry-run", code=25) == told, "nothing was changed"
    for whose in (("RESOURCE#awkward", "CONFIG"), ("BUCKET#key#awkward#0", "STATE")):
        assert "no single cron expression: 0 0 1 1 *; 30 9 2 7 *" in refused[whose]
    left = upgrade(table, "--yes", "--leave-refused", code=25)
    assert (left["changed"], left["refused"]) == (True, told["refused"])
