"""Proxies as a value, and the warning of a header that is ignored."""

from __future__ import annotations

import copy
import logging
import pickle
from collections.abc import Callable
from ipaddress import IPv4Address
from typing import Any

import pytest

from tests.web.spoofs import (
    CF,
    CLIENT,
    FWD,
    HEADERS,
    LIE,
    PROXY,
    REAL,
    STRANGER,
    TABLE,
    TEN,
    XFF,
    address,
    header_lines,
    xff,
)
from zae_limiter import ValidationError
from zae_limiter.web import Proxies

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
    shown = "Proxies(trusted=('10.0.0.0/8',), header='x-forwarded-for', drops_underscores=False)"
    assert repr(warned) == repr(TEN) == shown
    assert Proxies(1) != Proxies(2)
    assert Proxies(1) != Proxies(1, drops_underscores=True)
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
        (["10.0.0.0/33"], "is neither an address nor a network"),
        (["10.0.0"], "is neither an address nor a network"),
        (["proxy.example.com"], "is neither an address nor a network"),
        (["*"], "is neither an address nor a network"),
        ([""], "is neither an address nor a network"),
        (["10.0.0.0/8", "Unix"], "is neither an address nor a network"),
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
