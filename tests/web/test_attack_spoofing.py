"""Generated requests with forged headers against real servers: only what a trusted proxy has written counts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from random import Random
from typing import TypeAlias

import pytest

from tests.support.attacks import REQUESTS
from tests.web.forged_headers import PEER, Forged, generate
from tests.web.forged_sites import TRUSTED, asgi_site, wsgi_site
from tests.web.servers.asgi import hypercorn, uvicorn
from tests.web.servers.client import Connection
from tests.web.servers.gunicorn import gunicorn
from tests.web.servers.wsgi import a2wsgi, aiohttp_wsgi, cheroot, hypercorn_wsgi, waitress, werkzeug, wsgiref

Start: TypeAlias = Callable[[Path], AbstractContextManager[int]]
EXACT, JOINED, REPLACED = "exact", "joined", "replaced"
"""What a server makes of ``X_Forwarded_For`` beside ``X-Forwarded-For``: nothing, one text of both, the last one."""

SERVERS: dict[str, tuple[str, Start]] = {
    "uvicorn": (EXACT, lambda _: uvicorn(asgi_site())),
    "hypercorn": (EXACT, lambda _: hypercorn(asgi_site())),
    "waitress": (EXACT, lambda _: waitress(wsgi_site(), clear_untrusted_proxy_headers=False)),
    "gunicorn": (EXACT, lambda folder: gunicorn("tests.web.forged_sites:wsgi_site()", folder / "log", "--threads=2")),
    "werkzeug": (EXACT, lambda _: werkzeug(wsgi_site())),
    "a2wsgi": (EXACT, lambda _: a2wsgi(wsgi_site())),
    "aiohttp-wsgi": (EXACT, lambda _: aiohttp_wsgi(wsgi_site())),
    "hypercorn-wsgi": (JOINED, lambda _: hypercorn_wsgi(wsgi_site())),
    "wsgiref": (JOINED, lambda _: wsgiref(wsgi_site())),
    "cheroot": (REPLACED, lambda _: cheroot(wsgi_site())),
}


def _ask(port: int, path: str, forged: Forged) -> str:
    """Return the entity that was charged."""
    with Connection(port) as connection:
        response = connection.ask("GET", path, "client", headers=[*forged.lines, ("Connection", "close")])
    assert response.status == 200, (forged, response)
    return response.body.decode()


def _list_allowed(kind: str, path: str, forged: Forged) -> set[str]:
    """Return the entities that the request may be charged to."""
    client, proxy = f"ip:{forged.client}", f"ip:{PEER}"
    if kind == EXACT or path == "/forwarded":  # a name without a hyphen cannot be misspelt
        return {client}
    if kind == REPLACED:
        return {proxy}
    return {client} if forged.honest else {client, proxy}


@pytest.mark.attack
@pytest.mark.parametrize("server", SERVERS)
def test_only_what_a_trusted_proxy_has_written_counts(server: str, tmp_path: Path) -> None:
    kind, start = SERVERS[server]
    wrong: list[str] = []
    with start(tmp_path) as port:
        for path, (proxies, hops) in TRUSTED.items():
            for forged in generate(proxies.header, hops, -(-REQUESTS // len(TRUSTED)), Random(f"{server} {path}")):
                charged = _ask(port, path, forged)
                if charged not in _list_allowed(kind, path, forged):
                    wrong.append(f"{path} {forged} was charged to {charged}")
    assert not wrong, f"{len(wrong)} spoofs: {wrong[:10]}"
