"""Errors as messages and exit codes, from one table."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import click

from ..core import errors as library
from .output import end_once, print_json, printable, styled

OVER_ADMITTED = 20
"""The demo found a limit that was passed."""

OUTPUT_LOST = 21
"""The output could not be written."""

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
    click.Abort: 130,
}
"""The exit code of each kind of error; the nearest class counts."""

EXIT_CODES = """\b
Exit codes:
  0  done, granted                 8   entity changed meanwhile
  1  not confirmed, other error    9   namespace not found
  2  bad input                     10  namespace in the wrong state
  3  refused: not yet              11  stored record is damaged
  4  refused: can never fit        12-13  versions do not fit together
  5  store unavailable             14-16  stack missing, failed, exists
  6  entity not found              18  no credentials, or no right to it
  7  entity exists already         20  demo: a limit was passed
                                   21  the output could not be written
                                   130 interrupted
"""


class OutputError(click.ClickException):
    """What the command had to say did not get out: the disk is full, or nobody reads (any more)."""

    exit_code = OUTPUT_LOST

    def __init__(self, reason: str) -> None:
        super().__init__(f"The output could not be written: {reason}.")


_SPOKEN = (
    ("pass limits=[...]", "give limits with -l"),
    ("pass region=,", "give --region,"),
    ("register_namespace() or `zae-limiter namespace register`", "`zae-limiter namespace register`"),
    ("create_table() or deploy the stack", "`zae-limiter deploy` or `zae-limiter create-table`"),
    ("create_table()", "`zae-limiter create-table`"),
    ("create_entity()", "`zae-limiter entity create`"),
    ("update_entity()", "`zae-limiter entity update`"),
    ("set_system_defaults()", "`system set-defaults`"),
    ("set_resource_defaults()", "`resource set-defaults`"),
    ("set_limits()", "`entity set-limits`"),
    ("list_orphan_namespaces()", "`zae-limiter namespace orphans`"),
)
"""What the library calls by its Python name, as it is called here."""


def report(error: BaseException, *, as_json: bool) -> int:
    """Tell the error on stderr; returns the exit code."""
    code = exit_code(error)
    with suppress(OSError):  # stderr may be as full as stdout, and the code still says it
        _tell(error, code, as_json=as_json)
    return code


def _tell(error: BaseException, code: int, *, as_json: bool) -> None:
    if as_json:
        print_json({**_details(error), "exit_code": code}, err=True)
    elif isinstance(error, click.UsageError):
        error.show()
    else:
        click.echo(styled("Error: ", fg="red", bold=True) + printable(message(error)), err=True)


def exit_code(error: BaseException) -> int:
    """The exit code of an error."""
    if isinstance(error, click.ClickException):
        return error.exit_code
    return next(CODES[kind] for kind in type(error).__mro__ if kind in CODES)


def message(error: BaseException) -> str:
    """One line that says what is wrong, in the words of the command line."""
    if isinstance(error, click.ClickException):
        return error.format_message()
    if isinstance(error, click.Abort):
        return "Interrupted."
    text = str(error)
    if isinstance(error, library.ValidationError) and error.value is None:
        text = error.reason
    for python, command in _SPOKEN:
        text = text.replace(python, command)
    return end_once(re.sub(r"delete_namespace\('([^']*)'\)", r"`zae-limiter namespace delete \1`", text))


def _details(error: BaseException) -> dict[str, Any]:
    if isinstance(error, library.RateLimitExceeded):
        return error.as_dict()
    details: dict[str, Any] = {"error": _word(error), "message": message(error)}
    if isinstance(error, library.ValidationError):
        details |= {"field": error.field, "reason": error.reason}
    return details


def _word(error: BaseException) -> str:
    """``EntityNotFoundError`` as ``entity_not_found``."""
    if isinstance(error, click.ClickException):
        kinds = {click.UsageError: "usage", OutputError: "output"}
        return next((word for kind, word in kinds.items() if isinstance(error, kind)), "not_confirmed")
    name = type(error).__name__.removesuffix("Error")
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
