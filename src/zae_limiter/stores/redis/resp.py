"""The protocol of Redis (RESP 2): commands and scripts as bytes, bytes as answers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha1
from importlib import resources
from typing import Any

from redis.exceptions import InvalidResponse, ResponseError

_STATUS, _ERROR, _NUMBER, _TEXT, _LIST = b"+-:$*"
_MAX_LINE = 64 * 1024
MAX_BYTES = 32 * 1024 * 1024
"""Most bytes of one answer; the largest of ours, a page of records, has a few megabytes."""
_TOO_LONG = f"an answer of more than {MAX_BYTES:,} bytes"
_MAX_ELEMENTS = 1 << 20
_MAX_DEPTH = 16
"""How deep arrays may be nested; those of Redis have five levels."""
_SWAPPED = b"$1\r\n=\r\n"
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
    """An element is incomplete; its argument is the position up to which there must be bytes at least."""


class _Opened(int):
    """The head of an array: as many elements follow."""


class Reader:
    """Parse the answers of a connection from its bytes, in whatever pieces these arrive.

    Every element is parsed once: elements of an array whose rest has not arrived are kept as values.
    """

    def __init__(self) -> None:
        self.buffer = bytearray()
        self.arrays: list[tuple[int, list[Any]]] = []
        """The arrays that are incomplete, the outermost first: how many elements each has, and those that are there."""
        self._bytes = 0
        """The bytes of the incomplete answer that are parsed."""
        self._elements = 0
        """How many elements the arrays of the incomplete answer say that they have."""

    @property
    def is_between_answers(self) -> bool:
        """Return whether no part of a further answer has arrived."""
        return not (self.buffer or self.arrays)

    def feed(self, data: bytes) -> list[Any]:
        """Return the answers that are complete; an error that the server answers with is a `ResponseError` among them.

        Raise `InvalidResponse` if the bytes are not an answer or it is too long, `ConnectionError` if the server
        refuses the connection.
        """
        buffer = self.buffer
        if data == _SWAPPED and not (buffer or self.arrays):
            return [b"="]
        buffer += data
        found: list[Any] = []
        at = 0
        try:
            while at < len(buffer):
                value, after = _parse(buffer, at)
                self._add(value, after - at, found)
                at = after
        except _Incomplete as rest:
            if self._bytes + max(rest.args[0], len(buffer)) - at > MAX_BYTES:
                raise InvalidResponse(_TOO_LONG) from None
        except ValueError as error:
            raise InvalidResponse(f"not an answer of Redis: {bytes(buffer[at : at + 40])!r}") from error
        del buffer[:at]
        return found

    def _add(self, value: Any, size: int, found: list[Any]) -> None:
        self._bytes += size
        if self._bytes > MAX_BYTES:
            raise InvalidResponse(_TOO_LONG)
        if type(value) is _Opened:
            self._elements += value
            if self._elements > _MAX_ELEMENTS or len(self.arrays) == _MAX_DEPTH:
                raise InvalidResponse(f"an answer of more than {_MAX_ELEMENTS:,} elements or {_MAX_DEPTH} levels")
            if value:
                self.arrays.append((value, []))
                return
            value = []
        while self.arrays:
            count, values = self.arrays[-1]
            values.append(value)
            if len(values) < count:
                return
            self.arrays.pop()
            value = values
        self._bytes = self._elements = 0
        found.append(value)


def _parse(data: bytearray, at: int) -> tuple[Any, int]:
    """Return the element at the position ``at``, and the position behind it. Raise `_Incomplete` or ValueError."""
    end = data.find(b"\r\n", at)
    if end < 0:
        if len(data) - at > _MAX_LINE:
            raise ValueError("a line has no end")
        raise _Incomplete(len(data) + 1)
    kind, line, after = data[at], bytes(data[at + 1 : end]), end + 2
    if kind == _TEXT:
        size = int(line)
        if size < 0:
            return None, after
        stop = after + size
        if len(data) < stop + 2:
            raise _Incomplete(stop + 2)
        if data[stop : stop + 2] != b"\r\n":
            raise ValueError("a text is longer than its length")
        return bytes(memoryview(data)[after:stop]), stop + 2
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
    count = int(line)
    return (None if count < 0 else _Opened(count)), after
