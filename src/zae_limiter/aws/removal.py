"""Delete a deployment: empty its archive, then delete the stack. Protected resources are refused first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core import names
from ..core.errors import AccessDeniedError, InfrastructureNotFoundError, StackOperationError
from ..stores.dynamodb.answers import OTHER_REGION
from . import stack
from .stack import FollowOptions
from .template import log_group

if TYPE_CHECKING:
    from collections.abc import Callable

    from .calls import Aws
    from .events import Event
    from .stack import Stack

_TRIES = 3
"""How often the aggregator may write into the archive between its emptying and its end."""
_BATCH = 1000


def delete(aws: Aws, name: str, *, progress: Callable[[Event], object] | None = None) -> None:
    """Delete the stack and everything in it. Raise `InfrastructureNotFoundError` if it does not exist."""
    found = require_stack(aws, name)
    check_unprotected(aws, found)
    for left in reversed(range(_TRIES)):
        for bucket in list_archives(aws, found):
            empty_bucket(aws, bucket)
        try:
            stack.remove(aws, found, FollowOptions(progress))
            break
        except StackOperationError:
            if not left or not any(_has_objects(aws, bucket) for bucket in list_archives(aws, found)):
                raise
    # a running invocation can recreate the log group after CloudFormation has deleted it
    aws.call_if_allowed("logs", "delete_log_group", logGroupName=log_group(name))


def require_stack(aws: Aws, name: str) -> Stack:
    """Return our stack called ``name``. Raise `InfrastructureNotFoundError` if it does not exist."""
    found = stack.find_own(aws, names.stack(name))
    if found is None:
        raise InfrastructureNotFoundError(
            f"Stack {name!r} does not exist in {aws.region}: {OTHER_REGION}. `zae-limiter list` has the names."
        )
    return found


def check_unprotected(aws: Aws, found: Stack) -> None:
    """Raise `StackOperationError` if the stack or its table is protected against deletion."""
    if found.is_protected:
        raise StackOperationError(
            f"Stack {found.name!r} has termination protection; nothing was deleted. Turn it off with `aws "
            "cloudformation update-termination-protection --no-enable-termination-protection "
            f"--stack-name {found.name}`."
        )
    table = aws.call_if_allowed("dynamodb", "describe_table", TableName=found.name)
    if table is not None and table["Table"].get("DeletionProtectionEnabled"):
        raise StackOperationError(
            f"Table {found.name!r} has deletion protection; nothing was deleted. Turn it off with "
            f"`zae-limiter deploy --name {found.name} --disable-deletion-protection`."
        )


def list_archives(aws: Aws, found: Stack) -> list[str]:
    """Return the buckets that the stack still has."""
    return [
        each["PhysicalResourceId"]
        for page in aws.pages("cloudformation", "list_stack_resources", StackName=found.id)
        for each in page["StackResourceSummaries"]
        if each["ResourceType"] == "AWS::S3::Bucket" and each["ResourceStatus"] != "DELETE_COMPLETE"
    ]


def check_archive_empty(aws: Aws, name: str) -> None:
    """Raise `StackOperationError` if an archive to be removed holds events: its bucket would be orphaned."""
    found = stack.find_own(aws, name)
    if found is None or found.is_dead:
        return
    for bucket in list_archives(aws, found):
        try:
            holds = _has_objects(aws, bucket)
        except AccessDeniedError:  # whoever may not look leaves it to CloudFormation
            continue
        if holds:
            raise StackOperationError(
                f"The archive {bucket!r} of {name!r} holds audit events; nothing was changed. Keep it "
                f"(--audit-archival), or copy what you need and run `aws s3 rm --recursive s3://{bucket}` first."
            )


def empty_bucket(aws: Aws, bucket: str) -> None:
    """Delete every version of every object of a bucket."""
    try:
        for page in aws.pages("s3", "list_object_versions", Bucket=bucket):
            found = [*page.get("Versions", ()), *page.get("DeleteMarkers", ())]
            objects = [{"Key": each["Key"], "VersionId": each["VersionId"]} for each in found]
            for start in range(0, len(objects), _BATCH):
                batch = {"Objects": objects[start : start + _BATCH], "Quiet": True}
                for failed in aws.call("s3", "delete_objects", Bucket=bucket, Delete=batch).get("Errors", ()):
                    raise StackOperationError(
                        f"The archive {bucket!r} could not be emptied: {failed.get('Key')}: {failed.get('Message')}"
                    )
    except InfrastructureNotFoundError:
        return


def _has_objects(aws: Aws, bucket: str) -> bool:
    try:
        return bool(aws.call("s3", "list_object_versions", Bucket=bucket, MaxKeys=1).get("Versions"))
    except InfrastructureNotFoundError:
        return False
