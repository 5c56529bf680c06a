# Written by `python -m tools.terraform` from the template.

output "managed_by" {
  value = lookup(aws_cloudformation_stack.limiter.outputs, "ManagedBy", null)
}

output "table_name" {
  value = lookup(aws_cloudformation_stack.limiter.outputs, "TableName", null)
}

output "table_arn" {
  value = lookup(aws_cloudformation_stack.limiter.outputs, "TableArn", null)
}

output "stream_arn" {
  value = lookup(aws_cloudformation_stack.limiter.outputs, "StreamArn", null)
}

output "audit_retention_days" {
  value = lookup(aws_cloudformation_stack.limiter.outputs, "AuditRetentionDays", null)
}

output "function_name" {
  value = lookup(aws_cloudformation_stack.limiter.outputs, "FunctionName", null)
}

output "function_arn" {
  value = lookup(aws_cloudformation_stack.limiter.outputs, "FunctionArn", null)
}

output "dead_letter_queue_url" {
  value = lookup(aws_cloudformation_stack.limiter.outputs, "DeadLetterQueueUrl", null)
}

output "archive_bucket" {
  value = lookup(aws_cloudformation_stack.limiter.outputs, "ArchiveBucket", null)
}

output "dashboard_name" {
  value = lookup(aws_cloudformation_stack.limiter.outputs, "DashboardName", null)
}

output "acquire_policy_arn" {
  value = lookup(aws_cloudformation_stack.limiter.outputs, "AcquirePolicyArn", null)
}

output "full_policy_arn" {
  value = lookup(aws_cloudformation_stack.limiter.outputs, "FullPolicyArn", null)
}

output "read_policy_arn" {
  value = lookup(aws_cloudformation_stack.limiter.outputs, "ReadPolicyArn", null)
}

output "namespace_acquire_policy_arn" {
  value = lookup(aws_cloudformation_stack.limiter.outputs, "NamespaceAcquirePolicyArn", null)
}

output "namespace_full_policy_arn" {
  value = lookup(aws_cloudformation_stack.limiter.outputs, "NamespaceFullPolicyArn", null)
}

output "namespace_read_policy_arn" {
  value = lookup(aws_cloudformation_stack.limiter.outputs, "NamespaceReadPolicyArn", null)
}

output "aggregator_role_arn" {
  value = lookup(aws_cloudformation_stack.limiter.outputs, "AggregatorRoleArn", null)
}

output "app_role_arn" {
  value = lookup(aws_cloudformation_stack.limiter.outputs, "AppRoleArn", null)
}

output "oidc_app_role_arn" {
  value = lookup(aws_cloudformation_stack.limiter.outputs, "OidcAppRoleArn", null)
}

output "admin_role_arn" {
  value = lookup(aws_cloudformation_stack.limiter.outputs, "AdminRoleArn", null)
}

output "read_role_arn" {
  value = lookup(aws_cloudformation_stack.limiter.outputs, "ReadRoleArn", null)
}
