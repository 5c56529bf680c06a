"""Charging a bucket: making it, taking from it as it is, and migrating it on the way."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest import mock

from zae_limiter.core.change import Change
from zae_limiter.core.tokens import draw_all
from zae_limiter.limiter import planning
from zae_limiter.limiter.charge_path import BucketShard
from zae_limiter.limiter.draw_plan import renew_expiry
from zae_limiter.limiter.grant import ShardCharge
from zae_limiter.records import charging, migration
from zae_limiter.records.slots import SlotRequest

from .levels import NewerConfig, Planned, chain_of, last_seen, level_of, limits_in, owned

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from zae_limiter.records.algebra import Image, Write

    from ..worlds import Asker, Crowd, Spot


@contextmanager
def _chosen(serial: int) -> Iterator[None]:
    """Have the next serial number of this process chosen, and no shard by chance."""
    with (
        mock.patch.object(planning, "serials", iter((serial,))),
        mock.patch("random.sample", lambda population, k: list(population)[:k]),
    ):
        try:
            yield
        except planning.StalePath:
            raise NewerConfig from None


def _takers(askers: Sequence[Asker]) -> tuple[SlotRequest, ...]:
    return tuple([SlotRequest(*asker[:4], order=asker.order) for asker in askers])


def _contention(crowd: Crowd) -> charging.Contention:
    return charging.Contention(frozenset(crowd.names), crowd.seen_ms, crowd.lost)


def first_charge(spot: Spot, cost: Mapping[str, int], now_ms: int, changes: int, serial: int) -> Write | None:
    """Return the write that makes a bucket and takes from it; None if that is more than it can hold."""
    level = level_of(spot, now_ms)
    change = charging.first_charge(level, cost, now_ms, changes, serial)
    return charging.write_of(change, level.key, None) if isinstance(change, Change) else None


def can_charge(spot: Spot, image: Image, now_ms: int) -> bool:
    """Return whether a bucket can be charged as it is: it need not be migrated."""
    return limits_in(spot, image, now_ms) is not None


def charge(
    spot: Spot, image: Image, cost: Mapping[str, int], now_ms: int, crowd: Crowd, changes: int, spends_credits: bool
) -> Write | None:
    """Return the write that takes tokens from a bucket that `can_charge`; None if they are not there."""
    limits = limits_in(spot, image, now_ms)
    assert limits is not None  # it can be charged
    level, contention = level_of(spot, now_ms), _contention(crowd)
    change = charging.charge(level, image, limits, cost, now_ms, contention, changes, spends_credits)
    return charging.write_of(change, level.key, image) if isinstance(change, Change) else None


def migrate(
    spot: Spot, image: Image, cost: Mapping[str, int], now_ms: int, changes: int, spends_credits: bool
) -> Write | None:
    """Return the write that moves a bucket to the terms and takes tokens; None if they are not there."""
    level = level_of(spot, now_ms)
    change = migration.migrate(level, image, cost, now_ms, changes, spends_credits)
    return charging.write_of(change, level.key, image) if isinstance(change, Change) else None


def plan(
    spot: Spot,
    image: Image | None,
    cost: Mapping[str, int],
    now_ms: int,
    crowd: Crowd,
    askers: Sequence[Asker],
    spends_credits: bool,
    serial: int,
) -> Planned | None:
    """Return what takes a cost from one record, making or moving it if need be; None if it has too little."""
    level = level_of(spot, now_ms)
    shard, requests = (
        BucketShard(level, last_seen(image, now_ms, crowd)),
        _takers(askers) if level.slot_limits else (),
    )
    with _chosen(serial):
        part = planning.plan_part(shard, image, cost, now_ms, _contention(crowd), len(askers), spends_credits, requests)
    return Planned.of(part) if isinstance(part, ShardCharge) else None


def plan_again(planned: Planned, image: Image | None, now_ms: int) -> Planned | None:
    """Return what takes the same from a record that has turned out to be another one; None if it cannot be had."""
    with _chosen(0):
        part = planning.plan_again(planned.part, image, now_ms)
    return None if part is None else Planned.of(part)


def plan_across(
    spots: Sequence[Spot], images: Sequence[Image], asker: Asker, now_ms: int, busy: bool
) -> list[Planned] | None:
    """Return what takes a cost from all records of a bucket, beginning with the first; None if it is not there."""
    pairs = zip(spots, images, strict=True)
    shards = [BucketShard(level_of(spot, now_ms), last_seen(image, now_ms)) for spot, image in pairs]
    with _chosen(0):
        parts = planning.plan_across_shards(chain_of(shards, busy=busy), _takers([asker])[0], now_ms)
    return None if parts is None else [Planned.of(part) for part in parts]


def divide(planned: Planned, cost: Mapping[str, int]) -> tuple[Planned, Planned]:
    """Return what several were planned to get without the last of them, which gets ``cost``, and what that one gets."""
    rest, last = planned.part.divide(cost)
    return Planned.of(rest), Planned.of(last)


def draw_in_place(spot: Spot, image: Image, cost: Mapping[str, int], now_ms: int) -> Image | None:
    """Return a bucket after a process that owns it has drawn a cost; None if it is not there, or needs a write."""
    planned = owned(spot, image, now_ms)
    after = None if planned is None else draw_all(planned.draws, image, cost, now_ms)
    return None if after is None else renew_expiry(level_of(spot, now_ms), after, now_ms)
