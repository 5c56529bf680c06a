"""The slots of a bucket by limit, read from its image once and then kept up with the writes to it.

Thousands of attributes may be slots. So whoever has an image of a bucket asks its table for what is taken and what is
free, and takes the table along to the next image, which mostly differs in few of them (`SlotTable.follow`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

from ..core.slots import NO_SLOTS, Slots
from .algebra import Image

SLOTS = "sl"
UNTIL_PREFIX, OWNERSHIP_PREFIX = "s_", "f_"
ROWS = (UNTIL_PREFIX, OWNERSHIP_PREFIX)
"""What the attributes of slots begin with."""
_FAR = 2**62


def parse_ownership_token(ownership_token: str) -> tuple[int, int, str]:
    """Return since when a slot is held, its place among those of this millisecond, and the name of its holder.

    Raise ValueError if it is not a ownership_token.
    """
    since, _, rest = ownership_token.partition(".")
    random, _, holder = rest.partition(".")
    order, known, _ = random.partition("-")
    return int(since, 16), int(order, 16) if known else 0, holder


@lru_cache(maxsize=2**12)
def find_ttl(ownership_token: str) -> int | None:
    """Return the time to live of a slot in ms, and of one of an earlier version, which does not say, more than any has.

    None if it is not a ownership_token.
    """
    try:
        if parse_ownership_token(ownership_token)[0] < 0:
            return None
        _, known, ttl = ownership_token.partition(".")[2].partition(".")[0].rpartition("-")
        return int(ttl, 16) if known else _FAR
    except ValueError:
        return None


@lru_cache(maxsize=2**16)
def parse_attribute(attr: str) -> tuple[str, int]:
    """Return the limit and the number of a slot by the attribute of its instant; the number is -1 if it has none."""
    limit_name, _, number = attr[len(UNTIL_PREFIX) :].rpartition("_")
    try:
        return limit_name, int(number)
    except ValueError:
        return limit_name, -1


def slot_attributes(image: Image) -> Iterator[tuple[str, int, str]]:
    """Iterate over the slots in a bucket: limit, number, and the attribute of the instant."""
    for attr in image if SLOTS in image else ():
        if attr.startswith(UNTIL_PREFIX):
            yield *parse_attribute(attr), attr


class SlotTable:
    """The slots of a bucket, by limit.

    From ``ahead_ms`` on no slot is taken for more than two times to live; a slot is that was taken before the clock was
    set back. ``wrong`` are the attributes of slots with invalid values, and these; ``attrs`` are those of no slot.
    """

    __slots__ = ("ahead_ms", "attrs", "limits", "wrong")

    def __init__(self, limits: dict[str, Slots], ahead_ms: int = -_FAR) -> None:
        self.limits = limits
        self.ahead_ms = ahead_ms
        self.attrs: tuple[str, ...] = ()
        self.wrong: tuple[str, ...] = ()

    @classmethod
    def parse(cls, image: Image | None) -> SlotTable:
        """Read an image."""
        if image is None or SLOTS not in image:
            return NO_TABLE
        limits: dict[str, dict[int, int]] = {}
        attrs, wrong, unowned, ahead_ms = [], [], [], -_FAR
        for attr, value in image.items():
            if attr.startswith(UNTIL_PREFIX):
                limit_name, number = parse_attribute(attr)
                ownership_token = image.get(ownership_attr := OWNERSHIP_PREFIX + attr[2:])
                if ownership_attr not in image:
                    unowned.append(f"{ownership_attr}=None")
                if type(value) is not int or not 0 <= value < _FAR or number < 0:
                    wrong.append(f"{attr}={value!r}")
                else:
                    limits.setdefault(limit_name, {})[number] = value
                    ahead_ms = max(ahead_ms, value - 2 * (find_ttl(str(ownership_token)) or 0))
            elif not attr.startswith(OWNERSHIP_PREFIX):
                attrs.append(attr)
            elif not isinstance(value, str) or find_ttl(value) is None:
                wrong.append(f"{attr}={value!r}")
        table = cls({name: Slots(untils) for name, untils in limits.items()}, ahead_ms)
        table.attrs, table.wrong = tuple(attrs), (*wrong, *unowned)
        return table

    def follow(self, image: Image, attrs: Iterable[str]) -> SlotTable:
        """Return the table of an image that differs from that of this table in some attributes, and in no others."""
        changes: dict[str, tuple[dict[int, int], list[int]]] = {}
        ahead_ms = self.ahead_ms
        for attr in [attr for attr in attrs if attr.startswith(UNTIL_PREFIX)]:
            limit_name, number = parse_attribute(attr)
            put, gone = changes.setdefault(limit_name, ({}, []))
            until_ms = image.get(attr)
            if until_ms is None:
                gone.append(number)
            else:
                put[number] = until_ms
                ahead_ms = max(ahead_ms, until_ms - 2 * (find_ttl(image[OWNERSHIP_PREFIX + attr[2:]]) or 0))
        if not changes:
            return self
        limits = {name: self.of(name).change(put, gone) for name, (put, gone) in changes.items()}
        return SlotTable({**self.limits, **limits}, ahead_ms)

    def of(self, limit_name: str) -> Slots:
        """Return the slots of a limit."""
        return self.limits.get(limit_name, NO_SLOTS)

    def find_ahead(self, image: Image, now_ms: int) -> dict[str, int]:
        """Return the slots that were taken before the clock was set back, each with the instant to shorten it to."""
        found: dict[str, int] = {}
        if now_ms < self.ahead_ms:
            for _, _, attr in slot_attributes(image):
                ttl_ms = find_ttl(image[OWNERSHIP_PREFIX + attr[2:]]) or _FAR
                if image[attr] > now_ms + 2 * ttl_ms:
                    found[attr] = now_ms + ttl_ms
        return found

    def shorten(self, image: Image, now_ms: int) -> SlotTable:
        """Return the table as it is once the slots are shortened that were taken before the clock was set back."""
        ahead = self.find_ahead(image, now_ms)
        return self.follow({**image, **ahead}, ahead) if ahead else self


NO_TABLE = SlotTable({})
