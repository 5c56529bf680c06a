"""Stamp an entity's buckets with the version of its config: each process that charges one of them reads it again."""

from __future__ import annotations

import contextlib

from ..core.errors import CorruptRecordError
from ..core.names import DEFAULT_RESOURCE
from ..records import bucket, config, keys, migration
from ..records.algebra import Committed, Image, Key
from ..runtime.deadline import Deadline
from ..runtime.retries import tries
from .backend import Backend


async def stamp_buckets(backend: Backend, ns: str, entity_id: str, resource: str | None, deadline: Deadline) -> None:
    """Stamp the buckets of an entity, for one resource or (None) for all, after a change of its config.

    A process with the old config then loses the race for its next write, and the image tells it why. Damaged buckets
    are skipped: they grant nothing.
    """
    steps = deadline.for_each_step()
    versions: dict[str, int] = {}
    for key, image in await backend.collect(keys.buckets_of_entity(ns, entity_id, resource), steps):
        with contextlib.suppress(CorruptRecordError):
            whose = keys.parse_bucket_pk(key.pk)
            if whose.resource not in versions:
                versions[whose.resource] = await _read_version(backend, ns, entity_id, whose.resource, steps)
            await _stamp(backend, key, image, versions[whose.resource], steps)


async def _read_version(backend: Backend, ns: str, entity_id: str, resource: str, deadline: Deadline) -> int:
    """Return the version of the config of an entity on a resource, as it is stored now."""
    above = [keys.resource_config(ns, resource), keys.system_config(ns)]
    configs = [*(keys.entity_config(ns, entity_id, name) for name in (resource, DEFAULT_RESOURCE)), *above]
    meta, *images = await backend.read([keys.meta(ns, entity_id), *configs], deadline)
    version: int = (meta or {}).get("version", 0)
    return version + sum(config.decode(key, image).version for key, image in zip(configs, images, strict=True))


async def _stamp(backend: Backend, key: Key, image: Image | None, version: int, deadline: Deadline) -> None:
    """Stamp one record of a bucket, unless it is gone or was charged under this config already."""
    for _ in tries(key.pk):
        write = None if image is None else migration.stamp(key, bucket.inspect(key, image), version)
        if write is None:
            return
        outcome = await backend.store.commit([write], timeout=deadline.left())
        if isinstance(outcome, Committed):
            backend.last_seen.of(key).show(outcome.images[0], backend.clock.now_ms())
            return
        image = outcome.images[key]
