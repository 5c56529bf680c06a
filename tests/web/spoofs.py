"""Requests and who has sent them: the spoof matrix."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import NamedTuple

from zae_limiter.web import Proxies

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
