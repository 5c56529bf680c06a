# Written by `python -m tools.terraform` from the template.

locals {
  parameters = {
    SnapshotWindows           = var.snapshot_windows
    UsageRetentionDays        = var.usage_retention_days
    AuditRetentionDays        = var.audit_retention_days
    EnableAggregator          = var.enable_aggregator
    PitrRecoveryDays          = var.pitr_recovery_days
    LogRetentionDays          = var.log_retention_days
    LambdaTimeout             = var.lambda_timeout
    LambdaMemory              = var.lambda_memory
    LambdaArchitecture        = var.lambda_architecture
    LambdaReservedConcurrency = var.lambda_reserved_concurrency
    CodeS3Bucket              = var.code_s3_bucket
    CodeS3Key                 = var.code_s3_key
    CodeS3Version             = var.code_s3_version
    EnableAlarms              = var.enable_alarms
    AlarmSnsTopic             = var.alarm_sns_topic
    LambdaDurationThreshold   = var.lambda_duration_threshold
    EnableDashboard           = var.enable_dashboard
    PermissionBoundary        = var.permission_boundary
    PermissionBoundaryName    = var.permission_boundary_name
    RoleNamePrefix            = var.role_name_prefix
    RoleNameSuffix            = var.role_name_suffix
    PolicyNamePrefix          = var.policy_name_prefix
    PolicyNameSuffix          = var.policy_name_suffix
    RegionInIamNames          = var.region_in_iam_names
    PolicyNamespaceId         = var.policy_namespace_id
    EnableAuditArchival       = var.enable_audit_archival
    AuditArchiveGlacierDays   = var.audit_archive_glacier_days
    AuditArchiveVersioning    = var.audit_archive_versioning
    AuditArchiveLockDays      = var.audit_archive_lock_days
    AuditArchiveLockMode      = var.audit_archive_lock_mode
    EnableTracing             = var.enable_tracing
    CreateIamRoles            = var.create_iam_roles
    AppRoleTrust              = var.app_role_trust
    OidcProviderArn           = var.oidc_provider_arn
    OidcSubject               = var.oidc_subject
    RequireMfa                = var.require_mfa
    CreateIam                 = var.create_iam
    AggregatorRoleArn         = var.aggregator_role_arn
    EnableDeletionProtection  = var.enable_deletion_protection
    MaxReadRequestUnits       = var.max_read_request_units
    MaxWriteRequestUnits      = var.max_write_request_units
    KmsKeyArn                 = var.kms_key_arn
  }
}

variable "snapshot_windows" {
  description = "Windows over which usage is summed up, of hourly, daily and monthly. Default: hourly,daily."
  type        = string
  default     = null
}

variable "usage_retention_days" {
  description = "Days for which usage snapshots are kept. Default: 90."
  type        = number
  default     = null
}

variable "audit_retention_days" {
  description = "Days for which audit events stay in the table. Default: 90."
  type        = number
  default     = null
}

variable "enable_aggregator" {
  description = "Whether a Lambda function follows the table's stream and sums up usage. Default: true."
  type        = bool
  default     = null
}

variable "pitr_recovery_days" {
  description = "Days to any of whose moments the table can be restored; 0 for no point-in-time recovery. Default: 35."
  type        = number
  default     = null
}

variable "log_retention_days" {
  description = "Days for which the aggregator's log is kept. Default: 30."
  type        = number
  default     = null
}

variable "lambda_timeout" {
  description = "Seconds that the aggregator may take for a batch. Default: 60."
  type        = number
  default     = null
}

variable "lambda_memory" {
  description = "The aggregator's memory in MB. Default: 256."
  type        = number
  default     = null
}

variable "lambda_architecture" {
  description = "The processors that the aggregator runs on. Default: x86_64."
  type        = string
  default     = null
}

variable "lambda_reserved_concurrency" {
  description = "Concurrent runs that are reserved for the aggregator, and its most; 0 for what the account has. Default: 0."
  type        = number
  default     = null
}

variable "code_s3_bucket" {
  description = "Bucket of the aggregator's package, see `zae-limiter lambda-export`; empty for no code yet. Default: none."
  type        = string
  default     = null
}

variable "code_s3_key" {
  description = "Key of the package in that bucket. Default: none."
  type        = string
  default     = null
}

variable "code_s3_version" {
  description = "Version of that object; empty for the latest when the key changes. Default: none."
  type        = string
  default     = null
}

variable "enable_alarms" {
  description = "Whether there are CloudWatch alarms. Default: true."
  type        = bool
  default     = null
}

variable "alarm_sns_topic" {
  description = "ARN of the SNS topic that is told of alarms; empty for none. Default: none."
  type        = string
  default     = null
}

variable "lambda_duration_threshold" {
  description = "Milliseconds from which on a run of the aggregator raises an alarm; a share of its timeout. Default: 48000."
  type        = number
  default     = null
}

variable "enable_dashboard" {
  description = "Whether there is a CloudWatch dashboard. Default: true."
  type        = bool
  default     = null
}

variable "permission_boundary" {
  description = "ARN of the policy that bounds every role of the stack; empty for none. Default: none."
  type        = string
  default     = null
}

variable "permission_boundary_name" {
  description = "The same by the name of a policy of this account; empty for none. Default: none."
  type        = string
  default     = null
}

variable "role_name_prefix" {
  description = "What the names of roles begin with. Default: none."
  type        = string
  default     = null
}

variable "role_name_suffix" {
  description = "What the names of roles end with. Default: none."
  type        = string
  default     = null
}

variable "policy_name_prefix" {
  description = "What the names of managed policies begin with. Default: none."
  type        = string
  default     = null
}

variable "policy_name_suffix" {
  description = "What the names of managed policies end with. Default: none."
  type        = string
  default     = null
}

variable "region_in_iam_names" {
  description = "Whether the names of roles and policies hold the region, as an account has them once for all regions. Default: true."
  type        = bool
  default     = true
}

variable "policy_namespace_id" {
  description = "Id of the namespace of the namespace policies, or the tag of the caller that holds it. Default: $${aws:PrincipalTag/zael_namespace_id}."
  type        = string
  default     = null
}

variable "enable_audit_archival" {
  description = "Whether the aggregator archives audit events that expire. Default: true."
  type        = bool
  default     = null
}

variable "audit_archive_glacier_days" {
  description = "Days after which archived audit events move to Glacier. Default: 90."
  type        = number
  default     = null
}

variable "audit_archive_versioning" {
  description = "Whether every version of archived objects is kept. Default: false."
  type        = bool
  default     = null
}

variable "audit_archive_lock_days" {
  description = "Days for which Object Lock keeps archived objects, with versioning; 0 for no lock. Default: 0."
  type        = number
  default     = null
}

variable "audit_archive_lock_mode" {
  description = "Whether a special permission (GOVERNANCE) or nobody (COMPLIANCE) can delete locked objects. Default: GOVERNANCE."
  type        = string
  default     = null
}

variable "enable_tracing" {
  description = "Whether X-Ray traces the aggregator. Default: false."
  type        = bool
  default     = null
}

variable "create_iam_roles" {
  description = "Whether there are roles for applications, administrators and readers, beside the policies. Default: false."
  type        = bool
  default     = null
}

variable "app_role_trust" {
  description = "Services, separated by commas, that may assume the application's role, e.g. ecs-tasks.amazonaws.com; empty for none. Default: none."
  type        = string
  default     = null
}

variable "oidc_provider_arn" {
  description = "ARN of a cluster's OIDC provider, whose service accounts get a role of their own; empty for none. Default: none."
  type        = string
  default     = null
}

variable "oidc_subject" {
  description = "Service accounts that may assume that role, as system:serviceaccount:NAMESPACE:NAME. Default: none."
  type        = string
  default     = null
}

variable "require_mfa" {
  description = "Whether the administrators' and readers' roles can only be assumed with multi-factor authentication. Default: false."
  type        = bool
  default     = null
}

variable "create_iam" {
  description = "Whether the stack makes any IAM resource at all. Default: true."
  type        = bool
  default     = null
}

variable "aggregator_role_arn" {
  description = "ARN of a role that exists, for the aggregator; empty for one of the stack. Default: none."
  type        = string
  default     = null
}

variable "enable_deletion_protection" {
  description = "Whether the table refuses to be deleted. A creation that fails has to delete it, so create a stack with later, then set true. Default: false."
  type        = string
  default     = null
}

variable "max_read_request_units" {
  description = "Most reads per second of the table, and of each index; 0 for AWS's own limits. Default: 0."
  type        = number
  default     = null
}

variable "max_write_request_units" {
  description = "Most writes per second of the table, and of each index; 0 for AWS's own limits. Default: 0."
  type        = number
  default     = null
}

variable "kms_key_arn" {
  description = "ARN of the key that encrypts table, archive, queue and log; empty for AWS's own keys. Default: none."
  type        = string
  default     = null
}
