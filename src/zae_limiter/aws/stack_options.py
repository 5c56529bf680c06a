"""The options of a CloudFormation deployment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, fields
from typing import Any

from ..core import names
from ..core.validation import ValidationError, as_int
from .stack_fields import (
    BOUNDARY,
    CODECS,
    DURATION_THRESHOLD,
    MS_PER_PERCENT,
    PARAMETERS,
    TRUSTED,
    check_values,
    check_words,
)

FORMATS = {"role_name_format": ("RoleName", 64), "policy_name_format": ("PolicyName", 128)}
"""What the two parameters of a name format begin with, and the longest name that IAM allows."""

_NAME_PART = re.compile(r"[a-z][a-z0-9-]*")
_IN_IAM_NAMES = re.compile(r"[A-Za-z0-9_+=,.@-]*\Z")
_FUNCTION_MAX = 64
"""The longest name of a Lambda function."""
_COMPONENT_MAX = 8
"""No role or policy of a stack will ever be called by a longer word than this."""
_REGION_MAX = 15
"""No region has a longer name than this."""


def function_name(stack_name: str) -> str:
    """Return the name of the aggregator's function in the stack called ``stack_name``."""
    return f"{stack_name}-aggregator"


def check_stack_options(given: object) -> StackOptions:
    """Return the given options; None for the defaults. Raise `ValidationError` for anything else."""
    if given is None:
        return StackOptions()
    if not isinstance(given, StackOptions):
        raise ValidationError("stack_options", given, "must be StackOptions(...)")
    return given


@dataclass(frozen=True, slots=True)
class StackOptions:
    """The options of a CloudFormation deployment.

    Raises `ValidationError` for options that could not be deployed.

    Attributes:
        snapshot_windows: The kinds of usage windows, separated by commas: ``hourly``, ``daily``, ``monthly``.
        usage_retention_days: For how many days usage is kept.
        audit_retention_days: For how many days audit events stay in the table.
        enable_aggregator: Deploy the function that counts usage.
        pitr_recovery_days: Days of point-in-time recovery; None for none.
        log_retention_days: For how many days the function's log is kept.
        lambda_timeout: The function's timeout in seconds.
        lambda_memory: The function's memory in MB.
        lambda_architecture: The function's processors: ``x86_64`` or ``arm64``.
        lambda_reserved_concurrency: How many runs of the function are reserved for it, and at most made at once; None
            for what the account has.
        enable_alarms: Deploy CloudWatch alarms.
        alarm_sns_topic: The ARN of the topic for alarms.
        lambda_duration_threshold_pct: Alarm when the function takes this percentage of its timeout.
        enable_dashboard: Deploy a CloudWatch dashboard.
        permission_boundary: The permission boundary of all roles: an ARN, or the name of a policy of the account.
        role_name_format: The format of role names, e.g. ``team-{}``.
        policy_name_format: The format of policy names.
        region_in_iam_names: Put the region into the names of roles and policies, which all regions of an account share;
            None for True on a new stack, and for the present names on one that exists.
        policy_namespace_id: The id of the namespace that the namespace policies are for; None for the one that the
            caller's tag ``zael_namespace_id`` names.
        enable_audit_archival: Archive expired audit events in S3.
        audit_archive_glacier_days: After how many days archived events move to Glacier.
        audit_archive_versioning: Keep every version of archived objects.
        audit_archive_lock_days: For how many days S3 Object Lock keeps archived events; None for no lock.
        audit_archive_lock_mode: ``GOVERNANCE``: a special permission can delete them earlier; ``COMPLIANCE``: nobody
            can.
        enable_tracing: Trace the function with X-Ray.
        create_iam_roles: Create roles for applications, administrators and readers.
        app_role_trust: Who else may assume the role for applications, of ``ecs``, ``lambda``, ``ec2`` and ``eks``,
            separated by commas; None for principals of the account only.
        oidc_provider_arn: The ARN of the OIDC provider of a cluster whose service accounts get a role of their own.
        oidc_subject: The service accounts that may assume it: ``system:serviceaccount:NAMESPACE:NAME``.
        require_mfa: Let the roles for administrators and readers be assumed with multi-factor authentication only.
        create_iam: Create policies, and the role of the function.
        aggregator_role_arn: The ARN of an existing role for the function.
        enable_deletion_protection: Protect the table against deletion.
        max_read_request_units: The most reads per second of the table, and of each index; None for AWS's own limits.
        max_write_request_units: The same for writes.
        kms_key_arn: The ARN of the key that encrypts table, archive, queue and log; None for AWS's own keys.
        code_s3_bucket: The bucket of the function's package; None to upload the package of this version.
        code_s3_key: The key of the package in that bucket.
        code_s3_version: The version of that object; None for the latest at each change of the key.
        tags: Tags of the stack.
        enable_provisioner: Accepted for programs written for 0.17, and without effect: there is no provisioner.
    """

    snapshot_windows: str = "hourly,daily"
    usage_retention_days: int = 90
    audit_retention_days: int = 90
    enable_aggregator: bool = True
    pitr_recovery_days: int | None = None
    log_retention_days: int = 30
    lambda_timeout: int = 60
    lambda_memory: int = 256
    enable_alarms: bool = True
    alarm_sns_topic: str | None = None
    lambda_duration_threshold_pct: int = 80
    permission_boundary: str | None = None
    role_name_format: str | None = None
    policy_name_format: str | None = None
    enable_audit_archival: bool = True
    audit_archive_glacier_days: int = 90
    enable_tracing: bool = False
    create_iam_roles: bool = False
    create_iam: bool = True
    aggregator_role_arn: str | None = None
    enable_deletion_protection: bool = False
    tags: Mapping[str, str] | None = None
    region_in_iam_names: bool | None = None
    policy_namespace_id: str | None = None
    app_role_trust: str | None = None
    oidc_provider_arn: str | None = None
    oidc_subject: str | None = None
    require_mfa: bool = False
    lambda_architecture: str = "x86_64"
    lambda_reserved_concurrency: int | None = None
    enable_dashboard: bool = True
    audit_archive_versioning: bool = False
    audit_archive_lock_days: int | None = None
    audit_archive_lock_mode: str = "GOVERNANCE"
    max_read_request_units: int | None = None
    max_write_request_units: int | None = None
    kms_key_arn: str | None = None
    code_s3_bucket: str | None = None
    code_s3_key: str | None = None
    code_s3_version: str | None = None
    enable_provisioner: InitVar[bool] = True

    def __post_init__(self, enable_provisioner: bool) -> None:
        """Convert whole numbers of any type to int. Raise `ValidationError` for what could not be deployed."""
        if enable_provisioner is not True:
            from ..v017.ignored import warn_provisioner

            warn_provisioner()
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        check_values(given)
        for name, value in given.items():
            number = as_int(value)
            if number is not None:
                object.__setattr__(self, name, number)
        for field in FORMATS:
            format = given[field]
            if format is not None and (not isinstance(format, str) or format.count("{}") != 1):
                reason = "must contain {} exactly once, where the name goes: e.g. 'team-{}'"
                raise ValidationError(field, format, reason)
            if not _IN_IAM_NAMES.match("".join(_split_format(format))):
                raise ValidationError(field, format, "must use only letters, digits and '_+=,.@-' around {}")
        self._check_created()
        self._check_trust()
        self._check_code()

    def check_stack_name(self, stack_name: str) -> None:
        """Raise `ValidationError` if a stack of this name and with these options could not be deployed."""
        names.stack(stack_name)
        if self.enable_aggregator and len(function_name(stack_name)) > _FUNCTION_MAX:
            most = f"at most {_FUNCTION_MAX - len(function_name(''))} are allowed with an aggregator, whose function is"
            fix = "named after it; shorten it, or set enable_aggregator=False (--no-aggregator)"
            raise ValidationError("name", stack_name, f"has {len(stack_name)} characters, {most} {fix}")
        self._check_lengths(stack_name)

    def get_role_name(self, stack_name: str, component: str, region: str | None = None) -> str:
        """Return the name of a role of a stack. Its ``region`` is part of it unless `region_in_iam_names` is False.

        ``component`` is ``aggr``, ``app``, ``admin``, ``read`` or ``app-oidc``.
        """
        return self._name(self.role_name_format, stack_name, component, region)

    def get_policy_name(self, stack_name: str, component: str, region: str | None = None) -> str:
        """Return the name of a policy of a stack, as `get_role_name` does.

        ``component`` is ``acq``, ``full``, ``read``, ``ns-acq``, ``ns-full`` or ``ns-read``.
        """
        return self._name(self.policy_name_format, stack_name, component, region)

    def to_parameters(self, stack_name: str | None = None) -> dict[str, str]:
        """Return the parameters of the template, for other deployment tools. The tags are not among them.

        With ``stack_name`` it is checked that the options can be deployed under it.
        """
        if stack_name is not None:
            self.check_stack_name(stack_name)
        found: dict[str, str] = {
            parameter: CODECS[option][0](getattr(self, option)) for option, parameter in PARAMETERS.items()
        }
        for option, (start, _) in FORMATS.items():
            found[f"{start}Prefix"], found[f"{start}Suffix"] = _split_format(getattr(self, option))
        boundary = self.permission_boundary or ""
        found |= dict(zip(BOUNDARY, (boundary, "") if boundary.startswith("arn:") else ("", boundary), strict=True))
        threshold = self.lambda_timeout * self.lambda_duration_threshold_pct * MS_PER_PERCENT
        return found | {DURATION_THRESHOLD: str(threshold)}

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, str]) -> StackOptions:
        """Return the options that the parameters of a stack say, without the tags.

        A parameter that a stack lacks, because an older template made it, has its default. A stack whose template did
        not know ``RegionInIamNames`` has names without it, and keeps them: other names would be other roles.
        """
        parameters = {"RegionInIamNames": "false", **parameters}
        given: dict[str, Any] = {
            option: CODECS[option][1](parameters[parameter])
            for option, parameter in PARAMETERS.items()
            if parameter in parameters
        }
        for option, (start, _) in FORMATS.items():
            format = f"{parameters.get(f'{start}Prefix', '')}{{}}{parameters.get(f'{start}Suffix', '')}"
            given[option] = None if format == "{}" else format
        given["permission_boundary"] = next(filter(None, map(parameters.get, BOUNDARY)), None)
        if DURATION_THRESHOLD in parameters:
            timeout = given.get("lambda_timeout", cls().lambda_timeout)
            percent = int(parameters[DURATION_THRESHOLD]) // (timeout * MS_PER_PERCENT)
            given["lambda_duration_threshold_pct"] = min(100, max(1, percent))  # other tools set any
        return cls(**given)

    def _name(self, format: str | None, stack_name: str, component: str, region: str | None) -> str:
        if self.region_in_iam_names is False:
            region = None
        elif region is None:
            reason = "is part of the name; pass it, or set region_in_iam_names=False for names without it"
            raise ValidationError("region", None, reason)
        for field, value in {"component": component, "region": "none" if region is None else region}.items():
            if not (isinstance(value, str) and _NAME_PART.fullmatch(value)):
                reason = "must be lower-case letters, digits and hyphens, e.g. app, eu-west-1"
                raise ValidationError(field, value, reason)
        return _make_name(format, names.stack(stack_name, "stack_name"), component, region)

    def _check_code(self) -> None:
        needed = {"code_s3_bucket": self.code_s3_bucket, "code_s3_key": self.code_s3_key}
        missing = [field for field, value in needed.items() if value is None]
        if missing and (len(missing) < len(needed) or self.code_s3_version is not None):
            reason = "code from S3 needs code_s3_bucket and code_s3_key (--code-s3-bucket, --code-s3-key)"
            raise ValidationError(missing[0], None, reason)

    def _check_created(self) -> None:
        if self.create_iam:
            return
        if self.create_iam_roles:
            reason = "contradicts create_iam=False (--no-iam); set it to False (--no-iam-roles), or keep IAM"
            raise ValidationError("create_iam_roles", True, reason)
        if self.enable_aggregator and self.aggregator_role_arn is None:
            fix = "aggregator_role_arn (--aggregator-role-arn), or enable_aggregator=False (--no-aggregator)"
            reason = f"the aggregator needs a role with create_iam=False (--no-iam): set {fix}"
            raise ValidationError("aggregator_role_arn", None, reason)

    def _check_trust(self) -> None:
        trust, subject = self.app_role_trust, self.oidc_subject
        if trust is not None:
            check_words("app_role_trust", trust, TRUSTED, "ecs,lambda")
        if (self.oidc_provider_arn is None) != (subject is None):
            missing = "oidc_subject" if subject is None else "oidc_provider_arn"
            both = "oidc_provider_arn (--oidc-provider-arn) and oidc_subject (--oidc-subject)"
            raise ValidationError(missing, None, f"is needed with its counterpart: set both {both}, or neither")
        if (trust or subject or self.require_mfa) and not self.create_iam_roles:
            reason = "must be True (--create-iam-roles) for app_role_trust, oidc_subject and require_mfa"
            raise ValidationError("create_iam_roles", False, f"{reason}; set it, or drop these")

    def _check_lengths(self, stack_name: str) -> None:
        """Check that names of roles and policies of the stack are not too long for IAM."""
        region = "r" * _REGION_MAX if self.region_in_iam_names else None
        without = ", or set region_in_iam_names=False (--no-region-in-iam-names)" if region else ""
        for field, (_, most) in FORMATS.items():
            format = getattr(self, field)
            longest = len(_make_name(format, stack_name, "c" * _COMPONENT_MAX, region))
            if longest <= most or not self.create_iam:
                continue
            if format is None:
                room = f"at most {len(stack_name) + most - longest} are allowed while role names hold the region"
                reason = f"has {len(stack_name)} characters, {room}; shorten it{without}"
                raise ValidationError("name", stack_name, reason)
            reason = f"makes names of up to {longest} characters, IAM allows {most}"
            raise ValidationError(field, format, f"{reason}; shorten it or the name of the stack{without}")


def _split_format(format: str | None) -> tuple[str, str]:
    prefix, _, suffix = (format or "{}").partition("{}")
    return prefix, suffix


def _make_name(format: str | None, stack_name: str, component: str, region: str | None) -> str:
    """Return the name of a role or policy as the template makes it; ``region`` is None if names do not hold it."""
    prefix, suffix = _split_format(format)
    return f"{prefix}{stack_name}-{component}{'' if region is None else f'-{region}'}{suffix}"


PRODUCTION = StackOptions(pitr_recovery_days=35, enable_deletion_protection=True)
"""What `zae-limiter deploy` makes unless told otherwise. The price of recovery does not depend on its days."""
