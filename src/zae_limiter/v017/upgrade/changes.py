"""Say which records mean something else after their move, in words for the operator.

A move keeps the meaning of a record; what is listed here are the exceptions. `describe_changes` looks at one move,
`ChangeLog` groups what it says over a whole run.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from ...core.names import MAX_DEPTH
from ...records import keys
from ...records.algebra import Image
from . import policies
from .moves import Move, Old

MOST_KEYS = 1000
"""Records that are named per change."""
_NUMBERS = (("cp", "bx", "tk"), ("capacity_milli", "burst_milli", "tokens_milli"), ("capacity", "burst", ""))


class Change(NamedTuple):
    """Something that means something else after an upgrade: for how many records, and which, by their keys."""

    what: str
    records: int
    keys: tuple[str, ...]


def _has_quota(old: Old) -> bool:
    given = (name for name, value in old.fields.items() if value != policies.NONE)
    return any(name in ("rsched", "rsa") or name.endswith(("_rsched", "_rsa")) for name in given)


def _limits(fields: Image) -> Iterator[tuple[int, int, int]]:
    """Yield capacity, burst and tokens of each limit of a record, 0 for what it does not have."""
    for capacity, burst, tokens in _NUMBERS:
        for name in fields:
            if name == capacity or name.endswith(f"_{capacity}"):
                prefix = name.removesuffix(capacity)
                yield _read(fields, name), _read(fields, prefix + burst), _read(fields, prefix + tokens)


def _read(fields: Image, name: str) -> int:
    value = fields.get(name)
    return value if type(value) is int else 0


def _is_overfull(old: Old) -> bool:
    return not _has_quota(old) and any(tokens > max(capacity, burst) for capacity, burst, tokens in _limits(old.fields))


def _owes_beside_others(old: Old) -> bool:
    found = [tokens for name, tokens in old.fields.items() if name.startswith("b_") and name.endswith("_tk")]
    return "/" not in old.key.pk and len(found) > 1 and any(tokens < 0 for tokens in found)


def _scales_below_one(old: Old) -> bool:
    """Return whether a schedule of a config record leaves less than one token of a limit."""
    for name, text in old.fields.items():
        if name.endswith("_sched") and isinstance(text, str):
            capacity = _read(old.fields, f"{name.removesuffix('sched')}cp")
            scales = (policies.read_entry(entry)[1].get("s", 1000) for entry in text[1:].split(";"))
            if any(capacity * scale < 1000 for scale in scales):
                return True
    return False


_FORGIVEN = "a quota whose debt was forgiven at the end of a window: the next allowance pays it"
_CHANGES: dict[str, dict[str, Callable[[Old], bool]]] = {
    "config": {
        _FORGIVEN: _has_quota,
        "several reset schedules of a limit: one cron expression": lambda old: any(
            name.endswith("rsched") and ";" in str(text) for name, text in old.fields.items()
        ),
        "a burst beside the capacity: the larger one is the capacity": lambda old: any(
            0 < burst != capacity for capacity, burst, _ in _limits(old.fields)
        ),
        "a schedule that scales a limit below one token: its capacity is then 1": _scales_below_one,
        "a bypass, which charged nothing: what passes is charged, and can leave debt": lambda old: (
            old.fields.get(policies.DISABLED) == "bypass"
        ),
    },
    "bucket": {
        _FORGIVEN: _has_quota,
        "more tokens than the capacity of a rate: they are cut to it": _is_overfull,
        "a limit in debt that in 0.7 and 0.8 refused requests for others too: it refuses those that take from it": (
            _owes_beside_others
        ),
    },
    "entity": {
        "an entity of which each call said whether it charges its parent: it does not, "
        "until `entity set-cascade` says so": lambda old: (
            bool(old.fields.get("parent_id")) and "cascade" not in old.fields
        )
    },
    "usage snapshot": {
        "usage that begins at midnight, whose hour and day shared a record: "
        "the sum of both, as the kind of window that the record states": lambda old: old.key.sk.endswith("T00:00:00Z")
    },
    "idempotency key": {"an idempotency key: it is recognised whatever is asked for with it": lambda old: True},
    "note on a limits file": {
        "the list of what a limits file manages: not kept, `limits apply --prune` removes what the file lacks": (
            lambda old: True
        )
    },
}
_STATE_LIMITS = (
    "for which no limits of the resource or the system are stored: callers state them, or the entity has its own"
)
_UNKNOWN = "a record of a key that no version writes: it stays as it is, and no client reads it"
_ANCESTORS = (
    "an entity whose parent has a parent: that one is charged too if the parent cascades; 0.x charged one parent"
)
_TOO_DEEP = f"an entity below more than {MAX_DEPTH - 1} parents, which this version does not allow: give it another one"
_CYCLE = "an entity whose parents lead back to it, which this version does not allow: give it another one"
_NEW_ID = "an audit event whose id did not sort by time: its id begins with the time"


def describe_changes(move: Move) -> Iterator[str]:
    """Yield what a move changes of the meaning of its records."""
    for what, applies in _CHANGES.get(move.kind, {}).items():
        if any(map(applies, move.olds)):
            yield what
    if move.kind == "audit event" and move.writes[0].key.sk != move.olds[0].key.sk:
        yield _NEW_ID


def _describe_ancestors(whose: str, parents: Mapping[str, str]) -> str | None:
    """Return what the ancestors of an entity change, or None. All entities are named by their partition keys."""
    chain = [whose]
    while len(chain) <= MAX_DEPTH and (parent := parents.get(chain[-1])) is not None:
        if parent in chain:
            return _CYCLE
        chain.append(parent)
    if len(chain) > MAX_DEPTH:
        return _TOO_DEEP
    return _ANCESTORS if len(chain) > 2 else None


class ChangeLog:
    """What a run would change of the meaning of records."""

    def __init__(self, namespace_name: str) -> None:
        self._without = f"records without a namespace: they belong to namespace {namespace_name!r}"
        self._counts: Counter[str] = Counter()
        self._keys: defaultdict[str, list[str]] = defaultdict(list)
        self._buckets: defaultdict[str, list[str]] = defaultdict(list)
        self._counted: Counter[str] = Counter()
        self._covered: set[str | None] = set()
        self._parents: dict[str, str] = {}

    def add(self, moves: Iterable[Move]) -> None:
        """Note what these moves change."""
        for move in moves:
            old = move.olds[0]
            key = " ".join(old.key)
            for what in describe_changes(move):
                self._note(what, key)
            if "/" not in old.key.pk.partition("#")[0]:
                self._note(self._without, key)
            parent_id = old.fields.get("parent_id")
            if move.kind == "entity" and isinstance(parent_id, str) and parent_id:
                place, kind, _ = old.key.pk.partition("ENTITY#")
                self._parents[old.key.pk] = f"{place}{kind}{parent_id}"
            if move.kind == "bucket":
                resource = keys.parse_bucket_pk(move.writes[0].key.pk).resource
                self._counted[resource] += 1
                self._buckets[resource] += [key] if self._counted[resource] <= MOST_KEYS else []

    def add_unknown(self, olds: Iterable[Old]) -> None:
        """Note records of a key that no layout has."""
        for old in olds:
            self._note(_UNKNOWN, " ".join(old.key))

    def cover(self, resource: str | None) -> None:
        """Note that limits of a resource are stored, or with None those of the system."""
        self._covered.add(resource)

    def report(self) -> tuple[Change, ...]:
        """Return the changes, the most frequent first."""
        if None not in self._covered:
            for resource in sorted(self._buckets.keys() - self._covered):
                what = f"buckets of {resource!r}, {_STATE_LIMITS}"
                self._counts[what], self._keys[what] = self._counted[resource], self._buckets[resource]
        for pk in self._parents:
            remark = _describe_ancestors(pk, self._parents)
            if remark is not None:
                self._note(remark, f"{pk} {keys.META}")
        return tuple(Change(what, count, tuple(self._keys[what])) for what, count in self._counts.most_common())

    def _note(self, what: str, key: str) -> None:
        self._counts[what] += 1
        if self._counts[what] <= MOST_KEYS:
            self._keys[what].append(key)
