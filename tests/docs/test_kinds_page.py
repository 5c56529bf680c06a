"""The page that adds a kind of limit: its diff can be applied, and makes the kind work wherever limits are written."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import on_page
from tests.support.paths import ROOT

MOST_FILES = 5
"""A kind of limit must not touch more."""

USE = """
from zae_limiter import Limit, RateLimitExceeded, SyncRateLimiter
from zae_limiter.core.kinds import describe_limit, kind_of, parse_limit
from zae_limiter.manifest.fields import json_schema
from zae_limiter.manifest.limits import write_limit
from zae_limiter.manifest.parsing import parse_manifest

trial = Limit.trial("trial", 900)
assert trial.kind == "trial"
assert parse_limit("trial:900/total") == trial
assert kind_of(trial).spell(trial) == "900/total"
assert describe_limit(trial) == "trial 900 in all"
assert write_limit(trial) == {"total": 900}
assert any("total" in each.get("properties", ()) for each in json_schema()["$defs"]["limit"]["anyOf"])
((_, stated),) = parse_manifest("system: {limits: {trial: {total: 900}}}", "yaml").levels.items()
assert stated["limits"] == (trial,)
limiter = SyncRateLimiter("memory://")
with limiter.acquire("key", "api", {"trial": 900}, limits=[trial]):
    pass
try:
    with limiter.acquire("key", "api", {"trial": 1}, limits=[trial]):
        raise AssertionError
except RateLimitExceeded as refused:
    assert refused.kind == "trial"
"""


def test_the_diff_adds_a_kind_that_works_everywhere(tmp_path: Path) -> None:
    (diff,) = [block.text for block in on_page(ROOT / "docs" / "contributing" / "kinds.md") if block.language == "diff"]
    assert diff.count("\n+++ ") <= MOST_FILES
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src" / "zae_limiter", tmp_path / "src" / "zae_limiter", ignore=ignored)
    subprocess.run(["git", "apply", "-C1", "-"], cwd=tmp_path, input=diff, text=True, check=True)
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'src')!r}){USE}"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
