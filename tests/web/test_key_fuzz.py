"""Generated requests: whatever headers a client sends and however the app ends, the key that was served has paid.

The app of each framework looks for keys in every way in which apps do it. ``ZAE_TEST_FUZZ`` is the number of requests
per framework.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

from tests.web.drive import PEER, Call, Line, Reply, call_asgi, call_wsgi
from tests.web.key_apps import BEHAVIOUR, KEY_APPS, KNOWN, Readings
from tests.web.scripted import limiter_for
from zae_limiter import Limit, SyncRateLimiter
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import ManualClock
from zae_limiter.web import Identity, Rule, by_api_key
from zae_limiter.web.keys import MOST_KEYS

COUNT = int(os.environ.get("ZAE_TEST_FUZZ", "300"))
MUCH = Limit.per_day("rpm", 1_000_000)
OWNERS = {name: Identity.api_key(name).entity_id for name in KNOWN} | {"address": f"ip:{PEER}"}
BOTH = ["x-api-key", "authorization"]
KEYS: dict[str, Any] = {
    "refuse": by_api_key(BOTH, accept=KNOWN.__contains__),
    "address": by_api_key(BOTH, accept=KNOWN.__contains__, on_several="address"),
    "unchecked": by_api_key(BOTH),
}
FORMS = (
    "{a}", " {a}", "{a} ", "{a},{a}", "{a}, {b}", "{b},{a}", ",{a}", "{a},", "{a} {b}", '"{a}"', "",
    "Bearer {a}", "bearer {a}", "BEARER  {a} ", "Bearer\t{a}", "Bearer {a} {b}", "Bearer {b} {a}", "Bearer",
    "Bearer {a},Bearer {a}", "Bearer {a}, Bearer {b}", "Bearer {b},{a}", "Bearer Bearer {a}", "Bearer  ,{a}",
    "Basic {a}", "Basic YTpi", "Basic YTpi, Bearer {a}", "Bearer {a}, Basic YTpi", "Token {a}", "Foo {b} {a}",
    'Digest username="{b}", realm="x", nonce="{a}"', "Digest a=1, b=2, Foo {a}", "Bearer {a}\u00a0",
)  # fmt: skip
NAMES = ("x-api-key", "X-API-Key", "X-Api-KEY", "x_api_key", "authorization", "Authorization", "AUTHORIZATION")
ENDINGS = ("200", "200", "201", "304", "400", "401", "404", "500", "503", "raise", "raise")


def headers(chance: random.Random) -> list[Line]:
    """Header lines as nobody in good faith would send them."""
    number = chance.choice((0, 1, 1, 2, 2, 2, 3, 4, 12))
    names = [chance.choice(NAMES)] * number if chance.random() < 0.5 else [chance.choice(NAMES) for _ in range(number)]
    form = chance.choice(FORMS)
    lines = []
    for name in names:
        form = form if chance.random() < 0.4 else chance.choice(FORMS)
        a, b = (chance.choice((*KNOWN, KNOWN[0], f"junk{chance.randrange(99)}")) for _ in range(2))
        lines.append((name, form.format(a=a, b=b)))
    return [*lines, (BEHAVIOUR, chance.choice(ENDINGS))]


class Fuzzed:
    """The app of a framework under one way of choosing keys, and what it charges."""

    def __init__(self, framework: str, way: str, store: MemoryStore) -> None:
        self.way = way
        self.readings = Readings()
        self.mode, build = KEY_APPS[framework]
        rules = [Rule(limits=[MUCH], resource=way)]
        options = {"rules": rules, "key": KEYS[way]}
        self._app = build(limiter_for(self.mode, store), self.readings, options)
        self._ledger = SyncRateLimiter(store)

    async def ask(self, call: Call) -> Reply:
        """One request."""
        self.readings.__init__()  # type: ignore[misc]  # the app holds this one
        if self.mode == "asgi":
            return await call_asgi(self._app, call)
        return call_wsgi(self._app, call, strictly=False)

    def left(self) -> dict[str, int]:
        """What every known key, and the address, has left."""
        return {
            owner: self._ledger.available(entity_id, self.way, limits=[MUCH])["rpm"]
            for owner, entity_id in OWNERS.items()
        }

    async def attack(self, call: Call) -> str:
        """Ask, and check who has paid; returns what became of it."""
        before = self.left()
        reply = await self.ask(call)
        after = self.left()
        paid = [owner for owner in OWNERS if after[owner] != before[owner]]
        found = self.readings
        accepted = found.strict if self.way == "unchecked" else found.strict | found.careless
        if not found.reached:
            assert (reply.status, paid) == (400, ["address"]), reply
            assert 1 <= before["address"] - after["address"] <= MOST_KEYS
            return "refused"
        assert all(before[owner] - after[owner] == 1 for owner in paid)
        assert len(accepted) < 2, f"the app has the choice of {accepted}"
        if accepted:
            assert paid == [*accepted]
            return "key"
        assert len(paid) == 1 or (self.way == "unchecked" and not paid)
        assert all(owner == "address" or any(owner in value for _, value in call.headers) for owner in paid)
        return "address"


@pytest.mark.parametrize("framework", KEY_APPS)
async def test_the_key_that_was_served_has_paid_and_a_failure_too(
    framework: str, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(f"{framework} {COUNT}")
    store = MemoryStore(ManualClock())
    caplog.set_level("CRITICAL")  # the frameworks log every exception

    async def work() -> dict[str, int]:
        outcomes = dict.fromkeys(("key", "address", "refused"), 0)
        for way in KEYS:  # one after the other, as Django has one set of routes
            app = Fuzzed(framework, way, store)
            for _ in range(-(-COUNT // len(KEYS))):
                call = Call(headers=headers(chance))
                try:
                    outcomes[await app.attack(call)] += 1
                except AssertionError as error:
                    raise AssertionError(f"{way}: {call.headers}: {error}") from error
        return outcomes

    outcomes = await work()
    assert all(count >= COUNT // 20 for count in outcomes.values()), outcomes


@pytest.mark.parametrize("ending", ["raise", "500"])
@pytest.mark.parametrize("framework", KEY_APPS)
async def test_of_fifty_requests_that_fail_three_reach_the_app(
    framework: str, ending: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL")  # the frameworks log every exception
    mode, build = KEY_APPS[framework]
    readings = Readings()
    app = build(limiter_for(mode, MemoryStore(ManualClock())), readings, {"limits": [Limit.per_day("rpm", 3)]})

    async def work() -> int:
        reached = 0
        for _ in range(50):
            readings.reached = False
            call = Call(headers=[(BEHAVIOUR, ending)])
            reply = await call_asgi(app, call) if mode == "asgi" else call_wsgi(app, call, strictly=False)
            assert reply.status == (500 if readings.reached else 429)
            reached += readings.reached
        return reached

    assert await work() == 3
