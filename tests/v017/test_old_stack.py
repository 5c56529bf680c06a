"""A stack of version 0.17 around a table: its function is stopped and never changed, its table survives it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.aws.stacks import aws, named
from tests.v017 import old_tables
from tests.v017.old_tables import OldTable
from tests.v017.test_upgrade_cli import answer, shell
from zae_limiter import AccessDeniedError, InfrastructureNotFoundError, StackOperationError
from zae_limiter.aws import deployment, stack
from zae_limiter.aws.calls import Aws
from zae_limiter.aws.events import Journal
from zae_limiter.aws.template import function_name
from zae_limiter.records import version
from zae_limiter.records.algebra import Key, Write
from zae_limiter.runtime.blocking import run
from zae_limiter.v017.old_stack import find_old_stack, retain_data

TEMPLATE = """
Parameters:
  Letters: {Type: String, Default: "none"}
Resources:
  RateLimitsTable:
    Type: AWS::DynamoDB::Table
    Properties:
      TableName: !Ref AWS::StackName
      BillingMode: PAY_PER_REQUEST
      AttributeDefinitions: [{AttributeName: PK, AttributeType: S}, {AttributeName: SK, AttributeType: S}]
      KeySchema: [{AttributeName: PK, KeyType: HASH}, {AttributeName: SK, KeyType: RANGE}]
      StreamSpecification: {StreamViewType: NEW_AND_OLD_IMAGES}
  AggregatorFunction:
    Type: AWS::Lambda::Function
    Properties:
      FunctionName: !Sub "${AWS::StackName}-aggregator"
      Runtime: python3.12
      Handler: index.handler
      Role: arn:aws:iam::000000000000:role/old
      Code: {ZipFile: "def handler(event, context): return {}"}
  AggregatorEventSourceMapping:
    Type: AWS::Lambda::EventSourceMapping
    Properties:
      EventSourceArn: !GetAtt RateLimitsTable.StreamArn
      FunctionName: !Ref AggregatorFunction
      StartingPosition: LATEST
"""
ENTITY = Key(f"{old_tables.OTHER}/ENTITY#key", "#META")


@pytest.fixture
def old() -> Iterator[OldTable]:
    """A table of 0.17 in a stack of its own, with a function that reads its stream."""
    tags = {"ManagedBy": "zae-limiter", stack.VERSION_TAG: "0.17.0", stack.SCHEMA_TAG: "0.10.0"}
    with named() as name:
        request = stack.stack_request(name, stack.DesiredStack(TEMPLATE, {"Letters": "some"}, tags))
        made = aws().call("cloudformation", "create_stack", **request)
        stack.follow(Journal(aws(), made["StackId"]), stack.FollowOptions())
        with old_tables.open_table(name) as table:
            stamp = {"schema_version": "0.10.0", "client_min_version": "0.0.0", "lambda_version": "0.17.0"}
            entity = old_tables.entity("key", prefix=f"{old_tables.OTHER}/")
            table.put(*old_tables.registered(), old_tables.Item(version.KEY, stamp), entity)
            yield table
        found = stack.describe(aws(), name)
        if found is not None and found.older_version:
            stack.remove(aws(), found, stack.FollowOptions())


def mapping_of(name: str) -> dict[str, Any]:
    found = aws().call("lambda", "list_event_source_mappings", FunctionName=function_name(name))
    (mapping,) = found["EventSourceMappings"]
    return dict(mapping)


def test_the_plan_names_the_stack_and_its_function_and_changes_nothing(old: OldTable) -> None:
    before = old.items()
    planned = answer(old.name, "upgrade", "--dry-run")
    assert (planned["older_stack"], planned["old_functions"]) == ("zae-limiter 0.17.0", [f"{old.name}-aggregator"])
    shown = shell(old.name, "upgrade", "--dry-run")
    assert f"stop {old.name}-aggregator" in shown.stdout
    assert f"--name {old.name} --release-stack" in shown.stderr
    assert "nothing was changed" in shown.stderr
    assert old.items() == before
    assert mapping_of(old.name)["State"] == "Enabled"
    listed = json.loads(shell(old.name, "list", "--json").stdout)
    assert [each["version"] for each in listed if each["stack_name"] == old.name] == ["0.17.0"]


def test_its_function_is_stopped_and_found_if_it_goes_on(old: OldTable) -> None:
    assert answer(old.name, "upgrade", "--yes")["old_functions"] == [f"{old.name}-aggregator"]
    assert mapping_of(old.name)["State"] in ("Disabled", "Disabling")
    checked = answer(old.name, "check")
    assert (checked["compatible"], checked["warning"], checked["old_functions"]) == (True, None, [])
    assert checked["lambda_version"] is None
    assert answer(old.name, "upgrade")["up_to_date"] is True
    aws().call("lambda", "update_event_source_mapping", UUID=mapping_of(old.name)["UUID"], Enabled=True)
    checked = answer(old.name, "check", code=25)
    assert f"{old.name}-aggregator of zae-limiter 0.x still writes" in checked["problem"]
    assert f"{old.name}-aggregator reads the stream" in shell(old.name, "status").stdout
    assert answer(old.name, "upgrade", "--yes")["changed"] is True
    assert answer(old.name, "check")["compatible"] is True


def test_its_function_never_gets_our_code(old: OldTable) -> None:
    def code() -> object:
        return aws().call("lambda", "get_function_configuration", FunctionName=function_name(old.name))["CodeSha256"]

    before = code()
    with pytest.raises(InfrastructureNotFoundError, match="No stack of this version"):
        deployment.renew_aggregator(old.store())
    told = shell(old.name, "upgrade", "--lambda-only")
    assert (told.exit_code, f"upgrade --name {old.name} --release-stack` upgrades" in told.stderr) == (14, True)
    assert code() == before
    assert "aggregator  none" in shell(old.name, "status").stdout


def test_who_may_not_stop_it_changes_nothing(old: OldTable, monkeypatch: pytest.MonkeyPatch) -> None:
    usual, before = Aws.call, old.items()

    def call(self: Aws, service: str, operation: str, **request: Any) -> dict[str, Any]:
        if operation == "update_event_source_mapping":
            raise AccessDeniedError("lambda:UpdateEventSourceMapping: access is denied")
        return usual(self, service, operation, **request)

    monkeypatch.setattr(Aws, "call", call)
    refused = shell(old.name, "upgrade", "--yes")
    assert refused.exit_code != 0
    assert f"--no-enabled --uuid {mapping_of(old.name)['UUID']}" in refused.stderr
    assert old.items() == before


def test_the_table_goes_from_the_old_stack_to_one_of_ours(old: OldTable) -> None:
    refused = shell(old.name, "deploy")
    assert (refused.exit_code, f"--name {old.name} --release-stack" in refused.stderr) == (16, True)
    done = shell(old.name, "upgrade", "--release-stack", "--yes")
    assert (done.exit_code, "deploy --adopt" in done.stdout) == (0, True), done.output
    assert stack.describe(aws(), old.name) is None
    assert ENTITY in old.present()
    adopted = shell(old.name, "deploy", "--adopt", "--no-aggregator", "--no-alarms", "--no-iam")
    assert adopted.exit_code == 0, adopted.output
    assert ENTITY in old.present()
    assert find_old_stack(aws(), old.name) is None
    assert answer(old.name, "check")["compatible"] is True
    assert run(old.store().read([ENTITY])) != [None]


def test_what_a_template_keeps() -> None:
    kept = retain_data(TEMPLATE + "  Archive:\n    Type: AWS::S3::Bucket\n")
    assert kept.count("    DeletionPolicy: Retain\n    UpdateReplacePolicy: Retain") == 2
    assert "    Type: AWS::DynamoDB::Table\n    DeletionPolicy: Retain\n" in kept
    others: tuple[object, ...] = ({"Resources": {}}, "Resources: {}", kept)
    for template in others:
        with pytest.raises(StackOperationError, match="nothing was changed"):
            retain_data(template)


def test_the_note_of_an_aggregator_that_is_gone_is_removed() -> None:
    with old_tables.old_table() as table:
        table.put(*old_tables.registered())
        assert answer(table.name, "upgrade", "--yes")["changed"] is True
        run(table.store().commit([Write(version.KEY, (), {"lambda_version": "0.17.0"})]))
        assert "0.17.0" in answer(table.name, "check")["warning"]
        assert answer(table.name, "upgrade", "--yes")["changed"] is True
        assert answer(table.name, "check")["warning"] is None
        assert answer(table.name, "upgrade")["up_to_date"] is True
