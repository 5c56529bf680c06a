"""IAM options of a stack: who may assume its roles, whose its namespace policies are, and whether names are too long.

The names themselves are made by the template: format, name of the stack, a word, and the region.
"""

from __future__ import annotations

import re
from typing import Any, TypeAlias

from ..core.validation import ValidationError

_Options: TypeAlias = Any
"""`StackOptions`, which imports this module."""

FORMATS = {"role_name_format": ("RoleName", 64), "policy_name_format": ("PolicyName", 128)}
"""What the two parameters of a name format begin with, and the longest name that IAM allows."""

_COMPONENT_MAX = 8
"""No role or policy of a stack will ever be called by a longer word than this."""
_REGION_MAX = 15
"""No region has a longer name than this."""
_TRUSTED = {
    "ecs": "ecs-tasks.amazonaws.com",
    "lambda": "lambda.amazonaws.com",
    "ec2": "ec2.amazonaws.com",
    "eks": "pods.eks.amazonaws.com",
}
"""The principals of the services that assume a role for what they run."""
_WORDS = {service: word for word, service in _TRUSTED.items()}
_BY_TAG = "${aws:PrincipalTag/zael_namespace_id}"
"""The policy variable that stands for the namespace of whoever asks."""
_IN_IAM_NAMES = re.compile(r"[A-Za-z0-9_+=,.@-]*\Z")
_NAMESPACE_ID = re.compile(r"[A-Za-z0-9_-]{2,64}\Z")
_SUBJECT = re.compile(r"system:serviceaccount:[a-z0-9*?-]{1,63}:[a-z0-9.*?-]{1,253}\Z")
_NO_REGION = "set region_in_iam_names=False (--no-region-in-iam-names)"


def encode_trust(words: str | None) -> str:
    """Return the services that may assume a role as principals, separated by commas."""
    return ",".join(_TRUSTED[word] for word in words.split(",")) if words else ""


def decode_trust(services: str) -> str | None:
    """Return the option that principals were made of; principals that it does not know stay as they are."""
    return ",".join(_WORDS.get(service, service) for service in services.split(",")) if services else None


def encode_namespace(namespace_id: str | None) -> str:
    """Return what stands for a namespace in policies: its id, or the caller's tag."""
    return namespace_id or _BY_TAG


def decode_namespace(text: str) -> str | None:
    """Return the namespace id that stands in policies, or None for the caller's tag."""
    return None if text == _BY_TAG else text


def split_format(format: str | None) -> tuple[str, str]:
    """Return what a name format puts before and after a name."""
    prefix, _, suffix = (format or "{}").partition("{}")
    return prefix, suffix


def make_name(format: str | None, stack_name: str, component: str, region: str | None) -> str:
    """Return the name of a role or policy as the template makes it; ``region`` is None if names do not hold it."""
    prefix, suffix = split_format(format)
    return f"{prefix}{stack_name}-{component}{'' if region is None else f'-{region}'}{suffix}"


def check(options: _Options) -> None:
    """Raise `ValidationError` for IAM options that could not be deployed. The reason names the fix."""
    if options.region_in_iam_names not in (None, True, False):
        raise ValidationError("region_in_iam_names", options.region_in_iam_names, "must be True, False or None")
    for field in FORMATS:
        _check_format(field, getattr(options, field))
    _check_created(options)
    _check_trust(options)
    namespace_id = options.policy_namespace_id
    if namespace_id is not None and not (isinstance(namespace_id, str) and _NAMESPACE_ID.match(namespace_id)):
        reason = "must be the id of a namespace, as `zae-limiter namespace show` prints it; it is not the name"
        raise ValidationError("policy_namespace_id", namespace_id, reason)


def _check_format(field: str, format: object) -> None:
    if format is not None and (not isinstance(format, str) or format.count("{}") != 1):
        raise ValidationError(field, format, "must contain {} exactly once, where the name goes: e.g. 'team-{}'")
    if not _IN_IAM_NAMES.match("".join(split_format(format))):
        raise ValidationError(field, format, "must use only letters, digits and '_+=,.@-' around {}")


def check_lengths(name: str, options: _Options) -> None:
    """Raise `ValidationError` if names of roles or policies of the stack ``name`` would be too long for IAM."""
    region = "r" * _REGION_MAX if options.region_in_iam_names else None
    without = f", or {_NO_REGION}" if region else ""
    for field, (_, most) in FORMATS.items():
        format = getattr(options, field)
        longest = len(make_name(format, name, "c" * _COMPONENT_MAX, region))
        if longest <= most or not options.create_iam:
            continue
        if format is None:
            reason = f"has {len(name)} characters, at most {len(name) + most - longest} are allowed while role names"
            raise ValidationError("name", name, f"{reason} hold the region; shorten it{without}")
        reason = f"makes names of up to {longest} characters, IAM allows {most}; shorten it or the name of the stack"
        raise ValidationError(field, format, reason + without)


def _check_created(options: _Options) -> None:
    """Check that what needs a role of the stack gets one."""
    if options.create_iam:
        return
    if options.create_iam_roles:
        reason = "contradicts create_iam=False (--no-iam); set it to False (--no-iam-roles), or keep IAM"
        raise ValidationError("create_iam_roles", True, reason)
    if options.enable_aggregator and options.aggregator_role_arn is None:
        raise ValidationError(
            "aggregator_role_arn",
            None,
            "the aggregator needs a role with create_iam=False (--no-iam): set aggregator_role_arn "
            "(--aggregator-role-arn), or enable_aggregator=False (--no-aggregator)",
        )


def _check_trust(options: _Options) -> None:
    """Check who may assume the roles."""
    trust, subject = options.app_role_trust, options.oidc_subject
    words = trust.split(",") if isinstance(trust, str) else []
    if trust is not None and (not words or not set(words) <= set(_TRUSTED) or len(set(words)) < len(words)):
        reason = f'must be some of {", ".join(_TRUSTED)}, each once: e.g. "ecs,lambda"'
        raise ValidationError("app_role_trust", trust, reason)
    if subject is not None and not (isinstance(subject, str) and _SUBJECT.match(subject)):
        reason = "must name service accounts, such as system:serviceaccount:default:my-app"
        raise ValidationError("oidc_subject", subject, reason)
    if (options.oidc_provider_arn is None) != (subject is None):
        missing = "oidc_subject" if subject is None else "oidc_provider_arn"
        reason = "is needed with its counterpart: set both oidc_provider_arn (--oidc-provider-arn) and oidc_subject "
        raise ValidationError(missing, None, f"{reason}(--oidc-subject), or neither")
    if (trust or subject or options.require_mfa) and not options.create_iam_roles:
        reason = (
            "must be True (--create-iam-roles) for app_role_trust, oidc_subject and require_mfa; set it, or drop these"
        )
        raise ValidationError("create_iam_roles", False, reason)
