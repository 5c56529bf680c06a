"""``deploy`` and ``delete`` from the shell: every flag arrives, what is not given stays, the next step is said."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest
from click.testing import Result

from tests.aws.stacks import REGION, aws, inventory, named, status
from tests.cli.terminal import run
from tests.support.aws import engine
from tests.support.waiting import until
from zae_limiter import StackOptions
from zae_limiter.aws import deployment
from zae_limiter.cli.deploy import merge_options

TOPIC = "arn:aws:sns:us-east-1:123456789012:t"
FLAGS: dict[str, tuple[str, Any]] = {
    "--no-aggregator": ("enable_aggregator", False),
    "--snapshot-windows hourly": ("snapshot_windows", "hourly"),
    "--usage-retention-days 7": ("usage_retention_days", 7),
    "--audit-retention-days 8": ("audit_retention_days", 8),
    "--pitr-recovery-days 9": ("pitr_recovery_days", 9),
    "--log-retention-days 14": ("log_retention_days", 14),
    "--lambda-timeout 61": ("lambda_timeout", 61),
    "--lambda-memory 512": ("lambda_memory", 512),
    "--no-alarms": ("enable_alarms", False),
    f"--alarm-sns-topic {TOPIC}": ("alarm_sns_topic", TOPIC),
    "--lambda-duration-threshold-pct 70": ("lambda_duration_threshold_pct", 70),
    "--permission-boundary arn:aws:iam::aws:policy/PowerUserAccess": (
        "permission_boundary",
        "arn:aws:iam::aws:policy/PowerUserAccess",
    ),
    "--role-name-format 'pb-{}'": ("role_name_format", "pb-{}"),
    "--policy-name-format '{}-x'": ("policy_name_format", "{}-x"),
    "--no-audit-archival": ("enable_audit_archival", False),
    "--audit-archive-glacier-days 30": ("audit_archive_glacier_days", 30),
    "--enable-tracing": ("enable_tracing", True),
    "--create-iam-roles": ("create_iam_roles", True),
    "--no-iam": ("create_iam", False),
    "--aggregator-role-arn arn:aws:iam::123456789012:role/r": (
        "aggregator_role_arn",
        "arn:aws:iam::123456789012:role/r",
    ),
    "--no-deletion-protection": ("enable_deletion_protection", False),
    "--no-dashboard": ("enable_dashboard", False),
    "--audit-archive-versioning": ("audit_archive_versioning", True),
    "--audit-archive-lock-days 31": ("audit_archive_lock_days", 31),
    "--audit-archive-lock-mode COMPLIANCE": ("audit_archive_lock_mode", "COMPLIANCE"),
    "--lambda-architecture arm64": ("lambda_architecture", "arm64"),
    "--lambda-reserved-concurrency 3": ("lambda_reserved_concurrency", 3),
    "--max-read-request-units 100": ("max_read_request_units", 100),
    "--max-write-request-units 200": ("max_write_request_units", 200),
    "--kms-key-arn arn:aws:kms:us-east-1:123456789012:key/k": (
        "kms_key_arn",
        "arn:aws:kms:us-east-1:123456789012:key/k",
    ),
    "--code-s3-bucket bucket": ("code_s3_bucket", "bucket"),
    "--code-s3-key code.zip": ("code_s3_key", "code.zip"),
    "--code-s3-version v1": ("code_s3_version", "v1"),
    "--policy-namespace-id a1B2c3D4e5-": ("policy_namespace_id", "a1B2c3D4e5-"),
    "--no-region-in-iam-names": ("region_in_iam_names", False),
    "--app-role-trust ecs,eks": ("app_role_trust", "ecs,eks"),
    "--oidc-provider-arn arn:aws:iam::123456789012:oidc-provider/issuer/id": (
        "oidc_provider_arn",
        "arn:aws:iam::123456789012:oidc-provider/issuer/id",
    ),
    "--oidc-subject system:serviceaccount:a:b": ("oidc_subject", "system:serviceaccount:a:b"),
    "--require-mfa": ("require_mfa", True),
    "--tag team=limits": ("tags", {"team": "limits"}),
}
NEED_ROLES = ("--app-role-trust", "--oidc-provider-arn", "--oidc-subject", "--require-mfa")
BARE = ("--no-aggregator", "--no-alarms", "--no-dashboard", "--no-audit-archival", "--no-iam")
BARE_OPTIONS = dict.fromkeys(
    ("enable_aggregator", "enable_alarms", "enable_dashboard", "enable_audit_archival", "create_iam"), False
)
LOOSE = (*BARE, "--no-deletion-protection")


@pytest.fixture
def name() -> Iterator[str]:
    with named() as made:
        yield made


def call(name: str, *words: str) -> Result:
    return run("--name", name, "--region", REGION, "--endpoint-url", engine.endpoint(), *words)


def test_every_option_has_its_flag() -> None:
    assert {field for field, _ in FLAGS.values()} == {field.name for field in fields(StackOptions)}


@pytest.mark.parametrize("without", ["--no-iam", "--create-iam-roles"])
def test_every_flag_sets_its_option(without: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All at once, but for two that contradict each other."""
    wanted: list[StackOptions] = []

    def caught(aws: object, name: str, options: StackOptions, **rest: object) -> None:
        wanted.append(options)
        raise KeyboardInterrupt

    missing = (without, *NEED_ROLES) if without == "--create-iam-roles" else (without,)
    given = {flag: pair for flag, pair in FLAGS.items() if flag.split()[0] not in missing}
    monkeypatch.setattr(deployment, "deploy", caught)
    assert call("my-app", "deploy", *shlex.split(" ".join(given))).exit_code == 130
    assert wanted == [StackOptions(**dict(given.values()))]


def test_nothing_is_said_as_0_or_an_empty_text() -> None:
    present = StackOptions(pitr_recovery_days=3, alarm_sns_topic=TOPIC, tags={"a": "b"})
    given = dict.fromkeys((field.name for field in fields(StackOptions)), None)
    assert merge_options(present, given) == present
    cleared = merge_options(present, given | {"pitr_recovery_days": 0, "alarm_sns_topic": ""})
    assert cleared == StackOptions(tags={"a": "b"})


def test_a_stack_is_made_kept_changed_and_deleted(name: str) -> None:
    made = call(name, "deploy", *LOOSE, "--usage-retention-days", "7", "--tag", "team=ml")
    assert made.exit_code == 0
    assert f"stack       {name} in us-east-1, created".split() == made.stdout.splitlines()[0].split()
    told = made.stderr.splitlines()
    assert told[0] == f"Deploying {name} to us-east-1 ..."
    assert "create complete: Table (AWS::DynamoDB::Table)" in told
    command = told[-1].removeprefix("note: next: zae-limiter ")
    granted = run(*shlex.split(command))
    assert granted.exit_code == 0, granted.stderr
    changed = call(name, "deploy", "--audit-retention-days", "30", "--json")
    assert json.loads(changed.stdout)["stack"] == "updated"
    assert changed.stderr == ""
    options = deployment.read_options(aws(), name)
    assert (options.usage_retention_days, options.audit_retention_days, options.tags) == (7, 30, {"team": "ml"})
    assert not options.enable_aggregator
    assert json.loads(call(name, "namespace", "list", "--json").stdout)[0]["name"] == "default"
    assert call(name, "delete").exit_code == 1
    assert status(name) == "UPDATE_COMPLETE"
    gone = call(name, "delete", "--yes")
    assert gone.exit_code == 0
    assert status(name) is None
    assert call(name, "delete", "--yes").exit_code == 14


def test_a_terminal_shows_the_present_step_in_place(name: str) -> None:
    place = ("--name", name, "--region", REGION, "--endpoint-url", engine.endpoint())
    shown = run(*place, "deploy", *BARE, env={"FORCE_COLOR": "1", "TERM": "xterm"})
    assert shown.exit_code == 0
    assert f"Deploying {name} to us-east-1 ..." in shown.stderr
    assert "\x1b[" in shown.stderr
    assert "create complete: Table (AWS::DynamoDB::Table)\n" not in shown.stderr


def test_who_does_not_wait_is_told_how_to_go_on(name: str) -> None:
    begun = call(name, "deploy", *BARE, "--no-wait")
    assert begun.exit_code == 0
    assert f"next: zae-limiter deploy --name {name} --region us-east-1" in begun.stderr
    assert "protects the table" in begun.stderr
    until(lambda: status(name) == "CREATE_COMPLETE", "the stack is created")
    assert aws().call("dynamodb", "describe_table", TableName=name)["Table"]["DeletionProtectionEnabled"] is False
    done = json.loads(call(name, "deploy", "--json").stdout)
    assert (done["stack"], done["resources"]["TableName"]) == ("updated", name)
    assert aws().call("dynamodb", "describe_table", TableName=name)["Table"]["DeletionProtectionEnabled"] is True


def test_a_new_stack_is_protected_and_recoverable_unless_told_otherwise(name: str) -> None:
    assert call(name, "deploy", *BARE).exit_code == 0
    options = deployment.read_options(aws(), name)
    assert (options.enable_deletion_protection, options.pitr_recovery_days) == (True, 35)
    table = aws().call("dynamodb", "describe_table", TableName=name)["Table"]
    assert table["DeletionProtectionEnabled"] is True
    assert call(name, "deploy", "--no-deletion-protection", "--pitr-recovery-days", "0").exit_code == 0
    assert call(name, "deploy", "--usage-retention-days", "7").exit_code == 0
    options = deployment.read_options(aws(), name)
    assert (options.enable_deletion_protection, options.pitr_recovery_days) == (False, None)


def test_an_existing_stack_keeps_what_it_has(name: str) -> None:
    deployment.deploy(aws(), name, merge_options(StackOptions(), BARE_OPTIONS))
    changed = call(name, "deploy", "--usage-retention-days", "7")
    assert "not protected against deletion; --enable-deletion-protection" in changed.stderr
    assert "not protected" not in call(name, "deploy").stderr
    options = deployment.read_options(aws(), name)
    assert (options.enable_deletion_protection, options.pitr_recovery_days) == (False, None)


def test_a_protected_table_is_refused_before_anybody_is_asked(name: str) -> None:
    assert call(name, "deploy", *BARE).exit_code == 0
    refused = call(name, "delete", "--yes")
    assert refused.exit_code == 15
    assert f"zae-limiter delete --name {name} --region us-east-1 --force" in " ".join(refused.stderr.split())
    assert "--no-deletion-protection" in refused.stderr
    assert status(name) == "UPDATE_COMPLETE"
    gone = call(name, "delete", "--yes", "--force", "--json")
    assert json.loads(gone.stdout) == {"name": name, "deleted": True, "kept": []}
    assert name not in inventory()["tables"]


def test_code_in_s3_is_named_as_a_whole() -> None:
    present = StackOptions(code_s3_bucket="bucket", code_s3_key="1.zip", code_s3_version="v1")
    assert merge_options(present, {"code_s3_key": "2.zip"}) == StackOptions(
        code_s3_bucket="bucket", code_s3_key="2.zip"
    )
    assert merge_options(present, {"code_s3_version": "v2"}).code_s3_key == "1.zip"
    assert merge_options(present, {"code_s3_bucket": ""}) == StackOptions()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("delete", "--yes"), "--name my-app"),
        (("--name", "my_app", "deploy"), "letters, digits, and hyphens"),
        (("--name", "my-app", "deploy", "--lambda-memory", "5"), "from 128 to 10240"),
        (("--name", "my-app", "deploy", "--no-iam", "--create-iam-roles"), "--no-iam"),
        (("--name", "my-app", "deploy", "--tag", "team"), "KEY=VALUE"),
        (("--name", "my-app", "--region", "no region", "deploy"), "region"),
    ],
    ids=["nothing to delete", "bad name", "bad number", "contradiction", "bad tag", "bad region"],
)
def test_bad_input_is_told_in_one_line(words: tuple[str, ...], text: str) -> None:
    place = () if "--region" in words else ("--region", REGION)
    shown = run(*place, "--endpoint-url", engine.endpoint(), *words)
    assert shown.exit_code == 2
    assert text in shown.stderr.splitlines()[-1]
