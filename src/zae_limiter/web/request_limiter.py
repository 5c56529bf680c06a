"""Limiting a request: tokens are taken for it or it is refused, and clients are told how much is left."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from ..core.bucket import MILLI
from ..core.errors import CapacityExceeded, RateLimitExceeded, ValidationError
from . import answers
from .bound_rules import BoundRule, ResourceLimits
from .credentials import SeveralKeysError
from .fields import Fields
from .limit_views import view_leases, view_statuses
from .matching import Matcher
from .paths import LONGEST, PathTooLong
from .proxies import Proxies
from .request_leases import find_in_request, finish
from .rules import Rule, check_key

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..core.limit import Limit
    from .answers import Answer
    from .bound_rules import AnyLimiter
    from .request import Request
    from .request_leases import Pending, RequestLeases
    from .rules import Key

    Respond: TypeAlias = Callable[[Request, Answer, Exception], Any]

LIMITER = "zae_limiter.limiter"
"""The key of a request's `RequestLimiter`, in an ASGI scope or a WSGI environment."""


class RequestLimiter:
    """Limits the requests of one middleware by its rules; the same on ASGI and WSGI."""

    def __init__(
        self,
        limiter: AnyLimiter,
        rules: Sequence[Rule] | None,
        limits: Sequence[Limit] | None,
        key: Key | None,
        proxies: Proxies,
        fields: Fields,
        respond: Respond | None,
    ) -> None:
        every = _check_rules(rules, limits)
        check_key(key)
        if respond is not None and not callable(respond):
            raise ValidationError("respond", respond, "must be a callable of (request, answer, error)")
        self.limiter = limiter
        self.fields = fields
        self.proxies = proxies
        self._clock = limiter.repository.store.clock
        self._key = key
        self._respond = respond
        self._resource_limits = ResourceLimits()
        bound = [self.bind(rule) for rule in every]
        self._rules = [each for each in bound if not each.counts_failures]
        self._failure_rules = [each for each in bound if each.counts_failures or each.rule.exempt]
        """The rules that are checked before anything is taken; a request that is exempt is exempt from both."""
        self._counts_failures = any(each.counts_failures for each in bound)
        self._only_rule = self._rules[0] if self._rules and self._rules[0].for_all else None
        """The rule of every request, where the first one is for all."""
        self._by_path = any(each.by_path for each in bound)

    def bind(self, rule: Rule) -> BoundRule:
        """Bind a rule to this limiter. Raises `ValidationError` where it contradicts another one."""
        self._resource_limits.add(rule)
        return BoundRule(rule, self.limiter, self.fields, self._key)

    def admit(self, request: Request, leases: RequestLeases) -> Pending:
        """Take what the rules that are for the request ask for. Raises one of `REFUSALS` where that is not there."""
        rule = self._only_rule
        if rule is not None and not self._counts_failures:
            return leases.take_for(rule, request)
        return self._admit_by_rules(request, leases)

    async def _admit_by_rules(self, request: Request, leases: RequestLeases) -> None:
        if self._by_path and len(request.full_path) > LONGEST:
            raise PathTooLong(len(request.full_path))
        if self._counts_failures:
            await _take(self._failure_rules, request, leases)
        await _take(self._rules, request, leases)
        if leases.refusal is not None:  # by a rule for failures, where no other rule is for the request
            raise leases.refusal

    def lines(self, leases: RequestLeases) -> list[tuple[str, str]]:
        """Return the header lines that tell a client whose request was granted how much is left."""
        fields = self.fields
        if not (fields.profiles and leases.leases):
            return []
        return fields.lines(view_leases(leases.leases, fields.policy_name), self._clock.now_ms())

    def answer(self, error: Exception) -> Answer:
        """Return the answer to a refused client; ``error`` is one of `REFUSALS`."""
        if isinstance(error, CapacityExceeded):
            return self._answer_capacity(error)
        if isinstance(error, RateLimitExceeded):
            return self._answer_quota(error)
        if isinstance(error, PathTooLong):
            return answers.path_too_long(LONGEST)
        if isinstance(error, SeveralKeysError):
            return answers.several_keys()
        return answers.unavailable(fields=self.fields)

    def _answer_quota(self, error: RateLimitExceeded) -> Answer:
        statuses = error.statuses
        views = view_statuses(statuses, self.fields.policy_name)
        hidden_ms = 0 if len(views) == len(statuses) else round((error.retry_after_seconds or 0) * MILLI)
        return answers.quota_exceeded(views, self._clock.now_ms(), self.fields, hidden_ms)

    def _answer_capacity(self, error: CapacityExceeded) -> Answer:
        """Tell the first limit that is too small and that clients are told of."""
        for status, view in zip(error.statuses, view_statuses(error.statuses, self.fields.policy_name), strict=False):
            if status.requested > status.limit.capacity:
                return answers.cost_above_capacity(view.name, view.limit.capacity, status.requested)
        return answers.cost_above_capacity(None, None, max((each.requested for each in error.violations), default=0))

    async def respond(self, request: Request, error: Exception) -> Any:
        """Return the answer, or what the app's own responder makes of it: another `Answer`, or an app of its kind."""
        answer = self.answer(error)
        if self._respond is None:
            return answer
        made = self._respond(request, answer, error)
        if inspect.isawaitable(made):
            made = await made
        return answer if made is None else made


async def _take(rules: Sequence[BoundRule], request: Request, leases: RequestLeases) -> None:
    """Choose the rules that are for the request, then take what they ask for."""
    matcher, chosen = Matcher(request.paths), []
    for rule in rules:
        if matcher.is_done:
            break
        fits = rule.fits(request, matcher)
        if fits is True or (fits is not False and await fits):
            chosen.append(rule)
    for rule in reversed(chosen):  # the last one first, so that `lease_of` gives the lease of the first one
        await finish(leases.take_for(rule, request))


def _check_rules(rules: Sequence[Rule] | None, limits: Sequence[Limit] | None) -> list[Rule]:
    """Return all rules: the given ones, and after them the limits for everything else."""
    if isinstance(rules, Rule):
        raise ValidationError("rules", rules, "must be a list; put brackets around it")
    if rules is not None and not isinstance(rules, Iterable):
        raise ValidationError("rules", rules, "must be a list of rules")
    every = list(rules or ())
    for rule in every:
        if not isinstance(rule, Rule):
            raise ValidationError("rules", rule, "must be a Rule, e.g. Rule('/v1/*', limits=[...])")
    return every if limits is None else [*every, Rule(limits=limits)]


def find_limiter(request: Any) -> RequestLimiter:
    """Return the limiter of a request. Raises `ValidationError` where it has not come through the middleware."""
    return find_in_request(request, LIMITER, RequestLimiter)


def answer_of(request: Any, error: Exception) -> Answer:
    """Return what the middleware would answer to a refusal, for frameworks that catch exceptions before it sees them.

    ``request`` is an ASGI scope, a WSGI environment, or the request object of a framework; ``error`` the refusal.
    """
    return find_limiter(request).answer(error)
