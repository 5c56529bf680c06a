"""Rules: which requests are limited, whose tokens they take, and how many; and each as bound to one limiter.

The first rule that matches decides, for each way to read the path. A plain request is read in one way, so one rule is
for it. If an app could route a request by several texts, or if a rule matches a text only loosely, it is unknown which
handler serves it: every rule that may be the one is charged, so that no spelling trades one limit for another. A
request that is astray is charged by every rule.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeAlias

from ..core import names
from ..core.errors import ValidationError
from ..core.limit import MAX_AMOUNT, Limit, as_int, check_limits, seconds, whole
from ..limiter.lease import Lease
from ..limiter.limiter import RateLimiter
from .fields import Fields
from .keys import Identity, by_ip, to_identity
from .paths import Paths, is_plain, list_loose
from .request import Request
from .templates import Template

if TYPE_CHECKING:
    from ..limiter.sync_lease import SyncLease
    from ..sync.facade import SyncRateLimiter

AnyLease: TypeAlias = "Lease | SyncLease"
AnyLimiter: TypeAlias = "RateLimiter | SyncRateLimiter"

Cost: TypeAlias = int | Mapping[str, int]
Match: TypeAlias = Callable[[Request], bool | Awaitable[bool]]
Key: TypeAlias = Callable[[Request], Identity | str | Awaitable[Identity | str | None] | None]
FAILURES = (401, 403, 500)
"""The statuses of failures unless a rule says otherwise; an exception without an answer counts as 500."""
STORED_LIMITS = ("rpm",)
"""The limits that a plain number counts for if the limits are stored."""
_UNNAMEABLE = re.compile(r"[^A-Za-z0-9_./-]")
_LONGEST_NAME = 119
"""The longest default name in characters, without a hash."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    ``match``: a path template (``/v1/items/{id}``, ``/v1/*``), several of them, or a callable; None is every path.
    ``methods``: such as ``["POST"]``; ``GET`` includes ``HEAD``. ``key``: whose tokens (`by_ip` unless said
    otherwise); a callable of yours may return an entity id. ``resource``: what the tokens are for; by default a name
    made from ``match`` and ``methods``. ``limits``: else the stored ones. ``cost``: a number, which counts for every
    limit of requests (``rpm`` if limits are stored), or amounts by limit; or a callable. ``exempt``: no limit.
    ``refund``: statuses whose answers cost nothing, such as ``(502, 503)``; an exception that the app does not answer
    counts as 500. ``max_wait``: how many seconds a request may wait for its tokens, or a slot, before it is refused.

    Of every concurrency limit a request takes one slot, whatever its cost, and holds it until the response is done.

    ``count="failures"``: nothing is taken beforehand, but a request for which the cost is not there is refused; the
    cost is charged if the answer is a failure, into debt if need be. ``failures`` are its statuses (401, 403 and 500
    unless said otherwise). Such a rule applies beside the first other rule that matches, not instead of it. It holds no
    slot while a request runs.

    >>> Rule("/v1/items/{id}", methods=["POST"], limits=[Limit.per_minute("rpm", 60)]).resource_name
    'http:post/v1/items/id'
    """

    match: str | Sequence[str] | Match | None = None
    _: KW_ONLY
    methods: Sequence[str] | None = None
    key: Key | None = None
    resource: str | Callable[[Request], str | Awaitable[str]] | None = None
    limits: Sequence[Limit] | None = None
    cost: Cost | Callable[[Request], Cost | Awaitable[Cost]] = 1
    exempt: bool = False
    refund: Collection[int] | Callable[[int], bool] = ()
    count: str = "requests"
    failures: Collection[int] | Callable[[int], bool] | None = None
    max_wait: float | None = None

    def __post_init__(self) -> None:
        if self.match is not None and not isinstance(self.match, str) and not callable(self.match):
            reason = "must be a path template such as '/v1/items/{id}', or a callable"
            object.__setattr__(self, "match", _read_list("match", self.match, reason))
        self.templates()
        if self.methods is not None:
            methods = _read_list("methods", self.methods, "must be a list; put brackets around it")
            for verb in methods:
                if not isinstance(verb, str) or not verb:
                    raise ValidationError("methods", verb, "must be the name of a method, such as 'POST'")
            object.__setattr__(self, "methods", methods)
        if self.limits is not None:
            object.__setattr__(self, "limits", check_limits(self.limits))
        if self.resource is not None and not callable(self.resource):
            names.resource(self.resource)
        if not callable(self.cost):
            object.__setattr__(self, "cost", check_cost(self.cost))
        check_key(self.key)
        if not isinstance(self.exempt, bool):
            raise ValidationError("exempt", self.exempt, "must be True or False")
        object.__setattr__(self, "refund", _check_statuses("refund", self.refund))
        if self.max_wait is not None:
            seconds("max_wait", self.max_wait, zero=True)
        if self.count not in ("requests", "failures"):
            raise ValidationError("count", self.count, "must be 'requests' or 'failures'")
        if self.count == "requests":
            if self.failures is not None:
                raise ValidationError("failures", self.failures, "has no effect unless count='failures'")
            return
        given = next((name for name in ("exempt", "refund", "max_wait") if getattr(self, name)), None)
        if given is not None:
            raise ValidationError(given, getattr(self, given), "cannot be combined with count='failures'")
        if self.failures is not None:
            object.__setattr__(self, "failures", _check_statuses("failures", self.failures))

    def templates(self) -> tuple[Template, ...] | None:
        """Return the templates; None if a callable decides or everything matches."""
        if self.match is None or callable(self.match):
            return None
        return tuple(Template(text) for text in ([self.match] if isinstance(self.match, str) else self.match))

    def verbs(self) -> frozenset[str] | None:
        """Return the methods, with ``HEAD`` beside ``GET``; None for all."""
        if self.methods is None:
            return None
        verbs = {verb.upper() for verb in self.methods}
        return frozenset(verbs | {"HEAD"} if "GET" in verbs else verbs)

    @property
    def resource_name(self) -> str:
        """The resource if none is computed: the given one, or one made from the templates."""
        if isinstance(self.resource, str):
            return self.resource
        templates = self.templates()
        start = "http" if self.count == "requests" else "failures"
        if self.methods is not None:
            start = f"{start}:{'-'.join(sorted({verb.lower() for verb in self.methods}))}"
        if not templates:
            return start
        text = templates[0].text
        plain = re.sub(r":[a-z]+\}|[{}*]", "", text)
        name = f"{start}{re.sub(_UNNAMEABLE, '-', plain).rstrip('/-')}"
        if _UNNAMEABLE.search(plain) or len(name) > _LONGEST_NAME:  # a name that says less than the template does
            return f"{name[:_LONGEST_NAME]}:{sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"
        return f"{name}/" if text == "/" else name


def check_key(key: object) -> None:
    """Check a key: a callable, or None for the usual one."""
    if key is not None and not callable(key):
        raise ValidationError("key", key, "must be a callable such as by_ip() or by_header('x-tenant')")


def _read_list(field: str, given: Any, reason: str) -> tuple[Any, ...]:
    """Return the elements of a list, or of an iterator, which can be read only once."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise ValidationError(field, given, reason)
    read = tuple(given)
    if not read:
        raise ValidationError(field, given, "would match nothing; leave it out to match everything")
    return read


def _check_statuses(field: str, statuses: object) -> Collection[int] | Callable[[int], bool]:
    """Check statuses, or a callable that knows them, and return them as plain numbers."""
    if inspect.iscoroutinefunction(statuses):
        raise ValidationError(field, statuses, "must not be async: it is asked while the answer begins")
    if callable(statuses):
        return statuses
    if isinstance(statuses, str | bytes) or not isinstance(statuses, Collection):
        raise ValidationError(field, statuses, "must be statuses such as (502, 503), or a callable")
    return tuple(whole(field, status, 100, 599) for status in statuses)


def check_cost(cost: object) -> Cost:
    """Check a cost: a whole number, or whole numbers by limit."""
    if isinstance(cost, Mapping):
        return {
            names.limit_name(name, "cost"): whole(f"cost[{name!r}]", amount, 0, MAX_AMOUNT, "tokens")
            for name, amount in cost.items()
        }
    if isinstance(cost, bool) or as_int(cost) is not None:
        return whole("cost", cost, 0, MAX_AMOUNT, "tokens")
    raise ValidationError("cost", cost, "must be a whole number, amounts by limit such as {'rpm': 1}, or a callable")


class _Answers(dict[str, bool]):
    """The answers of a callable about spellings, to be matched as a template is."""

    def matches_exactly(self, text: str) -> bool:
        """Return whether the callable wants ``text`` itself."""
        return self.get(text, False)

    def matches_loosely(self, text: str) -> bool:
        """Return whether the callable wants something that some framework could take ``text`` for."""
        return any(self.get(spelt, False) for spelt in (text, *list_loose(text)))


class Matcher:
    """Matches the texts of one request with rules; each text belongs to the first rule that matches it."""

    __slots__ = ("_astray", "_paths", "open")

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._astray = paths.astray
        self.open = dict.fromkeys((paths.main, *paths.others), True)
        """The texts without a rule: True if none matches at all, False if one matches, but only loosely."""

    @property
    def is_done(self) -> bool:
        """Whether there is no text left."""
        return not (self.open or self._astray)

    def limit(self, templates: Sequence[Template | _Answers]) -> bool:
        """Take the texts that match; return whether there are any, or whether the request is astray.

        A callable takes no text that frameworks read differently: it knows nothing of their ways.
        """
        found = self._astray
        for text, untouched in tuple(self.open.items()):
            loosely = [template for template in templates if template.matches_loosely(text)]
            exactly = [template for template in loosely if template.matches_exactly(text)]
            if exactly:
                found = True
                if is_plain(text) or any(isinstance(template, Template) for template in exactly):
                    del self.open[text]
            elif loosely and untouched:
                self.open[text] = False
                found = True
        return found

    def exempt(self, templates: Sequence[Template | _Answers]) -> bool:
        """Take the main text of a plain request if it matches exactly, and return whether it does.

        Any other spelling is limited.
        """
        main = self._paths.main
        if self._paths.plain and main in self.open and any(template.matches_exactly(main) for template in templates):
            del self.open[main]
            return True
        return False

    def take_rest(self) -> bool:
        """Take all texts; return whether an app could route by one of them."""
        found = self._paths.main in self.open if self._paths.plain else not self.is_done
        self.open.clear()
        self._astray = False
        return found


class BoundRule:
    """One rule on one limiter."""

    def __init__(self, rule: Rule, limiter: AnyLimiter, fields: Fields, key: Key | None = None) -> None:
        self.rule = rule
        self._limiter = limiter
        self._templates = rule.templates()
        self._verbs = rule.verbs()
        self.for_all = rule.match is None and self._verbs is None
        """Whether it is for every request."""
        self.by_path = self._templates is not None
        """Whether templates decide."""
        self.counts_failures = rule.count == "failures"
        self.is_failure = _make_test(FAILURES if rule.failures is None else rule.failures)
        """Returns whether an answer of this status is charged if failures are counted."""
        self.refunds = _make_test(rule.refund)
        """Returns whether an answer of this status costs nothing."""
        self._key = rule.key or key or by_ip()
        self._resource_name = rule.resource_name
        names: tuple[str, ...] = STORED_LIMITS
        if rule.limits is not None:
            names = tuple(limit.name for limit in rule.limits if not limit.is_concurrency)
        self._counted = tuple(name for name in names if fields.unit(name) == "requests") or names
        """The limits that a plain number counts for; of slots a request takes one, whatever it costs."""
        self._cost = None if callable(rule.cost) else self._expand_cost(rule.cost)
        constant = self._cost is not None and not callable(rule.resource)
        self._template = self._acquire("", self._resource_name, self._cost or {})
        """The lease of every entity, if resource and cost are ``constant``: its options are checked once."""
        self._for_entity = self._template.for_entity if constant else None

    def fits(self, request: Request, matcher: Matcher) -> bool | Awaitable[bool]:
        """Return whether the rule is for this request, and take from ``matcher`` the paths that it is for."""
        if self._verbs is not None and request.method not in self._verbs:
            return False
        templates, match = self._templates, self.rule.match
        if templates is not None:
            return matcher.exempt(templates) if self.rule.exempt else matcher.limit(templates)
        return self._ask(match, request, matcher) if callable(match) else matcher.take_rest()

    async def _ask(self, match: Match, request: Request, matcher: Matcher) -> bool:
        """Return whether a callable says that the rule is for the request.

        One that looks at the path is asked about every spelling, as a template would be matched with it.
        """
        asked = request.respell(request.paths.main)
        said = _Answers({request.paths.main: bool(await _wait_for(match(asked)))})
        if not asked.has_shown_path:
            return said[request.paths.main] and matcher.take_rest()
        for text in (request.paths.main,) if self.rule.exempt else matcher.open:
            for spelt in (text, *list_loose(text)):
                if not (spelt in said or said.get(text)):
                    said[spelt] = bool(await _wait_for(match(request.respell(spelt))))
        return matcher.exempt([said]) if self.rule.exempt else matcher.limit([said])

    def make_lease(self, request: Request) -> AnyLease | Awaitable[AnyLease]:
        """Return the lease that the request needs, not yet entered; an awaitable if the rule has to wait for it.

        Raises `SeveralKeysError`, also out of the awaitable, if the request carries several API keys.
        """
        identity = self._key(request)
        if self._for_entity is None or not isinstance(identity, Identity):
            return self.make_lease_for(identity, request)
        return self._for_entity(identity.entity_id)

    async def make_lease_for(self, key: object, request: Request) -> AnyLease:
        """Return the lease of ``key``: an `Identity`, an entity id, or None for the client's address."""
        identity = to_identity(await _wait_for(key), request)
        resource, cost = self.rule.resource, self.rule.cost
        name = await _wait_for(resource(request)) if callable(resource) else self._resource_name
        amounts = self._cost
        if amounts is None:
            amounts = self._expand_cost(check_cost(await _wait_for(cost(request) if callable(cost) else cost)))
        return self._acquire(identity.entity_id, name, amounts)

    def _acquire(self, entity_id: str, resource: str, cost: Mapping[str, int]) -> AnyLease:
        return self._limiter.acquire(entity_id, resource, cost, self.rule.limits, None, self.rule.max_wait)

    def _expand_cost(self, cost: Cost) -> Mapping[str, int]:
        return dict.fromkeys(self._counted, cost) if isinstance(cost, int) else cost


def _make_test(statuses: Collection[int] | Callable[[int], bool]) -> Callable[[int], bool]:
    return statuses if callable(statuses) else statuses.__contains__


async def _wait_for(value: Any) -> Any:
    """Return a value that a callable of the user's has returned, awaited if need be."""
    return await value if inspect.isawaitable(value) else value
