"""What a request takes, and when it goes back: the same laws on ASGI and WSGI."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.web.drive import PEER, Call
from tests.web.scripted import SCRIPT, SERVE, Place, Site, Start, adjust, limiter_for
from zae_limiter import (
    CapacityExceeded,
    LeaseExpiredError,
    Limit,
    RateLimiterUnavailable,
    RateLimitExceeded,
)
from zae_limiter.testing import Fault, FaultyStore
from zae_limiter.web import Rule, lease_of

RPM = Limit.per_day("rpm", 10)
TPM = Limit.per_day("tpm", 1_000)
FULL = {"rpm": 10, "tpm": 1_000}
RULE = Rule(limits=[RPM, TPM], cost={"rpm": 1, "tpm": 100})
IP = f"ip:{PEER}"


class Boom(Exception):
    """What an app raises."""


def spent(site: Site) -> dict[str, int]:
    """What the client has been charged so far."""
    left = site.left(IP, "http", RPM, TPM)
    return {name: full - left[name] for name, full in FULL.items() if full != left[name]}


def test_tokens_are_taken_before_the_app_runs(place: Place) -> None:
    site = place.site(RULE)
    seen: list[Any] = []

    def look(raw: Any) -> Any:
        found = site.limiter.available(IP, "http", limits=[RPM, TPM])
        if site.mode != "asgi":
            seen.append(found)
            return None

        async def note() -> None:
            seen.append(await found)

        return note()

    reply = site.ask("/", look, Start(), b"one", look, b"two")
    assert seen == [{"rpm": 9, "tpm": 900}] * 2
    assert (reply.status, reply.chunks, reply.complete) == (200, [b"one", b"two"], True)
    assert spent(site) == {"rpm": 1, "tpm": 100}


def test_what_the_app_adjusts_is_settled_at_the_end(place: Place) -> None:
    site = place.site(RULE)
    site.ask("/", Start(), b"one", adjust(tpm=50), b"two", lambda raw: lease_of(raw).release(tpm=20))
    assert spent(site) == {"rpm": 1, "tpm": 130}
    site.ask("/", adjust(tpm=-100), Start())
    assert spent(site) == {"rpm": 2, "tpm": 130}


def test_the_lease_ends_with_the_response(place: Place) -> None:
    """An app cannot see when that is, so what comes later is written by itself."""
    site = place.site(RULE)
    kept: list[Any] = []
    site.ask("/", lambda raw: kept.append(lease_of(raw)), adjust(tpm=-30), *SERVE)
    (lease,) = kept
    with pytest.raises(LeaseExpiredError):
        site.do(lease.consume(tpm=1))
    for late, total in [(5, 75), (-15, 60), (-900, 0), (7, 7)]:
        site.do(lease.adjust(tpm=late))
        assert spent(site) == {"rpm": 1, "tpm": total} if total else {"rpm": 1}
    site.do(lease.release(tpm=7))
    assert spent(site) == {"rpm": 1}


def test_a_lease_that_was_given_back_cannot_be_adjusted(place: Place) -> None:
    site = place.site(RULE)
    kept: list[Any] = []
    site.ask("/", lambda raw: kept.append(lease_of(raw)), RateLimitExceeded([]))
    with pytest.raises(LeaseExpiredError):
        site.do(kept[0].adjust(tpm=1))
    assert spent(site) == {}


def test_an_exception_before_the_answer_keeps_the_charge(place: Place) -> None:
    """Else whoever finds a request that fails has no limit."""
    site = place.site(RULE)
    boom = Boom()
    assert site.ask("/", adjust(tpm=50), boom).error is boom
    assert spent(site) == {"rpm": 1, "tpm": 150}
    assert [site.ask("/", boom).status for _ in range(10)] == [0] * 8 + [429] * 2


REFUNDS: dict[str, tuple[Any, bool]] = {
    "nothing": ((), False),
    "500": ((500,), True),
    "all of them": (range(500, 600), True),
    "another": ((502, 503), False),
    "callable": (lambda status: status == 500, True),
}


@pytest.mark.parametrize("kind", REFUNDS)
def test_an_exception_is_refunded_like_the_status_500(place: Place, kind: str) -> None:
    refund, free = REFUNDS[kind]
    site = place.site(Rule(limits=[RPM, TPM], cost={"rpm": 1, "tpm": 100}, refund=refund))
    boom = Boom()
    assert site.ask("/", adjust(tpm=50), boom).error is boom
    assert spent(site) == ({} if free else {"rpm": 1, "tpm": 150})
    assert site.ask("/", Start(), b"one", boom).error is boom
    assert spent(site) == ({"rpm": 1, "tpm": 100} if free else {"rpm": 2, "tpm": 250})


def test_an_exception_after_the_start_keeps_the_charge(place: Place) -> None:
    site = place.site(RULE)
    boom = Boom()
    reply = site.ask("/", Start(), b"one", adjust(tpm=50), boom)
    assert (reply.error, reply.status, reply.chunks) == (boom, 200, [b"one"])
    assert spent(site) == {"rpm": 1, "tpm": 150}


def test_a_promise_is_no_start_where_the_server_can_still_answer_otherwise(place: Place) -> None:
    """A WSGI answer begins with its first chunk, an ASGI answer with its first message."""
    site = place.site(RULE)
    boom = Boom()
    for rule, charged in ((RULE, True), (replace(RULE, refund=(500,)), site.mode == "asgi")):
        asked = place.site(rule, key=lambda request, rule=rule: f"refunds-{rule.refund}")
        assert asked.ask("/", Start(), boom).error is boom
        left = asked.left(f"refunds-{rule.refund}", "http", RPM, TPM)
        assert left == ({"rpm": 9, "tpm": 900} if charged else FULL)


@pytest.mark.parametrize("loud", [True, False], ids=["loud", "quiet"])
@pytest.mark.parametrize("stays", [0, 1, 2])
def test_a_client_that_leaves_pays(place: Place, stays: int, loud: bool) -> None:
    site = place.site(RULE)
    reply = site.ask(
        "/", adjust(tpm=1), Start(), b"a", adjust(tpm=2), b"b", adjust(tpm=4), b"c", stays=stays, loud=loud
    )
    assert len(reply.chunks) == stays
    assert not reply.complete
    by_then = {
        "asgi": {0: 1, 1: 3, 2: 7} if loud else dict.fromkeys(range(3), 7),
        "wsgi": {0: 1, 1: 1, 2: 3},
        "wsgi-lazy": {0: 0, 1: 1, 2: 3},
    }
    assert spent(site) == {"rpm": 1, "tpm": 100 + by_then[site.mode][stays]}


def test_a_cost_above_the_capacity_is_never_served(place: Place) -> None:
    site = place.site(Rule(limits=[RPM, TPM], cost={"tpm": 1_001}))
    reply = site.ask()
    assert reply.status == 413
    assert reply.header("retry-after") is None
    assert (reply.problem()["violated-policies"], reply.problem()["limit"]) == (["tpm"], 1_000)
    assert spent(site) == {}


def raised_inside(site: Site, **consume: int) -> Callable[[Any], Any]:
    """A step that takes tokens of somebody else inside the app."""
    return lambda raw: site.acquire(raw, "org-7", "chat", consume, Limit.per_day("tpd", 100))


def test_tokens_can_be_taken_inside_the_app(place: Place) -> None:
    site = place.site(RULE)
    reply = site.ask("/", raised_inside(site, tpd=60), adjust(tpd=-10), Start(), b"x")
    assert reply.status == 200
    assert reply.header("ratelimit") == '"rpm";r=9;t=8640'
    assert site.left("org-7", "chat", Limit.per_day("tpd", 100)) == {"tpd": 50}
    assert spent(site) == {"rpm": 1, "tpm": 100}


@pytest.mark.parametrize(("consume", "status"), [(60, 429), (101, 413)])
def test_a_refusal_inside_the_app_is_answered_and_gives_back(place: Place, consume: int, status: int) -> None:
    site = place.site(RULE)
    limit = Limit.per_day("tpd", 100)
    site.ask("/", raised_inside(site, tpd=60), *SERVE)
    reply = site.ask("/", raised_inside(site, tpd=consume), *SERVE)
    assert reply.status == status
    assert reply.problem()["violated-policies"] == ["tpd"]
    assert "org-7" not in reply.told()
    assert spent(site) == {"rpm": 1, "tpm": 100}
    assert site.left("org-7", "chat", limit) == {"tpd": 40}


def test_a_refusal_after_the_start_is_an_error_like_others(place: Place) -> None:
    site = place.site(RULE)
    error = RateLimitExceeded([])
    reply = site.ask("/", Start(), b"one", error)
    assert (reply.error, reply.status, reply.chunks) == (error, 200, [b"one"])
    assert spent(site) == {"rpm": 1, "tpm": 100}


@pytest.mark.parametrize(
    ("error", "status"), [(RateLimitExceeded([]), 429), (CapacityExceeded([]), 413), (RateLimiterUnavailable("?"), 503)]
)
def test_a_refusal_of_the_app_s_own_is_answered(place: Place, error: Exception, status: int) -> None:
    """The app may raise it with nothing in it."""
    site = place.site(RULE)
    reply = site.ask("/", error)
    assert reply.status == reply.problem()["status"] == status
    assert spent(site) == {}


def test_a_refusal_after_a_promise_takes_its_place(place: Place) -> None:
    """Only WSGI can still answer otherwise."""
    site = place.site(RULE)
    error = RateLimitExceeded([])
    reply = site.ask("/", Start(201, (("x-app", "1"),)), error)
    if site.mode == "asgi":
        assert (reply.error, reply.status) == (error, 201)
    else:
        assert (reply.error, reply.status, reply.header("x-app")) == (None, 429, None)
        assert spent(site) == {}


def down(place: Place, times: int = 1_000) -> FaultyStore:
    """A store that cannot be reached."""
    store = FaultyStore(place.harness.store())
    store.inject(Fault.FAIL_BEFORE, times=times)
    return store


def test_a_store_that_is_down_is_no_refusal(place: Place) -> None:
    store = down(place)
    site = place.site(RULE, store=store)
    reply = site.ask()
    assert reply.status == 503
    assert int(reply.header("retry-after") or 0) >= 1
    assert reply.header("ratelimit") is None
    assert "violated-policies" not in reply.problem()
    store.heal()
    assert site.ask().status == 200


def test_without_a_store_all_are_let_in_where_that_is_the_policy(place: Place) -> None:
    store = down(place)
    mode = place.mode
    site = Site(mode, limiter_for(mode, store, on_unavailable="allow"), rules=[RULE], headers=["ietf", "x-ratelimit"])
    reply = site.ask("/", adjust(tpm=5), *SERVE)
    assert (reply.status, reply.body) == (200, b"served")
    assert reply.headers == [("content-type", "text/x")]
    store.heal()
    assert site.ask().header("ratelimit") is not None


def test_a_settlement_that_fails_is_told_to_the_log_only(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    store = FaultyStore(place.harness.store())
    site = place.site(RULE, store=store)

    def fail(raw: Any) -> None:
        store.inject(Fault.FAIL_BEFORE, times=1_000)

    reply = site.ask("/", adjust(tpm=5), fail, *SERVE)
    assert (reply.status, reply.body, reply.complete) == (200, b"served", True)
    assert any("settlement" in record.message for record in caplog.records)
    store.heal()
    assert spent(site) == {"rpm": 1, "tpm": 100}
    boom = Boom()
    assert site.ask("/", fail, boom).error is boom


def test_many_at_once_get_exactly_what_there_is(place: Place) -> None:
    """And the numbers told come from the write that took them: no two clients are told the same."""
    site = place.site(limits=[Limit.per_day("rpm", 50)])
    replies = site.ask_together(200, Call(extra={SCRIPT: SERVE}))
    assert Counter(reply.status for reply in replies) == {200: 50, 429: 150}
    told = [(reply.header("ratelimit") or "").split(";")[1] for reply in replies if reply.status == 200]
    assert sorted(int(text.removeprefix("r=")) for text in told) == [*range(50)]
    assert {(reply.header("ratelimit") or "").split(";")[1] for reply in replies if reply.status == 429} == {"r=0"}
    assert site.left(IP, "http", Limit.per_day("rpm", 50)) == {"rpm": 0}


def test_a_client_that_is_switched_off_gets_403_and_nothing_to_wait_for(place: Place) -> None:
    site = place.site(RULE)
    site.do(site.limiter.disable_entity(IP))
    reply = site.ask()
    assert reply.status == 403
    assert reply.problem()["type"] == "urn:problem-type:zae-limiter:disabled"
    assert reply.header("retry-after") is None
    assert IP not in reply.body.decode()


def test_a_quota_is_told_with_the_length_and_the_end_of_its_window(place: Place) -> None:
    """June has 30 days."""
    june = round(datetime(2026, 6, 30, 21, 59, tzinfo=UTC).timestamp() * 1000)
    place.harness.clock.advance_ms(june - place.harness.clock.now_ms())
    site = place.site(Rule(limits=[Limit.quota("rpm", 2, every="month", tz="Europe/Berlin")]))
    assert site.ask().header("ratelimit-policy") == '"rpm";q=2;w=2592000'
    assert site.ask().header("ratelimit") == '"rpm";r=0;t=60'
    refused = site.ask()
    assert (refused.status, refused.header("retry-after")) == (429, "60")
