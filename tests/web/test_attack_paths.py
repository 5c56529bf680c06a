"""Generated request targets against the routers of all frameworks: whatever reaches a handler under a rule has been
charged by that rule."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from random import Random
from typing import Any
from urllib.parse import quote, unquote, unquote_to_bytes

import pytest

from tests.support.attacks import REQUESTS
from tests.web.drive import Call, Reply, call_asgi, call_wsgi
from tests.web.path_apps import PLENTY, SETTINGS, Setting
from tests.web.path_apps_others import OTHER_SETTINGS
from tests.web.path_targets import ODD, PLAIN, target_of
from tests.web.scripted import limiter_for
from zae_limiter import SyncRateLimiter
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import ManualClock

_UNSENDABLE = re.compile(r"[^!-~]")
"""Characters that no server takes in a target; in the list of targets they stand for their encoded form."""
FRAMEWORKS = {**SETTINGS, **OTHER_SETTINGS}


@dataclass(slots=True)
class Site:
    """One app in one setting, with the books of its limiter."""

    mode: str
    setting: Setting
    served: list[str] = field(default_factory=list)
    store: MemoryStore = field(default_factory=lambda: MemoryStore(ManualClock()))
    app: Any = None
    books: Any = None

    def open(self) -> None:
        """Build the app."""
        self.app = self.setting.build(limiter_for(self.mode, self.store), self.served)
        self.books = SyncRateLimiter(self.store)

    def spent(self, peer: str, tag: str) -> int:
        """How many requests of a client the rule of a route has been charged for."""
        left: int = self.books.available(f"ip:{peer}", tag, limits=[PLENTY])["rpm"]
        return PLENTY.capacity - left

    async def ask(self, target: str, method: str, peer: str) -> Reply:
        """One request as a server makes it of its target."""
        path = target.partition("?")[0] or "/"
        root = self.setting.root
        if self.mode == "wsgi":
            raw = unquote_to_bytes(path).decode("latin-1")
            call = Call(method=method, root=root, peer=peer, extra={"PATH_INFO": raw})
            return call_wsgi(self.app, call, strictly=False)
        extra = {"raw_path": _UNSENDABLE.sub(lambda found: quote(found[0]), path).encode()}
        return await call_asgi(self.app, Call(unquote(path), method=method, root=root, peer=peer, extra=extra))


async def find_evasions(site: Site, asked: Iterable[tuple[str, str]]) -> tuple[list[str], Counter[str]]:
    """The targets that were served by a route whose rule has not been charged exactly once, and what was reached."""
    evasions: list[str] = []
    reached: Counter[str] = Counter()
    for number, (target, method) in enumerate(asked):
        peer = str(IPv4Address(number + 1))
        reply = await site.ask(target, method, peer)
        assert reply.error is None or target[0] != "/", (target, reply.error)
        assert reply.status < 500 or target[0] != "/", target
        for tag in site.served:
            reached[tag] += 1
            if tag != "health" and site.spent(peer, tag) != 1:
                evasions.append(f"{target!r} reached {tag}")
        site.served.clear()
    return evasions, reached


@asynccontextmanager
async def started(app: Any) -> AsyncIterator[None]:
    """An ASGI app whose lifespan has begun."""
    begun, ended = asyncio.Event(), asyncio.Event()
    messages = [{"type": "lifespan.startup"}]

    async def receive() -> Any:
        if messages:
            return messages.pop()
        await ended.wait()
        return {"type": "lifespan.shutdown"}

    async def send(message: Any) -> None:
        assert message["type"] in ("lifespan.startup.complete", "lifespan.shutdown.complete"), message
        begun.set()

    task = asyncio.create_task(app({"type": "lifespan", "asgi": {"version": "3.0"}}, receive, send))
    try:
        await asyncio.wait({task, asyncio.create_task(begun.wait())}, return_when=asyncio.FIRST_COMPLETED)
        yield
    finally:
        ended.set()
        begun.set()
        await task


def generate(random: Random, number: int) -> Iterator[tuple[str, str]]:
    """Targets and methods: first all plain ones, so that every handler is reached, and those that are known."""
    for prefix in ("", "/api", "/t", "/api/t"):
        yield from ((prefix + path, "GET") for path in (*PLAIN, *ODD))
    for _ in range(number):
        yield target_of(random), random.choice(("GET", "GET", "GET", "HEAD"))


@pytest.mark.attack
@pytest.mark.parametrize(
    ("framework", "name"), [(framework, name) for framework, (_, settings) in FRAMEWORKS.items() for name in settings]
)
async def test_whatever_reaches_a_handler_was_charged_by_its_rule(framework: str, name: str) -> None:
    mode, settings = FRAMEWORKS[framework]
    setting = settings[name]
    site = Site(mode, setting)
    site.open()
    asked = generate(Random(f"{framework} {name}"), -(-REQUESTS // len(settings)))
    async with started(site.app) if setting.lifespan else nullcontext():
        with setting.around():
            evasions, reached = await find_evasions(site, asked)
    assert not evasions, f"{len(evasions)} evasions: {evasions[:20]}"
    assert set(reached) == setting.tags
