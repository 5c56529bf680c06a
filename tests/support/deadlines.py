"""How long the tests wait for what others do: a minute, so that only what will never happen runs into it.

A deadline that is the subject of a test is given there. Everywhere else the machine may be busy with other work, and an
answer that is a few seconds late is no failure.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from zae_limiter.stores.dynamodb.client import Options, open_client
from zae_limiter.stores.redis.settings import Settings
from zae_limiter.stores.sqlite import SqliteFile

PATIENCE = 60.0
"""Seconds."""


def lengthen() -> None:
    """Give each call of a store that is opened in this process `PATIENCE`, unless whoever opens it says otherwise."""
    _change_defaults(open_client, timeout=PATIENCE, connect_timeout=PATIENCE)
    _change_defaults(Options.__new__, timeout=PATIENCE)
    _change_defaults(Settings.__new__, timeout=PATIENCE, connect_timeout=PATIENCE)
    _change_defaults(SqliteFile.__init__, timeout=PATIENCE)


def _change_defaults(function: Callable[..., Any], **values: float) -> None:
    """Change what a function takes for arguments that are not given; all of them must have had a default."""
    parameters = inspect.signature(function).parameters
    defaults = {name: each.default for name, each in parameters.items() if each.default is not each.empty}
    assert values.keys() <= defaults.keys()
    defaults |= values
    named = {name: defaults.pop(name) for name in function.__kwdefaults__ or ()}
    function.__kwdefaults__ = named or None
    function.__defaults__ = tuple(defaults.values())
