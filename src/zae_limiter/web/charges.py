"""A charge: a rule made ready for one limiter. It says whether it is for a request, and what that takes."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, TypeVar

from ..core.errors import ValidationError
from ..core.limit import check_limits
from ..limiter.amounts import check_amounts
from .credentials import SeveralKeysError
from .identity import Identity
from .keys import by_ip, identified
from .rules import FAILURES, check_cost

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from ..core.limit import Limit
    from ..limiter.lease import LeaseCore
    from .fields import Fields
    from .matching import Matching
    from .modes import Mode
    from .request import Request
    from .rules import Cost, Key, Rule
    from .tab import Pending, Tab

T = TypeVar("T")

STORED = ("rpm",)
"""What a plain number counts for where the limits are stored."""


class Charge:
    """One rule on one limiter."""

    def __init__(
        self, rule: Rule, mode: Mode, fields: Fields, key: Key | None = None, max_wait: float | None = None
    ) -> None:
        self.rule = rule
        self._limiter = mode.limiter
        self._lease_type = mode.lease_type
        self._templates = rule.templates()
        self._verbs = rule.verbs()
        self.for_all: bool = rule.match is None and self._verbs is None
        """Whether it is for every request."""
        self._counts_failures = rule.count == "failures"
        self._key = rule.key or key or by_ip()
        self._resource = rule.resource if callable(rule.resource) else None
        self._resource_name = rule.resource_name
        given = rule.limits
        self._options = mode.limiter._check_options(given, None, max_wait, None, None)
        named = (
            STORED if given is None else tuple(limit.name for limit in given if fields.unit(limit.name) == "requests")
        )
        self._counted = named or tuple(limit.name for limit in given or ())
        self._cost = None if callable(rule.cost) else self._amounts(rule.cost)

    @property
    def by_path(self) -> bool:
        """Whether templates decide."""
        return self._templates is not None

    def fits(self, request: Request, matching: Matching) -> bool | Awaitable[bool]:
        """Whether the rule is for this request, by what no rule before it has been found for."""
        if self._verbs is not None and request.method not in self._verbs:
            return False
        templates = self._templates
        if templates is not None:
            return matching.exempt(templates) if self.rule.exempt else matching.limit(templates)
        match = self.rule.match
        if not callable(match):
            return matching.rest()
        fits = match(request)
        return self._rest_once_known(fits, matching) if inspect.isawaitable(fits) else bool(fits) and matching.rest()

    async def _rest_once_known(self, fits: Awaitable[bool], matching: Matching) -> bool:
        return bool(await fits) and matching.rest()

    def take(self, request: Request, tab: Tab) -> Pending:
        """Take what the request needs, on its tab; where failures are counted, only look whether it is there.

        For a request with several API keys that is the client's address's, and then the request is refused.
        """
        if self.rule.exempt:
            return None
        try:
            identity = self._key(request)
        except SeveralKeysError as error:
            tab.refuse(error)
            identity = identified(None, request)
        if self._counts_failures:
            return self._watch(identity, request, tab)
        cost = self._cost
        if cost is None or self._resource is not None or not isinstance(identity, Identity):
            return self._take_once_known(identity, request, tab)
        lease = self._lease_type(self._limiter, identity.entity_id, self._resource_name, cost, self._options)
        return tab.take(lease, self)

    async def _watch(self, found: object, request: Request, tab: Tab) -> None:
        await tab.watch(await self._lease_once_known(found, request, tab), self)

    async def _take_once_known(self, found: object, request: Request, tab: Tab) -> None:
        pending = tab.take(await self._lease_once_known(found, request, tab), self)
        if pending is not None:
            await pending

    async def _lease_once_known(self, found: object, request: Request, tab: Tab) -> LeaseCore:
        try:
            return await self._made(found, request)
        except SeveralKeysError as error:
            tab.refuse(error)
        return await self._made(None, request)

    async def lease(self, request: Request) -> tuple[LeaseCore, SeveralKeysError | None]:
        """The lease that the request needs, not yet entered; of several API keys that of the address, and the error."""
        try:
            return await self._made(self._key(request), request), None
        except SeveralKeysError as error:
            return await self._made(None, request), error

    async def _made(self, found: object, request: Request) -> LeaseCore:
        identity = identified(await _value(found) if inspect.isawaitable(found) else found, request)
        resource = self._resource_name if self._resource is None else await self._named(self._resource, request)
        cost = self._cost
        if cost is None:
            cost = self._amounts(check_cost(await self._priced(request)))
        return self._lease_type(self._limiter, identity.entity_id, resource, cost, self._options)

    async def _named(self, resource: Callable[[Request], str | Awaitable[str]], request: Request) -> str:
        made = resource(request)
        return await _value(made) if inspect.isawaitable(made) else made

    async def _priced(self, request: Request) -> Cost:
        price = self.rule.cost
        if not callable(price):
            return price
        cost = price(request)
        return await _value(cost) if inspect.isawaitable(cost) else cost

    def _amounts(self, cost: Cost) -> dict[str, int]:
        return check_amounts("cost", dict.fromkeys(self._counted, cost) if isinstance(cost, int) else cost)

    def refunds(self, status: int) -> bool:
        """Whether an answer of this status costs nothing."""
        return _holds(self.rule.refund, status)

    def is_failure(self, status: int) -> bool:
        """Whether an answer of this status is charged where failures are counted."""
        failures = self.rule.failures
        return _holds(FAILURES if failures is None else failures, status)


def _holds(statuses: Collection[int] | Callable[[int], bool], status: int) -> bool:
    return bool(statuses(status) if callable(statuses) else status in statuses)


async def _value(result: Awaitable[T]) -> T:
    return await result


class Resources:
    """The limits that rules give to resources: two rules that differ would overrule each other on one bucket."""

    def __init__(self) -> None:
        self._limits: dict[str, tuple[Limit, ...]] = {}

    def add(self, rule: Rule) -> None:
        """Check a rule beside those before it."""
        if rule.exempt or rule.limits is None or callable(rule.resource):
            return
        name, limits = rule.resource_name, check_limits(rule.limits)
        before = self._limits.setdefault(name, limits)
        if before != limits:
            reason = f"has limits {_shown(before)} by one rule and {_shown(limits)} by another; name one with resource="
            raise ValidationError("resource", name, reason)


def _shown(limits: tuple[Limit, ...]) -> str:
    return ", ".join(f"{each.name} {each.refill_amount}/{each.refill_period_seconds} s" for each in limits)
