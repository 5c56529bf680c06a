"""How a deployed limiter is doing: each part is looked at by itself.

A part that these credentials may not look at, or that fails, says so under ``troubles``; the rest is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

from .._version import __version__
from ..core import names
from ..core.errors import (
    AccessDeniedError,
    InfrastructureError,
    InfrastructureNotFoundError,
    RateLimiterUnavailable,
    ValidationError,
)
from ..records import keys, version
from ..records.algebra import Query
from ..runtime.blocking import run
from ..stores.dynamodb.answers import OTHER_REGION
from ..stores.dynamodb.store import DynamoStore
from . import code, stack
from .calls import Aws
from .resources import function_name, queue_name

if TYPE_CHECKING:
    from ..stores.port import Store

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StackHealth:
    """The stack, and why it is in its state."""

    status: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class TableHealth:
    """The table; DynamoDB counts items and bytes about every six hours."""

    status: str
    items: int
    size_bytes: int
    stream: bool
    deletion_protection: bool


@dataclass(frozen=True, slots=True)
class AggregatorHealth:
    """The Lambda function that sums up usage."""

    state: str
    code_current: bool
    last_update: str | None


@dataclass(frozen=True, slots=True)
class Versions:
    """What was deployed, and what asks."""

    client: str
    schema: str | None = None
    client_min: str | None = None
    aggregator: str | None = None


@dataclass(frozen=True, slots=True)
class Health:
    """Everything that is known; None is what is not there."""

    name: str
    region: str
    available: bool
    versions: Versions
    troubles: Mapping[str, str]
    latency_ms: float | None = None
    stack: StackHealth | None = None
    table: TableHealth | None = None
    ttl: str | None = None
    pitr: str | None = None
    aggregator: AggregatorHealth | None = None
    stream_mapping: str | None = None
    dead_letters: int | None = None
    namespaces: int | None = None


class _Looks:
    """Looks at one part after the other; what goes wrong with one is noted, not raised."""

    def __init__(self) -> None:
        self.troubles: dict[str, InfrastructureError] = {}

    def told(self) -> dict[str, str]:
        """What went wrong, by part."""
        return {part: str(error) for part, error in self.troubles.items()}

    def at(self, part: str, look: Callable[[], T]) -> T | None:
        """What the look finds; None where there is nothing, or where it fails."""
        try:
            return look()
        except InfrastructureNotFoundError:
            return None
        except InfrastructureError as error:
            self.troubles[part] = error
            return None


def look(store: Store) -> Health:
    """Look at the limiter behind a blocking store of DynamoDB."""
    if not isinstance(store, DynamoStore):
        raise ValidationError("store", store, f"is {store.capabilities.name}, which no part of AWS surrounds")
    told = store.client.options
    with Aws(told.region, told.endpoint_url, told.profile) as aws:
        return _looked(aws, told.table, store)


def _looked(aws: Aws, name: str, store: DynamoStore) -> Health:
    looks = _Looks()
    answer = looks.at("read", lambda: _timed_read(store))
    table = looks.at("table", lambda: _table(aws, name))
    if answer is None and table is None and _silent(looks.troubles):
        return Health(name, aws.region, False, Versions(__version__), looks.told())
    around = looks.at if _can_be_deployed(name) else _unseen
    found = around("stack", lambda: _stack(aws, name))
    if table is None and found is None:
        raise _nothing(aws, name, looks.troubles)
    latency, deployed = answer or (None, None)
    return Health(
        name=name,
        region=aws.region,
        available=answer is not None or (table is not None and _only_denied(looks.troubles)),
        versions=_versions(deployed),
        latency_ms=latency,
        stack=found,
        table=table,
        ttl=looks.at("ttl", lambda: _ttl(aws, name)),
        pitr=looks.at("pitr", lambda: _pitr(aws, name)),
        aggregator=around("aggregator", lambda: _aggregator(aws, name)),
        stream_mapping=around("stream mapping", lambda: _mapping(aws, name)),
        dead_letters=around("dead letters", lambda: _dead_letters(aws, name)),
        namespaces=looks.at("namespaces", lambda: _namespaces(store)),
        troubles=looks.told(),
    )


def _can_be_deployed(name: str) -> bool:
    """Whether a stack can have the name; a table made without one can be called otherwise."""
    try:
        names.stack(name)
    except ValidationError:
        return False
    return True


def _unseen(part: str, look: Callable[[], T]) -> T | None:
    return None


def _silent(troubles: Mapping[str, InfrastructureError]) -> bool:
    """Whether nobody answers at all: then there is nothing more to look at."""
    return bool(troubles) and all(isinstance(error, RateLimiterUnavailable) for error in troubles.values())


def _nothing(aws: Aws, name: str, troubles: Mapping[str, InfrastructureError]) -> InfrastructureError:
    """What to say where there is nothing to show."""
    return next(iter(troubles.values()), None) or InfrastructureNotFoundError(
        f"Neither a stack nor a table {name!r} exists in {aws.region}: {OTHER_REGION}, "
        f"else deploy it with `zae-limiter deploy --name {name}`."
    )


def _only_denied(troubles: Mapping[str, InfrastructureError]) -> bool:
    return isinstance(troubles.get("read"), AccessDeniedError)


def _timed_read(store: DynamoStore) -> tuple[float, version.Deployed | None]:
    """One read of the version record, and what it took; the first call looks up credentials and connects."""
    run(store.read([version.key()]))
    started = perf_counter()
    image = run(store.read([version.key()]))[0]
    latency = round((perf_counter() - started) * 1000, 3)
    return latency, None if image is None else version.decode(image)


def _stack(aws: Aws, name: str) -> StackHealth | None:
    found = stack.describe(aws, name)
    if found is None or not (found.managed or found.older):
        return None
    return StackHealth(found.status, f"of {found.older}" if found.older else found.reason or None)


def _table(aws: Aws, name: str) -> TableHealth:
    found = aws.call("dynamodb", "describe_table", TableName=name)["Table"]
    return TableHealth(
        status=found["TableStatus"],
        items=found.get("ItemCount", 0),
        size_bytes=found.get("TableSizeBytes", 0),
        stream=bool(found.get("StreamSpecification", {}).get("StreamEnabled")),
        deletion_protection=bool(found.get("DeletionProtectionEnabled")),
    )


def _ttl(aws: Aws, name: str) -> str:
    answer = aws.call("dynamodb", "describe_time_to_live", TableName=name)
    return str(answer["TimeToLiveDescription"].get("TimeToLiveStatus", "DISABLED"))


def _pitr(aws: Aws, name: str) -> str:
    answer = aws.call("dynamodb", "describe_continuous_backups", TableName=name)["ContinuousBackupsDescription"]
    found: dict[str, Any] = answer.get("PointInTimeRecoveryDescription", {})
    days = found.get("RecoveryPeriodInDays")
    status = str(found.get("PointInTimeRecoveryStatus", "DISABLED"))
    return f"{status}, {days} days" if days and status == "ENABLED" else status


def _aggregator(aws: Aws, name: str) -> AggregatorHealth:
    found = aws.call("lambda", "get_function_configuration", FunctionName=function_name(name))
    return AggregatorHealth(found.get("State", "Active"), code.is_current(found), found.get("LastUpdateStatus"))


def _mapping(aws: Aws, name: str) -> str | None:
    answer = aws.call("lambda", "list_event_source_mappings", FunctionName=function_name(name))
    return next((str(each["State"]) for each in answer["EventSourceMappings"]), None)


def _dead_letters(aws: Aws, name: str) -> int:
    url = aws.call("sqs", "get_queue_url", QueueName=queue_name(name))["QueueUrl"]
    wanted = ["ApproximateNumberOfMessages"]
    answer = aws.call("sqs", "get_queue_attributes", QueueUrl=url, AttributeNames=wanted)
    return int(answer["Attributes"][wanted[0]])


def _versions(deployed: version.Deployed | None) -> Versions:
    if deployed is None:
        return Versions(__version__)
    return Versions(__version__, deployed.schema, deployed.client_min, deployed.aggregator)


def _namespaces(store: DynamoStore) -> int:
    query, count = Query(keys.registry(), prefix=keys.NAMESPACE_PREFIX), 0
    while True:
        page = run(store.query(query))
        count += len(page.items)
        if page.cursor is None:
            return count
        query = query._replace(after=page.cursor)
