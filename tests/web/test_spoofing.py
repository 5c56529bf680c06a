"""Which hop is the client, whatever headers say: a table of cases, and what no sender can change."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Address

import pytest
from hypothesis import given, strategies as st

from tests.web.spoofs import FWD, HEADERS, PARTS, PROXY, TABLE, XFF, Row, address, fwd, header_lines
from zae_limiter.core.addresses import parse
from zae_limiter.web import Proxies


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
