"""The flags of ``deploy``: one per option of a stack. What is not given stays as the stack has it."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import click

from ..core.values import StackOptions
from .table import pairs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_SWITCHES = (
    ("--aggregator/--no-aggregator", "enable_aggregator", "Sum up usage in a Lambda function."),
    ("--alarms/--no-alarms", "enable_alarms", "CloudWatch alarms."),
    ("--audit-archival/--no-audit-archival", "enable_audit_archival", "Keep expired audit events in S3."),
    ("--enable-tracing/--disable-tracing", "enable_tracing", "Trace the function with X-Ray."),
    ("--iam/--no-iam", "create_iam", "Create IAM policies, and the role of the function."),
    ("--create-iam-roles/--no-iam-roles", "create_iam_roles", "Create roles for apps, admins and readers."),
    (
        "--enable-deletion-protection/--disable-deletion-protection",
        "enable_deletion_protection",
        "Let nobody delete the table by accident.",
    ),
)
_NUMBERS = (
    ("--usage-retention-days", "Days for which usage snapshots are kept."),
    ("--audit-retention-days", "Days for which audit events stay in the table."),
    ("--pitr-recovery-days", "Point-in-time recovery over so many days, 0 for none."),
    ("--log-retention-days", "Days for which the function's log is kept."),
    ("--lambda-timeout", "Seconds the function may take for a batch."),
    ("--lambda-memory", "Its memory in MB."),
    ("--lambda-duration-threshold-pct", "Alarm when it takes so much of its timeout."),
    ("--audit-archive-glacier-days", "Days until archived events move to Glacier."),
)
_TEXTS = (
    ("--snapshot-windows", "LIST", "Windows of usage: hourly, daily, monthly."),
    ("--alarm-sns-topic", "ARN", "The SNS topic that is told of alarms; '' for none."),
    ("--permission-boundary", "ARN", "The permission boundary of all roles; '' for none."),
    ("--role-name-format", "FORMAT", "How roles are called, e.g. 'team-{}'; '' for their plain names."),
    ("--policy-name-format", "FORMAT", "How policies are called, e.g. 'team-{}'; '' for their plain names."),
    ("--aggregator-role-arn", "ARN", "A role of your own for the function; '' for none."),
)
_OPTIONAL = frozenset(
    {
        "pitr_recovery_days",
        "alarm_sns_topic",
        "permission_boundary",
        "role_name_format",
        "policy_name_format",
        "aggregator_role_arn",
    }
)
"""Options that can be nothing, which the command line says as 0 or ''."""

_USUAL = {field.name: field.default for field in fields(StackOptions)}


def stack_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """All of them; each arrives as None where it was not given."""
    options = [click.option(flag, field, default=None, help=_told(field, text)) for flag, field, text in _SWITCHES]
    options += [click.option(flag, type=int, metavar="N", help=_told(_field(flag), text)) for flag, text in _NUMBERS]
    options += [click.option(flag, metavar=kind, help=_told(_field(flag), text)) for flag, kind, text in _TEXTS]
    tag = "A tag of the stack; may be repeated, and together they replace those it has."
    options.append(click.option("--tag", "tags", metavar="KEY=VALUE", multiple=True, help=tag))
    for option in reversed(options):
        command = option(command)
    return command


def _field(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def _told(field: str, text: str) -> str:
    """The help of a flag, with what a new stack has without it."""
    usual = _USUAL[field]
    if usual is None:
        return text
    return f"{text}  [{('off', 'on')[usual] if isinstance(usual, bool) else usual}]"


def merged(present: StackOptions, given: Mapping[str, Any]) -> StackOptions:
    """The options that a stack has, with what was given instead."""
    changes = {field: value for field, value in given.items() if value is not None and field != "tags"}
    for field in _OPTIONAL & changes.keys():
        changes[field] = changes[field] or None
    if given["tags"]:
        changes["tags"] = pairs(given["tags"])
    return replace(present, **changes)
