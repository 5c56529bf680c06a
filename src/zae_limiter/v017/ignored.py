"""Options of 0.17 that have no effect here: a program that passes them runs, and a warning says why."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TypedDict

from ..core.errors import ValidationError
from ..core.validation import show_url
from ..core.values import OnUnavailable


class IgnoredOptions(TypedDict, total=False):
    """Options without effect of a repository that is opened."""

    rejection_cache_ttl: float
    rejection_cache_size: int
    stamp_ttl: float


class IgnoredByConstructor(IgnoredOptions, total=False):
    """Options without effect of a repository that is made."""

    parallel_mode: str


class EarlierOptions(TypedDict, total=False):
    """Options of a limiter of 0.17: another name of ``on_unavailable``, and those without effect."""

    failure_mode: OnUnavailable | str
    auto_update: bool
    strict_version: bool
    skip_version_check: bool


_REASONS: Mapping[str, tuple[object, str]] = {
    "rejection_cache_ttl": (None, "refusals are remembered by the limiter: pass refusal_ttl= to it"),
    "rejection_cache_size": (None, "max_cached_keys= bounds what is kept in memory"),
    "stamp_ttl": (None, "switches and policies are cached with the limits: pass config_cache_ttl="),
    "parallel_mode": ("auto", "calls that belong together are always made in parallel"),
    "auto_update": (False, "a limiter changes no infrastructure: use Repository.open(auto_update=True)"),
    "strict_version": (True, "versions are always checked"),
    "skip_version_check": (False, "versions are always checked"),
    "use_stored_limits": (False, "stored limits are used wherever limits= is not given"),
    "enable_provisioner": (True, "a stack has no provisioner; `zae-limiter limits apply` applies limits files"),
}
"""By option: the value that asks for what happens anyway, and why another one has no effect."""
_PARALLEL_MODES = ("auto", "gevent", "threadpool", "serial")


def warn_ignored(given: Mapping[str, object], known: type | None = None) -> None:
    """Warn of each given option that has no effect. Raise TypeError for one that is not ``known``."""
    for name, value in given.items():
        if known is not None and name not in known.__annotations__:
            raise TypeError(f"got an unexpected keyword argument {name!r}")
        usual, reason = _REASONS[name]
        if value != usual or type(value) is not type(usual):
            warn_deprecated(f"{name} has no effect: {reason}.")


def warn_deprecated(message: str) -> None:
    """Warn the code that has called this package."""
    warnings.warn(message, DeprecationWarning, stacklevel=_caller_level())


def warn_provisioner() -> None:
    """Warn that the stack has no provisioner, whatever was asked for."""
    warn_deprecated(f"enable_provisioner has no effect: {_REASONS['enable_provisioner'][1]}.")


def check_parallel_mode(mode: str) -> None:
    """Raise `ValidationError` if ``mode`` is not a parallel mode of 0.17. None of them has an effect here."""
    if mode not in _PARALLEL_MODES:
        reason = f"must be one of {', '.join(_PARALLEL_MODES)}; none has an effect"
        raise ValidationError("parallel_mode", show_url(mode), reason)


def read_earlier(given: EarlierOptions, on_unavailable: OnUnavailable | str | None) -> OnUnavailable | str | None:
    """Return the policy of a limiter, which may be given as ``failure_mode``. Warn of options without effect."""
    warn_ignored({name: value for name, value in given.items() if name != "failure_mode"}, EarlierOptions)
    mode = given.get("failure_mode")
    if mode is not None and on_unavailable is not None:
        raise ValidationError("failure_mode", mode, "cannot be combined with on_unavailable; pass that alone")
    return on_unavailable if mode is None else mode


def _caller_level() -> int:
    """Return the stack level of the code that has called this package, as `warnings.warn` counts it."""
    from inspect import currentframe

    level, frame = 0, currentframe()
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("zae_limiter."):
        level, frame = level + 1, frame.f_back
    return level
