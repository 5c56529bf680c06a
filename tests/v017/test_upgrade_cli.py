"""``upgrade``, ``check`` and ``version`` from the shell, on old tables and on a deployed stack."""

from __future__ import annotations

import io
import json
import uuid
import zipfile
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import Result

from tests.cli.terminal import run
from tests.support.aws import engine
from tests.v017 import old_tables
from tests.v017.old_tables import NOW, OldTable, old_table
from zae_limiter import StackOptions, __version__
from zae_limiter.aws import deployment, stack
from zae_limiter.aws.calls import Aws
from zae_limiter.aws.template import function_name
from zae_limiter.records import version
from zae_limiter.records.algebra import Key, Write
from zae_limiter.runtime.blocking import run as drive


def shell(name: str, *words: str) -> Result:
    store = ("--name", name, "--region", "us-east-1", "--endpoint-url", engine.endpoint())
    return run(*store, *words, env=dict(engine.CREDENTIALS))


def answer(name: str, *words: str, code: int = 0) -> dict[str, Any]:
    result = shell(name, *words, "--json")
    assert result.exit_code == code, result.output
    assert result.stderr == ""
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.fixture
def oldest() -> Iterator[OldTable]:
    """A table of the oldest shape with a little of everything."""
    with old_table(shaped=False) as table:
        full = old_tables.Pool("rpm", 0, NOW - 10**11, 60_000, 60_000, 60_000)
        table.put(
            old_tables.version("0.5.0"),
            old_tables.entity("key", nested=True),
            old_tables.entity("bad#id", nested=True),
            old_tables.per_limit_bucket("key", "gpt-4", full, nested=True),
            old_tables.per_limit_config("SYSTEM#", "rpm", (60, 60, 60, 60)),
        )
        yield table


def test_what_check_sends_to_upgrade_it_finds_there() -> None:
    """An older client has registered a namespace in a table that is stamped with the present version."""
    with old_table() as table:
        shell(table.name, "upgrade", "--yes")
        table.put(*old_tables.registered(), old_tables.entity("key", prefix=f"{old_tables.OTHER}/"))
        assert "zae-limiter upgrade" in answer(table.name, "check", code=12)["problem"]
        assert answer(table.name, "upgrade", "--yes")["records"] == {"entity": 1, "namespace": 2}
        assert answer(table.name, "check")["compatible"] is True
        assert answer(table.name, "upgrade", "--yes")["changed"] is False


def test_from_an_old_table_to_a_granted_call(oldest: OldTable) -> None:
    name = oldest.name
    refused = shell(name, "available", "key", "gpt-4")
    assert refused.exit_code == 12
    assert "zae-limiter upgrade" in refused.stderr
    checked = answer(name, "check", code=12)
    assert (checked["compatible"], checked["client_version"]) == (False, __version__)
    assert "upgrade" in checked["problem"]

    before = oldest.items()
    planned = answer(name, "upgrade", "--dry-run", code=25)
    assert oldest.items() == before
    assert (planned["up_to_date"], planned["changed"]) == (False, False)
    assert planned["records"] == {"bucket": 1, "config": 1, "entity": 1, "version": 1}
    assert "create index GSI4" in planned["table"]
    shown = shell(name, "upgrade", "--dry-run")
    assert "create index GSI4" in shown.stdout
    assert "ENTITY#bad#id #META stays" in shown.stderr

    stopped = shell(name, "upgrade", "--yes")
    assert (stopped.exit_code, "1 record cannot be upgraded, nothing was changed" in stopped.stderr) == (25, True)
    assert answer(name, "upgrade", "--yes", code=25)["changed"] is False
    asked = shell(name, "upgrade", "--leave-refused")
    assert asked.exit_code == 1
    assert "nothing was changed" in asked.stderr
    assert oldest.items() == before

    done = answer(name, "upgrade", "--yes", "--leave-refused", code=25)
    assert (done["up_to_date"], done["changed"]) == (False, True)
    assert (done["table"], done["records"]) == (planned["table"], planned["records"])
    assert [each["pk"] for each in done["refused"]] == ["ENTITY#bad#id"]
    assert shell(name, "acquire", "key", "gpt-4", "-c", "rpm:1").exit_code == 0
    drive(oldest.store().commit([Write(Key("ENTITY#bad#id", "#META"), delete=True)]))
    assert answer(name, "upgrade", "--yes")["changed"] is True
    assert "nothing to do" in shell(name, "upgrade").stdout
    assert answer(name, "check")["compatible"] is True


CONFIG = f"{old_tables.OTHER}/ENTITY#key", "#CONFIG#gpt-4"
REFUSED_CONFIG = {"w_r_cp": 5, "w_r_ra": 0, "w_r_rp": 1, "w_r_rsa": 20 * 366 * 86_400, "disabled": True}


@pytest.fixture
def left() -> Iterator[str]:
    """The name of a table from which an upgrade has left the limits of an entity that was switched off."""
    with old_table() as table:
        pk, sk = CONFIG
        whose = {"entity_id": "key", "resource": "gpt-4", "GSI4PK": old_tables.OTHER, "GSI4SK": pk}
        own = old_tables.composite_config(pk, sk, {}, **REFUSED_CONFIG, **whose)
        shared = old_tables.composite_config(f"{old_tables.OTHER}/SYSTEM#", "#CONFIG", {"r": (60, 60, 60, 60)})
        entity = old_tables.entity("key", prefix=f"{old_tables.OTHER}/")
        table.put(*old_tables.registered(), entity, own, shared)
        assert answer(table.name, "upgrade", "--yes", "--leave-refused", code=25)["changed"] is True
        yield table.name


def test_what_an_upgrade_has_left_is_named_until_it_is_gone(left: str) -> None:
    for words in (("upgrade",), ("upgrade", "--dry-run"), ("upgrade", "--yes", "--leave-refused")):
        found = answer(left, *words, code=25)
        assert (found["up_to_date"], found["changed"], found["records"]) == (False, False, {})
        assert [(each["pk"], each["sk"]) for each in found["refused"]] == [CONFIG]
    shown = shell(left, "upgrade")
    assert "up to date" not in shown.stdout
    assert f"{' '.join(CONFIG)} stays: reset_after" in shown.stderr
    checked = answer(left, "check", code=25)
    assert checked["compatible"] is False
    assert "has left 1 record" in checked["problem"]
    assert "has left 1 record" in shell(left, "check").stdout


def test_limits_that_were_left_grant_nothing_until_they_are_set_again(left: str) -> None:
    for words in (("acquire", "key", "gpt-4", "-c", "r:1"), ("available", "key", "gpt-4")):
        refused = shell(left, *words)
        assert refused.exit_code == 11, refused.output
        assert "an upgrade has left it" in refused.stderr
        assert "reset-bucket" not in refused.stderr
    assert shell(left, "acquire", "other", "gpt-4", "-c", "r:1").exit_code == 0
    assert shell(left, "entity", "set-limits", "key", "-r", "gpt-4", "-l", "r:5/day").exit_code == 0
    assert shell(left, "acquire", "key", "gpt-4", "-c", "r:1").exit_code == 22, "it stays switched off"
    done = answer(left, "upgrade", "--yes")
    assert (done["up_to_date"], done["refused"]) == (True, [])
    assert answer(left, "check")["compatible"] is True
    assert answer(left, "upgrade")["changed"] is False


def test_force_looks_at_everything_again(oldest: OldTable) -> None:
    name = oldest.name
    summary = shell(name, "upgrade", "--yes", "--leave-refused")
    assert summary.exit_code == 25, summary.output
    assert "1 moved" in summary.stdout
    assert "moving records" in summary.stderr
    oldest.put(old_tables.entity("late"))
    assert answer(name, "upgrade", "--yes", code=25)["changed"] is False
    forced = answer(name, "upgrade", "--yes", "--force", "--leave-refused", code=25)
    assert forced["records"] == {"entity": 1}
    assert shell(name, "entity", "show", "late").exit_code == 0


def test_a_table_whose_name_no_stack_can_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """CloudFormation refuses to look for such a stack, so it is not asked."""
    monkeypatch.setattr(stack, "describe", None)
    with old_table(prefix="rate_limits_") as table:
        table.put(old_tables.version(), old_tables.entity("key"))
        refused = shell(table.name, "upgrade", "--yes")
        assert (refused.exit_code, f"opened as 'dynamodb://{table.name}'" in refused.stderr) == (2, True)
        url = f"dynamodb://{table.name}?region=us-east-1&endpoint_url={engine.endpoint()}"
        for words in (("upgrade", "--yes"), ("check",), ("entity", "show", "key")):
            result = run("--url", url, *words, env=dict(engine.CREDENTIALS))
            assert result.exit_code == 0, result.output


def test_an_old_layout_is_named_in_words(oldest: OldTable) -> None:
    told = answer(oldest.name, "check", code=12)
    assert told["schema_version"] is None
    assert "the layout of zae-limiter 0.1 to 0.9, from before namespaces" in told["problem"]
    assert "this client needs the layout of zae-limiter 1.0" in told["problem"]
    assert "the layout of zae-limiter 0.1 to 0.9" in shell(oldest.name, "version").stdout


def test_a_newer_table_is_left_alone() -> None:
    with old_table() as table:
        table.put(old_tables.Item(version.KEY, {"schema_version": "2.0.0", "client_min_version": "2.0.0"}))
        before = table.items()
        for words in (("upgrade", "--yes"), ("upgrade", "--yes", "--force"), ("check",), ("entity", "show", "key")):
            assert shell(table.name, *words).exit_code == 13
        assert table.items() == before


def test_there_must_be_a_table_and_an_aggregator() -> None:
    assert shell(f"none-{uuid.uuid4().hex[:8]}", "upgrade").exit_code == 14
    with old_table() as table:
        missing = shell(table.name, "upgrade", "--lambda-only")
        assert missing.exit_code == 14
        assert "zae-limiter deploy" in missing.stderr


@pytest.fixture(scope="module")
def deployed() -> Iterator[str]:
    """A stack with an aggregator."""
    name = f"up-{uuid.uuid4().hex[:8]}"
    options = StackOptions(enable_alarms=False, enable_audit_archival=False, create_iam=True)
    with Aws("us-east-1", engine.endpoint()) as aws:
        deployment.deploy(aws, name, options)
        yield name
        deployment.delete(aws, name)


def outdate(name: str) -> None:
    """Code and version of the aggregator as an older client would have left them."""
    code = io.BytesIO()
    with zipfile.ZipFile(code, "w") as archive:
        archive.writestr("zae_limiter_aggregator/handler.py", "def handler(event, context):\n    return {}\n")
    with Aws("us-east-1", engine.endpoint()) as aws:
        aws.call("lambda", "update_function_code", FunctionName=function_name(name), ZipFile=code.getvalue())
    with_store = OldTable(name, None)  # type: ignore[arg-type]  # only its store is used
    drive(with_store.store().commit([Write(version.KEY, (), {"lambda_version": "0.9.0"})]))
    with_store.close()


@pytest.mark.parametrize("words", [("upgrade", "--lambda-only"), ("upgrade",)], ids=["lambda only", "all"])
def test_an_older_aggregator_is_renewed(deployed: str, words: tuple[str, ...]) -> None:
    outdate(deployed)
    checked = answer(deployed, "check")
    assert checked["compatible"] is True
    assert "0.9.0" in checked["warning"]
    assert answer(deployed, "version")["lambda_version"] == "0.9.0"
    assert answer(deployed, *words, "--dry-run")["aggregator"] is True
    assert answer(deployed, *words, "--yes")["aggregator"] == "uploaded"
    assert answer(deployed, "version")["lambda_version"] == __version__
    assert answer(deployed, "check")["warning"] is None
    again = answer(deployed, *words)
    assert (again["up_to_date"], again["changed"]) == (True, False)


def test_a_new_stack_keeps_older_clients_out(deployed: str) -> None:
    with_store = OldTable(deployed, None)  # type: ignore[arg-type]  # only its store is used
    (record,) = drive(with_store.store().read([version.UNPREFIXED[0]]))
    with_store.close()
    assert version.refuses_older(record)


def test_force_renews_the_stack_as_it_was(deployed: str) -> None:
    done = answer(deployed, "upgrade", "--force", "--yes")
    assert done["stack"] in ("updated", "unchanged")
    assert done["aggregator"] == "unchanged"
    assert done["records"] == {}


def test_version_shows_the_store_only_where_one_is_named(deployed: str) -> None:
    plain = json.loads(run("version", "--json").stdout)
    assert plain.keys() == {"zae_limiter", "python", "platform"}
    named = answer(deployed, "version")
    assert (named["zae_limiter"], named["schema_version"], named["lambda_version"]) == (
        __version__,
        "1.0.0",
        __version__,
    )
    assert "aggregator" in shell(deployed, "version").stdout
