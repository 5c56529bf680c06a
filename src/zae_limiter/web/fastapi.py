"""Limits per route in FastAPI. The app needs `RateLimitMiddleware`, which holds the limiter, answers and settles.

>>> from typing import Annotated
>>> from fastapi import Depends, FastAPI
>>> from zae_limiter import Lease
>>> app = FastAPI()
>>> @app.post("/chat")
... async def chat(lease: Annotated[Lease, Depends(Limited("gpt-4", {"rpm": 1, "tpm": 500}))]) -> None:
...     used = 1_730  # call the model, and learn what it cost
...     await lease.settle(tpm=used)
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from operator import attrgetter
from typing import Annotated, Any
from weakref import WeakKeyDictionary

from fastapi import Depends, params, routing
from starlette.requests import HTTPConnection

from ..core.limit import Limit
from ..limiter.lease import Lease
from .asgi import ROUTE_RULES
from .middleware import Middleware
from .request import AsgiRequest, Request
from .request_leases import find_leases, finish, lease_of
from .rules import BoundRule, Cost, Key, Rule

_LEASE = "lease"
_HIDDEN = "_rate_limit_lease"
"""The beginning of the name of a lease that the endpoint does not ask for; every decorator has a name of its own."""


class Limited:
    """A dependency that takes tokens for its route and gives the lease.

    ``resource``, ``cost``, ``key``, ``limits``, ``refund`` and ``max_wait`` are as for a `Rule`; if there is no
    ``key``, that of the middleware. On the route of a websocket they are taken before the handshake and held until the
    websocket ends.
    """

    def __init__(
        self,
        resource: str | Callable[[Request], str],
        cost: Cost | Callable[[Request], Cost | Awaitable[Cost]] = 1,
        *,
        key: Key | None = None,
        limits: Sequence[Limit] | None = None,
        refund: Collection[int] | Callable[[int], bool] = (),
        max_wait: float | None = None,
    ) -> None:
        self.rule: Rule = Rule(resource=resource, cost=cost, key=key, limits=limits, refund=refund, max_wait=max_wait)
        self._bound: WeakKeyDictionary[Middleware[Any, Any], BoundRule] = WeakKeyDictionary()

    async def __call__(self, connection: HTTPConnection) -> Lease:
        """Take the tokens and return the lease, which is settled when the response is done."""
        leases = find_leases(connection)
        middleware: Middleware[Any, Any] = leases.middleware
        rule = self._bound.get(middleware)
        if rule is None:
            rule = self._bound[middleware] = middleware.bind(self.rule)
        await finish(leases.take_for(rule, AsgiRequest(connection.scope, middleware.proxies)))
        lease: Lease = lease_of(connection)
        return lease


def limited(
    resource: str | Callable[[Request], str],
    cost: Cost | Callable[[Request], Cost | Awaitable[Cost]] = 1,
    *,
    key: Key | None = None,
    limits: Sequence[Limit] | None = None,
    refund: Collection[int] | Callable[[int], bool] = (),
    max_wait: float | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return `Limited` as a decorator, to stand below the one of the route; the parameters are the same.

    An endpoint with a parameter ``lease`` is given the lease. Several decorators on one endpoint all take their
    tokens; ``lease`` is that of the one next to the endpoint, unless the parameter is a dependency already.

    >>> from fastapi import FastAPI
    >>> from zae_limiter import Lease
    >>> app = FastAPI()
    >>> @app.post("/chat")
    ... @limited("gpt-4", {"rpm": 1, "tpm": 500})
    ... async def chat(prompt: str, lease: Lease) -> None: ...
    """
    dependency = Depends(Limited(resource, cost, key=key, limits=limits, refund=refund, max_wait=max_wait))

    def decorate(endpoint: Callable[..., Any]) -> Callable[..., Any]:
        signature = _read_signature(endpoint)
        unused = (name for number in itertools.count(1) if (name := f"{_HIDDEN}_{number}") not in signature.parameters)
        name = _LEASE if _is_plain(signature.parameters.get(_LEASE)) else next(unused)
        added = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[Lease, dependency])
        others = [parameter for parameter in signature.parameters.values() if parameter.name != name]
        made = _call_without(endpoint, "" if name == _LEASE else name)
        made.__signature__ = signature.replace(parameters=sorted([*others, added], key=attrgetter("kind")))  # type: ignore[attr-defined]  # what FastAPI reads
        return made

    return decorate


def _call_without(endpoint: Callable[..., Any], hidden: str) -> Callable[..., Any]:
    """Return a function that does what an endpoint does, given the argument ``hidden`` besides."""
    if inspect.iscoroutinefunction(endpoint):

        @functools.wraps(endpoint)
        async def call(*args: Any, **kwargs: Any) -> Any:
            kwargs.pop(hidden, None)
            return await endpoint(*args, **kwargs)

    else:

        @functools.wraps(endpoint)
        def call(*args: Any, **kwargs: Any) -> Any:
            kwargs.pop(hidden, None)
            return endpoint(*args, **kwargs)

    return call


def find_rules(app: Any) -> Iterator[Rule]:
    """Find the rules of `Limited` in the routes of an app, and of apps below it without a middleware of their own."""
    flatten = getattr(routing, "iter_route_contexts", list)  # newer versions of FastAPI keep included routers apart
    for route in flatten(getattr(app, "routes", None) or ()):
        yield from _find_dependency_rules(getattr(route, "dependant", None))
        below = getattr(route, "app", None)
        added = [each.cls for each in getattr(below, "user_middleware", ())]
        if below is not None and not any(isinstance(kind, type) and issubclass(kind, Middleware) for kind in added):
            yield from find_rules(below)


def _find_dependency_rules(dependant: Any) -> Iterator[Rule]:
    if dependant is not None:
        if isinstance(dependant.call, Limited):
            yield dependant.call.rule
        for each in dependant.dependencies:
            yield from _find_dependency_rules(each)


ROUTE_RULES.append(find_rules)


def _is_plain(parameter: inspect.Parameter | None) -> bool:
    """Return whether there is such a parameter, and it is no dependency yet."""
    if parameter is None:
        return False
    marks = (parameter.default, *getattr(parameter.annotation, "__metadata__", ()))
    return not any(isinstance(each, params.Depends) for each in marks)


def _read_signature(endpoint: Callable[..., Any]) -> inspect.Signature:
    """Return the signature with annotations evaluated, unless one is for type checkers only, as the lease's may be."""
    try:
        return inspect.signature(endpoint, eval_str=True)
    except NameError:
        return inspect.signature(endpoint)
