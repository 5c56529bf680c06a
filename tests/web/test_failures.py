"""Rules that count failures: they look beforehand, and charge what failed."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.metrics import Metrics
from tests.web.drive import PEER, Call, call_asgi, call_wsgi
from tests.web.scripted import SCRIPT, SERVE, Place, Site, Start, limiter_for
from zae_limiter import AccessDeniedError, CapacityExceeded, Limit, RateLimitExceeded, ValidationError
from zae_limiter.records.algebra import Image
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.telemetry import instrument
from zae_limiter.testing import Fault, FaultyStore, ManualClock
from zae_limiter.web import Rule, lease_of

GUESSES = Limit.per_day("guesses", 3)
RPM = Limit.per_day("rpm", 10)
WRONG = (Start(401), b"wrong")
RULE = Rule(limits=[GUESSES], count="failures", resource="guesses")
IP = f"ip:{PEER}"


class Boom(Exception):
    """What an app raises."""


def left(site: Site, who: str = IP) -> int:
    """How many failures are left."""
    return site.left(who, "guesses", GUESSES)["guesses"]


def test_what_succeeds_takes_nothing(place: Place) -> None:
    site = place.site(RULE)
    assert [site.ask().status for _ in range(10)] == [200] * 10
    assert left(site) == 3


def test_who_has_failed_too_often_is_refused_whatever_he_sends(place: Place) -> None:
    """The app is not even asked, so nobody learns that a guess was right."""
    site = place.site(RULE)
    assert [site.ask("/", *WRONG).status for _ in range(4)] == [401] * 3 + [429]
    reached: list[Any] = []
    refused = site.ask("/", lambda raw: reached.append(raw), *SERVE)
    assert (refused.status, refused.problem()["violated-policies"]) == (429, ["guesses"])
    assert refused.header("retry-after") == "28800"
    assert reached == []
    place.harness.clock.advance_ms(28_799_999)
    assert site.ask().status == 429
    place.harness.clock.advance_ms(1)
    assert [site.ask().status for _ in range(5)] == [200] * 5
    assert [site.ask("/", *WRONG).status for _ in range(2)] == [401, 429]


STATUSES: dict[str, tuple[Any, set[int]]] = {
    "default": (None, {401, 403, 500}),
    "one": ((401,), {401}),
    "list": ([400, 422], {400, 422}),
    "range": (range(400, 500), {400, 401, 403, 404, 422}),
    "callable": (lambda status: status >= 500, {500, 503}),
    "none": ((), set()),
}


@pytest.mark.parametrize("kind", STATUSES)
@pytest.mark.parametrize("mode", ["asgi", "wsgi"])
def test_the_statuses_of_a_failure(mode: str, kind: str) -> None:
    failures, counted = STATUSES[kind]
    rule = Rule(limits=[GUESSES], count="failures", resource="guesses", failures=failures)
    for status in (200, 302, 400, 401, 403, 404, 422, 500, 503):
        site = Site(mode, limiter_for(mode, MemoryStore(ManualClock())), rules=[rule])
        site.ask("/", Start(status), b"body")
        assert left(site) == 3 - (status in counted), status


def test_an_exception_without_an_answer_is_the_status_500(place: Place) -> None:
    for number, (failures, charged) in enumerate(((None, 1), ((500,), 1), ((401,), 0))):
        rule = Rule(limits=[GUESSES], count="failures", resource="guesses", failures=failures)
        site = place.site(rule, key=lambda request, number=number: f"client-{number}")
        boom = Boom()
        assert site.ask("/", boom).error is boom
        assert left(site, f"client-{number}") == 3 - charged


@pytest.mark.parametrize("error", [RateLimitExceeded([]), CapacityExceeded([])], ids=["not yet", "never"])
def test_a_refusal_inside_the_app_is_no_failure(place: Place, error: Exception) -> None:
    site = place.site(RULE)
    assert site.ask("/", error).status in (413, 429)
    assert left(site) == 3


def test_a_cost_counts_for_a_failure(place: Place) -> None:
    site = place.site(Rule(limits=[GUESSES], count="failures", resource="guesses", cost=2))
    assert [site.ask("/", *WRONG).status for _ in range(3)] == [401, 429, 429]
    assert left(site) == 1


def meeting(count: int) -> Callable[[Any], Any]:
    """A step at which so many requests wait for each other."""
    barrier = threading.Barrier(count)
    complete = asyncio.Event()
    arrived: list[int] = []

    async def gathered() -> None:
        arrived.append(1)
        if len(arrived) == count:
            complete.set()
        await complete.wait()

    return lambda raw: gathered() if "type" in raw else barrier.wait(30)


def test_failures_in_flight_become_debt(place: Place) -> None:
    """The bound: as many too many as were under way when the last one was left."""
    site = place.site(RULE)
    replies = site.ask_together(10, Call(extra={SCRIPT: (meeting(10), *WRONG)}))
    assert Counter(reply.status for reply in replies) == {401: 10}
    assert left(site) == -7
    refused = site.ask()
    assert (refused.status, refused.header("retry-after")) == (429, str(8 * 28_800))


def test_successes_in_flight_refuse_nobody(place: Place) -> None:
    site = place.site(RULE)
    replies = site.ask_together(16, Call(extra={SCRIPT: (meeting(16), *SERVE)}))
    assert Counter(reply.status for reply in replies) == {200: 16}
    assert left(site) == 3


def test_failures_are_counted_beside_the_rule_for_requests(place: Place) -> None:
    site = place.site(RULE, Rule("/free", exempt=True), Rule("/v1/*", limits=[RPM], resource="api"))
    reply = site.ask("/v1/chat", *WRONG)
    assert reply.header("ratelimit-policy") == '"rpm";q=10;w=86400'  # failures are not told of before they matter
    assert (left(site), site.left(IP, "api", RPM)) == (2, {"rpm": 9})
    for _ in range(2):
        site.ask("/elsewhere", *WRONG)
    assert site.ask("/v1/chat").status == 429
    assert (left(site), site.left(IP, "api", RPM)) == (0, {"rpm": 9})


def test_what_the_rule_for_requests_refuses_is_no_failure(place: Place) -> None:
    site = place.site(RULE, limits=[Limit.per_day("rpm", 1)])
    assert [site.ask().status for _ in range(3)] == [200, 429, 429]
    assert left(site) == 3


def test_what_is_exempt_is_exempt_from_both(place: Place) -> None:
    site = place.site(Rule("/health", exempt=True), RULE, limits=[RPM])
    assert [site.ask("/health", *WRONG).status for _ in range(5)] == [401] * 5
    assert (left(site), site.left(IP, "http", RPM)) == (3, {"rpm": 10})
    for _ in range(3):
        site.ask("/", *WRONG)
    assert [site.ask(path).status for path in ("/", "/health")] == [429, 200]


def test_the_first_rule_for_failures_that_matches_decides(place: Place) -> None:
    login = Rule("/login", methods=["POST"], limits=[GUESSES], count="failures")
    site = place.site(login, RULE)
    for path, method in (("/login", "POST"), ("/login", "GET"), ("/", "POST"), ("/", "GET")):
        site.ask(path, *WRONG, method=method)
    assert site.left(IP, "failures:post/login", GUESSES) == {"guesses": 2}
    assert left(site) == 0


def test_keys_matches_and_costs_may_be_async() -> None:
    async def soon(value: Any) -> Any:
        return value

    rule = Rule(
        lambda request: soon(request.path == "/a"),
        limits=[GUESSES],
        count="failures",
        resource=lambda request: soon("guesses"),
        key=lambda request: soon("ann"),
        cost=lambda request: soon(2),
    )
    site = Site("asgi", limiter_for("asgi", MemoryStore(ManualClock())), rules=[rule])
    assert [site.ask(path, *WRONG).status for path in ("/b", "/a", "/a")] == [401, 401, 429]
    assert left(site, "ann") == 1


def test_the_parents_of_a_client_are_charged_and_refuse(place: Place) -> None:
    site = place.site(Rule(count="failures", resource="guesses", cost={"guesses": 1}), key=lambda request: "child")
    for who, parent, capacity in (("parent", None, 2), ("child", "parent", 5)):
        site.do(site.limiter.create_entity(who, parent_id=parent, cascade=parent is not None))
        site.do(site.limiter.set_limits(who, [Limit.per_day("guesses", capacity)]))
    assert [site.ask("/", *WRONG).status for _ in range(3)] == [401, 401, 429]
    for who, rest in (("parent", 0), ("child", 0)):
        assert site.left(who, "guesses")["guesses"] == rest
    rows = site.do(site.limiter.get_status("child", "guesses"))
    assert [row.available for row in rows] == [3, 0]


def test_limits_that_have_changed_count_from_the_next_failure(place: Place) -> None:
    """Tokens follow the usual rule: what was left stays, and refills at the new rate."""
    place.site(RULE).ask("/", *WRONG)
    hourly = Limit.per_hour("guesses", 1)
    site = place.site(Rule(limits=[Limit.per_day("guesses", 30)], count="failures", resource="guesses"))
    assert [site.ask("/", *WRONG).status for _ in range(3)] == [401, 401, 429]
    site = place.site(Rule(limits=[hourly], count="failures", resource="guesses"))
    assert site.ask().status == 429
    place.harness.clock.advance(3_600)
    assert [site.ask("/", *WRONG).status for _ in range(2)] == [401, 429]
    place.harness.clock.advance(3_599)
    assert site.ask().status == 429
    place.harness.clock.advance(1)
    assert site.ask().status == 200


async def test_a_client_that_has_its_answer_has_been_charged() -> None:
    seen: list[int] = []
    waiting = limiter_for("asgi", MemoryStore(ManualClock()))
    asgi_site = Site("asgi", waiting, rules=[RULE])

    async def send(message: Any) -> None:
        seen.append((await waiting.available(IP, "guesses", limits=[GUESSES]))["guesses"])

    await asgi_site.app(Call(extra={SCRIPT: WRONG}).scope(), None, send)
    assert seen == [2, 2, 2]
    wsgi_site = Site("wsgi-lazy", limiter_for("wsgi", MemoryStore(ManualClock())), rules=[RULE])
    body = iter(wsgi_site.app(Call(extra={SCRIPT: WRONG}).environ(), lambda *_: None))
    assert next(body) == b"wrong"
    assert left(wsgi_site) == 2
    body.close()
    assert left(wsgi_site) == 2


@pytest.mark.parametrize("how", ["written", "empty", "closed"])
def test_a_failure_is_counted_however_a_wsgi_app_ends(how: str) -> None:
    def app(environ: Any, start_response: Any) -> Any:
        write = start_response("401 Unauthorized", [("content-type", "text/plain")])
        if how == "written":
            write(b"wrong")
        return [] if how != "closed" else [b"wrong"]

    site = Site("wsgi", limiter_for("wsgi", MemoryStore(ManualClock())), app, rules=[RULE])
    call_wsgi(site.app, Call(stays=0 if how == "closed" else None))
    assert left(site) == 2


def test_only_the_last_promise_of_a_wsgi_app_counts() -> None:
    def app(environ: Any, start_response: Any) -> Any:
        start_response("401 Unauthorized", [("content-type", "text/plain")])
        try:
            raise Boom
        except Boom as error:
            start_response("503 Later", [("content-type", "text/plain")], (Boom, error, error.__traceback__))
        return [b"later"]

    site = Site("wsgi", limiter_for("wsgi", MemoryStore(ManualClock())), app, rules=[RULE])
    assert call_wsgi(site.app, Call()).status == 503
    assert left(site) == 3


def test_who_leaves_before_the_answer_has_not_failed_and_who_leaves_after_it_has() -> None:
    site = Site("asgi", limiter_for("asgi", MemoryStore(ManualClock())), rules=[RULE])
    asyncio.run(call_asgi(site.app, Call(stays=0, extra={SCRIPT: WRONG})))
    assert left(site) == 2

    async def cancelled() -> None:
        reached = asyncio.Event()

        async def stuck() -> None:
            reached.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(call_asgi(site.app, Call(extra={SCRIPT: (lambda raw: stuck(), *WRONG)})))
        await reached.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(cancelled())
    assert left(site) == 2


def test_without_a_store_the_policy_decides(place: Place) -> None:
    store = FaultyStore(place.harness.store())
    for policy, status in (("block", 503), ("allow", 401)):
        site = Site(place.mode, limiter_for(place.mode, store, on_unavailable=policy), rules=[RULE])
        store.inject(Fault.FAIL_BEFORE, times=1_000)
        assert site.ask("/", *WRONG).status == status
        store.heal()
    assert left(site) == 3


@pytest.mark.parametrize("policy", ["block", "allow"])
def test_denied_access_is_an_error_of_the_app_whatever_the_policy(place: Place, policy: str) -> None:
    async def deny(keys: object, *, timeout: float | None = None) -> list[Image | None]:
        raise AccessDeniedError("not yours")

    store = FaultyStore(place.harness.store())
    store.read = deny  # type: ignore[method-assign]  # what is tested
    site = Site(place.mode, limiter_for(place.mode, store, on_unavailable=policy), rules=[RULE])
    with pytest.raises(AccessDeniedError):
        site.ask("/", *WRONG)


def test_a_failure_that_cannot_be_counted_is_told_to_the_log_only(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    store = FaultyStore(place.harness.store())
    site = place.site(RULE, store=store)
    reply = site.ask("/", lambda raw: store.inject(Fault.FAIL_BEFORE, times=1_000), *WRONG)
    assert (reply.status, reply.body, reply.complete) == (401, b"wrong", True)
    assert any("failure not counted" in record.message for record in caplog.records)
    store.heal()
    assert left(site) == 3


def test_who_is_refused_again_costs_the_store_nothing(place: Place) -> None:
    store = FaultyStore(place.harness.store())
    site = place.site(RULE, store=store)
    assert [site.ask("/", *WRONG).status for _ in range(4)] == [401] * 3 + [429]
    store.inject(Fault.FAIL_BEFORE, times=1_000)
    assert [site.ask().status for _ in range(3)] == [429] * 3
    store.heal()


@pytest.mark.parametrize("mode", ["asgi", "wsgi"])
def test_refusals_are_measured_and_teach_nothing_of_estimates(mode: str) -> None:
    metrics = Metrics()
    limiter = instrument(limiter_for(mode, MemoryStore(ManualClock())), meter_provider=metrics.provider)
    site = Site(mode, limiter, rules=[RULE])
    assert [site.ask("/", *WRONG).status for _ in range(5)] == [401] * 3 + [429] * 2
    assert metrics.counts("decisions", "outcome") == {"refused": 2}
    assert metrics.counts("estimate.error", "limit") == {}


def test_a_rule_for_failures_holds_no_lease(place: Place) -> None:
    site = place.site(RULE)
    with pytest.raises(ValidationError, match="is not limited"):
        site.ask("/", lease_of)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"count": "failure"}, "count"),
        ({"count": None}, "count"),
        ({"failures": (401,)}, "failures"),
        ({"count": "failures", "failures": (99,)}, "failures"),
        ({"count": "failures", "failures": "401"}, "failures"),
        ({"count": "failures", "failures": 401}, "failures"),
        ({"count": "failures", "refund": (500,)}, "refund"),
        ({"count": "failures", "exempt": True}, "exempt"),
    ],
)
def test_what_says_nothing_is_refused(options: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as raised:
        Rule(limits=[GUESSES], **options)
    assert raised.value.field == field


def test_a_resource_of_its_own_is_the_default() -> None:
    assert Rule(count="failures").resource_name == "failures"
    assert Rule("/v1/login", count="failures").resource_name == "failures/v1/login"
