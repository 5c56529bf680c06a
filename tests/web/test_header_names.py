"""A header whose name has underscores is none of a proxy's, whatever a WSGI server makes of it."""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tests.web.drive import Call
from tests.web.spoofs import CLIENT, LIE, OTHER_PROXY, PROXY
from zae_limiter import ValidationError
from zae_limiter.web import Proxies, by_header
from zae_limiter.web.request import WsgiRequest

TEN = ["10.0.0.0/8"]
XFF = "HTTP_X_FORWARDED_FOR"
CHEROOT = {"SERVER_SOFTWARE": "Cheroot/11.1.2", "ACTUAL_SERVER_PROTOCOL": "HTTP/1.1"}
DROPPING = ["gunicorn/22.0.0", "gunicorn/27.0.1", "waitress", "Werkzeug/3.1.9", "gevent/25.1 Python/3.11"]
NOT_DROPPING = ["", "WSGIServer/0.2 CPython/3.11.7", "gunicorn/21.2.0", "gunicorn-like/30", "Werkzeug/2.0.1"]


def request_of(proxies: Proxies, **environ: Any) -> WsgiRequest:
    return WsgiRequest({**Call(peer=PROXY).environ(), **environ}, proxies)


def client(proxies: Proxies, value: str, **environ: Any) -> str:
    return str(request_of(proxies, **{XFF: value}, **environ).client)


@pytest.mark.parametrize("trusted", [1, TEN], ids=["number", "networks"])
@pytest.mark.parametrize("value", [f"{CLIENT},{LIE}", f"{LIE},{CLIENT}", f"{LIE},", ","])
def test_more_values_than_proxies_are_not_believed(trusted: Any, value: str) -> None:
    assert client(Proxies(trusted), value) == PROXY


@pytest.mark.parametrize(
    ("trusted", "value"),
    [(1, CLIENT), (TEN, CLIENT), (2, f"{CLIENT}, 192.0.2.9"), (TEN, f"{CLIENT}, {OTHER_PROXY}, 10.9.9.9")],
)
def test_as_many_values_as_proxies_are_believed(trusted: Any, value: str) -> None:
    assert client(Proxies(trusted), value) == CLIENT


def test_fewer_values_than_proxies_are_not_believed() -> None:
    """The client's own value could be the missing one."""
    assert client(Proxies(3), f"{LIE},{CLIENT}") == PROXY


def test_more_values_than_anybody_has_proxies_are_not_believed() -> None:
    assert client(Proxies(TEN), ",".join([LIE, *["10.0.0.9"] * 100])) == PROXY


@pytest.mark.parametrize("software", DROPPING)
def test_a_server_that_drops_such_names_is_believed(software: str) -> None:
    assert client(Proxies(1), f"{LIE}, {CLIENT}", SERVER_SOFTWARE=software) == CLIENT


@pytest.mark.parametrize("software", NOT_DROPPING)
def test_any_other_server_is_not(software: str) -> None:
    assert client(Proxies(1), f"{LIE}, {CLIENT}", SERVER_SOFTWARE=software) == PROXY


def test_a_server_that_keeps_the_last_value_is_never_believed() -> None:
    assert client(Proxies(1), CLIENT, **CHEROOT) == PROXY


@pytest.mark.parametrize("module", ["tornado.wsgi", "twisted.web.wsgi"])
def test_servers_that_show_only_by_their_modules_that_they_keep_the_last_value_are_never_believed(
    monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    assert client(Proxies(1), CLIENT) == CLIENT
    monkeypatch.setitem(sys.modules, module, SimpleNamespace())
    assert client(Proxies(1), LIE) == PROXY
    assert client(Proxies(1, drops_underscores=True), CLIENT) == CLIENT


@pytest.mark.parametrize("environ", [{}, CHEROOT], ids=["joined", "replaced"])
def test_a_proxy_that_drops_such_names_makes_any_server_fit(environ: dict[str, str]) -> None:
    assert client(Proxies(1, drops_underscores=True), f"{LIE}, {CLIENT}", **environ) == CLIENT


def test_a_name_without_hyphens_cannot_be_misspelt() -> None:
    found = request_of(Proxies(1, "forwarded"), HTTP_FORWARDED=f"for={LIE}, for={CLIENT}", **CHEROOT)
    assert str(found.client) == CLIENT


NAMED = [("x-forwarded-for", f"{LIE}, {CLIENT}"), ("X_Forwarded_For", LIE)]
SHOWN: dict[str, dict[str, Any]] = {
    "a2wsgi": {"asgi.scope": {"headers": [(name.encode(), value.encode()) for name, value in NAMED]}},
    "aiohttp-wsgi": {"aiohttp.request": SimpleNamespace(headers=dict(NAMED))},
    "eventlet": {"headers_raw": NAMED},
}


@pytest.mark.parametrize("server", SHOWN)
@pytest.mark.parametrize("mixed", [f"{LIE}, {CLIENT},{LIE}", LIE], ids=["joined", "last"])
def test_where_the_server_shows_names_they_decide(server: str, mixed: str) -> None:
    assert client(Proxies(1), mixed, **SHOWN[server]) == CLIENT


@pytest.mark.parametrize("server", SHOWN)
def test_a_value_that_something_in_between_has_set_stays(server: str) -> None:
    assert request_of(Proxies(), HTTP_X_FORWARDED_FOR="192.0.2.77", **SHOWN[server]).lines("x-forwarded-for") == [
        "192.0.2.77"
    ]


@pytest.mark.parametrize(
    ("environ", "value", "entity"),
    [
        ({}, "acme", "header:x-tenant:acme"),
        ({}, "acme,acme", "header:x-tenant:acme"),
        ({}, "acme,other", f"ip:{PROXY}"),
        ({"SERVER_SOFTWARE": "gunicorn/27.0.1"}, "acme,other", "header:x-tenant:acme,other"),
        (CHEROOT, "acme", f"ip:{PROXY}"),
    ],
)
def test_a_header_of_the_gateway_s_counts_if_nobody_else_can_have_sent_it(
    environ: dict[str, str], value: str, entity: str
) -> None:
    request = request_of(Proxies(), HTTP_X_TENANT=value, **environ)
    assert by_header("x-tenant")(request).entity_id == entity


def test_it_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    proxies = Proxies(1)
    with caplog.at_level(logging.WARNING, logger="zae_limiter"):
        for _ in range(3):
            client(proxies, f"{CLIENT},{LIE}")
    (record,) = caplog.records
    assert "x_forwarded_for" in record.getMessage()
    assert "drops_underscores=True" in record.getMessage()


def test_the_option_is_checked() -> None:
    wrong: Any = "yes"
    with pytest.raises(ValidationError, match="drops_underscores"):
        Proxies(1, drops_underscores=wrong)
