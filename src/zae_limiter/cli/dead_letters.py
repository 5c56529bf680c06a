"""``zae-limiter dead-letters``: look at the batches that the aggregator has given up, and replay them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..core import names
from .commands import Group, Shell
from .deploy import connect
from .errors import REFUSED
from .grid import Cell, Grid
from .output import note, show_events, spell_count

if TYPE_CHECKING:
    from ..aws.dead_letters import DeadLetter

_STYLES = {"replayed": "green", "found": "green", "expired": "yellow", "failed": "red"}


@click.group("dead-letters", cls=Group)
def dead_letters() -> None:
    """Batches of usage that the aggregator has given up.

    The queue names them; their records are in the table's stream for a day.

    Examples:
      zae-limiter dead-letters list --name my-app
      zae-limiter dead-letters replay --name my-app --dry-run
      zae-limiter dead-letters replay --name my-app
    """


@dead_letters.command("list")
def list_letters(shell: Shell) -> None:
    """List the batches in the queue.

    They stay there.

    Example:
      zae-limiter dead-letters list --name my-app --region us-east-1
    """
    from ..aws import dead_letters

    name, unreadable = names.stack(shell.stack()), list[str]()
    with connect(shell) as aws:
        hidden = dead_letters.count_hidden(aws, name)
        found = dead_letters.list_letters(aws, name, on_unreadable=unreadable.append)
    rows = [(each.message_id, each.records, each.arrived_at, each.reason) for each in found]
    grid = Grid(("message", "records", "first came", "given up for"), rows, _spell_nothing(hidden))
    shell.show([_letter_data(each) for each in found], grid)
    _warn(hidden, unreadable)


@dead_letters.command()
@click.option("--dry-run", is_flag=True, help="Only look which records the stream still has.")
@click.option("--drop-expired", is_flag=True, help="Delete messages whose records the stream no longer has.")
def replay(shell: Shell, dry_run: bool, drop_expired: bool) -> int:
    """Send the batches in the queue to the function again.

    Each change is counted at most once, so a replay can be repeated. A message is deleted after its batch has
    succeeded. A change is passed over where a later one of the same bucket is counted in the same window. The exit
    code is 25 if a batch has failed again, is no longer in the stream and its message was kept, or is held by another
    run.

    Examples:
      zae-limiter dead-letters replay --name my-app --dry-run
      zae-limiter dead-letters replay --name my-app --drop-expired --json
    """
    from ..aws import dead_letters

    name, unreadable = names.stack(shell.stack()), list[str]()
    with connect(shell) as aws, show_events("Replaying", quiet=shell.as_json) as tell:
        hidden = dead_letters.count_hidden(aws, name)
        done = dead_letters.replay(
            aws,
            name,
            dry_run=dry_run,
            drop_expired=drop_expired,
            progress=lambda each: tell(f"{each.letter.message_id}: {each.state}"),
            on_unreadable=unreadable.append,
        )
    data, rows = [], []
    for each in done:
        counts = {"found": each.records, "counted": each.counted, "passed": each.passed, "archived": each.archived}
        data.append({**_letter_data(each.letter), "state": each.state, **counts, "error": each.reason})
        rows.append((each.letter.message_id, Cell(each.state, _STYLES[each.state]), *counts.values(), each.reason))
    heads = ("message", "state", "records", "counted", "passed over", "archived", "reason")
    shell.show(data, Grid(heads, rows, _spell_nothing(hidden)))
    _warn(hidden, unreadable)
    kept = ["failed"] if drop_expired else ["failed", "expired"]
    left = sum(each.state in kept for each in done)
    if left and not shell.as_json:
        note(f"of {spell_count(len(done), 'message')} {left:,} could not be replayed")
    return REFUSED if left or hidden else 0


def _spell_nothing(hidden: int) -> str:
    return "No batch can be received now." if hidden else "No batch was given up."


def _warn(hidden: int, unreadable: list[str]) -> None:
    """Tell of the messages that are not shown."""
    if hidden:
        held = spell_count(hidden, "message")
        note(f"about {held} cannot be received now: another run holds them, or was killed; try again in 5 minutes")
    if unreadable:
        note(f"{spell_count(len(unreadable), 'message')} not written by Lambda, left alone: {', '.join(unreadable)}")


def _letter_data(letter: DeadLetter) -> dict[str, Any]:
    return {name: value for name, value in letter._asdict().items() if name != "receipt"}
