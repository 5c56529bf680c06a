"""How long the tests wait for what others do: a minute, so that only what will never happen runs into it.

A deadline that is the subject of a test is given there. Everywhere else the machine may be busy with other work, and an
answer that is a few seconds late is no failure. A test that does not end at all fails: `ends_within`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import inspect
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

from zae_limiter.stores.dynamodb.client import Options
from zae_limiter.stores.redis.settings import Settings
from zae_limiter.stores.sqlite import SqliteStore

PATIENCE = 60.0
"""Seconds."""


def lengthen() -> None:
    """Give each call of a store that is opened in this process `PATIENCE`, unless whoever opens it says otherwise."""
    _change_defaults(Options.__new__, timeout=PATIENCE, connect_timeout=PATIENCE)
    _change_defaults(Settings.__new__, timeout=PATIENCE, connect_timeout=PATIENCE)
    _change_defaults(SqliteStore.__init__, timeout=PATIENCE)


class Hangs(BaseException):
    """A block did not end in time. No `Exception`, so that nothing that is being tested handles it."""


if sys.platform == "win32":

    @contextlib.contextmanager
    def ends_within(seconds: float) -> Iterator[None]:
        """End the process, with a traceback of every thread, if the block takes longer: Windows has no timer signal."""
        faulthandler.dump_traceback_later(seconds, exit=True)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()

else:

    @contextlib.contextmanager
    def ends_within(seconds: float) -> Iterator[None]:
        """Raise `Hangs` in the block if it takes longer, whatever it waits for, and print where every thread is.

        Raise it again after the same time if something has swallowed it. For the main thread only; blocks can nest.
        """

        def give_up(*_: object) -> None:
            faulthandler.dump_traceback()
            raise Hangs(f"not over after {seconds:g} s")

        handler = signal.signal(signal.SIGALRM, give_up)
        timer = signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, handler)
            signal.setitimer(signal.ITIMER_REAL, *timer)


def _change_defaults(function: Callable[..., Any], **values: float) -> None:
    """Change what a function takes for arguments that are not given; all of them must have had a default."""
    parameters = inspect.signature(function).parameters
    defaults = {name: each.default for name, each in parameters.items() if each.default is not each.empty}
    assert values.keys() <= defaults.keys()
    defaults |= values
    named = {name: defaults.pop(name) for name in function.__kwdefaults__ or ()}
    function.__kwdefaults__ = named or None
    function.__defaults__ = tuple(defaults.values())
