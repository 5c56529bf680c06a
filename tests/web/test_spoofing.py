"""Which hop is the client, whatever headers say: a table of cases, and what no sender can change."""

from __future__ import annotations

import copy
import logging
import pickle
from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address
from typing import Any, NamedTuple

import pytest
from hypothesis import given, strategies as st

from zae_limiter import ValidationError
from zae_limiter.core.addresses import parse
from zae_limiter.web.proxies import Proxies

XFF, FWD, REAL, CF = "x-forwarded-for", "forwarded", "x-real-ip", "cf-connecting-ip"
HEADERS = (XFF, FWD, REAL, CF)

PROXY, OTHER_PROXY = "10.0.0.1", "10.0.0.2"
STRANGER, CLIENT, LIE = "198.51.100.9", "203.0.113.7", "6.6.6.6"
SIX, SIX_PROXY = "2001:db8:5::1", "fd00::1"

NOBODY = Proxies()
TEN = Proxies(["10.0.0.0/8"])
MIXED = Proxies(["10.0.0.0/8", "192.0.2.1", "fd00::/8"])
UNIX = Proxies(["unix"])
UNIX_TEN = Proxies(["unix", "10.0.0.0/8"])
ONE, TWO, THREE = Proxies(1), Proxies(2), Proxies(3)
TEN_FWD, TWO_FWD = Proxies(["10.0.0.0/8"], FWD), Proxies(2, FWD)
TEN_REAL, ONE_REAL = Proxies(["10.0.0.0/8"], REAL), Proxies(1, REAL)
TEN_CF = Proxies(["10.0.0.0/8"], "CF-Connecting-IP")


class Row(NamedTuple):
    """One request and who sent it."""

    name: str
    proxies: Proxies
    peer: str | None
    headers: dict[str, list[str]]
    client: str | None


def xff(*lines: str) -> dict[str, list[str]]:
    return {XFF: list(lines)}


def fwd(*lines: str) -> dict[str, list[str]]:
    return {FWD: list(lines)}


TRUST = [
    Row("nobody-no-header", NOBODY, CLIENT, {}, CLIENT),
    Row("nobody-xff", NOBODY, STRANGER, xff(LIE), STRANGER),
    Row("nobody-forwarded", NOBODY, STRANGER, fwd(f"for={LIE}"), STRANGER),
    Row("nobody-real-ip", NOBODY, STRANGER, {REAL: [LIE]}, STRANGER),
    Row("nobody-cf", NOBODY, STRANGER, {CF: [LIE]}, STRANGER),
    Row("nobody-private-peer", NOBODY, PROXY, xff(LIE), PROXY),
    Row("nobody-loopback-peer", NOBODY, "127.0.0.1", xff(LIE), "127.0.0.1"),
    Row("nobody-unix-peer", NOBODY, None, xff(LIE), None),
    Row("nobody-peer-is-no-address", NOBODY, "testclient", xff(LIE), None),
    Row("nobody-peer-mapped", NOBODY, f"::ffff:{CLIENT}", {}, CLIENT),
    Row("nobody-peer-zone", NOBODY, "fe80::1%eth0", {}, "fe80::1"),
    Row("empty-list-is-nobody", Proxies([]), STRANGER, xff(LIE), STRANGER),
    Row("stranger-xff", TEN, STRANGER, xff(LIE), STRANGER),
    Row("stranger-names-a-proxy", TEN, STRANGER, xff(f"{LIE}, {PROXY}"), STRANGER),
    Row("stranger-forwarded", TEN_FWD, STRANGER, fwd(f"for={LIE}"), STRANGER),
    Row("stranger-real-ip", TEN_REAL, STRANGER, {REAL: [LIE]}, STRANGER),
    Row("stranger-cf", TEN_CF, STRANGER, {CF: [LIE]}, STRANGER),
    Row("stranger-just-outside", TEN, "11.0.0.0", xff(LIE), "11.0.0.0"),
    Row("other-header-is-not-believed", TEN, PROXY, {FWD: [f"for={LIE}"], REAL: [LIE], CF: [LIE]}, PROXY),
    Row("configured-header-only", TEN_CF, PROXY, {CF: [CLIENT], XFF: [LIE], FWD: [f"for={LIE}"]}, CLIENT),
    Row("peer-is-no-address", TEN, "testclient", xff(LIE), None),
]

LISTS = [
    Row("one", TEN, PROXY, xff(CLIENT), CLIENT),
    Row("last-of-ten", TEN, "10.255.255.255", xff(CLIENT), CLIENT),
    Row("no-header", TEN, PROXY, {}, PROXY),
    Row("spoofed-left", TEN, PROXY, xff(f"{LIE}, {CLIENT}"), CLIENT),
    Row("spoofed-left-twice", TEN, PROXY, xff(f"{LIE}, 7.7.7.7, {CLIENT}"), CLIENT),
    Row("spoofed-as-proxy", TEN, PROXY, xff(f"{LIE}, {PROXY}, {CLIENT}"), CLIENT),
    Row("skips-proxies", TEN, PROXY, xff(f"{LIE}, {CLIENT}, {OTHER_PROXY}, 10.9.9.9"), CLIENT),
    Row("no-spaces", TEN, PROXY, xff(f"{LIE},{CLIENT},{OTHER_PROXY}"), CLIENT),
    Row("several-lines", TEN, PROXY, xff(LIE, CLIENT), CLIENT),
    Row("several-lines-proxy-last", TEN, PROXY, xff(f"{LIE}, 7.7.7.7", CLIENT, OTHER_PROXY), CLIENT),
    Row("line-of-proxies-only", TEN, PROXY, xff(f"{LIE}, {CLIENT}", f"{OTHER_PROXY}, 10.0.0.3"), CLIENT),
    Row("all-trusted", TEN, PROXY, xff(f"10.0.0.5, {OTHER_PROXY}"), "10.0.0.5"),
    Row("all-trusted-lines", TEN, PROXY, xff("10.0.0.5", OTHER_PROXY), "10.0.0.5"),
    Row("port", TEN, PROXY, xff(f"{CLIENT}:51234"), CLIENT),
    Row("port-on-a-proxy", TEN, PROXY, xff(f"{CLIENT}, {OTHER_PROXY}:80"), CLIENT),
    Row("six", TEN, PROXY, xff(SIX), SIX),
    Row("six-long", TEN, PROXY, xff("2001:0DB8:0005:0:0:0:0:1"), SIX),
    Row("six-brackets", TEN, PROXY, xff(f"[{SIX}]"), SIX),
    Row("six-brackets-port", TEN, PROXY, xff(f"{LIE}, [{SIX}]:443"), SIX),
    Row("six-zone", TEN, PROXY, xff("fe80::7%eth0"), "fe80::7"),
    Row("mapped", TEN, PROXY, xff(f"::ffff:{CLIENT}"), CLIENT),
    Row("mapped-proxy-is-skipped", TEN, PROXY, xff(f"{CLIENT}, ::ffff:{OTHER_PROXY}"), CLIENT),
    Row("mapped-peer", TEN, f"::ffff:{PROXY}", xff(CLIENT), CLIENT),
    Row("mapped-stranger", TEN, f"::ffff:{STRANGER}", xff(LIE), STRANGER),
    Row("mapped-network", Proxies(["::ffff:10.0.0.0/104"]), PROXY, xff(CLIENT), CLIENT),
    Row("mixed-four-behind-six", MIXED, SIX_PROXY, xff(f"{LIE}, {CLIENT}, {PROXY}"), CLIENT),
    Row("mixed-six-behind-four", MIXED, "192.0.2.1", xff(f"{LIE}, {SIX}, [{SIX_PROXY}]:80"), SIX),
    Row("mixed-single-address", MIXED, "192.0.2.2", xff(LIE), "192.0.2.2"),
    Row("four-network-is-not-six", TEN, "::a00:1", xff(LIE), "::a00:1"),
    Row("unknown", TEN, PROXY, xff("unknown"), PROXY),
    Row("unknown-behind-a-proxy", TEN, PROXY, xff(f"{LIE}, unknown, {OTHER_PROXY}"), OTHER_PROXY),
    Row("hidden", TEN, PROXY, xff(f"{LIE}, _hidden, {OTHER_PROXY}"), OTHER_PROXY),
    Row("garbage", TEN, PROXY, xff(f"{LIE}, 1.2.3.4.5"), PROXY),
    Row("bad-port", TEN, PROXY, xff(f"{LIE}, {CLIENT}:99999"), PROXY),
    Row("unknown-left-of-the-client", TEN, PROXY, xff(f"unknown, {CLIENT}"), CLIENT),
    Row("empty-header", TEN, PROXY, xff(""), PROXY),
    Row("trailing-comma", TEN, PROXY, xff(f"{CLIENT},"), PROXY),
    Row("empty-in-the-middle", TEN, PROXY, xff(f"{LIE}, , {OTHER_PROXY}"), OTHER_PROXY),
    Row("empty-left-of-the-client", TEN, PROXY, xff(f"{LIE},,{CLIENT}"), CLIENT),
    Row("commas-only", TEN, PROXY, xff(",,,"), PROXY),
    Row("empty-last-line", TEN, PROXY, xff(CLIENT, ""), PROXY),
    Row("giant-entry", TEN, PROXY, xff("9" * 2**20 + "," + CLIENT), CLIENT),
    Row("thousands-of-lies", TEN, PROXY, xff(f"{LIE}," * 20_000 + CLIENT), CLIENT),
    Row("thousands-of-lines", TEN, PROXY, xff(*[LIE] * 20_000, CLIENT), CLIENT),
    Row("unix-peer", UNIX, None, xff(f"{LIE}, {CLIENT}"), CLIENT),
    Row("unix-peer-empty", UNIX, "", xff(f"{LIE}, {CLIENT}"), CLIENT),
    Row("unix-peer-named", UNIX, "localhost", xff(f"{LIE}, {CLIENT}"), CLIENT),
    Row("unix-peer-no-header", UNIX, None, {}, None),
    Row("unix-peer-unknown", UNIX, None, xff(f"{LIE}, unknown"), None),
    Row("unix-trusts-no-network", UNIX, PROXY, xff(LIE), PROXY),
    Row("unix-other-name", UNIX, "testclient", xff(LIE), None),
    Row("unix-then-network", UNIX_TEN, None, xff(f"{LIE}, {CLIENT}, {PROXY}"), CLIENT),
    Row("network-trusts-no-unix", TEN, None, xff(LIE), None),
]

HOPS = [
    Row("one", ONE, PROXY, xff(f"{LIE}, {CLIENT}"), CLIENT),
    Row("one-any-peer", ONE, STRANGER, xff(f"{LIE}, {CLIENT}"), CLIENT),
    Row("one-lines", ONE, PROXY, xff(LIE, CLIENT), CLIENT),
    Row("one-no-header", ONE, PROXY, {}, PROXY),
    Row("one-unknown", ONE, PROXY, xff(f"{LIE}, unknown"), PROXY),
    Row("one-unix-peer", ONE, None, xff(f"{LIE}, {CLIENT}"), CLIENT),
    Row("one-other-headers", ONE, PROXY, {FWD: [f"for={LIE}"], REAL: [LIE]}, PROXY),
    Row("two", TWO, PROXY, xff(f"{LIE}, {CLIENT}, {STRANGER}"), CLIENT),
    Row("two-lines", TWO, PROXY, xff(f"{LIE}, {CLIENT}", STRANGER), CLIENT),
    Row("two-fewer", TWO, PROXY, xff(CLIENT), CLIENT),
    Row("two-unknown-client", TWO, PROXY, xff(f"{LIE}, unknown, {STRANGER}"), STRANGER),
    Row("two-unknown-proxy", TWO, PROXY, xff(f"{LIE}, unknown"), PROXY),
    Row("two-empty-entry", TWO, PROXY, xff(f"{LIE}, ,{STRANGER}"), STRANGER),
    Row("two-port-brackets", TWO, PROXY, xff(f"{LIE}, [{SIX}]:1, {STRANGER}:2"), SIX),
    Row("three", THREE, PROXY, xff(f"{LIE}, {CLIENT}, {STRANGER}, 192.0.2.9"), CLIENT),
    Row("three-fewer", THREE, PROXY, xff(f"{CLIENT}, {STRANGER}"), CLIENT),
    Row("three-one-entry", THREE, PROXY, xff(CLIENT), CLIENT),
    Row("thousands-of-lies", THREE, PROXY, xff(f"{LIE}," * 20_000 + f"{CLIENT},{STRANGER},192.0.2.9"), CLIENT),
]

SINGLES = [
    Row("real-ip", TEN_REAL, PROXY, {REAL: [CLIENT]}, CLIENT),
    Row("real-ip-port", TEN_REAL, PROXY, {REAL: [f" {CLIENT}:80 "]}, CLIENT),
    Row("real-ip-twice", TEN_REAL, PROXY, {REAL: [LIE, CLIENT]}, PROXY),
    Row("real-ip-twice-the-same", TEN_REAL, PROXY, {REAL: [LIE, LIE]}, PROXY),
    Row("real-ip-comma", TEN_REAL, PROXY, {REAL: [f"{LIE}, {CLIENT}"]}, PROXY),
    Row("real-ip-unknown", TEN_REAL, PROXY, {REAL: ["unknown"]}, PROXY),
    Row("real-ip-empty", TEN_REAL, PROXY, {REAL: [""]}, PROXY),
    Row("real-ip-absent", TEN_REAL, PROXY, xff(LIE), PROXY),
    Row("real-ip-trusted-value", TEN_REAL, PROXY, {REAL: [OTHER_PROXY]}, OTHER_PROXY),
    Row("real-ip-one-hop", ONE_REAL, PROXY, {REAL: [CLIENT]}, CLIENT),
    Row("real-ip-one-hop-twice", ONE_REAL, PROXY, {REAL: [LIE, CLIENT]}, PROXY),
    Row("cf", TEN_CF, PROXY, {CF: [CLIENT]}, CLIENT),
    Row("cf-six", TEN_CF, PROXY, {CF: [SIX]}, SIX),
    Row("cf-twice", TEN_CF, PROXY, {CF: [LIE, CLIENT]}, PROXY),
]

FORWARDED = [
    Row("token", TEN_FWD, PROXY, fwd(f"for={CLIENT}"), CLIENT),
    Row("case", TEN_FWD, PROXY, fwd(f"FoR={CLIENT}"), CLIENT),
    Row("quoted", TEN_FWD, PROXY, fwd(f'for="{CLIENT}"'), CLIENT),
    Row("quoted-port", TEN_FWD, PROXY, fwd(f'for="{CLIENT}:4711"'), CLIENT),
    Row("quoted-hidden-port", TEN_FWD, PROXY, fwd(f'for="{CLIENT}:_port"'), CLIENT),
    Row("six-port", TEN_FWD, PROXY, fwd(f'for={LIE}, for="[{SIX}]:4711"'), SIX),
    Row("six-hidden-port", TEN_FWD, PROXY, fwd(f'for="[{SIX}]:_a.b-c"'), SIX),
    Row("escapes", TEN_FWD, PROXY, fwd(r'for="\2\03.0.11\3.7"'), CLIENT),
    Row("pairs", TEN_FWD, PROXY, fwd(f"by={PROXY};for={CLIENT};proto=https"), CLIENT),
    Row("pairs-spaced", TEN_FWD, PROXY, fwd(f"for={CLIENT} ; proto=https; by={PROXY}"), CLIENT),
    Row("empty-pairs", TEN_FWD, PROXY, fwd(f";;for={CLIENT};"), CLIENT),
    Row("spoofed-left", TEN_FWD, PROXY, fwd(f"for={LIE}, for={CLIENT}"), CLIENT),
    Row("spoofed-line", TEN_FWD, PROXY, fwd(f"for={LIE}", f"for={CLIENT}"), CLIENT),
    Row("skips-proxies", TEN_FWD, PROXY, fwd(f"for={LIE}, for={CLIENT},for={OTHER_PROXY}"), CLIENT),
    Row("all-trusted", TEN_FWD, PROXY, fwd(f"for=10.0.0.5, for={OTHER_PROXY}"), "10.0.0.5"),
    Row("comma-in-quotes", TEN_FWD, PROXY, fwd(f'for={CLIENT};host="a, for={LIE}"'), CLIENT),
    Row("pair-in-quotes", TEN_FWD, PROXY, fwd(f'host="a;for={LIE}";for={CLIENT}'), CLIENT),
    Row("element-in-quotes", TEN_FWD, PROXY, fwd(f'for={CLIENT};host="a, for={LIE};x=";proto="https"'), CLIENT),
    Row("escaped-quote-in-quotes", TEN_FWD, PROXY, fwd(rf'for={CLIENT};host="a\", for={LIE};x=\"b"'), CLIENT),
    Row("quote-never-closed-on-the-left", TEN_FWD, PROXY, fwd(f'for={LIE};by=", for={CLIENT}'), CLIENT),
    Row("quote-never-closed-then-quoted", TEN_FWD, PROXY, fwd(f'for={LIE};by=", for="[{SIX}]:1";by="x"'), SIX),
    Row("quote-never-closed-line", TEN_FWD, PROXY, fwd(f'for="{LIE}', f"for={CLIENT}"), CLIENT),
    Row("backslash-on-the-left", TEN_FWD, PROXY, fwd(f'for="{LIE}\\, for={CLIENT}'), CLIENT),
    Row("unknown", TEN_FWD, PROXY, fwd(f"for={LIE}, for=unknown"), PROXY),
    Row("hidden", TEN_FWD, PROXY, fwd(f"for={LIE}, for=_hidden, for={OTHER_PROXY}"), OTHER_PROXY),
    Row("hidden-quoted", TEN_FWD, PROXY, fwd(f'for={LIE}, for="_hidden"'), PROXY),
    Row("without-for", TEN_FWD, PROXY, fwd(f"for={LIE}, proto=https"), PROXY),
    Row("for-twice", TEN_FWD, PROXY, fwd(f"for={CLIENT};for={LIE}"), PROXY),
    Row("empty-element", TEN_FWD, PROXY, fwd(f"for={CLIENT},"), PROXY),
    Row("empty-value", TEN_FWD, PROXY, fwd("for="), PROXY),
    Row("empty-quotes", TEN_FWD, PROXY, fwd('for=""'), PROXY),
    Row("malformed-last-line", TEN_FWD, PROXY, fwd(f"for={LIE}", f"for={CLIENT}:80"), PROXY),
    Row("no-pair", TEN_FWD, PROXY, fwd(f"for={LIE}, {CLIENT}"), PROXY),
    Row("port-without-quotes", TEN_FWD, PROXY, fwd(f"for={LIE}, for={CLIENT}:80"), PROXY),
    Row("six-without-quotes", TEN_FWD, PROXY, fwd(f"for={LIE}, for=[{SIX}]"), PROXY),
    Row("quote-never-closed", TEN_FWD, PROXY, fwd(f'for={LIE}, for="{CLIENT}'), PROXY),
    Row("text-behind-quotes", TEN_FWD, PROXY, fwd(f'for={LIE}, for="{CLIENT}"x'), PROXY),
    Row("space-around-equals", TEN_FWD, PROXY, fwd(f"for={LIE}, for = {CLIENT}"), PROXY),
    Row("control-character", TEN_FWD, PROXY, fwd(f'for={LIE}, for="{CLIENT}\x01"'), PROXY),
    Row("element-too-long", TEN_FWD, PROXY, fwd(f'for={CLIENT};host="{"a" * 2000}"'), PROXY),
    Row("too-many-commas", TEN_FWD, PROXY, fwd(f'for={CLIENT};host="{"," * 100}"'), PROXY),
    Row("two-hops", TWO_FWD, PROXY, fwd(f"for={LIE}, for={CLIENT}", f'for="{STRANGER}"'), CLIENT),
    Row("two-hops-fewer", TWO_FWD, PROXY, fwd(f"for={CLIENT}"), CLIENT),
    Row("two-hops-hidden", TWO_FWD, PROXY, fwd(f"for={LIE}, for=_a, for={STRANGER}"), STRANGER),
    Row("thousands-of-lies", TEN_FWD, PROXY, fwd(f"for={LIE}," * 20_000 + f"for={CLIENT}"), CLIENT),
    Row("thousands-of-quotes", TEN_FWD, PROXY, fwd(',a="' * 50_000 + f",for={CLIENT}"), CLIENT),
    Row("thousands-of-spaces", TEN_FWD, PROXY, fwd(f"for={LIE}" + "; " * 20_000 + f"@, for={CLIENT}"), CLIENT),
    Row("spaces-broken", TEN_FWD, PROXY, fwd("for=" + LIE + (";" + " " * 30) * 30 + "@"), PROXY),
    Row("thousands-of-quotes-broken", TEN_FWD, PROXY, fwd(',a="b' * 50_000 + '"'), PROXY),
]

PARTS = {"trust": TRUST, "lists": LISTS, "hops": HOPS, "singles": SINGLES, "forwarded": FORWARDED}
TABLE = {f"{part}-{row.name}": row for part, rows in PARTS.items() for row in rows}


def header_lines(headers: dict[str, list[str]]) -> Callable[[str], list[str]]:
    return lambda name: list(headers.get(name, []))


def address(text: str | None) -> IPv4Address | IPv6Address | None:
    return None if text is None else ip_address(text)


def test_every_case_has_a_name_of_its_own() -> None:
    assert len(TABLE) == sum(map(len, PARTS.values()))


@pytest.mark.parametrize("row", TABLE.values(), ids=TABLE)
def test_the_client_is(row: Row) -> None:
    assert row.proxies.client(row.peer, header_lines(row.headers)) == address(row.client)


# What no sender can change


def is_stranger(text: str) -> bool:
    found = parse(text)
    return isinstance(found, IPv6Address) or (found is not None and found not in IPv4Network("10.0.0.0/8"))


ADDRESSES = st.ip_addresses().map(str)
STRANGERS = ADDRESSES.filter(is_stranger)
PROXY_ADDRESSES = st.ip_addresses(network="10.0.0.0/8").map(str)
CONTENTS = st.one_of(
    st.text(),
    st.text('for=",;\\ \t.:[]_61x', max_size=60),
    st.lists(ADDRESSES | PROXY_ADDRESSES | st.just("unknown")).map(", ".join),
    st.lists(ADDRESSES).map(lambda found: ", ".join(f'for="{each}"' for each in found)),
)
SENT = st.lists(CONTENTS, max_size=3)


@given(STRANGERS, st.dictionaries(st.sampled_from(HEADERS), SENT), st.sampled_from(HEADERS))
def test_an_untrusted_peer_is_the_client(peer: str, headers: dict[str, list[str]], header: str) -> None:
    for proxies in (Proxies(0, header), Proxies(["10.0.0.0/8", "unix"], header)):
        assert proxies.client(peer, header_lines(headers)) == parse(peer)


def node(header: str, text: str) -> str:
    """An entry as a proxy writes it."""
    if header == XFF:
        return text
    return f'for="[{text}]:443";proto="https"' if ":" in text else f"proto=https;for={text}"


def appended(header: str, sent: list[str], hops: list[str], in_line: list[bool]) -> list[str]:
    """The header after each proxy has appended the hop it was called from: to the last line, or as a new one."""
    lines = list(sent)
    for hop, same_line in zip(hops, in_line, strict=True):
        if lines and same_line:
            lines[-1] = f"{lines[-1]}, {node(header, hop)}"
        else:
            lines.append(node(header, hop))
    return lines


@given(
    st.sampled_from((XFF, FWD)),
    SENT,
    STRANGERS,
    st.lists(PROXY_ADDRESSES, max_size=3),
    st.lists(st.booleans(), min_size=4, max_size=4),
)
def test_nothing_on_the_left_changes_what_proxies_report(
    header: str, sent: list[str], client: str, proxies: list[str], in_line: list[bool]
) -> None:
    lines = header_lines({header: appended(header, sent, [client, *proxies], in_line[: len(proxies) + 1])})
    assert Proxies(["10.0.0.0/8"], header).client(PROXY, lines) == parse(client)
    assert Proxies(len(proxies) + 1, header).client(PROXY, lines) == parse(client)


TEXTS = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=7) | st.text('",;=\\ forx1', max_size=7)
PARAMETERS = st.dictionaries(st.sampled_from(("by", "host", "proto", "x")), TEXTS, max_size=1)


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


@given(st.lists(st.tuples(PROXY_ADDRESSES, PARAMETERS, PARAMETERS), min_size=1, max_size=5))
def test_a_well_formed_forwarded_is_read_element_by_element(
    elements: list[tuple[str, dict[str, str], dict[str, str]]],
) -> None:
    def pairs(parameters: dict[str, str]) -> list[str]:
        return [f"{name}={quoted(value)}" for name, value in parameters.items()]

    texts = [";".join([*pairs(left), f"for={each}", *pairs(right)]) for each, left, right in elements]
    for hops, (expected, _, _) in enumerate(reversed(elements), start=1):
        assert Proxies(hops, FWD).client(PROXY, header_lines(fwd(", ".join(texts)))) == parse(expected)


# Bounds

MANY = [f"10.{number // 250}.{number % 250}.1" for number in range(5_000)]


@pytest.mark.parametrize("header", [XFF, FWD])
def test_a_header_is_read_only_so_far(header: str) -> None:
    nodes = [node(header, each) for each in MANY]
    for lines in ([",".join(nodes)], nodes):
        found = Proxies(["10.0.0.0/8"], header).client(PROXY, header_lines({header: lines}))
        assert found == parse(MANY[-64])
        assert Proxies(64, header).client(PROXY, header_lines({header: lines})) == parse(MANY[-64])


# The warning


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    assert {record.levelno for record in caplog.records} <= {logging.WARNING}
    return [record.getMessage() for record in caplog.records if record.name == "zae_limiter"]


@pytest.mark.parametrize(
    ("row", "header", "peer", "remedy"),
    [
        ("trust-nobody-xff", XFF, STRANGER, f"proxies=Proxies(['{STRANGER}'], header='{XFF}')"),
        ("trust-nobody-forwarded", FWD, STRANGER, f"proxies=Proxies(['{STRANGER}'], header='{FWD}')"),
        ("trust-nobody-real-ip", REAL, STRANGER, f"proxies=Proxies(['{STRANGER}'], header='{REAL}')"),
        ("trust-nobody-cf", CF, STRANGER, f"proxies=Proxies(['{STRANGER}'], header='{CF}')"),
        ("trust-nobody-unix-peer", XFF, "None", f"proxies=Proxies(['unix'], header='{XFF}')"),
        ("trust-nobody-peer-is-no-address", XFF, "testclient", f"proxies=Proxies(1, header='{XFF}')"),
        ("trust-stranger-xff", XFF, STRANGER, f"proxies=Proxies(['{STRANGER}'], header='{XFF}')"),
        ("trust-stranger-cf", CF, STRANGER, f"proxies=Proxies(['{STRANGER}'], header='{CF}')"),
        ("hops-one-other-headers", FWD, PROXY, f"proxies=Proxies(['{PROXY}'], header='{FWD}')"),
        ("singles-real-ip-absent", XFF, PROXY, f"proxies=Proxies(['{PROXY}'], header='{XFF}')"),
    ],
)
def test_a_header_that_is_not_believed_is_told_once(
    row: str, header: str, peer: str, remedy: str, caplog: pytest.LogCaptureFixture
) -> None:
    case = TABLE[row]
    for made in range(1, 3):  # each object warns for itself
        proxies = Proxies(case.proxies.trusted, case.proxies.header)
        for _ in range(3):
            assert proxies.client(case.peer, header_lines(case.headers)) == address(case.client)
        told = warnings(caplog)
        assert len(told) == made
        assert header in told[-1]
        assert peer in told[-1]
        assert remedy in told[-1]
        assert LIE not in told[-1]


@pytest.mark.parametrize("row", ["lists-spoofed-left", "hops-two", "singles-cf", "forwarded-pairs", "lists-unknown"])
def test_what_is_believed_needs_no_warning(row: str, caplog: pytest.LogCaptureFixture) -> None:
    case = TABLE[row]
    proxies = Proxies(case.proxies.trusted, case.proxies.header)
    proxies.client(case.peer, header_lines(case.headers | {REAL: [LIE]} if case.proxies.header != CF else case.headers))
    proxies.client(case.peer, header_lines({}))
    assert warnings(caplog) == []


def test_a_peer_that_the_server_took_from_the_header_is_never_advised_to_be_trusted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A server that believes the header itself has put what it says in the place of the peer."""
    proxies = Proxies()
    proxies.client(LIE, header_lines({XFF: [LIE]}))
    assert warnings(caplog) == []
    proxies.client(STRANGER, header_lines({XFF: [LIE]}))
    assert len(warnings(caplog)) == 1


def test_two_requests_at_once_warn_once(caplog: pytest.LogCaptureFixture) -> None:
    proxies = Proxies()

    def lines(name: str) -> list[str]:
        if not warnings(caplog):  # another request comes in between the look and the warning
            proxies.client(STRANGER, header_lines(xff(LIE)))
        return [LIE]

    proxies.client(STRANGER, lines)
    assert len(warnings(caplog)) == 1


def test_headers_are_not_looked_at_again_after_the_warning() -> None:
    proxies = Proxies()
    proxies.client(STRANGER, header_lines(xff(LIE)))
    for _ in range(1_000):
        proxies.client(STRANGER, pytest.fail)


def test_without_such_headers_only_every_hundredth_request_is_looked_at(caplog: pytest.LogCaptureFixture) -> None:
    proxies = Proxies()
    asked: list[str] = []

    def lines(name: str) -> list[str]:
        asked.append(name)
        return []

    for _ in range(1_000):
        proxies.client(STRANGER, lines)
    assert len(asked) == (100 + 9) * len(HEADERS)
    for _ in range(100):
        proxies.client(STRANGER, header_lines(xff(LIE)))
    assert len(warnings(caplog)) == 1


# The value


def test_proxies_are_equal_by_what_they_trust() -> None:
    warned = Proxies(["10.0.0.0/8"], "X-Forwarded-For")
    warned.client(STRANGER, header_lines(xff(LIE)))
    assert warned == TEN
    assert hash(warned) == hash(TEN)
    assert repr(warned) == repr(TEN) == "Proxies(trusted=('10.0.0.0/8',), header='x-forwarded-for')"
    assert Proxies(1) != Proxies(2)
    assert Proxies(1) != Proxies(1, FWD)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_proxies_can_be_copied(copied: Callable[[Proxies], Proxies]) -> None:
    made = copied(TEN)
    assert made == TEN
    assert made.client(PROXY, header_lines(xff(CLIENT))) == address(CLIENT)


@pytest.mark.parametrize(
    ("trusted", "reason"),
    [
        (-1, "from 0 to 64"),
        (65, "from 0 to 64"),
        (True, "a number of proxies or a list"),
        (False, "a number of proxies or a list"),
        (1.0, "a number of proxies or a list"),
        (None, "a number of proxies or a list"),
        (b"10.0.0.0/8", "a number of proxies or a list"),
        ("10.0.0.0/8", "put brackets around it"),
        ("1", "put brackets around it"),
        (["10.0.0.1/8"], "write '10.0.0.0/8' for the whole network or '10.0.0.1' for one address"),
        (["2001:db8::1/32"], "write '2001:db8::/32' for the whole network or '2001:db8::1' for one address"),
        (["10.0.0.0/33"], "is no address and no network"),
        (["10.0.0"], "is no address and no network"),
        (["proxy.example.com"], "is no address and no network"),
        (["*"], "is no address and no network"),
        ([""], "is no address and no network"),
        (["10.0.0.0/8", "Unix"], "is no address and no network"),
        (["0.0.0.0/0"], "trusts everybody"),
        (["::/0"], "trusts everybody"),
        (["::ffff:0:0/96"], "trusts everybody"),
        ([167772161], "as text"),
        ([IPv4Address(PROXY)], "as text"),
    ],
    ids=repr,
)
def test_whom_nobody_can_mean_is_refused(trusted: Any, reason: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Proxies(trusted)
    assert caught.value.field == "trusted"
    assert reason in caught.value.reason


@pytest.mark.parametrize("header", ["", "x-forwarded-host", "x-client-ip", None, 5, b"forwarded"], ids=repr)
def test_a_header_that_nobody_knows_is_refused(header: Any) -> None:
    with pytest.raises(ValidationError, match="x-forwarded-for, forwarded, x-real-ip, cf-connecting-ip") as caught:
        Proxies(1, header)
    assert caught.value.field == "header"


def test_networks_may_be_written_in_any_way() -> None:
    given = [" 10.0.0.0/8 ", "192.0.2.1", "172.16.0.0/255.240.0.0", "FD00::/8", "unix"]
    assert Proxies(given).trusted == ("10.0.0.0/8", "192.0.2.1/32", "172.16.0.0/12", "fd00::/8", "unix")
    assert Proxies({"10.0.0.0/8"}) == TEN  # type: ignore[arg-type]  # any collection will do
