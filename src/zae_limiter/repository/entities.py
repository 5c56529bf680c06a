"""Create, update, read and delete entities and their hierarchy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any

from ..core import names
from ..core.errors import EntityExistsError, EntityNotFoundError, EntityVersionError, ValidationError
from ..core.limit import as_int, whole
from ..core.names import MAX_DEPTH, check_ancestry
from ..core.validation import UNSET, Unset, flag
from ..core.values import AuditAction, Entity
from ..records import config, entity, keys
from ..records.algebra import ABSENT, PRESENT, Guard, Image, Key, Query, Write
from ..records.fields import iso
from ..records.keys import buckets_of_entity
from ..runtime.deadline import Deadline
from .backend import MAX_COMMIT
from .buckets import TRIES, try_often
from .credits import CreditOperations
from .ineffective import warn_of_lone_cascade, warn_of_names
from .resolving import stamp_buckets

_FAMILY = frozenset(("parent_id", "cascade"))
"""The fields that decide whether a parent is charged."""


class EntityOperations(CreditOperations):
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
        """Create an entity and return it. Raise `EntityExistsError` if the id is taken.

        ``name`` is for people; ``parent_id`` is the entity above it, which must exist; with ``cascade`` an acquire also
        charges the parent, and so on up; ``metadata`` is anything that JSON can represent.
        """
        names.entity_id(entity_id)
        given = {"name": name, "parent_id": parent_id, "cascade": cascade}
        fields = _check_fields(entity_id, given | {"metadata": {} if metadata is None else metadata})
        backend = self._backend
        deadline, ns, who = await self._begin_change(principal)
        key = keys.meta(ns, entity_id)
        made = Entity(entity_id, **fields, created_at=iso(backend.clock.now_ms()))
        for _ in try_often(entity_id):
            writes = [
                Write(key, (ABSENT,), {**entity.encode(ns, made), entity.CHILDREN: 0}),
                backend.event(ns, AuditAction.ENTITY_CREATED, entity_id, who, details=fields),
                *await self._join_parent(ns, entity_id, parent_id, deadline),
            ]
            if await backend.commit(writes, deadline):
                break
            if (await backend.read([key], deadline))[0] is not None:
                raise EntityExistsError(entity_id)
        await self._finish_change(ns, made, deadline, cascade=cascade)
        return made

    async def _finish_change(self, ns: str, made: Entity, deadline: Deadline, *, cascade: bool) -> None:
        """Forget what was cached of an entity. Log a ``cascade`` without a parent, or without a shared limit."""
        self._backend.cache.drop([keys.meta(ns, made.id)])
        if cascade and made.parent_id is None:
            warn_of_lone_cascade(self._backend, made.id)
        elif cascade:
            await warn_of_names(self._backend, ns, made.id, names.DEFAULT_RESOURCE, deadline)

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
        """Change the fields that are passed and return the entity; ``name`` and ``parent_id`` may be None.

        Raise `EntityNotFoundError` if it does not exist and `EntityVersionError` if its version is not
        ``expected_version``. ``metadata`` replaces all of the old; the fields are those of `create_entity`.
        """
        names.entity_id(entity_id)
        if expected_version is not None:
            expected_version = whole("expected_version", expected_version, 1, 2**62)
        given = {"name": name, "parent_id": parent_id, "cascade": cascade, "metadata": metadata}
        changes = _check_fields(entity_id, {field: value for field, value in given.items() if value is not UNSET})
        backend = self._backend
        deadline, ns, who = await self._begin_change(principal)
        key = keys.meta(ns, entity_id)
        for _ in try_often(entity_id):
            old = entity.decode(await self._require_record(entity_id, key, deadline))
            if expected_version is not None and old.version != expected_version:
                raise EntityVersionError(entity_id, expected_version, old.version)
            new = replace(old, **changes, version=old.version + 1)
            event = backend.event(ns, AuditAction.ENTITY_UPDATED, entity_id, who, details=changes)
            if await backend.commit([*await self._plan_update(ns, old, new, deadline), event], deadline):
                break
        await self._finish_change(ns, new, deadline, cascade=new.cascade and not changes.keys().isdisjoint(_FAMILY))
        if (new.parent_id, new.cascade) != (old.parent_id, old.cascade):
            await stamp_buckets(backend, ns, entity_id, None, deadline)
        return new

    async def get_entity(self, entity_id: str, *, consistent_read: bool = True) -> Entity | None:
        """Return the entity, or None if it was never created. Every read is consistent, whatever is asked for."""
        names.entity_id(entity_id)
        deadline, ns = await self._begin()
        image = (await self._backend.read([keys.meta(ns, entity_id)], deadline))[0]
        return None if image is None else entity.decode(image)

    async def set_parent(self, entity_id: str, parent_id: str | None, *, principal: str | None = None) -> int:
        """Move an entity below another one, or (None) to the top. Return how many records of buckets it has.

        Raise `EntityNotFoundError` if one of them does not exist.
        """
        await self.update_entity(entity_id, parent_id=parent_id, principal=principal)
        deadline, ns = await self._begin_steps()
        return len(await self._backend.collect(buckets_of_entity(ns, entity_id), deadline))

    async def get_children(self, parent_id: str) -> list[Entity]:
        """Return the entities whose parent is ``parent_id``, sorted by id."""
        names.entity_id(parent_id, "parent_id")
        deadline, ns = await self._begin_steps()
        rows = await self._backend.collect(Query(keys.gsi1_pk_parent(ns, parent_id), gsi="GSI1"), deadline)
        return [entity.decode(image) for _, image in rows]

    async def delete_entity(self, entity_id: str, principal: str | None = None) -> None:
        """Delete an entity, its limits, buckets and idempotency keys. Raise `ValidationError` if it has children."""
        names.entity_id(entity_id)
        names.principal(principal)
        backend = self._backend
        deadline, ns = await self._begin_steps()
        principal = await backend.principal(principal, deadline)
        key, query = keys.meta(ns, entity_id), Query(keys.gsi1_pk_parent(ns, entity_id), gsi="GSI1", limit=1)
        for number in try_often(entity_id):
            seen = await self._require_record(entity_id, key, deadline)
            for _, image in (await backend.collect_some(query, 1, deadline))[0]:
                reason = f"has children, e.g. {entity.decode(image).id!r}; delete or move them first"
                raise ValidationError("entity_id", entity_id, reason)
            configs = await self._read_configs(ns, entity_id, deadline)
            if len(configs) > MAX_COMMIT // 2:
                await backend.commit(_forget_limits(ns, configs[: MAX_COMMIT // 2], backend.clock.now_ms()), deadline)
                continue
            buckets = [row[0] for row in await backend.collect(buckets_of_entity(ns, entity_id), deadline)]
            noted = await backend.collect(Query(keys.pk_entity(ns, entity_id), prefix=keys.ONCE_PREFIX), deadline)
            notes = [Write(note, delete=True) for note, _ in noted]
            room = MAX_COMMIT // 4 if backend.store.capabilities.wide_commits else 0
            writes = [
                Write(key, (Guard("version", "=", seen["version"]), Guard(entity.CHILDREN, "<=", 0)), delete=True),
                backend.event(ns, AuditAction.ENTITY_DELETED, entity_id, principal),
                *_forget_limits(ns, configs, backend.clock.now_ms()),
                *notes[:room],
            ]
            if seen.get("parent_id") is not None:
                writes.append(Write(keys.meta(ns, seen["parent_id"]), (PRESENT,), add={entity.CHILDREN: -1}))
            if await self._commit_forgetting(writes, buckets, deadline, exact=number < TRIES - 1):
                backend.cache.drop([key, *(config_key for config_key, _ in configs)])
                await self._delete(notes[room:], deadline)
                return

    async def _require_record(self, entity_id: str, key: Key, deadline: Deadline) -> Image:
        image = (await self._backend.read([key], deadline))[0]
        if image is None:
            raise EntityNotFoundError(entity_id)
        return image

    async def _read_configs(self, ns: str, entity_id: str, deadline: Deadline) -> list[tuple[Key, Image]]:
        """Return the config records of an entity that say something."""
        query = Query(keys.pk_entity(ns, entity_id), prefix=f"{keys.CONFIG}#")
        rows = await self._backend.collect(query, deadline)
        return [(key, image) for key, image in rows if not config.decode(key, image).is_empty]

    async def _join_parent(
        self, ns: str, entity_id: str, parent_id: str | None, deadline: Deadline, height: int = 1
    ) -> list[Write]:
        """Walk up from the parent. Return writes that count its new child and fail if the walk is outdated.

        ``height`` is the number of levels that the entity brings along, itself included.
        """
        ancestors: list[str] = []
        writes: list[Write] = []
        above = parent_id
        while above is not None:
            ancestors.append(above)
            check_ancestry(entity_id, ancestors, height)
            key = keys.meta(ns, above)
            image = await self._require_record(above, key, deadline)
            found = entity.decode(image)
            guard = Guard("version", "=", found.version)
            writes.append(Write(key, (guard,), add={} if writes else {entity.CHILDREN: 1}))
            above = found.parent_id
        return writes

    async def _plan_update(self, ns: str, old: Entity, new: Entity, deadline: Deadline) -> list[Write]:
        """Return the writes that replace an entity, if no other client has changed it meanwhile."""
        put = entity.encode(ns, new)
        gone = tuple(attr for attr in ("name", "parent_id", "GSI1PK", "GSI1SK") if attr not in put)
        moved = new.parent_id != old.parent_id
        loss = {entity.CHILDREN: -1} if moved and old.parent_id == old.id else {}
        write = Write(keys.meta(ns, old.id), (Guard("version", "=", old.version),), put, add=loss, remove=gone)
        return [write, *(await self._plan_move(ns, old, new, deadline) if moved else ())]

    async def _plan_move(self, ns: str, old: Entity, new: Entity, deadline: Deadline) -> list[Write]:
        """Return the checks and the counts of children for a change of parent."""
        height = await self._measure_height(ns, old.id, deadline)
        writes = await self._join_parent(ns, old.id, new.parent_id, deadline, height)
        if old.parent_id in (None, old.id):  # records of 0.17 may name an entity as its own parent
            return writes
        left, loss = keys.meta(ns, old.parent_id), {entity.CHILDREN: -1}
        if any(write.key == left for write in writes):  # the old parent stays above, only further up
            return [write._replace(add=loss) if write.key == left else write for write in writes]
        return [*writes, Write(left, (PRESENT,), add=loss)]

    async def _measure_height(self, ns: str, entity_id: str, deadline: Deadline) -> int:
        height, level = 1, [entity_id]
        while height <= MAX_DEPTH:
            queries = [Query(keys.gsi1_pk_parent(ns, parent), gsi="GSI1") for parent in level]
            rows = [row for query in queries for row in await self._backend.collect(query, deadline)]
            if not rows:
                return height
            height += 1
            level = [entity.decode(image).id for _, image in rows if image.get(entity.CHILDREN, 0) > 0]
        return height


def _check_fields(entity_id: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the given fields of an entity as they are stored. Raise `ValidationError` for an invalid one."""
    if fields.get("name") is not None:
        names.text(fields["name"], "name")
    flag("cascade", fields.get("cascade", False))
    metadata = fields.get("metadata", {})
    if not isinstance(metadata, dict):
        raise ValidationError("metadata", metadata, "must be a dictionary with string keys")
    problem = _find_problem(metadata)
    if problem is not None:
        raise ValidationError("metadata", metadata, problem)
    if fields.get("parent_id") is not None and names.entity_id(fields["parent_id"], "parent_id") == entity_id:
        check_ancestry(entity_id, [entity_id])
    if "metadata" not in fields:
        return fields
    import json

    return fields | {"metadata": json.loads(json.dumps(metadata, default=as_int))}  # with tuples as lists


def _find_problem(value: object) -> str | None:
    """Return why JSON cannot represent the value so that every store returns it unchanged; None if it can."""
    if isinstance(value, dict):
        odd = [name for name in value if not isinstance(name, str)]
        return f"must have string keys, not {odd[0]!r}" if odd else _find_problem([*value, *value.values()])
    if isinstance(value, list | tuple):
        return next((problem for part in value if (problem := _find_problem(part)) is not None), None)
    if isinstance(value, str):
        surrogates = any("\ud800" <= letter <= "\udfff" for letter in value)
        return "must not contain lone surrogates" if surrogates else None
    if isinstance(value, float):
        return None if isfinite(value) else f"must not contain {value}"
    if isinstance(value, bool | None) or as_int(value) is not None:
        return None
    return f"must be serializable as JSON, not contain a {type(value).__name__}"


def _forget_limits(ns: str, configs: Sequence[tuple[Key, Image]], now_ms: int) -> list[Write]:
    """Return the writes that delete stored limits and switches. The records stay, so that their version never falls."""
    writes = [config.replace(key, image, config.Config(changed_ms=now_ms), {}) for key, image in configs]
    registry = {
        config.registered(config.resource_of(image)): -1 for key, image in configs if config.decode(key, image).limits
    }
    return [*writes, Write(keys.entity_config_resources(ns), (), {}, registry)] if registry else writes
