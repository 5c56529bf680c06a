"""Rules: which requests are limited, whose tokens they take, and how many. The first rule that matches decides."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, NoReturn, TypeAlias

from ..core import names
from ..core.errors import ValidationError
from ..core.limit import MAX_AMOUNT, Limit, as_int, check_limits, whole
from .identity import Identity
from .request import Request
from .templates import Template

Cost: TypeAlias = int | Mapping[str, int]
Key: TypeAlias = Callable[[Request], Identity | str | Awaitable[Identity | str | None] | None]
FAILURES = (401, 403, 500)
"""The statuses of failures unless a rule says otherwise; an exception without an answer counts as 500."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    ``match``: a path template (``/v1/items/{id}``, ``/v1/*``), several of them, or a callable; None is every path.
    ``methods``: such as ``["POST"]``; ``GET`` includes ``HEAD``. ``key``: whose tokens (`by_ip` unless said
    otherwise); a callable of yours may return an entity id. ``resource``: what the tokens are for; by default a name
    made from ``match``. ``limits``: else the stored ones. ``cost``: a number, which counts for every limit of requests
    (``rpm`` where limits are stored), or amounts by limit; or a callable. ``exempt``: no limit. ``refund``: statuses
    whose answers cost nothing, such as ``(502, 503)``; an exception that the app does not answer counts as 500.

    ``count="failures"``: nothing is taken beforehand, but a request for which the cost is not there is refused; the
    cost is charged if the answer is a failure, into debt where need be. ``failures`` are its statuses (401, 403 and 500
    unless said otherwise). Such a rule applies beside the first other rule that matches, not instead of it.

    >>> Rule("/v1/items/{id}", methods=["POST"], limits=[Limit.per_minute("rpm", 60)]).resource_name
    'http/v1/items/id'
    """

    match: str | Sequence[str] | Callable[[Request], bool | Awaitable[bool]] | None = None
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "match", _check_match(self.match))
        object.__setattr__(self, "methods", _check_methods(self.methods))
        self.templates()
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
        self._check_count()

    def _check_count(self) -> None:
        if self.count not in ("requests", "failures"):
            raise ValidationError("count", self.count, "must be 'requests' or 'failures'")
        if self.count == "requests":
            if self.failures is not None:
                raise ValidationError("failures", self.failures, "has no effect unless count='failures'")
            return
        if self.exempt or self.refund:
            given = "exempt" if self.exempt else "refund"
            raise ValidationError(given, getattr(self, given), "cannot be combined with count='failures'")
        if self.failures is not None:
            object.__setattr__(self, "failures", _check_statuses("failures", self.failures))

    def templates(self) -> tuple[Template, ...] | None:
        """Return the templates; None where a callable decides or everything matches."""
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
        """The resource where none is computed: the given one, or one made from the templates."""
        if isinstance(self.resource, str):
            return self.resource
        templates = self.templates()
        start = "http" if self.count == "requests" else "failures"
        if not templates:
            return start
        plain = re.sub(r"[^A-Za-z0-9_./-]", "-", re.sub(r":path\}|[{}*]", "", templates[0].text))
        return f"{start}{plain.rstrip('/-')}"[:128]


def check_key(key: object) -> None:
    """Check a key: a callable, or None for the usual one."""
    if key is not None and not callable(key):
        raise ValidationError("key", key, "must be a callable such as by_ip() or by_header('x-tenant')")


def _check_match(match: Any) -> Any:
    """Check ``match`` and return it; templates as a tuple, since an iterator can be read only once."""
    if match is None or isinstance(match, str) or callable(match):
        return match
    if isinstance(match, bytes) or not isinstance(match, Iterable):
        raise ValidationError("match", match, "must be a path template such as '/v1/items/{id}', or a callable")
    return tuple(match) or _reject_empty("match", match)


def _check_methods(methods: Any) -> tuple[str, ...] | None:
    if methods is None:
        return None
    if isinstance(methods, str | bytes) or not isinstance(methods, Iterable):
        raise ValidationError("methods", methods, "must be a list; put brackets around it")
    given = tuple(methods)
    for verb in given:
        if not isinstance(verb, str) or not verb:
            raise ValidationError("methods", verb, "must be the name of a method, such as 'POST'")
    return given or _reject_empty("methods", methods)


def _reject_empty(field: str, value: object) -> NoReturn:
    raise ValidationError(field, value, "would match nothing; leave it out to match everything")


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
