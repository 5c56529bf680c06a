"""An upgrade as a whole: what is old, and the steps that renew it.

In this order: the table's shape (where no stack of ours keeps it), the stack with its template and the aggregator's
code, the data, and last the version record. Each step finds out by itself what is left of it, so an upgrade can be
repeated after any end, and two at once do no harm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ..._version import __version__
from ...core.errors import CorruptRecordError, InfrastructureNotFoundError
from ...records import keys, namespace, version
from ...runtime.blocking import run
from ...stores.dynamodb.answers import OTHER_REGION
from ...stores.dynamodb.reshaping import missing, reshape
from .. import code, deployment, stack, tags
from ..calls import Aws
from ..resources import function_name
from ..stamping import stamp
from .runner import Report, Runner

if TYPE_CHECKING:
    from ...records.algebra import Image
    from ...stores.dynamodb.store import DynamoStore
    from ..events import Event
    from ..stack import Stack


class Plan(NamedTuple):
    """What is old."""

    table: tuple[str, ...] = ()
    """The steps that the table's shape needs."""
    stack: bool = False
    """Whether the stack was deployed by another version."""
    code: bool = False
    """Whether the aggregator has other code."""
    data: Report | None = None
    """What would be moved; None where the version record says that everything was."""
    version: bool = False
    """Whether the version record is to be written."""

    @property
    def is_empty(self) -> bool:
        """Whether everything is as it should be."""
        return not (self.table or self.stack or self.code or self.version or (self.data and not self.data.is_empty))


class Done(NamedTuple):
    """What an upgrade has changed."""

    table: tuple[str, ...] = ()
    stack: str | None = None
    code: str | None = None
    data: Report | None = None


class Watch(NamedTuple):
    """Who hears of the progress."""

    step: Callable[[str], object] = lambda what: None
    event: Callable[[Event], object] = lambda event: None
    records: Callable[[int, int], object] = lambda done, total: None


class Upgrade:
    """The upgrade of one table; data of the time before namespaces go to ``namespace_name``."""

    def __init__(self, aws: Aws, store: DynamoStore, namespace_name: str = "default") -> None:
        self._aws = aws
        self._store = store
        self._name = store.client.table
        self._namespace_name = namespace_name

    def plan(self, *, force: bool = False, lambda_only: bool = False, watch: Watch | None = None) -> Plan:
        """Look at everything and change nothing; with ``force`` also at what the versions say is done."""
        watch = watch or Watch()
        watch.step("looking at the table")
        shape = tuple(run(missing(self._store.client)))
        found = self._stack()
        outdated_code = found is not None and self._is_code_old(found)
        if lambda_only:
            self._aggregator_of(found)
            return Plan(code=outdated_code or force)
        current = self._is_current()
        data = None
        if force or not current:
            watch.step("looking for old records")
            data = self._move(watch, dry_run=True)
        outdated = found is not None and found.tags.get(tags.VERSION) != __version__
        return Plan(() if found else shape, outdated or (force and found is not None), outdated_code, data, not current)

    def run(self, plan: Plan, *, lambda_only: bool = False, watch: Watch | None = None) -> Done:
        """Do what is planned, whatever has been done of it meanwhile."""
        watch = watch or Watch()
        found = self._stack()
        if lambda_only:
            return Done(code=self._renew_code(self._aggregator_of(found), watch))
        table = tuple(run(reshape(self._store.client, watch.step))) if plan.table and found is None else ()
        made = None
        if found is not None and (plan.stack or plan.code):
            watch.step("renewing the stack")
            options = deployment.options_of(found)
            made = deployment.deploy(self._aws, self._name, options, progress=watch.event)
        data = None
        if plan.data is not None:
            watch.step("moving records")
            data = self._move(watch)
        if plan.version:
            self._stamp()
        return Done(table, None if made is None else made.stack, None if made is None else made.code, data)

    def _stack(self) -> Stack | None:
        """The stack of ours that holds the table; None where the table was made without one."""
        found = stack.describe(self._aws, self._name)
        return found if found is not None and found.managed and not found.is_dead else None

    def _aggregator_of(self, found: Stack | None) -> Stack:
        if found is None or not deployment.options_of(found).enable_aggregator:
            raise InfrastructureNotFoundError(
                f"No aggregator is deployed for {self._name!r} in {self._aws.region}: {OTHER_REGION}, "
                f"else `zae-limiter deploy --name {self._name} --aggregator` makes one."
            )
        return found

    def _is_code_old(self, found: Stack) -> bool:
        if not deployment.options_of(found).enable_aggregator:
            return False
        function = function_name(self._name)
        return not code.is_current(self._aws.call("lambda", "get_function_configuration", FunctionName=function))

    def _renew_code(self, found: Stack, watch: Watch) -> str:
        watch.step("renewing the aggregator")
        uploaded = code.upload(self._aws, self._name)
        stamp(self._aws, self._name, deployment.options_of(found))
        return uploaded

    def _is_current(self) -> bool:
        """Whether all is said to have the present schema, and no client of an older one has come back since."""
        stamped, found = run(self._store.read([version.key(), keys.namespace(self._namespace_name)]))
        return _is_current(stamped) and (found is None or namespace.is_present(found))

    def _move(self, watch: Watch, *, dry_run: bool = False) -> Report:
        runner = Runner(self._store, self._namespace_name, dry_run=dry_run, progress=watch.records)
        return run(runner.run())

    def _stamp(self) -> None:
        """State the present schema; nobody gets here before the data have it."""
        run(self._store.commit([version.stamp(version.Deployed())]))


def _is_current(stamped: Image | None) -> bool:
    """Whether the version record says that the data have the present schema; a newer one is not ours to touch."""
    try:
        deployed = version.decode(stamped)
    except CorruptRecordError:
        return False
    if stamped is None or version.needs_upgrade(deployed):
        return False
    version.check(deployed, __version__)
    return True
