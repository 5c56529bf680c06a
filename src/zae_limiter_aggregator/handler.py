"""The entry point of the Lambda function."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any

from zae_limiter.stores.dynamodb.client import open_client
from zae_limiter.stores.dynamodb.store import DynamoStore

from .archive import Archive
from .batch import Aggregator
from .settings import read_settings


def handler(event: dict[str, Any], context: object) -> dict[str, list[dict[str, str]]]:
    """Process one batch of the table's stream."""
    return _aggregator().process(event.get("Records", []))


@lru_cache(maxsize=1)
def _aggregator() -> Aggregator:
    found = read_settings(os.environ)
    store = DynamoStore(open_client(found.table, blocking=True))
    return Aggregator(store, found, Archive(found.bucket) if found.bucket else None)
