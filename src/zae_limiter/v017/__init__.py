"""Import paths and names of zae-limiter 0.17 for things that are elsewhere here, so that programs with them run.

`PATHS` lists the paths. A module at such a path only imports; what has to be written for it is in this package.
"""

PATHS = {
    "zae_limiter.bucket": (
        *("build_limit_status", "calculate_available", "calculate_retry_after", "calculate_time_until_available"),
        *("force_consume", "refill_bucket", "try_consume", "would_refill_satisfy"),
    ),
    "zae_limiter.cli": ("cli",),
    "zae_limiter.config_cache": ("CacheStats", "ConfigCache"),
    "zae_limiter.infra": ("get_cfn_template",),
    "zae_limiter.infra.discovery": ("InfrastructureDiscovery",),
    "zae_limiter.infra.lambda_builder": ("build_lambda_package", "get_package_info", "write_lambda_package"),
    "zae_limiter.infra.stack_manager": ("StackManager",),
    "zae_limiter.infra.sync_discovery": ("SyncInfrastructureDiscovery",),
    "zae_limiter.infra.sync_stack_manager": ("SyncStackManager",),
    "zae_limiter.lease": ("Lease",),
    "zae_limiter.limiter": ("OnUnavailable", "RateLimiter"),
    "zae_limiter.naming": (
        *("normalize_name", "normalize_stack_name", "resolve_namespace_name", "resolve_stack_name"),
        *("validate_name", "validate_stack_name"),
    ),
    "zae_limiter.repository": ("Repository",),
    "zae_limiter.repository_builder": ("RepositoryBuilder",),
    "zae_limiter.repository_protocol": ("RepositoryProtocol",),
    "zae_limiter.schedule": ("ScheduleEntry",),
    "zae_limiter.schema": (
        *("bucket_attr", "calculate_ttl", "get_table_definition", "parse_bucket_attr", "parse_bucket_pk"),
        *("parse_namespace", "pk_audit", "pk_bucket", "pk_entity", "pk_resource", "pk_system", "sk_audit", "sk_config"),
        *("sk_entity_config_resources", "sk_meta", "sk_namespace", "sk_namespace_prefix", "sk_nsid"),
        *("sk_nsid_prefix", "sk_resources", "sk_state", "sk_version", "gsi1_pk_parent", "gsi1_sk_child"),
        *("gsi2_pk_resource", "gsi2_sk_bucket", "gsi3_pk_entity", "gsi3_pk_entity_config", "gsi3_sk_bucket"),
        "gsi3_sk_entity",
    ),
    "zae_limiter.sync_config_cache": ("SyncConfigCache",),
    "zae_limiter.sync_lease": ("SyncLease",),
    "zae_limiter.sync_limiter": ("SyncRateLimiter",),
    "zae_limiter.sync_repository": ("SyncRepository",),
    "zae_limiter.sync_repository_builder": ("SyncRepositoryBuilder",),
    "zae_limiter.sync_repository_protocol": ("SyncRepositoryProtocol",),
    "zae_limiter.version": (
        *("CompatibilityResult", "InfrastructureVersion", "ParsedVersion", "check_compatibility"),
        *("get_schema_version", "parse_version"),
    ),
    "zae_limiter_aggregator.archiver": ("Archive", "archive_objects"),
    "zae_limiter_aggregator.handler": ("handler",),
    "zae_limiter_aggregator.processor": ("Aggregator",),
}
"""The functions and classes by path. ``schema``, ``naming`` and ``version`` also have the constants of 0.17."""
