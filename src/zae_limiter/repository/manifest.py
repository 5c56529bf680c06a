"""Plan and apply a limits file, and read everything that one could state."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial

from ..core import names
from ..core.errors import EntityExistsError, EntityNotFoundError, EntityVersionError
from ..core.values import AuditAction, Entity
from ..manifest.diff import describe_conflict, diff, find_ineffective, list_pairs
from ..manifest.states import Change, Manifest, Plan, PlanOutdatedError, Stored, Subject, config_fields, entity_fields
from ..records import config, entity, keys
from ..records.algebra import Image, Key, Query
from ..records.config import Config
from .backend import MAX_PAGE
from .configs import PolicyOperations, find_action, spell_fields
from .entities import EntityOperations
from .resolving import locate

_BATCH = 100
"""How many records are read at once."""
_MOST_NAMED = 200
"""How many changes the audit event of a change set names."""


class ManifestOperations(EntityOperations, PolicyOperations):
    """Plan, apply and export limits files."""

    async def plan_limits(self, manifest: Manifest, *, prune: bool = False, file: str = "limits") -> Plan:
        """Return the changes that make the store say what a limits file states; nothing is changed.

        With ``prune`` limits of resources and entities that the file does not state are removed. ``file`` is its name.
        Raise `ManifestError` for parents that do not exist.
        """
        subjects = set(manifest.levels)
        if prune:
            subjects |= await self._find_limits()
        entities = await self._read_ancestry(manifest)
        named = {subject.entity_id for subject in manifest.levels if subject.entity_id is not None}
        entities |= await self._read_entities(sorted(named - entities.keys()))
        plan = diff(manifest, Stored(await self._read_levels(subjects), entities), prune=prune, file=file)
        pairs = list(list_pairs(manifest, entities))
        levels = {each for pair in pairs for who in (pair.child, pair.parent) for each in pair.subjects(who)}
        known = Stored(await self._read_levels(levels) if levels else {}, entities)
        return plan._replace(warnings=find_ineffective(manifest, known, prune=prune))

    async def apply_plan(
        self, plan: Plan, principal: str | None = None, on_change: Callable[[Change], None] | None = None
    ) -> int:
        """Make the changes of a plan and return how many were made; those that others have made already are left out.

        Raise `PlanOutdatedError` if others have changed what the plan is about, before anything is changed if it is
        seen in time. A plan that was interrupted can be applied again. The audit log
        has an event per change and one for all of them; ``on_change`` is called after each change.
        """
        names.principal(principal)
        stored = await self._read_subjects({change.subject for change in plan.changes})
        states = [(change, stored.read(change.subject, change.after)) for change in plan.changes]
        conflicts = [
            describe_conflict(change, now) for change, now in states if now not in (change.before, change.after)
        ]
        if conflicts:
            raise PlanOutdatedError(conflicts)
        done: list[Change] = []
        try:
            for change, now in states:
                if now == change.after:
                    continue
                await self._apply_change(change, principal)
                done.append(change)
                if on_change is not None:
                    on_change(change)
        except PlanOutdatedError as error:
            raise PlanOutdatedError(error.conflicts, len(done)) from None
        finally:
            if done:
                await self._record_change_set(done, len(plan.changes), principal)
        return len(done)

    async def _record_change_set(self, done: list[Change], planned: int, principal: str | None) -> None:
        deadline, ns, who = await self._begin_change(principal)
        named = [str(change.subject) for change in done[:_MOST_NAMED]]
        details = {"changes": named, "made": len(done), "planned": planned}
        event = self._backend.event(ns, AuditAction.LIMITS_APPLIED, keys.AUDIT_SYSTEM, who, details=details)
        await self._backend.commit([event], deadline)

    async def export_limits(self) -> Stored:
        """Return all entities, limits and switches of the namespace."""
        deadline, ns = await self._begin_steps()
        prefix = keys.pk_entity(ns, "")
        subjects = {Subject()}
        for key, _ in await self._backend.collect(Query(ns, prefix, gsi="GSI4"), deadline):
            entity_id = key.pk.removeprefix(prefix)
            if key.sk == keys.META:
                subjects.add(Subject(entity_id))
            elif key.sk.startswith(f"{keys.CONFIG}#"):
                subjects.add(Subject(entity_id, key.sk.removeprefix(f"{keys.CONFIG}#")))
        prefix = keys.pk_resource(ns, "")
        rows = await self._backend.collect(Query(ns, prefix, gsi="GSI4"), (await self._deadline()).for_each_step())
        subjects |= {Subject(None, key.pk.removeprefix(prefix)) for key, _ in rows if key.sk == keys.CONFIG}
        return await self._read_subjects(subjects)

    async def _find_limits(self) -> set[Subject]:
        found = {Subject(None, resource) for resource in await self.list_resources_with_defaults()}
        for resource in await self.list_resources_with_entity_configs():
            cursor: str | None = None
            while True:
                page, cursor = await self.list_entities_with_custom_limits(resource, MAX_PAGE, cursor)
                found |= {Subject(entity_id, resource) for entity_id in page}
                if cursor is None:
                    break
        return found

    async def _read_subjects(self, subjects: Collection[Subject]) -> Stored:
        levels = [subject for subject in subjects if not subject.is_entity]
        ids = [str(subject.entity_id) for subject in subjects if subject.is_entity]
        return Stored(await self._read_levels(levels), await self._read_entities(ids))

    async def _read_levels(self, subjects: Iterable[Subject]) -> dict[Subject, Config]:
        _, ns = await self._begin()
        wanted = {subject: locate(ns, subject.level)[0] for subject in subjects}
        images = await self._read_all(list(wanted.values()))
        found = {subject: config.decode(key, images[key]) for subject, key in wanted.items()}
        return {subject: each for subject, each in found.items() if not each.is_empty}

    async def _read_entities(self, ids: Iterable[str]) -> dict[str, Entity]:
        _, ns = await self._begin()
        images = await self._read_all([keys.meta(ns, entity_id) for entity_id in ids])
        found = [entity.decode(image) for image in images.values() if image is not None]
        return {each.id: each for each in found}

    async def _read_ancestry(self, manifest: Manifest) -> dict[str, Entity]:
        """Return the entities of a file, those that it names as parents, and all above them, as far as they exist."""
        stated = {each["parent_id"] for each in manifest.entities.values() if each.get("parent_id") is not None}
        found: dict[str, Entity] = {}
        seen: set[str] = set()
        wanted = set(manifest.entities) | stated
        while wanted:
            read = await self._read_entities(sorted(wanted))
            seen, found = seen | wanted, found | read
            wanted = {each.parent_id for each in read.values() if each.parent_id is not None} - seen
        return found

    async def _read_all(self, wanted: list[Key]) -> dict[Key, Image | None]:
        deadline, _ = await self._begin_steps()
        found: dict[Key, Image | None] = {}
        for first in range(0, len(wanted), _BATCH):
            batch = wanted[first : first + _BATCH]
            found |= zip(batch, await self._backend.read(batch, deadline), strict=True)
        return found

    async def _apply_change(self, change: Change, principal: str | None) -> None:
        if change.subject.is_entity:
            await self._apply_entity(change, str(change.subject.entity_id), principal)
            return
        work = change.subject.level, partial(_change_config, change)
        await self._change(*work, find_action(change.after), spell_fields(change.after), principal)

    async def _apply_entity(self, change: Change, entity_id: str, principal: str | None) -> None:
        """Create or update an entity, if it is still as it was when the plan was made."""
        try:
            if change.before is None:
                await self.create_entity(entity_id, **change.after, principal=principal)
                return
            seen = await self.get_entity(entity_id)
            now = entity_fields(seen, change.after)
            if seen is None or now != change.before:
                raise PlanOutdatedError([describe_conflict(change, now)])
            await self.update_entity(entity_id, **change.after, expected_version=seen.version, principal=principal)
        except EntityNotFoundError as error:  # itself, or its parent
            raise PlanOutdatedError([f"{Subject(error.entity_id)} was deleted"]) from None
        except (EntityExistsError, EntityVersionError):
            now = entity_fields(await self.get_entity(entity_id), change.after)
            if now != change.after:
                raise PlanOutdatedError([describe_conflict(change, now)]) from None


def _change_config(change: Change, seen: Config) -> Config | None:
    """Return the config after a change, None if it is so already. Raise `PlanOutdatedError` if it is a third thing."""
    now = config_fields(seen, change.after)
    if now == change.after:
        return None
    if now != change.before:
        raise PlanOutdatedError([describe_conflict(change, now)])
    after = dict(change.after)
    if "limits" in after:
        after["limits"] = after["limits"] or None
    return seen._replace(**after)
