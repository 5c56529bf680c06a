"""Limits per route in FastAPI by the decorator, on every kind of endpoint.

The annotations of this module are texts, as they are in many apps.
"""

from __future__ import annotations

import functools
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from fastapi import Depends
from starlette.requests import Request as StarletteRequest

from tests.web.api import COST, RPM, TPM, Api, Prompt, check_limited
from zae_limiter import Lease, Limit
from zae_limiter.web.fastapi import Limited, find_rules, limited

if TYPE_CHECKING:
    from zae_limiter import Lease as HiddenLease


@pytest.fixture
def api() -> Api:
    """An app without rules of its own."""
    return Api()


def lease_and_body() -> Any:
    @limited("chat", COST, limits=[RPM, TPM])
    async def chat(prompt: Prompt, lease: Lease) -> str:
        await lease.adjust(tpm=len(prompt.text))
        return prompt.text

    return chat


def no_lease() -> Any:
    @limited("chat", COST, limits=[RPM, TPM])
    async def chat(prompt: Prompt) -> str:
        return prompt.text

    return chat


def lease_first_and_defaults() -> Any:
    @limited("chat", COST, limits=[RPM, TPM])
    async def chat(lease: Lease, prompt: Prompt, much: int = 4, *, more: bool = False) -> str:
        await lease.adjust(tpm=much)
        return prompt.text

    return chat


def sync_with_lease() -> Any:
    @limited("chat", COST, limits=[RPM, TPM])
    def chat(prompt: Prompt, lease: Lease) -> str:
        assert lease.consumed == COST
        return prompt.text

    return chat


def sync_without_lease() -> Any:
    @limited("chat", COST, limits=[RPM, TPM])
    def chat(prompt: Prompt) -> str:
        return prompt.text

    return chat


def hidden_annotation() -> Any:
    @limited("chat", COST, limits=[RPM, TPM])
    async def chat(prompt: Prompt, lease: HiddenLease) -> str:
        await lease.adjust(tpm=4)
        return prompt.text

    return chat


def no_annotation() -> Any:
    @limited("chat", COST, limits=[RPM, TPM])
    async def chat(prompt: Prompt, lease) -> str:  # type: ignore[no-untyped-def]  # as users write it
        await lease.adjust(tpm=4)
        return prompt.text

    return chat


def with_request_and_dependency() -> Any:
    @limited("chat", COST, limits=[RPM, TPM])
    async def chat(
        prompt: Prompt, request: StarletteRequest, lease: Lease, four: Annotated[int, Depends(lambda: 4)]
    ) -> str:
        assert request.url.path == "/chat"
        await lease.adjust(tpm=four)
        return prompt.text

    return chat


def partial() -> Any:
    async def chat(extra: int, prompt: Prompt, lease: Lease) -> str:
        await lease.adjust(tpm=extra)
        return prompt.text

    return limited("chat", COST, limits=[RPM, TPM])(functools.partial(chat, 4))


def instance() -> Any:
    class Chat:
        async def __call__(self, prompt: Prompt, lease: Lease) -> str:
            await lease.adjust(tpm=4)
            return prompt.text

    return limited("chat", COST, limits=[RPM, TPM])(Chat())


DECORATED: dict[str, tuple[Callable[[], Any], int]] = {
    "lease and body": (lease_and_body, 104),
    "no lease": (no_lease, 100),
    "lease first, defaults": (lease_first_and_defaults, 104),
    "sync with lease": (sync_with_lease, 100),
    "sync without lease": (sync_without_lease, 100),
    "annotation for type checkers only": (hidden_annotation, 104),
    "no annotation": (no_annotation, 104),
    "request and dependency": (with_request_and_dependency, 104),
    "partial": (partial, 104),
    "instance": (instance, 104),
}


@pytest.mark.parametrize("kind", DECORATED)
def test_the_decorator(api: Api, kind: str) -> None:
    make, spent = DECORATED[kind]
    api.app.post("/chat")(make())
    check_limited(api, spent, body={"text": "four"})


@pytest.mark.parametrize("kind", DECORATED)
def test_the_schema_shows_no_lease(api: Api, kind: str) -> None:
    api.app.post("/chat")(DECORATED[kind][0]())
    operation = api.app.openapi()["paths"]["/chat"]["post"]
    assert "lease" not in json.dumps(operation)
    assert operation["requestBody"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Prompt"}
    names = [parameter["name"] for parameter in operation.get("parameters", ())]
    assert names == (["much", "more"] if kind == "lease first, defaults" else [])


SLOW, FAST = Limit.per_day("rpm", 2), Limit.per_day("rpm", 5)


def stack_without_lease() -> Any:
    @limited("outer", 1, limits=[FAST])
    @limited("middle", 2, limits=[FAST])
    @limited("inner", 1, limits=[SLOW])
    async def chat(prompt: Prompt) -> str:
        return prompt.text

    return chat


def stack_with_lease() -> Any:
    @limited("outer", 1, limits=[FAST])
    @limited("middle", 2, limits=[FAST])
    @limited("inner", 1, limits=[SLOW])
    def chat(prompt: Prompt, lease: Lease) -> str:
        assert lease.limits == (SLOW,)
        return prompt.text

    return chat


def stack_on_a_dependency() -> Any:
    @limited("outer", 1, limits=[FAST])
    @limited("middle", 2, limits=[FAST])
    async def chat(prompt: Prompt, lease: Annotated[Lease, Depends(Limited("inner", 1, limits=[SLOW]))]) -> str:
        assert lease.limits == (SLOW,)
        return prompt.text

    return chat


def stack_on_a_default() -> Any:
    @limited("outer", 1, limits=[FAST])
    @limited("middle", 2, limits=[FAST])
    async def chat(prompt: Prompt, lease: Lease = Depends(Limited("inner", 1, limits=[SLOW]))) -> str:  # noqa: B008  # FastAPI's older way
        assert lease.limits == (SLOW,)
        return prompt.text

    return chat


STACKS = (stack_without_lease, stack_with_lease, stack_on_a_dependency, stack_on_a_default)


@pytest.mark.parametrize("make", STACKS)
def test_every_limit_of_several_decorators_is_charged(api: Api, make: Callable[[], Any]) -> None:
    api.app.post("/chat")(make())
    assert [api.ask(body={"text": "four"}).status for _ in range(3)] == [200, 200, 429]
    left = {resource: api.left(resource, FAST)["rpm"] for resource in ("outer", "middle")}
    assert left == {"outer": 3, "middle": 1}
    assert api.left("inner", SLOW) == {"rpm": 0}
    assert "lease" not in json.dumps(api.app.openapi()["paths"]["/chat"])


@pytest.mark.parametrize("make", STACKS)
def test_the_rules_of_several_decorators_are_all_found(api: Api, make: Callable[[], Any]) -> None:
    """So that an app does not start whose rules contradict each other."""
    api.app.post("/chat")(make())
    assert sorted(rule.resource_name for rule in find_rules(api.app)) == ["inner", "middle", "outer"]


def test_the_decorator_keeps_what_the_endpoint_says_of_itself() -> None:
    @limited("chat", 1)
    async def chat(prompt: Prompt) -> str:
        """Answers."""
        return prompt.text

    assert (chat.__name__, chat.__doc__) == ("chat", "Answers.")


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_the_decorator_on_an_endpoint_that_yields(api: Api, kind: str) -> None:
    @limited("chat", COST, limits=[RPM, TPM])
    async def lines() -> AsyncIterator[dict[str, int]]:
        for number in range(3):
            yield {"number": number}

    @limited("chat", COST, limits=[RPM, TPM])
    def lines_sync() -> Iterator[dict[str, int]]:
        for number in range(3):
            yield {"number": number}

    api.app.get("/chat")(lines if kind == "async" else lines_sync)
    assert [json.loads(line) for line in api.ask(method="GET").body.splitlines()] == [{"number": n} for n in range(3)]
    assert [api.ask(method="GET").status for _ in range(2)] == [200, 429]
