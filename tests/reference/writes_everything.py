"""Writes a table with all that zae-limiter 0.17 can store, and says how it decides there.

Runs in an environment that has 0.17, against a local engine: ``python writes_everything.py TABLE URL [awkward]``, the
last for limits that have no counterpart here too. It prints JSON: each decision, and the tokens that are left. Rates
are so slow that nothing is refilled between two answers, and windows so long that none ends.
"""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

warnings.simplefilter("ignore")  # 0.17 warns of its own deprecated ways

reference: Any = import_module("zae_limiter")
Limit = reference.Limit
Entry: Any = getattr(reference, "ScheduleEntry", None)

SLOW = 10**8
"""Seconds in which a rate gives its capacity back: three years."""

YEARLY = "0 0 1 1 *"
ALWAYS = "* * * * *"


def rate(name: str, capacity: int, **more: Any) -> Any:
    """Return a limit that refills nothing while the tests look at it."""
    return Limit.custom(name, capacity, 1, SLOW, **more)


def provision(table: str, url: str) -> None:
    """Create the table of ``zae-limiter cfn-template``."""
    boto3, yaml = import_module("boto3"), import_module("yaml")
    command = Path(sys.executable).with_name("zae-limiter")
    template = subprocess.run([command, "cfn-template"], capture_output=True, text=True, check=True).stdout
    loader: Any = type("Loader", (yaml.SafeLoader,), {})
    loader.add_multi_constructor("!", lambda loader, suffix, node: None)
    resources = yaml.load(template, loader)["Resources"].values()
    found = next(each["Properties"] for each in resources if each["Type"] == "AWS::DynamoDB::Table")
    kept = ("AttributeDefinitions", "KeySchema", "GlobalSecondaryIndexes", "LocalSecondaryIndexes", "BillingMode")
    client = boto3.client("dynamodb", region_name="us-east-1", endpoint_url=url)
    client.create_table(TableName=table, **{name: found[name] for name in kept if name in found})


def limits_by_resource() -> dict[str, list[Any]]:
    """Return limits of every kind."""
    quota = Limit.quota("tpy", 1_000, cron=YEARLY)
    return {
        "gpt-4": [rate("rpm", 50), rate("tpm", 1_000)],
        "ns:gpt-4/mini": [rate("rpm", 40)],
        "cron": [Limit.quota("tpy", 1_000, cron=YEARLY, tz="Europe/Berlin")],
        "several": [quota.with_reset_schedule((Entry.reset(YEARLY), Entry.reset("0 0 1 7 *")))],
        "session": [Limit.quota("session", 500, reset_after=timedelta(days=300))],
        "soft": [rate("tpm", 100, soft=True), rate("rpm", 10)],
        "soft-cron": [Limit.quota("tpy", 100, cron=YEARLY, soft=True)],
        "half": [
            rate("tpm", 1_000).with_schedule((Entry(cron=ALWAYS, tz="Europe/Berlin", scale=0.5),)),
            rate("rpm", 10),
        ],
        "other": [
            rate("tpm", 1_000).with_schedule(
                (
                    Entry(cron="* 3 29 2 *", capacity=1, refill_amount=1, refill_period_seconds=1),
                    Entry(cron=ALWAYS, capacity=300, refill_amount=1, refill_period_seconds=SLOW),
                )
            )
        ],
        "cheap": [quota.with_schedule((Entry(cron=ALWAYS, capacity=200),))],
    }


def store_limits(repo: Any) -> None:
    """Store limits of every kind, at every level."""
    repo.set_system_defaults([rate("rpm", 100)], on_unavailable="allow")
    for resource, limits in limits_by_resource().items():
        repo.set_resource_defaults(resource, limits)


def store_awkward(repo: Any, limiter: Any) -> None:
    """Store a limit that cannot be upgraded, and use it."""
    entries = (Entry.reset(YEARLY), Entry.reset("30 9 2 7 *"))
    repo.set_resource_defaults(AWKWARD, [Limit.quota("tpy", 1_000, cron=YEARLY).with_reset_schedule(entries)])
    with limiter.acquire("key", AWKWARD, {"tpy": 1}):
        pass


AWKWARD = "awkward"


def store_entities(repo: Any) -> None:
    """Store a hierarchy, limits of entities, and a changed parent."""
    repo.create_entity("org", name="Org", metadata={"plan": "gold"})
    repo.create_entity("new-org")
    repo.create_entity("team", parent_id="org", cascade=True)
    repo.create_entity("moved", parent_id="org", cascade=True)
    repo.set_parent("moved", "new-org")
    repo.create_entity("orphaned", parent_id="org", cascade=True)
    repo.set_parent("orphaned", None)
    repo.set_limits("org", [rate("rpm", 5)], resource="gpt-4")
    repo.set_limits("own", [rate("rpm", 7), Limit.quota("tpy", 70, cron=YEARLY)])
    repo.set_limits("own", [rate("rpm", 3)], resource="a:b")
    repo.create_entity("no-cascade", parent_id="org", cascade=True)
    repo.create_entity("cascade", parent_id="org", cascade=False)


def store_switches(repo: Any) -> None:
    """Store every switch and every cascade policy."""
    repo.set_resource_defaults("off", [rate("rpm", 10)], disabled=True)
    repo.set_resource_defaults("open", [rate("rpm", 10)])
    repo.bypass_resource("open")
    repo.enable_entity("own", resource="off")
    repo.disable_entity("blocked")
    repo.enable_entity("blocked", resource="gpt-4")
    repo.bypass_entity("vip", resource="gpt-4")
    repo.disable_resource("unlimited")
    repo.set_entity_cascade("no-cascade", False)
    repo.set_entity_cascade("cascade", True, resource="gpt-4")
    repo.set_resource_defaults("flat", [rate("rpm", 100)], cascade=False)
    repo.set_resource_cascade("steep", True)
    repo.set_entity_cascade("team", True, resource="flat")


def use(repo: Any, limiter: Any) -> None:
    """Take tokens, top buckets up, reset one, and leave what the provisioner leaves."""
    for entity_id, resource, cost in USES:
        with limiter.acquire(entity_id, resource, cost):
            pass
    repo.bump_shard_count("split", "cron", 1)
    for _ in range(8):
        with limiter.acquire("split", "cron", {"tpy": 1}):
            pass
    repo.top_up("topped", "gpt-4", {"rpm": 25}, idempotency_key="paid-1", principal="shop")
    repo.top_up("topped-cron", "cron", {"tpy": 500}, idempotency_key="paid-2")
    repo.top_up("rich", "cron", {"tpy": 500})
    repo.reset_bucket("reset", "gpt-4", limits=["rpm"], idempotency_key="sorry-1")
    repo.register_namespace("second")
    state = {"managed_system": True, "managed_resources": ["gpt-4"], "last_applied": "2026-01-01", "applied_hash": "x"}
    repo.put_provisioner_state({**repo.get_provisioner_state(), **state})


USES: list[tuple[str, str, dict[str, int]]] = [
    ("key", "gpt-4", {"rpm": 10, "tpm": 900}),
    ("key", "ns:gpt-4/mini", {"rpm": 39}),
    ("key", "cron", {"tpy": 400}),
    ("key", "several", {"tpy": 400}),
    ("key", "session", {"session": 100}),
    ("key", "soft", {"tpm": 150, "rpm": 1}),
    ("key", "soft-cron", {"tpy": 150}),
    ("key", "half", {"tpm": 100, "rpm": 1}),
    ("key", "other", {"tpm": 100}),
    ("key", "cheap", {"tpy": 150}),
    ("key", "open", {"rpm": 50}),
    ("vip", "gpt-4", {"rpm": 60, "tpm": 10}),
    ("own", "off", {"rpm": 1}),
    ("own", "gpt-4", {"rpm": 2, "tpy": 30}),
    ("own", "a:b", {"rpm": 2}),
    ("team", "gpt-4", {"rpm": 1}),
    ("moved", "gpt-4", {"rpm": 1}),
    ("orphaned", "gpt-4", {"rpm": 1}),
    ("topped", "gpt-4", {"rpm": 50, "tpm": 1}),
    ("topped-cron", "cron", {"tpy": 1_000}),
    ("reset", "gpt-4", {"rpm": 50, "tpm": 50}),
    ("rich", "cron", {"tpy": 100}),
    ("split", "cron", {"tpy": 500}),
]

QUESTIONS: list[tuple[str, str, dict[str, int]]] = [
    ("key", "gpt-4", {"rpm": 1, "tpm": 100}),
    ("key", "gpt-4", {"rpm": 1, "tpm": 101}),
    ("key", "ns:gpt-4/mini", {"rpm": 1}),
    ("key", "ns:gpt-4/mini", {"rpm": 2}),
    ("fresh", "ns:gpt-4/mini", {"rpm": 40}),
    ("key", "cron", {"tpy": 600}),
    ("key", "cron", {"tpy": 601}),
    ("fresh", "cron", {"tpy": 1_000}),
    ("key", "several", {"tpy": 600}),
    ("key", "several", {"tpy": 601}),
    ("key", "session", {"session": 400}),
    ("key", "session", {"session": 401}),
    ("fresh", "session", {"session": 500}),
    ("key", "soft", {"tpm": 1_000, "rpm": 9}),
    ("key", "soft", {"tpm": 1_000, "rpm": 10}),
    ("key", "soft-cron", {"tpy": 1_000}),
    ("key", "half", {"tpm": 400, "rpm": 1}),
    ("key", "half", {"tpm": 401, "rpm": 1}),
    ("fresh", "half", {"tpm": 500}),
    ("fresh", "half", {"tpm": 501}),
    ("key", "other", {"tpm": 200}),
    ("key", "other", {"tpm": 201}),
    ("key", "cheap", {"tpy": 50}),
    ("key", "cheap", {"tpy": 51}),
    ("key", "off", {"rpm": 1}),
    ("own", "off", {"rpm": 1}),
    ("key", "open", {"rpm": 500}),
    ("blocked", "cron", {"tpy": 1}),
    ("blocked", "gpt-4", {"rpm": 1}),
    ("vip", "gpt-4", {"rpm": 999, "tpm": 1}),
    ("key", "unlimited", {"rpm": 1}),
    ("own", "gpt-4", {"rpm": 5, "tpy": 40}),
    ("own", "gpt-4", {"rpm": 6, "tpy": 41}),
    ("own", "a:b", {"rpm": 1}),
    ("own", "a:b", {"rpm": 2}),
    ("team", "gpt-4", {"rpm": 4}),
    ("team", "gpt-4", {"rpm": 5}),
    ("moved", "gpt-4", {"rpm": 49}),
    ("moved", "gpt-4", {"rpm": 50}),
    ("orphaned", "gpt-4", {"rpm": 49}),
    ("no-cascade", "gpt-4", {"rpm": 6}),
    ("cascade", "gpt-4", {"rpm": 5}),
    ("cascade", "cron", {"tpy": 1}),
    ("team", "flat", {"rpm": 1}),
    ("topped", "gpt-4", {"rpm": 25}),
    ("topped", "gpt-4", {"rpm": 26}),
    ("topped-cron", "cron", {"tpy": 500}),
    ("topped-cron", "cron", {"tpy": 501}),
    ("reset", "gpt-4", {"rpm": 50, "tpm": 950}),
    ("reset", "gpt-4", {"rpm": 50, "tpm": 951}),
    ("rich", "cron", {"tpy": 1_400}),
    ("rich", "cron", {"tpy": 1_401}),
    ("split", "cron", {"tpy": 100}),
    ("split", "cron", {"tpy": 493}),
]


class Undone(Exception):
    """Ends a lease so that what it took goes back."""


def decide(limiter: Any, errors: Any, entity_id: str, resource: str, cost: dict[str, int]) -> str:
    """Return how a request is decided. What was taken is given back."""
    try:
        with limiter.acquire(entity_id, resource, cost):
            raise Undone
    except Undone:
        return "granted"
    except errors.ResourceDisabled:
        return "disabled"
    except errors.RateLimitExceeded as refused:
        return "refused by " + ", ".join(sorted({each.limit_name for each in refused.violations}))


def answer(limiter: Any, errors: Any) -> dict[str, Any]:
    """Return every decision, and what is left in the buckets of those whose parents are not charged."""
    asked, decided = QUESTIONS, [decide(limiter, errors, *each) for each in QUESTIONS]
    open_to = {each[:2] for each, decision in zip(asked, decided, strict=True) if decision != "disabled"}
    left = {f"{who} {resource}": dict(limiter.available(who, resource)) for who, resource in sorted(open_to)}
    return {
        "decided": {
            f"{who} {resource} {cost}": word for (who, resource, cost), word in zip(asked, decided, strict=True)
        },
        "left": {whose: tokens for whose, tokens in left.items() if whose.split()[0] not in CHARGING},
    }


CHARGING = ("team", "moved", "cascade")
"""Those who charge their parents, whose tokens 0.17 does not look at."""


def main(table: str, url: str, *more: str) -> None:
    """Write the table and print the answers."""
    provision(table, url)
    repo = reference.SyncRepository.open(stack=table, region="us-east-1", endpoint_url=url, auto_update=False)
    limiter = reference.SyncRateLimiter(repository=repo)
    store_limits(repo)
    store_entities(repo)
    store_switches(repo)
    use(repo, limiter)
    if AWKWARD in more:
        store_awkward(repo, limiter)
    print(json.dumps(answer(limiter, reference)))


if __name__ == "__main__":
    main(*sys.argv[1:])
