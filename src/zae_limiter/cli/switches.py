"""The commands for the switch and the cascade policy of an entity or of a resource, which are the same for both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from .commands import Shell, principal_option
from .spelling import find_unknown

if TYPE_CHECKING:
    from .arguments import Decorator

_ACCESS = {"disable": "disabled", "enable": "enabled", "bypass": "bypassed"}
_cascade_argument = click.argument("cascade", metavar="true|false", type=click.BOOL)


def add_switches(group: click.Group, whose: Decorator, parents: str, commands: Sequence[tuple[str, ...]]) -> None:
    """Add the commands to the group ``entity`` or ``resource``: each is its help, and examples of its use.

    ``whose`` are the parameters that say whose switch it is, ``parents`` is whom such a thing charges.
    """
    for text, *examples in commands:
        name = examples[0].split()[0]
        change = principal_option(_make_command(str(group.name), name, parents))
        change = whose(_cascade_argument(change) if name == "set-cascade" else change)
        lines = [
            f"Example{'s' if len(examples) > 1 else ''}:",
            *(f"  zae-limiter {group.name} {each}" for each in examples),
        ]
        group.command(name, help=f"{text}\n\n" + "\n".join(lines))(change)


def _make_command(kind: str, name: str, parents: str) -> Any:
    verb, _, noun = name.partition("-")
    method = "_".join(filter(None, (verb, kind, noun)))

    def change(shell: Shell, principal: str | None, **given: Any) -> None:
        repository = shell.repository()
        getattr(repository, method)(**given, principal=principal)
        subject: dict[str, Any] = {field: given[field] for field in ("entity_id", "resource") if field in given}
        who, *where = [value for value in subject.values() if value is not None]
        if noun == "cascade":
            value, charges = given.get("cascade"), "charges" if given.get("cascade") else "does not charge"
            does = "has no cascade policy" if value is None else f"{charges} {parents}"
        else:
            value = _ACCESS.get(verb)
            does = "has no switch" if value is None else f"is {value}"
        notes = find_unknown(repository, who) if kind == "entity" and value is not None else []
        state: dict[str, object] = {"cascade" if noun == "cascade" else "access": value}
        shell.show({**subject, **state}, f"{who} {' on '.join([does, *where])}.", *notes)

    return change
