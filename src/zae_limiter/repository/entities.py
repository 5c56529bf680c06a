"""Entities and their hierarchy."""

from __future__ import annotations

import enum
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..core import names
from ..core.chain import check_ancestry
from ..core.errors import EntityExistsError, EntityNotFoundError, EntityVersionError, ValidationError
from ..core.values import AuditAction, BucketState, Entity
from ..records import bucket, config, entity, keys
from ..records.algebra import ABSENT, Guard, Image, Key, Query, Write
from ..records.instants import iso
from .base import Operations

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Unset(enum.Enum):
    """Marks an argument that was not given, where None means something."""

    UNSET = enum.auto()


UNSET = Unset.UNSET


class EntityOperations(Operations):
    """Create, change, read and delete entities."""

    async def create_entity(
        self,
        entity_id: str,
        name: str | None = None,
        parent_id: str | None = None,
        cascade: bool = False,
        metadata: Mapping[str, Any] | None = None,
        principal: str | None = None,
    ) -> Entity:
        """Create an entity. With ``cascade`` every acquire also charges its parent, and so on up."""
        names.entity_id(entity_id)
        _check_fields(name, cascade, metadata)
        if parent_id is not None:
            names.entity_id(parent_id, "parent_id")
            if parent_id == entity_id:
                check_ancestry(entity_id, [parent_id])
        backend = self._backend
        ns = await backend.ns()
        checks = await self._ancestry(ns, entity_id, parent_id)
        made = Entity(entity_id, name, parent_id, cascade, dict(metadata or {}), iso(backend.clock.now_ms()))
        details = {"name": name, "parent_id": parent_id, "cascade": cascade, "metadata": dict(metadata or {})}
        writes = [
            Write(keys.meta(ns, entity_id), (ABSENT,), entity.encode(ns, made)),
            backend.event(ns, AuditAction.ENTITY_CREATED, entity_id, principal, details=details),
            *checks,
        ]
        if not await backend.commit(writes):
            if (await backend.read([keys.meta(ns, entity_id)]))[0] is not None:
                raise EntityExistsError(entity_id)
            return await self.create_entity(entity_id, name, parent_id, cascade, metadata, principal)
        backend.cache.drop([keys.meta(ns, entity_id)])
        return made

    async def update_entity(
        self,
        entity_id: str,
        *,
        name: str | Unset | None = UNSET,
        parent_id: str | Unset | None = UNSET,
        cascade: bool | Unset = UNSET,
        metadata: Mapping[str, Any] | Unset = UNSET,
        expected_version: int | None = None,
        principal: str | None = None,
    ) -> Entity:
        """Change what is given. With ``expected_version`` only if nobody has changed it since."""
        names.entity_id(entity_id)
        given = {"name": name, "parent_id": parent_id, "cascade": cascade, "metadata": metadata}
        changes: dict[str, Any] = {field: value for field, value in given.items() if value is not UNSET}
        _check_fields(changes.get("name"), changes.get("cascade", False), changes.get("metadata"))
        if changes.get("parent_id") is not None:
            names.entity_id(changes["parent_id"], "parent_id")
        backend = self._backend
        ns = await backend.ns()
        key = keys.meta(ns, entity_id)
        while True:
            seen = (await backend.read([key]))[0]
            if seen is None:
                raise EntityNotFoundError(entity_id)
            old = entity.decode(seen)
            if expected_version is not None and old.version != expected_version:
                raise EntityVersionError(entity_id, expected_version, old.version)
            new = replace(old, **changes, version=old.version + 1)
            checks = await self._ancestry(ns, entity_id, new.parent_id) if "parent_id" in changes else []
            event = backend.event(ns, AuditAction.ENTITY_UPDATED, entity_id, principal, details=changes)
            if await backend.commit([_rewrite(ns, key, old, new), event, *checks]):
                backend.cache.drop([key])
                return new

    async def get_entity(self, entity_id: str) -> Entity | None:
        """The entity, or None where it was never created."""
        names.entity_id(entity_id)
        image = (await self._backend.read([keys.meta(await self._backend.ns(), entity_id)]))[0]
        return None if image is None else entity.decode(image)

    async def get_children(self, entity_id: str) -> list[Entity]:
        """The entities whose parent it is, by id."""
        names.entity_id(entity_id)
        ns = await self._backend.ns()
        rows = await self._backend.collect(Query(keys.gsi1_pk_parent(ns, entity_id), gsi="GSI1"))
        return [entity.decode(image) for _, image in rows]

    async def delete_entity(self, entity_id: str, principal: str | None = None) -> None:
        """Delete an entity with its limits and buckets. One that has children is refused."""
        names.entity_id(entity_id)
        backend = self._backend
        ns = await backend.ns()
        key = keys.meta(ns, entity_id)
        seen = (await backend.read([key]))[0]
        if seen is None:
            raise EntityNotFoundError(entity_id)
        children = await backend.collect(Query(keys.gsi1_pk_parent(ns, entity_id), gsi="GSI1", limit=1), 1)
        if children:
            child = children[0][1]["entity_id"]
            raise ValidationError("entity_id", entity_id, f"has children, e.g. {child!r}; delete or move them first")
        configs = await backend.collect(Query(keys.pk_entity(ns, entity_id), prefix=f"{keys.CONFIG}#"))
        writes = [
            Write(key, (Guard("version", "=", seen["version"]),), delete=True),
            backend.event(ns, AuditAction.ENTITY_DELETED, entity_id, principal),
            *_forget_limits(ns, configs),
        ]
        if not await backend.commit(writes):
            return await self.delete_entity(entity_id, principal)
        for bucket_key, _ in await self._buckets(ns, entity_id):
            await backend.commit([Write(bucket_key, delete=True)])
        backend.cache.drop([key, *(config_key for config_key, _ in configs)])
        return None

    async def get_buckets(self, entity_id: str, resource: str | None = None) -> list[BucketState]:
        """The stored buckets of an entity, one state per limit, not refilled to now."""
        names.entity_id(entity_id)
        if resource is not None:
            names.resource(resource)
        rows = await self._buckets(await self._backend.ns(), entity_id)
        found = [image for _, image in rows if resource is None or image["resource"] == resource]
        return [state for image in found for state in bucket.states(image)]

    async def reset_bucket(self, entity_id: str, resource: str, principal: str | None = None) -> None:
        """Forget a bucket, damaged or not: the next acquire starts a full one."""
        names.entity_id(entity_id)
        names.resource(resource)
        backend = self._backend
        ns = await backend.ns()
        event = backend.event(ns, AuditAction.BUCKET_RESET, entity_id, principal, resource)
        await backend.commit([Write(keys.bucket(ns, entity_id, resource), delete=True), event])

    async def _buckets(self, ns: str, entity_id: str) -> list[tuple[Key, Image]]:
        return await self._backend.collect(Query(keys.gsi3_pk_entity(ns, entity_id), prefix="BUCKET#", gsi="GSI3"))

    async def _ancestry(self, ns: str, entity_id: str, parent_id: str | None) -> list[Write]:
        """Walk up from the parent; the checks let a commit win only while the walk is still true."""
        ancestors: list[str] = []
        checks: list[Write] = []
        above = parent_id
        while above is not None:
            ancestors.append(above)
            check_ancestry(entity_id, ancestors)
            key = keys.meta(ns, above)
            image = (await self._backend.read([key]))[0]
            if image is None:
                raise EntityNotFoundError(above)
            checks.append(Write(key, (Guard("version", "=", image["version"]),)))
            above = image.get("parent_id")
        return checks


def _check_fields(name: object, cascade: object, metadata: object) -> None:
    if name is not None and not isinstance(name, str):
        raise ValidationError("name", name, "must be a string or None")
    if not isinstance(cascade, bool):
        raise ValidationError("cascade", cascade, "must be True or False")
    if metadata is None:
        return
    if not isinstance(metadata, dict) or not all(isinstance(field, str) for field in metadata):
        raise ValidationError("metadata", metadata, "must be a dictionary with string keys")
    _check_json("metadata", metadata)


def _check_json(field: str, value: object) -> None:
    """Metadata come back as they went in on every store only if JSON can hold them."""
    if isinstance(value, dict):
        for name, part in value.items():
            _check_json(f"{field}.{name}", part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            _check_json(field, part)
    elif not isinstance(value, (str, int, float, bool, type(None))):
        raise ValidationError(field, value, "must be text, a number, a boolean, None, a list or a dictionary")


def _rewrite(ns: str, key: Key, old: Entity, new: Entity) -> Write:
    put = entity.encode(ns, new)
    gone = tuple(attr for attr in ("name", "parent_id", "GSI1PK", "GSI1SK") if attr not in put)
    return Write(key, (Guard("version", "=", old.version),), put, remove=gone)


def _forget_limits(ns: str, configs: Sequence[tuple[Key, Image]]) -> list[Write]:
    """Take stored limits out; the records stay, so that their version never falls."""
    registry: dict[str, int] = {}
    writes = []
    for key, image in configs:
        if config.decode(key, image).limits:
            registry[f"r_{image['resource']}"] = -1
            writes.append(config.replace(key, image, None, {}))
    if registry:
        writes.append(Write(keys.entity_config_resources(ns), (), {}, registry))
    return writes
