"""The aggregator's code, uploaded to the function directly, so that a stack needs no bucket for it."""

from __future__ import annotations

import time
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from ..core.errors import StackOperationError
from . import package
from .calls import code_of, poll
from .resources import function_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from .calls import Aws

UPLOADED, UNCHANGED = "uploaded", "unchanged"


class Package(NamedTuple):
    """The code and the hash by which Lambda knows it."""

    zip: bytes
    sha256: str


@cache
def build_package() -> Package:
    """Build the package of the installed version, once per process."""
    made = package.build()
    return Package(made, package.sha256(made))


def upload(aws: Aws, name: str, *, pause: Callable[[float], object] = time.sleep) -> str:
    """Upload this version's code unless the function has it. Return `UPLOADED` or `UNCHANGED`."""
    function = function_name(name)
    if is_current(_wait_until_idle(aws, function, pause)):
        return UNCHANGED
    _send(aws, function, pause)
    found = _wait_until_idle(aws, function, pause)
    if "Failed" in (found.get("State"), found.get("LastUpdateStatus")):
        reason = found.get("LastUpdateStatusReason") or found.get("StateReason") or "AWS gives no reason"
        raise StackOperationError(f"The code of Lambda function {function!r} could not be changed: {reason}")
    return UPLOADED


def is_current(configuration: dict[str, Any]) -> bool:
    """Return whether a function has this version's code."""
    return bool(configuration["CodeSha256"] == build_package().sha256)


def _send(aws: Aws, function: str, pause: Callable[[float], object]) -> None:
    def attempt() -> object:
        try:
            return aws.call("lambda", "update_function_code", FunctionName=function, ZipFile=build_package().zip)
        except StackOperationError as error:
            if code_of(error) != "ResourceConflictException":  # somebody else is changing it
                raise
            return None

    poll(attempt, pause, _contention_error(function))


def _wait_until_idle(aws: Aws, function: str, pause: Callable[[float], object]) -> dict[str, Any]:
    """Return the function's configuration once no change of it is in progress."""

    def look() -> dict[str, Any] | None:
        found = aws.call("lambda", "get_function_configuration", FunctionName=function)
        return None if found.get("State") == "Pending" or found.get("LastUpdateStatus") == "InProgress" else found

    return poll(look, pause, _contention_error(function))


def _contention_error(function: str) -> StackOperationError:
    return StackOperationError(f"Too much contention on Lambda function {function!r}; deploy again later.")
