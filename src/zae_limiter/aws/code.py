"""The aggregator's code: uploaded where the function has another, so that a stack never needs a bucket for it."""

from __future__ import annotations

import time
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from ..core.errors import StackOperationError
from . import package
from .calls import code_of
from .resources import function_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .calls import Aws

UPLOADED, UNCHANGED = "uploaded", "unchanged"
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 2.0
_LOOKS = 100


class Package(NamedTuple):
    """The code and the hash by which Lambda knows it."""

    zip: bytes
    sha256: str


@cache
def packed() -> Package:
    """This version's code; what is installed does not change while a process runs."""
    made = package.build()
    return Package(made, package.sha256(made))


def upload(aws: Aws, name: str, *, pause: Callable[[float], object] = time.sleep) -> str:
    """Give the aggregator this version's code, unless it has it."""
    function = function_name(name)
    if is_current(_when_quiet(aws, function, pause)):
        return UNCHANGED
    _send(aws, function, pause)
    found = _when_quiet(aws, function, pause)
    if "Failed" in (found.get("State"), found.get("LastUpdateStatus")):
        reason = found.get("LastUpdateStatusReason") or found.get("StateReason") or "AWS gives no reason"
        raise StackOperationError(f"The code of Lambda function {function!r} could not be changed: {reason}")
    return UPLOADED


def is_current(configuration: dict[str, Any]) -> bool:
    """Whether a function has this version's code."""
    return bool(configuration["CodeSha256"] == packed().sha256)


def _send(aws: Aws, function: str, pause: Callable[[float], object]) -> None:
    for wait in _pauses():
        try:
            aws.call("lambda", "update_function_code", FunctionName=function, ZipFile=packed().zip)
            return
        except StackOperationError as error:
            if code_of(error) != "ResourceConflictException":  # somebody else changes it at this moment
                raise
        pause(wait)
    raise _still_busy(function)


def _when_quiet(aws: Aws, function: str, pause: Callable[[float], object]) -> dict[str, Any]:
    """The function's configuration once no change of it is under way."""
    for wait in _pauses():
        found = aws.call("lambda", "get_function_configuration", FunctionName=function)
        if found.get("State") != "Pending" and found.get("LastUpdateStatus") != "InProgress":
            return found
        pause(wait)
    raise _still_busy(function)


def _pauses() -> Iterator[float]:
    return (min(_LONGEST_PAUSE, _FIRST_PAUSE * 1.5**look) for look in range(_LOOKS))


def _still_busy(function: str) -> StackOperationError:
    return StackOperationError(f"Lambda function {function!r} is being changed all the time; deploy again later.")
