"""Read a table as it is, including expired records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...core.errors import CorruptRecordError
from ...stores.dynamodb.values import decode, key_of
from .moves import Old

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from ...records.algebra import Key
    from ...stores.dynamodb.client import Client

_SECONDS = 30.0


class Pages:
    """The records of a table, page by page. Undecodable ones are skipped and noted in ``refused``."""

    def __init__(self, client: Client, refused: dict[Key, str]) -> None:
        self._client = client
        self._refused = refused

    async def partitions(self) -> AsyncIterator[dict[str, list[Old]]]:
        """Yield the records of each page by partition; a partition on two pages comes in two parts."""
        async for olds in self._pages("Scan", {}):
            found: dict[str, list[Old]] = {}
            for old in olds:
                found.setdefault(old.key.pk, []).append(old)
            yield found

    async def partition(self, pk: str) -> list[Old]:
        """Return all records of one partition."""
        condition = {"KeyConditionExpression": "PK = :pk", "ExpressionAttributeValues": {":pk": {"S": pk}}}
        return [old async for olds in self._pages("Query", condition) for old in olds]

    async def _pages(self, operation: str, asked: dict[str, Any]) -> AsyncIterator[list[Old]]:
        request = {**asked, "TableName": self._client.table, "ConsistentRead": True}
        while True:
            answer = await self._client.call(operation, request, timeout=_SECONDS, repeatable=True)
            yield self._decode(answer.get("Items", ()))
            if not answer.get("LastEvaluatedKey"):
                return
            request["ExclusiveStartKey"] = answer["LastEvaluatedKey"]

    def _decode(self, items: list[dict[str, Any]]) -> list[Old]:
        found: list[Old] = []
        for item in items:
            try:
                found.append(Old(key_of(item), decode(item)))
            except CorruptRecordError as error:
                self._refused[key_of(item)] = str(error)
        return found
