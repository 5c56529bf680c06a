"""Region and endpoint: found wherever botocore finds them, and refused in plain words."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.scripted_server import isolate
from zae_limiter import ConfigurationError, ValidationError
from zae_limiter.stores.dynamodb.credentials import open_session
from zae_limiter.stores.dynamodb.settings import Settings, resolve

CONFIG = """
[default]
region = eu-central-1
[profile paris]
region = eu-west-3
endpoint_url = http://general:1
[profile tokyo]
region = ap-northeast-1
services = local
[services local]
dynamodb =
  endpoint_url = http://special:2
"""


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(monkeypatch)


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(CONFIG, encoding="utf-8")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(path))


def found(region: str | None = None, endpoint: str | None = None, profile: str | None = None) -> Settings:
    return resolve(region, endpoint, lambda: open_session(profile))


@pytest.mark.parametrize(
    ("region", "url"),
    [
        ("eu-west-1", "https://dynamodb.eu-west-1.amazonaws.com"),
        ("cn-north-1", "https://dynamodb.cn-north-1.amazonaws.com.cn"),
        ("us-gov-west-1", "https://dynamodb.us-gov-west-1.amazonaws.com"),
    ],
)
def test_every_partition_has_its_endpoint(region: str, url: str) -> None:
    settings = found(region)
    assert (settings.region, settings.url) == (region, url)
    assert settings.host_header == url.removeprefix("https://")
    assert settings.endpoint[:2] == (settings.host_header, 443)
    assert settings.endpoint.tls is not None
    assert not settings.is_local


def test_fips_and_dual_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_USE_FIPS_ENDPOINT", "true")
    assert found("us-east-1").url == "https://dynamodb-fips.us-east-1.amazonaws.com"
    monkeypatch.delenv("AWS_USE_FIPS_ENDPOINT")
    monkeypatch.setenv("AWS_USE_DUALSTACK_ENDPOINT", "true")
    assert found("eu-west-3").url == "https://dynamodb.eu-west-3.api.aws"


@pytest.mark.usefixtures("config")
def test_the_region_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found().region == "eu-central-1"
    assert found(profile="paris").region == "eu-west-3"
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-1")
    assert found(profile="paris").region == "us-west-1"
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    assert found().region == "us-west-2"
    assert found("sa-east-1").region == "sa-east-1"


@pytest.mark.usefixtures("config")
def test_the_endpoint_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(profile="paris").url == "http://general:1"
    assert found(profile="tokyo").url == "http://special:2"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://every:3")
    assert found(profile="tokyo").url == "http://every:3"
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", "http://ours:4")
    assert found(profile="tokyo").url == "http://ours:4"
    assert found(endpoint="http://given:5").url == "http://given:5"
    monkeypatch.setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")
    assert found(profile="tokyo").url == "https://dynamodb.ap-northeast-1.amazonaws.com"


def test_a_region_is_needed_only_by_the_real_service(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValidationError, match="AWS_REGION"):
        found()
    assert found(endpoint="http://localhost:8000").region == "us-east-1"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://localhost:8000")
    assert found().region == "us-east-1"


@pytest.mark.parametrize("region", ["", "eu west 1", "evil.com/", "a" * 64, "EU-WEST-1", "x\r\ny"])
def test_a_region_that_is_none(region: str) -> None:
    with pytest.raises(ValidationError, match="region"):
        found(region, "http://localhost:8000" if region else None)


@pytest.mark.parametrize(
    "url",
    [
        *("localhost:8000", "ftp://x", "http://", "http://h:99999", "http://h/path", "http://h?a=b", "http://a b"),
        *("http://u:p@h", "http://h:0", "http://[::1"),
    ],
)
def test_an_endpoint_that_is_none(url: str) -> None:
    with pytest.raises(ValidationError, match="endpoint_url"):
        found("eu-west-1", url)


@pytest.mark.parametrize(
    ("url", "host", "local"),
    [
        ("http://localhost:8000/", "localhost:8000", True),
        ("http://127.0.0.1", "127.0.0.1", True),
        ("http://[::1]:8000", "[::1]:8000", True),
        ("http://dynamodb:8000", "dynamodb:8000", False),
        ("https://localhost:443", "localhost", False),
    ],
)
def test_hosts(url: str, host: str, local: bool) -> None:
    settings = found("eu-west-1", url)
    assert (settings.host_header, settings.is_local) == (host, local)


def test_a_bundle_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", "/does/not/exist.pem")
    with pytest.raises(ConfigurationError, match="ca_bundle"):
        found("eu-west-1")


@pytest.mark.parametrize("proxy", ["socks5://a:secret@h:1", "https://h:1", "http://:1", "http://a:secret@h:x"])
def test_a_proxy_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    monkeypatch.setenv("HTTP_PROXY", proxy)
    with pytest.raises(ValidationError, match="proxy") as caught:
        found("eu-west-1", "http://dynamodb:8000")
    assert "secret" not in str(caught.value)


def test_a_password_in_an_endpoint_is_not_shown() -> None:
    with pytest.raises(ValidationError) as caught:
        found("eu-west-1", "http://me:secret@dynamodb:8000")
    assert "secret" not in str(caught.value)
