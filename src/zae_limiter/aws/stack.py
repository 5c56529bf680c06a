"""One CloudFormation stack: what it is, making it so, following what it does, removing it.

A stack is ours if it has our tag; nobody else's is ever changed. What a killed run has left behind is taken up: an
operation under way is waited for, and an empty remainder of a failed creation is removed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ..core.errors import InfrastructureNotFoundError, StackAlreadyExistsError, StackOperationError
from .calls import code_of, one_line, said
from .events import Event, Journal, culprit, rejected
from .tags import MANAGED, OLDER, VERSION
from .template import OURS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .calls import Aws

_CAPABILITIES = ["CAPABILITY_NAMED_IAM"]
REVIEWED = "REVIEW_IN_PROGRESS"
"""The state of a stack that somebody has proposed."""
_REMAINDERS = ("ROLLBACK_COMPLETE", REVIEWED)
"""States of a stack that has no resources and can only be deleted."""
_STABLE = (
    "CREATE_COMPLETE",
    "UPDATE_COMPLETE",
    "UPDATE_ROLLBACK_COMPLETE",
    "IMPORT_COMPLETE",
    "IMPORT_ROLLBACK_COMPLETE",
)
"""States that allow an update."""
_DELETED = "DELETE_COMPLETE"
_SUCCESSES = ("CREATE_COMPLETE", "UPDATE_COMPLETE")
_ROUNDS = 10
"""How often somebody else may be faster before we give up."""

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 3.0
_PATIENCE_SECONDS = 3600.0

CREATED, UPDATED, UNCHANGED = "created", "updated", "unchanged"


class Stack(NamedTuple):
    """A stack as CloudFormation describes it."""

    name: str
    id: str
    status: str
    reason: str
    parameters: Mapping[str, str]
    tags: Mapping[str, str]
    outputs: Mapping[str, str]
    protected: bool

    @property
    def managed(self) -> bool:
        """Whether it is ours: by its tag, or by its parameter where an import has made it, which sets no tags."""
        return self.tags.get(MANAGED) == "true" or self.parameters.items() >= OURS.items()

    @property
    def older(self) -> str | None:
        """Whose it is, where a version of before 1.0 has deployed it; None where none has."""
        if self.managed or self.tags.get(OLDER[0]) != OLDER[1]:
            return None
        return f"zae-limiter {self.tags.get(VERSION, 'before 1.0')}"

    @property
    def is_dead(self) -> bool:
        """Whether it holds nothing, or soon will: what its parameters say is no longer meant."""
        return self.status in _REMAINDERS or self.status.startswith(("ROLLBACK_", "DELETE_"))

    @property
    def busy(self) -> bool:
        """Whether an operation is under way."""
        return self.status.endswith("_IN_PROGRESS") and self.status not in _REMAINDERS


class Wanted(NamedTuple):
    """What a stack should be."""

    template: str
    parameters: Mapping[str, str]
    tags: Mapping[str, str]
    check: Callable[[], object] = lambda: None
    """Asked before the stack is created; raises where that cannot work."""


class Watch(NamedTuple):
    """How an operation is followed: who hears of its events, and how to wait for the next ones."""

    told: Callable[[Event], object] = lambda event: None
    pause: Callable[[float], object] = time.sleep
    patience: float = _PATIENCE_SECONDS


def describe(aws: Aws, name: str) -> Stack | None:
    """The stack of this name or id; None where there is none."""
    try:
        answer = aws.call("cloudformation", "describe_stacks", StackName=name)
    except InfrastructureNotFoundError:
        return None
    return described(answer["Stacks"][0])


def described(entry: Mapping[str, Any]) -> Stack:
    """An entry of CloudFormation's answer."""
    return Stack(
        name=entry["StackName"],
        id=entry["StackId"],
        status=entry["StackStatus"],
        reason=one_line(entry.get("StackStatusReason", "")),
        parameters={each["ParameterKey"]: each["ParameterValue"] for each in entry.get("Parameters", ())},
        tags={each["Key"]: each["Value"] for each in entry.get("Tags", ())},
        outputs={each["OutputKey"]: each["OutputValue"] for each in entry.get("Outputs", ())},
        protected=bool(entry.get("EnableTerminationProtection")),
    )


def own(aws: Aws, name: str) -> Stack | None:
    """The stack of this name, which must be ours; None where there is none."""
    found = describe(aws, name)
    if found is not None and found.older:
        raise StackAlreadyExistsError(
            f"Stack {name!r} in {aws.region} was deployed by {found.older}, whose stacks this version neither changes "
            f"nor deletes; nothing was changed. `zae-limiter upgrade --name {name}` moves the data of its table."
        )
    if found is not None and not found.managed:
        raise StackAlreadyExistsError(
            f"Stack {name!r} in {aws.region} is not a stack of zae-limiter (it lacks the tag {MANAGED}); "
            "nothing was changed. Give another name."
        )
    return found


def apply(aws: Aws, name: str, wanted: Wanted, watch: Watch, *, wait: bool = True) -> str:
    """Make the stack what is wanted; says whether it was created, updated or as it should be already."""
    for _ in range(_ROUNDS):
        found = _settled(aws, name, watch)
        try:
            if found is None:
                wanted.check()
                return _create(aws, name, wanted, watch, wait)
            return _update(aws, found, wanted, watch, wait)
        except StackOperationError as error:
            if not _outpaced(aws, name, error):
                raise
    raise StackOperationError(f"Stack {name!r} is being changed by others all the time; try again later.")


def remove(aws: Aws, found: Stack, watch: Watch) -> None:
    """Delete a stack and wait until it is gone; an operation under way is waited for first."""
    if found.busy and follow_on(aws, found, watch).status == _DELETED:
        return
    journal = Journal(aws, found.id)
    journal.skip()
    aws.call("cloudformation", "delete_stack", StackName=found.id)
    end = follow(aws, found.id, journal, watch)
    if end.status != _DELETED:
        raise failure(found.name, "deleted", end)


class End(NamedTuple):
    """How an operation ended."""

    status: str
    reason: str
    events: list[Event]


def follow(aws: Aws, stack_id: str, journal: Journal, watch: Watch) -> End:
    """Tell the events until the operation has ended, which the stack's own last event says."""
    pause, waited, events = _FIRST_PAUSE, 0.0, list[Event]()
    while True:
        found = describe(aws, stack_id)
        fresh = [] if found is None else journal.new()
        for event in fresh:
            watch.told(event)
        events += fresh
        if found is None or found.status == _DELETED:  # somebody else may have deleted it before the first look
            return End(_DELETED, "", events)
        if not found.busy and any(event.of_stack and event.status == found.status for event in events):
            return End(found.status, found.reason, [*events, *_hidden(aws, stack_id, events)])
        if waited > watch.patience:
            raise StackOperationError(
                f"Stack {found.name!r} is still {found.status} after {waited:.0f} s; repeat the command to wait on."
            )
        watch.pause(pause)
        waited, pause = waited + pause, min(_LONGEST_PAUSE, pause * 1.5)


def follow_on(aws: Aws, found: Stack, watch: Watch) -> End:
    """Follow the operation that somebody else has begun."""
    journal = Journal(aws, found.id)
    journal.skip_to_operation()
    return follow(aws, found.id, journal, watch)


def _hidden(aws: Aws, stack_id: str, events: list[Event]) -> list[Event]:
    """What went wrong, where the events of the stack name no resource for it."""
    event = culprit(events)
    return rejected(aws, stack_id) if event is not None and event.of_stack else []


def _settled(aws: Aws, name: str, watch: Watch) -> Stack | None:
    """The stack once nothing is under way, without what a failed creation has left; None where there is none."""
    found = own(aws, name)
    while found is not None and found.busy:
        follow_on(aws, found, watch)
        found = own(aws, name)
    if found is not None and found.status in _REMAINDERS:
        remove(aws, found, watch)
        return None
    if found is not None and found.status not in _STABLE:
        raise StackOperationError(stuck(found))
    return found


def stuck(found: Stack) -> str:
    """What to do about a stack that allows no change."""
    fix = f"remove it with `zae-limiter delete --name {found.name}`, then deploy again"
    if found.status == "UPDATE_ROLLBACK_FAILED":
        fix = f"run `aws cloudformation continue-update-rollback --stack-name {found.name}`, then deploy again"
    return f"Stack {found.name!r} is {found.status} and cannot be changed{_because(found.reason)}: {fix}."


def _create(aws: Aws, name: str, wanted: Wanted, watch: Watch, wait: bool) -> str:
    answer = aws.call("cloudformation", "create_stack", **request(name, wanted), OnFailure="ROLLBACK")
    if wait:
        _ended(name, CREATED, follow(aws, answer["StackId"], Journal(aws, answer["StackId"]), watch))
    return CREATED


def _update(aws: Aws, found: Stack, wanted: Wanted, watch: Watch, wait: bool) -> str:
    journal = Journal(aws, found.id)
    journal.skip()
    try:
        aws.call("cloudformation", "update_stack", **request(found.name, wanted))
    except StackOperationError as error:
        if "No updates are to be performed" in said(error):
            return UNCHANGED
        raise
    if wait:
        _ended(found.name, UPDATED, follow(aws, found.id, journal, watch))
    return UPDATED


def request(name: str, wanted: Wanted) -> dict[str, Any]:
    """What CloudFormation is told of a stack."""
    return {
        "StackName": name,
        "TemplateBody": wanted.template,
        "Parameters": [{"ParameterKey": key, "ParameterValue": text} for key, text in wanted.parameters.items()],
        "Tags": [{"Key": key, "Value": text} for key, text in wanted.tags.items()],
        "Capabilities": _CAPABILITIES,
    }


def _outpaced(aws: Aws, name: str, error: StackOperationError) -> bool:
    """Whether somebody else has made the stack, or begun to change it, since it was looked at."""
    if isinstance(error, StackAlreadyExistsError):
        return describe(aws, name) is not None
    return code_of(error) == "ValidationError" and "_IN_PROGRESS state" in said(error)


def _ended(name: str, done: str, end: End) -> None:
    if end.status not in _SUCCESSES or _rolled_back(end.events):
        raise failure(name, done, end)


def _rolled_back(events: Iterable[Event]) -> bool:
    return any(event.of_stack and "ROLLBACK" in event.status for event in events)


def failure(name: str, done: str, end: End) -> StackOperationError:
    """One line: what could not be done, which resource was to blame, and what has become of the stack."""
    event = culprit(end.events)
    blame = _because(end.reason) if event is None else f": {event.resource} ({event.type}): {event.reason}"
    state = "rolled back" if end.status.endswith("ROLLBACK_COMPLETE") else f"left {end.status}"
    return StackOperationError(f"Stack {name!r} was not {done}{blame.rstrip('.')}. It was {state}.")


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""
