"""The base of every command: the store options, the `Shell` they fill in, and options that several commands have."""

from __future__ import annotations

import getpass
import inspect
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import click

from ..v017.commands import OldCommands, OldNames
from .grid import Grid
from .output import drop_double_stop, note, print_grid, print_json, to_jsonable

if TYPE_CHECKING:
    from ..sync import SyncRateLimiter, SyncRepository

ENVIRONMENT = "ZAE_LIMITER_URL"
STACK = "ZAEL_STACK"
NAMESPACE = "ZAEL_NAMESPACE"
DEFAULT_STACK = "zae-limiter"
_AWS_SETTINGS = ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_ENDPOINT_URL")
"""Variables of a shell that is set up for AWS: there a store that is not given is the stack of the default name."""
_ALIKE = 0.7
"""How like a command a word has to be, from 0 to 1, to be taken for a slip."""


@dataclass
class Shell:
    """The store options of one run, collected from the root to the command: which store to open and how to print."""

    url: str | None = None
    stack_name: str | None = None
    region: str | None = None
    endpoint_url: str | None = None
    namespace: str = field(default_factory=lambda: os.environ.get(NAMESPACE) or "default")
    as_json: bool = False
    warnings: list[str] = field(default_factory=list)
    """Warnings that the library has logged and the command has not shown yet."""
    _opened: SyncRepository | None = None

    def repository(self) -> SyncRepository:
        """Return the store, which is open until the command ends. Raise `UsageError` if none was given."""
        if self._opened is None:
            self._opened = self._open()
        return self._opened

    def _open(self) -> SyncRepository:
        from ..sync import SyncRepository

        url, name = self.url, self.stack_name
        if url is None and name is None:
            url = os.environ.get(ENVIRONMENT) or None
            name = self._default_stack() if url is None else None
            if name is None and os.environ.get(STACK) and not self.as_json:
                note(f"the store is ${ENVIRONMENT}; ${STACK} is not used.")
        repository = SyncRepository(
            url, name=name, region=self.region, endpoint_url=self.endpoint_url, namespace=self.namespace
        )
        if url is not None and not self.as_json:
            _note_store(url)
        logger, collector = logging.getLogger("zae_limiter"), _Collector(self.warnings)
        logger.addHandler(collector)
        context = click.get_current_context()
        context.call_on_close(lambda: logger.removeHandler(collector))
        return context.with_resource(repository)

    def stack(self) -> str:
        """Return the name of the stack on AWS."""
        return self.stack_name or os.environ.get(STACK) or DEFAULT_STACK

    def _default_stack(self) -> str:
        """Return the stack to use where no store was given. Raise `UsageError` if nothing points to AWS."""
        if os.environ.get(STACK):
            return self.stack()
        if self.region or self.endpoint_url or any(map(os.environ.get, _AWS_SETTINGS)):
            if not self.as_json:
                note(f"no store was given: it is the stack {DEFAULT_STACK}. --name, --url or ${STACK} choose one.")
            return DEFAULT_STACK
        raise click.UsageError(
            "No store was given. Pass --url sqlite:///limits.db, or on AWS --name my-app, "
            f"or set it for all commands: export {ENVIRONMENT}=sqlite:///limits.db"
        )

    def limiter(self) -> SyncRateLimiter:
        """Open a limiter over the store until the command ends."""
        from ..sync import SyncRateLimiter

        return SyncRateLimiter(self.repository())

    def show(self, data: object, text: Grid | str, *notes: str) -> None:
        """Print a result: ``data`` as JSON if that was requested, else ``text`` and the notes on it.

        Warnings of the library that the command has not taken follow as notes, or are ``warnings`` of a JSON object.
        """
        warnings = self.take_warnings()
        if self.as_json:
            found = to_jsonable(data)
            print_json({**found, "warnings": warnings} if warnings and isinstance(found, dict) else found)
            return
        if isinstance(text, Grid):
            print_grid(text)
        else:
            click.echo(drop_double_stop(text))
        for each in (*notes, *(f"{warning}." for warning in warnings)):
            note(each)

    def take_warnings(self) -> list[str]:
        """Return the library's warnings so far. The caller shows them; `show` does not show them again."""
        taken, self.warnings[:] = list(dict.fromkeys(self.warnings)), []
        return taken

    def confirm(self, question: str, yes: bool) -> None:
        """Ask on stderr, unless ``yes`` is the answer already. Raise `ClickException` unless it is yes."""
        if yes:
            return
        refusal = "Not confirmed; nothing was changed."
        if self.as_json:
            raise click.ClickException(f"{refusal} --json shows no prompt: pass --yes to skip it.")
        try:
            agreed = click.confirm(question, err=True)
        except click.Abort:
            click.echo(err=True)
            agreed = False
        if not agreed:
            raise click.ClickException(f"{refusal} Pass --yes to skip the prompt.")


class _Collector(logging.Handler):
    """Collects the library's warnings, which Python would print otherwise."""

    def __init__(self, messages: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        self._messages.append(record.getMessage())


def _note_store(url: str) -> None:
    """Note that a memory store keeps nothing, or that a SQLite file is created."""
    parts = urlsplit(url)
    if parts.scheme == "memory":
        note("memory:// keeps nothing after this command; sqlite:///limits.db does.")
    elif parts.scheme == "sqlite":
        path = Path(unquote(parts.path.removeprefix("/")))
        if not path.exists() and path.parent.is_dir():
            note(f"{path} is created.")


class StoreOption(click.Option):
    """An option of every command. The one nearest to the command wins."""


def _store_value(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Store an option in the shell. Options are read from the root down, so a later one replaces an earlier one."""
    if value is not None and value is not False and param.name is not None:
        setattr(ctx.ensure_object(Shell), param.name, value)


_option = partial(StoreOption, expose_value=False, callback=_store_value)
_STORE_OPTIONS = (
    _option(["--url"], metavar="URL", help="The store, e.g. sqlite:///limits.db.  [default: $ZAE_LIMITER_URL]"),
    _option(["--name", "-n", "stack_name"], metavar="NAME", help="The name of a DynamoDB stack, instead of --url."),
    _option(["--region"], metavar="REGION", help="Its AWS region."),
    _option(["--endpoint-url"], metavar="URL", help="Its AWS endpoint, e.g. of a local AWS."),
    _option(
        ["--namespace", "-N"], metavar="NAME", help="The namespace to work in.  [default: $ZAEL_NAMESPACE, or default]"
    ),
    _option(["--json", "as_json"], is_flag=True, help="Print JSON, errors too."),
)


class _WithStoreOptions(OldNames):
    """Accepts the store options, which its help shows apart from its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += _STORE_OPTIONS
        # \b keeps click from wrapping the lines of examples.
        self.help = inspect.cleandoc(self.help or "").replace("\n\nExample", "\n\n\b\nExample")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's own options first."""
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        for title, shared in (("Options", False), ("Store options", True)):
            records = [each.get_help_record(ctx) for each in options if isinstance(each, StoreOption) == shared]
            with formatter.section(title):
                formatter.write_dl([record for record in records if record is not None])


class Command(_WithStoreOptions):
    """A command with store options. Its function receives the `Shell` as ``shell``."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the function."""
        ctx.params["shell"] = ctx.ensure_object(Shell)
        return super().invoke(ctx)


class Group(_WithStoreOptions, OldCommands):
    """A group of such commands."""

    command_class = Command

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order of their definition."""
        return [name for name, command in self.commands.items() if not command.hidden]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command. The error about an unknown one suggests those whose last words are most similar."""
        name = args[0]
        if self.get_command(ctx, name) is None and not ctx.resilient_parsing and not name.startswith("-"):
            paths = self._paths(ctx)
            likeness = {path: SequenceMatcher(None, name.lower(), path.split()[-1]).ratio() for path in paths}
            least = max(max(likeness.values(), default=0.0) - 0.01, _ALIKE)
            alike = [repr(path) for path, ratio in likeness.items() if ratio >= least]
            question = f" Did you mean {' or '.join(alike[:3])}?" if alike else ""
            raise click.UsageError(f"No such command {name!r}.{question}", ctx)
        return super().resolve_command(ctx, args)

    def _paths(self, ctx: click.Context) -> Iterator[str]:
        """Yield the commands below this one, as they are typed."""
        for name in self.list_commands(ctx):
            yield name
            group = self.get_command(ctx, name)
            if isinstance(group, Group):
                yield from (f"{name} {path}" for path in group._paths(ctx))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the group's commands first."""
        self.format_commands(ctx, formatter)
        super().format_options(ctx, formatter)


def _current_user() -> str | None:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return None


yes_option = click.option("--yes", "-y", is_flag=True, help="Skip the confirmation prompt.")
principal_option = click.option(
    "--principal",
    metavar="WHO",
    envvar="ZAE_LIMITER_PRINCIPAL",
    default=_current_user,
    show_default="you",
    help="Who makes the change, for the audit log.",
)


def confirmed(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options ``--yes`` and ``--principal`` of a command that asks before it changes something."""
    return yes_option(principal_option(command))
