"""Stacks: created, changed, left alone where nothing changed, followed event by event, taken up where they stopped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.aws.stacks import FOREVER, GATED, QUEUE, aws, named, open_gate, status, wanted
from zae_limiter import StackAlreadyExistsError, StackOperationError
from zae_limiter.aws import archive, deployment, stack
from zae_limiter.aws.events import Event
from zae_limiter.aws.stack import FollowOptions, OperationEnd, Stack, describe_stuck, operation_error


@pytest.fixture
def name() -> Iterator[str]:
    with named() as made:
        yield made


def present(name: str) -> Stack:
    found = stack.describe(aws(), name)
    assert found is not None
    return found


def steps(events: list[Event]) -> list[tuple[str, str]]:
    return [(event.resource, event.status) for event in events]


def test_it_is_created_changed_and_then_left_alone(name: str) -> None:
    told: list[Event] = []
    watch = FollowOptions(told.append)
    assert stack.apply(aws(), name, wanted(QUEUE), watch) == "created"
    assert steps(told) == [
        (name, "CREATE_IN_PROGRESS"),
        ("First", "CREATE_IN_PROGRESS"),
        ("First", "CREATE_COMPLETE"),
        ("Second", "CREATE_IN_PROGRESS"),
        ("Second", "CREATE_COMPLETE"),
        (name, "CREATE_COMPLETE"),
    ]
    told.clear()
    assert stack.apply(aws(), name, wanted(QUEUE), watch) == "unchanged"
    assert told == []
    assert stack.apply(aws(), name, wanted(QUEUE, Seconds="120"), watch) == "updated"
    assert steps(told)[0] == (name, "UPDATE_IN_PROGRESS")
    assert steps(told)[-1] == (name, "UPDATE_COMPLETE")
    assert len({event.id for event in told}) == len(told)
    found = present(name)
    assert found.parameters == {"Seconds": "120"}


def test_it_need_not_be_waited_for(name: str) -> None:
    assert stack.apply(aws(), name, wanted(GATED), FollowOptions(), wait=False) == "created"
    assert status(name) == "CREATE_IN_PROGRESS"
    open_gate(name)
    assert stack.apply(aws(), name, wanted(GATED), FollowOptions()) == "unchanged"


def test_an_operation_under_way_is_waited_for(name: str) -> None:
    stack.apply(aws(), name, wanted(GATED), FollowOptions(), wait=False)
    told: list[Event] = []
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        if not pauses:
            open_gate(name)
        if (name, "UPDATE_IN_PROGRESS") not in steps(told):  # pauses of the next operation begin anew
            pauses.append(seconds)

    assert stack.apply(aws(), name, wanted(QUEUE), FollowOptions(told.append, pause)) == "updated"
    assert pauses == sorted(pauses)
    assert steps(told)[0] == (name, "CREATE_IN_PROGRESS")
    assert (name, "CREATE_COMPLETE") in steps(told)
    assert steps(told)[-1] == (name, "UPDATE_COMPLETE")


def test_it_does_not_wait_for_ever(name: str) -> None:
    watch = FollowOptions(pause=lambda seconds: None, patience=5)
    with pytest.raises(StackOperationError, match=r"still CREATE_IN_PROGRESS after \d+ s; rerun to keep waiting"):
        stack.apply(aws(), name, wanted(GATED), watch)
    open_gate(name)


def test_a_failure_names_the_resource_that_failed_first(name: str) -> None:
    with pytest.raises(StackOperationError) as caught:
        stack.apply(aws(), name, wanted(QUEUE, Seconds=FOREVER), FollowOptions())
    assert str(caught.value) == (
        f"Stack {name!r} was not created: Second (AWS::SQS::Queue): "
        "Invalid value for the parameter MessageRetentionPeriod. Value must be between 60 and 1209600. "
        "It was rolled back."
    )
    assert status(name) == "ROLLBACK_COMPLETE"
    assert stack.apply(aws(), name, wanted(QUEUE), FollowOptions()) == "created"


def test_what_is_refused_before_it_begins_is_named_too(name: str) -> None:
    aws().call("s3", "create_bucket", Bucket=f"{name}-taken")
    template = f"Resources: {{Archive: {{Type: AWS::S3::Bucket, Properties: {{BucketName: {name}-taken}}}}}}"
    with pytest.raises(
        StackOperationError, match=r"not created: Archive \(AWS::S3::Bucket\): .* already exists\. It was"
    ):
        stack.apply(aws(), name, wanted(template), FollowOptions())
    aws().call("s3", "delete_bucket", Bucket=f"{name}-taken")


def test_a_change_that_fails_leaves_what_was(name: str) -> None:
    stack.apply(aws(), name, wanted(QUEUE), FollowOptions())
    with pytest.raises(StackOperationError, match=r"was not updated: Second \(AWS::SQS::Queue\): .* rolled back\."):
        stack.apply(aws(), name, wanted(QUEUE, Seconds=FOREVER), FollowOptions())
    found = present(name)
    assert (found.status, found.parameters) == ("UPDATE_ROLLBACK_COMPLETE", {"Seconds": "60"})
    assert stack.apply(aws(), name, wanted(QUEUE, Seconds="120"), FollowOptions()) == "updated"


def test_nobody_else_s_stack_is_touched(name: str) -> None:
    theirs = wanted(QUEUE, ours=False)
    stack.apply(aws(), f"{name}-x", theirs, FollowOptions())  # the tag decides at the next look
    try:
        with pytest.raises(StackAlreadyExistsError, match="Choose another name"):
            stack.apply(aws(), f"{name}-x", wanted(QUEUE, Seconds="120"), FollowOptions())
        with pytest.raises(StackAlreadyExistsError, match="nothing was changed"):
            deployment.delete(aws(), f"{name}-x")
        found = present(f"{name}-x")
        assert (found.status, found.parameters) == ("CREATE_COMPLETE", {"Seconds": "60"})
    finally:
        stack.remove(aws(), present(f"{name}-x"), FollowOptions())


def test_a_deletion_waits_for_what_is_under_way(name: str) -> None:
    stack.apply(aws(), name, wanted(GATED), FollowOptions(), wait=False)
    told: list[Event] = []
    open_gate(name)
    deployment.delete(aws(), name, progress=told.append)
    assert steps(told)[-1] == (name, "DELETE_COMPLETE")
    assert status(name) is None


def happened(resource: str, state: str, reason: str, *, of_stack: bool = False) -> Event:
    return Event(f"{resource}-{state}", resource, "AWS::X::Y", state, reason, of_stack)


def test_a_deletion_that_somebody_else_was_faster_with_is_done(name: str) -> None:
    stack.apply(aws(), name, wanted(QUEUE), FollowOptions())
    seen = present(name)
    stack.remove(aws(), seen, FollowOptions())
    stack.remove(aws(), seen, FollowOptions(patience=0))


def test_what_was_only_cancelled_is_not_to_blame() -> None:
    events = [
        happened("my-app", "CREATE_IN_PROGRESS", "User Initiated", of_stack=True),
        happened("Queue", "CREATE_FAILED", "Resource creation cancelled"),
        happened("Table", "CREATE_FAILED", "Table already exists: my-app"),
        happened("Role", "CREATE_FAILED", "Role already exists"),
        happened("my-app", "ROLLBACK_IN_PROGRESS", "The following resource(s) failed to create: [..].", of_stack=True),
        happened("my-app", "ROLLBACK_COMPLETE", "", of_stack=True),
    ]
    assert str(operation_error("my-app", "created", OperationEnd("ROLLBACK_COMPLETE", "", events))) == (
        "Stack 'my-app' was not created: Table (AWS::X::Y): Table already exists: my-app. It was rolled back."
    )


def test_a_deletion_that_failed_says_what_stays() -> None:
    events = [happened("Archive", "DELETE_FAILED", "The bucket you tried to delete is not empty")]
    assert str(operation_error("my-app", "deleted", OperationEnd("DELETE_FAILED", "", events))) == (
        "Stack 'my-app' was not deleted: Archive (AWS::X::Y): The bucket you tried to delete is not empty. "
        "It was left DELETE_FAILED."
    )


def test_without_a_culprit_the_stack_s_own_reason_is_told() -> None:
    end = OperationEnd("ROLLBACK_COMPLETE", "The template was not valid", [])
    assert "was not created: The template was not valid. It" in str(operation_error("my-app", "created", end))


def test_an_archive_is_emptied_whatever_it_holds(name: str) -> None:
    stack.apply(aws(), name, wanted("Resources: {Archive: {Type: AWS::S3::Bucket}}"), FollowOptions())
    (bucket,) = archive.list_archives(aws(), present(name))
    aws().call("s3", "put_bucket_versioning", Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    for body in (b"1", b"2"):
        aws().call("s3", "put_object", Bucket=bucket, Key="audit/a", Body=body)
    aws().call("s3", "delete_object", Bucket=bucket, Key="audit/a")
    archive.empty_bucket(aws(), bucket)
    left = aws().call("s3", "list_object_versions", Bucket=bucket)
    assert not left.get("Versions")
    assert not left.get("DeleteMarkers")


@pytest.mark.parametrize("state", ["UPDATE_ROLLBACK_FAILED", "DELETE_FAILED", "ROLLBACK_FAILED", "CREATE_FAILED"])
def test_a_stack_that_is_stuck_says_how_to_go_on(state: str) -> None:
    said = describe_stuck(Stack("my-app", "arn", state, "Table would not go", {}, {}, {}, False))
    assert said.startswith(f"Stack 'my-app' is {state} and cannot be changed: Table would not go: ")
    fix = "continue-update-rollback" if state.startswith("UPDATE") else "zae-limiter delete --name my-app"
    assert fix in said
