"""What CloudFormation does to a stack: its events, each told once, and which of them was the one that failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..core.errors import InfrastructureError
from .calls import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .calls import Aws

_STARTS = ("CREATE_IN_PROGRESS", "UPDATE_IN_PROGRESS", "DELETE_IN_PROGRESS", "IMPORT_IN_PROGRESS")
_FOLLOWS = ("cancelled", "canceled")
"""How CloudFormation says that a resource failed only because another one had."""


class Event(NamedTuple):
    """One step: a resource, its type, its new status, and why."""

    id: str
    resource: str
    type: str
    status: str
    reason: str
    of_stack: bool
    """Whether it is about the stack as a whole."""

    @property
    def failed(self) -> bool:
        """Whether something went wrong."""
        return self.status.endswith("_FAILED")


class Journal:
    """The events of one stack, oldest first; none is told twice."""

    def __init__(self, aws: Aws, stack_id: str) -> None:
        self._aws = aws
        self._stack_id = stack_id
        self._told: set[str] = set()

    def skip(self) -> None:
        """Tell nothing of what has happened until now."""
        self.new()

    def skip_to_operation(self) -> None:
        """Tell nothing of what happened before the operation that is under way."""
        events = self._untold()
        for place, event in enumerate(events):  # newest first
            if event.of_stack and event.status in _STARTS:
                self._told.update(before.id for before in events[place + 1 :])
                return

    def new(self) -> list[Event]:
        """What has happened since the last look."""
        events = self._untold()
        self._told.update(event.id for event in events)
        return events[::-1]

    def _untold(self) -> list[Event]:
        """Newest first, as CloudFormation lists them; a listing can repeat what moved while it was read."""
        found: dict[str, Event] = {}
        for page in self._aws.pages("cloudformation", "describe_stack_events", StackName=self._stack_id):
            events = [_event(entry) for entry in page["StackEvents"]]
            found |= {event.id: event for event in events if event.id not in self._told and event.id not in found}
            if any(event.id in self._told for event in events):
                break
        return list(found.values())


def _event(entry: dict[str, Any]) -> Event:
    return Event(
        id=entry["EventId"],
        resource=entry["LogicalResourceId"],
        type=entry["ResourceType"],
        status=entry["ResourceStatus"],
        reason=one_line(entry.get("ResourceStatusReason", "")),
        of_stack=entry.get("PhysicalResourceId") == entry["StackId"],
    )


def culprit(events: Iterable[Event]) -> Event | None:
    """The resource that failed first: the others were cancelled because of it."""
    failed = [event for event in events if event.failed]
    own = [event for event in failed if not event.of_stack and not any(word in event.reason for word in _FOLLOWS)]
    return next(iter(own or failed), None)


def rejected(aws: Aws, stack_id: str) -> list[Event]:
    """What the last operation was refused for before it began; the stack's own events say only that it was."""
    if not hasattr(aws.client("cloudformation"), "describe_events"):  # an older botocore
        return []
    try:
        failed = list(
            aws.pages("cloudformation", "describe_events", StackName=stack_id, Filters={"FailedEvents": True})
        )
    except InfrastructureError:  # what is known already says enough
        return []
    found = [each for page in failed for each in page["OperationEvents"] if each.get("EventType") == "VALIDATION_ERROR"]
    newest = max((each["Timestamp"], each["OperationId"]) for each in found)[1] if found else None
    return [_rejection(each) for each in found if each["OperationId"] == newest]


def _rejection(entry: dict[str, Any]) -> Event:
    return Event(
        id=entry["EventId"],
        resource=entry.get("LogicalResourceId", ""),
        type=entry.get("ResourceType", ""),
        status="VALIDATION_FAILED",
        reason=one_line(entry.get("ValidationStatusReason", "")),
        of_stack=False,
    )
