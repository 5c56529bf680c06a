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


_BETWEEN = "\n\n  "
"""What stands between two resources; the table is the first."""


def read_template() -> str:
    """Return the text of the template."""
    return resources.files(__package__).joinpath("template.yaml").read_text(encoding="utf-8")


def table_template() -> str:
    """Return the template with the table only, for importing an existing table."""
    head, resources_of, rest = read_template().partition("\nResources:\n")
    return f"{head}{resources_of}{rest.partition(_BETWEEN)[0]}\n"


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


def _flag(parameter: str, option: str) -> _Parameter:
    return _Parameter(parameter, option, lambda value: "true" if value else "false", lambda text: text == "true")


def _number(parameter: str, option: str) -> _Parameter:
    return _Parameter(parameter, option, decode=int)


def _optional(parameter: str, option: str) -> _Parameter:
    return _Parameter(parameter, option, lambda value: value or "", lambda text: text or None)


_THRESHOLD = "LambdaDurationThreshold"

_FORMATS = {
    "role_name_format": ("RoleNamePrefix", "RoleNameSuffix"),
    "policy_name_format": ("PolicyNamePrefix", "PolicyNameSuffix"),
}

_PARAMETERS = (
    _Parameter("SnapshotWindows", "snapshot_windows"),
    _number("UsageRetentionDays", "usage_retention_days"),
    _number("AuditRetentionDays", "audit_retention_days"),
    _flag("EnableAggregator", "enable_aggregator"),
    _Parameter("PitrRecoveryDays", "pitr_recovery_days", lambda days: str(days or 0), lambda text: int(text) or None),
    _number("LogRetentionDays", "log_retention_days"),
    _number("LambdaTimeout", "lambda_timeout"),
    _number("LambdaMemory", "lambda_memory"),
    _flag("EnableAlarms", "enable_alarms"),
    _optional("AlarmSnsTopic", "alarm_sns_topic"),
    _optional("PermissionBoundary", "permission_boundary"),
    _flag("EnableAuditArchival", "enable_audit_archival"),
    _number("AuditArchiveGlacierDays", "audit_archive_glacier_days"),
    _flag("EnableTracing", "enable_tracing"),
    _flag("CreateIamRoles", "create_iam_roles"),
    _flag("CreateIam", "create_iam"),
    _optional("AggregatorRoleArn", "aggregator_role_arn"),
    _flag("EnableDeletionProtection", "enable_deletion_protection"),
)
