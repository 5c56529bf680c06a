"""Who an audit event names where the caller names nobody: on DynamoDB the owner of the credentials, else nobody."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Iterator

import pytest

from tests.aws.stacks import REGION
from tests.repository.test_open import Face, face, make_table, name
from tests.support.aws import engine
from tests.support.scripted_server import CLOSE, HANG, ScriptedServer, Step, isolate, reply
from zae_limiter import Limit
from zae_limiter.stores.dynamodb.credentials import CallerIdentity
from zae_limiter.stores.dynamodb.sockets import AsyncSockets
from zae_limiter.testing import Harness

__all__ = ["face", "name"]

RPM = [Limit.per_minute("rpm", 100)]
ROOT = "arn:aws:iam::000000000000:root"
"""Who every caller of the local AWS is."""
ROLE = "arn:aws:sts::123456789012:assumed-role/app/i-1"
ANSWER = reply(f"<R><GetCallerIdentityResult><Arn>{ROLE}</Arn></GetCallerIdentityResult></R>".encode())


async def test_every_change_names_the_caller_where_the_store_knows_it(harness: Harness) -> None:
    repo = harness.repository()
    expected = ROOT if repo.capabilities.name == "dynamodb" else None
    await repo.register_namespace("red")
    await repo.create_entity("key")
    changes: list[Awaitable[object]] = [
        repo.update_entity("key", name="New"),
        repo.set_limits("key", RPM),
        repo.disable_entity("key"),
        repo.set_entity_cascade("key", True),
        repo.top_up("key", "gpt-4", {"rpm": 5}),
        repo.reset_bucket("key", "gpt-4"),
        repo.delete_entity("key"),
        repo.set_system_defaults(RPM),
        repo.set_resource_defaults("gpt-4", RPM),
        repo.delete_namespace("red"),
    ]
    for change in changes:
        await change
    for subject, count in (("key", 8), ("$SYSTEM", 1), ("$RESOURCE:gpt-4", 1), ("$NAMESPACE:red", 2)):
        assert [event.principal for event in await repo.get_audit_events(subject)] == [expected] * count, subject


async def test_a_principal_that_is_given_is_taken(harness: Harness) -> None:
    repo = harness.repository()
    await repo.create_entity("key", principal="ann")
    assert [event.principal for event in await repo.get_audit_events("key")] == ["ann"]


@pytest.fixture
def sts(monkeypatch: pytest.MonkeyPatch, name: str) -> Iterator[ScriptedServer]:
    """An STS that answers by script, beside a table of the local AWS."""
    isolate(monkeypatch)
    make_table(name)
    with ScriptedServer() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", engine.endpoint())
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", server.url)
        yield server


def test_sts_is_asked_once_and_only_for_changes(face: Face, name: str, sts: ScriptedServer) -> None:
    sts.script.append(ANSWER)
    repository = face.Repository(name, REGION)
    face(repository.set_system_defaults(RPM, principal="ann"))
    limiter = face.RateLimiter(repository)
    assert face(limiter.available("key", "gpt-4")) == {"rpm": 100}
    assert sts.seen == []
    face(repository.set_system_defaults(RPM))
    face(repository.create_entity("key"))
    face(face(repository.namespace("default")).delete_entity("key"))
    events = [face(repository.get_audit_events(subject)) for subject in ("$SYSTEM", "key")]
    assert [[event.principal for event in each] for each in events] == [[ROLE, "ann"], [ROLE, ROLE]]
    assert [request.body.partition(b"&")[0] for request in sts.seen] == [b"Action=GetCallerIdentity"]
    face(repository.close())


@pytest.mark.parametrize(
    "step", [HANG, CLOSE, reply(b"<oops", 500), reply(b"no")], ids=["hang", "close", "500", "junk"]
)
def test_a_change_does_without_an_sts_that_fails(face: Face, name: str, sts: ScriptedServer, step: Step) -> None:
    sts.script.append(step)
    repository = face(face.Repository.open(stack=name, region=REGION, timeout=3))
    for entity in ("one", "two"):
        face(repository.create_entity(entity))
        assert [event.principal for event in face(repository.get_audit_events(entity))] == [None]
    assert len(sts.seen) == 1, "a failure is remembered"
    face(repository.close())


def test_those_who_want_to_know_at_once_ask_once_and_again_after_minutes() -> None:
    now, asked, answers = [0.0], [], iter([None, ROLE])
    gate = threading.Event()

    def ask() -> str:
        asked.append(now[0])
        gate.wait()
        found = next(answers)
        if found is None:
            raise OSError
        return found

    identity = CallerIdentity(ask, AsyncSockets(), lambda: now[0])

    async def ask_together() -> list[str | None]:
        waiting = [asyncio.create_task(identity.find(60)) for _ in range(5)]
        await asyncio.sleep(0)
        gate.set()
        return await asyncio.gather(*waiting)

    async def story() -> None:
        assert await ask_together() == [None] * 5
        now[0] = 299.0
        assert await identity.find(60) is None
        now[0] = 301.0
        assert await ask_together() == [ROLE] * 5
        assert asked == [0.0, 301.0]

    asyncio.run(story())


def test_nobody_waits_longer_than_the_time_that_there_is() -> None:
    gate = threading.Event()

    def ask() -> str:
        gate.wait()
        return ROLE

    identity = CallerIdentity(ask, AsyncSockets())
    assert asyncio.run(identity.find(0.01)) is None
    gate.set()
    for thread in threading.enumerate():
        if thread.name == "zae-limiter-identity":
            thread.join()
    assert asyncio.run(identity.find(0.01)) == ROLE, "what came too late is there for the next one"
