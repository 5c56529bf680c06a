"""The plainest DynamoDB client: one connection, no retries, signed. For set-up, and for tests of the bench itself."""

from __future__ import annotations

import functools
import http.client
import json
import os
import time
from typing import Any
from urllib.parse import urlsplit

from tests.support.aws import engine
from tests.support.deadlines import PATIENCE
from tests.support.waiting import until
from zae_limiter.stores.dynamodb.credentials import (
    Credentials,
    CredentialSource,
    Origin,
    open_session,
    signed_headers,
)


@functools.lru_cache(maxsize=1)
def credentials() -> Credentials:
    """Those of the environment or a profile where an engine is named from outside, else what a local one takes."""
    local = engine.URL not in os.environ or urlsplit(engine.endpoint()).scheme == "http"
    return CredentialSource(lambda: open_session(None), local=lambda: local).ask()


class Plain:
    """A connection that says what it is told to and gives back what it hears."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname or "", parts.port, timeout=PATIENCE)
        self._host = parts.netloc
        self.date: str | None = None

    def call(self, operation: str, **request: Any) -> tuple[int, dict[str, Any]]:
        """The status and the parsed answer."""
        body = json.dumps(request).encode()
        origin = Origin(credentials(), engine.region(), self._host)
        headers = signed_headers(origin, int(time.time()), f"DynamoDB_20120810.{operation}", body)
        try:
            self._connection.request("POST", "/", body, headers)
            answer = self._connection.getresponse()
        except OSError:
            self.close()  # the next call connects anew
            raise
        self.date = answer.headers["Date"]
        return answer.status, json.loads(answer.read())

    def create(self, name: str, **definition: Any) -> None:
        """Create a table and wait until it can be used: at once where tables are made at once, on AWS for seconds."""
        try:
            status, answer = self.call("CreateTable", TableName=name, **definition)
        except OSError as error:
            advice = f"start the engine, or correct or unset {engine.URL}"
            raise engine.EngineMissing(f"nobody answers at {self._host} ({error}): {advice}") from error
        if status != http.HTTPStatus.OK:
            advice = f"if {engine.URL} names it, set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION for it"
            raise engine.EngineMissing(f"{self._host} refuses to create a table ({answer}): {advice}")
        if answer["TableDescription"]["TableStatus"] != "ACTIVE":
            until(lambda: self._is_active(name), f"{name} is active", pause=0.2)

    def _is_active(self, name: str) -> bool:
        answer = self.call("DescribeTable", TableName=name)[1]["Table"]
        indexes = [each.get("IndexStatus", "ACTIVE") for each in answer.get("GlobalSecondaryIndexes", ())]
        return {answer["TableStatus"], *indexes} == {"ACTIVE"}

    def table(self, name: str) -> None:
        """A table with the keys ``PK`` and ``SK``."""
        self.create(
            name,
            BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"} for key in ("PK", "SK")],
            KeySchema=[{"AttributeName": "PK", "KeyType": "HASH"}, {"AttributeName": "SK", "KeyType": "RANGE"}],
        )

    def close(self) -> None:
        """Hang up."""
        self._connection.close()
