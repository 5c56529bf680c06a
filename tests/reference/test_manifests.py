"""Manifests that 0.17 accepts, read by both: they state the same."""

from __future__ import annotations

import json
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.reference import reads_manifests
from tests.reference.test_upgrade import PYTHON, pytestmark as pytestmark
from zae_limiter import Limit, SyncRepository
from zae_limiter.core.values import Access
from zae_limiter.manifest.parsing import parse_manifest

LIMITS = [
    "capacity: 5",
    "capacity: 5, refill_period: 30",
    "capacity: 5, refill_amount: 2, refill_period: 30",
    "capacity: 5, burst: 9",
    "capacity: 5, burst: 3",
    "capacity: 5, burst: 9, refill_amount: 2",
    "capacity: 5, soft: true",
    "capacity: 5, reset_schedule: []",
    "capacity: 5, reset_schedule: null, reset_after_seconds: null",
    "capacity: 5, reset_schedule: [{cron: 0 0 * * *}]",
    "capacity: 5, refill_amount: 0, soft: true, reset_schedule: [{cron: 0 9 * * 1-5, tz: Europe/Berlin}]",
    "capacity: 5, reset_after_seconds: 18000",
]
LEVELS = [
    "disabled: true, cascade: true",
    "disabled: false, cascade: false",
    "disabled: bypass, cascade: null",
    "disabled: null",
]
_ACCESS = {True: Access.DISABLED, False: Access.ENABLED, "bypass": Access.BYPASSED}


def texts() -> list[str]:
    limits = [f"namespace: default\nresources: {{r: {{limits: {{x: {{{fields}}}}}}}}}" for fields in LIMITS]
    levels = [f"namespace: default\nentities: {{k: {{resources: {{_default_: {{{fields}}}}}}}}}" for fields in LEVELS]
    system = ["namespace: default\nsystem: {on_unavailable: allow, limits: {x: {capacity: 5}}}"]
    return limits + levels + system


def same_limit(read: dict[str, Any]) -> Limit:
    """Return the limit that 0.17 has read."""
    soft = read.get("soft", False)
    if read.get("reset_schedule"):
        (entry,) = read["reset_schedule"]
        return Limit.quota("x", read["capacity"], cron=entry["cron"], tz=entry.get("tz", "UTC"), soft=soft)
    if read.get("reset_after_seconds"):
        return Limit.quota("x", read["capacity"], reset_after=timedelta(seconds=read["reset_after_seconds"]), soft=soft)
    return Limit("x", read["capacity"], read["refill_amount"], read["refill_period"], soft=soft)


def same_level(read: dict[str, Any]) -> dict[str, Any]:
    """Return what 0.17 has read of a level, as our parser states it."""
    found: dict[str, Any] = {}
    if read.get("limits"):
        found["limits"] = tuple(same_limit(each) for each in read["limits"].values())
    if read.get("disabled") is not None:
        found["access"] = _ACCESS[read["disabled"]]
    return found | {name: read[name] for name in ("cascade", "on_unavailable") if read.get(name) is not None}


def test_both_read_the_same() -> None:
    given = texts()
    done = subprocess.run(
        [str(PYTHON), reads_manifests.__file__], input=json.dumps(given), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    for text, read in zip(given, json.loads(done.stdout), strict=True):
        ((_, ours),) = parse_manifest(text, "yaml").levels.items()
        entity = read.get("entities", {}).get("k", {})
        theirs = (
            read.get("system") or read.get("resources", {}).get("r") or entity.get("resources", {}).get("_default_")
        )
        assert ours == same_level(theirs or {}), text


def test_they_are_planned_as_nothing_after_they_were_applied(tmp_path: Path) -> None:
    with SyncRepository(f"sqlite:///{tmp_path / 'limits.db'}") as repository:
        for text in texts():
            manifest = parse_manifest(text, "yaml")
            repository.apply_plan(repository.plan_limits(manifest))
            assert not repository.plan_limits(manifest).changes
