"""Commands and groups that all accept the options of the store, before and after the command's name."""

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
    """An option that every command has; what is nearest to the command wins."""


class Command(click.Command):
    """A command with the options of the store, shown apart from its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += store_options()

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Its own options first."""
        _write_options(self, ctx, formatter)


class Group(click.Group):
    """A group of such commands."""

    command_class = Command

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += store_options()

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which they are defined."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; an error about one that does not exist names those that may be meant."""
        name = args[0]
        if self.get_command(ctx, name) is None and not ctx.resilient_parsing and not name.startswith("-"):
            raise click.UsageError(f"No such command {name!r}.{_advise(name, self._paths(ctx))}", ctx)
        return super().resolve_command(ctx, args)

    def _paths(self, ctx: click.Context) -> Iterator[str]:
        """The commands below this one, as they are typed."""
        for name in self.list_commands(ctx):
            yield name
            found = self.get_command(ctx, name)
            if isinstance(found, Group):
                yield from (f"{name} {path}" for path in found._paths(ctx))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Its commands first."""
        self.format_commands(ctx, formatter)
        _write_options(self, ctx, formatter)


def _advise(name: str, paths: Iterable[str]) -> str:
    """A question that names the commands that may be meant: their last words are most like ``name``."""
    likeness = {path: SequenceMatcher(None, name.lower(), path.split()[-1]).ratio() for path in paths}
    best = max(likeness.values(), default=0.0)
    alike = [path for path, ratio in likeness.items() if ratio >= max(best - 0.01, _ALIKE)]
    return f" Did you mean {' or '.join(map(repr, alike[:3]))}?" if alike else ""


def store_options() -> list[click.Parameter]:
    """Which store, which namespace, which form of output."""
    return [
        _option(
            "--url",
            metavar="URL",
            help="The store, e.g. sqlite:///limits.db.  [default: $ZAE_LIMITER_URL]",
        ),
        _option("--name", "-n", "stack_name", metavar="NAME", help="The name of a DynamoDB stack, instead of --url."),
        _option("--region", metavar="REGION", help="Its AWS region."),
        _option("--endpoint-url", metavar="URL", help="Its AWS endpoint, e.g. of a local AWS."),
        _option("--namespace", "-N", metavar="NAME", help="The namespace to work in.  [default: default]"),
        _option("--json", "as_json", is_flag=True, help="Print JSON, errors too."),
    ]


def _option(*names: str, **settings: Any) -> StoreOption:
    return StoreOption(names, expose_value=False, callback=_keep, **settings)


def _keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Options are read from the root to the command, so a later one replaces an earlier one."""
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
    """``--yes``: do not ask."""
    return click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")(command)


def principal_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--principal``: who is changing something."""
    return click.option(
        "--principal",
        metavar="WHO",
        envvar="ZAE_LIMITER_PRINCIPAL",
        default=_user,
        show_default="you",
        help="Who makes the change, for the audit log.",
    )(command)


def confirm(question: str, yes: bool) -> None:
    """Ask, on the error stream so that what is printed stays clean; anything but yes ends the command."""
    if yes:
        return
    shell = click.get_current_context().find_object(Shell)
    if shell is not None and shell.as_json:
        raise click.ClickException("Not confirmed; nothing was changed. With --json nobody is asked: give --yes.")
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort:
        click.echo(err=True)
        agreed = False
    if not agreed:
        raise click.ClickException("Not confirmed; nothing was changed. --yes answers in advance.")


def _user() -> str | None:
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return None


pass_shell = click.make_pass_decorator(Shell, ensure=True)
