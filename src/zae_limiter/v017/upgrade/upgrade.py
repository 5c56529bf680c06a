"""A whole upgrade: plan it, and carry it out step by step.

In this order: the table's shape (if no stack of ours manages it), the stack with its template and the aggregator's
code, the data, and last the version record. Each step finds out itself what is left to do, so an upgrade can be
repeated after any interruption, and two at once do no harm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..._version import __version__
from ...aws import deployment, package, stack
from ...aws.calls import Aws
from ...aws.events import Event
from ...aws.stack import FollowOptions, Stack
from ...aws.template import function_name
from ...core.errors import InfrastructureNotFoundError, StackOperationError
from ...records import keys, namespace, version
from ...runtime.blocking import run
from ...stores.dynamodb.answers import OTHER_REGION
from ...stores.dynamodb.store import DynamoStore
from ...stores.dynamodb.table import missing_steps, reshape
from ..old_stack import OldStack, find_old_stack, release_table, stop_functions
from .runner import NOTHING, MoveReport, Runner, count_left, is_unfinished, name_older_aggregator
from .stragglers import Stragglers, find_stragglers, join_resources


class UpgradePlan(NamedTuple):
    """The parts that are out of date."""

    table: tuple[str, ...] = ()
    """The steps that the table's shape needs."""
    stack: bool = False
    """Whether the stack was deployed by another version."""
    code: bool = False
    """Whether the aggregator has other code."""
    data: MoveReport | None = None
    """What would be moved; None if the version record says that everything was."""
    version: bool = False
    """Whether the version record is to be written."""
    stragglers: Stragglers = Stragglers()
    """What clients from before namespaces have written after an upgrade."""
    old_stack: OldStack | None = None
    """The stack of a version before 1.0 that holds the table. Its functions are stopped."""
    release: bool = False
    """Whether that stack is deleted, without the table."""

    @property
    def report(self) -> MoveReport:
        """What would be moved, empty if everything was."""
        return self.data or NOTHING

    @property
    def functions(self) -> tuple[str, ...]:
        """The functions of an older stack that are stopped."""
        return () if self.old_stack is None else tuple(self.old_stack.running.values())

    @property
    def is_empty(self) -> bool:
        """Whether everything is up to date."""
        own = self.table or self.stack or self.code or self.version or not self.report.is_empty
        return not (own or self.functions or self.release)


class UpgradeResult(NamedTuple):
    """The changes that an upgrade has made."""

    table: tuple[str, ...] = ()
    stack: str | None = None
    code: str | None = None
    report: MoveReport = NOTHING


class UpgradeProgress(NamedTuple):
    """Callbacks for the progress of an upgrade."""

    step: Callable[[str], object] = lambda what: None
    event: Callable[[Event], object] = lambda event: None
    records: Callable[[int, int], object] = lambda done, total: None


class Upgrade:
    """The upgrade of one table. Data from before namespaces are moved to ``namespace_name``."""

    def __init__(self, aws: Aws, store: DynamoStore, namespace_name: str) -> None:
        self._aws = aws
        self._store = store
        self._name = store.client.table
        self._namespace_name = namespace_name

    def plan(
        self, *, force: bool, lambda_only: bool, watch: UpgradeProgress, release_stack: bool = False
    ) -> UpgradePlan:
        """Return what is out of date and change nothing.

        ``force`` ignores what the version records say; ``release_stack`` deletes a stack of an older version.
        """
        watch.step("looking at the table")
        shape = tuple(run(missing_steps(self._store.client)))
        found = stack.find_living(self._aws, self._name)
        outdated_code = self._has_outdated_code(found, lambda_only)
        if lambda_only:
            self._aggregator_of(found)
            return UpgradePlan(code=outdated_code or force)
        current, left, stragglers = self._look_at_version(found)
        data = None
        if force or left or not current or stragglers.records:
            watch.step("looking for old records")
            data = self._move(watch, dry_run=True)
            current = current and left == len(data.refused)
        outdated = found is not None and found.tags.get(stack.VERSION_TAG) != __version__
        renew = outdated or (force and found is not None)
        old = None if found else find_old_stack(self._aws, self._name)
        release = release_stack and old is not None
        table = () if found else shape
        return UpgradePlan(table, renew, outdated_code, data, not current, stragglers, old, release)

    def _has_outdated_code(self, found: Stack | None, lambda_only: bool) -> bool:
        """Return whether our aggregator has other code that is to be uploaded."""
        if found is None or not deployment.options_of(found).enable_aggregator:
            return False
        function = function_name(self._name)
        deployed = self._aws.call("lambda", "get_function_configuration", FunctionName=function)
        if package.is_current(deployed) or not package.is_from_s3(deployed):
            return not package.is_current(deployed)
        if lambda_only:
            raise StackOperationError(
                f"The code of {function!r} comes from S3. Store this version's with `zae-limiter lambda-export --s3 "
                "s3://BUCKET/FOLDER/` and deploy that key (--code-s3-key), or let `deploy --code-s3-bucket ''` upload "
                "it."
            )
        return False  # it is renewed there

    def run(self, plan: UpgradePlan, *, lambda_only: bool, watch: UpgradeProgress) -> UpgradeResult:
        """Carry out the plan, skipping what has been done meanwhile. Return the changes."""
        found = stack.find_living(self._aws, self._name)
        if lambda_only:
            options = deployment.options_of(self._aggregator_of(found))
            watch.step("renewing the aggregator")
            uploaded = package.upload(self._aws, self._name)
            deployment.stamp(self._aws, self._name, options)
            return UpgradeResult(code=uploaded)
        if plan.old_stack is not None:
            stop_functions(self._aws, plan.old_stack)
        table = tuple(run(reshape(self._store.client, watch.step))) if plan.table and found is None else ()
        made = None
        if found is not None and (plan.stack or plan.code):
            watch.step("renewing the stack")
            made = deployment.deploy(self._aws, self._name, deployment.options_of(found), progress=watch.event)
        report = NOTHING
        if plan.data is not None:
            watch.step("moving records")
            report = self._move(watch, resources=plan.data.resources)
        if plan.version:
            run(self._store.commit([version.stamp(version.Deployed()), version.refuse_older()]))
        if plan.release and plan.old_stack is not None:
            watch.step("deleting the old stack without its table")
            release_table(self._aws, plan.old_stack, FollowOptions(watch.event))
        return UpgradeResult(table, made and made.stack, made and made.code, report)

    def _aggregator_of(self, found: Stack | None) -> Stack:
        if found is None and (old := find_old_stack(self._aws, self._name)) is not None:
            raise InfrastructureNotFoundError(
                f"The stack {self._name!r} is of {old.version}, and its function never gets code of this version. "
                f"`zae-limiter upgrade --name {self._name} --release-stack` upgrades the table and deletes that stack "
                f"without it; then `zae-limiter deploy --name {self._name} --adopt` makes an aggregator."
            )
        if found is None or not deployment.options_of(found).enable_aggregator:
            raise InfrastructureNotFoundError(
                f"No aggregator is deployed for {self._name!r} in {self._aws.region}: {OTHER_REGION}, "
                f"else `zae-limiter deploy --name {self._name} --aggregator` makes one."
            )
        return found

    def _look_at_version(self, found: Stack | None) -> tuple[bool, int, Stragglers]:
        """Return whether the data have the present schema, how many are left, and what older clients wrote since.

        Raise an error for a newer schema.
        """
        wanted = [version.KEY, version.UNPREFIXED[0], keys.namespace(self._namespace_name)]
        stamped, older, entered = run(self._store.read(wanted))
        if stamped is None or is_unfinished(stamped):
            return False, 0, Stragglers()
        deployed = version.decode(stamped)
        version.check(deployed, __version__)
        present = (entered is None or namespace.is_present(entered)) and version.refuses_older(older)
        present = present and not (found is None and name_older_aggregator(stamped))
        return present, count_left(stamped), run(find_stragglers(self._store, deployed))

    def _move(
        self, watch: UpgradeProgress, *, dry_run: bool = False, resources: frozenset[str] = frozenset()
    ) -> MoveReport:
        stamped = run(self._store.read([version.KEY]))[0]
        before = None if stamped is None else stamped.get("resources_moved")
        remember = join_resources(resources, before)
        runner = Runner(self._store, self._namespace_name, dry_run=dry_run, progress=watch.records, remember=remember)
        return run(runner.run())
