"""IP addresses as peers, proxies and headers write them: one address or none, never an error."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

import pytest
from hypothesis import given, strategies as st

from zae_limiter import ValidationError
from zae_limiter.core import addresses
from zae_limiter.core.addresses import network, parse, prefix_length

FOUR = "203.0.113.7"
SIX = "2001:db8::1"

GOOD = {
    FOUR: FOUR,
    f"  {FOUR}\t": FOUR,
    f"{FOUR}:443": FOUR,
    f"{FOUR}:0": FOUR,
    f"{FOUR}:65535": FOUR,
    "0.0.0.0": "0.0.0.0",
    SIX: SIX,
    "2001:DB8:0:0::1": SIX,
    "2001:0db8:0000:0000:0000:0000:0000:0001": SIX,
    f"[{SIX}]": SIX,
    f" [{SIX}]:443 ": SIX,
    "2001:db8::1:443": "2001:db8::1:443",
    "1:2:3:4:5:6:7:80": "1:2:3:4:5:6:7:80",
    "::": "::",
    "::1": "::1",
    "fe80::1%eth0": "fe80::1",
    "fe80::1%25eth0": "fe80::1",
    "fe80::1%br-1.100": "fe80::1",
    "[fe80::1%eth0]": "fe80::1",
    "[fe80::1%25eth0]:80": "fe80::1",
    f"::ffff:{FOUR}": FOUR,
    f"::FFFF:{FOUR}": FOUR,
    "::ffff:cb00:7107": FOUR,
    "0:0:0:0:0:ffff:cb00:7107": FOUR,
    f"[::ffff:{FOUR}]": FOUR,
    f"[::ffff:{FOUR}]:8080": FOUR,
    f"::ffff:{FOUR}%eth0": FOUR,
    f"::{FOUR}": "::cb00:7107",
}

BAD = [
    "",
    " ",
    "unknown",
    "_hidden",
    "localhost",
    "example.com",
    "203.0.113",
    "203.0.113.256",
    "203.0.113.07",
    "0x7f.0.0.1",
    "0x7f000001",
    "2130706433",
    "127.1",
    "٢٠٣.0.113.7",
    "203.0.113.7,",
    "203.0.113.7 198.51.100.1",
    "203.0.113.7/32",
    "203.0.113.7%eth0",
    f"{FOUR}:",
    f"{FOUR}:65536",
    f"{FOUR}:99999",
    f"{FOUR}:123456",
    f"{FOUR}:abc",
    f"{FOUR}:-1",
    f"{FOUR}:٨٠",
    f"{FOUR}:80:80",
    f"[{FOUR}]",
    f"[{SIX}",
    f"{SIX}]",
    f"{SIX}]:443",
    f"[[{SIX}]]",
    f"[{SIX}]443",
    f"[{SIX}]:",
    f"[{SIX}]:65536",
    f"[{SIX}]:http",
    f"[{SIX}]:4 4",
    f"[ {SIX}]",
    f"{SIX}/64",
    "[]",
    "[]:80",
    ":",
    ":::",
    "1:2:3:4:5:6:7:8:9",
    "2001:db8::g",
    "fe80::1%",
    "[fe80::1%]",
    "fe80::1%eth0]:80",
    "fe80::1%eth0:80",
    "fe80::1%a%b",
    f"{FOUR}\x00",
    f'"{FOUR}"',
    "\ud800",
    "1" * 101,
    " " * 100 + FOUR,
    "a" * 2**20,
]

ANY = st.ip_addresses() | st.ip_addresses(network="::ffff:0:0/96")


def plain(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    return address.ipv4_mapped or address if isinstance(address, IPv6Address) else address


MADE_FROM_IPV4 = [
    IPv6Network(text)
    for text in ("::ffff:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "::ffff:0:0:0/96", "2002::/16", "2001::/32")
]


def embedded(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address in a mapped, translated or tunnelled one, by the layouts of the RFCs."""
    number = int(address)
    for prefix, value in (
        ("::ffff:0:0/96", number),
        ("64:ff9b::/96", number),
        ("::ffff:0:0:0/96", number),
        ("2002::/16", number >> 80),
        ("2001::/32", ~number),
    ):
        if address in IPv6Network(prefix):
            return IPv4Address(value & 0xFFFFFFFF)
    return None


@pytest.mark.parametrize(("raw", "expected"), GOOD.items(), ids=ascii)
def test_an_address_is_found_in_every_spelling(raw: str, expected: str) -> None:
    assert parse(raw) == ip_address(expected)


@pytest.mark.parametrize("raw", BAD, ids=lambda raw: f"{raw[:40]!a}-{len(raw)}")
def test_what_is_no_address_is_none(raw: str) -> None:
    assert parse(raw) is None


def test_giant_texts_are_not_kept() -> None:
    before = addresses._parse.cache_info()
    parse("7" * 2**20)
    assert addresses._parse.cache_info() == before
    assert addresses._parse.cache_info().maxsize is not None
    assert addresses.network.cache_info().maxsize is not None


@given(st.text() | st.text("0123456789abcdefx:.[]% _", max_size=110))
def test_no_text_raises(raw: str) -> None:
    assert isinstance(parse(raw), IPv4Address | IPv6Address | None)


@given(ANY, st.integers(0, 65535))
def test_what_is_written_is_read(address: IPv4Address | IPv6Address, port: int) -> None:
    expected = plain(address)
    host = f"[{address}]" if address.version == 6 else str(address)
    assert parse(str(address)) == parse(address.exploded) == parse(f"{host}:{port}") == expected
    if address.version == 6:
        assert parse(f"{address}%eth0") == parse(f"[{address}%25eth0]:{port}") == expected


@pytest.mark.parametrize(
    ("raw", "prefix", "expected"),
    [
        (FOUR, 64, FOUR),
        (FOUR, 1, FOUR),
        ("2001:db8:0:1:2:3:4:5", 64, "2001:db8:0:1::/64"),
        ("2001:db8:0:1ff:2:3:4:5", 56, "2001:db8:0:100::/56"),
        ("2001:db8:0:1:2:3:4:5", 128, "2001:db8:0:1:2:3:4:5"),
        ("2001:db8:0:1:2:3:4:5", 127, "2001:db8:0:1:2:3:4:4/127"),
        ("ffff::", 1, "8000::/1"),
        (f"::ffff:{FOUR}", 64, FOUR),
        ("fe80::1%eth0", 64, "fe80::/64"),
        ("fe80::1%eth0", 128, "fe80::1"),
    ],
)
def test_a_client_is_an_address_or_a_network(raw: str, prefix: int, expected: str) -> None:
    assert network(ip_address(raw), prefix) == expected


@given(st.ip_addresses(v=6), st.ip_addresses(v=6), st.integers(1, 127))
def test_who_shares_a_network_is_one_client(one: IPv6Address, other: IPv6Address, prefix: int) -> None:
    neighbour = IPv6Address((int(one) >> 128 - prefix << 128 - prefix) | (int(other) & (1 << 128 - prefix) - 1))
    if not any(address in made for address in (one, neighbour) for made in MADE_FROM_IPV4):
        assert network(one, prefix) == network(neighbour, prefix)
    if IPv6Network((int(one), prefix), strict=False) != IPv6Network((int(other), prefix), strict=False):
        stand_ins = {str(found) for found in (embedded(one), embedded(other)) if found}
        assert network(one, prefix) != network(other, prefix) or network(one, prefix) in stand_ins


@pytest.mark.parametrize("prefix", [1, 48, 64, 128])
@pytest.mark.parametrize(
    ("raw", "expected"),
    {
        f"64:ff9b::{FOUR}": FOUR,  # NAT64: all of IPv4 in one /64
        "64:ff9b::cb00:7107%eth0": FOUR,
        f"::ffff:0:{FOUR}": FOUR,  # SIIT, likewise
        "2002:cb00:7107::1": FOUR,  # 6to4: 65,536 networks of one IPv4 address
        "2002:cb00:7107:ffff:1:2:3:4": FOUR,
        "2001:0:c000:201:8000:63bf:34ff:8ef8": FOUR,  # Teredo: the /64 is the server's, which the client chooses
        "2001:0:c633:6401:0:1234:34ff:8ef8": FOUR,
        f"64:ff9b:1::{FOUR}": "64:ff9b:1::cb00:7107",  # NAT64 for local use, embedded as in a /96, a /64 and a /48
        "64:ff9b:1:0:cb:71:700:0": "64:ff9b:1:0:cb:71:700:0",
        "64:ff9b:1:cb00:71:700::": "64:ff9b:1:cb00:71:700::",
    }.items(),
)
def test_an_address_that_stands_for_ipv4_is_one_client(raw: str, expected: str, prefix: int) -> None:
    assert network(ip_address(raw), prefix) == expected


@pytest.mark.parametrize(
    ("raw", "expected"),
    {
        "::1": "::/64",  # loopback, and the rest of ::/96, from where nobody can connect
        f"::{FOUR}": "::/64",
        "64:ff9a:ffff::1": "64:ff9a:ffff::/64",
        "64:ff9b:0:1::1": "64:ff9b:0:1::/64",
        "64:ff9b:2::1": "64:ff9b:2::/64",
        "2001:1::1": "2001:1::/64",
        "2003::1": "2003::/64",
    }.items(),
)
def test_an_address_that_only_looks_like_it_is_a_network(raw: str, expected: str) -> None:
    assert network(ip_address(raw)) == expected


@given(st.sampled_from(MADE_FROM_IPV4), st.ip_addresses(v=6))
def test_whatever_stands_for_an_ipv4_address_shares_its_bucket(made: IPv6Network, noise: IPv6Address) -> None:
    """Also where the rest of the address is the client's to choose."""
    bits = int(made.network_address) | int(noise) & int(made.hostmask)
    found = embedded(IPv6Address(bits))
    assert network(IPv6Address(bits)) == (str(IPv6Address(bits)) if found is None else network(found))


@pytest.mark.parametrize("raw", ["64:ff9b::7f00:1", "2002:7f00:1::", "::ffff:0:127.0.0.1", "2001::80ff:fffe"])
def test_only_a_mapped_address_is_read_as_ipv4(raw: str) -> None:
    """Else a peer of such an address would be believed like the proxy 127.0.0.1."""
    assert parse(raw) == IPv6Address(raw)


def test_the_default_network_is_a_64() -> None:
    assert network(IPv6Address("2001:db8::1")) == "2001:db8::/64"


@pytest.mark.parametrize("value", [0, -1, 129, True, 64.5, "64", None], ids=repr)
def test_a_prefix_has_1_to_128_bits(value: object) -> None:
    with pytest.raises(ValidationError, match="1 to 128") as caught:
        prefix_length(value)
    assert caught.value.field == "ipv6_prefix"


@pytest.mark.parametrize("value", [0, 129])
def test_no_client_is_cut_by_an_impossible_prefix(value: int) -> None:
    with pytest.raises(ValidationError, match="1 to 128"):
        network(IPv4Address(FOUR), value)


def test_prefixes_at_the_borders_are_fine() -> None:
    assert (prefix_length(1), prefix_length(128)) == (1, 128)
