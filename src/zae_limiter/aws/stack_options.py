"""The options of a CloudFormation deployment."""

from __future__ import annotations

import re
from dataclasses import InitVar, dataclass, fields
from typing import TYPE_CHECKING

from ..core import names
from ..core.validation import ValidationError, as_int
from . import stack_fields, stack_iam

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAME_PART = re.compile(r"[a-z][a-z0-9-]*")
_FUNCTION_MAX = 64
"""The longest name of a Lambda function."""


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
        stack_fields.check_values(given)
        for name, value in given.items():
            number = as_int(value)
            if number is not None:
                object.__setattr__(self, name, number)
        stack_iam.check(self)
        self._check_code()

    def check_stack_name(self, stack_name: str) -> None:
        """Raise `ValidationError` if a stack of this name and with these options could not be deployed."""
        names.stack(stack_name)
        if self.enable_aggregator and len(function_name(stack_name)) > _FUNCTION_MAX:
            most = _FUNCTION_MAX - len(function_name(""))
            raise ValidationError(
                "name",
                stack_name,
                f"has {len(stack_name)} characters, at most {most} are allowed with an aggregator, whose function is "
                "named after it; shorten it, or set enable_aggregator=False (--no-aggregator)",
            )
        stack_iam.check_lengths(stack_name, self)

    def get_role_name(self, stack_name: str, component: str, region: str | None = None) -> str:
        """Return the name of a role of a stack.

        Args:
            stack_name: The name of the stack.
            component: Which role: ``aggr``, ``app``, ``admin``, ``read`` or ``app-oidc``.
            region: The region of the stack, which is part of the name unless `region_in_iam_names` is False.
        """
        return self._make_name(self.role_name_format, stack_name, component, region)

    def get_policy_name(self, stack_name: str, component: str, region: str | None = None) -> str:
        """Return the name of a policy of a stack.

        Args:
            stack_name: The name of the stack.
            component: Which policy: ``acq``, ``full``, ``read``, ``ns-acq``, ``ns-full`` or ``ns-read``.
            region: The region of the stack, which is part of the name unless `region_in_iam_names` is False.
        """
        return self._make_name(self.policy_name_format, stack_name, component, region)

    def to_parameters(self, stack_name: str | None = None) -> dict[str, str]:
        """Return the parameters of the template, for other deployment tools. The tags are not among them.

        Args:
            stack_name: The name of the stack; if given, check that the options can be deployed under it.
        """
        if stack_name is not None:
            self.check_stack_name(stack_name)
        found: dict[str, str] = {
            parameter: stack_fields.CODECS[option][0](getattr(self, option))
            for option, parameter in stack_fields.PARAMETERS.items()
        }
        for option, (start, _) in stack_iam.FORMATS.items():
            found[f"{start}Prefix"], found[f"{start}Suffix"] = stack_iam.split_format(getattr(self, option))
        found |= stack_fields.encode_boundary(self.permission_boundary)
        threshold = self.lambda_timeout * self.lambda_duration_threshold_pct * stack_fields.MS_PER_PERCENT
        return found | {stack_fields.DURATION_THRESHOLD: str(threshold)}

    def _make_name(self, format: str | None, stack_name: str, component: str, region: str | None) -> str:
        if self.region_in_iam_names is False:
            region = None
        elif region is None:
            reason = "is part of the name; pass it, or set region_in_iam_names=False for names without it"
            raise ValidationError("region", None, reason)
        for field, value in {"component": component, "region": "none" if region is None else region}.items():
            if not (isinstance(value, str) and _NAME_PART.fullmatch(value)):
                raise ValidationError(
                    field, value, "must be lower-case letters, digits and hyphens, e.g. app, eu-west-1"
                )
        return stack_iam.make_name(format, names.stack(stack_name, "stack_name"), component, region)

    def _check_code(self) -> None:
        """Check that a package in S3 is named completely or not at all."""
        needed = {"code_s3_bucket": self.code_s3_bucket, "code_s3_key": self.code_s3_key}
        missing = [field for field, value in needed.items() if value is None]
        if missing and (len(missing) < len(needed) or self.code_s3_version is not None):
            raise ValidationError(
                missing[0], None, "code from S3 needs code_s3_bucket and code_s3_key (--code-s3-bucket, --code-s3-key)"
            )


PRODUCTION = StackOptions(pitr_recovery_days=35, enable_deletion_protection=True)
"""What `zae-limiter deploy` makes unless told otherwise. The price of recovery does not depend on its days."""
