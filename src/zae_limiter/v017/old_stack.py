"""A stack that a version before 1.0 has deployed: stop its function, and delete it without its table.

Its function counts in the old layout and writes into the buckets of the present one, so it has to stop before data are
moved. Its template deletes the table along with the stack, so that is changed before the stack is deleted.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ..aws import stack
from ..aws.calls import Aws
from ..aws.events import Journal
from ..aws.stack import FollowOptions, Stack
from ..core.errors import AccessDeniedError, StackOperationError

_MAPPING = "AWS::Lambda::EventSourceMapping"
_STOPPED = ("Disabled", "Disabling", "Deleting")
_RELEASED = "zae-limiter:released"
"""A tag that changes with the deletion policies: CloudFormation updates no stack for the sake of these alone."""
_KEPT = re.compile(r"^( +)Type: *['\"]?AWS::(?:DynamoDB::Table|S3::Bucket)['\"]?[ \t]*$", re.MULTILINE)


class OldStack(NamedTuple):
    """A stack of an older version, and the ids of its mappings that still feed a function, with its name."""

    stack: Stack
    version: str
    running: dict[str, str]


def find_old_stack(aws: Aws, name: str) -> OldStack | None:
    """Return the stack of this name if a version before 1.0 has deployed it, else None."""
    found = stack.look_up(aws, name)
    if found is None or found.older_version is None:
        return None
    running = {}
    for mapping in stack.list_resources(aws, found, _MAPPING):
        answer = aws.call_if_allowed("lambda", "get_event_source_mapping", UUID=mapping)
        if answer is not None and answer["State"] not in _STOPPED:
            running[mapping] = answer["FunctionArn"].rpartition(":")[2]
    return OldStack(found, found.older_version, running)


def stop_functions(aws: Aws, old: OldStack) -> None:
    """Disable the mappings that feed the stack's functions. Raise `AccessDeniedError` with the command for it."""
    for mapping, function in old.running.items():
        try:
            aws.call("lambda", "update_event_source_mapping", UUID=mapping, Enabled=False)
        except AccessDeniedError as error:
            raise AccessDeniedError(
                f"These credentials may not stop the old function {function!r}, which would write into the upgraded "
                "buckets; nothing was changed. Have it stopped with `aws lambda update-event-source-mapping "
                f"--no-enabled --uuid {mapping} --region {aws.region}`, and upgrade again."
            ) from error


def release_table(aws: Aws, old: OldStack, watch: FollowOptions) -> None:
    """Delete the stack, but neither its table nor its archive: its template is first changed to retain them."""
    if _RELEASED not in old.stack.tags:
        _retain_data(aws, old.stack, watch)
    stack.remove(aws, old.stack, watch)


def _retain_data(aws: Aws, found: Stack, watch: FollowOptions) -> None:
    """Change the stack's template to keep its data, and wait."""
    body = aws.call("cloudformation", "get_template", StackName=found.id, TemplateStage="Original")["TemplateBody"]
    journal = Journal(aws, found.id)
    journal.new()  # skips those of earlier operations
    request = {
        "StackName": found.id,
        "TemplateBody": retain_data(body),
        "Parameters": [{"ParameterKey": key, "UsePreviousValue": True} for key in found.parameters],
        "Tags": [{"Key": key, "Value": text} for key, text in {**found.tags, _RELEASED: "true"}.items()],
        "Capabilities": ["CAPABILITY_NAMED_IAM"],
    }
    aws.call("cloudformation", "update_stack", **request)
    end = stack.follow(journal, watch)
    if end.status != "UPDATE_COMPLETE":
        raise stack.operation_error(found.name, "changed to keep its table", end)


def retain_data(template: object) -> str:
    """Return a template in YAML that keeps its tables and buckets when the stack is deleted.

    Raise `StackOperationError` for one that does not show where they are.
    """
    changed, count = "", 0
    if isinstance(template, str) and "DeletionPolicy" not in template:
        changed, count = _KEPT.subn(r"\g<0>\n\1DeletionPolicy: Retain\n\1UpdateReplacePolicy: Retain", template)
    if not count:
        raise StackOperationError(
            "The template of the old stack is not as an older version wrote it; nothing was changed. Give its table "
            "`DeletionPolicy: Retain`, update the stack, delete it, and run `zae-limiter deploy --adopt`."
        )
    return changed
