"""The suite's own deadlines, and those that users have."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.support.deadlines import PATIENCE
from tests.support.paths import ROOT

SHOW = """
import json, sys
from zae_limiter.stores.opening import open_store

urls = ["sqlite:///limits.db", "redis://localhost", "dynamodb://my-app?region=us-east-1"]
stores = [open_store(url, blocking=True) for url in urls]
print(json.dumps([stores[0].timeout, stores[1].client.timeout, stores[2].client.timeout]))
"""


def shown(before: str = "") -> list[float]:
    """The seconds that a call of each store may take, in a process of its own."""
    command = [sys.executable, "-c", before + SHOW]
    found: list[float] = json.loads(
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=PATIENCE).stdout
    )
    return found


def test_a_call_of_the_suite_has_a_minute_and_one_of_a_user_five_seconds() -> None:
    assert shown() == [5.0] * 3
    assert shown("from tests.support import deadlines; deadlines.lengthen()") == [PATIENCE] * 3
