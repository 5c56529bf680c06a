"""The registry of namespaces, which isolate tenants inside one store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from ..core import names
from ..core.errors import NamespaceNotFoundError, NamespaceStateError, ValidationError
from ..core.names import RESERVED_NAMESPACE
from ..core.values import AuditAction, Namespace, OnUnavailable
from ..records import keys, namespace as record
from ..records.algebra import Query, Write
from ..records.fields import iso
from ..runtime.deadline import Deadline
from .backend import MAX_COMMIT, Operations

T = TypeVar("T")
_CHANGED = "was changed by somebody else; try again"


class NamespaceOperations(Operations):
    """Register, list, delete, recover and purge namespaces."""

    async def register_namespace(self, namespace: str, principal: str | None = None) -> Namespace:
        """Register a namespace, unless it exists, and return it."""
        name = names.namespace(namespace)
        names.principal(principal)
        deadline = await self._deadline()
        while True:
            (image,) = await self._backend.read([keys.namespace(name)], deadline)
            if image is not None:
                return record.decode(image)
            await self._backend.check_registrable(deadline)
            made = self._backend.new_namespace(name)
            event = await self._audit_write(AuditAction.NAMESPACE_REGISTERED, made, principal, deadline)
            if await self._backend.commit([*record.register(made), event], deadline):
                return made

    async def register_namespaces(self, namespaces: Iterable[str], principal: str | None = None) -> list[Namespace]:
        """Register namespaces with the names ``namespaces`` and return them."""
        names.principal(principal)
        if isinstance(namespaces, str | bytes | Mapping) or not isinstance(namespaces, Iterable):
            raise ValidationError("namespaces", namespaces, "must be a list of names")
        checked = [names.namespace(name, "namespaces") for name in namespaces]
        return [await self.register_namespace(name, principal) for name in checked]

    async def get_namespace(self, namespace: str) -> Namespace:
        """Return the namespace. Raise `NamespaceNotFoundError` if the name ``namespace`` is not registered."""
        return await self._require_name(namespace, await self._deadline())

    async def list_namespaces(self) -> list[Namespace]:
        """Return all active namespaces, sorted by name."""
        return await self._list(keys.NAMESPACE_PREFIX)

    async def list_orphan_namespaces(self) -> list[Namespace]:
        """Return deleted namespaces whose data still exist, to be recovered or purged."""
        return [found for found in await self._list(keys.NSID_PREFIX) if found.status != record.ACTIVE]

    async def delete_namespace(self, namespace: str, principal: str | None = None) -> Namespace:
        """Free the name; the data stay until `purge_namespace`."""
        names.principal(principal)
        deadline = await self._deadline()
        found = await self._require_name(namespace, deadline)
        writes = record.delete(found, iso(self._backend.clock.now_ms()))
        event = await self._audit_write(AuditAction.NAMESPACE_DELETED, found, principal, deadline)
        await self._apply(found, [*writes, event], deadline)
        if found.name == self._backend.namespace_name:
            self._backend.leave_namespace()
        return await self._require_id(found.id, deadline)

    async def recover_namespace(self, namespace_id: str, principal: str | None = None) -> Namespace:
        """Restore a deleted namespace, by its id from `list_orphan_namespaces`, and return it."""
        names.principal(principal)
        names.stored_id(namespace_id, "namespace_id")
        deadline = await self._deadline()
        found = await self._require_id(namespace_id, deadline)
        taken = "another namespace has taken its name; only deleted namespaces can be recovered"
        event = await self._audit_write(AuditAction.NAMESPACE_RECOVERED, found, principal, deadline)
        await self._apply(found, [*record.recover(found), event], deadline, f"is {found.status}, or {taken}")
        return await self._require_id(namespace_id, deadline)

    async def purge_namespace(
        self, namespace_id: str, principal: str | None = None, on_progress: Callable[[int], None] | None = None
    ) -> int:
        """Delete all data of a deleted namespace for good. Return the number of records.

        An interrupted purge can be repeated. ``namespace_id`` is from `list_orphan_namespaces`; ``on_progress`` is
        called with the number of records deleted so far.
        """
        names.principal(principal)
        names.stored_id(namespace_id, "namespace_id")
        deadline = (await self._deadline()).for_each_step()
        found = await self._require_id(namespace_id, deadline)
        if found.status == record.ACTIVE:
            raise _state_error(found, f"Namespace {found.name!r} is active; delete it first.")
        await self._apply(found, [record.begin_purge(found)], deadline)
        count = 0
        query = Query(namespace_id, gsi="GSI4", limit=MAX_COMMIT)
        while rows := (await self._backend.collect_some(query, MAX_COMMIT, deadline))[0]:
            await self._backend.commit([Write(key, delete=True) for key, _ in rows], deadline)
            count += len(rows)
            if on_progress is not None:
                on_progress(count)
        event = await self._audit_write(AuditAction.NAMESPACE_PURGED, found, principal, deadline)
        await self._backend.commit([record.end_purge(found), event], deadline)
        return count

    async def _list(self, prefix: str) -> list[Namespace]:
        deadline = (await self._deadline()).for_each_step()
        rows = await self._backend.collect(Query(keys.REGISTRY, prefix=prefix), deadline)
        return [record.decode(image) for _, image in rows]

    async def _require_name(self, namespace: str, deadline: Deadline) -> Namespace:
        name = names.namespace(namespace)
        (image,) = await self._backend.read([keys.namespace(name)], deadline)
        if image is None:
            raise NamespaceNotFoundError(f"Namespace {name!r} is not registered.", namespace_name=name)
        return record.decode(image)

    async def _require_id(self, namespace_id: str, deadline: Deadline) -> Namespace:
        (image,) = await self._backend.read([keys.nsid(namespace_id)], deadline)
        if image is None:
            raise NamespaceNotFoundError(f"No namespace has the id {namespace_id!r}.", namespace_name=namespace_id)
        return record.decode(image)

    async def _apply(self, found: Namespace, writes: list[Write], deadline: Deadline, problem: str = _CHANGED) -> None:
        if not await self._backend.commit(writes, deadline):
            raise _state_error(found, f"Namespace {found.name!r} ({found.id}) {problem}.")

    async def _audit_write(
        self, action: AuditAction, found: Namespace, principal: str | None, deadline: Deadline
    ) -> Write:
        subject, details = keys.audit_namespace(found.name), {"namespace_id": found.id}
        who = await self._backend.principal(principal, deadline)
        return self._backend.event(RESERVED_NAMESPACE, action, subject, who, details=details)


def _state_error(found: Namespace, message: str) -> NamespaceStateError:
    return NamespaceStateError(message, namespace_name=found.name, state=found.status)


class NamespaceName(str, Generic[T]):
    """The name of the namespace. Called with another name, it opens that namespace of the same store.

    Copies and pickles of it are plain strings.
    """

    opens: Callable[[str, OnUnavailable | str | None, int | None], T]

    def __new__(cls, name: str, opens: Callable[[str, OnUnavailable | str | None, int | None], T]) -> NamespaceName[T]:
        """Return ``name``, which calls ``opens`` when it is called."""
        made = super().__new__(cls, name)
        made.opens = opens
        return made

    def __call__(
        self, name: str, *, on_unavailable: OnUnavailable | str | None = None, bucket_ttl_multiplier: int | None = None
    ) -> T:
        """Return a repository of the namespace ``name`` over the same store; closing it closes nothing.

        Raise `NamespaceNotFoundError` if it is not registered. ``on_unavailable`` is stored as what acquires of the
        namespace do when the store is unavailable. ``bucket_ttl_multiplier`` is for how many times the time that it
        takes to fill a bucket is kept after its last use; None for that of this repository.
        """
        return self.opens(name, on_unavailable, bucket_ttl_multiplier)

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str(self),)
