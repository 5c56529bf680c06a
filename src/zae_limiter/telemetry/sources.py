"""What is counted anyway: by the config cache, and by stores that count their calls."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ..stores.provisioning import Metered
from .tally import Series

if TYPE_CHECKING:
    from ..repository.backend import Backend
    from ..repository.cache import ConfigCache
    from .tally import Attributes, Counts, Tally


def join(tally: Tally, backend: Backend) -> list[int]:
    """Let a tally count what a backend counts; returns what `Tally.leave` needs."""
    store = backend.store
    name = ("backend", store.capabilities.name)
    where = (name, ("namespace", backend.namespace_name))
    joined = [tally.join(backend.cache, partial(_of_cache, backend.cache, where))]
    if isinstance(store, Metered):
        joined.append(tally.join(store, partial(_of_store, store, (name,))))
    return joined


def _of_cache(cache: ConfigCache, where: Attributes) -> Counts:
    stats = cache.stats()
    counts = {"hit": stats.hits, "miss": stats.misses}
    return {Series("config.cache", (*where, ("result", result))): count for result, count in counts.items()}


def _of_store(store: Metered, where: Attributes) -> Counts:
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
