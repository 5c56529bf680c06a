"""Read the events of a stack, each once, and find the one that made an operation fail."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from ..core.errors import InfrastructureError
from .calls import Aws, join_lines

_STARTS = ("CREATE_IN_PROGRESS", "UPDATE_IN_PROGRESS", "DELETE_IN_PROGRESS", "IMPORT_IN_PROGRESS")


class Event(NamedTuple):
    """One event of a stack: a resource, its type, its new status and the reason."""

    id: str
    resource: str
    type: str
    status: str
    reason: str
    of_stack: bool
    """Whether it is about the stack as a whole."""

    @property
    def has_failed(self) -> bool:
        """Return whether the step failed."""
        return self.status.endswith("_FAILED")


class Journal:
    """The events of one stack, oldest first. No event is returned twice."""

    def __init__(self, aws: Aws, stack_id: str) -> None:
        self.aws = aws
        self.stack_id = stack_id
        self._seen: set[str] = set()

    def skip_to_operation(self) -> None:
        """Skip all events before the operation that is in progress."""
        events = self._read_unseen()
        for place, event in enumerate(events):  # newest first
            if event.of_stack and event.status in _STARTS:
                self._seen.update(before.id for before in events[place + 1 :])
                return

    def new(self) -> list[Event]:
        """Return the events since the last call."""
        events = self._read_unseen()
        self._seen.update(event.id for event in events)
        return events[::-1]

    def _read_unseen(self) -> list[Event]:
        """Return unseen events, newest first. A listing can repeat events that move while it is read."""
        found: dict[str, Event] = {}
        for page in self.aws.pages("cloudformation", "describe_stack_events", StackName=self.stack_id):
            events = [_parse_event(entry) for entry in page["StackEvents"]]
            found |= {event.id: event for event in events if event.id not in self._seen and event.id not in found}
            if any(event.id in self._seen for event in events):
                break
        return list(found.values())


def _parse_event(entry: dict[str, Any]) -> Event:
    return Event(
        id=entry["EventId"],
        resource=entry["LogicalResourceId"],
        type=entry["ResourceType"],
        status=entry["ResourceStatus"],
        reason=join_lines(entry.get("ResourceStatusReason", "")),
        of_stack=entry.get("PhysicalResourceId") == entry["StackId"],
    )


def find_culprit(events: Iterable[Event]) -> Event | None:
    """Return the event of the resource that failed first, or None; later failures are only cancellations."""
    failed = [event for event in events if event.has_failed]
    blamed = [event for event in failed if not event.of_stack]
    own = [event for event in blamed if "cancelled" not in event.reason and "canceled" not in event.reason]
    return next(iter(own or failed), None)


def find_rejections(aws: Aws, stack_id: str) -> list[Event]:
    """Return why the last operation was rejected before it started; the stack's own events do not say why."""
    if not hasattr(aws.client("cloudformation"), "describe_events"):  # an older botocore
        return []
    request = {"StackName": stack_id, "Filters": {"FailedEvents": True}}
    try:
        pages = list(aws.pages("cloudformation", "describe_events", **request))
    except InfrastructureError:  # what is known already says enough
        return []
    found = [each for page in pages for each in page["OperationEvents"] if each.get("EventType") == "VALIDATION_ERROR"]
    last: dict[str, Any] = max(found, key=lambda each: (each["Timestamp"], each["OperationId"]), default={})
    return [
        Event(
            id=each["EventId"],
            resource=each.get("LogicalResourceId", ""),
            type=each.get("ResourceType", ""),
            status="VALIDATION_FAILED",
            reason=join_lines(each.get("ValidationStatusReason", "")),
            of_stack=False,
        )
        for each in found
        if each["OperationId"] == last["OperationId"]
    ]
