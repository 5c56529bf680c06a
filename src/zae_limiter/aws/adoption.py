"""Import a table that was made without a stack into a new stack, with its data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.errors import InfrastructureNotFoundError, StackOperationError
from ..stores.dynamodb.table import check_table
from . import stack, template
from .calls import Aws, join_lines, poll
from .events import Journal
from .stack import DesiredStack, FollowOptions

_CHANGE_SET = "zae-limiter-adopt"
_USUAL_RECOVERY_DAYS = 35
"""The recovery period of a table for which none was set."""


def import_table(aws: Aws, name: str, wanted: DesiredStack, watch: FollowOptions) -> None:
    """Import an existing table with its data into a new stack. Do nothing if the stack exists or the table does not.

    The new stack holds the table only; the usual update then adds the other resources. An import sets no tags, so until
    that update such a stack is recognised by its parameter `ManagedBy`.
    """
    found = stack.describe(aws, name)
    if found is not None and found.status != stack.REVIEWED:
        return
    try:
        table = aws.call("dynamodb", "describe_table", TableName=name)["Table"]
    except InfrastructureNotFoundError:
        return
    check_table(table)
    if found is None:
        propose_import(aws, name, wanted._replace(parameters={**wanted.parameters, **_read_parameters(aws, table)}))
    journal = Journal(aws, _await_proposal(aws, name, watch))
    journal.new()  # skips those of earlier operations
    aws.call("cloudformation", "execute_change_set", StackName=name, ChangeSetName=_CHANGE_SET)
    end = stack.follow(journal, watch)
    if end.status != stack.IMPORTED:
        raise stack.operation_error(name, "made of the table", end)


def _read_parameters(aws: Aws, table: Mapping[str, Any]) -> dict[str, str]:
    """Return the parameters that describe a table as it is.

    An import changes no property of the table, and an update only those whose values in the stack change.
    """
    backups = aws.call("dynamodb", "describe_continuous_backups", TableName=table["TableName"])
    recovery = backups["ContinuousBackupsDescription"].get("PointInTimeRecoveryDescription", {})
    recovers = recovery.get("PointInTimeRecoveryStatus") == "ENABLED"
    most = table.get("OnDemandThroughput", {})
    return {
        "EnableDeletionProtection": "true" if table.get("DeletionProtectionEnabled") else "false",
        "PitrRecoveryDays": str(recovery.get("RecoveryPeriodInDays", _USUAL_RECOVERY_DAYS) if recovers else 0),
        "KmsKeyArn": table.get("SSEDescription", {}).get("KMSMasterKeyArn", ""),
        "MaxReadRequestUnits": str(max(0, most.get("MaxReadRequestUnits", 0))),  # -1 is no limit
        "MaxWriteRequestUnits": str(max(0, most.get("MaxWriteRequestUnits", 0))),
    }


def propose_import(aws: Aws, name: str, wanted: DesiredStack) -> None:
    """Create the change set that imports the table."""
    table = {"ResourceType": "AWS::DynamoDB::Table", "LogicalResourceId": "Table"}
    request = {
        **stack.stack_request(name, wanted._replace(template=template.table_template(), tags={})),
        "ChangeSetName": _CHANGE_SET,
        "ChangeSetType": "IMPORT",
        "ResourcesToImport": [{**table, "ResourceIdentifier": {"TableName": name}}],
    }
    aws.call("cloudformation", "create_change_set", **request)


def _await_proposal(aws: Aws, name: str, watch: FollowOptions) -> str:
    """Wait until CloudFormation has checked the change set. Return the id of the new stack."""

    def look() -> str | None:
        found = aws.call("cloudformation", "describe_change_set", StackName=name, ChangeSetName=_CHANGE_SET)
        if found["Status"] == "FAILED":
            aws.call("cloudformation", "delete_stack", StackName=name)
            reason = join_lines(found.get("StatusReason", "CloudFormation gives no reason"))
            raise StackOperationError(f"Table {name!r} cannot be imported into a stack: {reason}")
        return str(found["StackId"]) if found["Status"] == "CREATE_COMPLETE" else None

    busy = StackOperationError(f"CloudFormation is still checking table {name!r}; rerun to keep waiting.")
    return poll(look, watch.pause, busy, first=0.5, looks=150)  # five minutes
