"""A DynamoDB store on a wire: a fresh table, a mode, a manual clock, and every request strictly checked at the end."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Coroutine, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from tests.support.aws import abilities, engine
from tests.support.aws.plain import Plain
from tests.support.aws.strict import check_calls
from tests.support.aws.wire import Call, Wire
from zae_limiter.stores.dynamodb.client import open_client
from zae_limiter.stores.dynamodb.store import DynamoStore
from zae_limiter.testing import Harness

if TYPE_CHECKING:
    from zae_limiter import Clock

T = TypeVar("T")
_COUNT = itertools.count()
REGION = engine.region()


class Rig(Harness):
    """A harness whose stores talk over a recorded wire."""

    def __init__(self, wire: Wire, table: str, *, blocking: bool) -> None:
        super().__init__(lambda clock, blocking: self.dynamo(clock), blocking=blocking)
        self.wire = wire
        self.table = table
        self._opened: list[DynamoStore] = []

    def dynamo(self, clock: Clock | None, *, host_clock: Clock | None = None) -> DynamoStore:
        """A store with a client of its own, as another host would have it; no clock means DynamoDB's."""
        client = open_client(
            self.table, blocking=self.blocking, region=REGION, endpoint_url=self.wire.url, host_clock=host_clock
        )
        store = DynamoStore(client, clock)
        self._opened.append(store)
        return store

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine; what it opened is closed where it was opened."""
        return super().run(self._closing(work))

    async def _closing(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return await work
        finally:
            while self._opened:
                await self._opened.pop().close()

    def items(self) -> list[dict[str, Any]]:
        """Every item of the table, as the engine has it."""
        with contextlib.closing(Plain(engine.endpoint())) as direct:
            status, answer = direct.call("Scan", TableName=self.table, ConsistentRead=True)
        assert status == 200, answer
        assert "LastEvaluatedKey" not in answer
        found: list[dict[str, Any]] = answer["Items"]
        return found


@contextlib.contextmanager
def rigged(*, blocking: bool) -> Iterator[Rig]:
    """A rig on a table of its own."""
    table = f"rig-{engine.RUN}-{os.getpid()}-{next(_COUNT)}"
    abilities.skip_where_lacking()
    with Wire(engine.endpoint()) as wire:
        rig = Rig(wire, table, blocking=blocking)
        rig.run(rig.dynamo(rig.clock).create_table())
        yield rig
        wire.heal()
        with contextlib.closing(Plain(engine.endpoint())) as direct:
            direct.call("DeleteTable", TableName=table)
        check_calls(wire.calls())


def writes(calls: list[Call]) -> list[Call]:
    """Those that change something."""
    return [call for call in calls if not call.reads]
