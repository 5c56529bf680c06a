"""The records of the memory store, and how a query finds them.

There may be many buckets and usage records: those that were not used for a while are packed as bytes, which take a
third of the memory of a dictionary and cost the garbage collector nothing. Indexes that a query about one entity needs
are kept up to date; those over a whole resource or namespace would hold nearly everything, so such a query looks at all
records.
"""

from __future__ import annotations

import marshal
from collections import deque
from collections.abc import Iterator
from typing import TypeAlias, TypeGuard

from ..records.algebra import Image, Key, Query
from ..records.keys import STATE, USAGE_PREFIX, bucket_indexes, owner_of_bucket, owner_of_entity, parse_bucket_pk

Name: TypeAlias = str | Key
"""What a record is kept under: a string for buckets and usage, which may be packed, and its key for all others."""

KEPT_INDEXES = ("GSI1PK", "GSI3PK")
"""The attributes by which children and the entities with limits of their own are found."""
_SEPARATOR = "\0"
"""No part of a key holds it."""
_UNPACKED = 2_000
"""How many buckets that were used last are kept as images, which is quicker."""


def name_of(key: Key) -> Name:
    """Return what a record is kept under: of a bucket the partition key, as nothing else is there."""
    if key.sk == STATE:
        return key.pk
    return f"{key.pk}{_SEPARATOR}{key.sk}" if key.sk.startswith(USAGE_PREFIX) else key


def key_of(name: Name) -> Key:
    """Return the key of a record that is kept under ``name``."""
    if isinstance(name, Key):
        return name
    pk, _, sk = name.partition(_SEPARATOR)
    return Key(pk, sk or STATE)


def is_bucket(name: Name) -> TypeGuard[str]:
    """Return whether it is the name of a bucket."""
    return isinstance(name, str) and _SEPARATOR not in name


def with_indexes(name: Name, image: Image) -> Image:
    """Return a record with its index attributes: a bucket that was made in place has none, they follow from its key."""
    if "GSI4PK" in image or not is_bucket(name):
        return image
    try:
        return image | bucket_indexes(parse_bucket_pk(name))
    except ValueError:
        return image


class Table:
    """Records by name. Not safe for several threads: whoever owns it has the lock."""

    def __init__(self) -> None:
        self.images: dict[Name, Image] = {}
        """What is not packed. A bucket that is here may be replaced here."""
        self.buckets = 0
        self.windows = 0
        self._packed: dict[str, bytes] = {}
        self.packer = Packer()
        self.partitions = Groups()
        """The records of each partition key, but for buckets."""
        self._owners = Groups()
        self._indexes = {attribute: Groups() for attribute in KEPT_INDEXES}
        self._unpacked: deque[str] = deque()

    def __len__(self) -> int:
        return len(self.images) + len(self._packed)

    def __contains__(self, name: Name) -> bool:
        return name in self.images or name in self._packed

    def names(self) -> Iterator[Name]:
        """Return the names of all records."""
        yield from self.images
        yield from self._packed

    def get(self, name: Name) -> Image | None:
        """Return a record's image. It is never changed in place."""
        image = self.images.get(name)
        if image is None and isinstance(name, str):
            packed = self._packed.get(name)
            return None if packed is None else self.packer.unpack(packed)
        return image

    def use(self, name: str) -> Image | None:
        """Return a bucket's image and keep it as such, as it is likely to be asked for again."""
        packed = self._packed.pop(name, None)
        if packed is None:
            return self.images.get(name)
        image = self.images[name] = self.packer.unpack(packed)
        self._pack_older(name)
        return image

    def replace(self, name: Name, image: Image) -> None:
        """Replace a record by one that is in the same indexes."""
        if isinstance(name, str) and name in self._packed:
            self._pack(name, image)
        else:
            self.images[name] = image

    def insert(self, name: Name, image: Image) -> None:
        """Add a record that is not there."""
        if not isinstance(name, str):
            self.images[name] = image
            self.partitions.add(name.pk, name)
        elif _SEPARATOR not in name:
            self.images[name] = image
            self.buckets += 1
            self._owners.add(owner_of_bucket(name), name)
            self._pack_older(name)
        else:
            self._pack(name, image)
            self.windows += 1
            self.partitions.add(key_of(name).pk, name)
        for attribute, groups in self._indexes.items():
            if attribute in image:
                groups.add(image[attribute], name)

    def drop(self, name: Name, image: Image) -> bytes | None:
        """Remove a record that is there; returns it as it was packed, if it was."""
        packed = None
        if self.images.pop(name, None) is None and isinstance(name, str):
            packed = self._packed.pop(name)
        if isinstance(name, str) and _SEPARATOR not in name:
            self.buckets -= 1
            self._owners.discard(owner_of_bucket(name), name)
        else:
            self.windows -= isinstance(name, str)
            self.partitions.discard(key_of(name).pk, name)
        for attribute, groups in self._indexes.items():
            if attribute in image:
                groups.discard(image[attribute], name)
        return packed

    def find(self, query: Query) -> list[Name]:
        """Return the records of the partition that a query is about, in no order."""
        if query.gsi is None:
            bucket: list[Name] = [query.pk] if query.pk in self else []
            return bucket + self.partitions.get(query.pk)
        attribute = f"{query.gsi}PK"
        groups = self._indexes.get(attribute)
        if groups is None:
            namespace = f"{query.pk.partition('/')[0]}/"
            names = [name for name in self.names() if not isinstance(name, str) or name.startswith(namespace)]
        elif attribute == "GSI3PK":
            names = list({*groups.get(query.pk), *self._owners.get(owner_of_entity(query.pk))})
        else:
            names = groups.get(query.pk)
        found = ((name, self.get(name)) for name in names)
        return [name for name, image in found if image and with_indexes(name, image).get(attribute) == query.pk]

    def _pack_older(self, name: str) -> None:
        self._unpacked.append(name)
        if len(self._unpacked) > _UNPACKED:
            oldest = self._unpacked.popleft()
            image = self.images.get(oldest)
            if image is not None:
                self._pack(oldest, image)

    def _pack(self, name: str, image: Image) -> None:
        packed = self.packer.pack(image)
        if packed is None:
            self._packed.pop(name, None)
            self.images[name] = image
        else:
            self.images.pop(name, None)
            self._packed[name] = packed


class Groups:
    """Names of records by what they have in common. Most groups have one member, which is then kept as it is."""

    def __init__(self) -> None:
        self._members: dict[str, Name | set[Name]] = {}

    def __contains__(self, group: str) -> bool:
        return group in self._members

    def get(self, group: str) -> list[Name]:
        """Return the members of a group."""
        found = self._members.get(group)
        if found is None:
            return []
        return list(found) if isinstance(found, set) else [found]

    def add(self, group: str, name: Name) -> None:
        """Add a member."""
        found = self._members.get(group)
        if found is None:
            self._members[group] = name
        elif isinstance(found, set):
            found.add(name)
        elif found != name:
            self._members[group] = {found, name}

    def discard(self, group: str, name: Name) -> None:
        """Remove a member, if it is one; a group without members is none."""
        found = self._members.get(group)
        if isinstance(found, set):
            found.discard(name)
            if not found:
                del self._members[group]
        elif found == name:
            del self._members[group]


_VERSION = 2
"""The last version of the format in which equal values are written equally."""


_MOST_NAMES = 1_000
"""How many different sets of attribute names are kept: as many as there are combinations of limits."""


class Packer:
    """Packs and unpacks records of one process. The bytes mean nothing outside of it."""

    def __init__(self) -> None:
        self._names: list[tuple[str, ...]] = []
        self._places: dict[tuple[str, ...], int] = {}

    def pack(self, image: Image) -> bytes | None:
        """Return the record as bytes; None where it holds something that cannot be packed."""
        names = tuple(image)
        place: int | tuple[str, ...] | None = self._places.get(names)
        if place is None:
            place = self._add(names)
        try:
            return marshal.dumps((*image.values(), place), _VERSION)
        except ValueError:
            return None

    def unpack(self, packed: bytes) -> Image:
        """Return the image of a packed record."""
        values = marshal.loads(packed)
        place = values[-1]
        return dict(zip(self._names[place] if type(place) is int else place, values, strict=False))

    def _add(self, names: tuple[str, ...]) -> int | tuple[str, ...]:
        """Keep the names for other records that have the same; without room each record keeps its own."""
        if len(self._names) >= _MOST_NAMES:
            return names
        place = self._places[names] = len(self._names)
        self._names.append(names)
        return place
