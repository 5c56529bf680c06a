"""The template, and the conversion of options to its parameters and back.

Every option except the tags is one parameter or two. A parameter that a stack lacks, because an older template made
it, has its default.
"""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

from ..core.reports import StackOptions
from .options import check, split_format

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

OURS = {"ManagedBy": "zae-limiter"}
"""The parameter that tells our stacks from those that others make of the template: unlike tags, an import sets it."""

_MS_PER_PERCENT = 10
"""One per cent of a second in milliseconds."""


def read_template() -> str:
    """Return the text of the template."""
    return resources.files(__package__).joinpath("template.yaml").read_text(encoding="utf-8")


def table_template() -> str:
    """Return the template with the table only, for importing an existing table."""
    head, heading, rest = read_template().partition("\nResources:\n")
    table = rest.partition("\n\n  ")[0]  # the first resource, up to a blank line
    return f"{head}{heading}{table}\n"


def encode_parameters(name: str, options: StackOptions) -> dict[str, str]:
    """Return every parameter of the stack. Raise `ValidationError` for invalid options."""
    check(name, options)
    found = {each.parameter: each.encode(getattr(options, each.option)) for each in _PARAMETERS}
    for option, names in _FORMATS.items():
        found |= zip(names, split_format(getattr(options, option)), strict=True)
    threshold = options.lambda_timeout * options.lambda_duration_threshold_pct * _MS_PER_PERCENT
    return found | {_THRESHOLD: str(threshold)} | OURS


def decode_options(parameters: Mapping[str, str]) -> StackOptions:
    """Return the options of a stack from its parameters, without the tags."""
    given: dict[str, Any] = {
        each.option: each.decode(parameters[each.parameter]) for each in _PARAMETERS if each.parameter in parameters
    }
    for option, (prefix, suffix) in _FORMATS.items():
        format = f"{parameters.get(prefix, '')}{{}}{parameters.get(suffix, '')}"
        given[option] = None if format == "{}" else format
    if _THRESHOLD in parameters:
        timeout = given.get("lambda_timeout", StackOptions().lambda_timeout)
        given["lambda_duration_threshold_pct"] = int(parameters[_THRESHOLD]) // (timeout * _MS_PER_PERCENT)
    return StackOptions(**given)


class _Parameter(NamedTuple):
    """An option that is one parameter."""

    parameter: str
    option: str
    encode: Callable[[Any], str] = str
    decode: Callable[[str], Any] = str


_NUMBER = (str, int)
_FLAG = (lambda value: "true" if value else "false", lambda text: text == "true")
_OPTIONAL = (lambda value: value or "", lambda text: text or None)

_THRESHOLD = "LambdaDurationThreshold"

_FORMATS = {
    "role_name_format": ("RoleNamePrefix", "RoleNameSuffix"),
    "policy_name_format": ("PolicyNamePrefix", "PolicyNameSuffix"),
}

_PARAMETERS = (
    _Parameter("SnapshotWindows", "snapshot_windows"),
    _Parameter("UsageRetentionDays", "usage_retention_days", *_NUMBER),
    _Parameter("AuditRetentionDays", "audit_retention_days", *_NUMBER),
    _Parameter("EnableAggregator", "enable_aggregator", *_FLAG),
    _Parameter("PitrRecoveryDays", "pitr_recovery_days", lambda days: str(days or 0), lambda text: int(text) or None),
    _Parameter("LogRetentionDays", "log_retention_days", *_NUMBER),
    _Parameter("LambdaTimeout", "lambda_timeout", *_NUMBER),
    _Parameter("LambdaMemory", "lambda_memory", *_NUMBER),
    _Parameter("EnableAlarms", "enable_alarms", *_FLAG),
    _Parameter("AlarmSnsTopic", "alarm_sns_topic", *_OPTIONAL),
    _Parameter("PermissionBoundary", "permission_boundary", *_OPTIONAL),
    _Parameter("EnableAuditArchival", "enable_audit_archival", *_FLAG),
    _Parameter("AuditArchiveGlacierDays", "audit_archive_glacier_days", *_NUMBER),
    _Parameter("EnableTracing", "enable_tracing", *_FLAG),
    _Parameter("CreateIamRoles", "create_iam_roles", *_FLAG),
    _Parameter("CreateIam", "create_iam", *_FLAG),
    _Parameter("AggregatorRoleArn", "aggregator_role_arn", *_OPTIONAL),
    _Parameter("EnableDeletionProtection", "enable_deletion_protection", *_FLAG),
)
