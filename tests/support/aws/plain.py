"""The plainest DynamoDB client: one connection, no retries, unsigned. For tests of the bench itself."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

from tests.support.deadlines import PATIENCE

SIGNATURE = "AWS4-HMAC-SHA256 Credential=test/20300101/us-east-1/dynamodb/aws4_request, SignedHeaders=host, Signature=0"


class Plain:
    """A connection that says what it is told to and gives back what it hears."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=PATIENCE)
        self.date: str | None = None

    def call(self, operation: str, **request: Any) -> tuple[int, dict[str, Any]]:
        """The status and the parsed answer."""
        headers = {
            "X-Amz-Target": f"DynamoDB_20120810.{operation}",
            "Content-Type": "application/x-amz-json-1.0",
            "Authorization": SIGNATURE,
        }
        try:
            self._connection.request("POST", "/", json.dumps(request), headers)
            answer = self._connection.getresponse()
        except OSError:
            self.close()  # the next call connects anew
            raise
        self.date = answer.headers["Date"]
        return answer.status, json.loads(answer.read())

    def table(self, name: str) -> None:
        """A table with the keys ``PK`` and ``SK``."""
        status, answer = self.call(
            "CreateTable",
            TableName=name,
            BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"} for key in ("PK", "SK")],
            KeySchema=[{"AttributeName": "PK", "KeyType": "HASH"}, {"AttributeName": "SK", "KeyType": "RANGE"}],
        )
        assert status == http.HTTPStatus.OK, answer

    def close(self) -> None:
        """Hang up."""
        self._connection.close()
