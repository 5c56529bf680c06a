"""A program of zae-limiter 0.1.0 to 0.17.0, run in an environment of that version against a local engine.

    python old_client.py write TABLE URL    write a table with what the version can store, and use it
    python old_client.py ask TABLE URL      decide all of `QUESTIONS`
    python old_client.py use TABLE URL      take a token of two entities, as a client that nobody has stopped
    python old_client.py stay TABLE URL     the same with a client that opened the table before: it waits for a line
    python old_client.py set TABLE URL      the same, but it sets limits of an entity that has some

Each prints JSON. Rates are so slow that nothing is refilled between two answers.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

warnings.simplefilter("ignore")  # the old versions warn of their own deprecated ways

REGION = "us-east-1"
PREFIX = "ZAEL-"
"""What 0.2 to 0.5 put before the name that they are given, for their stack and table."""
SLOW = 10**8
"""Seconds in which a rate gives its refill back: three years."""

OWN = [("rpm", 50), ("tpm", 1_000)]
"""Names and capacities of the limits that the calls themselves state, where nothing is stored."""
STORED = {"entity": [("rpm", 40)], "default": [("rpm", 30)], "resource": [("rpm", 20)], "system": [("rpm", 10)]}
"""Names and capacities of stored limits by level."""

Request: TypeAlias = tuple[str, str, dict[str, int]]

USES: list[Request] = [
    ("key", "gpt-4", {"rpm": 4, "tpm": 400}),
    ("key", "gpt-4", {"rpm": 6, "tpm": 500}),
    ("debtor", "gpt-4", {"rpm": 1, "tpm": 400}),
    ("team", "gpt-4", {"rpm": 3}),
    ("entity", "stored", {"rpm": 15}),
    ("bursty", "stored", {"rpm": 15}),
    ("default", "other", {"rpm": 15}),
    ("anybody", "resource", {"rpm": 15}),
    ("anybody", "system", {"rpm": 5}),
    ("spender", "yearly", {"tpy": 400}),
    ("spender", "half", {"rpm": 10}),
]
DEBT = 700
"""Tokens that the debtor takes more than it had asked for."""

QUESTIONS: list[Request] = [
    ("key", "gpt-4", {"rpm": 40, "tpm": 100}),
    ("key", "gpt-4", {"rpm": 41}),
    ("key", "gpt-4", {"tpm": 101}),
    ("debtor", "gpt-4", {"tpm": 1}),
    ("debtor", "gpt-4", {"rpm": 49}),
    ("org", "gpt-4", {"rpm": 47}),
    ("org", "gpt-4", {"rpm": 48}),
    ("fresh", "gpt-4", {"rpm": 50, "tpm": 1_000}),
    ("fresh", "gpt-4", {"rpm": 51}),
    ("entity", "stored", {"rpm": 25}),
    ("entity", "stored", {"rpm": 26}),
    ("bursty", "stored", {"rpm": 45}),
    ("bursty", "stored", {"rpm": 46}),
    ("default", "other", {"rpm": 15}),
    ("default", "other", {"rpm": 16}),
    ("anybody", "resource", {"rpm": 5}),
    ("anybody", "resource", {"rpm": 6}),
    ("anybody", "system", {"rpm": 5}),
    ("anybody", "system", {"rpm": 6}),
    ("spender", "yearly", {"tpy": 600}),
    ("spender", "yearly", {"tpy": 601}),
    ("spender", "half", {"rpm": 30}),
    ("spender", "half", {"rpm": 31}),
    ("spender", "off", {"rpm": 1}),
]
STATED = ("gpt-4",)
"""The resources whose limits the calls state."""


class Undone(Exception):
    """Ends a lease so that what it took goes back."""


class Client:
    """The limiter of whatever version is installed, under one set of names."""

    def __init__(self, table: str, url: str) -> None:
        self.errors: Any = import_module("zae_limiter")
        self._url = url
        self._table = table
        where = {"region": REGION, "endpoint_url": url}
        known = inspect.signature(self.errors.SyncRateLimiter).parameters
        repository: Any = getattr(self.errors, "SyncRepository", None)
        if repository is not None and hasattr(repository, "open"):
            opened = repository.open(stack=table, auto_update=False, **where)
            self.limiter = self.errors.SyncRateLimiter(repository=opened)
            self.admin = opened
        else:
            named = {"table_name": table} if "table_name" in known else {"name": table.removeprefix(PREFIX)}
            self.limiter = self.admin = self.errors.SyncRateLimiter(**named, auto_update=False, **where)

    @property
    def has_shared_limits(self) -> bool:
        """Whether limits of resources and of the system can be stored."""
        return hasattr(self.admin, "set_system_defaults")

    @property
    def has_bursts(self) -> bool:
        """Whether a limit has a burst beside its capacity."""
        return "burst" in inspect.signature(self.errors.Limit.custom).parameters

    @property
    def has_quotas(self) -> bool:
        """Whether there are quotas, schedules and switches."""
        return hasattr(self.errors.Limit, "quota")

    @property
    def allow(self) -> Any:
        """The policy that lets requests through while the store is unavailable."""
        return "allow" if self.admin is not self.limiter else self.errors.OnUnavailable.ALLOW

    def limits(self, pairs: list[tuple[str, int]]) -> list[Any]:
        """Return limits that refill nothing while the tests look at them."""
        return [self.errors.Limit.custom(name, capacity, 1, SLOW) for name, capacity in pairs]

    def acquire(self, entity_id: str, resource: str, consume: dict[str, int], **more: Any) -> Any:
        """Return the context of an acquire, with stated limits or the stored ones."""
        known = inspect.signature(self.limiter.acquire).parameters
        if resource in STATED:
            more["limits"] = [each for each in self.limits(OWN) if each.name in consume]
        elif known["limits"].default is inspect.Parameter.empty:
            more |= {"limits": [], "use_stored_limits": True}
        if "cascade" in known:
            more["cascade"] = entity_id == "team"
        return self.limiter.acquire(entity_id=entity_id, resource=resource, consume=consume, **more)


def decide(acquire: Callable[..., Any], errors: Any, entity_id: str, resource: str, consume: dict[str, int]) -> str:
    """Return how a request is decided. What was taken is given back."""
    try:
        with acquire(entity_id, resource, consume):
            raise Undone
    except Undone:
        return "granted"
    except getattr(errors, "ResourceDisabled", ()):
        return "disabled"
    except errors.RateLimitExceeded as refused:
        return "refused by " + ", ".join(sorted({each.limit_name for each in refused.violations}))


def provision(table: str, url: str) -> None:
    """Create the table of ``zae-limiter cfn-template``, with its stream."""
    boto3, yaml = import_module("boto3"), import_module("yaml")
    command = Path(sys.executable).with_name("zae-limiter")
    template = subprocess.run([command, "cfn-template"], capture_output=True, text=True, check=True).stdout
    loader: Any = type("Loader", (yaml.SafeLoader,), {})
    loader.add_multi_constructor("!", lambda loader, suffix, node: None)
    resources = yaml.load(template, loader)["Resources"].values()
    found = next(each["Properties"] for each in resources if each["Type"] == "AWS::DynamoDB::Table")
    kept = (
        *("AttributeDefinitions", "KeySchema", "GlobalSecondaryIndexes", "LocalSecondaryIndexes", "BillingMode"),
        "StreamSpecification",
    )
    client = boto3.client("dynamodb", region_name=REGION, endpoint_url=url)
    request = {name: found[name] for name in kept if name in found}
    request["StreamSpecification"]["StreamEnabled"] = True  # CloudFormation implies it
    client.create_table(TableName=table, **request)


def store(client: Client) -> None:
    """Store a hierarchy, and limits at every level that the version knows."""
    create, admin = client.limiter.create_entity, client.admin
    create(entity_id="org", name="Org", metadata={"plan": "gold"})
    cascade = {"cascade": True} if "cascade" in inspect.signature(create).parameters else {}
    create(entity_id="team", parent_id="org", **cascade)
    admin.set_limits("entity", client.limits(STORED["entity"]), resource="stored")
    admin.set_limits("default", client.limits(STORED["default"]))
    if client.has_shared_limits:
        admin.set_resource_defaults("gpt-4", client.limits(OWN))  # 0.8 prefers what is stored to what is stated
        admin.set_resource_defaults("resource", client.limits(STORED["resource"]))
        admin.set_system_defaults(client.limits(STORED["system"]), on_unavailable=client.allow)
    if client.has_quotas:
        admin.set_resource_defaults("yearly", [client.errors.Limit.quota("tpy", 1_000, cron="0 0 1 1 *")])
        half = client.errors.ScheduleEntry(cron="* * * * *", scale=0.5)
        admin.set_resource_defaults("half", [client.limits([("rpm", 80)])[0].with_schedule((half,))])
        admin.set_resource_defaults("off", client.limits(OWN))
        admin.disable_resource("off")
    if client.has_bursts:
        bursty = client.errors.Limit.custom("rpm", 40, 1, SLOW, burst=60)
        admin.set_limits("bursty", [bursty], resource="stored")


def known_to(client: Client, asked: list[Request]) -> list[Request]:
    """Return the requests whose limits the version can store or state."""
    known = {"anybody": client.has_shared_limits, "bursty": client.has_bursts, "spender": client.has_quotas}
    return [each for each in asked if known.get(each[0], True)]


def use(client: Client) -> None:
    """Take tokens, and take some that are not there."""
    for entity_id, resource, cost in known_to(client, USES):
        with client.acquire(entity_id, resource, cost) as lease:
            if entity_id == "debtor":
                lease.adjust(tpm=DEBT)


def aggregate(table: str, url: str) -> None:
    """Let the version's own aggregator count what is in the stream."""
    boto3 = import_module("boto3")
    os.environ["AWS_ENDPOINT_URL"] = url
    try:
        aggregator = import_module("zae_limiter_aggregator")
    except ImportError:
        aggregator = import_module("zae_limiter.aggregator")
    where = {"region_name": REGION, "endpoint_url": url}
    arn = boto3.client("dynamodb", **where).describe_table(TableName=table)["Table"]["LatestStreamArn"]
    streams = boto3.client("dynamodbstreams", **where)
    for shard in streams.describe_stream(StreamArn=arn)["StreamDescription"]["Shards"]:
        first = {"StreamArn": arn, "ShardId": shard["ShardId"], "ShardIteratorType": "TRIM_HORIZON"}
        iterator = streams.get_shard_iterator(**first)["ShardIterator"]
        records = streams.get_records(ShardIterator=iterator, Limit=1_000)["Records"]
        aggregator.process_stream_records(records, table, ["hourly", "daily"])


def ask(acquire: Callable[..., Any], errors: Any, asked: Iterable[Request]) -> dict[str, str]:
    """Return every decision."""
    return {json.dumps(each): decide(acquire, errors, *each) for each in asked}


def go_on(client: Client) -> dict[str, str]:
    """Return what a client gets that goes on after an upgrade: ``granted``, or the name and text of its error."""
    try:
        for entity_id in ("key", "straggler"):
            with client.acquire(entity_id, "gpt-4", {"rpm": 1}):
                pass
        return {"outcome": "granted"}
    except Exception as error:
        return {"outcome": type(error).__name__, "text": str(error)}


def open_and_go_on(table: str, url: str) -> dict[str, str]:
    """Do the same with a new client, which may be refused when it opens the table."""
    try:
        return go_on(Client(table, url))
    except Exception as error:
        return {"outcome": type(error).__name__, "text": str(error)}


def open_and_wait(table: str, url: str) -> Client:
    """Open the table, say so, and return the client after a line was read."""
    client = Client(table, url)
    decide(client.acquire, client.errors, "fresh", "gpt-4", {"rpm": 1})
    print("open", flush=True)
    sys.stdin.readline()
    return client


def stay(table: str, url: str) -> dict[str, str]:
    """Take tokens with a client that had opened the table before."""
    return go_on(open_and_wait(table, url))


def set_limits(table: str, url: str) -> dict[str, str]:
    """Do not take tokens but set a quota, where there are any, in place of other limits."""
    client = open_and_wait(table, url)
    quota = client.errors.Limit.quota("rpm", 50, cron="0 0 1 1 *")
    client.admin.set_limits("entity", [quota], resource="stored")
    return {"outcome": "set"}


STRAGGLERS: dict[str, Callable[[str, str], dict[str, str]]] = {"use": open_and_go_on, "stay": stay, "set": set_limits}


def main(what: str, table: str, url: str) -> None:
    """Do what is asked and print the answer."""
    if what in STRAGGLERS:
        print(json.dumps(STRAGGLERS[what](table, url)))
        return
    if what == "write":
        provision(table, url)
    client = Client(table, url)
    if what == "write":
        store(client)
        use(client)
        aggregate(table, url)
    print(json.dumps(ask(client.acquire, client.errors, known_to(client, QUESTIONS))))


if __name__ == "__main__":
    main(*sys.argv[1:])
