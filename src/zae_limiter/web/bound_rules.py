"""Rules bound to one limiter: which of them are for a request, and the lease that each needs.

A rule is for a request that it is the first to match, for each way to read the path. A plain request is read in one
way, so one rule is for it. Where an app could route a request by several texts, or where a rule matches a text loosely
only, nobody knows which handler serves it: every rule that may be the one is charged, so that no spelling trades one
limit for another. A request that is astray is charged by every rule.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, TypeAlias

from .identity import Identity
from .keys import by_ip, to_identity
from .rules import FAILURES, check_cost

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

    from ..limiter.lease import Lease, SyncLease
    from ..limiter.limiter import RateLimiter
    from ..sync.facade import SyncRateLimiter
    from .fields import Fields
    from .paths import Paths
    from .request import Request
    from .rules import Cost, Key, Rule
    from .templates import Template

    AnyLease: TypeAlias = Lease | SyncLease

STORED_LIMITS = ("rpm",)
"""The limits that a plain number counts for where the limits are stored."""


class Matcher:
    """Matches the texts of one request with rules; each text belongs to the first rule that matches it."""

    __slots__ = ("_astray", "_open", "_paths")

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._astray = paths.astray
        self._open = dict.fromkeys((paths.main, *paths.others), True)
        """The texts without a rule: True where none matches at all, False where one matches, but only loosely."""

    @property
    def is_done(self) -> bool:
        """Whether there is no text left."""
        return not (self._open or self._astray)

    def limit(self, templates: Sequence[Template]) -> bool:
        """Take the texts that match; return whether there are any, or whether the request is astray."""
        found = self._astray
        for text, untouched in tuple(self._open.items()):
            loosely = [template for template in templates if template.matches_loosely(text)]
            if any(template.matches_exactly(text) for template in loosely):
                del self._open[text]
                found = True
            elif loosely and untouched:
                self._open[text] = False
                found = True
        return found

    def exempt(self, templates: Sequence[Template]) -> bool:
        """Take the main text of a plain request if it matches exactly, and return whether it does.

        Whoever spells it otherwise is limited.
        """
        main = self._paths.main
        if self._paths.plain and main in self._open and any(template.matches_exactly(main) for template in templates):
            del self._open[main]
            return True
        return False

    def take_rest(self) -> bool:
        """Take all texts; return whether an app could route by one of them."""
        found = self._paths.main in self._open if self._paths.plain else not self.is_done
        self._open.clear()
        self._astray = False
        return found


class BoundRule:
    """One rule on one limiter."""

    def __init__(
        self,
        rule: Rule,
        limiter: RateLimiter | SyncRateLimiter,
        fields: Fields,
        key: Key | None = None,
        max_wait: float | None = None,
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
        self._resource_name = rule.resource_name
        names = STORED_LIMITS if rule.limits is None else tuple(limit.name for limit in rule.limits)
        self._counted = tuple(name for name in names if fields.unit(name) == "requests") or names
        """The limits that a plain number counts for."""
        self._cost = None if callable(rule.cost) else self._expand_cost(rule.cost)
        constant = self._cost is not None and not callable(rule.resource)
        self._template = self._acquire("", self._resource_name, self._cost or {})
        """The lease of every entity, where resource and cost are ``constant``: its options are checked once."""
        self._for_entity = self._template.for_entity if constant else None

    def fits(self, request: Request, matcher: Matcher) -> bool | Awaitable[bool]:
        """Return whether the rule is for this request, and take from ``matcher`` the paths that it is for."""
        if self._verbs is not None and request.method not in self._verbs:
            return False
        templates, match = self._templates, self.rule.match
        if templates is not None:
            return matcher.exempt(templates) if self.rule.exempt else matcher.limit(templates)
        fits = match(request) if callable(match) else True
        return self._fits_later(fits, matcher) if inspect.isawaitable(fits) else bool(fits) and matcher.take_rest()

    async def _fits_later(self, fits: Awaitable[bool], matcher: Matcher) -> bool:
        return bool(await fits) and matcher.take_rest()

    def make_lease(self, request: Request) -> AnyLease | Awaitable[AnyLease]:
        """Return the lease that the request needs, not yet entered; an awaitable where the rule has to wait for it.

        Raises `SeveralKeysError`, also out of the awaitable, where the request carries several API keys.
        """
        identity = self._key(request)
        if self._for_entity is None or not isinstance(identity, Identity):
            return self._make_lease_later(identity, request)
        return self._for_entity(identity.entity_id)

    async def make_address_lease(self, request: Request) -> AnyLease:
        """Return the lease of the client's address, which pays for a request with several API keys."""
        return await self._make_lease_later(None, request)

    async def _make_lease_later(self, key: object, request: Request) -> AnyLease:
        identity = to_identity(await _wait_for(key), request)
        resource, cost = self.rule.resource, self.rule.cost
        name = await _wait_for(resource(request)) if callable(resource) else self._resource_name
        amounts = self._cost
        if amounts is None:
            amounts = self._expand_cost(check_cost(await _wait_for(cost(request) if callable(cost) else cost)))
        return self._acquire(identity.entity_id, name, amounts)

    def _acquire(self, entity_id: str, resource: str, cost: Mapping[str, int]) -> AnyLease:
        return self._limiter.acquire(entity_id, resource, cost, self.rule.limits, None, self._max_wait)

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


async def _wait_for(value: Any) -> Any:
    """Return a value that a callable of the user's has returned, awaited if need be."""
    return await value if inspect.isawaitable(value) else value
