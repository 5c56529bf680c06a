"""Names of version 0.17 that are accepted although no help shows them.

`Renamed` is an option with older names, `unused_option` one that has no effect any more, and `GONE` lists commands that
only say what to use instead.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from .output import note

if TYPE_CHECKING:
    from click.parser import _OptionParser

    from .arguments import Decorator

GONE = {
    "loadtest": "There is no load test in this version. `zae-limiter demo` shows how limits hold under load.",
    "limits cfn-template": (
        "Limits are no CloudFormation resource in this version: no function of the stack applies them. Run "
        "`zae-limiter limits apply -f FILE --yes` after the stack was deployed; it reads the same file."
    ),
}
"""Commands that are no longer there, and what their error says."""


class Renamed(click.Option):
    """An option that also has older names: ``old="--tail"``, or ``old="--enable-x/--no-x"`` for a switch."""

    def __init__(self, declarations: Sequence[str] | None = None, *, old: str = "", **settings: Any) -> None:
        super().__init__(declarations, **settings)
        on, _, off = old.partition("/")
        self.old, self.old_off = on.split(), off.split()

    def add_to_parser(self, parser: _OptionParser, ctx: click.Context) -> None:
        """Let the parser accept all names."""
        super().add_to_parser(parser, ctx)
        old = copy.copy(self)
        old.opts, old.secondary_opts = self.old, self.old_off
        click.Option.add_to_parser(old, parser, ctx)


def unused_option(*names: str, why: str, **settings: Any) -> Decorator:
    """Return an option without effect. A note says ``why`` if it is passed."""

    def explain(ctx: click.Context, param: click.Parameter, value: object) -> None:
        if value not in (None, False) and not ctx.resilient_parsing:
            note(f"{param.opts[-1]} has no effect: {why}")

    return click.option(*names, hidden=True, expose_value=False, callback=explain, **settings)


def hide(command: click.Command) -> click.Command:
    """Return the same command, left out of help and completion."""
    hidden = copy.copy(command)
    hidden.hidden = True
    return hidden


def refuse(path: str) -> click.Command:
    """Return the command in place of one that is gone. Whatever its arguments, it raises `UsageError`."""

    def explain(**ignored: object) -> None:
        raise click.UsageError(GONE[path])

    settings = {"ignore_unknown_options": True, "help_option_names": list[str]()}
    words = click.Argument(["words"], nargs=-1, type=click.UNPROCESSED)
    return click.Command(path.split()[-1], hidden=True, callback=explain, params=[words], context_settings=settings)
