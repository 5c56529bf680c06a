"""The command line on DynamoDB: from a name that does not exist to a granted call."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator

import pytest

from tests.cli.terminal import run
from tests.support.aws import engine
from tests.support.backends import dynamodb_table


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


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[tuple[str, ...]]:
    """The options of a table in another region than the one it is in."""
    with dynamodb_table() as name:
        yield "--name", name, "--endpoint-url", engine.endpoint(), "--region", "eu-west-1"


LINES = [
    *("status", "check", "version", "system get-defaults", "entity show key", "usage list -e key", "audit list key"),
    *("acquire key gpt-4 -c rpm:1 -l rpm:5/min", "available key gpt-4 -l rpm:5/min", "top --once", "namespace list"),
    *("entity create key", "delete --yes", "upgrade --yes"),
]


@pytest.mark.parametrize("line", LINES)
def test_in_a_wrong_region_a_command_names_the_region_and_the_fix(elsewhere: tuple[str, ...], line: str) -> None:
    result = run(*elsewhere, *line.split())
    assert result.exit_code == 14, result.output
    (told,) = [text for text in result.stderr.splitlines() if text.startswith("Error: ")]
    assert "in eu-west-1" in told
    for fix in ("--region", "$AWS_REGION", "region="):
        assert fix in told


def test_a_url_of_a_wrong_region_says_the_same(elsewhere: tuple[str, ...]) -> None:
    url = f"dynamodb://{elsewhere[1]}?region=ap-south-1&endpoint_url={engine.endpoint()}"
    result = run("--url", url, "available", "key", "gpt-4", "-l", "rpm:5/min")
    assert result.exit_code == 14
    assert "in ap-south-1: it does not exist; if it is in another region, name that" in result.stderr


def test_a_region_without_limiters_says_which_it_is() -> None:
    result = run("list", "--region", "ap-south-1", "--endpoint-url", engine.endpoint())
    assert result.exit_code == 0
    assert "No limiter is deployed in ap-south-1. Choose another region with --region" in result.stderr
