"""Names that the command line had in 0.17. They are accepted, and no help shows them.

`cli.commands` builds all commands on `OldNames`, and all groups on `OldCommands`. The tables here have the rest.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import click

from ..cli.output import note
from ..core.limit import Limit

if TYPE_CHECKING:
    from click.parser import _OptionParser


GONE = {
    "loadtest": "There is no load test in this version. `zae-limiter demo` shows how limits hold under load.",
    "limits cfn-template": (
        "Limits are no CloudFormation resource in this version: no function of the stack applies them. Run "
        "`zae-limiter limits apply -f FILE --yes` after the stack was deployed; it reads the same file."
    ),
}
"""Commands that are no longer there, and what their error says."""
RENAMED = {"entity set-parent": "update"}
"""Commands that have another name now."""

_Values: TypeAlias = dict[str, Any]


class OldOptions(NamedTuple):
    """What a command accepts beside its own options."""

    names: Mapping[str, str] = {}  # never changed
    """Older names of its parameters: ``--tail``, or ``--enable-x/--no-x`` for a switch."""
    options: Sequence[click.Option] = ()
    """Options that it does not have any more."""
    translate: Callable[[_Values], object] = lambda values: None
    """Replaces their values, which its function does not take, by values that it takes."""


def _option(*names: str, **settings: Any) -> click.Option:
    return click.Option(names, hidden=True, **settings)


def _without_effect(reason: str, *options: click.Option, names: Mapping[str, str] | None = None) -> OldOptions:
    """Return options without effect: a note says why if one of them is passed."""

    def translate(values: _Values) -> None:
        for option in options:
            if values.pop(option.name) not in (None, False):
                note(f"{option.opts[-1]} has no effect: {reason}")

    return OldOptions(names or {}, options, translate)


def _find_subject(values: _Values) -> None:
    given = values.pop("entity_option")
    if given is not None and values["entity_id"] is not None:
        raise click.UsageError("Pass one of ENTITY_ID and --entity-id.")
    values["entity_id"] = given or values["entity_id"]


def _soften(values: _Values) -> None:
    """Make the limits soft that ``--soft`` names."""
    limits: list[Limit] = values["limits"]
    soft = set(values.pop("soft"))
    unknown = soft - {limit.name for limit in limits}
    if unknown:
        raise click.BadParameter(f"{min(unknown)!r} is no limit of -l.", param_hint="'--soft'")
    values["limits"] = [replace(limit, soft=limit.soft or limit.name in soft) for limit in limits]


def _check_moved(values: _Values) -> None:
    if values["parent_id"] is None and not values["no_parent"]:
        raise click.UsageError("Nothing to change: pass --parent or --none.")


_SHELLS = {"eval": None, "direnv": "bash", "powershell": "powershell"}
"""Formats of settings, and the shells that they are for; None is the present one."""


def _find_dialect(values: _Values) -> None:
    shell, port = _SHELLS[values.pop("format")], values.pop("port")
    values["dialect"] = values["dialect"] or shell
    if port is not None:
        from ..aws.local.home import find_home, find_running

        running = find_running(find_home())
        if running is not None and port != running.port:
            raise click.UsageError(f"The local AWS that is running is at port {running.port}, not at {port}.")


_NO_DOCKER = "the local AWS is ministack, a process without Docker."
_DOCKER = _option("--docker-host")
_SOFT = OldOptions(options=(_option("--soft", multiple=True),), translate=_soften)
OLD: dict[str, OldOptions] = {
    "entity create": OldOptions({"cascade": "/--no-cascade"}),
    "entity update": OldOptions({"no_parent": "--none"}),
    "entity set-parent": OldOptions({"no_parent": "--none"}, translate=_check_moved),
    "entity set-limits": _SOFT,
    "entity list": OldOptions({"resource": "--with-custom-limits", "most": "--limit"}),
    "resource set-defaults": _SOFT,
    "system set-defaults": _SOFT,
    "audit list": OldOptions(
        {"most": "--limit -l", "before": "--start-event-id"},
        (_option("--entity-id", "--entity", "-e", "entity_option", metavar="ID"),),
        _find_subject,
    ),
    "usage list": OldOptions({"entity_id": "--entity-id"}),
    "usage summary": OldOptions({"entity_id": "--entity-id"}),
    "limits apply": _without_effect(
        "every acquire sees the limits in force, so no bucket is left to be rewritten.",
        _option("--full", is_flag=True),
    ),
    "deploy": _without_effect(
        "there is no function that applies limits files; `zae-limiter limits apply` writes to the table itself.",
        _option("--enable-provisioner/--no-provisioner", default=None),
        names={
            "enable_aggregator": "--enable-aggregator",
            "enable_alarms": "--enable-alarms",
            "enable_audit_archival": "--enable-audit-archival",
            "enable_tracing": "/--no-tracing",
            "create_iam_roles": "/--no-create-iam-roles",
        },
    ),
    "local up": _without_effect(_NO_DOCKER, _DOCKER, _option("--image")),
    "local down": _without_effect(_NO_DOCKER, _DOCKER),
    "local status": _without_effect(_NO_DOCKER, _DOCKER),
    "local logs": _without_effect(_NO_DOCKER, _DOCKER, names={"count": "--tail"}),
    "local env": OldOptions(
        options=(
            _option("--format", "-f", type=click.Choice(list(_SHELLS)), default="eval"),
            _option("--port", type=click.IntRange(1, 65535)),
        ),
        translate=_find_dialect,
    ),
}
"""By command, as it is typed."""
_NOTHING = OldOptions()


def _find_path(ctx: click.Context) -> str:
    """Return the command as it is typed, without the name of the program."""
    words: list[str] = []
    while ctx.parent is not None:
        words.insert(0, ctx.info_name or "")
        ctx = ctx.parent
    return " ".join(words)


class OldNames(click.Command):
    """A command that accepts the options that it had in 0.17."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return all parameters."""
        return [*super().get_params(ctx), *OLD.get(_find_path(ctx), _NOTHING).options]

    def make_parser(self, ctx: click.Context) -> _OptionParser:
        """Return a parser that knows the older names too."""
        parser = super().make_parser(ctx)
        names = OLD.get(_find_path(ctx), _NOTHING).names
        for param in self.params:
            if param.name in names:
                old = copy.copy(param)
                old.opts, old.secondary_opts = (part.split() for part in f"{names[param.name]}/".split("/")[:2])
                old.add_to_parser(parser, ctx)
        return parser

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command with values that it takes."""
        OLD.get(_find_path(ctx), _NOTHING).translate(ctx.params)
        return super().invoke(ctx)


class OldCommands(click.Group):
    """A group that finds commands under the names that they had in 0.17."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command. One that is gone only raises `UsageError`."""
        path = f"{_find_path(ctx)} {cmd_name}".strip()
        if path in GONE:
            return _refuse(path)
        return super().get_command(ctx, RENAMED.get(path, cmd_name))


def _refuse(path: str) -> click.Command:
    """Return the command in place of one that is gone. Whatever its arguments, it raises `UsageError`."""

    def explain(**ignored: object) -> None:
        raise click.UsageError(GONE[path])

    settings = {"ignore_unknown_options": True, "help_option_names": list[str]()}
    words = click.Argument(["words"], nargs=-1, type=click.UNPROCESSED)
    return click.Command(path.split()[-1], hidden=True, callback=explain, params=[words], context_settings=settings)
