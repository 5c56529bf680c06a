"""The protocol of Redis (RESP 2): commands and scripts as bytes, bytes as answers."""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha1
from importlib import resources
from typing import TYPE_CHECKING, Any

from redis.exceptions import InvalidResponse, ResponseError

if TYPE_CHECKING:
    from collections.abc import Sequence

_STATUS, _ERROR, _NUMBER, _TEXT, _LIST = b"+-:$*"
_MAX_LINE = 64 * 1024
_SWAPPED = b"$1\r\n=\r\n"
"""The answer to most calls."""
_TURNED_AWAY = b"ERR max number of clients reached"
"""Not an answer to a command: a server with too many connections sends it and closes the new one."""


def pack_arguments(*arguments: Any) -> bytes:
    """Return the bytes of a part of a command: numbers, texts and bytes."""
    parts = [each if type(each) is bytes else str(each).encode(errors="surrogateescape") for each in arguments]
    return b"".join([b"$%d\r\n%b\r\n" % (len(data), data) for data in parts])


def pack(command: Sequence[Any]) -> bytes:
    """Return the bytes of a command of numbers, texts and bytes."""
    return b"*%d\r\n%b" % (len(command), pack_arguments(*command))


class Script:
    """A Lua script, which a server remembers by its digest."""

    def __init__(self, name: str) -> None:
        self.text = resources.files(__package__).joinpath(name).read_bytes()
        self.digest = sha1(self.text, usedforsecurity=False).hexdigest()
        self._by_digest = pack_arguments("EVALSHA", self.digest)
        self.head = lru_cache(maxsize=64)(self._pack_head)
        """Return the command that runs it by its digest, up to as many keys and arguments, which follow it packed."""

    def _pack_head(self, keys: int, arguments: int) -> bytes:
        return b"*%d\r\n%b%b" % (3 + keys + arguments, self._by_digest, pack_arguments(keys))

    def spell_out(self, command: bytes) -> bytes:
        """Return a command that runs it by its digest as one that runs it by its text."""
        return command.replace(self._by_digest, pack_arguments("EVAL", self.text), 1)


COMMIT = Script("commit.lua")
SWAP = Script("swap.lua")
SWEEP = Script("sweep.lua")


class _Incomplete(Exception):
    """An answer is incomplete; its argument is how many bytes there must be at least."""


class Reader:
    """Parse the answers of a connection from its bytes, in whatever pieces these arrive."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0
        self._needed = 0

    def feed(self, data: bytes) -> list[Any]:
        """Return the answers that are complete; an error that the server answers with is a `ResponseError` among them.

        Raise `InvalidResponse` if the bytes are not an answer, `ConnectionError` if the server refuses the connection.
        """
        if self._pieces:
            self._pieces.append(data)
            self._size += len(data)
            if self._size < self._needed:
                return []
            data = b"".join(self._pieces)
        elif data == _SWAPPED:
            return [b"="]
        found = []
        at = 0
        try:
            while at < len(data):
                value, at = _parse(data, at)
                found.append(value)
            self._needed = 0
        except _Incomplete as rest:
            self._needed = rest.args[0] - at
        except (ValueError, RecursionError) as error:
            raise InvalidResponse(f"not an answer of Redis: {data[at : at + 40]!r}") from error
        self._pieces = [data[at:]] if at < len(data) else []
        self._size = len(data) - at
        return found


def _parse(data: bytes, at: int) -> tuple[Any, int]:
    """Return the answer at the position ``at``, and the position behind it. Raise `_Incomplete` or ValueError."""
    end = data.find(b"\r\n", at)
    if end < 0:
        if len(data) - at > _MAX_LINE:
            raise ValueError("a line has no end")
        raise _Incomplete(len(data) + 1)
    kind, line, after = data[at], data[at + 1 : end], end + 2
    if kind == _TEXT:
        size = int(line)
        if size < 0:
            return None, after
        stop = after + size
        if len(data) < stop + 2:
            raise _Incomplete(stop + 2)
        return data[after:stop], stop + 2
    if kind == _NUMBER:
        return int(line), after
    if kind == _STATUS:
        return line, after
    if kind == _ERROR:
        if line == _TURNED_AWAY:
            raise ConnectionError(line.decode())
        return ResponseError(line.decode(errors="replace")), after
    if kind != _LIST:
        raise ValueError(kind)
    values = []
    for _ in range(int(line)):
        value, after = _parse(data, after)
        values.append(value)
    return values if int(line) >= 0 else None, after
