"""The builder of a repository: its arguments and the options of its stack, one method call each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, TypeVar

from ..core.errors import ValidationError
from ..core.validation import flag
from .configs import check_policy
from .ignored import warn_ignored
from .opening import OpeningOperations, check_parallel_mode, find_namespace, find_store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..clock import Clock
    from ..core.stack_options import StackOptions
    from ..core.values import OnUnavailable
    from ..stores.port import Store

R = TypeVar("R", bound=OpeningOperations)


class StackSettings:
    """Collects the options of a stack. They are those of `StackOptions`."""

    def __init__(self) -> None:
        self._stack_options: StackOptions | None = None
        self._settings: dict[str, Any] = {}

    def stack_options(self, stack_options: StackOptions | None = None, **options: Any) -> Self:
        """Deploy the stack with these options; those that are set one by one replace single ones of them.

        ``options`` are single ones by their names in `StackOptions`, e.g. ``lambda_architecture="arm64"``.
        """
        from ..core.stack_options import StackOptions, check_stack_options

        if stack_options is not None:
            self._stack_options = check_stack_options(stack_options)
        for unknown in options.keys() - set(StackOptions.__match_args__):
            raise ValidationError(unknown, options[unknown], "is no option of a stack; see StackOptions")
        return self._set(**options)

    def snapshot_windows(self, value: str) -> Self:
        """Set the kinds of usage windows, separated by commas."""
        return self._set(snapshot_windows=value)

    def usage_retention_days(self, value: int) -> Self:
        """Set for how many days usage is kept."""
        return self._set(usage_retention_days=value)

    def audit_retention_days(self, value: int) -> Self:
        """Set for how many days audit events stay in the table."""
        return self._set(audit_retention_days=value)

    def enable_aggregator(self, value: bool = True) -> Self:
        """Deploy the function that counts usage, or not."""
        return self._set(enable_aggregator=value)

    def pitr_recovery_days(self, value: int | None) -> Self:
        """Set the days of point-in-time recovery; None for none."""
        return self._set(pitr_recovery_days=value)

    def log_retention_days(self, value: int) -> Self:
        """Set for how many days the function's log is kept."""
        return self._set(log_retention_days=value)

    def lambda_timeout(self, value: int) -> Self:
        """Set the function's timeout in seconds."""
        return self._set(lambda_timeout=value)

    def lambda_memory(self, value: int) -> Self:
        """Set the function's memory in MB."""
        return self._set(lambda_memory=value)

    def enable_alarms(self, value: bool = True) -> Self:
        """Deploy CloudWatch alarms, or not."""
        return self._set(enable_alarms=value)

    def alarm_sns_topic(self, value: str | None) -> Self:
        """Set the ARN of the topic for alarms."""
        return self._set(alarm_sns_topic=value)

    def lambda_duration_threshold_pct(self, value: int) -> Self:
        """Set the percentage of its timeout after which the function raises an alarm."""
        return self._set(lambda_duration_threshold_pct=value)

    def permission_boundary(self, value: str | None) -> Self:
        """Set the permission boundary of all roles."""
        return self._set(permission_boundary=value)

    def role_name_format(self, value: str | None) -> Self:
        """Set the format of role names, e.g. ``team-{}``."""
        return self._set(role_name_format=value)

    def policy_name_format(self, value: str | None) -> Self:
        """Set the format of policy names."""
        return self._set(policy_name_format=value)

    def enable_audit_archival(self, value: bool = True) -> Self:
        """Archive expired audit events in S3, or not."""
        return self._set(enable_audit_archival=value)

    def audit_archive_glacier_days(self, value: int) -> Self:
        """Set after how many days archived events move to Glacier."""
        return self._set(audit_archive_glacier_days=value)

    def enable_tracing(self, value: bool = True) -> Self:
        """Trace the function with X-Ray, or not."""
        return self._set(enable_tracing=value)

    def create_iam_roles(self, value: bool = True) -> Self:
        """Create roles for applications, administrators and readers, or not."""
        return self._set(create_iam_roles=value)

    def create_iam(self, value: bool = True) -> Self:
        """Create policies and the role of the function, or not."""
        return self._set(create_iam=value)

    def aggregator_role_arn(self, value: str | None) -> Self:
        """Set the ARN of an existing role for the function."""
        return self._set(aggregator_role_arn=value)

    def enable_deletion_protection(self, value: bool = True) -> Self:
        """Protect the table against deletion, or not."""
        return self._set(enable_deletion_protection=value)

    def tags(self, value: Mapping[str, str] | None) -> Self:
        """Set the tags of the stack."""
        return self._set(tags=value)

    def enable_provisioner(self, value: bool = True) -> Self:
        """Do nothing but warn: limits files need no function here."""
        from ..core.stack_options import warn_provisioner

        if value is not False:
            warn_provisioner(stacklevel=3)
        return self

    def _set(self, **setting: Any) -> Self:
        self._settings |= setting
        return self

    def _chosen_options(self) -> StackOptions | None:
        """Return the options that were set, or None."""
        if not self._settings:
            return self._stack_options
        from dataclasses import replace

        from ..core.stack_options import StackOptions

        return replace(self._stack_options or StackOptions(), **self._settings)


class RepositoryOptions(StackSettings):
    """Collects the arguments of a repository."""

    def __init__(self) -> None:
        super().__init__()
        self._url: str | Store | None = None
        self._stack: str | None = None
        self._options: dict[str, Any] = {}
        self._auto_update = True
        self._on_unavailable: OnUnavailable | None = None

    def stack(self, name: str | None) -> Self:
        """Use the DynamoDB stack of this name. `build` deploys it if it does not exist, as `Repository.open` does.

        None is for the stack that `Repository.open` finds by itself, as it is where no place is named.
        """
        self._stack = name
        return self

    def url(self, url_or_name: str | Store) -> Self:
        """Use a store URL, a store object or a stack name."""
        self._url = url_or_name
        return self

    def name(self, name: str) -> Self:
        """Use the DynamoDB stack of this name. It is deployed only if options of a stack are set."""
        return self._with(name=name)

    def region(self, name: str) -> Self:
        """Set the AWS region."""
        return self._with(region=name)

    def endpoint_url(self, url: str) -> Self:
        """Set the URL of the AWS endpoint."""
        return self._with(endpoint_url=url)

    def namespace(self, name: str) -> Self:
        """Set the namespace to work in; by default ``$ZAEL_NAMESPACE``, else ``default``."""
        return self._with(namespace=name)

    def config_cache_ttl(self, seconds: float) -> Self:
        """Cache stored limits for so many seconds."""
        return self._with(config_cache_ttl=seconds)

    def max_cached_keys(self, count: int) -> Self:
        """Keep limits and last seen buckets of so many keys in memory."""
        return self._with(max_cached_keys=count)

    def bucket_ttl_multiplier(self, value: int) -> Self:
        """Keep an unused bucket for so many times the time that it takes to fill."""
        return self._with(bucket_ttl_multiplier=value)

    def clock(self, clock: Clock) -> Self:
        """Set this process's clock."""
        return self._with(clock=clock)

    def auto_update(self, enabled: bool) -> Self:
        """Upload this version's code to an older aggregator of a `stack`, or not."""
        self._auto_update = flag("auto_update", enabled)
        return self

    def on_unavailable(self, value: OnUnavailable | str) -> Self:
        """Store what acquires of the namespace do when the store is unavailable: ``allow`` or ``block``."""
        self._on_unavailable = check_policy(value)
        return self

    def rejection_cache_ttl(self, seconds: float) -> Self:
        """Do nothing but warn: refusals are remembered by the limiter."""
        warn_ignored({"rejection_cache_ttl": seconds})
        return self

    def rejection_cache_size(self, entries: int) -> Self:
        """Do nothing but warn: `max_cached_keys` bounds what is kept."""
        warn_ignored({"rejection_cache_size": entries})
        return self

    def stamp_ttl(self, seconds: float) -> Self:
        """Do nothing but warn: `config_cache_ttl` is for switches and policies too."""
        warn_ignored({"stamp_ttl": seconds})
        return self

    def parallel_mode(self, value: str) -> Self:
        """Do nothing but check ``value``: calls that belong together are always made in parallel."""
        check_parallel_mode(value)
        return self

    def _with(self, **option: Any) -> Self:
        self._options |= option
        return self

    async def _open(self, kind: Callable[..., R]) -> R:
        """Open a repository of this kind, with its stack and its namespace."""
        options = self._chosen_options()
        elsewhere = self._url if self._url is not None else self._options.get("name")
        chosen = self._options | {"namespace": find_namespace(self._options.get("namespace"))}
        if elsewhere is None:
            repository = kind(find_store(self._stack, None), **chosen)
            await repository._enter(options, auto_update=self._auto_update)
        elif self._stack is not None:
            raise ValidationError("stack", self._stack, f"cannot be combined with {elsewhere!r}; use one of them")
        else:
            repository = kind(self._url, **chosen, stack_options=options)
            await repository._prepare()
        if self._on_unavailable is not None:
            await repository._store_policy(self._on_unavailable)
        return repository
