"""Options of a stack: what is refused before AWS is asked, and that parameters say the same as options."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, strategies as st

from zae_limiter import StackOptions, ValidationError
from zae_limiter.aws import stack_fields, template
from zae_limiter.records.usage import WINDOWS

ROLE = "arn:aws:iam::123456789012:role/path/my-role"
PROVIDER = "arn:aws:iam::123456789012:oidc-provider/oidc.eks.us-east-1.amazonaws.com/id/0123ABCD"
SUBJECT = "system:serviceaccount:default:my-app"
PLAIN = StackOptions(region_in_iam_names=False)
"""As stacks had them whose names of roles and policies are without the region."""


def check_options(name: str, options: StackOptions) -> None:
    """Check options with the name of their stack."""
    options.check_stack_name(name)


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "no window": ({"snapshot_windows": ""}, "snapshot_windows", "hourly, daily, monthly"),
    "unknown window": ({"snapshot_windows": "hourly,weekly"}, "snapshot_windows", "hourly, daily, monthly"),
    "window twice": ({"snapshot_windows": "hourly,hourly"}, "snapshot_windows", "each once"),
    "blanks": ({"snapshot_windows": "hourly, daily"}, "snapshot_windows", '"hourly,daily"'),
    "no retention": ({"usage_retention_days": 0}, "usage_retention_days", "1 to 36500"),
    "endless audit": ({"audit_retention_days": 10**6}, "audit_retention_days", "1 to 36500"),
    "a fraction": ({"audit_retention_days": 1.5}, "audit_retention_days", "whole number"),
    "True days": ({"usage_retention_days": True}, "usage_retention_days", "whole number"),
    "pitr 0": ({"pitr_recovery_days": 0}, "pitr_recovery_days", "1 to 35"),
    "pitr 36": ({"pitr_recovery_days": 36}, "pitr_recovery_days", "1 to 35"),
    "log 2": ({"log_retention_days": 2}, "log_retention_days", "nearest is 1"),
    "log 100": ({"log_retention_days": 100}, "log_retention_days", "nearest is 90"),
    "log a text": ({"log_retention_days": "30"}, "log_retention_days", "whole number"),
    "timeout": ({"lambda_timeout": 901}, "lambda_timeout", "1 to 900"),
    "memory": ({"lambda_memory": 127}, "lambda_memory", "128 to 10240"),
    "share": ({"lambda_duration_threshold_pct": 101}, "lambda_duration_threshold_pct", "1 to 100"),
    "glacier": ({"audit_archive_glacier_days": 0}, "audit_archive_glacier_days", "1 to 36500"),
    "a flag": ({"enable_alarms": "yes"}, "enable_alarms", "True or False"),
    "topic": ({"alarm_sns_topic": "my-topic"}, "alarm_sns_topic", "arn:aws:sns:"),
    "topic of SQS": ({"alarm_sns_topic": "arn:aws:sqs:us-east-1:123456789012:q"}, "alarm_sns_topic", "arn:aws:sns:"),
    "boundary": ({"permission_boundary": "no/name"}, "permission_boundary", ":policy/"),
    "role": ({"aggregator_role_arn": "arn:aws:iam::1:role/x"}, "aggregator_role_arn", ":role/"),
    "role of a user": ({"aggregator_role_arn": "arn:aws:iam::123456789012:user/x"}, "aggregator_role_arn", ":role/"),
    "alias of a key": ({"kms_key_arn": "arn:aws:kms:us-east-1:123456789012:alias/x"}, "kms_key_arn", "not of an alias"),
    "processors": ({"lambda_architecture": "arm"}, "lambda_architecture", "x86_64 or arm64"),
    "mode of a lock": ({"audit_archive_lock_mode": "legal"}, "audit_archive_lock_mode", "GOVERNANCE or COMPLIANCE"),
    "no runs": ({"lambda_reserved_concurrency": 0}, "lambda_reserved_concurrency", "from 1"),
    "no writes": ({"max_write_request_units": 0}, "max_write_request_units", "from 1"),
    "a bucket with a path": ({"code_s3_bucket": "a/b", "code_s3_key": "k"}, "code_s3_bucket", "my-bucket"),
    "code without a key": ({"code_s3_bucket": "bucket"}, "code_s3_key", "--code-s3-key"),
    "code without a bucket": ({"code_s3_key": "key"}, "code_s3_bucket", "--code-s3-bucket"),
    "only a version": ({"code_s3_version": "1"}, "code_s3_bucket", "--code-s3-key"),
    "no place": ({"role_name_format": "pb-"}, "role_name_format", "{} exactly once"),
    "two places": ({"policy_name_format": "{}-{}"}, "policy_name_format", "{} exactly once"),
    "name of a namespace": ({"policy_namespace_id": "tenant a"}, "policy_namespace_id", "it is not the name"),
    "the registry": ({"policy_namespace_id": "_"}, "policy_namespace_id", "id of a namespace"),
    "unknown service": ({"app_role_trust": "ecs,batch", "create_iam_roles": True}, "app_role_trust", "ecs, lambda"),
    "no service": ({"app_role_trust": "", "create_iam_roles": True}, "app_role_trust", "ecs, lambda"),
    "service twice": ({"app_role_trust": "eks,eks", "create_iam_roles": True}, "app_role_trust", "each once"),
    "provider": ({"oidc_provider_arn": ROLE}, "oidc_provider_arn", ":oidc-provider/"),
    "subject": ({"oidc_subject": "my-app"}, "oidc_subject", "system:serviceaccount:default:my-app"),
    "provider alone": ({"oidc_provider_arn": PROVIDER, "create_iam_roles": True}, "oidc_subject", "or neither"),
    "subject alone": ({"oidc_subject": SUBJECT, "create_iam_roles": True}, "oidc_provider_arn", "or neither"),
    "trust without roles": ({"app_role_trust": "ecs"}, "create_iam_roles", "--create-iam-roles"),
    "mfa without roles": ({"require_mfa": True}, "create_iam_roles", "--create-iam-roles"),
    "odd letters": ({"role_name_format": "a b-{}"}, "role_name_format", "letters, digits"),
    "a region": ({"region_in_iam_names": "us-east-1"}, "region_in_iam_names", "True, False or None"),
    "tag of AWS": ({"tags": {"AWS:x": "1"}}, "tags", "reserved"),
    "tag of ours": ({"tags": {"zae-limiter:managed": "no"}}, "tags", "reserved"),
    "empty tag": ({"tags": {"": "1"}}, "tags", "valid tag key"),
    "long value": ({"tags": {"a": "1" * 257}}, "tags", "valid tag value"),
    "odd tag": ({"tags": {"a<b": "1"}}, "tags", "valid tag key"),
    "no mapping": ({"tags": ["a=b"]}, "tags", "map keys to values"),
    "48 tags": ({"tags": {str(n): "1" for n in range(48)}}, "tags", "room for 47"),
    "roles without iam": (
        {"create_iam": False, "create_iam_roles": True, "aggregator_role_arn": ROLE},
        "create_iam_roles",
        "contradicts create_iam=False",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str) -> None:
    changed, field, reason = REFUSED[case]
    with pytest.raises(ValidationError) as caught:
        StackOptions(**changed)
    assert caught.value.field == field
    assert reason in caught.value.reason


TOO_LONG: dict[str, tuple[dict[str, Any], str]] = {
    "role_name_format": ({"role_name_format": "x" * 50 + "{}"}, "65 characters, IAM allows 64"),
    "policy_name_format": ({"policy_name_format": "x" * 114 + "{}"}, "129 characters, IAM allows 128"),
    "role_name_format with the region": (
        {"role_name_format": "x" * 34 + "{}", "region_in_iam_names": True},
        "65 characters, IAM allows 64; shorten it or the name of the stack, or set region_in_iam_names=False",
    ),
}


@pytest.mark.parametrize("case", TOO_LONG)
def test_what_is_too_long_for_a_name_is_refused_with_it(case: str) -> None:
    given, reason = TOO_LONG[case]
    options = StackOptions(**given)
    assert options.to_parameters()  # without a name there is nothing to compare with
    for attempt in (lambda: check_options("my-app", options), lambda: options.to_parameters("my-app")):
        with pytest.raises(ValidationError) as caught:
            attempt()
        assert (caught.value.field, reason in caught.value.reason) == (case.split()[0], True)


def test_an_aggregator_without_a_role_has_two_ways_out() -> None:
    with pytest.raises(ValidationError) as caught:
        check_options("my-app", StackOptions(create_iam=False))
    assert caught.value.field == "aggregator_role_arn"
    assert {"--aggregator-role-arn", "--no-aggregator"} <= set(caught.value.reason.replace(")", "(").split("("))
    check_options("my-app", StackOptions(create_iam=False, aggregator_role_arn=ROLE))
    check_options("my-app", StackOptions(create_iam=False, enable_aggregator=False))


def test_names_are_those_of_stacks() -> None:
    with pytest.raises(ValidationError, match="hyphens"):
        check_options("my_app", StackOptions())
    check_options(
        "a" * 55, StackOptions(role_name_format="{}", policy_name_format="x" * 64 + "{}", enable_aggregator=False)
    )


def test_a_name_leaves_room_for_what_is_called_after_it() -> None:
    check_options("abc", StackOptions())
    check_options("a" * 53, StackOptions())
    for name in ("a" * 54, "a" * 55):
        check_options(name, StackOptions(enable_aggregator=False))
        with pytest.raises(ValidationError, match="at most 53 are allowed with an aggregator"):
            check_options(name, StackOptions())
    with pytest.raises(ValidationError, match="at least 3"):
        check_options("ab", StackOptions())


def test_a_name_leaves_room_for_the_region_in_the_names_of_roles() -> None:
    check_options("a" * 39, StackOptions(create_iam_roles=True, region_in_iam_names=True))
    with pytest.raises(
        ValidationError, match=r"at most 39 are allowed .* set region_in_iam_names=False \(--no-region-in-iam-names"
    ):
        check_options("a" * 40, StackOptions(region_in_iam_names=True))
    check_options("a" * 53, StackOptions())  # a stack that exists may have names without the region
    lent = StackOptions(create_iam=False, aggregator_role_arn=ROLE, region_in_iam_names=True)
    check_options("a" * 53, lent)


def test_every_partition_has_its_arns() -> None:
    for partition in ("aws", "aws-cn", "aws-us-gov"):
        check_options(
            "my-app",
            StackOptions(
                alarm_sns_topic=f"arn:{partition}:sns:cn-north-1:123456789012:alarms",
                permission_boundary=f"arn:{partition}:iam::aws:policy/PowerUserAccess",
                aggregator_role_arn=f"arn:{partition}:iam::123456789012:role/service-role/my-role",
            ),
        )


def formats() -> st.SearchStrategy[str | None]:
    affix = st.text("ab-_", max_size=5)
    made = st.builds(lambda before, after: f"{before}{{}}{after}", affix, affix)
    return st.none() | made.filter(lambda format: format != "{}")


def windows() -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(WINDOWS), min_size=1, unique=True).map(",".join)


OPTIONAL_NUMBERS = (
    *("lambda_reserved_concurrency", "max_read_request_units", "max_write_request_units", "audit_archive_lock_days"),
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    **{name: st.integers(*bounds) for name, bounds in stack_fields.RANGES.items()},
    "pitr_recovery_days": st.none() | st.integers(1, 35),
    "snapshot_windows": windows(),
    "log_retention_days": st.sampled_from(stack_fields.LOG_RETENTION_DAYS),
    "alarm_sns_topic": st.sampled_from([None, "arn:aws:sns:us-east-1:123456789012:alarms"]),
    "permission_boundary": st.sampled_from([None, "arn:aws:iam::aws:policy/PowerUserAccess", "MyBoundary"]),
    **{name: st.none() | st.integers(*stack_fields.RANGES[name]) for name in OPTIONAL_NUMBERS},
    **{name: st.sampled_from(choices) for name, choices in stack_fields.CHOICES.items()},
    "kms_key_arn": st.sampled_from([None, "arn:aws:kms:us-east-1:123456789012:key/1234abcd"]),
    "code_s3_bucket": st.just("bucket"),
    "code_s3_key": st.just("lambda/code.zip"),
    "code_s3_version": st.sampled_from([None, "3sL4kqtJlcpXroDTDmJ"]),
    "aggregator_role_arn": st.just(ROLE),
    "role_name_format": formats(),
    "policy_name_format": formats(),
    "create_iam": st.just(True),
    "policy_namespace_id": st.sampled_from([None, "a1B2c3D4e5-"]),
    "app_role_trust": st.none(),
    "oidc_provider_arn": st.none(),
    "oidc_subject": st.none(),
    "require_mfa": st.just(False),
    "region_in_iam_names": st.sampled_from([None, False]),
}


@st.composite
def stack_options(draw: st.DrawFn) -> StackOptions:
    """Any options that can be had, but for tags, which are no parameters."""
    given = {
        field.name: draw(VALUES.get(field.name, st.booleans()))
        for field in dataclasses.fields(StackOptions)
        if field.name != "tags"
    }
    if draw(st.booleans()):
        given |= {"create_iam": False, "create_iam_roles": False}
    elif draw(st.booleans()):
        given |= {"aggregator_role_arn": None}
        trusted = st.lists(st.sampled_from(["ecs", "lambda", "ec2", "eks"]), min_size=1, unique=True).map(",".join)
        given |= {
            "create_iam_roles": True,
            "app_role_trust": draw(st.none() | trusted),
            "require_mfa": draw(st.booleans()),
        }
        given |= draw(st.sampled_from([{}, {"oidc_provider_arn": PROVIDER, "oidc_subject": SUBJECT}]))
    if draw(st.booleans()):
        given |= dict.fromkeys(("code_s3_bucket", "code_s3_key", "code_s3_version"))
    return StackOptions(**given)


@given(stack_options())
def test_parameters_say_the_same_as_options(wanted: StackOptions) -> None:
    said = template.encode_parameters("my-app", wanted)
    assert StackOptions.from_parameters(said) == wanted
    assert all(isinstance(value, str) for value in said.values())


def test_a_stack_of_an_older_template_has_the_defaults_for_what_it_lacks() -> None:
    assert StackOptions.from_parameters({"RegionInIamNames": "true"}) == StackOptions()
    given = {"LambdaMemory": "512", "Unknown": "1", "RegionInIamNames": "true"}
    assert StackOptions.from_parameters(given) == StackOptions(lambda_memory=512)


def test_a_stack_whose_iam_names_are_without_the_region_keeps_them() -> None:
    """Other names would be other roles and policies, and those that have them would lose their rights."""
    before = template.encode_parameters("my-app", PLAIN)
    del before["RegionInIamNames"]
    assert StackOptions.from_parameters(before) == PLAIN


def test_a_format_that_changes_nothing_is_none() -> None:
    said = template.encode_parameters("my-app", StackOptions(role_name_format="{}"))
    assert StackOptions.from_parameters(said).role_name_format is None


def test_names_are_those_of_the_template() -> None:
    plain = StackOptions()
    assert plain.get_role_name("my-app", "aggr", "us-east-1") == "my-app-aggr-us-east-1"
    assert plain.get_policy_name("my-app", "acq", region="us-east-1") == "my-app-acq-us-east-1"
    named = StackOptions(role_name_format="pb-{}-x", policy_name_format="pol-{}", region_in_iam_names=False)
    assert named.get_role_name("my-app", "app") == "pb-my-app-app-x"
    assert named.get_policy_name("my-app", "full", "us-east-1") == "pol-my-app-full"
    with pytest.raises(ValidationError, match="stack_name"):
        named.get_role_name("my_app", "app")
    with pytest.raises(ValidationError, match="region_in_iam_names=False"):
        plain.get_role_name("my-app", "app")


def test_a_boundary_is_named_or_an_arn() -> None:
    arn = "arn:aws:iam::aws:policy/PowerUserAccess"
    names = ("PermissionBoundary", "PermissionBoundaryName")
    found = {given: StackOptions(permission_boundary=given).to_parameters() for given in (None, arn, "MyBoundary")}
    assert [tuple(each[name] for name in names) for each in found.values()] == [("", ""), (arn, ""), ("", "MyBoundary")]


def test_parameters_for_other_tools_do_not_claim_the_stack() -> None:
    assert "ManagedBy" not in StackOptions().to_parameters()
    assert StackOptions().to_parameters("my-app")["LambdaMemory"] == "256"


def test_a_provisioner_is_accepted_and_has_no_effect() -> None:
    assert StackOptions(enable_provisioner=True) == StackOptions()
    with pytest.warns(DeprecationWarning, match="enable_provisioner has no effect"):
        assert StackOptions(enable_provisioner=False) == StackOptions()


def test_a_threshold_of_other_tools_is_a_share_of_the_timeout() -> None:
    assert StackOptions.from_parameters({"LambdaTimeout": "10"}).lambda_duration_threshold_pct == 80
    found = StackOptions.from_parameters({"LambdaTimeout": "10", "LambdaDurationThreshold": "48000"})
    assert found.lambda_duration_threshold_pct == 100
