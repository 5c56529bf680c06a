"""The root command, which loads the other commands when they are used, and shell completion."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import click
from click.shell_completion import get_completion_class

from .._version import __version__
from ..core.errors import ZAELimiterError
from . import errors
from .commands import Command, Group, Shell
from .output import prepare_streams

SECTIONS: dict[str, dict[str, str]] = {
    "See it work": {"demo": "demo.command"},
    "Try a limit": dict.fromkeys(("acquire", "available", "explain"), "acquire"),
    "Set limits": {"entity": "entity", "resource": "defaults", "system": "defaults", "limits": "limits"},
    "Manage the store": {
        "create-table": "deploy",
        "namespace": "namespace",
        "usage": "usage",
        "top": "top",
        "audit": "audit",
        **dict.fromkeys(("status", "check", "version"), "status"),
    },
    "Run it on AWS": {
        "deploy": "deploy",
        "list": "deploy",
        "upgrade": ".v017.upgrade.command",
        "dead-letters": "dead_letters",
        **dict.fromkeys(("delete", "cfn-template", "lambda-export"), "deploy"),
    },
    "A local AWS": {"local": "local"},
    "Shell completion": {"completion": "app"},
}
"""Section of the help, command, and the module in which it is."""

SHELLS = ("bash", "zsh", "fish")
COMPLETION_VARIABLE = "_ZAE_LIMITER_COMPLETE"
"""The variable by which a shell asks for completions; click derives it from the name of the program."""
_WHERE = {name: where for section in SECTIONS.values() for name, where in section.items()}


class Root(Group):
    """Loads a command's module when the command is used, and turns errors into messages and exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all commands, in the order of the help."""
        return list(_WHERE)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command."""
        if cmd_name not in _WHERE:
            return super().get_command(ctx, cmd_name)
        there = vars(importlib.import_module(f".{_WHERE[cmd_name]}", __package__)).values()
        return next(each for each in there if isinstance(each, click.Command) and each.name == cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by section."""
        width = max(map(len, _WHERE))
        for section, names in SECTIONS.items():
            found = ((name, self.get_command(ctx, name)) for name in names)
            rows = [(name.ljust(width), each.get_short_help_str(70)) for name, each in found if each is not None]
            with formatter.section(section):
                formatter.write_dl(rows)

    def main(self, args: Sequence[str] | None = None, *more: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run as click's, but report each of our errors as one message with its own exit code."""
        words = list(sys.argv[1:] if args is None else args)
        plainly: Callable[[], object] = functools.partial(super().main, args, *more, standalone_mode=False, **extra)
        if not standalone_mode:
            return plainly()
        try:
            prepare_streams()
            code: object = plainly()
            sys.stdout.flush()
        except (ZAELimiterError, click.ClickException, click.Abort) as error:
            sys.exit(errors.report(error, as_json="--json" in words))
        sys.exit(code if isinstance(code, int) else 0)


@click.command(cls=Root, epilog=errors.EXIT_CODES)
@click.version_option(__version__, message="zae-limiter %(version)s")
def root() -> None:
    """Rate limits for calls whose cost is known only afterwards.

    Limits belong to entities (API keys, projects, tenants) and are kept in the store that --url names. Set the URL
    once and leave it out from then on:

    \b
      export ZAE_LIMITER_URL=sqlite:///limits.db
      zae-limiter system set-defaults -l rpm:60/min -l tpm:10000/min:15000
      zae-limiter acquire key-1 gpt-4 -c rpm:1 -c tpm:500
      zae-limiter explain key-1 gpt-4 -c tpm:15000

    New here? Try: zae-limiter demo
    """


@click.command(cls=Command)
@click.argument("shell_name", type=click.Choice(SHELLS), metavar="SHELL")
def completion(shell: Shell, shell_name: str) -> None:
    """Print the script that lets a shell complete commands and options.

    Load it where the shell starts: in ~/.bashrc, in ~/.zshrc after compinit, or as a file of fish. It needs bash 4.4 or
    newer.

    Examples:
      eval "$(zae-limiter completion bash)"
      eval "$(zae-limiter completion zsh)"
      zae-limiter completion fish > ~/.config/fish/completions/zae-limiter.fish
    """
    made = get_completion_class(shell_name)
    assert made is not None, shell_name  # click knows these shells
    script = made(root, {}, "zae-limiter", COMPLETION_VARIABLE)
    click.echo(script.source_template % script.source_vars())
