"""``zae-limiter top``: the busiest buckets, look after look."""

from __future__ import annotations

import itertools
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from ..core.survey import ORDERS
from ..repository.survey import MAX_RECORDS
from .commands import Command, pass_shell
from .top_views import open_view

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..core.survey import Survey
    from ..sync import SyncRepository
    from .shell import Shell


@dataclass(frozen=True, slots=True)
class Looks:
    """How often to look: ``count`` None is until interrupted."""

    interval: float
    count: int | None
    max_records: int


@click.command(cls=Command)
@click.option("--resource", "-r", metavar="NAME", help="Only buckets of this resource.  [default: the namespace]")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.01, max=86_400),
    default=2,
    show_default=True,
    metavar="S",
    help="Seconds between two looks.",
)
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="End after so many looks.")
@click.option("--once", is_flag=True, help="Look once; there are no rates then.")
@click.option("--limit", "rows", type=click.IntRange(1, 10_000), default=20, show_default=True, metavar="ROWS")
@click.option(
    "--sort",
    "by",
    type=click.Choice(ORDERS),
    default=ORDERS[0],
    show_default=True,
    help="By the share in use, by what is left, or by tokens a second.",
)
@click.option(
    "--max-records",
    type=click.IntRange(1, 1_000_000),
    default=MAX_RECORDS,
    show_default=True,
    metavar="N",
    help="Read so many buckets at most.",
)
@pass_shell
def top(
    shell: Shell,
    resource: str | None,
    interval: float,
    count: int | None,
    once: bool,
    rows: int,
    by: str,
    max_records: int,
) -> None:
    """UpgradeProgress the busiest buckets.

    A line per limit of a bucket: what is consumed a second since the look before (what is given back counts against
    it), what is left, and when it will be full again. Ctrl-C ends it. Without a terminal each look is printed below
    the last; with --json it is a line of its own.

    Every look reads every bucket of the resource, or of the namespace. On DynamoDB that costs about one read unit per
    bucket and look: 10,000 buckets every 2 seconds are 18 million read units an hour. Use --resource, a longer
    --interval or --max-records there.

    \b
    Examples:
      zae-limiter top
      zae-limiter top --resource gpt-4 --sort rate --interval 5
      zae-limiter top --once --limit 5
      zae-limiter top --count 10 --json > looks.jsonl
    """
    if once and count is not None:
        raise click.UsageError("Give --once or --count N, not both.")
    looks = Looks(interval, 1 if once else count, max_records)
    with shell.repository() as repository, suppress(KeyboardInterrupt):
        before: Survey | None = None
        with open_view(shell, resource) as show:
            for survey in _surveys(repository, resource, looks):
                show(survey, survey.busiest(rows, by, before))
                before = survey


def _surveys(repository: SyncRepository, resource: str | None, looks: Looks) -> Iterator[Survey]:
    for number in itertools.count(1):
        yield repository.survey_buckets(resource, looks.max_records)
        if number == looks.count:
            return
        time.sleep(looks.interval)
