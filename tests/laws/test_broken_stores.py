"""The conformance suite can fail: stores with broken guards, writes and commits are caught.

Each store here is the `Toy` of `toys`, which passes, with one thing wrong.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.laws.toys import Toy, toys
from zae_limiter.records.algebra import Committed, Conflict, Guards, Image, Key, Write, apply_write, holds
from zae_limiter.testing.conformance import STORE_CHECKS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zae_limiter import Clock


# Guards.


class WithoutGuards(Toy):
    """Takes every write."""

    def holds(self, image: Image | None, guards: Guards) -> bool:
        return True


class WithGuardsAs(Toy):
    """Takes one operator for another."""

    swapped: dict[str, str]

    def holds(self, image: Image | None, guards: Guards) -> bool:
        return holds(image, tuple((attr, self.swapped.get(op, op), value) for attr, op, value in guards))


def taking(**swapped: str) -> type[Toy]:
    names = {"at_most": "<=", "below": "<", "above": ">", "at_least": ">=", "equal": "="}
    table = {names.get(one, one): names.get(other, other) for one, other in swapped.items()}
    return type(f"Taking{'And'.join(swapped)}", (WithGuardsAs,), {"swapped": table})


class MissingIsZero(Toy):
    """Compares an attribute that is missing as if it were 0."""

    def holds(self, image: Image | None, guards: Guards) -> bool:
        missing = {attr: 0 for attr, op, _ in guards if op not in ("absent", "present")}
        if image is None and missing and not any(op == "present" for _, op, _ in guards):
            return holds(missing, guards)
        return holds(None if image is None else {**missing, **image}, guards)


class FalsyIsMissing(Toy):
    """Takes 0 and the empty text for missing."""

    def holds(self, image: Image | None, guards: Guards) -> bool:
        return holds(None if image is None else {attr: value for attr, value in image.items() if value}, guards)


class MissingNeverHolds(Toy):
    """Takes every comparison to be about an attribute that is there."""

    def holds(self, image: Image | None, guards: Guards) -> bool:
        return holds(image, tuple((attr, op.removeprefix("missing or "), value) for attr, op, value in guards))


class OpenBetween(Toy):
    """Leaves the ends of ``between`` out."""

    def holds(self, image: Image | None, guards: Guards) -> bool:
        inner = [(attr, op, (value[0] + 1, value[1] - 1) if op == "between" else value) for attr, op, value in guards]
        return holds(image, tuple(inner))


class FirstGuardOnly(Toy):
    """Looks at the first guard of a write and believes the others."""

    def holds(self, image: Image | None, guards: Guards) -> bool:
        return holds(image, guards[:1])


class TextCompare(Toy):
    """Compares numbers as text, and text without regard to case."""

    def holds(self, image: Image | None, guards: Guards) -> bool:
        def text(value: Any) -> Any:
            return tuple(map(text, value)) if isinstance(value, tuple) else str(value).casefold()

        plain = None if image is None else {attr: text(value) for attr, value in image.items()}
        return holds(plain, tuple((attr, op, text(value)) for attr, op, value in guards))


class NamedGuardsOnly(Toy):
    """Knows guards by their class."""

    def holds(self, image: Image | None, guards: Guards) -> bool:
        return holds(image, tuple(guard for guard in guards if type(guard) is not tuple))


class GuardsAfterwards(Toy):
    """Checks guards against the image that the write would make."""

    async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
        outcome = await super().commit(writes)
        ahead = [(write, self.applied(self.load(write.key), write)) for write in writes]
        if isinstance(outcome, Conflict) and all(
            self.holds(new, tuple(guard for guard in write.guards if guard[1] != "absent")) for write, new in ahead
        ):
            return await super().commit([write._replace(guards=()) for write in writes])
        return outcome


# Writes.


class PutReplacesAll(Toy):
    """Forgets the attributes that a put does not name."""

    def applied(self, old: Image | None, write: Write) -> Image | None:
        return apply_write(None if write.put else old, write)


class AddNeedsOne(Toy):
    """Adds only to what is there."""

    def applied(self, old: Image | None, write: Write) -> Image | None:
        there = {attr: amount for attr, amount in write.add.items() if attr in (old or {})}
        return super().applied(old, write._replace(add=there))


class AddBeforePut(Toy):
    """Adds first, then puts."""

    def applied(self, old: Image | None, write: Write) -> Image | None:
        added = apply_write(old, Write(write.key, add=write.add)) if write.add else old
        return super().applied(added, write._replace(add={}))


class RemoveFirst(Toy):
    """Removes first, then puts and adds."""

    def applied(self, old: Image | None, write: Write) -> Image | None:
        removed = None if old is None else {attr: value for attr, value in old.items() if attr not in write.remove}
        return super().applied(removed, write._replace(remove=()))


class NeverRemoves(Toy):
    """Leaves attributes where they are."""

    def applied(self, old: Image | None, write: Write) -> Image | None:
        return super().applied(old, write._replace(remove=()))


class EmptiesInsteadOfDeleting(Toy):
    """Keeps an empty record in place of a deleted one."""

    def applied(self, old: Image | None, write: Write) -> Image | None:
        return {} if write.delete else super().applied(old, write)


class ChecksCreate(Toy):
    """Creates a record by checking it."""

    def apply(self, write: Write, old: Image | None) -> Image | None:
        new = self.applied(old, write)
        self.rows.pop(write.key, None)
        if new is not None:
            self.rows[write.key] = json.dumps(new)
        return new


class ShoutingKeys(Toy):
    """Takes keys without regard to case and spaces."""

    async def read(self, keys: Sequence[Key], *, timeout: float | None = None) -> list[Image | None]:
        return await super().read([self.plain(key) for key in keys])

    async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
        outcome = await super().commit([write._replace(key=self.plain(write.key)) for write in writes])
        if isinstance(outcome, Conflict):
            return Conflict({write.key: outcome.images[self.plain(write.key)] for write in writes})
        return outcome

    @staticmethod
    def plain(key: Key) -> Key:
        return Key(key.pk.rstrip(), key.sk.upper())


class ReadsUnique(Toy):
    """Answers a read with the records it has found, in its own order."""

    async def read(self, keys: Sequence[Key], *, timeout: float | None = None) -> list[Image | None]:
        found = [self.load(key) for key in sorted(keys)]
        return found if len(keys) > 1 else [self.load(key) for key in keys]


class InPlace(Toy):
    """Hands out its own objects and changes them in place."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.images: dict[Key, Image] = {}

    def load(self, key: Key) -> Image | None:
        found = super().load(key)
        if found is None:
            self.images.pop(key, None)
            return None
        image = self.images.setdefault(key, {})
        image.clear()
        image.update(found)
        return image


class KeepsTheWritersObject(Toy):
    """Keeps what it is given without a copy."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.images: dict[Key, Image] = {}

    def load(self, key: Key) -> Image | None:
        image = self.images.get(key)
        return image if self.live(image) else None

    def apply(self, write: Write, old: Image | None) -> Image | None:
        new = super().apply(write, old)
        self.images.pop(write.key, None)
        if new is not None:
            self.images[write.key] = new
        return new

    def applied(self, old: Image | None, write: Write) -> Image | None:
        return apply_write(old, write)


# Commits.


class OneByOne(Toy):
    """Applies writes until one fails."""

    async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
        images = []
        for write in writes:
            old = self.load(write.key)
            if not self.holds(old, write.guards):
                return Conflict({each.key: self.load(each.key) for each in writes})
            images.append(self.apply(write, old))
        return Committed(tuple(images))


class Unordered(Toy):
    """Gives the images in the order of the keys."""

    async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
        return await super().commit(sorted(writes, key=lambda write: write.key))


class OldImages(Toy):
    """Answers with the images before the commit."""

    async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
        before = tuple(self.load(write.key) for write in writes)
        outcome = await super().commit(writes)
        return Committed(before) if isinstance(outcome, Committed) else outcome


class SilentConflicts(Toy):
    """Does not show what stood in the way."""

    async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
        outcome = await super().commit(writes)
        return Conflict(dict.fromkeys(outcome.images)) if isinstance(outcome, Conflict) else outcome


class ChecksHold(Toy):
    """Takes writes that only check for granted."""

    async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
        return await super().commit([write._replace(guards=()) if write.is_check else write for write in writes])


class AtMostTen(Toy):
    """Forgets all but the first ten writes of a commit."""

    async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
        return await super().commit(writes[:10])


class Racing(Toy):
    """Gives way between the guards and the writes, as a read followed by a write does."""

    async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
        import asyncio

        before = {write.key: self.load(write.key) for write in writes}
        if not all(self.holds(before[write.key], write.guards) for write in writes):
            return Conflict(before)
        await asyncio.sleep(0)
        return Committed(tuple(self.apply(write, before[write.key]) for write in writes))


CAUGHT: list[tuple[type[Toy], str]] = [
    (WithoutGuards, "guards.missing_record"),
    (WithoutGuards, "guards.present"),
    (WithoutGuards, "writes.guarded_delete"),
    (WithoutGuards, "commits.clients_share"),
    (taking(equal="at_most"), "guards.equal"),
    (taking(at_most="below"), "guards.at_most"),
    (taking(below="at_most"), "guards.below"),
    (taking(above="at_least"), "guards.above"),
    (taking(at_least="above"), "guards.at_least"),
    (taking(absent="present"), "guards.absent"),
    (MissingIsZero, "guards.missing_attribute"),
    (MissingNeverHolds, "guards.missing_or_at_most"),
    (FalsyIsMissing, "guards.equal_text"),
    (OpenBetween, "guards.between"),
    (FirstGuardOnly, "guards.all_together"),
    (TextCompare, "guards.far_apart"),
    (NamedGuardsOnly, "guards.plain_tuples"),
    (GuardsAfterwards, "guards.see_the_state_before"),
    (PutReplacesAll, "writes.put_keeps_the_rest"),
    (AddNeedsOne, "writes.create_by_add"),
    (AddNeedsOne, "writes.add_sums_up"),
    (AddBeforePut, "writes.put_then_add_then_remove"),
    (RemoveFirst, "writes.put_then_add_then_remove"),
    (NeverRemoves, "writes.remove_drops"),
    (EmptiesInsteadOfDeleting, "writes.delete"),
    (ChecksCreate, "writes.check_only"),
    (ShoutingKeys, "writes.keys_are_apart"),
    (ShoutingKeys, "values.keys_in_any_language"),
    (ReadsUnique, "writes.read_in_order"),
    (InPlace, "writes.images_stay"),
    (KeepsTheWritersObject, "writes.what_was_written_stays"),
    (OneByOne, "commits.none_of_them"),
    (Unordered, "commits.all_writes"),
    (OldImages, "writes.create_by_put"),
    (SilentConflicts, "commits.conflict_shows_the_present"),
    (ChecksHold, "commits.a_check_can_refuse"),
    (AtMostTen, "commits.a_hundred_writes"),
]
"""Every broken store here, and a check that is about what is wrong with it."""


def named(pair: tuple[type[Toy], str]) -> str:
    """A pair as it shows in the name of a test."""
    return f"{pair[0].__name__}-{pair[1]}"


def fails(kind: type[Toy], name: str, *, blocking: bool = True) -> bool:
    """Whether a store fails a check."""
    (check,) = [each for each in STORE_CHECKS if each.name == name]
    try:
        check.run(toys(kind, blocking))
    except Exception:
        return True
    return False


@pytest.mark.parametrize("pair", CAUGHT, ids=named)
def test_caught(pair: tuple[type[Toy], str]) -> None:
    assert fails(*pair)


def test_a_race_is_caught() -> None:
    """A store that reads, gives way and then writes loses updates; only concurrency shows it."""
    assert fails(Racing, "commits.race", blocking=False)
    assert fails(Racing, "commits.race_of_several_writes", blocking=False)
