"""Where one RESP value ends and the next begins, in either direction and either version of the protocol."""

from __future__ import annotations

from collections.abc import Iterator

END = b"\r\n"
BULKS = b"$=!"
LISTS = b"*~>"
MAPS = b"%|"


class Frames:
    """Cuts a stream of bytes into whole values."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The values that are whole now."""
        self._data += data
        while (end := _end_of(self._data, 0)) is not None:
            yield bytes(self._data[:end])
            del self._data[:end]


def _end_of(data: bytearray, start: int) -> int | None:
    """The place after the value at ``start``; None if some of it is missing. What is no RESP is a line."""
    line = data.find(END, start)
    if line < 0:
        return None
    end = line + len(END)
    kind = data[start]
    if kind in BULKS:
        length = int(data[start + 1 : line])
        end += length + len(END) if length >= 0 else 0
        return end if end <= len(data) else None
    if kind not in LISTS + MAPS:
        return end
    for _ in range(int(data[start + 1 : line]) * (2 if kind in MAPS else 1)):
        after = _end_of(data, end)
        if after is None:
            return None
        end = after
    return end


def command_name(request: bytes) -> str:
    """What a request asks for, in lower case; it may be an array or an inline line."""
    word = request.split(END, 3)[2] if request.startswith(b"*") else request.split(maxsplit=1)[0]
    return word.decode(errors="replace").lower()


def is_answer(frame: bytes) -> bool:
    """Whether it answers a request: pushes and attributes do not."""
    return frame[:1] not in (b">", b"|")
