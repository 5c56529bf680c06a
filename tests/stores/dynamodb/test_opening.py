"""Opening a DynamoDB table: by URL, by name, by the environment; what makes no sense is refused before any call."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.aws import engine
from tests.support.backends import REGION, dynamodb_table
from zae_limiter import Limit, RateLimiter, Repository, SyncRateLimiter, SyncRepository, ValidationError
from zae_limiter.stores import opening
from zae_limiter.stores.dynamodb.store import DynamoStore
from zae_limiter.stores.opening import open_store
from zae_limiter.testing import ManualClock

DOORS = [Repository, SyncRepository, RateLimiter, SyncRateLimiter]
RPM = [Limit.per_minute("rpm", 100)]


def opened(url: str, **options: Any) -> DynamoStore:
    store = open_store(url, blocking=True, **options)
    assert isinstance(store, DynamoStore)
    return store


def test_everything_can_be_said_in_the_url() -> None:
    with dynamodb_table() as name:
        endpoint = quote(engine.endpoint(), safe="")
        url = f"dynamodb://{name}?region={REGION}&endpoint_url={endpoint}&timeout=3&connect_timeout=1&max_connections=2"
        with SyncRateLimiter(url) as limiter, limiter.acquire("key", "gpt-4", {"rpm": 1}, limits=RPM) as lease:
            assert lease.available == {"rpm": 99}
        client = opened(url).client
        assert (client.table, client.region, client.settings.url) == (name, REGION, engine.endpoint())
        assert client.timeout == 3


def test_a_name_is_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    for repository in (SyncRepository("my-app"), SyncRepository(name="my-app"), SyncRepository("dynamodb://my-app/")):
        store = repository._inner._backend.store
        assert isinstance(store, DynamoStore)
        assert (store.client.table, store.client.region) == ("my-app", "eu-west-1")
        assert repository.capabilities.name == "dynamodb"
    monkeypatch.setenv("ZAE_LIMITER_URL", "dynamodb://from-outside?region=us-west-2")
    assert Repository().capabilities.several_hosts


def test_arguments_say_the_same_as_options_of_the_url() -> None:
    client = opened("dynamodb://my-app", region="eu-west-1", endpoint_url="http://127.0.0.1:1").client
    assert (client.region, client.settings.url) == ("eu-west-1", "http://127.0.0.1:1")
    assert opened("dynamodb://my-app?region=eu-west-1", region="eu-west-1").client.region == "eu-west-1"


@pytest.mark.parametrize("make", DOORS)
def test_an_option_given_twice_is_refused_unless_it_says_the_same(make: Any) -> None:
    for field, text, value in (("region", "eu-west-1", "us-east-1"), ("endpoint_url", "http%3A%2F%2Fa", "http://b")):
        with pytest.raises(ValidationError, match="pass one of them") as caught:
            make(f"dynamodb://my-app?{field}={text}", **{field: value})
        assert caught.value.field == field


@pytest.mark.parametrize("name", ["abc", "my_app.prod", "A-1", "x" * 255, "..."])
def test_table_names(name: str) -> None:
    assert opened(f"dynamodb://{name}?region=us-east-1").client.table == name


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("dynamodb://", "needs a table"),
        ("dynamodb:///my-app", "needs a table"),
        ("dynamodb://ab", "needs a table"),
        ("dynamodb://" + "x" * 256, "needs a table"),
        ("dynamodb://my-app/other", "needs a table"),
        ("dynamodb://user@my-app", "needs a table"),
        ("dynamodb://my-app:8000", "needs a table"),
        ("dynamodb://my%20app", "needs a table"),
        ("dynamodb://tabl\u00e9", "needs a table"),
        ("dynamodb://my-app#part", "needs a table"),
        ("dynamodb://my-app?regoin=us-east-1", "region"),
        ("dynamodb://my-app?profile=", "empty"),
        ("dynamodb://my-app?timeout=soon", "must be a number"),
        ("dynamodb://my-app?timeout=0", "above 0"),
        ("dynamodb://my-app?max_connections=1.5", "must be a number"),
        ("dynamodb://my-app?connect_timeout=nan", "above 0"),
    ],
)
def test_urls_that_mean_nothing(url: str, word: str) -> None:
    for make in DOORS:
        with pytest.raises(ValidationError) as caught:
            make(url)
        assert caught.value.field == "url"
        assert word in caught.value.reason


@pytest.mark.parametrize("make", DOORS)
@pytest.mark.parametrize(
    ("field", "bad"),
    [
        *(("region", bad) for bad in ("US East", "us/east", "", 5, b"us-east-1")),
        *(("endpoint_url", bad) for bad in ("ftp://host", "localhost:4566", "http://", "", "http://h:x", 5)),
    ],
)
def test_places_that_are_none(make: Any, field: str, bad: Any) -> None:
    for target in ("my-app", "dynamodb://my-app"):
        with pytest.raises(ValidationError) as caught:
            make(target, **{field: bad})
        assert caught.value.field == field


@pytest.mark.parametrize("make", DOORS)
def test_a_missing_extra_says_what_to_install(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "find_spec", lambda name: None)
    with pytest.raises(ValidationError) as caught:
        make("dynamodb://my-app")
    assert 'pip install "zae-limiter[dynamodb]"' in caught.value.reason


def test_opening_asks_nobody_and_loads_nothing_heavy() -> None:
    code = (
        "import json, sys; from zae_limiter import SyncRateLimiter, RateLimiter; "
        "SyncRateLimiter('my-app').close(); RateLimiter('dynamodb://my-app'); print(json.dumps(sorted(sys.modules)))"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"botocore", "boto3", "aiohttp", "urllib3"} & set(json.loads(output))


def test_the_given_clock_is_the_host_s_and_decisions_follow_dynamodb_s() -> None:
    host = ManualClock()
    host.set_ms(1_000)
    with dynamodb_table() as name:
        options: dict[str, Any] = {"region": REGION, "endpoint_url": engine.endpoint()}
        repo = SyncRepository(f"dynamodb://{name}", clock=host, **options)
        assert repo.clock_skew_ms == 0, "nothing is known before the first answer"
        repo.ensure_infrastructure()
        store = repo._inner._backend.store
        assert abs(repo.clock_skew_ms) > 10**11, "the host believes that it is 1970"
        assert store.clock.now_ms() == host.now_ms() - repo.clock_skew_ms
        assert repo.status().clock_skew_ms == repo.clock_skew_ms
        repo.close()
