"""AWS Signature Version 4 for DynamoDB's JSON API: pure, and botocore's own signer is its oracle in the tests."""

from __future__ import annotations

import time
from functools import lru_cache
from hashlib import sha256
from hmac import digest
from typing import NamedTuple

CONTENT_TYPE = "application/x-amz-json-1.0"
_SERVICE = "dynamodb"


class Credentials(NamedTuple):
    """What a request is signed with; never part of a message or a log line."""

    access_key: str
    secret_key: str
    token: str | None = None

    def __repr__(self) -> str:
        return "Credentials(...)"


class Origin(NamedTuple):
    """Who signs for where: the same for every request of a client until its credentials change."""

    credentials: Credentials
    region: str
    host: str


def signed_headers(origin: Origin, epoch_seconds: int, target: str, body: bytes) -> dict[str, str]:
    """The headers of a POST to ``/`` that carry its signature; the body is covered by it."""
    credentials, region, host = origin
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(epoch_seconds))
    headers = {"content-type": CONTENT_TYPE, "host": host, "x-amz-date": stamp}
    if credentials.token:
        headers["x-amz-security-token"] = credentials.token
    headers["x-amz-target"] = target
    names = ";".join(headers)
    lines = "".join([f"{name}:{value}\n" for name, value in headers.items()])
    canonical = f"POST\n/\n\n{lines}\n{names}\n{sha256(body).hexdigest()}"
    scope = f"{stamp[:8]}/{region}/{_SERVICE}/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{sha256(canonical.encode()).hexdigest()}"
    signature = digest(_signing_key(credentials.secret_key, stamp[:8], region), text.encode(), "sha256").hex()
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={credentials.access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    return headers


@lru_cache(maxsize=16)
def _signing_key(secret: str, day: str, region: str) -> bytes:
    """The key of a day: four hashes that need not be repeated for every request."""
    key = f"AWS4{secret}".encode()
    for part in (day, region, _SERVICE, "aws4_request"):
        key = digest(key, part.encode(), "sha256")
    return key
