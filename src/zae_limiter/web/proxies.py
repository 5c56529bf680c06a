"""Finding the client behind proxies.

Every proxy appends the address it was called from to one header, on the right; whatever stands further left came
with the request and may be a lie. So the header is read from the right, only if the peer is a proxy of ours, and only
as far as our proxies reach. One header is believed and never another one instead: a proxy that writes one passes the
others on as the client sent them.

A WSGI server may have mixed ``X_Forwarded_For``, which no proxy writes, into ``X-Forwarded-For`` (see `header_names`).
If it joins the two, the header is believed only if it has no more values than our proxies write; if it keeps the
last one, not at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_interface
from itertools import islice
from typing import TypeAlias

from ..core.addresses import Address, parse
from ..core.errors import ValidationError
from ..core.limit import as_int
from ..logs import WEB_HEADER_IGNORED, log_event
from .header_names import Mixing

Lines: TypeAlias = Callable[[str], list[str]]
"""Returns the values of a header, one per header line, in order; none if it is absent."""
FindMixing: TypeAlias = Callable[[str], Mixing]
"""Returns how far the values of a header may come from headers of other names."""

_MOST_HOPS = 64
"""Entries of a header that are read, from the right: more proxies than any deployment has."""
_MOST_COMMAS = 16
_CACHE_SIZE = 4096
_LONGEST_ELEMENT = 1024
_SAMPLE = 100
_MAPPED_BITS = 96
_UNIX = "unix"
_UNIX_PEERS = (None, "", "localhost")
"""The peers that servers report on a unix socket; with TCP it is always a number."""

_IGNORED = (
    "The header %s from the peer %r is ignored: the peer itself counts as the client. If it is a proxy of yours that "
    "writes this header, set proxies=Proxies(%s, header=%r)."
)
_MIXED = (
    "The header %s from the proxy %r is not believed: this WSGI server may have mixed %s, which clients can send, into "
    "it. The proxy counts as the client. If your proxies or the server drop headers that have underscores in their "
    "names, set Proxies(..., drops_underscores=True)."
)

_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_QUOTED = r'"(?:[^"\\\x00-\x08\x0a-\x1f\x7f]|\\[^\x00-\x08\x0a-\x1f\x7f])*"'
_PAIR = re.compile(rf"({_TOKEN})=(?:({_TOKEN})|({_QUOTED}))")
_MAYBE_PAIR = rf"[ \t]*(?:{_TOKEN}=(?:{_TOKEN}|{_QUOTED})[ \t]*)?"
_ELEMENT = re.compile(f"{_MAYBE_PAIR}(?:;{_MAYBE_PAIR})*")
"""A text matches in one way only, so that no text makes the match try many."""
_ESCAPED = re.compile(r"\\(.)")
_HIDDEN_PORT = re.compile(r":_[0-9A-Za-z._-]+\Z")


@dataclass(frozen=True, slots=True)
class Proxies:
    """The proxies in front of the app.

    ``trusted``: how many proxies every request passes (a number), or who they are: addresses, networks, and ``"unix"``
    for a peer on a unix socket. With a number, whoever connects counts as the first of them, so the app must not be
    reachable past them. A network is written without host bits: a slip there would trust strangers. ``header``: the one
    header in which they say who called them. ``drops_underscores``: a proxy of yours, or the server, drops headers that
    have underscores in their names, as nginx does by default; it matters for WSGI servers that cannot tell
    ``X_Forwarded_For`` from ``X-Forwarded-For``.

    >>> proxies = Proxies(["10.0.0.0/8"])
    >>> proxies.client("10.0.0.2", {"x-forwarded-for": ["6.6.6.6, 203.0.113.7", "10.0.0.1"]}.__getitem__)
    IPv4Address('203.0.113.7')
    """

    trusted: int | Sequence[str] = 0
    header: str = "x-forwarded-for"
    drops_underscores: bool = False
    _hops: int = field(init=False, repr=False, compare=False)
    _ours: _TrustedHops = field(init=False, repr=False, compare=False)
    _watch: _IgnoredHeaders = field(init=False, repr=False, compare=False)
    _mixed: _OneWarning = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        trusted = _check_trusted(self.trusted)
        hops, entries = (trusted, ()) if isinstance(trusted, int) else (0, trusted)
        header = self.header.lower() if isinstance(self.header, str) else ""
        if header not in _READERS:
            raise ValidationError("header", self.header, f"must be one of {', '.join(_READERS)}")
        if not isinstance(self.drops_underscores, bool):
            raise ValidationError("drops_underscores", self.drops_underscores, "must be True or False")
        derived = {"_hops": hops, "_ours": _TrustedHops(entries), "_watch": _IgnoredHeaders(), "_mixed": _OneWarning()}
        for name, value in {"trusted": trusted, "header": header, **derived}.items():
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, value: Proxies | int | Sequence[str] | None) -> Proxies:
        """Return `Proxies` for what a user may pass: how many, or which, or `Proxies`, or None for none."""
        return value if isinstance(value, Proxies) else cls(0 if value is None else value)

    def client(self, peer: str | None, lines: Lines) -> Address | None:
        """Return the client's address, None if it is unknown; the parameters are those of `origin`."""
        origin = self.origin(peer, lines)
        return parse(origin) if origin else None

    def origin(self, peer: str | None, lines: Lines, find_mixing: FindMixing | None = None) -> str | None:
        """Return where a request comes from: the peer, or the address of the client as our proxies have written it.

        ``peer``: who is connected. ``lines``: returns the lines of a header. ``find_mixing``: how far to believe them,
        on WSGI. An entry that is no address ends the search: the client is then the hop that reported it.
        """
        hops, ours = self._hops, self._ours
        entries = lines(self.header) if hops or (self.trusted and (ours[peer] or ours.is_unix(peer))) else None
        if not entries:
            if self._watch.due:
                self._watch.check(peer, lines)
            return peer
        if find_mixing is not None:
            mixing = find_mixing(self.header)
            if mixing is not Mixing.NONE and not (mixing is Mixing.JOINED and self._fits(entries)):
                self._mixed.log(_MIXED, self.header, peer, self.header.replace("-", "_"))
                return peer
        nearest = peer
        for entry in islice(_READERS[self.header](entries), hops or _MOST_HOPS):
            is_ours = ours[entry]
            if is_ours is None:
                break
            nearest = entry
            if not (hops or is_ours):
                break
        return nearest

    def _fits(self, lines: list[str]) -> bool:
        """Return whether a header has as many values as our proxies write: one each, and the first is the client's."""
        values = list(islice(_READERS[self.header](lines), _MOST_HOPS + 1))
        if self._hops:
            return len(values) == self._hops
        return len(values) <= _MOST_HOPS and all(map(self._ours.__getitem__, values[:-1]))


class _TrustedHops(dict[str | None, bool | None]):
    """Whether a hop is one of ours, None for what is no address; remembered by text, as they are slow to compare."""

    def __init__(self, entries: Sequence[str]) -> None:
        super().__init__()
        self._unix = _UNIX in entries
        self._networks = [_parse_network(entry) for entry in entries if entry != _UNIX]

    def is_unix(self, peer: str | None) -> bool:
        """Return whether a peer is on a unix socket, and trusted."""
        return self._unix and peer in _UNIX_PEERS

    def __missing__(self, hop: str | None) -> bool | None:
        address = parse(hop) if hop else None
        if address is None:
            return None
        if len(self) >= _CACHE_SIZE:
            self.clear()
        self[hop] = found = any(address in network for network in self._networks)
        return found


class _OneWarning:
    """A warning about a header that is not believed, logged once: a setting may have been forgotten."""

    def __init__(self) -> None:
        self.due = [True]  # a list, because only one thread can pop its one element

    def log(self, message: str, header: str, peer: str | None, *more: str) -> None:
        """Log it, unless that has been done."""
        try:
            self.due.pop()
        except IndexError:
            return
        log_event(WEB_HEADER_IGNORED, message, header, peer, *more, zae_header=header, zae_peer=peer)


class _IgnoredHeaders(_OneWarning):
    """Warns of a header that is there and ignored.

    A check reads four headers, so after the first hundred requests only every hundredth is checked.
    """

    _requests = 0

    def check(self, peer: str | None, lines: Lines) -> None:
        """Warn if this request is among those checked and has one of the headers."""
        self._requests += 1
        if self._requests > _SAMPLE and self._requests % _SAMPLE:
            return
        header = next((name for name in _READERS if lines(name)), None)
        if header is None:
            return
        address = parse(peer) if peer else None
        if address is not None and address in map(parse, islice(_READERS[header](lines(header)), _MOST_HOPS)):
            return  # a server that believes the header has put what it says in the place of the peer
        advice = f"[{_UNIX!r}]" if peer in _UNIX_PEERS else "1" if address is None else f"[{str(address)!r}]"
        self.log(_IGNORED, header, peer, advice, header)


def _check_trusted(trusted: object) -> int | tuple[str, ...]:
    hops = as_int(trusted)
    if hops is not None:
        if not 0 <= hops <= _MOST_HOPS:
            raise ValidationError("trusted", trusted, f"must be a number of proxies from 0 to {_MOST_HOPS}")
        return hops
    if isinstance(trusted, str):
        raise ValidationError("trusted", trusted, "must be a list of addresses; put brackets around it")
    if not isinstance(trusted, Iterable) or isinstance(trusted, bytes):
        raise ValidationError("trusted", trusted, "must be a number of proxies or a list such as ['10.0.0.0/8']")
    entries = tuple(trusted)
    for entry in entries:
        if not isinstance(entry, str):
            raise ValidationError("trusted", entry, "must be an address or a network as text, such as '10.0.0.0/8'")
    return tuple(entry if entry == _UNIX else str(_parse_network(entry)) for entry in entries)


def _parse_network(entry: str) -> IPv4Network | IPv6Network:
    """Return the network that an entry names; an IPv4 network mapped into IPv6 is the IPv4 network."""
    try:
        found = ip_interface(entry.strip())
    except ValueError:
        reason = "is neither an address nor a network; write '192.0.2.1', '10.0.0.0/8', '2001:db8::/32' or 'unix'"
        raise ValidationError("trusted", entry, reason) from None
    network = found.network
    if int(found.ip) != int(network.network_address):
        reason = f"has host bits set; write '{network}' for the whole network or '{found.ip}' for one address"
        raise ValidationError("trusted", entry, reason)
    mapped = network.network_address.ipv4_mapped if isinstance(network, IPv6Network) else None
    if mapped and network.prefixlen >= _MAPPED_BITS:
        network = IPv4Network((int(mapped), network.prefixlen - _MAPPED_BITS))
    if not network.prefixlen:
        reason = "trusts everybody; give the number of proxies instead, such as trusted=1"
        raise ValidationError("trusted", entry, reason)
    return network


def _read_list(lines: list[str]) -> Iterator[str]:
    """Yield the entries of a comma-separated header, from the right."""
    for line in reversed(lines):
        yield from reversed(line.rsplit(",", _MOST_HOPS))


def _read_single(lines: list[str]) -> list[str]:
    """Return the value of a header that has one line; two lines are ambiguous, and a list is no address."""
    return lines if len(lines) == 1 else []


def _read_forwarded(lines: list[str]) -> Iterator[str]:
    """Yield the ``for`` of each element of ``Forwarded`` (RFC 7239), from the right, up to a malformed one.

    An element is the shortest text behind a comma that is well formed. Read like this, a quote that a client opens and
    never closes cannot swallow what a proxy has appended; and what follows a comma inside a quoted string is no
    element, because it has an odd number of quotes.
    """
    for line in reversed(lines):
        end: int | None = len(line)
        while end is not None:
            start = _find_element_start(line, end)
            if start is None:
                return
            yield _read_node(line[start:end])
            end = start - 1 if start else None


def _find_element_start(line: str, end: int) -> int | None:
    """Return where the element that ends at ``end`` begins; None if nothing well formed ends there."""
    comma = end
    for _ in range(_MOST_COMMAS):
        comma = line.rfind(",", max(0, end - _LONGEST_ELEMENT), comma)
        start = comma + 1
        if end - start > _LONGEST_ELEMENT:
            return None
        if _ELEMENT.fullmatch(line, start, end):
            return start
        if comma < 0:
            return None
    return None


def _read_node(element: str) -> str:
    """Return the node that a well-formed element is for; empty if it names none, or two."""
    found = [pair for pair in _PAIR.finditer(element) if pair[1].lower() == "for"]
    if len(found) != 1:
        return ""
    token, quoted = found[0].group(2, 3)
    return _HIDDEN_PORT.sub("", token if quoted is None else _ESCAPED.sub(r"\1", quoted[1:-1]))


_READERS: dict[str, Callable[[list[str]], Iterable[str]]] = {
    "x-forwarded-for": _read_list,
    "forwarded": _read_forwarded,
    "x-real-ip": _read_single,
    "cf-connecting-ip": _read_single,
}
"""How each header is read: its addresses, the nearest first."""
