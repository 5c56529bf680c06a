"""Redis URLs: everything that one can say, and an answer before any I/O to everything that makes no sense."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner

from tests.cli.terminal import UNSET
from zae_limiter import InvalidNameError, RateLimiter, Repository, SyncRateLimiter, SyncRepository, ValidationError
from zae_limiter.cli.app import root
from zae_limiter.stores import opening
from zae_limiter.stores.redis.settings import SCHEMES, Address, Settings, parse

DOORS = [Repository, SyncRepository, RateLimiter, SyncRateLimiter]
SECRET = "s3cr3t"


@pytest.fixture(autouse=True)
def _nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a URL is read without asking anybody")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


# What can be said

SINGLE: dict[str, tuple[Address, int]] = {
    "redis://": (Address("localhost", 6379), 0),
    "redis://h": (Address("h", 6379), 0),
    "redis://h/": (Address("h", 6379), 0),
    "redis://h:1/2": (Address("h", 1), 2),
    "redis://h:65535/15/": (Address("h", 65535), 15),
    "redis://:7000": (Address("localhost", 7000), 0),
    "redis://h?db=3": (Address("h", 6379), 3),
    "REDIS://h": (Address("h", 6379), 0),
    "rediss://h.example.com:6380/1": (Address("h.example.com", 6380), 1),
    "valkey://10.0.0.1/1": (Address("10.0.0.1", 6379), 1),
    "valkeys://h": (Address("h", 6379), 0),
    "redis://[::1]:7000/1": (Address("::1", 7000), 1),
    "redis://[fe80::1]": (Address("fe80::1", 6379), 0),
    "unix:///run/redis.sock": (Address("/run/redis.sock", 0), 0),
    "unix:///run/a%20b.sock?db=4": (Address("/run/a b.sock", 0), 4),
    "unix://user:password@/run/redis.sock": (Address("/run/redis.sock", 0), 0),
}


@pytest.mark.parametrize(("url", "place"), SINGLE.items(), ids=SINGLE)
def test_a_single_server(url: str, place: tuple[Address, int]) -> None:
    found = parse(url)
    assert (found.kind, found.addresses, found.login["db"]) == ("single", (place[0],), place[1])
    assert ("ssl_cert_reqs" in found.login) is ("ss:" in url or "keys:" in url)


def test_a_cluster() -> None:
    found = parse("redis+cluster://a:1,b,[::1]:3?prefix=x")
    assert (found.kind, found.prefix) == ("cluster", "x")
    assert found.addresses == (Address("a", 1), Address("b", 6379), Address("::1", 3))
    assert parse("redis+cluster://a/0").login["db"] == 0
    assert "ssl_cert_reqs" not in found.login
    assert parse("rediss+cluster://a").login["ssl_cert_reqs"] == "required"


def test_sentinels() -> None:
    found = parse(f"redis+sentinel://me:{SECRET}@a,b:2/my%20master/5?sentinel_username=w&sentinel_password=x")
    assert (found.kind, found.service) == ("sentinel", "my master")
    assert found.addresses == (Address("a", 26379), Address("b", 2))
    assert found.login == {"username": "me", "password": SECRET, "db": 5, "client_name": None}
    assert found.sentinel_login == {"username": "w", "password": "x"}
    plain = parse("redis+sentinel://a/mymaster?db=2")
    assert (plain.login["db"], plain.sentinel_login) == (2, {"username": None, "password": None})
    both = parse("rediss+sentinel://a/mymaster?ssl_ca_certs=/ca.pem")
    assert both.login["ssl_ca_certs"] == both.sentinel_login["ssl_ca_certs"] == "/ca.pem"


LOGINS: dict[str, tuple[str | None, str | None]] = {
    "redis://h": (None, None),
    "redis://me@h": ("me", None),
    f"redis://:{SECRET}@h": (None, SECRET),
    f"redis://me:{SECRET}@h": ("me", SECRET),
    "redis://m%40e:a%3Ab%40c%2Fd%3Fe%23f@h": ("m@e", "a:b@c/d?e#f"),
    "redis://me:a:b@h": ("me", "a:b"),
    "redis://me:a@b@h": ("me", "a@b"),
    f"redis://h?username=me&password={SECRET}": ("me", SECRET),
    "redis://h?username=m%40e&password=a%2Bb%20c": ("m@e", "a+b c"),
    f"redis://me@h?password={SECRET}": ("me", SECRET),
}


@pytest.mark.parametrize(("url", "login"), LOGINS.items(), ids=LOGINS)
def test_who_we_are(url: str, login: tuple[str | None, str | None]) -> None:
    found = parse(url).login
    assert (found["username"] or None, found["password"] or None) == login


def test_the_other_options() -> None:
    found = parse("redis://h?prefix=app:1/x_y.z-&timeout=0.5&connect_timeout=1&max_connections=7&client_name=me")
    assert (found.prefix, found.timeout, found.connect_timeout, found.max_connections) == ("app:1/x_y.z-", 0.5, 1.0, 7)
    assert found.login["client_name"] == "me"
    usual = parse("redis://h")
    assert usual == Settings("single", (Address("h", 6379),), usual.login, usual.sentinel_login)


def test_tls_checks_unless_told_not_to() -> None:
    usual = parse("rediss://h").login
    assert (usual["ssl_cert_reqs"], usual["ssl_check_hostname"]) == ("required", True)
    lax = parse("rediss://h?ssl_cert_reqs=none").login
    assert (lax["ssl_cert_reqs"], lax["ssl_check_hostname"]) == ("none", False)
    files = parse("rediss://h?ssl_ca_certs=/ca&ssl_certfile=/cert&ssl_keyfile=/key").login
    assert {name: files[name] for name in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")} == {
        "ssl_ca_certs": "/ca",
        "ssl_certfile": "/cert",
        "ssl_keyfile": "/key",
    }


def test_every_scheme_opens_a_store() -> None:
    for scheme in SCHEMES:
        rest = "/run/redis.sock" if scheme == "unix" else "h/mymaster" if "sentinel" in scheme else "h"
        for make in DOORS:
            assert make(f"{scheme}://{rest}") is not None


# What cannot

WRONG: dict[str, str] = {
    "redis://h?timeot=1": "unknown option 'timeot'",
    "redis://h?timeout=soon": "must be a number, not 'soon'",
    "redis://h?timeout=0": "above 0",
    "redis://h?timeout=-1": "above 0",
    "redis://h?timeout=nan": "above 0",
    "redis://h?timeout=inf": "above 0",
    "redis://h?connect_timeout=": "must be a number",
    "redis://h?max_connections=1.5": "must be a number",
    "redis://h?max_connections=0": "above 0",
    "redis://h?prefix=": "empty",
    "redis://h?prefix=a{b}": "prefix",
    "redis://h?prefix=a%20b": "prefix",
    "redis://h?prefix=%C3%BC": "prefix",
    "redis://h?prefix=a%0A": "prefix",
    "redis://h?prefix=" + "x" * 65: "prefix",
    "redis://h?db=": "empty",
    "redis://h:0": "host and port",
    "redis://h:65536": "host and port",
    "redis://h:x": "host and port",
    "redis://h:": "host and port",
    "redis://h:1:2": "host and port",
    "redis://[::1": "is not a URL",
    "redis://::1": "host and port",
    "redis://a,b": "several hosts",
    "rediss://a:1,b:2": "several hosts",
    "valkey://a,b": "several hosts",
    "redis://h/x": "database 'x'",
    "redis://h/-1": "database '-1'",
    "redis://h/1.0": "database '1.0'",
    "redis://h/%C2%B2": "database",
    "redis://h/99999999999": "database",
    "redis://h/0/1": "more than one database",
    "redis://h/0?db=0": "more than one database",
    "redis://h/0#part": "%23",
    "redis+cluster://h/1": "only database 0",
    "redis+cluster://h?db=1": "only database 0",
    "redis+cluster://h:x": "host and port",
    "redis+cluster://a,,b": "host and port",
    "redis+cluster://a,": "host and port",
    "redis+sentinel://h": "name of the master",
    "redis+sentinel://h/": "name of the master",
    "redis+sentinel://h/mymaster/x": "database 'x'",
    "redis+sentinel://h/mymaster/0/1": "more than one database",
    "redis://h?sentinel_password=x": "sentinel options",
    "redis+cluster://h?sentinel_username=x": "sentinel options",
    "redis://h?ssl_ca_certs=/ca": "without TLS",
    "redis+cluster://h?ssl_cert_reqs=none": "without TLS",
    "unix:///run/redis.sock?ssl_cert_reqs=none": "without TLS",
    "rediss://h?ssl_cert_reqs=optional": "required or none",
    "unix://": "path of a socket",
    "unix:///": "path of a socket",
    "unix://run/redis.sock": "path of a socket",
    "unix:///run/redis.sock?db=x": "database 'x'",
    "redis+tls://h": "unknown scheme",
}


@pytest.mark.parametrize(("url", "words"), WRONG.items(), ids=WRONG)
def test_a_url_that_makes_no_sense_is_refused_with_the_reason(url: str, words: str) -> None:
    for make in DOORS:
        with pytest.raises(ValidationError) as caught:
            make(url)
        assert caught.value.field == "url"
        assert words in caught.value.reason


REVEALING = [
    f"redis://me:{SECRET}@h?timeot=1",
    f"redis://:{SECRET}@h/x",
    f"redis://me:{SECRET}@h:x",
    f"redis://me:a@{SECRET}@h/x",
    f"redis://m@e:{SECRET}@h/x",
    f"redis://me:a:{SECRET}@h/x",
    f"redis://me:a/{SECRET}@h",
    f"redis://me:{SECRET}/b@h",
    f"redis://me:1234/{SECRET}@h",
    f"redis://me:a#{SECRET}@h",
    f"redis://me:{SECRET}#b@h",
    f"redis://me:a?{SECRET}@h",
    f"redis://me:{SECRET}?b@h",
    f"redis://me:[{SECRET}@h",
    f"redis://h/x?password={SECRET}",
    f"redis://h/x?password=a%26{SECRET}",
    f"redis://h?PASSWORD={SECRET}",
    f"redis://h?pasword={SECRET}",
    f"redis://h?pass={SECRET}",
    f"redis://h?auth={SECRET}",
    f"redis+sentinel://me:{SECRET}@h",
    f"redis+sentinel://h?sentinel_password={SECRET}",
    f"redis+cluster://me:{SECRET}@a:1,b:x",
    f"redis+cluster://me:{SECRET}@h/1",
    f"unix://me:{SECRET}@run/redis.sock",
    f"unix://me:{SECRET}@/",
    f"nonsense://me:{SECRET}@h",
    f"redis+tls://me:{SECRET}@h",
    f"redis:/me:{SECRET}@h",
    f"redis:me:{SECRET}@h",
    f"//me:{SECRET}@h:1",
    f"me:{SECRET}@h:6379",
    f":{SECRET}@h",
    f"{SECRET}@h:6379",
    f" redis:/me:{SECRET}@h",
    f"redis://h:{SECRET}",
    f"h?password={SECRET}",
    f"h password={SECRET}",
    f"redis://me:a@{SECRET}/b@h",
    f"redis://me:a?timeout={SECRET}@h",
    f"redis://me:a?prefix={SECRET}!@h",
    f"redis://me:a?{SECRET}&b@h",
    f"redis://me:[{SECRET}]@h/x",
    f"redis://me:{SECRET}@h\N{ACCOUNT OF}",
    f"redis://me:{SECRET}\N{ACCOUNT OF}@h",
    f"sqlite://me:{SECRET}@h",
    f"dynamodb://me:{SECRET}@h",
    f"memory://x?password={SECRET}",
]


def check_no_secret(error: BaseException) -> None:
    """Neither the error nor its traceback shows the secret."""
    shown = "".join(traceback.TracebackException.from_exception(error).format_exception_only())
    assert SECRET not in shown
    assert SECRET not in repr(error)
    assert SECRET not in str(vars(error))
    assert error.__cause__ is None
    assert error.__suppress_context__ or error.__context__ is None


@pytest.mark.parametrize("url", REVEALING)
def test_no_error_shows_a_password(url: str) -> None:
    """Not even one that was written without the escapes it needs, or into an option that does not exist."""
    for make in DOORS:
        with pytest.raises(ValidationError) as caught:
            make(url)
        check_no_secret(caught.value)


@pytest.mark.parametrize("url", REVEALING)
def test_other_ways_to_name_a_store_do_not_show_a_password_either(url: str) -> None:
    opened: list[Callable[[], object]] = [
        lambda: SyncRepository.open(url=url),
        lambda: SyncRepository.open(stack=url),
        lambda: SyncRepository.open(stack="my-app", url=url),
        lambda: SyncRepository(url, name="my-app"),
        lambda: SyncRepository(name=url),
        lambda: SyncRepository.open(url),
        lambda: SyncRepository.connect(url),
        lambda: SyncRepository.open(None, url),
        lambda: SyncRepository("memory://", namespace=url),
        lambda: SyncRepository("memory://").register_namespace(url),
        lambda: SyncRepository("memory://").get_audit_events(f"$NAMESPACE:{url}"),
        lambda: SyncRepository("dynamodb://my-app", region=url),
        lambda: SyncRepository("dynamodb://my-app?endpoint_url=http://h", endpoint_url=url),
        lambda: SyncRepository(f"dynamodb://my-app?endpoint_url=http://me:{SECRET}@h", endpoint_url=url),
        lambda: SyncRepository(url.encode()),  # type: ignore[arg-type]  # that it is refused is the test
        lambda: SyncRepository("dynamodb://my-app", region="eu-west-1", endpoint_url=url),
        lambda: SyncRepository(f"redis://me:{SECRET}@h", region="eu-west-1"),
    ]
    for make in opened:
        with pytest.raises(ValidationError) as caught:
            make()
        check_no_secret(caught.value)


def test_a_store_url_in_place_of_a_name_is_answered_with_the_argument_to_use() -> None:
    url = f"redis://me:{SECRET}@h:6379/0"
    opened: list[Callable[[], object]] = [
        lambda: SyncRepository.open(url),
        lambda: asyncio.run(Repository.open(url)),
        lambda: SyncRepository.open(stack=url),
    ]
    for make in opened:
        with pytest.raises(InvalidNameError, match=r"'redis://h:6379': .* pass a store URL as url=") as caught:
            make()
        assert caught.value.value == "redis://h:6379"


@pytest.mark.parametrize("url", REVEALING)
@pytest.mark.parametrize("option", ["--url", "--name", "--namespace"])
def test_the_command_line_does_not_show_a_password(url: str, option: str) -> None:
    for words in (["status"], ["--json", "status"]):
        result = CliRunner(env=UNSET).invoke(root, [option, url, *words])
        assert result.exit_code == 2
        assert SECRET not in result.output + result.stderr


def test_the_demo_does_not_show_the_password_of_a_store_it_cannot_use() -> None:
    result = CliRunner(env=UNSET).invoke(root, ["--url", f"redis://me:{SECRET}@h", "demo"])
    assert result.exit_code == 2
    assert "not redis://h." in result.stderr
    assert SECRET not in result.stderr


def test_a_url_that_is_refused_is_shown_by_its_scheme_and_host() -> None:
    shown = {
        f"redis://me:{SECRET}@h:7/x?password={SECRET}": "redis://h:7",
        f"redis+cluster://me:{SECRET}@a:1,[::1]:2/1": "redis+cluster://a:1,[::1]:2",
        f"redis://me:{SECRET}/@h": "redis://...",
        f"redis:/me:{SECRET}@h": "...",
    }
    for url, words in shown.items():
        with pytest.raises(ValidationError) as caught:
            SyncRepository(url)
        assert caught.value.value == words


def test_a_password_and_an_option_that_say_different_things_are_refused() -> None:
    for url in ("redis://me:a@h?password=b", "redis://me@h?username=you"):
        with pytest.raises(ValidationError, match=r"twice|besides|once"):
            parse(url)


# What it takes


@pytest.mark.parametrize("make", DOORS)
@pytest.mark.parametrize("scheme", [scheme for scheme in SCHEMES if "sentinel" not in scheme and scheme != "unix"])
def test_a_missing_extra_says_what_to_install(make: Any, scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "find_spec", lambda name: None)
    with pytest.raises(ValidationError) as caught:
        make(f"{scheme}://me:{SECRET}@h")
    assert 'pip install "zae-limiter[redis]"' in caught.value.reason
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("option", ["name", "region", "endpoint_url"])
def test_options_of_dynamodb_do_not_fit(option: str) -> None:
    for make in DOORS:
        with pytest.raises(ValidationError):
            make(f"redis://me:{SECRET}@h", **{option: "x"})


def test_other_stores_do_not_load_redis() -> None:
    code = (
        "import json, sys; from zae_limiter import SyncRateLimiter; "
        "SyncRateLimiter('memory://').close(); print(json.dumps(sorted(sys.modules)))"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "redis" not in json.loads(output)
