"""The bucket of a stack that archives audit events: find, empty and delete it."""

from __future__ import annotations

from ..core.errors import AccessDeniedError, InfrastructureNotFoundError, StackOperationError
from . import stack
from .calls import Aws, code_of
from .stack import Stack

_DELETIONS = 3
"""How often the aggregator may write into the archive between its emptying and its end."""
_MOST_OBJECTS = 1000
"""Most objects that one call deletes."""


def list_archives(aws: Aws, found: Stack) -> list[str]:
    """Return the buckets that the stack still has."""
    return stack.list_resources(aws, found, "AWS::S3::Bucket")


def list_empty_archives(aws: Aws, name: str) -> list[str]:
    """Return the archives of a stack that is to have none. Raise `StackOperationError` if one holds events.

    CloudFormation retains its bucket, which would no longer be part of a stack.
    """
    found = stack.find_own(aws, name)
    if found is None or found.is_dead:
        return []
    empty = []
    for bucket in list_archives(aws, found):
        try:
            holds = has_objects(aws, bucket)
        except AccessDeniedError:  # without the right to look, it is left to CloudFormation
            continue
        if holds:
            raise StackOperationError(
                f"The archive {bucket!r} of {name!r} holds audit events; nothing was changed. Keep it "
                f"(--audit-archival), or copy what you need and run `aws s3 rm --recursive s3://{bucket}` first."
            )
        empty.append(bucket)
    return empty


def has_objects(aws: Aws, bucket: str) -> bool:
    """Return whether a bucket exists and holds any version of an object."""
    try:
        return bool(aws.call("s3", "list_object_versions", Bucket=bucket, MaxKeys=1).get("Versions"))
    except InfrastructureNotFoundError:
        return False


def delete_bucket(aws: Aws, bucket: str, *, bypass_lock: bool = False) -> None:
    """Delete a bucket with everything in it; do nothing if it does not exist.

    ``bypass_lock`` also deletes objects that Object Lock keeps in the mode GOVERNANCE.
    """
    for left in reversed(range(_DELETIONS)):
        try:
            empty_bucket(aws, bucket, bypass_lock=bypass_lock)
            aws.call("s3", "delete_bucket", Bucket=bucket)
            return
        except InfrastructureNotFoundError:
            return
        except StackOperationError as error:
            if not left or code_of(error) != "BucketNotEmpty":
                raise


def empty_bucket(aws: Aws, bucket: str, *, bypass_lock: bool = False) -> None:
    """Delete every version of every object of a bucket, as `delete_bucket` does."""
    bypass = {"BypassGovernanceRetention": True} if bypass_lock else {}
    for page in aws.pages("s3", "list_object_versions", Bucket=bucket):
        found = [*page.get("Versions", ()), *page.get("DeleteMarkers", ())]
        objects = [{"Key": each["Key"], "VersionId": each["VersionId"]} for each in found]
        for start in range(0, len(objects), _MOST_OBJECTS):
            batch = {"Objects": objects[start : start + _MOST_OBJECTS], "Quiet": True}
            for failed in aws.call("s3", "delete_objects", Bucket=bucket, Delete=batch, **bypass).get("Errors", ()):
                raise StackOperationError(
                    f"The archive {bucket!r} could not be emptied: {failed.get('Key')}: {failed.get('Message')}"
                )
