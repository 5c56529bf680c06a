"""Deploy the stack, the aggregator's code and the version record. Repeating a deployment changes nothing."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ..core.errors import ValidationError
from ..core.reports import StackOptions
from ..stores.dynamodb.store import DynamoStore
from . import adoption, code, options as stack_options, preflight, removal, stack, tags, template
from .calls import Aws
from .stack import DesiredStack, FollowOptions
from .stamping import stamp

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..stores.dynamodb.client import Options
    from ..stores.port import Store
    from .events import Event
    from .stack import Stack


class Deployment(NamedTuple):
    """The result of a deployment."""

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
    """Create or update the deployment so that it matches ``options``. Return what was changed.

    Args:
        aws: The account and region.
        name: The name of the stack and of its table.
        options: The options of the stack.
        progress: Called with each event of the stack.
        pause: Called with the seconds to wait between two looks at the stack.
        wait: If False, only start the stack operation; a later `deploy` uploads the code.
        adopt: Import an existing table into the stack; if False, an existing table is an error.
    """
    stack_options.check(name, options)
    if not (options.enable_aggregator and options.enable_audit_archival):
        removal.check_archive_empty(aws, name)
    preflight.check_role(aws, options)
    free = partial(preflight.check_names, aws, name, options)
    wanted = DesiredStack(
        template.read_template(), template.encode_parameters(name, options), tags.stack_tags(options.tags), free
    )
    watch = FollowOptions(pause=pause) if progress is None else FollowOptions(progress, pause)
    if adopt:
        adoption.adopt(aws, name, wanted, watch)
    done = stack.apply(aws, name, wanted, watch, wait=wait)
    if not wait:
        return Deployment(name, aws.region, done, None, {})
    uploaded = code.upload(aws, name, pause=pause) if options.enable_aggregator else None
    stamp(aws, name, options)
    found = stack.find_own(aws, name)
    return Deployment(name, aws.region, done, uploaded, {} if found is None else found.outputs)


def deploy_store(store: Store, options: StackOptions) -> Deployment:
    """Deploy the stack that ``store`` needs, under the store's own name and region."""
    told = _client_options(store, options)
    with Aws(told.region, told.endpoint_url, told.profile) as aws:
        return deploy(aws, told.table, options)


def check_store(store: Store, options: StackOptions) -> None:
    """Raise `ValidationError` if ``options`` cannot be deployed for ``store``. Makes no call."""
    stack_options.check(_client_options(store, options).table, options)


def _client_options(store: Store, options: StackOptions) -> Options:
    if not isinstance(store, DynamoStore):
        raise ValidationError("stack_options", options, f"is not supported on the {store.capabilities.name} store")
    return store.client.options


def read_options(aws: Aws, name: str) -> StackOptions:
    """Return the options of the deployed stack, or the defaults if there is none."""
    found = stack.find_own(aws, name)
    return StackOptions() if found is None or found.is_dead else options_of(found)


def options_of(found: Stack) -> StackOptions:
    """Return the options that a stack was deployed with."""
    return replace(template.decode_options(found.parameters), tags=tags.user_tags(found.tags))
