"""Limits per route in FastAPI by the dependency."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI, HTTPException, Request
from fastapi.responses import StreamingResponse

from tests.web.api import COST, RPM, TPM, Api, Prompt, check_limited
from tests.web.drive import Call, call_asgi
from zae_limiter import Lease, Limit, ValidationError
from zae_limiter.web import Rule, by_header
from zae_limiter.web.asgi import acquire
from zae_limiter.web.fastapi import Limited, limited

Taken = Annotated[Lease, Depends(Limited("chat", COST, limits=[RPM, TPM]))]


@pytest.fixture
def api() -> Api:
    """An app without rules of its own."""
    return Api()


def test_the_dependency_gives_the_lease(api: Api) -> None:
    @api.app.post("/chat")
    async def chat(prompt: Prompt, lease: Taken) -> str:
        await lease.adjust(tpm=len(prompt.text) - 100)
        return prompt.text

    check_limited(api, 4, body={"text": "four"})


def test_the_dependency_on_a_sync_endpoint(api: Api) -> None:
    @api.app.post("/chat")
    def chat(lease: Taken) -> dict[str, int]:
        return lease.consumed

    check_limited(api, 100)


def test_an_endpoint_in_a_thread_adjusts_without_waiting(api: Api) -> None:
    @api.app.post("/chat")
    def chat(lease: Taken) -> dict[str, int]:
        lease.adjust_nowait(tpm=30)
        return lease.consumed

    check_limited(api, 130)


def test_the_dependency_of_a_route_that_wants_no_lease(api: Api) -> None:
    @api.app.post("/chat", dependencies=[Depends(Limited("chat", COST, limits=[RPM, TPM]))])
    async def chat() -> str:
        return "hello"

    check_limited(api, 100)


def same(lease: Taken) -> Any:
    """Another dependency that depends on the lease."""
    return lease


def test_one_dependency_asked_for_twice_takes_once(api: Api) -> None:
    """FastAPI asks for it once per request, and everybody gets the same lease."""

    @api.app.post("/chat")
    async def chat(lease: Taken, other: Annotated[Any, Depends(same)]) -> None:
        assert lease is other

    check_limited(api, 100)


images_of = Limited("images", {"tpm": 7}, limits=[TPM], key=by_header("x-tenant"))


def test_several_dependencies_take_from_each(api: Api) -> None:
    @api.app.post("/chat")
    async def chat(lease: Taken, images: Annotated[Lease, Depends(images_of)]) -> list[dict[str, int]]:
        await images.adjust(tpm=1)
        return [lease.consumed, images.consumed]

    reply = api.ask(headers=[("x-tenant", "t1")])
    assert json.loads(reply.body) == [{"rpm": 1, "tpm": 100}, {"tpm": 8}]
    assert api.left() == {"rpm": 1, "tpm": 900}
    assert api.left("images", TPM, who="header:x-tenant:t1") == {"tpm": 992}


def test_what_the_first_took_goes_back_when_the_second_refuses(api: Api) -> None:
    @api.app.post("/chat")
    async def chat(lease: Taken, more: Annotated[Lease, Depends(Limited("images", 1, limits=[TPM]))]) -> str:
        await more.adjust(tpm=999)
        return "hello"

    assert [api.ask().status for _ in range(2)] == [200, 429]
    assert api.left() == {"rpm": 1, "tpm": 900}


def test_rules_of_the_middleware_count_as_well() -> None:
    api = Api(rules=[Rule(limits=[Limit.per_day("rpm", 10)], resource="site")])

    @api.app.post("/chat")
    async def chat(lease: Taken) -> str:
        await lease.adjust(tpm=-50)
        return "hello"

    check_limited(api, 50)
    assert api.left("site", Limit.per_day("rpm", 10)) == {"rpm": 8}


async def tokens(request: Any) -> dict[str, int]:
    """A cost."""
    return {"tpm": int(request.header("x-tokens"))}


model_of = Limited(lambda request: f"models{request.path}", tokens, key=lambda request: "team", limits=[TPM])


def test_key_and_cost_can_be_computed(api: Api) -> None:
    @api.app.get("/o3")
    async def chat(lease: Annotated[Lease, Depends(model_of)]) -> str:
        return "hello"

    assert api.ask("/o3", "GET", headers=[("x-tokens", "250")]).status == 200
    assert api.left("models/o3", TPM, who="team") == {"tpm": 750}


@pytest.mark.parametrize(("refund", "left"), [((), {"rpm": 1, "tpm": 900}), ((500,), {"rpm": 2, "tpm": 1_000})])
def test_an_exception_of_the_endpoint_is_charged_unless_it_is_refunded(
    api: Api, refund: tuple[int, ...], left: dict[str, int]
) -> None:
    @api.app.post("/chat")
    @limited("chat", COST, limits=[RPM, TPM], refund=refund)
    async def chat() -> str:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        api.ask()
    assert api.left() == left


def test_an_answer_of_the_endpoint_costs_whatever_it_says(api: Api) -> None:
    @api.app.post("/chat")
    async def chat(lease: Taken) -> str:
        raise HTTPException(404)

    assert api.ask().status == 404
    assert api.left() == {"rpm": 1, "tpm": 900}


def test_a_body_that_is_not_valid_is_told_so(api: Api) -> None:
    """FastAPI looks at the body after the dependencies."""

    @api.app.post("/chat")
    async def chat(prompt: Prompt, lease: Taken) -> str:
        return prompt.text

    assert api.ask(body={"wrong": 1}).status == 422


@pytest.mark.parametrize("stays", [None, 1])
def test_a_stream_after_the_dependency_is_settled_at_its_end(api: Api, stays: int | None) -> None:
    @api.app.post("/chat")
    async def chat(lease: Taken) -> StreamingResponse:
        async def chunks() -> AsyncIterator[bytes]:
            produced = 0
            try:
                for _ in range(3):
                    produced += 10
                    yield b"ten tokens"
            finally:
                await lease.adjust(tpm=produced - 100)

        return StreamingResponse(chunks())

    reply = api.ask(stays=stays, loud=False)
    assert len(reply.chunks) == (3 if stays is None else stays)
    left = api.left()
    assert left["rpm"] == 1
    assert left["tpm"] == 970 if stays is None else left["tpm"] in (970, 980, 990)


def test_a_background_task_can_adjust(api: Api) -> None:
    """The response is done when it runs; what it finds out is written then."""

    @api.app.post("/chat")
    async def chat(lease: Taken, tasks: BackgroundTasks) -> str:
        tasks.add_task(lease.adjust, tpm=-40)
        tasks.add_task(lease.release, tpm=10)
        return "hello"

    check_limited(api, 50)


def test_a_background_task_can_take_and_adjust(api: Api) -> None:
    """Nobody settles it any more: each change is written as it is made."""

    async def work(request: Request) -> None:
        lease = await acquire(request, "job", "chat", {"tpm": 100}, [TPM])
        await lease.adjust(tpm=50)
        await lease.release(tpm=30)

    @api.app.post("/chat")
    async def chat(request: Request, tasks: BackgroundTasks) -> str:
        tasks.add_task(work, request)
        return "hello"

    assert api.ask().status == 200
    assert api.left("chat", TPM, who="job") == {"tpm": 880}


def test_two_routes_cannot_give_one_resource_different_limits(api: Api) -> None:
    @api.app.post("/chat")
    async def chat(lease: Annotated[Lease, Depends(Limited("chat", limits=[RPM]))]) -> str:
        return "hello"

    @api.app.post("/more")
    async def more(lease: Annotated[Lease, Depends(Limited("chat", limits=[Limit.per_minute("rpm", 1_000)]))]) -> str:
        return "hello"

    assert api.ask("/chat").status == 200
    with pytest.raises(ValidationError, match="name one with resource="):
        api.ask("/more")


async def test_without_the_middleware_it_says_what_to_do() -> None:
    app = FastAPI()

    @app.post("/chat")
    async def chat(lease: Taken) -> str:
        return "hello"

    reply = await call_asgi(app, Call("/chat", "POST"))
    assert isinstance(reply.error, ValidationError)
    assert "add it to the app" in str(reply.error)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("a#b",), "resource"),
        (("chat", -1), "cost"),
        (("chat", "1"), "cost"),
        (("", 1), "resource"),
    ],
)
@pytest.mark.parametrize("kind", [Limited, limited])
def test_bad_arguments_are_refused_when_the_route_is_made(kind: Any, arguments: tuple[Any, ...], field: str) -> None:
    with pytest.raises(ValidationError) as raised:
        kind(*arguments)
    assert raised.value.field == field


def test_routers_and_mounts(api: Api) -> None:
    """A dependency of a router is for all its routes; a mounted app is behind the same middleware."""
    router = APIRouter(prefix="/v1", dependencies=[Depends(Limited("chat", COST, limits=[RPM, TPM]))])

    @router.post("/a")
    async def a() -> str:
        return "a"

    @router.post("/b")
    @limited("b", limits=[RPM])
    async def b(lease: Lease) -> str:
        return "b"

    below = FastAPI()

    @below.post("/c")
    async def c(lease: Taken) -> str:
        return "c"

    api.app.include_router(router)
    api.app.mount("/below", below)
    assert [api.ask(path).status for path in ("/v1/a", "/below/c", "/v1/b")] == [200, 200, 429]
    assert api.left("b", RPM) == {"rpm": 2}
    assert api.left() == {"rpm": 0, "tpm": 800}
