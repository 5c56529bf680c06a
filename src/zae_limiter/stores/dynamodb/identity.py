"""Who the credentials of a client belong to: the ARN that AWS's STS tells, asked once, in a thread of its own.

It is for the audit log only. So nobody waits long for it, no failure is an error, and one is remembered for minutes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from ...forks import after_fork, protect

if TYPE_CHECKING:
    from .credentials import Credentials
    from .sockets import AsyncSockets, BlockingSockets

_ANSWER_SECONDS = 1.0
"""How long STS may take to accept a connection, and to answer."""
_WAIT_SECONDS = 2.0
"""How long a caller waits at most: also looking up a name, and loading botocore's client, take their time."""
_FAILURE_SECONDS = 300.0


class CallerIdentity:
    """The ARN of the caller, once it is known. ``ask`` blocks until it is there, or raises."""

    def __init__(
        self,
        ask: Callable[[], str],
        sockets: AsyncSockets | BlockingSockets,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask = ask
        self._sockets = sockets
        self._timer = timer
        self._arn: str | None = None
        self._ask_again_at = 0.0
        self._run: Future[None] | None = None
        """The run that is under way: those who want to know at once wait for the same one."""
        self._lock = threading.Lock()
        protect(self._lock)
        after_fork(self._forget_run)

    async def find(self, timeout: float) -> str | None:
        """Return the ARN. Return None if nobody tells it within ``timeout`` seconds, or did not minutes ago."""
        if self._arn is None and self._timer() >= self._ask_again_at:
            try:
                await self._sockets.outcome(self._begin(), min(timeout, _WAIT_SECONDS))
            except TimeoutError:  # the run goes on; later changes have what it finds
                self._ask_again_at = self._timer() + _FAILURE_SECONDS
        return self._arn

    def _begin(self) -> Future[None]:
        """Return the run that is under way, else begin one in a daemon thread."""
        with self._lock:
            if self._run is not None:
                return self._run
            run = self._run = Future()
            run.set_running_or_notify_cancel()  # whoever gives up waiting cannot cancel it for the others
        try:
            threading.Thread(target=self._work, args=(run,), name="zae-limiter-identity", daemon=True).start()
        except RuntimeError:  # no thread can be started any more when the interpreter ends
            self._work(run)
        return run

    def _work(self, run: Future[None]) -> None:
        try:
            self._arn = self._ask()
        except Exception:
            self._ask_again_at = self._timer() + _FAILURE_SECONDS
        finally:
            self._run = None
            run.set_result(None)

    def _forget_run(self) -> None:
        """In a fork: the thread of a run is not there."""
        self._run = None


def ask_sts(session: Any, credentials: Credentials, region: str, endpoint_url: str | None) -> str:
    """Return the ARN of the caller; everybody may ask for that. Raise an error of botocore."""
    from botocore.config import Config

    config = Config(
        connect_timeout=_ANSWER_SECONDS,
        read_timeout=_ANSWER_SECONDS,
        retries={"mode": "standard", "total_max_attempts": 1},
    )
    keys = dict(zip(("aws_access_key_id", "aws_secret_access_key", "aws_session_token"), credentials, strict=True))
    client = session.create_client("sts", region_name=region, endpoint_url=endpoint_url, config=config, **keys)
    try:
        return str(client.get_caller_identity()["Arn"])
    finally:
        client.close()
