"""Write the version record of a deployment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._version import __version__
from ..records import version
from ..records.algebra import ABSENT, Committed
from ..runtime.blocking import run
from ..stores.dynamodb.client import open_client
from ..stores.dynamodb.store import DynamoStore

if TYPE_CHECKING:
    from ..core.reports import StackOptions
    from ..records.algebra import Write
    from .calls import Aws

_SCHEMA = ("schema_version", "client_min_version")
_AGGREGATOR = "lambda_version"


def stamp(aws: Aws, name: str, options: StackOptions) -> None:
    """Record what was deployed. The schema is recorded for a new table only: elsewhere an upgrade changes it."""
    client = open_client(name, blocking=True, region=aws.region, endpoint_url=aws.endpoint_url, profile=aws.profile)
    store = DynamoStore(client)
    try:
        stamped, *older = run(store.read([version.key(), *version.UNPREFIXED]))
        if stamped is None and any(older):
            return
        first = _new_record(options)
        if stamped is not None or not isinstance(run(store.commit([first])), Committed):
            run(store.commit([_update_record(first)]))
    finally:
        run(store.close())


def _new_record(options: StackOptions) -> Write:
    aggregator = __version__ if options.enable_aggregator else None
    deployed = version.Deployed(aggregator=aggregator, audit_retention_days=options.audit_retention_days)
    return version.stamp(deployed)._replace(guards=(ABSENT,))


def _update_record(first: Write) -> Write:
    """Return the write for an existing record: without the schema, and without a removed aggregator's version."""
    put = {attr: value for attr, value in first.put.items() if attr not in _SCHEMA}
    return first._replace(guards=(), put=put, remove=() if _AGGREGATOR in put else (_AGGREGATOR,))
