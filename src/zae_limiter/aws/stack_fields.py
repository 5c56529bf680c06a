"""The options of a stack one by one: which values are valid, and how the template's parameters spell them.

Every option except the tags is one parameter, named after it (``lambda_memory`` is ``LambdaMemory``), or a few that are
derived from it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from ..core.names import USAGE_WINDOWS
from ..core.validation import ValidationError, as_int

LOG_RETENTION_DAYS = (
    *(1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288, 3653),
)
"""The only retentions that CloudWatch Logs knows."""

_OWN_TAGS = "zae-limiter:"
"""What the tags begin with by which stacks are found again."""

_MOST_DAYS = 36_500
_MOST_UNITS = 2**31 - 1
RANGES = {
    "usage_retention_days": (1, _MOST_DAYS),
    "audit_retention_days": (1, _MOST_DAYS),
    "pitr_recovery_days": (1, 35),
    "lambda_timeout": (1, 900),
    "lambda_memory": (128, 10_240),
    "lambda_duration_threshold_pct": (1, 100),
    "lambda_reserved_concurrency": (1, 100_000),
    "max_read_request_units": (1, _MOST_UNITS),
    "max_write_request_units": (1, _MOST_UNITS),
    "audit_archive_glacier_days": (1, _MOST_DAYS),
    "audit_archive_lock_days": (1, _MOST_DAYS),
}
"""The least and the most of whole numbers, as AWS documents them."""
_OPTIONAL_NUMBERS = (
    *("pitr_recovery_days", "lambda_reserved_concurrency", "max_read_request_units", "max_write_request_units"),
    "audit_archive_lock_days",
)
"""Numbers that may be None, which the parameter spells 0."""

FLAGS = (
    *("enable_aggregator", "enable_alarms", "enable_dashboard", "enable_audit_archival", "audit_archive_versioning"),
    *("enable_tracing", "create_iam_roles", "create_iam", "enable_deletion_protection", "require_mfa"),
)
CHOICES = {
    "lambda_architecture": ("x86_64", "arm64"),
    "audit_archive_lock_mode": ("GOVERNANCE", "COMPLIANCE"),
}
"""Options with a fixed set of values."""

_ARN = r"arn:aws[a-z-]*:{}:[a-z0-9-]*:(?:aws|\d{{12}}):{}\Z"
_TEXTS = {
    "alarm_sns_topic": (
        re.compile(_ARN.format("sns", r"[A-Za-z0-9_-]{1,256}(?:\.fifo)?")),
        "an ARN such as arn:aws:sns:us-east-1:123456789012:my-topic",
    ),
    "permission_boundary": (
        re.compile(_ARN.format("iam", r"policy/[\x21-\x7e]{1,1024}") + r"|[A-Za-z0-9_+=,.@-]{1,128}\Z"),
        "the name of a policy of this account, or an ARN such as arn:aws:iam::123456789012:policy/my-boundary",
    ),
    "aggregator_role_arn": (
        re.compile(_ARN.format("iam", r"role/[A-Za-z0-9_+=,.@/-]{1,576}")),
        "an ARN such as arn:aws:iam::123456789012:role/my-role",
    ),
    "oidc_provider_arn": (
        re.compile(_ARN.format("iam", r"oidc-provider/[A-Za-z0-9_.:/-]{1,255}")),
        "an ARN such as arn:aws:iam::123456789012:oidc-provider/oidc.eks.us-east-1.amazonaws.com/id/A1",
    ),
    "kms_key_arn": (
        re.compile(_ARN.format("kms", r"key/[A-Za-z0-9-]{1,128}")),
        "the ARN of a key, not of an alias, such as "
        "arn:aws:kms:us-east-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab",
    ),
    "code_s3_bucket": (re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]\Z"), "the name of a bucket, such as my-bucket"),
    "code_s3_key": (re.compile(r"[^/][^\x00-\x1f]{0,1023}\Z"), "the key of the package, such as lambda/aggregator.zip"),
    "code_s3_version": (re.compile(r"[\x21-\x7e]{1,1024}\Z"), "the version id of the package's object"),
    "oidc_subject": (
        re.compile(r"system:serviceaccount:[a-z0-9*?-]{1,63}:[a-z0-9.*?-]{1,253}\Z"),
        "the name of service accounts, such as system:serviceaccount:default:my-app",
    ),
    "policy_namespace_id": (
        re.compile(r"[A-Za-z0-9_-]{2,64}\Z"),
        "the id of a namespace, as `zae-limiter namespace show` prints it; it is not the name",
    ),
}
"""Optional texts: what they match, and what to write."""

_MOST_TAGS = 47
_IN_TAGS = re.compile(r"[\w .:/=+@-]+\Z")

TRUSTED = {
    "ecs": "ecs-tasks.amazonaws.com",
    "lambda": "lambda.amazonaws.com",
    "ec2": "ec2.amazonaws.com",
    "eks": "pods.eks.amazonaws.com",
}
"""The principals of the services that assume a role for what they run."""
_WORDS = {service: word for word, service in TRUSTED.items()}
_BY_TAG = "${aws:PrincipalTag/zael_namespace_id}"
"""The policy variable that stands for the caller's namespace."""


def _translate(words: str | None, names: Mapping[str, str]) -> str:
    """Return a list with other names, separated by commas; those that are not known stay as they are."""
    return ",".join(names.get(word, word) for word in words.split(",")) if words else ""


_NUMBER = (str, int)
_OPTIONAL_NUMBER = (lambda number: str(number or 0), lambda text: int(text) or None)
_FLAG = (lambda value: "true" if value else "false", lambda text: text == "true")
_OPTIONAL = (lambda value: value or "", lambda text: text or None)
CODECS: dict[str, Any] = {
    **dict.fromkeys((*RANGES, "log_retention_days"), _NUMBER),
    **dict.fromkeys(_OPTIONAL_NUMBERS, _OPTIONAL_NUMBER),
    **dict.fromkeys(FLAGS, _FLAG),
    "enable_deletion_protection": (_FLAG[0], lambda text: text != "false"),
    **dict.fromkeys(_TEXTS, _OPTIONAL),
    "region_in_iam_names": (
        lambda value: "false" if value is False else "true",
        lambda text: None if text == "true" else False,
    ),
    "policy_namespace_id": (lambda value: value or _BY_TAG, lambda text: None if text == _BY_TAG else text),
    "app_role_trust": (lambda words: _translate(words, TRUSTED), lambda text: _translate(text, _WORDS) or None),
    **dict.fromkeys(("snapshot_windows", *CHOICES), (str, str)),
}
"""How the text of a parameter is made of an option, and the option of the text."""
PARAMETERS = {name: name.title().replace("_", "") for name in CODECS if name != "lambda_duration_threshold_pct"}
"""The parameter of each option that has one to itself."""
BOUNDARY = (PARAMETERS["permission_boundary"], "PermissionBoundaryName")
"""The two parameters of a permission boundary, which is an ARN or a name."""
DURATION_THRESHOLD = "LambdaDurationThreshold"
MS_PER_PERCENT = 10
"""One per cent of a second in milliseconds."""


def check_values(given: Mapping[str, object]) -> None:
    """Raise `ValidationError` for the first option with an invalid value. The reason says what is valid."""
    for flag in FLAGS:
        if not isinstance(given[flag], bool):
            raise ValidationError(flag, given[flag], "must be True or False")
    for field, (least, most) in RANGES.items():
        number = least if given[field] is None and field in _OPTIONAL_NUMBERS else as_int(given[field])
        if number is None or not least <= number <= most:
            none = "; None (0 on the command line) for none" if field in _OPTIONAL_NUMBERS else ""
            raise ValidationError(field, given[field], f"must be a whole number from {least} to {most}{none}")
    if given["region_in_iam_names"] not in (None, True, False):
        raise ValidationError("region_in_iam_names", given["region_in_iam_names"], "must be True, False or None")
    for field, choices in CHOICES.items():
        if given[field] not in choices:
            raise ValidationError(field, given[field], f"must be {' or '.join(choices)}")
    for field, (pattern, example) in _TEXTS.items():
        value = given[field]
        if value is not None and not (isinstance(value, str) and pattern.match(value)):
            raise ValidationError(field, value, f"must be {example}; None for none")
    days = as_int(given["log_retention_days"])
    if days is None:
        raise ValidationError("log_retention_days", given["log_retention_days"], "must be a whole number of days")
    if days not in LOG_RETENTION_DAYS:
        nearest = min(LOG_RETENTION_DAYS, key=lambda known: abs(known - days))
        reason = f"is not a retention period of CloudWatch Logs; the nearest is {nearest}"
        raise ValidationError("log_retention_days", days, reason)
    check_words("snapshot_windows", given["snapshot_windows"], USAGE_WINDOWS, "hourly,daily")
    _check_tags(given["tags"])


def check_words(field: str, given: object, known: Collection[str], example: str) -> None:
    """Raise `ValidationError` unless the text is some of the ``known`` words, each once, separated by commas."""
    words = given.split(",") if isinstance(given, str) else []
    if not words or not set(words) <= set(known) or len(set(words)) < len(words):
        raise ValidationError(field, given, f'must be some of {", ".join(known)}, each once: e.g. "{example}"')


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
                reason = f"is not a valid tag {part}; use 1 to {most} letters, digits, spaces and '_.:/=+-@'"
                raise ValidationError("tags", text, reason)
        if key.lower().startswith(("aws:", _OWN_TAGS)):
            raise ValidationError("tags", key, f"must not begin with aws: or {_OWN_TAGS}, which are reserved")
