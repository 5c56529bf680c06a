"""Top up and reset buckets: what a support desk does, each of it exactly once if it is asked for with a key."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ..core import names
from ..core.errors import CorruptRecordError, ValidationError
from ..core.limit import MAX_AMOUNT, whole
from ..core.production import FOR_EVER, MILLI
from ..core.values import AuditAction
from ..records import bucket, keys, once
from ..records.algebra import ABSENT, Committed, Image, Key, Write
from ..records.bucket import Shards
from ..records.credits import add_credit, fill_up, free_more, prepare_filling
from ..records.fields import iso
from ..records.level import NEWEST, SHARDS
from ..records.slot_states import stored_slot_names
from ..records.splitting import MAX_SHARDS
from ..runtime.deadline import Deadline
from ..runtime.retries import tries
from ..runtime.serials import serials
from .backend import MAX_COMMIT, Backend
from .buckets import TRIES, BucketOperations, try_often
from .history import parse_moment
from .resolving import read_policy

if TYPE_CHECKING:
    from ..core.reports import BucketOperationResult

_MAX_KEY = 256
_MAX_INSTANT_MS = 253_402_300_799_999
"""The last millisecond of the year 9999: no later one has a date."""
_AHEAD_MS = 1_000
"""A bucket whose newest charge is further ahead than this, in ms, was charged before the clock was set back."""


class Request(NamedTuple):
    """A change of a bucket that was asked for.

    ``record`` tells whether it was made before, if it has a key; ``details`` go into the audit log.
    """

    deadline: Deadline
    ns: str
    entity_id: str
    resource: str
    action: AuditAction
    asked: Mapping[str, Any]
    principal: str | None
    idempotency_key: str | None
    record: Key | None
    details: Mapping[str, Any] = {}

    @property
    def bucket(self) -> tuple[str, str, str]:
        """Namespace, entity and resource."""
        return self.ns, self.entity_id, self.resource

    @property
    def limits(self) -> list[str] | None:
        """The names of the limits to fill up; None for all."""
        return self.asked["limits"] or None


class CreditOperations(BucketOperations):
    """Top up and reset buckets."""

    async def top_up(
        self,
        entity_id: str,
        resource: str,
        amounts: Mapping[str, int],
        *,
        expires_at: datetime | str | None = None,
        idempotency_key: str | None = None,
        principal: str | None = None,
    ) -> BucketOperationResult:
        """Give an entity credit: tokens that are spent when the allowance of a limit is used up.

        ``amounts`` are whole tokens by limit name. ``expires_at`` is when they expire, a datetime with a time zone or a
        text such as 2026-12-31T00:00:00Z; None for never. With the same ``idempotency_key`` it is done only once within
        three days at least: then the result of the first time is returned, whatever ``expires_at`` is by now.
        """
        tokens, expires_ms = _check_amounts(amounts), _check_moment(expires_at)
        whose, asked = (entity_id, resource, AuditAction.BUCKET_TOPPED_UP), {"amounts": tokens}
        request = await self._begin_request(whose, asked, principal, idempotency_key)
        expiry = None if expires_ms == FOR_EVER else iso(expires_ms)
        request = request._replace(details={**asked, "expires_at": expiry})
        backend, key = self._backend, keys.bucket(*request.bucket)
        for _ in try_often(entity_id):
            done = await self._find_result(request)
            if done is not None:
                return done
            now_ms = backend.clock.now_ms()
            if expires_ms <= now_ms:  # else it is a retry: the credit was there, and has expired
                raise ValidationError("expires_at", expires_at, f"must be in the future; it is {iso(now_ms)} now")
            (image,) = await backend.read([key], request.deadline)
            image = None if image is None else bucket.inspect(key, image)
            await self._check_limits(request, "amounts", tokens, [image or {}])
            milli = {name: amount * MILLI for name, amount in tokens.items()}
            serial = next(serials) % MILLI
            write = add_credit(key, image, milli, expires_ms, backend.clock.now_ms(), serial)
            result = _result(request, 1 if image is None else image.get(SHARDS, 1), tokens)
            if await self._commit_request(request, [write], result):
                break
        return result

    async def reset_bucket(
        self,
        entity_id: str,
        resource: str,
        limits: Collection[str] | None = None,
        principal: str | None = None,
        idempotency_key: str | None = None,
    ) -> BucketOperationResult:
        """Fill a bucket up, all its shards at once; credits stay as they are.

        Slots of concurrency limits are freed: their holders lose them.

        ``limits`` are the names of the limits to fill up; None for all, which also repairs a damaged bucket.
        With the same ``idempotency_key`` it is done only once within three days at least: then the result of the first
        time is returned.
        """
        wanted = [] if limits is None else _check_names(limits)
        whose = entity_id, resource, AuditAction.BUCKET_RESET
        request = await self._begin_request(whose, {"limits": wanted}, principal, idempotency_key)
        request = request._replace(details={"limit_names": wanted} if wanted else {})
        for number in try_often(entity_id):
            result = await self._find_result(request) or await self._reset(request, exact=number < TRIES - 1)
            if result is not None:
                break
        assert result is not None  # else the tries have run out
        return result

    async def _begin_request(
        self, whose: tuple[str, str, AuditAction], asked: Mapping[str, Any], principal: str | None, key: str | None
    ) -> Request:
        """Check the names of a request, and find the namespace and the record of its key."""
        entity_id, resource, action = whose
        names.entity_id(entity_id)
        names.resource(resource)
        if key is not None and not 0 < len(names.text(key, "idempotency_key")) <= _MAX_KEY:
            raise ValidationError("idempotency_key", key, f"must have 1 to {_MAX_KEY} characters")
        deadline, ns, who = await self._begin_change(principal)
        record = None if key is None else once.key_of(ns, entity_id, key)
        asked = {"action": action.value, "resource": resource, **asked}
        return Request(deadline, ns, *whose, asked, who, key, record)

    async def _find_result(self, request: Request) -> BucketOperationResult | None:
        """Return the result of an earlier request with the same key, or None if there was none.

        Raise `ValidationError` if that asked for something else.
        """
        (image,) = (None,) if request.record is None else await self._backend.read([request.record], request.deadline)
        if image is None:
            return None
        asked, result, event = once.decode(image)
        if not asked.items() <= request.asked.items():  # one of an upgraded table does not say everything
            reason = f"was used for another request, {asked}; use a new key for a new request"
            raise ValidationError("idempotency_key", request.idempotency_key, reason)
        if event:  # the writer of the record may have been interrupted before it
            await self._record_event(request, event)
        return _result(request, result["shards"], result["amounts"])

    async def _check_limits(
        self, request: Request, field: str, limits: Collection[str], images: Collection[Image]
    ) -> None:
        """Raise `ValidationError` for a limit that the entity does not have, if it is known which it has.

        It has those of its config, and those in the ``images`` of its bucket. Raise it also for ``amounts`` of a
        concurrency limit.
        """
        policy = await read_policy(self._backend, *request.bucket, request.deadline)
        config = policy.resolved.limits or ()
        stated, slotted = {limit.name for limit in config}, {limit.name for limit in config if limit.is_concurrency}
        slotted |= stored_slot_names(images) - stated
        stored = {name for image in images for name in bucket.stored_names(image)} - {names.INFRASTRUCTURE_LIMIT}
        known = stated | stored | slotted
        for name in limits:
            if known and name not in known:
                raise ValidationError(field, name, f"no such limit; there are {', '.join(sorted(known))}")
            if field == "amounts" and name in slotted:
                reason = "is a concurrency limit, whose slots come back and are not used up; raise the limit instead"
                raise ValidationError(field, name, reason)

    async def _reset(self, request: Request, *, exact: bool) -> BucketOperationResult | None:
        """Fill a bucket up; return None if a race was lost.

        It is deleted instead if it is damaged, or was charged before the clock was set back: the next one starts now.
        """
        limits, shards = request.limits, list[tuple[Key, Image]]()
        try:
            shards = await self._read_shards(request)
            is_sound = limits is not None or set(await self._list_records(request)) <= dict(shards).keys()
        except CorruptRecordError:
            if limits is not None:
                raise
            is_sound = False
        if not is_sound:
            result = _result(request, 0, {})
            return result if await self._forget(request, result, exact=exact) else None
        if limits is not None:
            await self._check_limits(request, "limits", limits, [image for _, image in shards])
        shards = await self._prepare_filling(request, shards)
        now_ms = self._backend.clock.now_ms()
        filled = [fill_up(key, image, limits, now_ms) for key, image in shards]
        gains: dict[str, int] = {}
        for _, gained in filled:
            gains = {name: gains.get(name, 0) + gained.get(name, 0) for name in gains | gained}
        result = _result(request, len(shards), {name: -(-milli // MILLI) for name, milli in gains.items()})
        if limits is None and any(image.get(NEWEST, 0) > now_ms + _AHEAD_MS for _, image in shards):
            return result if await self._forget(request, result, exact=exact) else None
        if not await self._fill(request, [write for write, _ in filled], result):
            return None
        await self._free_rest(request, shards)
        return result

    async def _prepare_filling(self, request: Request, shards: Shards) -> Shards:
        """Move shards to the limits under which they are to be filled up, and return them."""
        backend = self._backend
        policy = await read_policy(backend, *request.bucket, request.deadline)
        limits = policy.resolved.limits or ()
        moves = [prepare_filling(key, image, limits, backend.clock.now_ms()) for key, image in shards]
        if not any(moves):
            return shards
        for write in filter(None, moves):  # where a race is lost, another client has moved it
            await backend.commit([write], request.deadline)
            backend.last_seen.forget(write.key)
        return await self._read_shards(request)

    async def _forget(self, request: Request, result: BucketOperationResult, *, exact: bool) -> bool:
        """Delete a damaged bucket with all its shards: the next one starts full. Return False if a race was lost."""
        try:
            found = await self._list_records(request)
        except CorruptRecordError:  # whatever shards there may be
            found = [keys.bucket(*request.bucket, shard) for shard in range(1, MAX_SHARDS)]
        event, noted = self._plan_notes(request, result)
        apart = bool(noted) and not self._backend.store.capabilities.wide_commits
        buckets = [keys.bucket(*request.bucket), *found]
        writes = [*noted, *([] if apart else [event])]
        if not await self._commit_forgetting(writes, buckets, request.deadline, exact=exact):
            return False
        if apart:
            await self._record_event(request, event.put)
        return True

    async def _fill(self, request: Request, writes: list[Write], result: BucketOperationResult) -> bool:
        """Fill all shards in one commit, and after it those that do not fit into one."""
        backend, room = self._backend, MAX_COMMIT - 2
        if not await self._commit_request(request, writes[:room], result):
            return False
        for key in [late.key for late in writes[room:]]:
            await backend.change([key], partial(_plan_filling, backend, key, request.limits), request.deadline)
            backend.last_seen.forget(key)
        return True

    async def _free_rest(self, request: Request, shards: Shards) -> None:
        """Free the slots that were more than one write frees."""
        for key, before in shards:
            image: Image | None = before
            for _ in tries(key.pk):
                write = None if image is None else free_more(key, before, image, request.limits)
                if write is None:
                    break
                await self._backend.commit([write], request.deadline)
                self._backend.last_seen.forget(key)
                (image,) = await self._backend.read([key], request.deadline)

    async def _read_shards(self, request: Request) -> Shards:
        """Return all shards of a bucket: the first one says how many there are. Raise CorruptRecordError."""
        found: Shards = []
        count = 1
        while len(found) < count:
            wanted = [keys.bucket(*request.bucket, shard) for shard in range(len(found), count)]
            images = await self._backend.read(wanted, request.deadline)
            pairs = zip(wanted, images, strict=True)
            known = [(key, bucket.inspect(key, image)) for key, image in pairs if image is not None]
            found += known
            if len(known) < len(wanted):
                break
            count = found[0][1].get(SHARDS, 1)
        return found

    async def _list_records(self, request: Request) -> list[Key]:
        """Return the keys of a bucket's records, none where nothing splits them. Raise CorruptRecordError."""
        if not self._backend.store.capabilities.partition_writes:
            return []
        query = keys.buckets_of_entity(*request.bucket)
        return [key for key, _ in await self._backend.collect(query, request.deadline)]

    def _plan_notes(self, request: Request, result: BucketOperationResult) -> tuple[Write, list[Write]]:
        """Return the audit event of a request, and the record of its key, if it has one."""
        backend = self._backend
        event = backend.event(
            request.ns, request.action, request.entity_id, request.principal, request.resource, request.details
        )
        if request.record is None:
            return event, []
        kept: Mapping[str, Any] = {} if backend.store.capabilities.wide_commits else event.put
        done = {"shards": result.shards, "amounts": dict(result.amounts)}
        return event, [once.record(request.record, request.ns, request.asked, done, kept, backend.clock.now_ms())]

    async def _commit_request(self, request: Request, writes: list[Write], result: BucketOperationResult) -> bool:
        """Commit changes of a bucket with the event and the record of the request; return False if a race was lost.

        Where a commit cannot span both, the event follows; a repeated request writes it if it is missing.
        """
        backend = self._backend
        event, noted = self._plan_notes(request, result)
        able = backend.store.capabilities
        backend.check_usable()
        notes = [event, *noted] if able.wide_commits else noted
        outcome = await backend.store.commit([*writes, *notes], timeout=request.deadline.left())
        if not isinstance(outcome, Committed):
            return False
        for write, image in zip(writes, outcome.images, strict=False):
            backend.last_seen.forget(write.key)
            if image is not None:
                backend.last_seen.of(write.key).show(bucket.inspect(write.key, image), backend.clock.now_ms())
        if not able.wide_commits:
            await self._record_event(request, event.put)
        return True

    async def _record_event(self, request: Request, event: Mapping[str, Any]) -> None:
        """Write an audit event, unless it is there."""
        backend = self._backend
        expires_ms = backend.clock.now_ms() + backend.audit_retention_days * 86_400_000
        key = keys.audit(request.ns, request.entity_id, event["event_id"])
        await backend.commit([Write(key, (ABSENT,), event, expires_at_ms=expires_ms)], request.deadline)


def _plan_filling(
    backend: Backend, key: Key, limits: Collection[str] | None, images: Collection[Image | None]
) -> list[Write]:
    return [fill_up(key, image, limits, backend.clock.now_ms())[0] for image in images if image is not None]


def _result(request: Request, shards: int, amounts: Mapping[str, int]) -> BucketOperationResult:
    from ..core.reports import BucketOperationResult

    return BucketOperationResult(request.entity_id, request.resource, shards, dict(amounts))


def _check_amounts(amounts: object) -> dict[str, int]:
    """Return whole tokens by limit name. Raise `ValidationError` if it is not that."""
    if not isinstance(amounts, Mapping) or not amounts:
        raise ValidationError("amounts", amounts, "must map limit names to whole numbers, e.g. {'tpm': 50_000}")
    return {
        names.limit_name(name, "amounts"): whole(f"amounts[{name!r}]", amount, 1, MAX_AMOUNT, "tokens")
        for name, amount in amounts.items()
    }


def _check_names(limits: object) -> list[str]:
    if isinstance(limits, str | Mapping) or not isinstance(limits, Collection) or not limits:
        raise ValidationError("limits", limits, "must be names of limits, e.g. ['tpm'], or None for all")
    return sorted({names.limit_name(name, "limits") for name in limits})


def _check_moment(moment: object) -> int:
    """Return a moment in milliseconds, `FOR_EVER` for None.

    Raise `ValidationError` if it has no time zone, or is after the year 9999.
    """
    if moment is None:
        return FOR_EVER
    instant_ms = round(parse_moment("expires_at", moment).timestamp() * 1000)
    if instant_ms > _MAX_INSTANT_MS:
        raise ValidationError("expires_at", moment, "must be in the year 9999 UTC at the latest; use None for never")
    return max(0, instant_ms)  # one before 1970 is as late as that
