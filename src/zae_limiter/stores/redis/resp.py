"""The protocol of Redis (RESP 2): commands and scripts as bytes, bytes as answers."""

from __future__ import annotations

from hashlib import sha1
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.exceptions import InvalidResponse, ResponseError

if TYPE_CHECKING:
    from collections.abc import Sequence

_STATUS, _ERROR, _NUMBER, _TEXT, _LIST = b"+-:$*"
_SWAPPED = b"$1\r\n=\r\n"
"""The answer to most calls."""
_TURNED_AWAY = b"ERR max number of clients reached"
"""Not an answer to a command: a server with too many connections sends it and closes the new one."""


class Script(NamedTuple):
    """A Lua script and the digest under which a server remembers it."""

    text: str
    digest: str

    def command(self, keys: Sequence[str], *arguments: str) -> list[str]:
        """Return the command that runs it by its digest."""
        return ["EVALSHA", self.digest, str(len(keys)), *keys, *arguments]


def _load(name: str) -> Script:
    text = resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
    return Script(text, sha1(text.encode(), usedforsecurity=False).hexdigest())


COMMIT = _load("commit.lua")
SWAP = _load("swap.lua")
SWEEP = _load("sweep.lua")


def pack(command: Sequence[Any]) -> bytes:
    """Return the bytes of a command of numbers, texts and bytes."""
    parts = [b"*%d\r\n" % len(command)]
    for argument in command:
        data = argument if type(argument) is bytes else str(argument).encode(errors="surrogateescape")
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


def pack_texts(command: Sequence[str]) -> bytes:
    """Return the bytes of a command of texts only: `pack` in a third of the time if they are ASCII."""
    text = "".join([f"${len(argument)}\r\n{argument}\r\n" for argument in command])
    return f"*{len(command)}\r\n{text}".encode() if text.isascii() else pack(command)


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
        except ValueError as error:
            raise InvalidResponse(f"not an answer of Redis: {data[at : at + 40]!r}") from error
        self._pieces = [data[at:]] if at < len(data) else []
        self._size = len(data) - at
        return found


def _parse(data: bytes, at: int) -> tuple[Any, int]:
    """Return the answer at the position ``at``, and the position behind it. Raise `_Incomplete` or ValueError."""
    end = data.find(b"\r\n", at)
    if end < 0:
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
