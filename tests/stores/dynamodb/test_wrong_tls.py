"""Wrong TLS settings of an endpoint are errors of their own: no policy for outages lets anybody through for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.modes import MODES, Mode
from tests.support.paths import CERTIFICATE
from tests.support.scripted_server import ScriptedServer, isolate
from zae_limiter import ConfigurationError, Limit, RateLimiter
from zae_limiter.sync import BlockingRateLimiter


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(monkeypatch)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


async def take_twice(limiter: RateLimiter, words: str, option: str) -> None:
    limits = [Limit.per_minute("rpm", 10)]
    async with limiter:
        for _ in range(2):
            with pytest.raises(ConfigurationError, match=words) as caught:
                async with limiter.acquire("key", "gpt-4", {"rpm": 1}, limits=limits):
                    pass
            assert caught.value.option in (option, None)  # one that is remembered does not name it again


def refuses(mode: str, url: str, words: str, option: str) -> None:
    """Each call raises a ConfigurationError, although the policy for outages is to allow."""
    made = Mode(mode)
    kind = BlockingRateLimiter if made.blocking else RateLimiter
    store = f"dynamodb://my-table?region=eu-west-1&timeout=20&endpoint_url={url}"
    made.run(take_twice(kind(store, on_unavailable="allow"), words, option))
    made.close()


@pytest.mark.parametrize("mode", MODES)
def test_a_certificate_that_is_not_trusted(mode: str) -> None:
    with ScriptedServer(tls=True) as server:
        refuses(mode, server.url, "certificate is not trusted", "ca_bundle")


@pytest.mark.parametrize("mode", MODES)
def test_a_certificate_of_another_host(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", str(CERTIFICATE))
    with ScriptedServer(tls=True) as server:
        refuses(mode, f"https://127.1:{server.port}", "certificate is not trusted", "ca_bundle")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("content", [None, b"not a certificate"], ids=["missing", "wrong"])
def test_a_bundle_that_cannot_be_used(
    mode: str, content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(path))
    refuses(mode, "https://localhost:1", str(path), "ca_bundle")


@pytest.mark.parametrize("mode", MODES)
def test_tls_to_a_plain_port(mode: str) -> None:
    with ScriptedServer() as server:
        refuses(mode, server.url.replace("http", "https"), "does not speak TLS", "endpoint_url")


@pytest.mark.parametrize("mode", MODES)
def test_no_tls_to_a_tls_port(mode: str) -> None:
    with ScriptedServer(tls=True) as server:
        refuses(mode, server.url.replace("https", "http"), "speaks TLS", "endpoint_url")
