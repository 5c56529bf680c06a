"""The Lua scripts, each known to a server by its digest."""

from __future__ import annotations

from hashlib import sha1
from importlib import resources
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Script(NamedTuple):
    """A script and the digest under which a server remembers it."""

    text: str
    digest: str

    def command(self, keys: Sequence[str], arguments: Iterable[str]) -> tuple[str, ...]:
        """Return the command that runs it by its digest."""
        return ("EVALSHA", self.digest, str(len(keys)), *keys, *arguments)


def _load(name: str) -> Script:
    text = resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
    return Script(text, sha1(text.encode(), usedforsecurity=False).hexdigest())


COMMIT = _load("commit.lua")
SWAP = _load("swap.lua")
SWEEP = _load("sweep.lua")
