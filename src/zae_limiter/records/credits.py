"""Writes that add credit to a bucket, or fill it up: they move its anchor, so everybody sees it at the next write."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ..core.borders import Scheduled, find_interval, find_scheduled
from ..core.change import Change
from ..core.errors import ValidationError
from ..core.limit import Limit
from ..core.production import FOR_EVER, MILLI, Amounts, Rule
from .algebra import NEVER, TTL, Image, Key, Write, apply_write
from .bucket import all_tokens, full_at, latest_instant, required_expiry, stored_rule
from .charging import create, write_of
from .keys import parse_bucket_pk
from .level import ANCHOR, CREDITS, MADE, SHARDS, BucketLimits, token_fields, token_limits_for
from .lots import Lot, lot_attribute, lots_of
from .migration import migrate, move_anchor
from .pressure import moved_counters
from .slots import concurrency_limits, find_taken, free_slots

MAX_LOTS = 16
"""Most lots of one limit."""
MAX_LOT = 2**51
"""Most millitokens of one lot, so that it stays exact in stores that count in doubles."""


def add_credit(key: Key, image: Image | None, amounts: Amounts, expires_ms: int, now_ms: int, serial: int = 0) -> Write:
    """Return the write that adds millitokens by limit to the lots of a bucket with this expiry (`FOR_EVER`: none).

    A bucket that does not exist is made without limits: the first charge fills in those in force. Raise
    `ValidationError` where a limit would have too many lots, or a lot too much in it.
    """
    if image is None:
        whose = BucketLimits(key, *parse_bucket_pk(key.pk)[:3], (), token_limits_for(()))
        change = create(whose, {}, now_ms, serial=serial)
    else:
        change = move_anchor(image, parse_bucket_pk(key.pk).shard_id, latest_instant(image, 0), now_ms)
    put, add = change.put, change.add
    kept = [lot for lot in lots_of(image or {}) if lot.attr not in change.remove]
    known = {lot.attr for lot in kept}
    for name, milli in amounts.items():
        attr = lot_attribute(name, expires_ms)
        held = (image or {}).get(attr, 0)
        if held + milli > MAX_LOT:
            reason = f"a lot holds at most {MAX_LOT // MILLI} tokens, and this one has {held // MILLI}"
            raise ValidationError(f"amounts[{name!r}]", milli // MILLI, reason)
        if attr in known:
            add[attr] = milli
            continue
        spent = _find_room(name, kept, image or {})
        put[attr] = milli
        change.remove += spent
        change.equals |= dict.fromkeys(spent, 0)  # else another client has given back to it
        kept = [lot for lot in kept if lot.attr not in spent] + [Lot(name, expires_ms, attr)]
    put[CREDITS] = len(kept)
    # A lot that the bucket's newest instant has passed, but not yet the clock of this client, is dropped and put again.
    change.remove = [attr for attr in change.remove if attr != CREDITS and attr not in put]
    change.expires_ms = _expiry(image, write_of(change, key, image))
    return write_of(change, key, image)


def _find_room(name: str, kept: Collection[Lot], image: Image) -> tuple[str, ...]:
    """Return the empty lots of a limit that give way to a new one. Raise `ValidationError` if there is no room."""
    lots = [lot for lot in kept if lot.limit_name == name]
    if len(lots) < MAX_LOTS:
        return ()
    empty = tuple([lot.attr for lot in lots if not image.get(lot.attr, 1)])
    if not empty:
        reason = f"has {MAX_LOTS} lots with different expiries already; use the expiry of one of them"
        raise ValidationError("expires_at", name, reason)
    return empty


def _expiry(image: Image | None, write: Write) -> int | None:
    """Return the expiry of a bucket that keeps it until its credits have expired."""
    after = apply_write(image, write)
    assert after is not None  # it does not delete
    full_ms = full_at(after)
    if image is not None and TTL not in image:
        return None
    return NEVER if full_ms == FOR_EVER else full_ms


def prepare_filling(key: Key, image: Image, limits: Iterable[Limit], now_ms: int) -> Write | None:
    """Return the write that moves a bucket to the limits under which it is to be filled up; None if it is there.

    ``limits`` are those of the config. A schedule's border is crossed, and a limit that holds more by now is raised.
    Any other limit stays under its stored numbers: filled up under these, it is full under lower ones, too.
    """
    whose, newest_ms, count = parse_bucket_pk(key.pk), latest_instant(image, 0), image.get(SHARDS, 1)
    known, grows = [], False
    for limit in limits:
        old = stored_rule(image, limit.name, whose.shard_id)
        if old is None or limit.is_concurrency:
            continue
        raised = Rule.of(limit.in_force(now_ms)).share(whose.shard_id, count).capacity > old.capacity
        if raised or Scheduled(limit).rule_at(newest_ms, old).share(whose.shard_id, count) == old:
            known.append(limit)
        grows = grows or raised
    if not grows and find_interval(known, now_ms)[0] <= newest_ms:
        return None
    current = tuple([limit.in_force(now_ms) for limit in known])
    level = BucketLimits(key, *whose[:3], current, token_limits_for(current), shard=whose.shard_id, shard_count=count)
    level = level._replace(
        cascade=bool(image.get("cascade")), parent_id=image.get("parent_id"), scheduled=find_scheduled(known, None)
    )
    change = migrate(level, image, {}, now_ms)
    assert isinstance(change, Change)  # nothing always fits
    change.add |= moved_counters(image, change.put[ANCHOR])
    change.expires_ms = required_expiry(apply_write(image, write_of(change, key, image)) or image)
    return write_of(change, key, image)


def fill_up(key: Key, image: Image, limits: Collection[str] | None, now_ms: int) -> tuple[Write, dict[str, int]]:
    """Return the write that fills the limits of a record up, all if None, and what each gains in millitokens.

    Slots of concurrency limits are freed, `MOST_FREED` of them; `free_more` frees the others, which are in the gains.
    Credits stay. What was taken before is not given back any more, as the bucket would have been full without it; if
    all are filled up, it counts as made again. What was announced of these limits may be announced again. The bucket
    has to be moved to the limits in force before that (`prepare_filling`).
    """
    shard = parse_bucket_pk(key.pk).shard_id
    change = move_anchor(image, shard, now_ms, now_ms)
    now_ms = latest_instant(image, now_ms)
    put, anchor = change.put, change.put[ANCHOR]
    if limits is None:
        put[MADE] = max(now_ms * MILLI, put[MADE] + 1)
    gains = {}
    for name, held in all_tokens(image, shard).items():
        if limits is not None and name not in limits:
            continue
        rule, at = held.rule, token_fields(name)
        change.add.pop(at.tokens, None)
        put[at.tokens] = rule.capacity - rule.produced_between(anchor, now_ms)
        gains[name] = max(0, rule.capacity - held.tokens - held.since(now_ms))
        if at.announced in image:
            put[at.announced] = 0
    slotted = _find_slotted(image, limits)
    taken = find_taken(image, now_ms)
    free_slots(image, slotted, change)
    gains |= {name: len(taken.get(name, ())) * MILLI for name in slotted}
    change.remove += [attr for name in slotted if (attr := token_fields(name).parked) in image]
    return write_of(change, key, image), gains


def free_more(key: Key, before: Image, image: Image, limits: Collection[str] | None) -> Write | None:
    """Return a write that frees more slots of a record, of those that it had ``before`` it was filled up.

    None if all of these are free.
    """
    slotted = _find_slotted(before, limits)
    change = Change()
    free_slots(image, slotted, change, free_slots(before, slotted, Change()))
    return write_of(change, key, None) if change.remove else None


def _find_slotted(image: Image, limits: Collection[str] | None) -> list[str]:
    names = concurrency_limits(tuple(image))
    return sorted(names if limits is None else names & {*limits})
