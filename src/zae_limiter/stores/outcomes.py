"""The outcomes of a request to a remote store, and what may be done about them; the same words for all stores.

Everything about sending again hangs on it: only what was surely not carried out, or does no harm twice, is sent again.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from ..core.errors import RateLimiterUnavailable, ZAELimiterError


class NotSent(Exception):
    """The request never reached the store."""


class NoneFree(NotSent):
    """All connections that this client may have were in use, whatever the store does."""

    def __init__(self, limit: int, seconds: float, where: str = "") -> None:
        mine = f"all {limit} connections of this client{where} were in use for {seconds:.3g} s"
        super().__init__(f"{mine}; ?max_connections= raises their number")


class Unknown(Exception):
    """The request may have been carried out, but no answer says so."""


class Remedy(enum.Enum):
    """The remedy for a failure. Unless it says otherwise, the request was surely not carried out."""

    NONE = enum.auto()
    WAIT = enum.auto()
    """Send it again after a while."""
    TURN = enum.auto()
    """The same, because others were faster: there will be a turn, so only the deadline ends the tries."""
    REPEAT = enum.auto()
    """It may have been carried out: send it again only if that does no harm."""
    RENEW = enum.auto()
    """Other credentials."""
    RESYNC = enum.auto()
    """The right time, which the answer told."""
    LOAD = enum.auto()
    """Send the whole script."""
    FOLLOW = enum.auto()
    """Ask the server that the answer names."""
    LOCATE = enum.auto()
    """Find out anew where the data are: this server is not the one, or not ready."""


class Meaning(NamedTuple):
    """The meaning of an error of a store: a row of the table from its codes to our errors."""

    kind: type[ZAELimiterError]
    remedy: Remedy
    reason: str
    throttled: bool = False

    def error(self, where: str, details: str, cause: Exception) -> ZAELimiterError:
        """Return the error to raise where nothing helps; ``where`` opens its message."""
        text = f"{where}: {self.reason} ({details})"
        unavailable = issubclass(self.kind, RateLimiterUnavailable)
        error = self.kind(text, cause) if unavailable else self.kind(text)
        error.__cause__ = cause
        return error


class Failure(Exception):
    """A failed attempt: the error to raise if nothing helps, and what might."""

    def __init__(self, error: ZAELimiterError, meaning: Meaning) -> None:
        super().__init__(str(error))
        self.error = error
        self.remedy = meaning.remedy
        self.throttled = meaning.throttled
