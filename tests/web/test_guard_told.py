"""What clients are told, on success and when they are refused; never who else is limited, nor a promise too early."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from tests.web.drive import PEER, Reply
from tests.web.scripted import MODES, SERVE, Place, Site, Start, limiter_for
from zae_limiter import Limit, RateLimitExceeded
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import ManualClock
from zae_limiter.web import Answer, Fields, Request, Rule, lease_of

RPM = Limit.per_day("rpm", 10)
IP = f"ip:{PEER}"


class Boom(Exception):
    """What an app raises."""


def test_the_third_of_two_is_refused_before_the_app_runs(place: Place) -> None:
    site = place.site(limits=[Limit.per_minute("rpm", 2)])
    calls: list[Any] = []
    replies = [site.ask("/", calls.append, *SERVE) for _ in range(3)]
    assert [reply.status for reply in replies] == [200, 200, 429]
    assert len(calls) == 2
    assert [reply.header("ratelimit") for reply in replies] == [
        f'"rpm";r={r};t={t}' for r, t in [(1, 30), (0, 60), (0, 30)]
    ]
    assert [reply.header("retry-after") for reply in replies] == [None, None, "30"]
    problem = replies[2].problem()
    assert problem["violated-policies"] == ["rpm"]
    assert (problem["retryAfter"], problem["limit"], problem["remaining"]) == (30, 2, 0)
    assert problem["resetTime"] == place.harness.clock.now_ms() + 30_000


def test_a_refusal_has_no_body_for_head(place: Place) -> None:
    site = place.site(limits=[Limit.per_minute("rpm", 1)])
    site.ask()
    reply = site.ask(method="HEAD")
    assert (reply.status, reply.body) == (429, b"")
    assert int(reply.header("content-length") or 0) > 0


class Responding:
    """A hook that notes what it is given and answers as it was told."""

    def __init__(self, response: Any) -> None:
        self.response = response
        self.seen: list[tuple[Request, Answer, Exception]] = []

    def __call__(self, request: Request, answer: Answer, error: Exception) -> Any:
        self.seen.append((request, answer, error))
        return self.response


def refused(place: Place, response: Any) -> tuple[Reply, Responding]:
    """The answer to one request too many."""
    respond = Responding(response)
    site = place.site(limits=[Limit.per_minute("rpm", 1)], respond=respond)
    site.ask()
    assert not respond.seen
    return site.ask("/x"), respond


def test_the_hook_sees_what_is_refused_and_can_leave_it(place: Place) -> None:
    reply, respond = refused(place, None)
    ((request, answer, error),) = respond.seen
    assert (request.path, answer.status, type(error)) == ("/x", 429, RateLimitExceeded)
    assert (reply.status, reply.body, [*answer.headers]) == (429, answer.body, [*_titled(reply, answer)])


def _titled(reply: Reply, answer: Answer) -> list[tuple[str, str]]:
    """The lines of a reply as the answer spells them: ASGI has names in lower case."""
    assert [name.lower() for name, _ in reply.headers] == [name.lower() for name, _ in answer.headers]
    return [(name, value) for (name, _), (_, value) in zip(answer.headers, reply.headers, strict=True)]


@pytest.mark.parametrize("status", [418, 420, 429, 599])
def test_the_hook_can_give_another_answer(place: Place, status: int) -> None:
    """Its status need not have a name."""
    reply, _ = refused(place, Answer(status, (("content-type", "text/plain"), ("x-why", "tea")), b"short and stout"))
    assert (reply.status, reply.header("x-why"), reply.body) == (status, "tea", b"short and stout")


@pytest.mark.parametrize("status", [None, 418])
def test_the_hook_can_be_async(place: Place, status: int | None) -> None:
    async def respond(request: Request, answer: Answer, error: Exception) -> Answer | None:
        return None if status is None else Answer(status, (("content-type", "text/plain"),), b"tea")

    site = place.site(limits=[Limit.per_minute("rpm", 1)], respond=respond)
    assert [site.ask().status for _ in range(2)] == [200, status or 429]


class Closing:
    """A WSGI response that must be closed."""

    closed = False

    def __call__(self, environ: Any, start_response: Any) -> Any:
        start_response("402 Payment Required", [("content-type", "text/plain"), ("x-path", environ["PATH_INFO"])])
        return self

    def __iter__(self) -> Iterator[bytes]:
        yield b"pay"
        yield b"up"

    def close(self) -> None:
        self.closed = True


async def pay_up(scope: Any, receive: Any, send: Any) -> None:
    """An ASGI response."""
    headers = [(b"content-type", b"text/plain"), (b"x-path", scope["path"].encode())]
    await send({"type": "http.response.start", "status": 402, "headers": headers})
    await send({"type": "http.response.body", "body": b"pay", "more_body": True})
    await send({"type": "http.response.body", "body": b"up"})


@pytest.mark.parametrize("moment", ["before the app", "inside the app", "after a promise"])
def test_the_hook_can_give_an_app(place: Place, moment: str) -> None:
    closing = Closing()
    app = pay_up if place.mode == "asgi" else closing
    site = place.site(limits=[Limit.per_minute("rpm", 1)], respond=lambda *_: app)
    if moment == "before the app":
        site.ask()
        reply = site.ask("/x")
    else:
        promise = [Start()] if moment == "after a promise" and app is closing else []
        reply = site.ask("/x", *promise, RateLimitExceeded([]))
    assert (reply.status, reply.chunks, reply.header("x-path"), reply.complete) == (402, [b"pay", b"up"], "/x", True)
    assert closing.closed == (app is closing)


def test_what_the_app_says_itself_stays_said(place: Place) -> None:
    site = place.site(limits=[RPM], headers=["ietf", "x-ratelimit"])
    own = (("RateLimit", '"mine";r=1'), ("x-RateLimit-limit", "7"), ("Set-Cookie", "a=1"), ("Set-Cookie", "b=2"))
    reply = site.ask("/", Start(200, own), b"x")
    assert reply.lines("ratelimit") == ['"mine";r=1']
    assert reply.lines("x-ratelimit-limit") == ["7"]
    assert reply.lines("set-cookie") == ["a=1", "b=2"]
    assert reply.lines("ratelimit-policy") == []  # half a pair would speak of another policy than the other half
    assert reply.lines("x-ratelimit-remaining") == ["9"]


def test_exposed_fields_are_added_to_those_of_the_app(place: Place) -> None:
    site = place.site(limits=[RPM], headers=Fields("ietf", expose=True))
    reply = site.ask("/", Start(200, (("Access-Control-Expose-Headers", "x-mine"),)))
    assert reply.lines("access-control-expose-headers") == ["x-mine", "RateLimit-Policy, RateLimit"]


def test_a_bucket_is_never_full_before_it_is_told_to_be(place: Place) -> None:
    """A seventh of a minute is no whole number of milliseconds."""
    site = place.site(limits=[Limit.custom("rpm", 10, 7, 60)], headers="openai")
    assert site.ask().header("x-ratelimit-reset-requests") == "8.572s"


@pytest.mark.parametrize("headers", [None, "none", []])
def test_nothing_is_told_where_nothing_shall_be(place: Place, headers: Any) -> None:
    site = place.site(limits=[Limit.per_minute("rpm", 1)], headers=headers)
    assert site.ask().headers == [("content-type", "text/x")]
    reply = site.ask()
    assert (reply.status, reply.header("retry-after")) == (429, "60")
    assert not [name for name, _ in reply.headers if "ratelimit" in name.lower()]


def test_two_middlewares_charge_both_and_tell_once(place: Place) -> None:
    inner = place.site(Rule(limits=[RPM], resource="inner"), key=lambda request: "user-9", headers=["ietf", "openai"])
    outer = place.site(Rule(limits=[RPM], resource="outer"), app=inner.app)
    reply = outer.ask("/", lambda raw: lease_of(raw).adjust(rpm=2), *SERVE)
    assert reply.lines("ratelimit") == ['"rpm";r=9;t=8640']
    assert reply.lines("x-ratelimit-limit-requests") == ["10"]
    assert outer.left(IP, "outer", RPM) == {"rpm": 9}
    assert inner.left("user-9", "inner", RPM) == {"rpm": 7}
    boom = Boom()
    assert outer.ask("/", boom).error is boom
    assert outer.left(IP, "outer", RPM) == {"rpm": 8}
    assert inner.left("user-9", "inner", RPM) == {"rpm": 6}


def test_the_lease_of_an_outer_middleware_is_found_where_the_inner_has_none(place: Place) -> None:
    inner = place.site(Rule("/elsewhere", limits=[RPM], resource="inner"))
    outer = place.site(Rule(limits=[RPM], resource="outer"), app=inner.app)
    assert outer.ask("/", lambda raw: lease_of(raw).adjust(rpm=2), *SERVE).status == 200
    assert outer.left(IP, "outer", RPM) == {"rpm": 7}


def test_what_the_inner_of_two_refuses_the_outer_passes_on(place: Place) -> None:
    inner = place.site(Rule(limits=[Limit.per_day("rpm", 1)], resource="inner"), key=lambda request: "user-9")
    outer = place.site(Rule(limits=[RPM], resource="outer"), app=inner.app)
    outer.ask()
    reply = outer.ask()
    assert reply.status == 429
    assert reply.header("ratelimit-policy") == '"rpm";q=1;w=86400'
    assert reply.problem()["limit"] == 1
    assert outer.left(IP, "outer", RPM) == {"rpm": 8}


FAMILY = ("key-secret", "project-secret", "organisation-secret")


def family(site: Site, *capacities: int) -> None:
    """A key below a project below an organisation, with so many requests a day."""
    limiter = site.limiter
    key, project, organisation = FAMILY
    site.do(limiter.create_entity(organisation))
    site.do(limiter.create_entity(project, parent_id=organisation, cascade=True))
    site.do(limiter.create_entity(key, parent_id=project, cascade=True))
    for who, capacity in zip(FAMILY, capacities, strict=True):
        site.do(limiter.set_limits(who, [Limit.per_day("rpm", capacity)]))


@pytest.mark.parametrize(
    ("levels", "names"),
    [
        (("", "parent", "grandparent"), ["rpm", "parent.rpm", "grandparent.rpm"]),
        (("", "project", "org"), ["rpm", "project.rpm", "org.rpm"]),
        (("", "team"), ["rpm", "team.rpm"]),
        (("",), ["rpm"]),
        ((), []),
    ],
)
def test_levels_have_names_and_entities_none(place: Place, levels: tuple[str, ...], names: list[str]) -> None:
    site = place.site(
        Rule(resource="chat"), key=lambda request: FAMILY[0], headers=Fields("ietf", levels=levels, show_parents=True)
    )
    family(site, 10, 5, 2)
    replies = [site.ask() for _ in range(3)]
    assert [reply.status for reply in replies] == [200, 200, 429]
    quotas = dict(zip(names, (10, 5, 2), strict=False))
    expected = ", ".join(f'"{name}";q={quota};w=86400' for name, quota in quotas.items()) or None
    assert [reply.header("ratelimit-policy") for reply in replies] == [expected] * 3
    refusal = replies[2].problem()
    assert refusal["violated-policies"] == ([names[2]] if len(names) > 2 else [])
    assert [limit["name"] for limit in refusal["limits"]] == names
    assert replies[2].header("retry-after") == str(refusal["retryAfter"])
    assert refusal["retryAfter"] > 43_000, "also a level that is not told of makes the client wait"
    for reply in replies:
        assert not [who for who in (*FAMILY, "secret") if who in reply.told()]


def test_no_id_is_told_whatever_is_answered(place: Place) -> None:
    """Also where a cost is above the capacity, and in every profile."""
    profiles = Fields(["ietf", "x-ratelimit", "openai"], expose=True)
    site = place.site(
        Rule("/large", resource="chat", cost=4), Rule(resource="chat"), key=lambda request: FAMILY[0], headers=profiles
    )
    family(site, 10, 5, 3)
    replies = [site.ask("/large"), *(site.ask() for _ in range(4))]
    assert [reply.status for reply in replies] == [413, 200, 200, 200, 429]
    assert replies[0].problem()["violated-policies"] == ["grandparent.rpm"]
    assert not [who for who in (*FAMILY, PEER, "secret") for reply in replies if who in reply.told()]
    assert site.left(FAMILY[1], "chat") == {"rpm": 0}


def test_a_refused_client_is_served_at_the_promised_moment(place: Place) -> None:
    clock = place.harness.clock
    site = place.site(limits=[Limit.custom("rpm", 2, 3, 7)])
    assert [site.ask().status for _ in range(2)] == [200, 200]
    refusal = site.ask()
    at_ms = refusal.problem()["resetTime"]
    assert 0 < at_ms - clock.now_ms() <= int(refusal.header("retry-after") or 0) * 1_000
    clock.set_ms(at_ms - 1)
    assert site.ask().status == 429
    clock.set_ms(at_ms)
    assert site.ask().status == 200


LIMITS = st.builds(Limit.custom, st.just("rpm"), st.integers(1, 20), st.integers(1, 500), st.integers(1, 10_000))


@settings(max_examples=60)
@given(LIMITS, st.data(), st.sampled_from(MODES))
def test_the_promise_is_exact(limit: Limit, data: st.DataObject, mode: str) -> None:
    """Refused a millisecond before, served at it; and the whole seconds of the header are never too few."""
    clock = ManualClock(1_800_000_000_000 + data.draw(st.integers(0, 10**7)))
    cost = data.draw(st.integers(1, limit.capacity))
    site = Site(mode, limiter_for(mode, MemoryStore(clock)), rules=[Rule(limits=[limit], cost=cost)])
    while (reply := site.ask()).status == 200:
        clock.advance_ms(data.draw(st.integers(0, 50)))
        if clock.now_ms() > 1_800_000_000_000 + 10**8:
            return
    at_ms, seconds = reply.problem()["resetTime"], int(reply.header("retry-after") or 0)
    assert seconds == reply.problem()["retryAfter"] == max(1, -(-(at_ms - clock.now_ms()) // 1_000))
    assert reply.header("ratelimit") == f'"rpm";r={reply.problem()["remaining"]};t={seconds}'
    clock.set_ms(at_ms - 1)
    assert site.ask().status == 429
    clock.set_ms(at_ms)
    assert site.ask().status == 200
