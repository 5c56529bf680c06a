"""The options of ``deploy``, one per option of a stack. Those that are not passed keep their values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import click

from ..core.reports import StackOptions

_SWITCHES = (
    ("--aggregator/--no-aggregator", "enable_aggregator", "Count usage in a Lambda function."),
    ("--alarms/--no-alarms", "enable_alarms", "CloudWatch alarms."),
    ("--audit-archival/--no-audit-archival", "enable_audit_archival", "Keep expired audit events in S3."),
    ("--enable-tracing/--disable-tracing", "enable_tracing", "Trace the function with X-Ray."),
    ("--iam/--no-iam", "create_iam", "Create IAM policies, and the role of the function."),
    ("--create-iam-roles/--no-iam-roles", "create_iam_roles", "Create roles for apps, admins and readers."),
    (
        "--enable-deletion-protection/--disable-deletion-protection",
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
    ("--audit-archive-glacier-days", "Days until archived events move to Glacier."),
)
_TEXTS = (
    ("--snapshot-windows", "LIST", "Windows of usage: hourly, daily, monthly."),
    ("--alarm-sns-topic", "ARN", "The SNS topic for alarms; '' for none."),
    ("--permission-boundary", "ARN", "The permission boundary of all roles; '' for none."),
    ("--role-name-format", "FORMAT", "Name format of roles, e.g. 'team-{}'; '' for the plain names."),
    ("--policy-name-format", "FORMAT", "Name format of policies, e.g. 'team-{}'; '' for the plain names."),
    ("--aggregator-role-arn", "ARN", "A role of your own for the function; '' for none."),
)
_USUAL = {field.name: field.default for field in fields(StackOptions)}
"""The values of a new stack. Options whose value is None can be nothing, which the command line says as 0 or ''."""


def stack_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add all options to a command. Those that are not passed are None."""
    options = [click.option(flag, field, default=None, help=_help(field, text)) for flag, field, text in _SWITCHES]
    options += [click.option(flag, type=int, metavar="N", help=_help(flag, text)) for flag, text in _NUMBERS]
    options += [click.option(flag, metavar=kind, help=_help(flag, text)) for flag, kind, text in _TEXTS]
    tag = "A tag of the stack; may be repeated. The tags replace all existing ones."
    options.append(click.option("--tag", "tags", metavar="KEY=VALUE", multiple=True, help=tag))
    for option in reversed(options):
        command = option(command)
    return command


def _help(flag: str, text: str) -> str:
    """Return the help of an option, with the default of a new stack."""
    usual = _USUAL[flag.removeprefix("--").replace("-", "_")]
    if usual is None:
        return text
    return f"{text}  [{('off', 'on')[usual] if isinstance(usual, bool) else usual}]"


def merge_options(present: StackOptions, given: Mapping[str, Any]) -> StackOptions:
    """Return the options with those that were passed. 0 and '' clear optional ones."""
    changes: dict[str, Any] = {
        field: value or None if _USUAL[field] is None else value
        for field, value in given.items()
        if value is not None and field != "tags"
    }
    if given["tags"]:
        changes["tags"] = parse_tags(given["tags"])
    return replace(present, **changes)


def parse_tags(tags: Sequence[str]) -> dict[str, str] | None:
    """Return the tags of a command line, or None. Raise `BadParameter` for anything but KEY=VALUE."""
    found = {}
    for tag in tags:
        key, separator, value = tag.partition("=")
        if not key or not separator:
            raise click.BadParameter(f"{tag!r} is not KEY=VALUE", param_hint="--tag")
        found[key] = value
    return found or None
