"""``zae-limiter top``: watch the busiest buckets."""

from __future__ import annotations

import itertools
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from ..core.reports import ORDERS
from ..repository.buckets import MAX_RECORDS
from .commands import Command, pass_shell
from .top_views import open_view

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..core.reports import Survey
    from ..sync import SyncRepository
    from .shell import Shell


@dataclass(frozen=True, slots=True)
class SurveySchedule:
    """The interval and the number of surveys; ``count`` None means until interrupted."""

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
    help="Seconds between two surveys.",
)
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="Stop after N surveys.")
@click.option("--once", is_flag=True, help="Survey once, without rates.")
@click.option("--limit", "rows", type=click.IntRange(1, 10_000), default=20, show_default=True, metavar="ROWS")
@click.option(
    "--sort",
    "by",
    type=click.Choice(ORDERS),
    default=ORDERS[0],
    show_default=True,
    help="Sort by share in use, by tokens left, or by tokens a second.",
)
@click.option(
    "--max-records",
    type=click.IntRange(1, 1_000_000),
    default=MAX_RECORDS,
    show_default=True,
    metavar="N",
    help="Read at most N records.",
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

    Shows one line per limit of a bucket: the net consumption per second since the previous survey, the tokens left, and
    when it will be full again. Press Ctrl-C to stop. Without a terminal each survey is printed below the last; with
    --json it is one line.

    Every survey reads every bucket of the resource, or of the namespace. On DynamoDB that costs about one read unit per
    bucket: 10,000 buckets every 2 seconds are 18 million read units an hour. Use --resource, a longer --interval or
    --max-records there.

    \b
    Examples:
      zae-limiter top
      zae-limiter top --resource gpt-4 --sort rate --interval 5
      zae-limiter top --once --limit 5
      zae-limiter top --count 10 --json > surveys.jsonl
    """
    if once and count is not None:
        raise click.UsageError("--once cannot be combined with --count.")
    schedule = SurveySchedule(interval, 1 if once else count, max_records)
    with shell.repository() as repository, suppress(KeyboardInterrupt):
        before: Survey | None = None
        with open_view(shell, resource) as show:
            for survey in _surveys(repository, resource, schedule):
                show(survey, survey.busiest(rows, by, before))
                before = survey


def _surveys(repository: SyncRepository, resource: str | None, schedule: SurveySchedule) -> Iterator[Survey]:
    for number in itertools.count(1):
        yield repository.survey_buckets(resource, schedule.max_records)
        if number == schedule.count:
            return
        time.sleep(schedule.interval)
