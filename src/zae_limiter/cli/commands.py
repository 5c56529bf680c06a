"""Commands and groups that accept the store options before and after the command's name."""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

import click

from .shell import Shell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


_ALIKE = 0.7
"""How like a command a word has to be, from 0 to 1, to be taken for a slip."""


class StoreOption(click.Option):
    """An option of every command. The one nearest to the command wins."""


class Command(click.Command):
    """A command with store options, which its help shows apart from its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += store_options()

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's own options first."""
        _write_options(self, ctx, formatter)


class Group(click.Group):
    """A group of such commands."""

    command_class = Command

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += store_options()

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order of their definition."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command. The error about an unknown one suggests similar ones."""
        name = args[0]
        if self.get_command(ctx, name) is None and not ctx.resilient_parsing and not name.startswith("-"):
            raise click.UsageError(f"No such command {name!r}.{_suggest(name, self._paths(ctx))}", ctx)
        return super().resolve_command(ctx, args)

    def _paths(self, ctx: click.Context) -> Iterator[str]:
        """Yield the commands below this one, as they are typed."""
        for name in self.list_commands(ctx):
            yield name
            found = self.get_command(ctx, name)
            if isinstance(found, Group):
                yield from (f"{name} {path}" for path in found._paths(ctx))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the group's commands first."""
        self.format_commands(ctx, formatter)
        _write_options(self, ctx, formatter)


def _suggest(name: str, paths: Iterable[str]) -> str:
    """Return a question with the commands whose last words are most similar to ``name``."""
    likeness = {path: SequenceMatcher(None, name.lower(), path.split()[-1]).ratio() for path in paths}
    best = max(likeness.values(), default=0.0)
    alike = [path for path, ratio in likeness.items() if ratio >= max(best - 0.01, _ALIKE)]
    return f" Did you mean {' or '.join(map(repr, alike[:3]))}?" if alike else ""


def store_options() -> list[click.Parameter]:
    """Return the options for the store, the namespace and the output."""
    return [
        _option("--url", metavar="URL", help="The store, e.g. sqlite:///limits.db.  [default: $ZAE_LIMITER_URL]"),
        _option("--name", "-n", "stack_name", metavar="NAME", help="The name of a DynamoDB stack, instead of --url."),
        _option("--region", metavar="REGION", help="Its AWS region."),
        _option("--endpoint-url", metavar="URL", help="Its AWS endpoint, e.g. of a local AWS."),
        _option("--namespace", "-N", metavar="NAME", help="The namespace to work in.  [default: default]"),
        _option("--json", "as_json", is_flag=True, help="Print JSON, errors too."),
    ]


def _option(*names: str, **settings: Any) -> StoreOption:
    return StoreOption(names, expose_value=False, callback=_store_value, **settings)


def _store_value(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Store an option in the shell. Options are read from the root down, so a later one replaces an earlier one."""
    if value is not None and value is not False and param.name is not None:
        setattr(ctx.ensure_object(Shell), param.name, value)


def _write_options(command: click.Command, ctx: click.Context, formatter: click.HelpFormatter) -> None:
    own: list[tuple[str, str]] = []
    shared: list[tuple[str, str]] = []
    for param in command.get_params(ctx):
        record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
        if record is not None:
            (shared if isinstance(param, StoreOption) else own).append(record)
    for title, records in (("Options", own), ("Store options", shared)):
        with formatter.section(title):
            formatter.write_dl(records)


def yes_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--yes``, which skips the prompt."""
    return click.option("--yes", "-y", is_flag=True, help="Skip the confirmation prompt.")(command)


def principal_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--principal``, which says who makes the change."""
    return click.option(
        "--principal",
        metavar="WHO",
        envvar="ZAE_LIMITER_PRINCIPAL",
        default=_current_user,
        show_default="you",
        help="Who makes the change, for the audit log.",
    )(command)


def confirm(question: str, yes: bool) -> None:
    """Ask on stderr. Raise `ClickException` unless the answer is yes."""
    if yes:
        return
    shell = click.get_current_context().find_object(Shell)
    if shell is not None and shell.as_json:
        raise click.ClickException("Not confirmed; nothing was changed. --json shows no prompt: pass --yes to skip it.")
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort:
        click.echo(err=True)
        agreed = False
    if not agreed:
        raise click.ClickException("Not confirmed; nothing was changed. Pass --yes to skip the prompt.")


def _current_user() -> str | None:
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return None


pass_shell = click.make_pass_decorator(Shell, ensure=True)
