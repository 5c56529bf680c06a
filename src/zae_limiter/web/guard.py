"""The guard: a request comes in, tokens are taken for it or it is refused, and clients are told where they stand."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from ..core.errors import CapacityExceeded, RateLimiterUnavailable, RateLimitExceeded, ValidationError
from . import answers
from .admission import Admission
from .charges import Charge, Resources
from .credentials import SeveralKeysError
from .fields import Fields
from .paths import LONGEST, PathTooLong
from .proxies import Proxies
from .rules import Rule, check_key
from .standings import standings, standings_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..core.limit import Limit
    from .answers import Answer
    from .modes import Mode
    from .request import Request
    from .rules import Key
    from .tab import Pending, Tab

    Respond: TypeAlias = Callable[[Request, Answer, Exception], Any]

REFUSALS = (RateLimitExceeded, RateLimiterUnavailable, PathTooLong, SeveralKeysError)
"""What the middleware answers by itself."""


class Guard:
    """What both middlewares share: rules, what clients are told, and whom to believe about addresses."""

    def __init__(
        self,
        mode: Mode,
        rules: Sequence[Rule] | None,
        limits: Sequence[Limit] | None,
        key: Key | None,
        proxies: Proxies,
        fields: Fields,
        respond: Respond | None,
    ) -> None:
        every = _checked(rules, limits)
        check_key(key)
        if respond is not None and not callable(respond):
            raise ValidationError("respond", respond, "must be a callable of (request, answer, error)")
        self.mode = mode
        self.fields = fields
        self.proxies = proxies
        self._key = key
        self._resources = Resources()
        for rule in every:
            self._resources.add(rule)
        charges = [Charge(rule, mode, self.fields, key) for rule in every]
        self._charges = [charge for charge in charges if charge.rule.count == "requests"]
        self._failures = [charge for charge in charges if charge.rule.count == "failures" or charge.rule.exempt]
        """What is looked at before anything is taken; what is exempt is exempt from both."""
        self._watches = any(charge.rule.count == "failures" for charge in charges)
        self._everybodys = self._charges[0] if self._charges and self._charges[0].for_all else None
        """The charge of every request, where the first rule is for all."""
        self._by_path = any(charge.by_path for charge in charges)
        self._respond = respond

    def now_ms(self) -> int:
        """The present instant by the store's clock."""
        return self.mode.limiter._backend.clock.now_ms()

    def admit(self, request: Request, tab: Tab) -> Pending:
        """Take what the rules that are for the request ask for; raises one of `REFUSALS` where that cannot be."""
        return self._admit_watched(request, tab) if self._watches else self._take(request, tab)

    async def _admit_watched(self, request: Request, tab: Tab) -> None:
        """Look at the rules for failures that are for the request, then take."""
        self._check_length(request)
        looking = Admission(self._failures, request, tab).begin()
        if looking is not None:
            await looking
        taking = self._take(request, tab)
        if taking is not None:
            await taking
        if tab.refusal is not None:  # by a rule for failures, where no other rule is for the request
            raise tab.refusal

    def _check_length(self, request: Request) -> None:
        """Refuse a path that is longer than what is compared with rules."""
        if self._by_path and len(request.full_path) > LONGEST:
            raise PathTooLong(len(request.full_path))

    def _take(self, request: Request, tab: Tab) -> Pending:
        charge = self._everybodys
        if charge is not None:
            return charge.take(request, tab)
        self._check_length(request)
        return Admission(self._charges, request, tab).begin()

    def charge(self, rule: Rule) -> Charge:
        """The charge of a rule that a route has for itself."""
        self._resources.add(rule)
        return Charge(rule, self.mode, self.fields, self._key)

    def lines(self, tab: Tab) -> list[tuple[str, str]]:
        """The header lines that tell a client who was let in where it stands."""
        fields = self.fields
        return fields.lines(standings_of(tab.leases, fields), self.now_ms()) if fields.profiles and tab.leases else []

    def answer(self, error: Exception) -> Answer:
        """What a refused client is told."""
        if isinstance(error, PathTooLong):
            return answers.too_long(LONGEST)
        if isinstance(error, CapacityExceeded):
            return self._never(error)
        if isinstance(error, RateLimitExceeded):
            wait_ms = round((error.retry_after_seconds or 0) * 1000)
            return answers.refused(standings(error.statuses, self.fields), self.now_ms(), self.fields, wait_ms)
        if isinstance(error, SeveralKeysError):
            return answers.several_keys()
        return answers.unavailable(fields=self.fields)

    def _never(self, error: CapacityExceeded) -> Answer:
        """The first limit that is too small and that clients are told of."""
        asked = max((status.requested for status in error.violations), default=0)
        for status, standing in zip(error.statuses, standings(error.statuses, self.fields), strict=False):
            if status.requested > status.limit.capacity:
                return answers.too_large(standing.name, standing.limit.capacity, status.requested)
        return answers.too_large(None, None, asked)

    async def response(self, request: Request, error: Exception) -> Any:
        """The answer, or what the app's own responder makes of it: another `Answer`, or an app of its kind."""
        answer = self.answer(error)
        made = None if self._respond is None else self._respond(request, answer, error)
        if inspect.isawaitable(made):
            made = await made
        return answer if made is None else made


def _checked(rules: Sequence[Rule] | None, limits: Sequence[Limit] | None) -> list[Rule]:
    """All rules: the given ones, and after them the limits for everything else."""
    if isinstance(rules, Rule):
        raise ValidationError("rules", rules, "must be a list; put brackets around it")
    if rules is not None and not isinstance(rules, Iterable):
        raise ValidationError("rules", rules, "must be a list of rules")
    every = list(rules or ())
    for rule in every:
        if not isinstance(rule, Rule):
            raise ValidationError("rules", rule, "must be a Rule, e.g. Rule('/v1/*', limits=[...])")
    if limits is not None:
        every.append(Rule(limits=limits))
    return every
