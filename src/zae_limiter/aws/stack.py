"""One CloudFormation stack: describe, create, update, follow and delete it.

A stack is ours if it has our tag; others are never changed. After an interrupted run, an operation in progress is
waited for, and the empty remainder of a failed creation is removed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from .._version import __version__
from ..core import names
from ..core.errors import (
    InfrastructureNotFoundError,
    StackAlreadyExistsError,
    StackOperationError,
    ValidationError,
)
from ..core.reports import LimiterInfo
from ..records.version import SCHEMA_VERSION
from ..v017 import stack_tags
from .calls import Aws, aws_message, code_of, join_lines
from .events import Event, Journal, find_culprit, find_rejections
from .template import OURS, OWNER

if TYPE_CHECKING:
    from datetime import datetime


MANAGED_TAG = "zae-limiter:managed"
VERSION_TAG = "zae-limiter:version"
SCHEMA_TAG = "zae-limiter:schema-version"

REVIEWED = "REVIEW_IN_PROGRESS"
"""The state of a stack that was only proposed."""
_REMAINDERS = ("ROLLBACK_COMPLETE", REVIEWED)
"""States of a stack that has no resources and can only be deleted."""
IMPORTED = "IMPORT_COMPLETE"
"""The state of a stack that holds an imported table and nothing else yet."""
_DELETED = "DELETE_COMPLETE"
_ABSENT = ("DELETE_COMPLETE", "DELETE_SKIPPED", "CREATE_FAILED", "IMPORT_FAILED", "IMPORT_ROLLBACK_COMPLETE")
"""States of resources that a stack does not have, or no longer."""
_ROUNDS = 10
"""Lost races after which an operation is given up."""

CREATED, UPDATED, UNCHANGED = "created", "updated", "unchanged"


PROTECT_LATER = {"EnableDeletionProtection": "later"}
"""What a stack is created with that is to be protected: a creation that fails has to delete its table.

It stays in the stack until the table is protected, so the next deployment after an interrupted one knows.
"""


class Stack(NamedTuple):
    """A stack as CloudFormation describes it."""

    name: str
    id: str
    status: str
    reason: str
    parameters: Mapping[str, str]
    tags: Mapping[str, str]
    outputs: Mapping[str, str]
    is_protected: bool
    created_at: str = ""
    updated_at: str | None = None

    @property
    def is_managed(self) -> bool:
        """Whether it is ours: by its tag, or by its parameter if it was made by an import, which sets no tags."""
        return self.tags.get(MANAGED_TAG) == "true" or self.parameters.items() >= OURS.items()

    @property
    def lacks_protection(self) -> bool:
        """Return whether its table is to be protected against deletion and the deployment ended before that."""
        return self.is_managed and self.parameters.items() >= PROTECT_LATER.items()

    @property
    def older_version(self) -> str | None:
        """The version before 1.0 that deployed it, or None."""
        return None if self.is_managed else stack_tags.find_version(self.tags)

    @property
    def user_tags(self) -> dict[str, str] | None:
        """The tags that are not ours, or None."""
        own = (MANAGED_TAG, VERSION_TAG, SCHEMA_TAG)
        return {key: text for key, text in self.tags.items() if key not in own} or None

    @property
    def is_dead(self) -> bool:
        """Whether it holds nothing or is being deleted, so that its parameters no longer count."""
        return self.status in _REMAINDERS or self.status.startswith(("ROLLBACK_", "DELETE_"))

    @property
    def is_busy(self) -> bool:
        """Whether an operation is in progress."""
        return self.status.endswith("_IN_PROGRESS") and self.status not in _REMAINDERS


class DesiredStack(NamedTuple):
    """The desired state of a stack."""

    template: str
    parameters: Mapping[str, str]
    tags: Mapping[str, str]
    check: Callable[[], object] = lambda: None
    """Asked before the stack is created; raises where that cannot work."""
    at_creation: Mapping[str, str] = {}  # never changed
    """Parameters with another value while the stack is created."""


class FollowOptions(NamedTuple):
    """A callback for the events of an operation, a function that waits, and the most seconds to wait."""

    on_event: Callable[[Event], object] | None = None
    pause: Callable[[float], object] = time.sleep
    patience: float = 3600.0


def add_own_tags(tags: Mapping[str, str] | None) -> dict[str, str]:
    """Return the user's tags together with ours, by which a stack is found."""
    return {**(tags or {}), MANAGED_TAG: "true", VERSION_TAG: __version__, SCHEMA_TAG: SCHEMA_VERSION}


def describe(aws: Aws, name: str) -> Stack | None:
    """Return the stack of this name or id, or None."""
    try:
        answer = aws.call("cloudformation", "describe_stacks", StackName=name)
    except InfrastructureNotFoundError:
        return None
    return _parse_stack(answer["Stacks"][0])


def look_up(aws: Aws, name: str) -> Stack | None:
    """Return the stack of a table, or None: also for a table whose name no stack can have."""
    try:
        names.stack(name)
    except ValidationError:
        return None
    return describe(aws, name)


def find_living(aws: Aws, name: str) -> Stack | None:
    """Return our stack that holds this table, or None; stacks of others and of older versions are left alone."""
    found = look_up(aws, name)
    return found if found is not None and found.is_managed and not found.is_dead else None


def find_limiters(aws: Aws) -> list[LimiterInfo]:
    """Return the limiters that are deployed in this account and region, by any version, sorted by name."""
    stacks = [
        _parse_stack(entry) for page in aws.pages("cloudformation", "describe_stacks") for entry in page["Stacks"]
    ]
    found = [
        LimiterInfo(
            *(each.name, aws.region, each.status, each.tags.get(VERSION_TAG), each.tags.get(SCHEMA_TAG)),
            creation_time=each.created_at,
            last_updated_time=each.updated_at,
        )
        for each in stacks
        if each.is_managed or each.older_version
    ]
    return sorted(found, key=lambda each: each.stack_name)


def _spell_time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def _parse_stack(entry: Mapping[str, Any]) -> Stack:
    return Stack(
        name=entry["StackName"],
        id=entry["StackId"],
        status=entry["StackStatus"],
        reason=join_lines(entry.get("StackStatusReason", "")),
        parameters={each["ParameterKey"]: each["ParameterValue"] for each in entry.get("Parameters", ())},
        tags={each["Key"]: each["Value"] for each in entry.get("Tags", ())},
        outputs={each["OutputKey"]: each["OutputValue"] for each in entry.get("Outputs", ())},
        is_protected=bool(entry.get("EnableTerminationProtection")),
        created_at=_spell_time(entry.get("CreationTime")) or "",
        updated_at=_spell_time(entry.get("LastUpdatedTime")),
    )


def find_own(aws: Aws, name: str) -> Stack | None:
    """Return our stack of this name, or None. Raise `StackAlreadyExistsError` if it is not ours."""
    found = describe(aws, name)
    if found is not None and found.older_version:
        raise StackAlreadyExistsError(stack_tags.refuse(name, aws.region, found.older_version), stack_name=name)
    if found is not None and not found.is_managed:
        raise StackAlreadyExistsError(f"Stack {name!r} in {aws.region} {describe_owner(found)}.", stack_name=name)
    return found


def describe_owner(found: Stack) -> str:
    """Return who changes and deletes a stack that is not ours, and what to do."""
    owner = found.parameters.get(OWNER) or found.outputs.get(OWNER)  # CDK puts the value in the parameter's place
    if owner is None:
        return f"is not a zae-limiter stack (it lacks the tag {MANAGED_TAG}); nothing was changed. Choose another name"
    tool = f"by {owner}" if owner in ("Terraform", "CDK") else "by another tool, such as a pipeline of your own"
    return f"was made of this template {tool}; nothing was changed. Change or delete it there, or choose another name"


def list_resources(aws: Aws, found: Stack, kind: str) -> list[str]:
    """Return the physical ids of the resources of a type that the stack has: neither failed nor deleted ones."""
    return [
        each["PhysicalResourceId"]
        for page in aws.pages("cloudformation", "list_stack_resources", StackName=found.id)
        for each in page["StackResourceSummaries"]
        if each["ResourceType"] == kind and each["ResourceStatus"] not in _ABSENT
    ]


def apply(aws: Aws, name: str, wanted: DesiredStack, watch: FollowOptions, *, wait: bool = True) -> str:
    """Create or update the stack to match ``wanted``. Return `CREATED`, `UPDATED` or `UNCHANGED`."""
    for _ in range(_ROUNDS):
        found = _wait_until_stable(aws, name, watch)
        try:
            return _apply_once(aws, name, found, wanted, watch if wait else None)
        except (StackOperationError, StackAlreadyExistsError) as error:
            lost = code_of(error) == "ValidationError" and "_IN_PROGRESS state" in aws_message(error)
            if isinstance(error, StackAlreadyExistsError):  # even if only a name of its resources is taken
                lost = describe(aws, name) is not None
            if not lost:
                raise
    raise StackOperationError(f"Too much contention on stack {name!r}; try again later.", stack_name=name)


def _apply_once(aws: Aws, name: str, found: Stack | None, wanted: DesiredStack, watch: FollowOptions | None) -> str:
    """Create the stack, or update ``found``. Wait for the end unless ``watch`` is None."""
    if found is None:
        wanted.check()
        wanted = wanted._replace(parameters={**wanted.parameters, **wanted.at_creation})
    request = stack_request(name, wanted)
    if found is None:
        answer = aws.call("cloudformation", "create_stack", **request, OnFailure="ROLLBACK")
        done, journal = CREATED, Journal(aws, answer["StackId"])
    else:
        done, journal = UPDATED, Journal(aws, found.id)
        journal.new()  # skips those of earlier operations
        try:
            aws.call("cloudformation", "update_stack", **request)
        except StackOperationError as error:
            if "No updates are to be performed" in aws_message(error):
                return UNCHANGED
            raise
    if watch is not None:
        end = follow(journal, watch)
        rolled_back = any(event.of_stack and "ROLLBACK" in event.status for event in end.events)
        if rolled_back or end.status not in ("CREATE_COMPLETE", "UPDATE_COMPLETE"):
            raise operation_error(name, done, end)
    return done


def wait_until_idle(aws: Aws, found: Stack, watch: FollowOptions) -> bool:
    """Wait for an operation in progress. Return whether the stack still exists."""
    return not (found.is_busy and _follow_on(aws, found, watch).status == _DELETED)


def remove(aws: Aws, found: Stack, watch: FollowOptions, *, wait: bool = True) -> None:
    """Delete a stack and wait until it is gone, after waiting for an operation in progress.

    Only begin to delete it if ``wait`` is False.
    """
    if not wait_until_idle(aws, found, watch):
        return
    journal = Journal(aws, found.id)
    journal.new()  # skips those of earlier operations
    aws.call("cloudformation", "delete_stack", StackName=found.id)
    if not wait:
        return
    end = follow(journal, watch)
    if end.status != _DELETED:
        raise operation_error(found.name, "deleted", end)


class OperationEnd(NamedTuple):
    """The end of an operation."""

    status: str
    reason: str
    events: list[Event]


def follow(journal: Journal, watch: FollowOptions) -> OperationEnd:
    """Report events until the operation has ended, as the stack's own last event says. Return its end."""
    aws, stack_id = journal.aws, journal.stack_id
    pause, waited, events = 0.1, 0.0, list[Event]()
    while True:
        found = describe(aws, stack_id)
        fresh = [] if found is None else journal.new()
        if watch.on_event is not None:
            for event in fresh:
                watch.on_event(event)
        events += fresh
        if found is None or found.status == _DELETED:  # it may have been deleted before the first look
            return OperationEnd(_DELETED, "", events)
        if not found.is_busy and any(event.of_stack and event.status == found.status for event in events):
            culprit = find_culprit(events)
            hidden = find_rejections(aws, stack_id) if culprit is not None and culprit.of_stack else []
            return OperationEnd(found.status, found.reason, events + hidden)
        if waited > watch.patience:
            raise StackOperationError(
                f"Stack {found.name!r} is still {found.status} after {waited:.0f} s; rerun to keep waiting.",
                stack_name=found.name,
                events=_list_fields(events),
            )
        watch.pause(pause)
        waited, pause = waited + pause, min(3.0, pause * 1.5)


def _follow_on(aws: Aws, found: Stack, watch: FollowOptions) -> OperationEnd:
    """Follow an operation that another client started."""
    journal = Journal(aws, found.id)
    journal.skip_to_operation()
    return follow(journal, watch)


def _wait_until_stable(aws: Aws, name: str, watch: FollowOptions) -> Stack | None:
    """Return the stack once no operation is in progress, after removing the remainder of a failed creation."""
    found = find_own(aws, name)
    while found is not None and found.is_busy:
        _follow_on(aws, found, watch)
        found = find_own(aws, name)
    if found is not None and found.status in _REMAINDERS:
        remove(aws, found, watch)
        return None
    if found is not None and not found.status.endswith("_COMPLETE"):
        raise StackOperationError(describe_stuck(found), stack_name=found.name, reason=found.reason)
    return found


def describe_stuck(found: Stack) -> str:
    """Return what to do about a stack that allows no change."""
    force = " --force" if found.status in ("ROLLBACK_FAILED", "CREATE_FAILED") else ""  # its table holds nothing yet
    fix = f"remove it with `zae-limiter delete --name {found.name}{force}`, then deploy again"
    if found.status == "UPDATE_ROLLBACK_FAILED":
        fix = f"run `aws cloudformation continue-update-rollback --stack-name {found.name}`, then deploy again"
    reason = f": {found.reason}" if found.reason else ""
    return f"Stack {found.name!r} is {found.status} and cannot be changed{reason}: {fix}."


def stack_request(name: str, wanted: DesiredStack) -> dict[str, Any]:
    """Return the request that describes the stack to CloudFormation."""
    return {
        "StackName": name,
        "TemplateBody": wanted.template,
        "Parameters": [{"ParameterKey": key, "ParameterValue": text} for key, text in wanted.parameters.items()],
        "Tags": [{"Key": key, "Value": text} for key, text in wanted.tags.items()],
        "Capabilities": ["CAPABILITY_NAMED_IAM"],
    }


def operation_error(name: str, done: str, end: OperationEnd) -> StackOperationError:
    """Return the error of a failed operation: the failed resource, the reason and the state of the stack."""
    event = find_culprit(end.events)
    reason = end.reason if event is None else f"{event.resource} ({event.type}): {event.reason}"
    blame = f": {reason}".rstrip(".") if reason else ""
    state = "rolled back" if end.status.endswith("ROLLBACK_COMPLETE") else f"left {end.status}"
    message = f"Stack {name!r} was not {done}{blame}. It was {state}."
    return StackOperationError(message, stack_name=name, reason=reason, events=_list_fields(end.events))


def _list_fields(events: list[Event]) -> list[dict[str, Any]]:
    fields = ("EventId", "LogicalResourceId", "ResourceType", "ResourceStatus", "ResourceStatusReason")
    return [dict(zip(fields, event, strict=False)) for event in events]
