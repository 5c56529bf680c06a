"""Check before a deployment that names are free and that a given role exists.

CloudFormation would find out too, after a minute and a rollback. What these credentials may not read is skipped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.errors import (
    AccessDeniedError,
    InfrastructureNotFoundError,
    StackAlreadyExistsError,
    StackOperationError,
    ValidationError,
)
from .resources import function_name, log_group, queue_name

if TYPE_CHECKING:
    from ..core.reports import StackOptions
    from .calls import Aws


def check_names(aws: Aws, name: str, options: StackOptions) -> None:
    """Raise `StackAlreadyExistsError` if a name of a new stack's resources is taken."""
    if _exists(aws, "dynamodb", "describe_table", TableName=name):
        raise _name_taken_error("DynamoDB table", name, aws.region, "Choose another name, or import it with --adopt.")
    if not options.enable_aggregator:
        return
    if _exists(aws, "lambda", "get_function_configuration", FunctionName=function_name(name)):
        raise _name_taken_error("Lambda function", function_name(name), aws.region)
    if _exists(aws, "sqs", "get_queue_url", QueueName=queue_name(name)):
        raise _name_taken_error("SQS queue", queue_name(name), aws.region)
    if _has_log_group(aws, log_group(name)):
        raise _name_taken_error("log group", log_group(name), aws.region)


def _name_taken_error(
    kind: str, name: str, region: str, fix: str = "Choose another name, or delete it first."
) -> StackAlreadyExistsError:
    return StackAlreadyExistsError(
        f"The {kind} {name!r} exists in {region} and is not part of a zae-limiter stack; nothing was changed. {fix}"
    )


def check_role(aws: Aws, options: StackOptions) -> None:
    """Raise `ValidationError` if the given role belongs to this account and does not exist."""
    arn = options.aggregator_role_arn
    if arn is None or arn.split(":")[4] != _read_account(aws):
        return
    try:
        aws.call("iam", "get_role", RoleName=arn.rpartition("/")[2])
    except InfrastructureNotFoundError as error:
        reason = "does not exist in this account; check the ARN, or create the role first"
        raise ValidationError("aggregator_role_arn", arn, reason) from error
    except (AccessDeniedError, StackOperationError):
        return


def _read_account(aws: Aws) -> str | None:
    try:
        return str(aws.call("sts", "get_caller_identity")["Account"])
    except (AccessDeniedError, StackOperationError):
        return None


def _exists(aws: Aws, service: str, operation: str, **request: str) -> bool:
    try:
        aws.call(service, operation, **request)
    except (InfrastructureNotFoundError, AccessDeniedError):
        return False
    return True


def _has_log_group(aws: Aws, group: str) -> bool:
    try:
        answer = aws.call("logs", "describe_log_groups", logGroupNamePrefix=group)
    except AccessDeniedError:
        return False
    return any(each["logGroupName"] == group for each in answer["logGroups"])
