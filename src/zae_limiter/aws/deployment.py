"""Deploy the stack, the aggregator's code and the version record, and delete them with table and archive.

Repeating a deployment changes nothing. Names and roles are checked first: CloudFormation would find out too, after a
minute and a rollback. What these credentials may not read is skipped. Protected resources are not deleted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ..core import names
from ..core.errors import (
    AccessDeniedError,
    InfrastructureNotFoundError,
    StackAlreadyExistsError,
    StackOperationError,
    ValidationError,
)
from ..core.reports import LimiterInfo
from ..records import version
from ..records.algebra import Committed
from ..runtime.blocking import run
from ..stores.dynamodb.answers import OTHER_REGION
from ..stores.dynamodb.client import Options, open_client
from ..stores.dynamodb.store import DynamoStore
from . import package, stack, template
from .adoption import import_table
from .archive import delete_bucket, has_objects, list_archives, list_empty_archives
from .calls import Aws, name_stack, poll
from .events import Event
from .stack import DesiredStack, FollowOptions, Stack
from .stack_options import StackOptions
from .template import function_name, log_group, queue_name

if TYPE_CHECKING:
    from ..stores.port import Store

_GUARDS = (
    *("enable_deletion_protection", "pitr_recovery_days", "kms_key_arn"),
    *("audit_archive_versioning", "audit_archive_lock_days", "audit_archive_lock_mode"),
)
"""Options that guard the data of a stack."""


class Deployment(NamedTuple):
    """The result of a deployment."""

    name: str
    region: str
    stack: str
    """``created``, ``updated`` or ``unchanged``."""
    code: str | None
    """``uploaded``, ``unchanged`` or ``from S3``; None without an aggregator, and without waiting for one."""
    resources: Mapping[str, str]
    """What the stack says that it holds."""


@name_stack
def deploy(
    aws: Aws,
    name: str,
    options: StackOptions,
    *,
    progress: Callable[[Event], object] | None = None,
    wait: bool = True,
    adopt: bool = False,
) -> Deployment:
    """Create or update the deployment so that it matches ``options``. Return what was changed.

    ``progress`` is called with each event of the stack. Without ``wait`` only the stack operation is started; a later
    `deploy` uploads the code and protects a new table. ``adopt`` imports an existing table, which else is an error.
    """
    options.check_stack_name(name)
    parameters = template.encode_parameters(name, _keep_iam_names(aws, name, options))
    archives = options.enable_aggregator and options.enable_audit_archival
    obsolete = [] if archives else list_empty_archives(aws, name)
    _check_lock(aws, name, options)
    _check_role(aws, options)
    free = partial(_check_names, aws, name, options)
    later = stack.PROTECT_LATER if options.enable_deletion_protection else {}
    wanted = DesiredStack(template.read_template(), parameters, stack.add_own_tags(options.tags), free, later)
    watch = FollowOptions(progress)
    if adopt:
        import_table(aws, name, wanted, watch)
    if not wait:
        return Deployment(name, aws.region, stack.apply(aws, name, wanted, watch, wait=False), None, {})
    done = stack.apply(aws, name, wanted, watch)
    if done == stack.CREATED and wanted.at_creation:  # a new table is protected last
        stack.apply(aws, name, wanted, watch)
    for bucket in obsolete:
        delete_bucket(aws, bucket)
    uploaded = package.upload(aws, name) if options.enable_aggregator else None
    stamp(aws, name, options)
    found = stack.find_own(aws, name)
    return Deployment(name, aws.region, done, uploaded, {} if found is None else found.outputs)


def _keep_iam_names(aws: Aws, name: str, options: StackOptions) -> StackOptions:
    """Return the options with the kind of IAM names that an existing stack has, unless they say which to use.

    Under another name a role or policy is another one: users of the former one would lose their rights.
    """
    if options.region_in_iam_names is not None or not options.create_iam:
        return options
    present = _read_present(aws, name)
    return replace(options, region_in_iam_names=present is None or present.region_in_iam_names is not False)


def keep_guards(aws: Aws, name: str, options: StackOptions) -> StackOptions:
    """Return the options with what guards the data of an existing stack, where they do not say otherwise.

    Code that deploys when it starts does not turn off what an operator has turned on.
    """
    present, usual = _read_present(aws, name), StackOptions()
    if present is None:
        return options
    unsaid = [field for field in _GUARDS if getattr(options, field) == getattr(usual, field)]
    return replace(options, **{field: getattr(present, field) for field in unsaid})


def _read_present(aws: Aws, name: str) -> StackOptions | None:
    """Return the options of our stack of this name, or None; whose it is, is checked later."""
    found = stack.find_living(aws, name)
    return None if found is None else options_of(found)


def _check_names(aws: Aws, name: str, options: StackOptions) -> None:
    """Raise `StackAlreadyExistsError` if a name of a new stack's resources is taken."""
    function, queue, group = function_name(name), queue_name(name), log_group(name)
    fix = "Choose another name, or delete it first."
    if aws.call_if_allowed("dynamodb", "describe_table", TableName=name) is not None:
        taken, fix = f"DynamoDB table {name!r}", "Choose another name, or import it with --adopt."
    elif not options.enable_aggregator:
        return
    elif aws.call_if_allowed("lambda", "get_function_configuration", FunctionName=function) is not None:
        taken = f"Lambda function {function!r}"
    elif aws.call_if_allowed("sqs", "get_queue_url", QueueName=queue) is not None:
        taken = f"SQS queue {queue!r}"
    else:
        found = aws.call_if_allowed("logs", "describe_log_groups", logGroupNamePrefix=group) or {"logGroups": ()}
        if all(each["logGroupName"] != group for each in found["logGroups"]):
            return
        taken = f"log group {group!r}"
    raise StackAlreadyExistsError(
        f"The {taken} exists in {aws.region} and is not part of a zae-limiter stack; nothing was changed. {fix}"
    )


def _check_lock(aws: Aws, name: str, options: StackOptions) -> None:
    """Raise `ValidationError` if Object Lock of an existing archive is to be turned off, which S3 does not do."""
    present = _read_present(aws, name)
    archives = all(each and each.enable_aggregator and each.enable_audit_archival for each in (present, options))
    locked = present is not None and present.audit_archive_lock_days is not None
    if archives and locked and options.audit_archive_lock_days is None:
        reason = (
            "cannot be turned off, because S3 never takes Object Lock from a bucket; set it to 1, so that new objects "
            "are locked for a day only"
        )
        raise ValidationError("audit_archive_lock_days", None, reason)


def _check_role(aws: Aws, options: StackOptions) -> None:
    """Raise `ValidationError` if the given role belongs to this account and does not exist."""
    arn = options.aggregator_role_arn
    if arn is None:
        return
    try:
        if arn.split(":")[4] == aws.call("sts", "get_caller_identity")["Account"]:
            aws.call("iam", "get_role", RoleName=arn.rpartition("/")[2])
    except InfrastructureNotFoundError as error:
        reason = "does not exist in this account; check the ARN, or create the role first"
        raise ValidationError("aggregator_role_arn", arn, reason) from error
    except (AccessDeniedError, StackOperationError):
        return


def stamp(aws: Aws, name: str, options: StackOptions) -> None:
    """Record what was deployed. The schema is recorded for a new table only: elsewhere an upgrade changes it."""
    client = open_client(name, blocking=True, region=aws.region, endpoint_url=aws.endpoint_url, profile=aws.profile)
    store = DynamoStore(client)
    aggregator = package.find_version(aws, name, options) if options.enable_aggregator else None
    deployed = version.Deployed(aggregator=aggregator, audit_retention_days=options.audit_retention_days)
    write = version.stamp(deployed)
    try:
        stamped, *older = run(store.read([version.KEY, *version.UNPREFIXED]))
        if stamped is None and any(older):
            return
        if stamped is None and isinstance(run(store.commit(version.stamp_new(deployed))), Committed):
            return
        put = {attr: value for attr, value in write.put.items() if attr not in ("schema_version", "client_min_version")}
        run(store.commit([write._replace(put=put, remove=() if aggregator else ("lambda_version",))]))
    finally:
        run(store.close())


def deploy_store(store: Store, options: StackOptions) -> Deployment:
    """Deploy the stack that ``store`` needs, under the store's own name and region."""
    told = _client_options(store, options)
    with Aws.of(told) as aws:
        return deploy(aws, told.table, keep_guards(aws, told.table, options))


def delete_store(store: Store) -> None:
    """Delete the stack of ``store`` and everything in it. Raise `InfrastructureNotFoundError` if it does not exist."""
    told = _client_options(store, None)
    with Aws.of(told) as aws:
        delete(aws, told.table)


def renew_aggregator(store: Store) -> str:
    """Upload this version's code to the aggregator of ``store``. Return ``uploaded`` or ``unchanged``.

    Raise `InfrastructureNotFoundError` if no stack of ours holds the table: the function of another one is not changed.
    """
    told = _client_options(store, None)
    with Aws.of(told) as aws:
        if stack.find_living(aws, told.table) is None:
            raise InfrastructureNotFoundError(f"No stack of this version holds table {told.table!r} in {aws.region}.")
        return package.upload(aws, told.table)


def list_deployed(region: str | None, endpoint_url: str | None) -> list[LimiterInfo]:
    """Return the limiters that are deployed in the account, sorted by name."""
    with Aws(region, endpoint_url) as aws:
        return stack.find_limiters(aws)


def check_store(store: Store, options: StackOptions) -> None:
    """Raise `ValidationError` if ``options`` cannot be deployed for ``store``. Makes no call."""
    options.check_stack_name(_client_options(store, options).table)


def _client_options(store: Store, options: StackOptions | None) -> Options:
    if not isinstance(store, DynamoStore):
        raise ValidationError("stack_options", options, f"is not supported on the {store.capabilities.name} store")
    return store.client.options


def read_options(aws: Aws, name: str, new: StackOptions | None = None) -> StackOptions:
    """Return the options of the deployed stack; if there is none, ``new`` or the defaults."""
    found = stack.find_own(aws, name)
    if found is None or found.is_dead or found.status == stack.IMPORTED:  # an import deploys no options
        return new or StackOptions()
    return options_of(found)


def options_of(found: Stack) -> StackOptions:
    """Return the options that a stack was deployed with."""
    return replace(StackOptions.from_parameters(found.parameters), tags=found.user_tags)


@name_stack
def delete(
    aws: Aws,
    name: str,
    *,
    progress: Callable[[Event], object] | None = None,
    wait: bool = True,
    force: bool = False,
) -> list[str]:
    """Delete the stack and everything in it. Return the archives that Object Lock does not let anybody delete.

    CloudFormation retains table and archive, so they are deleted first: an interrupted deletion can be repeated while
    the stack is there.

    ``progress`` is called with each event of the stack. Without ``wait`` the data are deleted, and the deletion of the
    rest only begins. ``force`` also deletes a protected table, and archived events that are locked in the mode
    GOVERNANCE. Raise `InfrastructureNotFoundError` if the stack does not exist, `StackOperationError` if protected.
    """
    found = require_stack(aws, name)
    check_unprotected(aws, found, force=force)
    watch = FollowOptions(progress)
    kept: list[str] = []
    if stack.wait_until_idle(aws, found, watch):
        for table in stack.list_resources(aws, found, "AWS::DynamoDB::Table"):
            _delete_table(aws, table, force)
        for bucket in list_archives(aws, found):
            if read_lock_mode(found) == "COMPLIANCE" and has_objects(aws, bucket):
                kept.append(bucket)
            else:
                delete_bucket(aws, bucket, bypass_lock=force and read_lock_mode(found) is not None)
        stack.remove(aws, found, watch, wait=wait)
    if wait:  # a running invocation can recreate the log group after CloudFormation has deleted it
        aws.call_if_allowed("logs", "delete_log_group", logGroupName=log_group(name))
    return kept


def read_lock_mode(found: Stack) -> str | None:
    """Return the mode in which Object Lock keeps the archive of a stack, or None."""
    options = options_of(found)
    return None if options.audit_archive_lock_days is None else options.audit_archive_lock_mode


def _delete_table(aws: Aws, table: str, force: bool) -> None:
    def look() -> bool | None:
        try:
            found = aws.call("dynamodb", "describe_table", TableName=table)["Table"]
            if force and found.get("DeletionProtectionEnabled"):
                aws.call("dynamodb", "update_table", TableName=table, DeletionProtectionEnabled=False)
            elif found["TableStatus"] == "ACTIVE":
                aws.call("dynamodb", "delete_table", TableName=table)
        except InfrastructureNotFoundError:
            return True
        return None

    busy = StackOperationError(f"Table {table!r} is still being deleted; rerun to keep waiting.")
    poll(look, time.sleep, busy, looks=150)


def require_stack(aws: Aws, name: str) -> Stack:
    """Return our stack called ``name``. Raise `InfrastructureNotFoundError` if it does not exist."""
    found = stack.find_own(aws, names.stack(name))
    if found is None:
        raise InfrastructureNotFoundError(
            f"Stack {name!r} does not exist in {aws.region}: {OTHER_REGION}. `zae-limiter list` has the names."
        )
    return found


def check_unprotected(aws: Aws, found: Stack, *, force: bool = False) -> None:
    """Raise `StackOperationError` if the stack, its table or its archive is protected against deletion.

    With ``force`` only what `delete` cannot delete with it either is checked.
    """
    if found.is_protected:
        raise StackOperationError(
            f"Stack {found.name!r} has termination protection; nothing was deleted. Turn it off with `aws "
            "cloudformation update-termination-protection --no-enable-termination-protection "
            f"--stack-name {found.name}`."
        )
    if force:
        return
    place = f"--name {found.name} --region {aws.region}"
    table = aws.call_if_allowed("dynamodb", "describe_table", TableName=found.name)
    if table is not None and table["Table"].get("DeletionProtectionEnabled"):
        raise StackOperationError(
            f"Table {found.name!r} has deletion protection; nothing was deleted. `zae-limiter delete {place} --force` "
            f"deletes it all the same; `zae-limiter deploy {place} --no-deletion-protection` turns it off."
        )
    if read_lock_mode(found) == "GOVERNANCE" and any(has_objects(aws, bucket) for bucket in list_archives(aws, found)):
        raise StackOperationError(
            f"The archive of {found.name!r} is locked (GOVERNANCE); nothing was deleted. `zae-limiter delete {place} "
            "--force` deletes it, with the permission s3:BypassGovernanceRetention."
        )
