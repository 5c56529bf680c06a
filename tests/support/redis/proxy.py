"""A TCP proxy in front of a server: counts what passes, cuts, refuses, holds, and speaks TLS if wanted.

It lives in an event loop in a thread of its own; a switch has taken effect when its method returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections import Counter
from collections.abc import Coroutine
from typing import Any, Self

from tests.support import ports
from tests.support.deadlines import PATIENCE
from tests.support.paths import CERTIFICATE
from tests.support.redis.endpoint import Endpoint
from tests.support.redis.resp import Frames, command_name, is_answer

CHUNK = 65536


class Link:
    """One client's connection and the one to the server behind it."""

    def __init__(self, client: asyncio.StreamWriter) -> None:
        self.client = client
        self.over = asyncio.Event()
        self.gone = asyncio.Event()
        self.sent = 0
        self.answered = 0
        self.cut_at: int | None = None
        self.held: list[bytes] = []


class Proxy:
    """Stands in front of one server. Every request is taken to have one answer, so it is not for publish/subscribe."""

    def __init__(self, target: Endpoint, *, tls: bool = False, asks_certificate: bool = False, port: int = 0) -> None:
        self._wanted_port = port
        self.target = target
        self.commands: Counter[str] = Counter()
        self.accepted = 0
        self._tls: ssl.SSLContext | None = None
        if tls:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(CERTIFICATE)
        if self._tls is not None and asks_certificate:
            self._tls.load_verify_locations(CERTIFICATE)
            self._tls.verify_mode = ssl.CERT_REQUIRED
        self._links: set[Link] = set()
        self._refusing = False
        self._holding = False
        self._cut = 0
        self._cut_only: str | None = None
        self._listening = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="proxy")

    @property
    def requests(self) -> int:
        """All that clients have asked."""
        return self.commands.total()

    @property
    def held(self) -> int:
        """Answers that the server has given and no client has had."""
        return sum(len(link.held) for link in list(self._links))

    def __enter__(self) -> Self:
        self._listener = ports.listener(self._wanted_port)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"{'rediss' if self._tls else 'redis'}://127.0.0.1:{self.port}/0"
        self._thread.start()
        self._listening.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    def cut_after_request(self, n: int = 1, *, only: str | None = None) -> None:
        """Let ``n`` more requests through (of the command ``only``, if given); the last one's client gets a closed
        connection instead of the answer, after the server has answered."""
        self._call(self._arm(n, only))

    def refuse(self) -> None:
        """Close every connection, and every new one as soon as it is there."""
        self._call(self._switch_refusing(True))

    def accept(self) -> None:
        """Take connections again."""
        self._call(self._switch_refusing(False))

    def hold(self) -> None:
        """Let requests through and keep the answers."""
        self._call(self._switch_holding(True))

    def release(self, *, deliver: bool = True) -> None:
        """Let answers through again; those that were kept arrive late at whoever is still there, or never."""
        self._call(self._switch_holding(False, deliver))

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    async def _arm(self, n: int, only: str | None) -> None:
        self._cut, self._cut_only = n, only and only.lower()

    async def _switch_refusing(self, refusing: bool) -> None:
        self._refusing = refusing
        if refusing:
            await self._drop_all()

    async def _switch_holding(self, holding: bool, deliver: bool = True) -> None:
        self._holding = holding
        for link in self._links:
            if deliver and not holding:
                link.client.writelines(link.held)
            if not holding:
                link.held.clear()

    async def _drop_all(self) -> None:
        for link in list(self._links):
            link.over.set()
            await link.gone.wait()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        async with await asyncio.start_server(self._serve, sock=self._listener, ssl=self._tls) as server:
            self._listening.set()
            await self._end.wait()
            self._refusing = True
            self._loop.remove_reader(self._listener)
            for _ in range(3):  # asyncio never closes a connection that was accepted and finds its server closed
                await asyncio.sleep(0)
            server.close()
            await self._drop_all()
            # What is still in a TLS handshake is no link yet. The collector would complain of it in some later test.
            for transport in list(getattr(self._loop, "_transports", {}).values()):
                transport.abort()
            for _ in range(3):
                await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        link = Link(writer)
        self._links.add(link)
        try:
            if not self._refusing:
                await self._connect(link, reader)
        finally:
            await close(writer)
            self._links.discard(link)
            link.gone.set()

    async def _connect(self, link: Link, reader: asyncio.StreamReader) -> None:
        try:
            answers, server = await asyncio.open_connection(self.target.host, self.target.port)
        except OSError:
            return
        try:
            await first_of(self._ask(link, reader, server), self._answer(link, answers), link.over.wait())
        finally:
            await close(server)

    async def _ask(self, link: Link, reader: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
        frames = Frames()
        while data := await reader.read(CHUNK):
            for request in frames.feed(data):
                link.sent += 1
                name = command_name(request)
                self.commands[name] += 1
                if self._is_last(name):
                    link.cut_at = link.sent
                server.write(request)
                await server.drain()
                if link.cut_at is not None:
                    await link.over.wait()  # the answer ends this link

    def _is_last(self, name: str) -> bool:
        if self._cut and self._cut_only in (None, name):
            self._cut -= 1
            return self._cut == 0
        return False

    async def _answer(self, link: Link, answers: asyncio.StreamReader) -> None:
        frames = Frames()
        while data := await answers.read(CHUNK):
            for frame in frames.feed(data):
                link.answered += is_answer(frame)
                if link.answered == link.cut_at:
                    return
                if self._holding:
                    link.held.append(frame)
                else:
                    link.client.write(frame)
            await link.client.drain()


async def first_of(*works: Coroutine[Any, Any, object]) -> None:
    """Until one is done or has lost its connection; the others are given up."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            if not isinstance(task.exception(), OSError | None):
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def close(writer: asyncio.StreamWriter) -> None:
    """Close it now. A TLS client that does not listen would keep an orderly end waiting."""
    if writer.get_extra_info("ssl_object") is None:
        writer.close()
    else:
        writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
