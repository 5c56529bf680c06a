"""Taking a table that was made without a stack into one, with all it holds.

CloudFormation imports the table into a stack of its own; the usual update then adds what belongs around it. An
import sets no tags, so until that update such a stack is known by its parameter `ManagedBy`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.errors import InfrastructureNotFoundError, StackOperationError
from ..stores.dynamodb.table import check_table
from . import template
from .calls import one_line
from .events import Journal
from .stack import REVIEWED, describe, failure, follow, request

if TYPE_CHECKING:
    from .calls import Aws
    from .stack import Wanted, Watch

_CHANGE_SET = "zae-limiter-adopt"
_IMPORTED = "IMPORT_COMPLETE"
_LOOKS = 600
_PAUSE = 0.5


def adopt(aws: Aws, name: str, wanted: Wanted, watch: Watch) -> None:
    """Import the table of this name into a new stack; nothing where there is a stack already, or no table."""
    found = describe(aws, name)
    if found is not None and found.status != REVIEWED:
        return
    try:
        table = aws.call("dynamodb", "describe_table", TableName=name)["Table"]
    except InfrastructureNotFoundError:
        return
    check_table(table)
    if found is None:
        _propose(aws, name, wanted)
    stack_id = _proposed(aws, name, watch)
    journal = Journal(aws, stack_id)
    journal.skip()
    aws.call("cloudformation", "execute_change_set", StackName=name, ChangeSetName=_CHANGE_SET)
    end = follow(aws, stack_id, journal, watch)
    if end.status != _IMPORTED:
        raise failure(name, "made of the table", end)


def _propose(aws: Aws, name: str, wanted: Wanted) -> None:
    identity = {"TableName": name}
    table = {"ResourceType": "AWS::DynamoDB::Table", "LogicalResourceId": "Table", "ResourceIdentifier": identity}
    alone = request(name, wanted._replace(template=template.of_table(), tags={}))
    aws.call(
        "cloudformation",
        "create_change_set",
        **alone,
        ChangeSetName=_CHANGE_SET,
        ChangeSetType="IMPORT",
        ResourcesToImport=[table],
    )


def _proposed(aws: Aws, name: str, watch: Watch) -> str:
    """The id of the stack to be, once CloudFormation has looked at the proposal."""
    for _ in range(_LOOKS):
        found = aws.call("cloudformation", "describe_change_set", StackName=name, ChangeSetName=_CHANGE_SET)
        if found["Status"] == "CREATE_COMPLETE":
            return str(found["StackId"])
        if found["Status"] == "FAILED":
            aws.call("cloudformation", "delete_stack", StackName=name)
            reason = one_line(found.get("StatusReason", "CloudFormation gives no reason"))
            raise StackOperationError(f"The table {name!r} cannot be taken into a stack: {reason}")
        watch.pause(_PAUSE)
    raise StackOperationError(f"CloudFormation still looks at the table {name!r}; repeat the command to wait on.")
