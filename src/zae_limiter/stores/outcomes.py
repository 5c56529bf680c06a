"""What can become of a request to a remote store that brings no answer.

Everything about sending again hangs on which it is: only what was surely not carried out may be sent again.
"""

from __future__ import annotations


class NotSent(Exception):
    """The request never reached the store."""


class NoneFree(NotSent):
    """All connections that this client may have were in use, whatever the store does."""

    def __init__(self, limit: int, seconds: float, where: str = "") -> None:
        mine = f"all {limit} connections of this client{where} were in use for {seconds:.3g} s"
        super().__init__(f"{mine}; ?max_connections= raises their number")


class Unknown(Exception):
    """The request may have been carried out, but no answer says so."""
