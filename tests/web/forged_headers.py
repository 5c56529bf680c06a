"""Generated requests that lie about where they come from, and the proxies that they pass, the same for each seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from random import Random
from typing import TypeAlias

from tests.web.spoofs import CF, FWD, LIE, REAL, XFF

Lines: TypeAlias = list[tuple[str, str]]
PEER = "127.0.0.1"
"""The proxy that connects to the app."""
OUTER = "198.51.100.200"
"""A proxy in front of that one."""
OTHER = {XFF: FWD, FWD: XFF, REAL: XFF, CF: REAL}
"""For each header another one, which no proxy writes."""


@dataclass(frozen=True, slots=True)
class Forged:
    """A request as it arrives: its header lines, who has sent it, and whether it sent any of the lines itself."""

    lines: Lines
    client: str
    honest: bool


def _write(header: str, address: str) -> str:
    return f'for="[{address}]"' if header == FWD and ":" in address else f"for={address}" if header == FWD else address


def _replace(lines: Lines, header: str, value: str) -> Lines:
    """Caddy: its own value instead of the client's, and all lines in the order of their names, as Go writes them."""
    return sorted([*((name, old) for name, old in lines if name.lower() != header), (header.title(), value)])


def _replace_in_front(lines: Lines, header: str, value: str) -> Lines:
    return [(header, value), *((name, old) for name, old in lines if name.lower() != header)]


def _append(lines: Lines, header: str, value: str) -> Lines:
    """nginx with ``underscores_in_headers on``: the client's values and its own in one line at the end."""
    sent = [old for name, old in lines if name.lower() == header]
    rest = [(name, old) for name, old in lines if name.lower() != header]
    return [*rest, (header.title(), ", ".join([*sent, value]))]


def _append_in_front(lines: Lines, header: str, value: str) -> Lines:
    appended = _append(lines, header, value)
    return [appended[-1], *appended[:-1]]


def _add(lines: Lines, header: str, value: str) -> Lines:
    """HAProxy: one more line at the end."""
    return [*lines, (header, value)]


SETTING: tuple[Callable[[Lines, str, str], Lines], ...] = (_replace, _replace_in_front)
"""Proxies that allow no value but their own."""
ADDING: tuple[Callable[[Lines, str, str], Lines], ...] = (_append, _append_in_front, _add)
"""Proxies that put their value behind the client's."""


def _misspell(header: str, random: Random) -> str:
    """The name with other characters between its words, and in any case."""
    separators = random.choice(("_", "_", "_", "-_", "-_."))
    name = "".join(random.choice(separators) if character == "-" else character for character in header)
    return random.choice((name, name, name.upper(), name.title(), name.swapcase()))


def _lie(header: str, random: Random) -> str:
    lies = [LIE, LIE, LIE, f"{LIE}, 7.7.7.7", f"{LIE}, {PEER}", PEER, "unknown", "", ",", f" {LIE} ", f"{LIE},", "::1"]
    address = random.choice(lies)
    return _write(header, address) if random.random() < 0.8 else address


def _choose_client(random: Random) -> str:
    if random.random() < 0.3:
        return str(IPv6Address((0x20010DB8 << 96) + (random.getrandbits(32) << 64)))
    return str(IPv4Address(f"203.0.113.{random.randrange(256)}"))


def generate(header: str, hops: int, number: int, random: Random) -> Iterator[Forged]:
    """Yield ``number`` requests that have passed ``hops`` proxies, each of which writes ``header``."""
    for _ in range(number):
        client = _choose_client(random)
        names = [
            random.choice((header, OTHER[header], *[_misspell(header, random)] * 4))
            for _ in range(random.choice((0, 1, 1, 1, 2, 3)))
        ]
        lines: Lines = [(name, _lie(header, random)) for name in names]
        single = header in (REAL, CF)
        first = random.choice(SETTING if single else SETTING + ADDING)
        lines = first(lines, header, _write(header, client))
        if hops == 2:
            lines = random.choice(ADDING)(lines, header, _write(header, OUTER))
        yield Forged(lines, client, honest=not names)
