"""SigV4 against botocore's own signer."""

from __future__ import annotations

import datetime as dt

import pytest
from botocore import auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotocoreCredentials
from hypothesis import given, strategies as st

from zae_limiter.stores.dynamodb.credentials import Credentials, Origin, signed_headers

TEXT = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=60)
HOSTS = st.sampled_from(["dynamodb.eu-west-1.amazonaws.com", "127.0.0.1:8000", "localhost:4566", "[::1]:8000"])


def botocore_headers(origin: Origin, instant: int, target: str, body: bytes) -> dict[str, str]:
    """What botocore would send."""
    request = AWSRequest(
        "POST",
        f"http://{origin.host}/",
        headers={"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": target},
        data=body,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(auth, "get_current_datetime", lambda: dt.datetime.fromtimestamp(instant, dt.UTC))
        auth.SigV4Auth(BotocoreCredentials(*origin.credentials), "dynamodb", origin.region).add_auth(request)
    return {name.lower(): value for name, value in request.headers.items()}


@given(
    credentials=st.builds(Credentials, TEXT, TEXT, st.none() | TEXT),
    region=st.from_regex(r"[a-z]{2}(-[a-z]{2,6}){1,2}-[0-9]", fullmatch=True),
    host=HOSTS,
    instant=st.integers(0, 4_000_000_000),
    target=st.sampled_from(["UpdateItem", "TransactWriteItems"]),
    body=st.binary(max_size=300),
)
def test_every_signature_is_the_one_of_botocore(
    credentials: Credentials, region: str, host: str, instant: int, target: str, body: bytes
) -> None:
    origin = Origin(credentials, region, host)
    ours = signed_headers(origin, instant, f"DynamoDB_20120810.{target}", body)
    theirs = botocore_headers(origin, instant, f"DynamoDB_20120810.{target}", body)
    assert ours.pop("host") == host
    assert ours == theirs


def test_the_key_of_a_day_does_not_serve_the_next() -> None:
    origin = Origin(Credentials("a", "b"), "eu-west-1", "h")
    days = {signed_headers(origin, 86_400 * day, "t", b"")["authorization"] for day in range(3)}
    assert len(days) == 3


def test_secrets_are_not_shown() -> None:
    assert "hidden" not in repr(Credentials("id", "hidden", "hidden"))
    assert "hidden" not in repr(Origin(Credentials("id", "hidden"), "r", "h"))
