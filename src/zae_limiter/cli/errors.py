"""Report errors as messages and exit codes."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import click

from ..core import errors as library
from ..manifest.states import ManifestError, PlanOutdatedError
from ..records.keys import BUCKETS
from .grid import printable
from .output import OutputError, drop_double_stop, print_json, style

OVER_ADMITTED = 20
"""The demo found a limit that was passed."""

REFUSED = 25
"""Records cannot be upgraded."""

CODES: dict[type[BaseException], int] = {
    library.ZAELimiterError: 1,
    library.ValidationError: 2,
    library.RateLimitExceeded: 3,
    library.CapacityExceeded: 4,
    library.RateLimiterUnavailable: 5,
    library.EntityNotFoundError: 6,
    library.EntityExistsError: 7,
    library.EntityVersionError: 8,
    library.NamespaceNotFoundError: 9,
    library.NamespaceStateError: 10,
    library.CorruptRecordError: 11,
    library.VersionMismatchError: 12,
    library.IncompatibleSchemaError: 13,
    library.InfrastructureNotFoundError: 14,
    library.StackOperationError: 15,
    library.StackAlreadyExistsError: 16,
    library.LeaseExpiredError: 17,
    library.AccessDeniedError: 18,
    library.RateLimiterClosedError: 19,
    library.ResourceDisabled: 22,
    library.SlotLostError: 26,
    library.ConfigurationError: 27,
    PlanOutdatedError: 23,
    ManifestError: 24,
    click.Abort: 130,
}
"""The exit code of each kind of error; the nearest class counts."""

EXIT_CODES = """\b
Exit codes:
  0  done, granted                 8   entity changed meanwhile
  1  not confirmed, other error    9   namespace not found
  2  invalid input                 10  namespace in the wrong state
  3  refused: not yet              11  stored record is damaged
  4  refused: above the capacity   12-13  incompatible versions
  5  store unavailable             14-16  stack missing, failed, exists
  6  entity not found              18  access denied
  7  entity already exists         20  demo: a limit was exceeded
                                   21  the output could not be written
                                   22  switched off
                                   23-24  limits: outdated plan, mistakes
                                   25  records that cannot be upgraded
                                   27  wrong setting or file of the store
                                   130 interrupted
"""


_ADVICE: dict[type[BaseException], str] = {
    library.EntityNotFoundError: "`zae-limiter entity create` creates it.",
    library.EntityExistsError: "`zae-limiter entity update` changes it.",
    library.NamespaceStateError: "`zae-limiter namespace delete` deletes an active one.",
    library.NamespaceNotFoundError: (
        "`zae-limiter namespace register` registers a name; `namespace list` and `namespace orphans` show all."
    ),
}
"""The command that helps against an error, printed after its message."""

_ADVICE_ON_BUCKET = "`zae-limiter entity reset-bucket` repairs a bucket."
"""The same for a damaged record, where its key is that of a bucket."""

_ADVICE_ON_MISSING = {
    "limits": "; use `system set-defaults`, `resource set-defaults` or `entity set-limits`, or pass -l.",
    "region": "; use --region.",
}
"""The same by the name of an argument that is missing."""


def report(error: BaseException, *, as_json: bool) -> int:
    """Print the error to stderr and return the exit code."""
    code = exit_code(error)
    with suppress(OSError):  # stderr may be as full as stdout, and the code still says it
        if as_json:
            print_json({**_details(error), "exit_code": code}, err=True)
        elif isinstance(error, click.UsageError):
            error.show()
        else:
            lines = "\n".join(map(printable, message(error).split("\n")))
            click.echo(style("Error: ", fg="red", bold=True) + lines, err=True)
    return code


def exit_code(error: BaseException) -> int:
    """Return the exit code of an error."""
    if isinstance(error, click.ClickException):
        return error.exit_code
    return next(CODES[kind] for kind in type(error).__mro__ if kind in CODES)


def message(error: BaseException) -> str:
    """Return the error as one line, with the command that helps against it."""
    if isinstance(error, click.ClickException):
        return error.format_message()
    if isinstance(error, click.Abort):
        return "Interrupted."
    text = str(error)
    if isinstance(error, library.ValidationError) and error.value is None:
        text = error.reason + _ADVICE_ON_MISSING.get(error.field, "")
    advice = [_ADVICE[kind] for kind in type(error).__mro__ if kind in _ADVICE]
    if isinstance(error, library.CorruptRecordError) and BUCKETS in text:
        advice.append(_ADVICE_ON_BUCKET)
    return drop_double_stop(" ".join((text, *advice)))


def _details(error: BaseException) -> dict[str, Any]:
    match error:
        case library.RateLimitExceeded():
            return error.as_dict()
        case click.UsageError():
            word = "usage"
        case OutputError():
            word = "output"
        case click.ClickException():
            word = "not_confirmed"
        case _:  # EntityNotFoundError is entity_not_found
            name = type(error).__name__.removesuffix("Error")
            word = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    details: dict[str, Any] = {"error": word, "message": message(error)}
    if isinstance(error, ManifestError):
        names = ("line", "column", "path", "message")
        rows = [(place.line, place.column, path, reason) for place, path, reason in error.problems]
        details["problems"] = [dict(zip(names, row, strict=True)) for row in rows]
    if isinstance(error, PlanOutdatedError):
        details |= {"conflicts": error.conflicts, "applied": error.applied}
    if isinstance(error, library.ValidationError):
        details |= {"field": error.field, "reason": error.reason}
    return details
