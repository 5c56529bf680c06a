"""Wrong TLS settings are errors of their own: no policy for outages lets anybody through for them."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.stores.redis.support import Driven, take
from tests.support import ports
from tests.support.paths import CERTIFICATE
from tests.support.redis.proxy import Proxy
from tests.support.redis.server import Server
from tests.support.waiting import until
from zae_limiter import ConfigurationError, RateLimiter, RateLimiterUnavailable
from zae_limiter.core.errors import InfrastructureError

SCHEMES = {"single": "rediss://{}/0", "sentinel": "rediss+sentinel://{}/mymaster", "cluster": "rediss+cluster://{}"}
TRUSTED = f"ssl_ca_certs={quote(str(CERTIFICATE))}"


@pytest.fixture(scope="module")
def secure(running: Server) -> Iterator[Proxy]:
    with Proxy(running, tls=True) as started:
        yield started


@pytest.fixture(scope="module")
def strict(running: Server) -> Iterator[Proxy]:
    with Proxy(running, tls=True, asks_certificate=True) as started:
        yield started


@pytest.fixture(scope="module")
def picky() -> Iterator[int]:
    """The port of a server that asks for a client's certificate and says so if there is none, as Redis does."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    context.load_verify_locations(CERTIFICATE)
    context.verify_mode = ssl.CERT_REQUIRED

    def serve(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with contextlib.suppress(OSError), connection:
                    context.wrap_socket(connection, server_side=True).close()

    with contextlib.closing(ports.listener()) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def refuses(mode: Driven, url: str, words: str, calls: int = 2) -> None:
    """Opening the store or each of its calls raises a ConfigurationError, whatever the policy for outages says."""
    with pytest.raises(ConfigurationError, match=words):
        limiter = mode.limiter(url, on_unavailable="allow")
        for _ in range(calls - 1):
            with pytest.raises(ConfigurationError, match=words):
                mode.run(take(limiter))
        mode.run(take(limiter))


@pytest.fixture(params=SCHEMES)
def scheme(request: pytest.FixtureRequest) -> str:
    return SCHEMES[request.param]


@pytest.mark.parametrize("option", ["ssl_ca_certs", "ssl_certfile"])
@pytest.mark.parametrize("content", [None, b"", b"not a certificate"], ids=["missing", "empty", "wrong"])
def test_a_file_that_cannot_be_used_is_named_on_opening(
    mode: Driven, scheme: str, tmp_path: Path, option: str, content: bytes | None
) -> None:
    path = tmp_path / "file.pem"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=f"{option} = '{path}'") as caught:
        mode.limiter(f"{scheme.format('127.0.0.1:1')}?{option}={path}", on_unavailable="allow")
    assert caught.value.option == option
    assert not isinstance(caught.value, RateLimiterUnavailable)


def test_a_key_that_is_missing_wrong_or_locked_is_named_on_opening(mode: Driven, tmp_path: Path) -> None:
    other, locked = tmp_path / "other.pem", tmp_path / "locked.pem"
    make = ["openssl", "genpkey", "-algorithm", "ed25519", "-out"]
    subprocess.run([*make, other], check=True, capture_output=True)
    subprocess.run([*make, locked, "-aes256", "-pass", "pass:x"], check=True, capture_output=True)
    for key in (tmp_path / "missing.pem", other, locked):
        with pytest.raises(ConfigurationError, match=str(key)):
            mode.limiter(f"rediss://127.0.0.1:1?ssl_certfile={quote(str(CERTIFICATE))}&ssl_keyfile={key}")


def test_a_file_that_vanishes_later_is_named_by_the_next_connection(
    mode: Driven, secure: Proxy, tmp_path: Path
) -> None:
    path = tmp_path / "ca.pem"
    path.write_bytes(CERTIFICATE.read_bytes())
    limiter = mode.limiter(f"{secure.url}?ssl_ca_certs={path}", on_unavailable="allow")
    path.unlink()
    with pytest.raises(ConfigurationError, match=f"ssl_ca_certs = '{path}'"):
        mode.run(take(limiter))


def test_a_certificate_that_is_not_trusted(mode: Driven, secure: Proxy, scheme: str, server: Server) -> None:
    refuses(mode, f"{scheme.format(f'127.0.0.1:{secure.port}')}", "certificate is not trusted")


def test_a_certificate_of_another_host(mode: Driven, secure: Proxy, scheme: str, server: Server) -> None:
    refuses(mode, f"{scheme.format(f'127.1:{secure.port}')}?{TRUSTED}", "certificate is not trusted")


def test_a_client_certificate_that_is_missing(mode: Driven, picky: int, scheme: str) -> None:
    refuses(mode, f"{scheme.format(f'127.0.0.1:{picky}')}?{TRUSTED}", "ssl_certfile")


def test_a_client_certificate_that_is_wanted_and_given(mode: Driven, strict: Proxy, server: Server) -> None:
    url = f"{strict.url}?{TRUSTED}&ssl_certfile={quote(str(CERTIFICATE))}"
    assert mode.take(mode.limiter(url)) == "granted"


def test_tls_to_a_plain_port(mode: Driven, server: Server, scheme: str) -> None:
    url = f"{scheme.format(f'127.0.0.1:{server.port}')}?timeout=5&connect_timeout=0.5"
    refuses(mode, url, f"127.0.0.1:{server.port}: it does not speak TLS")


def is_found_out(mode: Driven, limiter: RateLimiter) -> bool:
    try:
        return mode.run(take(limiter, timeout=0.1)) != "degraded"
    except ConfigurationError:
        return True


def test_calls_with_little_time_are_not_let_through_a_plain_port_for_ever(mode: Driven, server: Server) -> None:
    """One that has no time for the handshake may be taken for an outage, but later ones know."""
    limiter = mode.limiter(f"rediss://127.0.0.1:{server.port}/0?connect_timeout=0.3", on_unavailable="allow")
    until(lambda: is_found_out(mode, limiter), "the plain port is found out", pause=0.05)
    for _ in range(3):
        with pytest.raises(ConfigurationError):
            mode.run(take(limiter, timeout=0.1))


def test_no_tls_to_a_tls_port(mode: Driven, secure: Proxy, scheme: str, server: Server) -> None:
    url = scheme.replace("rediss", "redis").format(f"127.0.0.1:{secure.port}")
    refuses(mode, url, f"127.0.0.1:{secure.port}: it speaks TLS")


def test_a_password_does_not_hide_that_the_port_speaks_tls(mode: Driven, secure: Proxy, server: Server) -> None:
    refuses(mode, f"redis://me:secret@127.0.0.1:{secure.port}/3", "it speaks TLS")


def test_a_server_that_becomes_another_one_is_found_out(mode: Driven, server: Server) -> None:
    with Proxy(server) as plain:
        limiter, port = mode.limiter(plain.url, on_unavailable="allow"), plain.port
        assert mode.take(limiter) == "granted"
    with Proxy(server, tls=True, port=port):
        with contextlib.suppress(ConfigurationError):
            mode.take(limiter)
        with pytest.raises(ConfigurationError, match="it speaks TLS"):
            mode.take(limiter)


def test_outages_are_no_wrong_settings(mode: Driven, server: Server) -> None:
    """A port that is closed, that closes every connection, or that never answers."""
    with Proxy(server, tls=True) as proxy:
        limiter = mode.limiter(f"{proxy.url}?{TRUSTED}&timeout=0.5", on_unavailable="allow")
        proxy.refuse()
        assert mode.take(limiter) == "degraded"
        proxy.accept()
        proxy.hold()
        assert mode.take(limiter) == "degraded"
    assert mode.take(limiter) == "degraded"


def test_it_is_an_error_of_the_infrastructure_and_no_outage() -> None:
    assert issubclass(ConfigurationError, InfrastructureError)
    assert not issubclass(ConfigurationError, RateLimiterUnavailable)
