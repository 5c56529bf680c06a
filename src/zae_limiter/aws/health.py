"""Check the health of a deployed limiter, part by part.

A part that fails, or that these credentials may not read, is reported under ``troubles``; the others are shown.
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
from . import package, stack
from .calls import Aws
from .template import function_name, queue_name

if TYPE_CHECKING:
    from ..stores.port import Store

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StackHealth:
    """The status of the stack and the reason for it."""

    status: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class TableHealth:
    """The status of the table. DynamoDB updates the counts of items and bytes about every six hours."""

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
    """The versions of this client and of the deployment."""

    client: str
    schema: str | None = None
    client_min: str | None = None
    aggregator: str | None = None


@dataclass(frozen=True, slots=True)
class Health:
    """The health of all parts. None means that a part does not exist or could not be read."""

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


class _PartChecks:
    """Runs checks one by one and collects their errors instead of raising them."""

    def __init__(self) -> None:
        self.errors: dict[str, InfrastructureError] = {}

    @property
    def troubles(self) -> dict[str, str]:
        """The errors by part, as texts."""
        return {part: str(error) for part, error in self.errors.items()}

    def check(self, part: str, look: Callable[[], T]) -> T | None:
        """Return the result of ``look``, or None if the part does not exist or the check fails."""
        try:
            return look()
        except InfrastructureNotFoundError:
            return None
        except InfrastructureError as error:
            self.errors[part] = error
            return None


def check_health(store: Store) -> Health:
    """Return the health of the limiter behind a blocking DynamoDB store."""
    if not isinstance(store, DynamoStore):
        raise ValidationError("store", store, f"is a {store.capabilities.name} store; only DynamoDB is deployed on AWS")
    options = store.client.options
    with Aws(options.region, options.endpoint_url, options.profile) as aws:
        return _check_parts(aws, options.table, store)


def _check_parts(aws: Aws, name: str, store: DynamoStore) -> Health:
    checks = _PartChecks()
    answer = checks.check("read", lambda: _measure_read(store))
    table = checks.check("table", lambda: _read_table(aws, name))
    silent = checks.errors and all(isinstance(error, RateLimiterUnavailable) for error in checks.errors.values())
    if answer is None and table is None and silent:  # further checks are pointless
        return Health(name, aws.region, False, Versions(__version__), checks.troubles)
    around = checks.check if _is_stack_name(name) else _skip
    found = around("stack", lambda: _read_stack(aws, name))
    if table is None and found is None:
        raise next(iter(checks.errors.values()), None) or InfrastructureNotFoundError(
            f"Neither a stack nor a table {name!r} exists in {aws.region}: {OTHER_REGION}, "
            f"else deploy it with `zae-limiter deploy --name {name}`."
        )
    latency, deployed = answer or (None, None)
    only_denied = table is not None and isinstance(checks.errors.get("read"), AccessDeniedError)
    return Health(
        name=name,
        region=aws.region,
        available=answer is not None or only_denied,
        versions=Versions(__version__, *(deployed or ())[:3]),
        latency_ms=latency,
        stack=found,
        table=table,
        ttl=checks.check("ttl", lambda: _read_ttl(aws, name)),
        pitr=checks.check("pitr", lambda: _read_pitr(aws, name)),
        aggregator=around("aggregator", lambda: _read_aggregator(aws, name)),
        stream_mapping=around("stream mapping", lambda: _read_stream_mapping(aws, name)),
        dead_letters=around("dead letters", lambda: _count_dead_letters(aws, name)),
        namespaces=checks.check("namespaces", lambda: _count_namespaces(store)),
        troubles=checks.troubles,
    )


def _is_stack_name(name: str) -> bool:
    """Return whether a stack can have this name. A table created without a stack may have another."""
    try:
        names.stack(name)
    except ValidationError:
        return False
    return True


def _skip(part: str, look: Callable[[], T]) -> T | None:
    return None


def _measure_read(store: DynamoStore) -> tuple[float, version.Deployed | None]:
    """Read the version record. Return the latency in ms and the record. The first, unmeasured read connects."""
    run(store.read([version.key()]))
    started = perf_counter()
    image = run(store.read([version.key()]))[0]
    latency = round((perf_counter() - started) * 1000, 3)
    return latency, None if image is None else version.decode(image)


def _read_stack(aws: Aws, name: str) -> StackHealth | None:
    found = stack.describe(aws, name)
    if found is None or not (found.is_managed or found.older_version):
        return None
    return StackHealth(found.status, f"of {found.older_version}" if found.older_version else found.reason or None)


def _read_table(aws: Aws, name: str) -> TableHealth:
    found = aws.call("dynamodb", "describe_table", TableName=name)["Table"]
    return TableHealth(
        status=found["TableStatus"],
        items=found.get("ItemCount", 0),
        size_bytes=found.get("TableSizeBytes", 0),
        stream=bool(found.get("StreamSpecification", {}).get("StreamEnabled")),
        deletion_protection=bool(found.get("DeletionProtectionEnabled")),
    )


def _read_ttl(aws: Aws, name: str) -> str:
    answer = aws.call("dynamodb", "describe_time_to_live", TableName=name)
    return str(answer["TimeToLiveDescription"].get("TimeToLiveStatus", "DISABLED"))


def _read_pitr(aws: Aws, name: str) -> str:
    answer = aws.call("dynamodb", "describe_continuous_backups", TableName=name)["ContinuousBackupsDescription"]
    found: dict[str, Any] = answer.get("PointInTimeRecoveryDescription", {})
    days = found.get("RecoveryPeriodInDays")
    status = str(found.get("PointInTimeRecoveryStatus", "DISABLED"))
    return f"{status}, {days} days" if days and status == "ENABLED" else status


def _read_aggregator(aws: Aws, name: str) -> AggregatorHealth:
    found = aws.call("lambda", "get_function_configuration", FunctionName=function_name(name))
    return AggregatorHealth(found.get("State", "Active"), package.is_current(found), found.get("LastUpdateStatus"))


def _read_stream_mapping(aws: Aws, name: str) -> str | None:
    answer = aws.call("lambda", "list_event_source_mappings", FunctionName=function_name(name))
    return next((str(each["State"]) for each in answer["EventSourceMappings"]), None)


def _count_dead_letters(aws: Aws, name: str) -> int:
    url = aws.call("sqs", "get_queue_url", QueueName=queue_name(name))["QueueUrl"]
    count = "ApproximateNumberOfMessages"
    return int(aws.call("sqs", "get_queue_attributes", QueueUrl=url, AttributeNames=[count])["Attributes"][count])


def _count_namespaces(store: DynamoStore) -> int:
    query, count = Query(keys.registry(), prefix=keys.NAMESPACE_PREFIX), 0
    while True:
        page = run(store.query(query))
        count += len(page.items)
        if page.cursor is None:
            return count
        query = query._replace(after=page.cursor)
