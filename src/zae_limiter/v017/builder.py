"""Methods that a builder had in 0.17: one for each option of a stack, and for options that have no effect here.

Here `stack_options` takes all options by their names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from ..aws.stack_options import StackOptions
from .ignored import check_parallel_mode, warn_ignored, warn_provisioner


class OldBuilder:
    """A builder as type checkers see it. At run time it finds these methods by `find_method` when they are called."""

    if TYPE_CHECKING:  # for each of them `_set_option`

        def snapshot_windows(self, value: str) -> Self: ...
        def usage_retention_days(self, value: int) -> Self: ...
        def audit_retention_days(self, value: int) -> Self: ...
        def enable_aggregator(self, value: bool = True) -> Self: ...
        def pitr_recovery_days(self, value: int | None) -> Self: ...
        def log_retention_days(self, value: int) -> Self: ...
        def lambda_timeout(self, value: int) -> Self: ...
        def lambda_memory(self, value: int) -> Self: ...
        def enable_alarms(self, value: bool = True) -> Self: ...
        def alarm_sns_topic(self, value: str | None) -> Self: ...
        def lambda_duration_threshold_pct(self, value: int) -> Self: ...
        def permission_boundary(self, value: str | None) -> Self: ...
        def role_name_format(self, value: str | None) -> Self: ...
        def policy_name_format(self, value: str | None) -> Self: ...
        def enable_audit_archival(self, value: bool = True) -> Self: ...
        def audit_archive_glacier_days(self, value: int) -> Self: ...
        def enable_tracing(self, value: bool = True) -> Self: ...
        def create_iam_roles(self, value: bool = True) -> Self: ...
        def create_iam(self, value: bool = True) -> Self: ...
        def aggregator_role_arn(self, value: str | None) -> Self: ...
        def enable_deletion_protection(self, value: bool = True) -> Self: ...
        def tags(self, value: Mapping[str, str] | None) -> Self: ...

    def enable_provisioner(self, value: bool = True) -> Self:
        """Do nothing but warn: limits files need no function here."""
        if value is not False:
            warn_provisioner()
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


def find_method(builder: Any, name: str) -> Callable[..., Any]:
    """Return the method of this name for ``builder``. Raise AttributeError if 0.17 had none."""
    method: Callable[..., Any] | None = None if name.startswith("_") else vars(OldBuilder).get(name)
    if method is not None:
        return partial(method, builder)
    if name in StackOptions.__match_args__:
        return partial(_set_option, builder, name)
    raise AttributeError(f"{type(builder).__name__!r} object has no attribute {name!r}")


def _set_option(builder: Any, name: str, /, value: object = True) -> Any:
    return builder.stack_options(**{name: value})
