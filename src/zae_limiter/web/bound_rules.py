"""A rule bound to one limiter: it decides whether it is for a request, and makes the lease that the request needs."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from ..core.errors import ValidationError
from ..core.limit import check_limits
from .identity import Identity
from .keys import by_ip, to_identity
from .rules import FAILURES, check_cost

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping

    from ..core.limit import Limit
    from ..limiter.lease import Lease, SyncLease
    from ..limiter.limiter import RateLimiter
    from ..sync.facade import SyncRateLimiter
    from .fields import Fields
    from .matching import Matcher
    from .request import Request
    from .rules import Cost, Key, Rule

    AnyLease: TypeAlias = Lease | SyncLease
    AnyLimiter: TypeAlias = RateLimiter | SyncRateLimiter

T = TypeVar("T")

STORED_LIMITS = ("rpm",)
"""The limits that a plain number counts for where the limits are stored."""


class BoundRule:
    """One rule on one limiter."""

    def __init__(
        self, rule: Rule, limiter: AnyLimiter, fields: Fields, key: Key | None = None, max_wait: float | None = None
    ) -> None:
        self.rule = rule
        self._limiter = limiter
        self._max_wait = max_wait
        self._templates = rule.templates()
        self._verbs = rule.verbs()
        self.for_all = rule.match is None and self._verbs is None
        """Whether it is for every request."""
        self.by_path = self._templates is not None
        """Whether templates decide."""
        self.counts_failures = rule.count == "failures"
        self._key = rule.key or key or by_ip()
        self._resource = rule.resource if callable(rule.resource) else None
        self._resource_name = rule.resource_name
        names = STORED_LIMITS if rule.limits is None else tuple(limit.name for limit in rule.limits)
        self._counted = tuple(name for name in names if fields.unit(name) == "requests") or names
        """The limits that a plain number counts for."""
        self._cost = None if callable(rule.cost) else self._expand_cost(rule.cost)
        self._template = self._acquire("", self._resource_name, self._cost or {})
        """The lease of every entity, where resource and cost are constant: its options are checked once."""

    def fits(self, request: Request, matcher: Matcher) -> bool | Awaitable[bool]:
        """Return whether the rule is for this request, and take from ``matcher`` the paths that it is for."""
        if self._verbs is not None and request.method not in self._verbs:
            return False
        templates = self._templates
        if templates is not None:
            return matcher.exempt(templates) if self.rule.exempt else matcher.limit(templates)
        match = self.rule.match
        if not callable(match):
            return matcher.take_rest()
        fits = match(request)
        return self._fits_later(fits, matcher) if inspect.isawaitable(fits) else bool(fits) and matcher.take_rest()

    async def _fits_later(self, fits: Awaitable[bool], matcher: Matcher) -> bool:
        return bool(await fits) and matcher.take_rest()

    def make_lease(self, request: Request) -> AnyLease | Awaitable[AnyLease]:
        """Return the lease that the request needs, not yet entered; an awaitable where the rule has to wait for it.

        Raises `SeveralKeysError`, also out of the awaitable, where the request carries several API keys.
        """
        identity = self._key(request)
        if self._cost is None or self._resource is not None or not isinstance(identity, Identity):
            return self._make_lease_later(identity, request)
        return self._template.for_entity(identity.entity_id)

    async def make_address_lease(self, request: Request) -> AnyLease:
        """Return the lease of the client's address, which pays for a request with several API keys."""
        return await self._make_lease_later(None, request)

    async def _make_lease_later(self, key: object, request: Request) -> AnyLease:
        identity = to_identity(await _wait_for(key) if inspect.isawaitable(key) else key, request)
        resource = self._resource_name if self._resource is None else self._resource(request)
        if inspect.isawaitable(resource):
            resource = await _wait_for(resource)
        cost = self._cost
        if cost is None:
            cost = self._expand_cost(check_cost(await self._compute_cost(request)))
        return self._acquire(identity.entity_id, resource, cost)

    def _acquire(self, entity_id: str, resource: str, cost: Mapping[str, int]) -> AnyLease:
        return self._limiter.acquire(entity_id, resource, cost, self.rule.limits, None, self._max_wait)

    async def _compute_cost(self, request: Request) -> Cost:
        compute = self.rule.cost
        cost = compute(request) if callable(compute) else compute
        return await _wait_for(cost) if inspect.isawaitable(cost) else cost

    def _expand_cost(self, cost: Cost) -> Mapping[str, int]:
        return dict.fromkeys(self._counted, cost) if isinstance(cost, int) else cost

    def refunds(self, status: int) -> bool:
        """Return whether an answer of this status costs nothing."""
        return _contains(self.rule.refund, status)

    def is_failure(self, status: int) -> bool:
        """Return whether an answer of this status is charged where failures are counted."""
        failures = self.rule.failures
        return _contains(FAILURES if failures is None else failures, status)


def _contains(statuses: Collection[int] | Callable[[int], bool], status: int) -> bool:
    return bool(statuses(status) if callable(statuses) else status in statuses)


async def _wait_for(result: Awaitable[T]) -> T:
    return await result


class ResourceLimits:
    """The limits that rules give to resources: two rules that differ would overrule each other on one bucket."""

    def __init__(self) -> None:
        self._limits: dict[str, tuple[Limit, ...]] = {}

    def add(self, rule: Rule) -> None:
        """Check a rule beside those before it. Raises `ValidationError` where another one has different limits."""
        if rule.exempt or rule.limits is None or callable(rule.resource):
            return
        name, limits = rule.resource_name, check_limits(rule.limits)
        before = self._limits.setdefault(name, limits)
        if before != limits:
            ours, theirs = _describe_limits(limits), _describe_limits(before)
            reason = f"has limits {theirs} by one rule and {ours} by another; name one with resource="
            raise ValidationError("resource", name, reason)


def _describe_limits(limits: tuple[Limit, ...]) -> str:
    return ", ".join(f"{each.name} {each.refill_amount}/{each.refill_period_seconds} s" for each in limits)
