"""The command line on DynamoDB: from a name that does not exist to a granted call."""

from __future__ import annotations

import json
import uuid

from tests.aws import engine
from tests.test_cli_errors import run


def test_a_table_is_made_from_the_shell() -> None:
    name = f"shell-{uuid.uuid4().hex[:8]}"
    store = ("--name", name, "--region", "us-east-1", "--endpoint-url", engine.endpoint())
    missing = run(*store, "system", "get-defaults")
    assert missing.exit_code == 14
    assert "zae-limiter create-table" in missing.stderr
    assert run(*store, "create-table", "--tag", "team").exit_code == 2
    for _ in range(2):  # a table that fits is left as it is
        assert "dynamodb store is ready" in run(*store, "create-table", "--tag", "team=ml").stdout
    assert run(*store, "system", "set-defaults", "-l", "rpm:5/min").exit_code == 0
    granted = run(*store, "acquire", "key", "gpt-4", "-c", "rpm:1", "--json")
    assert granted.exit_code == 0
    assert json.loads(granted.stdout)
    assert json.loads(run(*store, "available", "key", "gpt-4", "--json").stdout)
    assert "wcu" not in run(*store, "explain", "key", "gpt-4").stdout
