"""A whole deployment: the stack, the aggregator's code, the version record. Doing it again changes nothing."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ..core.errors import ValidationError
from ..core.values import StackOptions
from ..stores.dynamodb.store import DynamoStore
from . import adoption, code, options as stack_options, preflight, removal, stack, tags, template
from .calls import Aws
from .stack import Wanted, Watch
from .stamping import stamp

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..stores.dynamodb.client import Options
    from ..stores.port import Store
    from .events import Event
    from .stack import Stack


class Deployment(NamedTuple):
    """What a deployment has done."""

    name: str
    region: str
    stack: str
    """``created``, ``updated`` or ``unchanged``."""
    code: str | None
    """``uploaded`` or ``unchanged``; None where there is no aggregator, or where nobody waited for one."""
    resources: Mapping[str, str]
    """What the stack says that it holds."""


def deploy(
    aws: Aws,
    name: str,
    options: StackOptions,
    *,
    progress: Callable[[Event], object] | None = None,
    pause: Callable[[float], object] = time.sleep,
    wait: bool = True,
    adopt: bool = False,
) -> Deployment:
    """Make the deployment what ``options`` say, whatever is there now; ``progress`` hears of each stack event.

    Without ``wait`` only the stack is begun: a later `deploy` uploads the code. ``adopt`` takes a table that exists
    into the stack; otherwise such a table is refused.
    """
    stack_options.check(name, options)
    if not (options.enable_aggregator and options.enable_audit_archival):
        removal.check_dispensable(aws, name)
    preflight.check_role(aws, options)
    free = partial(preflight.check_names, aws, name, options)
    wanted = Wanted(template.body(), template.parameters(name, options), tags.of_stack(options.tags), free)
    watch = Watch(pause=pause) if progress is None else Watch(progress, pause)
    if adopt:
        adoption.adopt(aws, name, wanted, watch)
    done = stack.apply(aws, name, wanted, watch, wait=wait)
    if not wait:
        return Deployment(name, aws.region, done, None, {})
    uploaded = code.upload(aws, name, pause=pause) if options.enable_aggregator else None
    stamp(aws, name, options)
    found = stack.own(aws, name)
    return Deployment(name, aws.region, done, uploaded, {} if found is None else found.outputs)


def deploy_store(store: Store, options: StackOptions) -> Deployment:
    """Deploy what a store needs, where it expects it."""
    told = _told(store, options)
    with Aws(told.region, told.endpoint_url, told.profile) as aws:
        return deploy(aws, told.table, options)


def check_store(store: Store, options: StackOptions) -> None:
    """Refuse options that cannot be deployed for a store; nobody is asked."""
    stack_options.check(_told(store, options).table, options)


def _told(store: Store, options: StackOptions) -> Options:
    if not isinstance(store, DynamoStore):
        raise ValidationError("stack_options", options, f"does not fit the {store.capabilities.name} store")
    return store.client.options


def options_now(aws: Aws, name: str) -> StackOptions:
    """The options of a deployment as it is; the usual ones where there is none."""
    found = stack.own(aws, name)
    return StackOptions() if found is None or found.is_dead else options_of(found)


def options_of(found: Stack) -> StackOptions:
    """The options that a stack was deployed with."""
    return replace(template.options(found.parameters), tags=tags.of_user(found.tags))
