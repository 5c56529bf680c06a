"""Tables that real older versions have written, upgraded: settings, tokens, decisions, and clients that go on."""

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
from tests.reference import old_client
from tests.reference.test_upgrade import PYTHON, REGION, credentials as credentials
from tests.support.aws import engine
from tests.support.paths import ROOT
from zae_limiter import Limit, SyncRateLimiter

FOLDER = Path(os.environ.get("ZAE_TEST_OLD_VERSIONS", ROOT / ".venv-old"))
VERSIONS = ("0.1.0", "0.5.0", "0.8.1", "0.10.3", "0.14.0", "0.17.0")
UNAWARE = ("0.1.0", "0.5.0")
"""Versions that do not know their own number, and so compare none: no record can keep them out."""
SILENT = ("0.1.0",)
"""Versions that record no changes, and whose aggregator fails to count."""
CHANGED = {"0.8.1": {json.dumps(("debtor", "gpt-4", {"rpm": 49})): "granted"}}
"""Decisions that differ: 0.7 and 0.8 also refuse by a limit in debt from which the request takes nothing."""

ANNOUNCED = {
    "0.1.0": ["without a namespace", "`entity set-cascade`", "a burst", "buckets of 'gpt-4'"],
    "0.5.0": ["without a namespace", "`entity set-cascade`", "a burst", "buckets of 'gpt-4'", "at midnight"],
    "0.8.1": ["without a namespace", "a burst", "in 0.7 and 0.8", "at midnight"],
    "0.10.3": ["at midnight"],
    "0.14.0": ["at midnight", "a quota"],
    "0.17.0": ["at midnight", "a quota"],
}
"""What a dry run says of changed meanings."""

pytestmark = [pytest.mark.reference, pytest.mark.usefixtures("credentials")]
_COUNT = itertools.count()


def start(version: str, what: str, table: str) -> subprocess.Popen[str]:
    """Start a program of an old version."""
    python = PYTHON if version == "0.17.0" else FOLDER / version / "bin/python"
    if not python.exists():
        pytest.skip(f"version {version} is not installed; `make test-reference` sets it up")
    env = {**os.environ, **engine.CREDENTIALS, "PYTHONPATH": ""}
    command = [str(python), old_client.__file__, what, table, engine.endpoint()]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=env, text=True, stdin=pipe, stdout=pipe, stderr=pipe)


def finish(program: subprocess.Popen[str]) -> Any:
    """Tell a program to go on, and return what it prints last."""
    printed, complaints = program.communicate("\n", timeout=150)
    assert program.returncode == 0, complaints
    return json.loads(printed.splitlines()[-1])


def call(version: str, what: str, table: str) -> Any:
    """Run a program of an old version, and return what it prints last."""
    return finish(start(version, what, table))


def shell(table: str, *words: str, code: int = 0) -> dict[str, Any]:
    store = ("--url", f"dynamodb://{table}?region={REGION}&endpoint_url={engine.endpoint()}")
    result = run(*store, *words, "--json", env=dict(engine.CREDENTIALS))
    assert result.exit_code == code, result.output
    data: dict[str, Any] = json.loads(result.stdout or result.stderr)
    return data


def open_limiter(table: str) -> SyncRateLimiter:
    return SyncRateLimiter(f"dynamodb://{table}?region={REGION}&endpoint_url={engine.endpoint()}")


def limits(pairs: list[tuple[str, int]]) -> list[Limit]:
    return [Limit(name, capacity, 1, old_client.SLOW) for name, capacity in pairs]


def check_decisions(limiter: SyncRateLimiter, before: dict[str, str], changed: dict[str, str], *, shared: bool) -> None:
    """Every decision is the one of the old version, with the limits that its callers stated."""

    def acquire(entity_id: str, resource: str, consume: dict[str, int]) -> Any:
        stated = [each for each in limits(old_client.OWN) if each.name in consume]
        return limiter.acquire(
            entity_id, resource, consume, limits=stated if resource in old_client.STATED and not shared else None
        )

    asked = [json.loads(question) for question in before]
    assert old_client.ask(acquire, zae_limiter, asked) == before | changed


def check_settings(limiter: SyncRateLimiter, version: str, *, shared: bool) -> None:
    """Every limit, entity, event and figure has arrived."""
    stored = {name: limits(pairs) for name, pairs in old_client.STORED.items()}
    assert limiter.get_limits("entity", "stored") == stored["entity"]
    assert limiter.get_limits("default") == stored["default"]
    if shared:
        assert limiter.get_resource_defaults("resource") == stored["resource"]
        assert limiter.get_system_defaults() == (stored["system"], "allow")
    org, team = limiter.get_entity("org"), limiter.get_entity("team")
    assert org is not None
    assert team is not None
    assert (org.name, org.metadata, team.parent_id) == ("Org", {"plan": "gold"}, "org")
    assert bool(limiter.get_audit_events("org")) is (version not in SILENT)
    if version in SILENT:
        return
    found, _ = limiter.get_usage_snapshots(entity_id="key", resource="gpt-4")
    assert {each.window_type for each in found} == {"hourly", "daily"}
    assert {each.counters["rpm"] for each in found} == {6}, "the old aggregator counts from the second write on"


def name_table(version: str) -> str:
    return f"{old_client.PREFIX if version == '0.5.0' else ''}old-{os.getpid()}-{next(_COUNT)}"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_table_of_an_old_version_is_upgraded(version: str) -> None:
    table = name_table(version)
    before = call(version, "write", table)
    shared = any("anybody" in question for question in before)
    planned = shell(table, "upgrade", "--dry-run")
    assert planned["refused"] == []
    said = " ".join(change["what"] for change in planned["changes"])
    assert [words for words in ANNOUNCED[version] if words not in said] == []
    assert shell(table, "upgrade", "--yes")["records"] == planned["records"]
    with open_limiter(table) as limiter:
        check_decisions(limiter, before, CHANGED.get(version, {}), shared=shared)
        check_settings(limiter, version, shared=shared)
    assert shell(table, "check")["compatible"] is True
    check_stragglers(version, table)


def check_stragglers(version: str, table: str) -> None:
    """A client that goes on is refused, or else found and merged."""
    told = call(version, "use", table)
    if version not in UNAWARE:
        assert told["outcome"] == "IncompatibleSchemaError"
        assert shell(table, "check")["compatible"] is True
        assert shell(table, "upgrade", "--force", "--dry-run")["records"] == {}
        return
    assert told["outcome"] == "granted"
    found = shell(table, "check", code=25)
    assert found["stragglers"] == {"records": 2, "examples": ["key", "straggler"]}
    assert "zae-limiter upgrade" in found["problem"]
    rpm = limits(old_client.OWN[:1])
    with open_limiter(table) as limiter:
        assert limiter.available("key", "gpt-4", limits=rpm) == {"rpm": 40}
    done = shell(table, "upgrade", "--yes")
    assert (done["records"], done["merged"]) == ({"bucket": 1}, 1)
    assert shell(table, "check")["compatible"] is True
    with open_limiter(table) as limiter:
        assert limiter.available("key", "gpt-4", limits=rpm) == {"rpm": 39}, "what the old client took is subtracted"
        assert limiter.available("straggler", "gpt-4", limits=rpm) == {"rpm": 49}


def upgrade_under(version: str, what: str) -> tuple[str, Any]:
    """Upgrade a table that a program of an old version has open; return its name and what the program prints then."""
    table = name_table(version)
    call(version, "write", table)
    program = start(version, what, table)
    assert program.stdout is not None
    assert program.stdout.readline() == "open\n"
    shell(table, "upgrade", "--yes")
    return table, finish(program)


@pytest.mark.parametrize("version", ["0.8.1", "0.10.3", "0.17.0"])
def test_a_client_that_had_the_table_open_goes_on(version: str) -> None:
    """No version record stops it. What it takes is counted, and buckets that it makes are not taken for full ones."""
    table, told = upgrade_under(version, "stay")
    assert told == {"outcome": "granted"}
    if version == "0.8.1":
        assert shell(table, "check", code=25)["stragglers"] == {"records": 2, "examples": ["key", "straggler"]}
        done = shell(table, "upgrade", "--yes")
        assert (done["records"], done["merged"]) == ({"bucket": 1}, 1)
    else:
        told = shell(table, "available", "straggler", "gpt-4", code=11)
        assert "zae-limiter upgrade --force" in told["message"]
        assert shell(table, "upgrade", "--yes", "--force")["records"] == {"bucket": 1}
    with open_limiter(table) as limiter:
        assert limiter.available("key", "gpt-4") == {"rpm": 39, "tpm": 100}
        assert limiter.available("straggler", "gpt-4")["rpm"] == 49


@pytest.mark.parametrize("version", ["0.14.0", "0.17.0"])
def test_limits_that_a_client_sets_anew_are_found(version: str) -> None:
    """They are in the place of those that were upgraded, so that nothing else has changed."""
    table, told = upgrade_under(version, "set")
    assert told == {"outcome": "set"}
    found = shell(table, "check", code=25)["stragglers"]
    assert (found["records"], "ENTITY#entity #CONFIG#stored" in found["examples"][0]) == (1, True)
    assert shell(table, "upgrade", "--yes")["records"]["config"] == 1
    assert shell(table, "check")["compatible"] is True
    with open_limiter(table) as limiter:
        (limit,) = limiter.get_limits("entity", "stored")
        assert (limit.capacity, limit.is_quota) == (50, True)
        assert limiter.available("entity", "stored") == {"rpm": 25}, "15 of 40 were taken"
