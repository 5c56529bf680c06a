"""``zae-limiter completion``: the script for shell completion."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from .commands import Command

SHELLS = ("bash", "zsh", "fish")
PROGRAM = "zae-limiter"
VARIABLE = "_ZAE_LIMITER_COMPLETE"
"""The variable by which a shell asks for completions; click derives it from the name of the program."""


@click.command(cls=Command)
@click.argument("shell_name", type=click.Choice(SHELLS), metavar="SHELL")
@click.pass_context
def completion(ctx: click.Context, shell_name: str) -> None:
    """Print the script that lets a shell complete commands and options.

    Load it where the shell starts: in ~/.bashrc, in ~/.zshrc after compinit, or as a file of fish. It needs bash 4.4 or
    newer.

    \b
    Examples:
      eval "$(zae-limiter completion bash)"
      eval "$(zae-limiter completion zsh)"
      zae-limiter completion fish > ~/.config/fish/completions/zae-limiter.fish
    """
    made = get_completion_class(shell_name)
    assert made is not None, shell_name  # click knows these shells
    script = made(ctx.find_root().command, {}, PROGRAM, VARIABLE)
    click.echo(script.source_template % script.source_vars())
