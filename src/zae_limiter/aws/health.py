"""Check the health of a deployed limiter, part by part.

A part that fails, or that these credentials may not read, is reported under ``troubles``; the others are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Thread
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
from ..v017.old_stack import find_old_stack
from . import package, stack
from .calls import Aws
from .template import function_name, queue_name

if TYPE_CHECKING:
    from ..stores.port import Store

T = TypeVar("T")

_ROLES = {"app_role_arn": "AppRoleArn", "admin_role_arn": "AdminRoleArn", "readonly_role_arn": "ReadRoleArn"}
"""Fields of `Status`, and the outputs of the stack that they are."""

DESCRIBE_SECONDS = 10.0
"""How long `describe_deployment` waits: an answer that comes in drops never ends, nor does its time-out come."""
_UNPROTECTED = "its table is not protected against deletion yet, deploy again"


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


def check_health(store: Store) -> Health:
    """Return the health of the limiter behind a blocking DynamoDB store."""
    if not isinstance(store, DynamoStore):
        raise ValidationError("store", store, f"is a {store.capabilities.name} store; only DynamoDB is deployed on AWS")
    options = store.client.options
    with Aws.of(options) as aws:
        return _HealthCheck(aws, options.table, store).run()


def describe_deployment(store: Store) -> dict[str, Any]:
    """Return the fields of `Status` about the table of a store and its stack, without those that cannot be read.

    It blocks, for `DESCRIBE_SECONDS` at most. A store that is not on AWS has none.
    """
    if not isinstance(store, DynamoStore):
        return {}
    described: Future[dict[str, Any]] = Future()
    Thread(target=_describe_store, args=(store, described), name="zae-limiter-status", daemon=True).start()
    try:
        return described.result(DESCRIBE_SECONDS)
    except TimeoutError:
        return {"name": store.client.table}


def _describe_store(store: DynamoStore, described: Future[dict[str, Any]]) -> None:
    options = store.client.options
    try:
        with Aws.of(options, hasty=True) as aws:
            found = {"region": aws.region, **_HealthCheck(aws, options.table, store).describe()}
            described.set_result({"name": options.table, **found})
    except BaseException as error:
        described.set_exception(error)


class _HealthCheck:
    """Looks at the parts one by one and collects errors instead of raising them."""

    def __init__(self, aws: Aws, name: str, store: DynamoStore) -> None:
        self._aws = aws
        self._name = name
        self._store = store
        self._errors: dict[str, InfrastructureError] = {}
        self._is_old = False

    def run(self) -> Health:
        aws, name, errors = self._aws, self._name, self._errors
        answer = self._check("read", self._measure_read)
        table = self._check("table", self._read_table)
        silent = errors and all(type(error) is RateLimiterUnavailable for error in errors.values())
        if answer is None and table is None and silent:  # further checks are pointless
            return Health(name, aws.region, False, Versions(__version__), self._troubles())
        found = self._check_in_stack("stack", self._read_stack)
        if table is None and found is None:
            raise next(iter(errors.values()), None) or InfrastructureNotFoundError(
                f"Neither a stack nor a table {name!r} exists in {aws.region}: {OTHER_REGION}, "
                f"else deploy it with `zae-limiter deploy --name {name}`."
            )
        latency, deployed = answer or (None, None)
        only_denied = table is not None and isinstance(errors.get("read"), AccessDeniedError)
        return Health(
            name=name,
            region=aws.region,
            available=answer is not None or only_denied,
            versions=Versions(__version__, *(deployed or ())[:3]),
            latency_ms=latency,
            stack=found,
            table=table,
            ttl=self._check("ttl", self._read_ttl),
            pitr=self._check("pitr", self._read_pitr),
            aggregator=self._check_function("aggregator", self._read_aggregator),
            stream_mapping=self._check_function("stream mapping", self._read_stream_mapping),
            dead_letters=self._check_function("dead letters", self._count_dead_letters),
            namespaces=self._check("namespaces", self._count_namespaces),
            troubles=self._troubles(),
        )

    def describe(self) -> dict[str, Any]:
        """Return what `describe_deployment` does, of the table and of the stack."""
        table = self._check("table", self._read_table)
        found = self._check_in_stack("stack", lambda: stack.describe(self._aws, self._name))
        fields: dict[str, Any] = {}
        if table is not None:
            counts = {"table_item_count": table.items, "table_size_bytes": table.size_bytes}
            fields |= {"table_status": table.status, **counts}
        if found is not None and (found.is_managed or found.older_version):
            roles = {name: found.outputs.get(output) for name, output in _ROLES.items()}
            fields |= {"stack_status": found.status, "aggregator_enabled": "FunctionName" in found.outputs, **roles}
        return fields

    def _check(self, part: str, look: Callable[[], T]) -> T | None:
        """Return the result of ``look``, or None if the part does not exist or the check fails."""
        try:
            return look()
        except InfrastructureNotFoundError:
            return None
        except InfrastructureError as error:
            self._errors[part] = error
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            self._errors[part] = RateLimiterUnavailable(f"The answer about it cannot be read: {error!r}", error)
        return None

    def _check_in_stack(self, part: str, look: Callable[[], T]) -> T | None:
        """Do the same for a part that only stacks have: a table created without one may have a name that none can."""
        try:
            names.stack(self._name)
        except ValidationError:
            return None
        return self._check(part, look)

    def _check_function(self, part: str, look: Callable[[], T]) -> T | None:
        """Do the same for a part of the aggregator: that of an older version's stack is not ours."""
        return None if self._is_old else self._check_in_stack(part, look)

    def _troubles(self) -> dict[str, str]:
        return {part: str(error) for part, error in self._errors.items()}

    def _measure_read(self) -> tuple[float, version.Deployed | None]:
        """Read the version record. Return the latency in ms and the record. The first, unmeasured read connects."""
        run(self._store.read([version.KEY]))
        started = perf_counter()
        image = run(self._store.read([version.KEY]))[0]
        latency = round((perf_counter() - started) * 1000, 3)
        return latency, None if image is None else version.decode(image)

    def _read_stack(self) -> StackHealth | None:
        found = stack.describe(self._aws, self._name)
        if found is None or not (found.is_managed or found.older_version):
            return None
        self._is_old = found.older_version is not None
        if self._is_old:
            return StackHealth(found.status, self._describe_old_stack())
        reasons = [found.reason, _UNPROTECTED if found.lacks_protection and not found.is_busy else ""]
        return StackHealth(found.status, "; ".join(filter(None, reasons)) or None)

    def _describe_old_stack(self) -> str | None:
        old = find_old_stack(self._aws, self._name)
        if old is None:
            return None
        running = ", ".join(old.running.values())
        fix = f"; its function {running} reads the stream until `zae-limiter upgrade` stops it" if running else ""
        return f"of {old.version}{fix}"

    def _read_table(self) -> TableHealth:
        found = self._aws.call("dynamodb", "describe_table", TableName=self._name)["Table"]
        if not isinstance(found["TableStatus"], str):
            raise ValueError(found["TableStatus"])
        return TableHealth(
            status=found["TableStatus"],
            items=int(found.get("ItemCount", 0)),
            size_bytes=int(found.get("TableSizeBytes", 0)),
            stream=bool(found.get("StreamSpecification", {}).get("StreamEnabled")),
            deletion_protection=bool(found.get("DeletionProtectionEnabled")),
        )

    def _read_ttl(self) -> str:
        answer = self._aws.call("dynamodb", "describe_time_to_live", TableName=self._name)
        return str(answer["TimeToLiveDescription"].get("TimeToLiveStatus", "DISABLED"))

    def _read_pitr(self) -> str:
        answer = self._aws.call("dynamodb", "describe_continuous_backups", TableName=self._name)
        found = answer["ContinuousBackupsDescription"].get("PointInTimeRecoveryDescription", {})
        status, days = str(found.get("PointInTimeRecoveryStatus", "DISABLED")), found.get("RecoveryPeriodInDays")
        return f"{status}, {days} days" if days and status == "ENABLED" else status

    def _read_aggregator(self) -> AggregatorHealth:
        found = self._aws.call("lambda", "get_function_configuration", FunctionName=function_name(self._name))
        return AggregatorHealth(found.get("State", "Active"), package.is_current(found), found.get("LastUpdateStatus"))

    def _read_stream_mapping(self) -> str | None:
        answer = self._aws.call("lambda", "list_event_source_mappings", FunctionName=function_name(self._name))
        return next((str(each["State"]) for each in answer["EventSourceMappings"]), None)

    def _count_dead_letters(self) -> int:
        url = self._aws.call("sqs", "get_queue_url", QueueName=queue_name(self._name))["QueueUrl"]
        count = "ApproximateNumberOfMessages"
        answer = self._aws.call("sqs", "get_queue_attributes", QueueUrl=url, AttributeNames=[count])
        return int(answer["Attributes"][count])

    def _count_namespaces(self) -> int:
        query, count = Query(keys.REGISTRY, prefix=keys.NAMESPACE_PREFIX), 0
        while True:
            page = run(self._store.query(query))
            count += len(page.items)
            if page.cursor is None:
                return count
            query = query._replace(after=page.cursor)
