"""One side: the same work with whichever ``zae_limiter`` this environment has.

It runs in a process of its own, so that only this client's CPU is measured, and does what it is told line by line:
``{"do": "steady", "calls": 300}`` is answered by one line of JSON. Only the public API of either side is used.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.hammering import Log, hammer, hammer_async
from zae_limiter import Limit, RateLimiter, RateLimitExceeded, Repository, SyncRateLimiter, SyncRepository

COST = {"rpm": 1, "tpm": 500}
ROOMY = [Limit.per_minute("rpm", 1_000_000), Limit.per_minute("tpm", 1_000_000_000)]
NARROW = [Limit.per_second("rpm", 10), Limit.per_minute("tpm", 1_000_000_000)]
CROWDED = [Limit.per_second("rpm", 10, burst=20), Limit.per_minute("tpm", 1_000_000_000)]
RESOURCE = "gpt-4"


class Ours:
    """Our limiter, which creates its table on request."""

    @staticmethod
    def provision(table: str, url: str) -> None:
        """A table of its own."""
        repository: Any = SyncRepository(table, region="us-east-1", endpoint_url=url)
        repository.create_table()
        repository.close()

    @staticmethod
    async def opened(table: str, url: str) -> Any:
        """A repository on a table."""
        return Repository(table, region="us-east-1", endpoint_url=url)

    @staticmethod
    def opened_blocking(table: str, url: str) -> Any:
        """The same without an event loop."""
        return SyncRepository(table, region="us-east-1", endpoint_url=url)


class Reference:
    """The reference: the table of its template, then its documented entry point."""

    @staticmethod
    def provision(table: str, url: str) -> None:
        """The table of ``zae-limiter cfn-template``: a local CloudFormation need not know all of the template."""
        boto3, yaml = import_module("boto3"), import_module("yaml")  # of the reference's environment
        command = Path(sys.executable).with_name("zae-limiter")
        template = subprocess.run([command, "cfn-template"], capture_output=True, text=True, check=True).stdout
        loader: Any = type("Loader", (yaml.SafeLoader,), {})
        loader.add_multi_constructor("!", lambda loader, suffix, node: None)
        resources = yaml.load(template, loader)["Resources"].values()
        found = next(each["Properties"] for each in resources if each["Type"] == "AWS::DynamoDB::Table")
        kept = ("AttributeDefinitions", "KeySchema", "GlobalSecondaryIndexes", "LocalSecondaryIndexes", "BillingMode")
        stream = {"StreamEnabled": True, **found["StreamSpecification"]}
        client = boto3.client("dynamodb", region_name="us-east-1", endpoint_url=url)
        client.create_table(TableName=table, StreamSpecification=stream, **{name: found[name] for name in kept})

    @staticmethod
    async def opened(table: str, url: str) -> Any:
        """A repository on a table."""
        kind: Any = Repository
        return await kind.open(stack=table, region="us-east-1", endpoint_url=url, auto_update=False)

    @staticmethod
    def opened_blocking(table: str, url: str) -> Any:
        """The same without an event loop."""
        kind: Any = SyncRepository
        return kind.open(stack=table, region="us-east-1", endpoint_url=url, auto_update=False)


SIDES: dict[str, Any] = {"ours": Ours, "reference": Reference}


class Async:
    """The work in an event loop."""

    def __init__(self, side: Any, table: str, url: str) -> None:
        self._runner = asyncio.Runner()
        repository = self._runner.run(side.opened(table, url))
        self._limiter: Any = self._runner.run(self._made(repository))

    async def _made(self, repository: Any) -> Any:
        return RateLimiter(repository=repository)

    def stored(self, entity: str, limits: list[Limit]) -> None:
        """Limits of an entity, from the store from now on."""
        self._runner.run(self._limiter.set_limits(entity, limits, resource=RESOURCE))

    def take(self, entity: str, times: int = 1) -> None:
        """Take that many leases in sequence."""
        self._runner.run(self._take(entity, times))

    async def _take(self, entity: str, times: int) -> None:
        for _ in range(times):
            async with self._limiter.acquire(entity_id=entity, resource=RESOURCE, consume=COST):
                pass

    def hammer(self, entity: str, start_ns: int, until_ns: int) -> Log:
        """More demand than the limit gives."""
        return self._runner.run(hammer_async(lambda: self._tried(entity), start_ns, until_ns))

    async def _tried(self, entity: str) -> bool:
        try:
            await self._take(entity, 1)
        except RateLimitExceeded:
            return False
        return True

    def close(self) -> None:
        """Free what is held."""
        self._runner.run(self._limiter.close())
        self._runner.close()


class Blocking:
    """The work in a thread."""

    def __init__(self, side: Any, table: str, url: str) -> None:
        self._limiter: Any = SyncRateLimiter(repository=side.opened_blocking(table, url))

    def stored(self, entity: str, limits: list[Limit]) -> None:
        """Limits of an entity, from the store from now on."""
        self._limiter.set_limits(entity, limits, resource=RESOURCE)

    def take(self, entity: str, times: int = 1) -> None:
        """Take that many leases in sequence."""
        for _ in range(times):
            with self._limiter.acquire(entity_id=entity, resource=RESOURCE, consume=COST):
                pass

    def hammer(self, entity: str, start_ns: int, until_ns: int) -> Log:
        """More demand than the limit gives."""
        return hammer(lambda: self._tried(entity), start_ns, until_ns)

    def _tried(self, entity: str) -> bool:
        try:
            self.take(entity)
        except RateLimitExceeded:
            return False
        return True

    def close(self) -> None:
        """Free what is held."""
        self._limiter.close()


MODES: dict[str, Any] = {"async": Async, "blocking": Blocking}


class Work:
    """The operations of a driver."""

    def __init__(self, side: str, mode: str, table: str, url: str, role: str) -> None:
        if role == "owner":
            SIDES[side].provision(table, url)
        self._client = MODES[mode](SIDES[side], table, url)

    def prepare(self) -> dict[str, Any]:
        """Stored limits for every entity that will be used, and one acquire so that everything is open."""
        for entity, limits in (("steady", ROOMY), ("narrow", NARROW), ("fresh", ROOMY), ("crowded", CROWDED)):
            self._client.stored(entity, limits)
        return self.warm()

    def warm(self) -> dict[str, Any]:
        """Some acquires, so that everything is open."""
        self._client.take("steady", 20)
        return {"version": version("zae-limiter")}

    def steady(self, calls: int) -> dict[str, Any]:
        """Leases that all fit: what one takes, in microseconds."""
        wall, cpu = time.perf_counter_ns(), time.process_time_ns()
        self._client.take("steady", calls)
        cpu, wall = time.process_time_ns() - cpu, time.perf_counter_ns() - wall
        return {"wall_us": wall / calls / 1000, "cpu_us": cpu / calls / 1000}

    def first(self) -> dict[str, Any]:
        """The first acquire of an entity that this client has never seen."""
        self._client.take("fresh")
        return {}

    def drain(self) -> dict[str, Any]:
        """Take until the first refusal."""
        granted = 0
        try:
            while granted < 1000:
                self._client.take("narrow")
                granted += 1
        except RateLimitExceeded:
            return {"granted": granted}
        raise RuntimeError("the narrow limit never refused")

    def saturated(self, grants: int) -> dict[str, Any]:
        """Grants that each need a refill: whoever is refused comes back when told to."""
        refused = 0
        for _ in range(grants):
            while True:
                try:
                    self._client.take("narrow")
                    break
                except RateLimitExceeded as error:
                    refused += 1
                    time.sleep(error.retry_after_seconds or 0)
        return {"refused": refused}

    def one(self) -> dict[str, Any]:
        """One token of the limit that will be crowded."""
        self._client.take("crowded")
        return {}

    def crowd(self, start_ns: int, until_ns: int) -> dict[str, Any]:
        """More demand than the limit gives, from an instant until another."""
        return {"log": self._client.hammer("crowded", start_ns, until_ns)}

    def close(self) -> None:
        """Free what is held."""
        self._client.close()


def main(side: str, mode: str, table: str, url: str, role: str) -> None:
    """Do what the lines say, until there are no more."""
    work = Work(side, mode, table, url, role)
    for line in sys.stdin:
        wish = json.loads(line)
        print(json.dumps(getattr(work, wish.pop("do"))(**wish)), flush=True)
    work.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
