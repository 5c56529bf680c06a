"""The template, the names of its resources, and the options of a stack: checked, and converted to parameters and back.

Every option except the tags is one parameter, named after it (``lambda_memory`` is ``LambdaMemory``), or a few that are
derived from it. A parameter that a stack lacks, because an older template made it, has its default.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources
from typing import Any

from ..core import names
from ..core.errors import ValidationError
from ..core.limit import as_int
from ..core.reports import StackOptions
from ..records.usage import WINDOWS
from . import iam

OURS = {"ManagedBy": "zae-limiter"}
"""The parameter that tells our stacks from those that others make of the template: unlike tags, an import sets it."""

LOG_RETENTION_DAYS = (
    *(1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288, 3653),
)
"""The only retentions that CloudWatch Logs knows."""

_OWN_TAGS = "zae-limiter:"
"""What the tags begin with by which stacks are found again."""

_MOST_DAYS = 36_500
RANGES = {
    "usage_retention_days": (1, _MOST_DAYS),
    "audit_retention_days": (1, _MOST_DAYS),
    "pitr_recovery_days": (1, 35),
    "lambda_timeout": (1, 900),
    "lambda_memory": (128, 10_240),
    "lambda_duration_threshold_pct": (1, 100),
    "audit_archive_glacier_days": (1, _MOST_DAYS),
}
"""The least and the most of whole numbers, as AWS documents them."""

_FLAGS = (
    *("enable_aggregator", "enable_alarms", "enable_audit_archival", "enable_tracing"),
    *("create_iam_roles", "create_iam", "enable_deletion_protection"),
    "require_mfa",
)
_ARN = r"arn:aws[a-z-]*:{}:[a-z0-9-]*:(?:aws|\d{{12}}):{}\Z"
_TOPIC = re.compile(_ARN.format("sns", r"[A-Za-z0-9_-]{1,256}(?:\.fifo)?"))
_POLICY = re.compile(_ARN.format("iam", r"policy/[\x21-\x7e]{1,1024}"))
_ROLE = re.compile(_ARN.format("iam", r"role/[A-Za-z0-9_+=,.@/-]{1,576}"))
_PROVIDER = re.compile(_ARN.format("iam", r"oidc-provider/[A-Za-z0-9_.:/-]{1,255}"))
_ARNS = {
    "alarm_sns_topic": (_TOPIC, "arn:aws:sns:us-east-1:123456789012:my-topic"),
    "permission_boundary": (_POLICY, "arn:aws:iam::123456789012:policy/my-boundary"),
    "aggregator_role_arn": (_ROLE, "arn:aws:iam::123456789012:role/my-role"),
    "oidc_provider_arn": (_PROVIDER, "arn:aws:iam::123456789012:oidc-provider/oidc.eks.us-east-1.amazonaws.com/id/A1"),
}
_FUNCTION_MAX = 64
"""The longest name of a Lambda function."""
_MOST_TAGS = 47
_IN_TAGS = re.compile(r"[\w .:/=+@-]+\Z")

_THRESHOLD = "LambdaDurationThreshold"
_MS_PER_PERCENT = 10
"""One per cent of a second in milliseconds."""
_NUMBER = (str, int)
_FLAG = (lambda value: "true" if value else "false", lambda text: text == "true")
_OPTIONAL = (lambda value: value or "", lambda text: text or None)
_CODECS: dict[str, Any] = {
    **dict.fromkeys((*RANGES, "log_retention_days"), _NUMBER),
    **dict.fromkeys(_FLAGS, _FLAG),
    **dict.fromkeys((*_ARNS, "oidc_subject"), _OPTIONAL),
    "region_in_iam_names": (
        lambda value: "false" if value is False else "true",
        lambda text: None if text == "true" else False,
    ),
    "policy_namespace_id": (iam.encode_namespace, iam.decode_namespace),
    "app_role_trust": (iam.encode_trust, iam.decode_trust),
    "snapshot_windows": (str, str),
    "pitr_recovery_days": (lambda days: str(days or 0), lambda text: int(text) or None),
}
"""How the text of a parameter is made of an option, and the option of the text."""
_PARAMETERS = {name: name.title().replace("_", "") for name in _CODECS if name != "lambda_duration_threshold_pct"}


def read_template() -> str:
    """Return the text of the template."""
    return resources.files(__package__).joinpath("template.yaml").read_text(encoding="utf-8")


def table_template() -> str:
    """Return the template with the table only, for importing an existing table."""
    head, heading, rest = read_template().partition("\nResources:\n")
    table = rest.partition("\n\n  ")[0]  # the first resource, up to a blank line
    return f"{head}{heading}{table}\n"


def function_name(name: str) -> str:
    """Return the name of the aggregator's function in the stack called ``name``."""
    return f"{name}-aggregator"


def queue_name(name: str) -> str:
    """Return the name of the aggregator's dead-letter queue."""
    return f"{name}-aggregator-dlq"


def log_group(name: str) -> str:
    """Return the name of the aggregator's log group."""
    return f"/aws/lambda/{function_name(name)}"


def encode_parameters(name: str, options: StackOptions) -> dict[str, str]:
    """Return every parameter of the stack. Raise `ValidationError` for invalid options."""
    check_options(name, options)
    found = {parameter: _CODECS[option][0](getattr(options, option)) for option, parameter in _PARAMETERS.items()}
    for option, (start, _) in iam.FORMATS.items():
        found[f"{start}Prefix"], found[f"{start}Suffix"] = iam.split_format(getattr(options, option))
    threshold = options.lambda_timeout * options.lambda_duration_threshold_pct * _MS_PER_PERCENT
    return found | {_THRESHOLD: str(threshold)} | OURS


def decode_options(parameters: Mapping[str, str]) -> StackOptions:
    """Return the options of a stack from its parameters, without the tags.

    A stack whose template did not know ``RegionInIamNames`` has names without it, and keeps them: other names would be
    other roles and policies.
    """
    parameters = {"RegionInIamNames": "false", **parameters}
    given: dict[str, Any] = {
        option: _CODECS[option][1](parameters[parameter])
        for option, parameter in _PARAMETERS.items()
        if parameter in parameters
    }
    for option, (start, _) in iam.FORMATS.items():
        format = f"{parameters.get(f'{start}Prefix', '')}{{}}{parameters.get(f'{start}Suffix', '')}"
        given[option] = None if format == "{}" else format
    if _THRESHOLD in parameters:
        timeout = given.get("lambda_timeout", StackOptions().lambda_timeout)
        given["lambda_duration_threshold_pct"] = int(parameters[_THRESHOLD]) // (timeout * _MS_PER_PERCENT)
    return StackOptions(**given)


def check_options(name: str, options: StackOptions) -> None:
    """Raise `ValidationError` for options that could not be deployed or would not work. The reason names the fix."""
    names.stack(name)
    if options.enable_aggregator is True and len(function_name(name)) > _FUNCTION_MAX:
        most = _FUNCTION_MAX - len(function_name(""))
        raise ValidationError(
            "name",
            name,
            f"has {len(name)} characters, at most {most} are allowed with an aggregator, whose function is named "
            "after it; shorten it, or set enable_aggregator=False (--no-aggregator)",
        )
    for flag in _FLAGS:
        if not isinstance(getattr(options, flag), bool):
            raise ValidationError(flag, getattr(options, flag), "must be True or False")
    for field, (least, most) in RANGES.items():
        value = getattr(options, field)
        number = least if value is None and field == "pitr_recovery_days" else as_int(value)
        if number is None or not least <= number <= most:
            raise ValidationError(field, value, f"must be a whole number from {least} to {most}")
    for field, (pattern, example) in _ARNS.items():
        value = getattr(options, field)
        if value is not None and not (isinstance(value, str) and pattern.match(value)):
            raise ValidationError(field, value, f"must be an ARN such as {example}")
    _check_log_retention(options.log_retention_days)
    windows = options.snapshot_windows
    given = windows.split(",") if isinstance(windows, str) else []
    if not given or not set(given) <= set(WINDOWS) or len(set(given)) < len(given):
        reason = f'must be some of {", ".join(WINDOWS)}, each once: e.g. "hourly,daily"'
        raise ValidationError("snapshot_windows", windows, reason)
    _check_tags(options.tags)
    iam.check(name, options)


def _check_log_retention(value: object) -> None:
    days = as_int(value)
    if days is None:
        raise ValidationError("log_retention_days", value, "must be a whole number of days")
    if days not in LOG_RETENTION_DAYS:
        nearest = min(LOG_RETENTION_DAYS, key=lambda known: abs(known - days))
        raise ValidationError(
            "log_retention_days", days, f"is not a retention period of CloudWatch Logs; the nearest is {nearest}"
        )


def _check_tags(tags: object) -> None:
    if tags is None:
        return
    if not isinstance(tags, Mapping):
        raise ValidationError("tags", tags, "must map keys to values")
    if len(tags) > _MOST_TAGS:
        raise ValidationError("tags", len(tags), f"too many tags; a stack has room for {_MOST_TAGS} besides our own")
    for key, value in tags.items():
        for part, text, most in (("key", key, 128), ("value", value, 256)):
            if not isinstance(text, str) or not 1 <= len(text) <= most or not _IN_TAGS.match(text):
                raise ValidationError(
                    "tags", text, f"is not a valid tag {part}; use 1 to {most} letters, digits, spaces and '_.:/=+-@'"
                )
        if key.lower().startswith(("aws:", _OWN_TAGS)):
            raise ValidationError("tags", key, f"must not begin with aws: or {_OWN_TAGS}, which are reserved")
