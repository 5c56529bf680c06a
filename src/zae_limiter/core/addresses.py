"""IP addresses as peers, proxies and headers write them.

A text is one address or none: a port, brackets and a zone are cut off, an IPv4 address mapped into IPv6 is
the IPv4 address. Nothing is guessed, so that nobody has two addresses by spelling one in two ways.

Who counts as one client is another question: an IPv6 address that a translator or a tunnel has made from an IPv4
address counts as that IPv4 address. This is not done where addresses are compared with trusted proxies: there
``64:ff9b::7f00:1`` would be believed like ``127.0.0.1``.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network
from typing import TypeAlias

from .limit import as_int
from .validation import ValidationError

Address: TypeAlias = IPv4Address | IPv6Address

LONGEST = 100
"""No address is longer, with brackets, zone and port; longer texts are not even looked at."""
_HOST_PORT = re.compile(r"(?:\[(?P<six>[^][]*)]|(?P<four>[0-9.]+))(?::(?P<port>[0-9]{1,5}))?")
_IPV6_ZONE = re.compile(r"([^%]*)(?:%[0-9A-Za-z._~-]+)?")
_TRANSLATED = (IPv6Network("64:ff9b::/96"), IPv6Network("::ffff:0:0:0/96"))
"""The well-known prefixes of NAT64 and SIIT: the last 32 bits are the IPv4 address of the client."""
_TRANSLATED_LOCALLY = IPv6Network("64:ff9b:1::/48")
"""NAT64 for local use: where in it the IPv4 address is, only the operator knows, but each address is one client."""


def parse(raw: str) -> Address | None:
    """Return the address that a text names, or None. Never raises.

    >>> parse("[2001:db8::1]:443"), parse("::ffff:203.0.113.7"), parse("unknown")
    (IPv6Address('2001:db8::1'), IPv4Address('203.0.113.7'), None)
    """
    return _parse(raw) if len(raw) <= LONGEST else None


@lru_cache(maxsize=4096)
def network(address: Address, ipv6_prefix: int = 64) -> str:
    """Return the text that identifies a client: an IPv4 address, or the network of an IPv6 address.

    An IPv6 address that stands for an IPv4 address (NAT64, SIIT, 6to4, Teredo) counts as that IPv4 address.

    >>> network(IPv4Address("203.0.113.7")), network(IPv6Address("2001:db8:0:1::5"))
    ('203.0.113.7', '2001:db8:0:1::/64')
    >>> network(IPv6Address("64:ff9b::203.0.113.7"))
    '203.0.113.7'
    """
    bits = prefix_length(ipv6_prefix)
    plain = _normalize(address)
    client = plain if isinstance(plain, IPv4Address) else _extract_ipv4(plain) or plain
    if isinstance(client, IPv4Address) or bits == client.max_prefixlen or client in _TRANSLATED_LOCALLY:
        return str(client)
    return str(IPv6Network((int(client), bits), strict=False))


def prefix_length(value: object) -> int:
    """Return how many bits of an IPv6 address identify a client. Raise `ValidationError` unless 1 to 128."""
    bits = as_int(value)
    if bits is None or not 1 <= bits <= 128:
        reason = "must be a whole number of bits from 1 to 128; providers hand out /64 or more"
        raise ValidationError("ipv6_prefix", value, reason)
    return bits


@lru_cache(maxsize=4096)
def _parse(raw: str) -> Address | None:
    text = raw.strip()
    found = _HOST_PORT.fullmatch(text)
    four, six, port = found.group("four", "six", "port") if found else (None, text, None)
    zoned = None if four else _IPV6_ZONE.fullmatch(six)
    if (port and int(port) > 65_535) or not (four or zoned):
        return None
    try:
        return _normalize(IPv6Address(zoned[1])) if zoned else IPv4Address(four)
    except ValueError:
        return None


def _extract_ipv4(address: IPv6Address) -> IPv4Address | None:
    """Return the IPv4 address of the client that a translator or a tunnel has embedded in ``address``, or None.

    In NAT64 and SIIT a whole /64 is all of IPv4. With 6to4 one IPv4 address has 65,536 networks of /64. In Teredo a /64
    names the server, which the client chooses. ``::203.0.113.7`` stays as it is: nobody can connect from there, and
    ``::1`` would be taken for an IPv4 address.
    """
    if any(address in prefix for prefix in _TRANSLATED):
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    teredo = address.teredo
    return address.sixtofour if teredo is None else teredo[1]


def _normalize(address: Address) -> Address:
    """Return the address without a zone, and as IPv4 if it maps one."""
    if isinstance(address, IPv4Address):
        return address
    return address.ipv4_mapped or IPv6Address(int(address))
