"""Counts that exist anyway: those of the config cache, and of stores that count their calls."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from ..stores.port import Metered
from .tally import Series

if TYPE_CHECKING:
    from ..repository.repository import Repository
    from ..sync import SyncRepository
    from .tally import Attributes, Counts, Tally

    AnyRepository: TypeAlias = Repository | SyncRepository


def join(tally: Tally, repository: AnyRepository) -> list[int]:
    """Let a tally count what a repository's cache and store count; return what `Tally.leave` needs."""
    store = repository.store
    name = ("backend", repository.capabilities.name)
    where = (name, ("namespace", repository.namespace))
    joined = [tally.join(repository, partial(_read_cache, repository, where))]
    if isinstance(store, Metered):
        joined.append(tally.join(store, partial(_read_store, store, (name,))))
    return joined


def _read_cache(repository: AnyRepository, where: Attributes) -> Counts:
    stats = repository.get_cache_stats()
    counts = {"hit": stats.hits, "miss": stats.misses}
    return {Series("config.cache", (*where, ("result", result))): count for result, count in counts.items()}


def _read_store(store: Metered, where: Attributes) -> Counts:
    stats = store.stats()
    plain = {"conflicts": stats.conflicts, "retries": stats.retries, "throttled": stats.throttled}
    return {
        **{Series("backend.calls", (*where, ("operation", name))): count for name, count in stats.calls.items()},
        **{Series(f"backend.{name}", where): count for name, count in plain.items()},
        Series("backend.bytes", (*where, ("direction", "sent"))): stats.bytes_sent,
        Series("backend.bytes", (*where, ("direction", "received"))): stats.bytes_received,
        Series("backend.units", (*where, ("operation", "read"))): stats.read_units,
        Series("backend.units", (*where, ("operation", "write"))): stats.write_units,
    }
