"""One ``redis-server`` process of our own, and what can happen to it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self, TypeAlias
from urllib.parse import quote

from tests.support.ports import free_port
from tests.support.redis import reaper
from tests.support.redis.binary import redis_server
from tests.support.redis.endpoint import Endpoint
from tests.support.redis.line import Line
from tests.support.waiting import until

Options: TypeAlias = Mapping[str, str] | Sequence[str]
"""Directives of ``redis.conf`` with their values, or whole lines of it."""

IN_MEMORY = ("appendonly no",)
DURABLE = ("appendonly yes", "appendfsync always", "auto-aof-rewrite-percentage 0")
ATTEMPTS = 5
"""Another process may take the free port between choosing and binding it."""

LONGEST_SOCKET = 100
"""Characters that the path of a unix socket may have everywhere."""


class DoesNotStart(Exception):
    """The server ended before it answered; the message has what it said."""


def lines_of(options: Options) -> list[str]:
    """The options as lines of ``redis.conf``; an empty value is written as the empty string."""
    if isinstance(options, Mapping):
        return [f"{name} {value}" if value else f'{name} ""' for name, value in options.items()]
    return list(options)


class Server(Endpoint):
    """A server in a folder, at a port that it keeps. It starts with ``start`` or ``with`` and ends with ``close``."""

    arguments: tuple[str, ...] = ()

    def __init__(
        self, folder: Path | None = None, *, options: Options = (), port: int | None = None, durable: bool = False
    ) -> None:
        self._temporary: list[Path] = []
        self.folder = self._new_folder() if folder is None else folder
        self.socket = self.folder / "redis.sock"
        if len(str(self.socket)) > LONGEST_SOCKET:
            self.socket = self._new_folder() / "redis.sock"
        self._lines = [*(DURABLE if durable else IN_MEMORY), *lines_of(options)]
        self._process: subprocess.Popen[bytes] | None = None
        self._frozen = False
        self._owner = os.getpid()
        self._movable = port is None
        super().__init__("")
        self._settle_at(free_port() if port is None else port)

    @property
    def unix_url(self) -> str:
        """The URL by its unix socket."""
        return f"unix://{self._credentials()}{self.socket}?db=0"

    @property
    def pid(self) -> int:
        """The process, while it runs."""
        assert self._process is not None, "the server does not run"
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether there is a process."""
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start it, and wait until it answers and has loaded what it has."""
        assert not self.running, "the server runs already"
        for attempt in range(ATTEMPTS):
            self._launch()
            try:
                until(self._answers, f"the server at port {self.port} answers")
            except DoesNotStart as reason:
                if not self._movable or "Address already in use" not in str(reason) or attempt == ATTEMPTS - 1:
                    raise
                self._settle_at(free_port())
            except BaseException:
                self.kill()
                raise
            else:
                self._movable = False
                return

    def stop(self) -> None:
        """Shut it down in order; its folder stays."""
        if self._process is not None:
            for signum in (signal.SIGCONT, signal.SIGTERM):
                self._process.send_signal(signum)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(10)
            self.kill()

    def kill(self) -> None:
        """End it at once with SIGKILL."""
        self._line.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            reaper.tell("gone", self._process.pid)
            self._process = None

    def restart(self) -> None:
        """Stop and start, at the same port, with what it kept."""
        self.stop()
        self.start()

    def freeze(self) -> None:
        """Let it stop in the middle of whatever it does: connections stay, answers do not come."""
        if not self._frozen:
            os.kill(self.pid, signal.SIGSTOP)
            os.waitpid(self.pid, os.WUNTRACED)
            self._frozen = True

    def thaw(self) -> None:
        """Let it go on."""
        os.kill(self.pid, signal.SIGCONT)
        self._frozen = False

    def flush(self) -> None:
        """Delete everything."""
        self.aside("FLUSHALL")

    def close(self) -> None:
        """End it and remove the folders that it made for itself. A fork of its owner leaves it alone."""
        super().close()
        if os.getpid() == self._owner:
            self.kill()
            for folder in self._temporary:
                shutil.rmtree(folder, ignore_errors=True)
                reaper.tell("gone", folder)
            self._temporary.clear()

    def configuration(self) -> list[str]:
        """The lines of its ``redis.conf``; later ones win, so the options are last."""
        quick = ("repl-diskless-sync yes", "repl-diskless-sync-delay 0")
        return [*self._place(), 'save ""', *quick, *self._lines]

    def _place(self) -> list[str]:
        return [f"port {self.port}", "bind 127.0.0.1", f'dir "{self.folder}"', f'unixsocket "{self.socket}"']

    def _new_folder(self) -> Path:
        folder = Path(tempfile.mkdtemp(prefix="zae-redis-"))
        reaper.tell("folder", folder)
        self._temporary.append(folder)
        return folder

    def _credentials(self) -> str:
        passwords = [line.split(maxsplit=1)[1] for line in self._lines if line.startswith("requirepass ")]
        return f":{quote(passwords[-1], safe='')}@" if passwords else ""

    def _settle_at(self, port: int) -> None:
        """Written once per port: a restart finds what the server itself has written since."""
        self.url = f"redis://{self._credentials()}127.0.0.1:{port}/0"
        self._line = Line(self.url)
        (self.folder / "redis.conf").write_text("\n".join([*self.configuration(), ""]), encoding="utf-8")

    def _launch(self) -> None:
        self._aside.clear()
        self._frozen = False
        self.socket.unlink(missing_ok=True)
        with open(self.folder / "log", "wb") as output:
            self._process = subprocess.Popen(
                [redis_server(), str(self.folder / "redis.conf"), *self.arguments],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # an interrupt at the terminal is for the tests
            )
        reaper.tell("process", self._process.pid)

    def _answers(self) -> bool:
        """Whether it is ready. It makes its socket once it has its port: before, the port may be somebody else's."""
        if not self.running:
            self.kill()
            raise DoesNotStart((self.folder / "log").read_text(encoding="utf-8", errors="replace")[-2000:])
        return self.socket.exists() and self.aside("PING") == "PONG"
