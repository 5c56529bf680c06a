"""Limiters on the local AWS: deployed and listed under its own settings, whatever account the shell is logged in to."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ..core.errors import ZAELimiterError

if TYPE_CHECKING:
    from ..aws.events import Event
    from ..aws.local.home import Home
    from ..aws.local.lock import Say


class Wanted(NamedTuple):
    """A limiter that is to be there."""

    name: str
    namespace: str
    region: str
    endpoint: str


def deploy(home: Home, wanted: Wanted, say: Say) -> None:
    """Deploy a limiter and register its namespace; one that is there keeps its options."""
    from ..aws import deployment
    from ..aws.calls import Aws
    from ..aws.local import exports
    from ..aws.local.lock import hold_lock
    from ..sync import SyncRepository

    name, namespace, region, endpoint = wanted
    with (
        hold_lock(home, say),
        exports.apply(exports.variables(endpoint, region)),
        Aws(region, endpoint) as aws,
        SyncRepository(name=name, region=region, endpoint_url=endpoint) as repository,
    ):
        say(f"Deploying {name}")
        options = deployment.read_options(aws, name)
        deployment.deploy(aws, name, options, progress=partial(_tell, name, say))
        repository.create_table()  # the engine's CloudFormation forgets the expiry of records
        repository.register_namespace(namespace)


def _tell(name: str, say: Say, event: Event) -> None:
    if event.status.endswith("_IN_PROGRESS"):
        say(f"Deploying {name}: {event.resource}")


def stacks(endpoint: str, region: str) -> list[str] | None:
    """The names of the limiters there; None where they cannot be listed."""
    from ..aws import discovery
    from ..aws.calls import Aws
    from ..aws.local import exports

    try:
        with exports.apply(exports.variables(endpoint, region)), Aws(region, endpoint) as aws:
            return [found.stack_name for found in discovery.find(aws)]
    except ZAELimiterError:
        return None
