"""Rules: which requests are limited, whose tokens they take, and how many. The first rule that matches decides."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TypeAlias

from ..core import names
from ..core.errors import ValidationError
from ..core.limit import MAX_AMOUNT, Limit, check_limits, whole
from .identity import Identity
from .request import Request
from .templates import Template

Cost: TypeAlias = int | Mapping[str, int]
Key: TypeAlias = Callable[[Request], Identity | str | Awaitable[Identity | str | None] | None]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    ``match``: a path template (``/v1/items/{id}``, ``/v1/*``), several of them, or a callable; None is every path.
    ``methods``: such as ``["POST"]``; ``GET`` includes ``HEAD``. ``key``: whose tokens (`by_ip` unless said
    otherwise); a callable of yours may return an entity id. ``resource``: what the tokens are for; by default a name
    made from ``match``. ``limits``: else the stored ones. ``cost``: a number, which counts for every limit of requests
    (``rpm`` where limits are stored), or amounts by limit; or a callable. ``exempt``: no limit. ``refund``: statuses
    whose answers cost nothing, such as ``(502, 503)``.

    >>> Rule("/v1/items/{id}", methods=["POST"], limits=[Limit.per_minute("rpm", 60)]).resource_name
    'http/v1/items/id'
    """

    match: str | Sequence[str] | Callable[[Request], bool] | None = None
    _: KW_ONLY
    methods: Sequence[str] | None = None
    key: Key | None = None
    resource: str | Callable[[Request], str] | None = None
    limits: Sequence[Limit] | None = None
    cost: Cost | Callable[[Request], Cost | Awaitable[Cost]] = 1
    exempt: bool = False
    refund: Collection[int] | Callable[[int], bool] = ()

    def __post_init__(self) -> None:
        self.templates()
        self.verbs()
        if self.limits is not None:
            check_limits(self.limits)
        if isinstance(self.resource, str):
            names.resource(self.resource)
        if not callable(self.cost):
            check_cost(self.cost)
        if self.key is not None and not callable(self.key):
            raise ValidationError("key", self.key, "must be a callable such as by_ip() or by_header('x-tenant')")
        if isinstance(self.refund, str | bytes | int):
            raise ValidationError("refund", self.refund, "must be statuses such as (502, 503), or a callable")

    def templates(self) -> tuple[Template, ...] | None:
        """The templates; None where a callable decides or everything matches."""
        if self.match is None or callable(self.match):
            return None
        return tuple(Template(text) for text in ([self.match] if isinstance(self.match, str) else self.match))

    def verbs(self) -> frozenset[str] | None:
        """The methods, with ``HEAD`` beside ``GET``."""
        if self.methods is None:
            return None
        if isinstance(self.methods, str):
            raise ValidationError("methods", self.methods, "must be a list; put brackets around it")
        verbs = {verb.upper() for verb in self.methods}
        return frozenset(verbs | {"HEAD"} if "GET" in verbs else verbs)

    @property
    def resource_name(self) -> str:
        """The resource where none is computed: the given one, or one made from the templates."""
        if isinstance(self.resource, str):
            return self.resource
        templates = self.templates()
        if not templates:
            return "http"
        plain = "".join(c if c.isascii() and (c.isalnum() or c in "_-./") else "-" for c in _bare(templates[0].text))
        return f"http{plain.rstrip('/-')}"[:128]


def _bare(template: str) -> str:
    return template.replace(":path}", "").replace("{", "").replace("}", "").replace("*", "")


def check_cost(cost: object) -> Cost:
    """Check a cost: a whole number, or whole numbers by limit."""
    if isinstance(cost, Mapping):
        return {names.limit_name(name, "cost"): whole(f"cost[{name!r}]", n, 0, MAX_AMOUNT) for name, n in cost.items()}
    if isinstance(cost, int):
        return whole("cost", cost, 0, MAX_AMOUNT)
    raise ValidationError("cost", cost, "must be a whole number, amounts by limit such as {'rpm': 1}, or a callable")
