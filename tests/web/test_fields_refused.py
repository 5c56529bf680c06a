"""A refusal names every limit that refused, whatever it counts; numbers of levels above the client are an option."""

from __future__ import annotations

from typing import Any

import pytest

from tests.web.scripted import Site, limiter_for
from zae_limiter import Limit, SyncRateLimiter
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import ManualClock
from zae_limiter.web import Fields, Rule

RPM, TPM, IMAGES = Limit.per_minute("rpm", 60), Limit.per_minute("tpm", 100), Limit.per_minute("images", 2)
MODES = ("asgi", "wsgi")
IETF_TPM = '"tpm";q=100;qu="tokens";w=60'


def open_site(mode: str, headers: Any = "ietf", *, parent: tuple[Limit, ...] = (), **options: Any) -> Site:
    """A site for the entity ``key``, whose parent ``org`` may have limits."""
    store = MemoryStore(ManualClock())
    books = SyncRateLimiter(store)
    if parent:
        books.create_entity("org")
        books.create_entity("key", parent_id="org", cascade=True)
        books.set_limits("org", list(parent))
    rule = Rule(
        key=lambda _: "key", resource="chat", **{"limits": [RPM, TPM], "cost": {"rpm": 1, "tpm": 60}, **options}
    )
    if parent:
        books.set_limits("key", list(rule.limits or ()))
        rule = Rule(key=lambda _: "key", resource="chat", cost=options["cost"])
    return Site(mode, limiter_for(mode, store), rules=[rule], headers=headers)


@pytest.mark.parametrize("mode", MODES)
def test_a_limit_of_tokens_that_refused_is_listed(mode: str) -> None:
    site = open_site(mode)
    granted, refused = site.ask("/"), site.ask("/")
    assert granted.header("ratelimit-policy") == '"rpm";q=60;w=60'
    assert refused.status == 429
    assert refused.header("ratelimit-policy") == f'"rpm";q=60;w=60, {IETF_TPM}'
    assert refused.header("ratelimit") == '"rpm";r=59;t=1, "tpm";r=40;t=12'
    assert refused.problem()["violated-policies"] == ["tpm"]


@pytest.mark.parametrize("mode", MODES)
def test_so_is_one_without_any_limit_of_requests(mode: str) -> None:
    site = open_site(mode, limits=[TPM], cost={"tpm": 60})
    granted, refused = site.ask("/"), site.ask("/")
    assert granted.header("ratelimit-policy") is None
    assert (refused.header("ratelimit-policy"), refused.header("ratelimit")) == (IETF_TPM, '"tpm";r=40;t=12')


@pytest.mark.parametrize("mode", MODES)
def test_every_limit_that_refused_is_listed(mode: str) -> None:
    fields = Fields(units={"images": "images"})
    site = open_site(mode, fields, limits=[RPM, TPM, IMAGES], cost={"rpm": 1, "tpm": 60, "images": 2})
    site.ask("/")
    refused = site.ask("/")
    policies = f'"images";q=2;qu="images";w=60, "rpm";q=60;w=60, {IETF_TPM}'
    assert refused.header("ratelimit-policy") == policies
    assert refused.problem()["violated-policies"] == ["images", "tpm"]


@pytest.mark.parametrize("mode", MODES)
def test_the_older_draft_shows_the_one_that_refused(mode: str) -> None:
    site = open_site(mode, "ietf-07")
    site.ask("/")
    refused = site.ask("/")
    assert refused.header("ratelimit-policy") == "60;w=60, 100;w=60"
    assert refused.header("ratelimit") == "limit=100, remaining=40, reset=12"


PARENT = (Limit.per_minute("rpm", 1),)


@pytest.mark.parametrize("mode", MODES)
def test_numbers_of_an_organisation_are_not_shown(mode: str) -> None:
    site = open_site(mode, limits=[RPM], cost={"rpm": 1}, parent=PARENT)
    granted, refused = site.ask("/"), site.ask("/")
    assert granted.header("ratelimit") == '"rpm";r=59;t=1'
    assert refused.status == 429
    assert refused.header("retry-after") == "60"
    assert refused.header("ratelimit-policy") == '"rpm";q=60;w=60'
    problem = refused.problem()
    assert problem["violated-policies"] == ["parent.rpm"]  # which limit it was, and no number of it
    assert [limit["name"] for limit in problem["limits"]] == ["rpm"]
    assert "limit" not in problem


@pytest.mark.parametrize("mode", MODES)
def test_they_are_shown_if_asked_for(mode: str) -> None:
    site = open_site(mode, Fields(show_parents=True), limits=[RPM], cost={"rpm": 1}, parent=PARENT)
    granted, refused = site.ask("/"), site.ask("/")
    assert granted.header("ratelimit") == '"rpm";r=59;t=1, "parent.rpm";r=0;t=60'
    assert refused.header("ratelimit-policy") == '"rpm";q=60;w=60, "parent.rpm";q=1;w=60'
    assert refused.problem()["limit"] == 1


@pytest.mark.parametrize("mode", MODES)
def test_a_cost_above_an_organisation_s_capacity_names_the_limit_only(mode: str) -> None:
    site = open_site(mode, limits=[RPM], cost={"rpm": 2}, parent=PARENT)
    refused = site.ask("/")
    problem = refused.problem()
    assert (refused.status, problem["violated-policies"]) == (413, ["parent.rpm"])
    assert "limit" not in problem
    assert "maximum 1" not in problem["message"]


def test_a_level_without_a_name_is_not_named() -> None:
    site = open_site("asgi", Fields(levels=("",)), limits=[RPM], cost={"rpm": 1}, parent=PARENT)
    site.ask("/")
    assert site.ask("/").problem()["violated-policies"] == []
