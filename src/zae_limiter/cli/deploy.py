"""Stacks on AWS: ``zae-limiter deploy``, ``delete``, ``list``, their parts for other tools, and ``create-table``."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..aws.stack_options import PRODUCTION, StackOptions
from ..core import names
from ..core.errors import ValidationError
from .arguments import combine, pairs_option
from .commands import Command, Shell, yes_option
from .grid import Cell, Grid, facts
from .output import note, show_events

if TYPE_CHECKING:
    from ..aws.calls import Aws
    from ..aws.events import Event

_FILE = click.Path(dir_okay=False, path_type=Path)
_force_option = click.option("--force", "-f", is_flag=True, help="Overwrite an existing file.")
_SWITCHES = (
    ("--aggregator/--no-aggregator", "enable_aggregator", "Count usage in a Lambda function."),
    ("--alarms/--no-alarms", "enable_alarms", "CloudWatch alarms."),
    ("--dashboard/--no-dashboard", "enable_dashboard", "A CloudWatch dashboard."),
    ("--audit-archival/--no-audit-archival", "enable_audit_archival", "Keep expired audit events in S3."),
    ("--enable-tracing/--disable-tracing", "enable_tracing", "Trace the function with X-Ray."),
    ("--iam/--no-iam", "create_iam", "Create IAM policies, and the role of the function."),
    ("--create-iam-roles/--no-iam-roles", "create_iam_roles", "Create roles for apps, admins and readers."),
    ("--require-mfa/--no-require-mfa", "require_mfa", "Demand MFA of admins and readers who assume their roles."),
    (
        "--region-in-iam-names/--no-region-in-iam-names",
        "region_in_iam_names",
        "Put the region into the names of roles and policies.  [on; an existing stack keeps its names]",
    ),
    (
        "--audit-archive-versioning/--no-audit-archive-versioning",
        "audit_archive_versioning",
        "Keep every version of archived objects.",
    ),
    (
        "--enable-deletion-protection/--no-deletion-protection",
        "enable_deletion_protection",
        "Protect the table against deletion.",
    ),
)
_NUMBERS = (
    ("--usage-retention-days", "Days for which usage snapshots are kept."),
    ("--audit-retention-days", "Days for which audit events stay in the table."),
    ("--pitr-recovery-days", "Days of point-in-time recovery, 0 for none."),
    ("--log-retention-days", "Days for which the function's log is kept."),
    ("--lambda-timeout", "Seconds the function may take for a batch."),
    ("--lambda-memory", "Its memory in MB."),
    ("--lambda-duration-threshold-pct", "Alarm when it takes this percentage of its timeout."),
    ("--lambda-reserved-concurrency", "Runs reserved for it, and its most at once; 0 for none."),
    ("--audit-archive-glacier-days", "Days until archived events move to Glacier."),
    ("--audit-archive-lock-days", "Days for which Object Lock keeps archived events; 0 for no lock."),
    ("--max-read-request-units", "Most reads per second of the table and of each index; 0 for no limit."),
    ("--max-write-request-units", "Most writes per second of the table and of each index; 0 for no limit."),
)
_TEXTS = (
    ("--snapshot-windows", "LIST", "Windows of usage: hourly, daily, monthly."),
    ("--alarm-sns-topic", "ARN", "The SNS topic for alarms; '' for none."),
    ("--permission-boundary", "POLICY", "The permission boundary of all roles, by ARN or name; '' for none."),
    ("--role-name-format", "FORMAT", "Name format of roles, e.g. 'team-{}'; '' for the plain names."),
    ("--policy-name-format", "FORMAT", "Name format of policies, e.g. 'team-{}'; '' for the plain names."),
    ("--policy-namespace-id", "ID", "The namespace of the ns policies; '' for the one in the caller's tag."),
    ("--app-role-trust", "LIST", "Services that may assume the app role: ecs, lambda, ec2, eks; '' for none."),
    ("--oidc-provider-arn", "ARN", "OIDC provider of a cluster, for a role of its service accounts; '' for none."),
    ("--oidc-subject", "TEXT", "Those accounts: system:serviceaccount:NAMESPACE:NAME; '' for none."),
    ("--aggregator-role-arn", "ARN", "A role of your own for the function; '' for none."),
    ("--lambda-architecture", "NAME", "Processors of the function: x86_64 or arm64."),
    ("--audit-archive-lock-mode", "MODE", "GOVERNANCE: who may can delete earlier; COMPLIANCE: nobody can."),
    ("--kms-key-arn", "ARN", "The key that encrypts table, archive, queue and log; '' for AWS's own."),
    ("--code-s3-bucket", "BUCKET", "Take the function's code from S3, see lambda-export; '' to upload it."),
    ("--code-s3-key", "KEY", "The key of the package."),
    ("--code-s3-version", "ID", "The version of that object; '' for the latest."),
)
_USUAL = {field.name: field.default for field in fields(StackOptions)}
"""The values where nothing is said. Options whose value is None can be nothing, which is said as 0 or ''."""


def _help(flag: str, text: str) -> str:
    """Return the help of an option, with the default of a new stack."""
    usual = getattr(PRODUCTION, flag.removeprefix("--").replace("-", "_"))
    if usual is None:
        return text
    return f"{text}  [{('off', 'on')[usual] if isinstance(usual, bool) else usual}]"


_stack_flags = combine(
    *(click.option(flag, field, default=None, help=_help(field, text)) for flag, field, text in _SWITCHES),
    *(click.option(flag, type=int, metavar="N", help=_help(flag, text)) for flag, text in _NUMBERS),
    *(click.option(flag, metavar=kind, help=_help(flag, text)) for flag, kind, text in _TEXTS),
    pairs_option(
        "--tag", "-t", "tags", help="A tag of the stack; may be repeated. The tags replace all existing ones."
    ),
)
"""An option per field of `StackOptions`; those that are not passed are None and keep their values."""


def merge_options(present: StackOptions, given: Mapping[str, Any]) -> StackOptions:
    """Return the options with those that were passed. 0 and '' clear optional ones."""
    passed = {field: value for field, value in given.items() if value is not None}
    optional = {field for field in passed if _USUAL[field] is None}
    cleared = {field: None for field in optional if not passed[field] and passed[field] is not False}
    if passed.get("code_s3_bucket") == "":  # the three name one object
        cleared |= dict.fromkeys(("code_s3_bucket", "code_s3_key", "code_s3_version"))
    elif passed.get("code_s3_key") and "code_s3_version" not in passed:
        cleared["code_s3_version"] = None
    return replace(present, **passed | cleared)


@click.command(cls=Command)
@_stack_flags
@click.option("--adopt", is_flag=True, help="Import a table of that name, made with create-table, into the stack.")
@click.option("--wait/--no-wait", default=True, help="Wait until the deployment is complete.  [wait]")
def deploy(shell: Shell, wait: bool, adopt: bool, **given: Any) -> None:
    """Create or change a stack on AWS.

    It holds the table, the function that counts usage, alarms and policies. On an existing stack, options that you do
    not pass keep their values. Repeating a deployment changes nothing, and an interrupted one can be rerun. The table
    of a new stack is protected against deletion and can be restored to any moment of 35 days.

    Examples:
      zae-limiter deploy --name my-app --region us-east-1
      zae-limiter deploy --name my-app --no-aggregator --no-alarms
      zae-limiter deploy --name try-out --no-deletion-protection --pitr-recovery-days 0
      zae-limiter deploy --name my-app --permission-boundary arn:aws:iam::123456789012:policy/dev \\
          --role-name-format "pb-{}"
      zae-limiter deploy --name my-app --endpoint-url http://localhost:4566 --region us-east-1
    """
    from ..aws import deployment
    from ..sync import SyncRepository

    name = names.stack(shell.stack())
    names.namespace(shell.namespace)
    with connect(shell) as aws:
        _check_values(name, given)
        options = merge_options(deployment.read_options(aws, name, PRODUCTION), given)
        with show_events(f"Deploying {name} to {aws.region}", quiet=shell.as_json) as tell:
            done = deployment.deploy(
                aws, name, options, progress=lambda event: tell(_spell_event(event)), wait=wait, adopt=adopt
            )
            if wait:
                with SyncRepository(name=name, region=aws.region, endpoint_url=shell.endpoint_url) as repository:
                    repository.register_namespace(shell.namespace)
    endpoint = f" --endpoint-url {shlex.quote(shell.endpoint_url)}" if shell.endpoint_url else ""
    place = f"--name {done.name} --region {done.region}{endpoint}"
    if wait:
        code = {} if done.code is None else {"aggregator code": done.code}
        stack = f"{done.name} in {done.region}, {done.stack}"
        following = f"next: zae-limiter {place} acquire key-1 gpt-4 -c rpm:1 -l rpm:60/min"
        shell.show(done._asdict(), facts({"stack": stack, **code, **done.resources}), following)
        unsaid = given["enable_deletion_protection"] is None and not shell.as_json
        if unsaid and done.stack == "updated" and not options.enable_deletion_protection:
            note("the table is not protected against deletion; --enable-deletion-protection protects it")
    else:
        state = done.stack if done.stack == "unchanged" else f"being {done.stack} in the background"
        rest = (
            "completes the deployment and protects the table" if options.enable_deletion_protection else "completes it"
        )
        following = f"next: zae-limiter deploy {place}  ({rest})"
        shell.show(done._asdict(), f"The stack {done.name} is {state}.", following)


@click.command(cls=Command)
@click.option("--force", is_flag=True, help="Also delete a protected table and a locked archive.")
@click.option("--wait/--no-wait", default=True, help="Wait until everything is deleted.  [wait]")
@yes_option
def delete(shell: Shell, wait: bool, yes: bool, force: bool) -> None:
    """Delete a stack with everything in it.

    Table, limits, usage, audit events and their archive are lost for good. A protected table is refused without
    --force. An archive that is locked in the mode COMPLIANCE stays.

    Examples:
      zae-limiter delete --name my-app --region us-east-1
      zae-limiter delete --name my-app --region us-east-1 --force --yes
    """
    from ..aws import deployment

    name = _require_name(shell)
    with connect(shell) as aws:
        deployment.check_unprotected(aws, deployment.require_stack(aws, name), force=force)
        lost = "Its table with all limits and balances, usage, audit events and their archive are lost for good."
        shell.confirm(f"Delete stack {name!r} in {aws.region}? {lost}", yes)
        with show_events(f"Deleting {name}", quiet=shell.as_json) as tell:
            kept = deployment.delete(
                aws, name, progress=lambda event: tell(_spell_event(event)), force=force, wait=wait
            )
    done = f"Deleted {name} and everything in it." if wait else f"{name} is being deleted in the background."
    if kept:
        done += f" Its archive is locked and stays: {', '.join(kept)}."
    shell.show({"name": name, "deleted": wait, "kept": kept}, done)


@click.command("list", cls=Command)
def list_limiters(shell: Shell) -> None:
    """List the stacks of zae-limiter in a region.

    Examples:
      zae-limiter list --region us-east-1
      zae-limiter list --json
    """
    from ..aws import stack

    with connect(shell) as aws:
        found = stack.find_limiters(aws)
        empty = (
            f"No limiter is deployed in {aws.region}. Choose another region with --region, or deploy one here: "
            f"zae-limiter deploy --name my-app --region {aws.region}"
        )
    rows = [
        (each.stack_name, each.region, Cell(each.status, stack_style(each.status)), each.version, each.schema_version)
        for each in found
    ]
    shell.show(found, Grid(("name", "region", "status", "version", "schema"), rows, empty))


def stack_style(status: str) -> str:
    """Return the colour of a stack's status: green, yellow while it changes, red if it needs attention."""
    if status in ("CREATE_COMPLETE", "UPDATE_COMPLETE"):
        return "green"
    return "yellow" if status.endswith("_IN_PROGRESS") else "red"


@click.command(cls=Command)
@click.option("--deletion-protection", is_flag=True, help="Protect the table against deletion.")
@pairs_option("--tag", "tags", help="A tag; may be repeated.")
def create_table(shell: Shell, deletion_protection: bool, tags: dict[str, str] | None) -> None:
    """Create the DynamoDB table of a store.

    An existing zae-limiter table is left as it is; any other table of that name is an error. Other stores need none.

    Examples:
      zae-limiter create-table --name my-app --region us-east-1
      zae-limiter create-table --url "dynamodb://my-app?region=us-east-1" --tag team=ml
    """
    repository = shell.repository()
    repository.create_table(tags=tags, deletion_protection=deletion_protection)
    name = repository.capabilities.name
    shell.show({"store": name, "ready": True}, f"The {name} store is ready.")


@click.command(cls=Command)
@click.option("--output", "-o", metavar="FILE", type=_FILE, help="Write it to a file instead.")
@_force_option
def cfn_template(shell: Shell, output: Path | None, force: bool) -> None:
    """Print the CloudFormation template.

    The stack's name becomes the name of the table. The aggregator's code is not in it: see lambda-export.

    Examples:
      zae-limiter cfn-template > template.yaml
      zae-limiter cfn-template --output template.yaml --force
    """
    from ..aws import template

    text = template.read_template()
    if output is None:
        shell.show({"template": text}, text.rstrip("\n"))
        return
    _write(output, text.encode(), force)
    shell.show({"path": str(output), "bytes": len(text.encode())}, f"The template is in {output}.")


@click.command(cls=Command)
@click.option("--output", "-o", metavar="FILE", type=_FILE, default="lambda.zip", show_default=True, help="The zip.")
@_force_option
@click.option("--info", is_flag=True, help="Only show what is in the package.")
@click.option("--s3", metavar="URL", help="Upload it to S3 instead: s3://BUCKET/KEY, or s3://BUCKET/FOLDER/.")
def lambda_export(shell: Shell, output: Path, force: bool, info: bool, s3: str | None) -> None:
    """Write the aggregator's Lambda package.

    The same version of zae-limiter always makes the same bytes; the digest is the CodeSha256 that Lambda shows. In a
    folder of S3 the object is named after version and digest.

    Examples:
      zae-limiter lambda-export --output lambda.zip
      zae-limiter lambda-export --output lambda.zip --force --json
      zae-limiter lambda-export --s3 s3://my-bucket/lambda/ --region us-east-1
    """
    from ..aws import package

    if s3 is not None:
        _store_package(shell, s3)
        return
    content = package.build()
    digest = package.sha256(content)
    if info:
        files = sorted(module.path for module in package.modules())
        lines = {"bytes": len(content), "CodeSha256": digest, "files": len(files)}
        shell.show({"bytes": len(content), "code_sha256": digest, "files": files}, facts(lines))
        return
    _write(output, content, force)
    shell.show(
        {"path": str(output), "bytes": len(content), "code_sha256": digest},
        f"The Lambda package is in {output}: {len(content):,} bytes, CodeSha256 {digest}.",
    )


def _store_package(shell: Shell, url: str) -> None:
    """Upload the package to S3 and show where it is."""
    from ..aws import package

    bucket, _, key = url.removeprefix("s3://").partition("/")
    if not url.startswith("s3://") or not bucket:
        raise click.BadParameter(f"{url!r} is no URL such as s3://my-bucket/lambda/", param_hint="--s3")
    with connect(shell) as aws:
        made = package.store(aws, bucket, key)
    given = {"--code-s3-bucket": made.bucket, "--code-s3-key": made.key, "--code-s3-version": made.version}
    flags = " ".join(f"{flag} {shlex.quote(value)}" for flag, value in given.items() if value is not None)
    lines = {"bucket": made.bucket, "key": made.key, "version": made.version, "CodeSha256": made.code_sha256}
    shell.show(made._asdict(), facts(lines), f"next: zae-limiter deploy --name my-app {flags}")


def _write(path: Path, content: bytes, force: bool) -> None:
    """Write a file. Raise `BadParameter` if it exists, unless ``force`` is True."""
    try:
        with path.open("wb" if force else "xb") as file:
            file.write(content)
    except FileExistsError:
        raise click.BadParameter(f"{path} already exists; --force overwrites it", param_hint="--output") from None
    except OSError as error:
        raise click.BadParameter(f"{path}: {error.strerror}", param_hint="--output") from None


def _require_name(shell: Shell) -> str:
    """Return the name of the stack to delete. Raise `UsageError` if it was not passed: no default is deleted."""
    if shell.stack_name is None:
        raise click.UsageError("No stack was given. Name it with --name my-app.")
    return names.stack(shell.stack_name)


def connect(shell: Shell) -> Aws:
    from ..aws.calls import Aws

    return Aws(shell.region, shell.endpoint_url)


def _check_values(name: str, given: dict[str, Any]) -> None:
    """Raise `ValidationError` for an invalid value before any call; combinations are checked later."""
    try:
        merge_options(StackOptions(), given).check_stack_name(name)
    except ValidationError as error:
        if not isinstance(given.get(error.field), bool | None):
            raise


def _spell_event(event: Event) -> str:
    reason = f": {event.reason}" if event.has_failed and event.reason else ""
    return f"{event.status.lower().replace('_', ' ')}: {event.resource} ({event.type}){reason}"
