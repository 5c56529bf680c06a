"""AWS Signature Version 4 for DynamoDB's JSON API. Pure; the tests compare it with botocore's signer."""

from __future__ import annotations

import time
from functools import lru_cache
from hashlib import sha256
from hmac import digest
from typing import NamedTuple

_SERVICE = "dynamodb"


class Credentials(NamedTuple):
    """Credentials to sign with. They never appear in a message or a log line."""

    access_key: str
    secret_key: str
    token: str | None = None

    def __repr__(self) -> str:
        return "Credentials(...)"


class Origin(NamedTuple):
    """The credentials and the destination of a client's requests."""

    credentials: Credentials
    region: str
    host: str


def signed_headers(origin: Origin, epoch_seconds: int, target: str, body: bytes) -> dict[str, str]:
    """Return the headers of a POST to ``/``, with a signature that covers the body."""
    credentials, region, host = origin
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(epoch_seconds))
    headers = {"content-type": "application/x-amz-json-1.0", "host": host, "x-amz-date": stamp}
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
    """Return the signing key of a day, cached because it takes four hashes."""
    key = f"AWS4{secret}".encode()
    for part in (day, region, _SERVICE, "aws4_request"):
        key = digest(key, part.encode(), "sha256")
    return key
