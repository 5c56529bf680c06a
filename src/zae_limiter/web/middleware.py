"""The middleware for ASGI and WSGI: tokens are taken for a request or it is refused, and clients are told what is left.

The modules of the protocols only say when an answer has begun and when it has ended.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from ..core.errors import CapacityExceeded, RateLimitExceeded, ResourceDisabled, ValidationError
from ..core.kinds import describe_limit
from ..core.limit import Limit
from ..core.production import MILLI
from ..limiter.limiter import RateLimiter
from . import answers
from .answers import Answer
from .fields import Fields
from .keys import SeveralKeysError
from .paths import LONGEST, PathTooLong, Prefixes
from .proxies import Proxies
from .request import Request
from .request_leases import Pending, RequestLeases, find_leases, finish
from .rules import BoundRule, Key, Matcher, Rule, check_key

if TYPE_CHECKING:
    from ..sync.facade import SyncRateLimiter


Respond: TypeAlias = Callable[[Request, Answer, Exception], Any]

AppT = TypeVar("AppT")
LimiterT = TypeVar("LimiterT", "RateLimiter", "SyncRateLimiter")


class Middleware(Generic[AppT, LimiterT]):
    """An app whose requests are limited. `zae_limiter.web.asgi.RateLimitMiddleware` explains the parameters."""

    def __init__(
        self,
        app: AppT,
        limiter: LimiterT | str,
        *,
        limits: Sequence[Limit] | None = None,
        rules: Sequence[Rule] | None = None,
        key: Key | None = None,
        proxies: Proxies | int | Sequence[str] | None = None,
        headers: Fields | str | Sequence[str] | None = "ietf",
        respond: Respond | None = None,
        prefixes: Sequence[str] | None = None,
        free_slots: str = "before",
    ) -> None:
        self.app = app
        self.limiter: LimiterT = open_limiter(limiter, self._limiter_type())
        self.proxies: Proxies = Proxies.of(proxies)
        self.fields: Fields = Fields.of(headers)
        self.prefixes: Prefixes = Prefixes(prefixes, app)
        every = _check_rules(rules, limits)
        check_key(key)
        if respond is not None and not callable(respond):
            raise ValidationError("respond", respond, "must be a callable of (request, answer, error)")
        if free_slots not in ("before", "after"):
            raise ValidationError("free_slots", free_slots, "must be 'before' or 'after'")
        self.frees_late = free_slots == "after"
        self._opened_here = isinstance(limiter, str)
        self._clock = self.limiter.repository.store.clock
        self._key = key
        self._respond = respond
        self._limits: dict[str, tuple[Limit, ...]] = {}
        """The limits that rules give to resources."""
        bound = [self.bind(rule) for rule in every]
        self._rules = [each for each in bound if not each.counts_failures]
        counting = any(each.counts_failures for each in bound)
        self._failure_rules = [each for each in bound if counting and (each.counts_failures or each.rule.exempt)]
        """The rules that are checked before anything is taken; a request that is exempt is exempt from both."""
        self._only_rule = self._rules[0] if self._rules and self._rules[0].for_all and not counting else None
        """The rule of every request, if the first one is for all."""
        self._by_path = any(each.by_path for each in bound)

    def _limiter_type(self) -> type[LimiterT]:
        """Return the class of limiter that serves this kind of app."""
        raise NotImplementedError

    async def _close_store(self) -> None:
        """Close the store of a limiter that was opened here. The next request opens it again.

        A server may end the lifespan of an app that goes on serving: an app without lifespan ends it at once.
        """
        if self._opened_here:
            await self.limiter.repository.store.close()

    def bind(self, rule: Rule) -> BoundRule:
        """Bind a rule to the limiter.

        Raises `ValidationError` if another one has different limits: they would overrule each other on one bucket.
        """
        if not (rule.exempt or rule.limits is None or callable(rule.resource)):
            ours = tuple(rule.limits)
            before = self._limits.setdefault(rule.resource_name, ours)
            if before != ours:
                theirs, these = (", ".join(map(describe_limit, limits)) for limits in (before, ours))
                reason = f"has limits {theirs} by one rule and {these} by another; name one with resource="
                raise ValidationError("resource", rule.resource_name, reason)
        return BoundRule(rule, self.limiter, self.fields, self._key)

    def admit(self, request: Request, leases: RequestLeases) -> Pending:
        """Take what the rules that are for the request ask for. Raises one of `REFUSALS` if that is not there."""
        rule = self._only_rule
        return self._admit_by_rules(request, leases) if rule is None else leases.take_for(rule, request)

    async def _admit_by_rules(self, request: Request, leases: RequestLeases) -> None:
        if self._by_path and len(request.full_path) > LONGEST:
            raise PathTooLong(len(request.full_path))
        for rules in filter(None, (self._failure_rules, self._rules)):
            matcher, chosen = Matcher(request.paths), []
            for rule in rules:
                if matcher.is_done:
                    break
                fits = rule.fits(request, matcher)
                if fits is True or (fits is not False and await fits):
                    chosen.append(rule)
            for rule in reversed(chosen):  # the last one first, so that `lease_of` gives the lease of the first one
                await finish(leases.take_for(rule, request))
        if leases.refusal is not None:  # by a rule for failures, if no other rule is for the request
            raise leases.refusal

    def lines(self, leases: RequestLeases) -> list[tuple[str, str]]:
        """Return the header lines that tell a client whose request was granted how much is left."""
        fields = self.fields
        if not (fields.profiles and leases.leases):
            return []
        now_ms = self._clock.now_ms()
        return fields.lines(fields.view_leases(leases.leases, now_ms), now_ms)

    def answer(self, error: Exception) -> Answer:
        """Return the answer to a refused client; ``error`` is one of `REFUSALS`."""
        if isinstance(error, RateLimitExceeded):
            statuses = error.list_fields()
            views, hidden = self.fields.view_statuses(statuses)
            if not isinstance(error, CapacityExceeded):
                hidden_ms = 0 if len(views) == len(statuses) else round((error.retry_after_seconds or 0) * MILLI)
                return answers.quota_exceeded(views, self._clock.now_ms(), self.fields, hidden_ms, hidden)
            for status, view in zip(error.statuses, views, strict=False):  # hidden levels come last
                if status.requested + status.floor > status.limit.capacity:
                    return answers.cost_above_capacity(view.name, view.limit.capacity, status.requested)
            requested = max((each.requested for each in error.violations), default=0)
            return answers.cost_above_capacity(next(iter(hidden), None), None, requested)
        if isinstance(error, ResourceDisabled):
            return answers.disabled()
        if isinstance(error, PathTooLong):
            return answers.path_too_long(LONGEST)
        if isinstance(error, SeveralKeysError):
            return answers.several_keys()
        return answers.unavailable(fields=self.fields)

    async def respond(self, request: Request, answer: Answer, error: Exception) -> Any:
        """Return what the app's own responder makes of an answer: another `Answer`, or an app of its kind."""
        made = answer if self._respond is None else self._respond(request, answer, error)
        if inspect.isawaitable(made):
            made = await made
        return answer if made is None else made


def open_limiter(limiter: LimiterT | str, kind: type[LimiterT]) -> LimiterT:
    """Return a limiter, opened if ``limiter`` is the URL of a store. Raises `ValidationError` for anything else."""
    opened = kind(limiter) if isinstance(limiter, str) else limiter
    if not isinstance(opened, kind):
        raise ValidationError("limiter", limiter, f"must be a {kind.__name__} or a store URL such as 'memory://'")
    return opened


def _check_rules(rules: Sequence[Rule] | None, limits: Sequence[Limit] | None) -> list[Rule]:
    """Return all rules: the given ones, and after them the limits for everything else.

    Raise `ValidationError` if two rules without a ``resource`` would share tokens because their names are alike.
    """
    if isinstance(rules, Rule):
        raise ValidationError("rules", rules, "must be a list; put brackets around it")
    if rules is not None and not isinstance(rules, Iterable):
        raise ValidationError("rules", rules, "must be a list of rules")
    every = list(rules or ())
    for rule in every:
        if not isinstance(rule, Rule):
            raise ValidationError("rules", rule, "must be a Rule, e.g. Rule('/v1/*', limits=[...])")
    every += [] if limits is None else [Rule(limits=limits)]
    unnamed = Counter(rule.resource_name for rule in every if not rule.exempt and rule.resource is None)
    for name, count in unnamed.items():
        if count > 1:
            reason = "is the default name of two rules, which would share their tokens; name one with resource="
            raise ValidationError("resource", name, reason)
    return every


def answer_of(request: Any, error: Exception) -> Answer:
    """Return what the middleware would answer to a refusal, for frameworks that catch exceptions before it sees them.

    ``request`` is an ASGI scope, a WSGI environment, or the request object of a framework; ``error`` the refusal.
    """
    middleware: Middleware[Any, Any] = find_leases(request).middleware
    return middleware.answer(error)
