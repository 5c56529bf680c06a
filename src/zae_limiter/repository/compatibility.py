"""Whether this client and the data fit together, looked at when a namespace is opened."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .._version import __version__
from ..core.errors import VersionError
from ..logs import AGGREGATOR_OUTDATED, tell
from ..records import keys, namespace, version
from ..records.version import Deployed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from ..core.values import Namespace
    from ..records.algebra import Image, Key


def checked(record: Image | None) -> Deployed:
    """What the version record says, if this client can work with it."""
    deployed = version.decode(record)
    version.check(deployed, __version__)
    return deployed


def opened(record: Image) -> Namespace:
    """The namespace of a record, unless another client wrote it that keeps its records differently."""
    if not namespace.is_present(record):
        raise version.mismatch("was written by a client of an older layout")
    return namespace.decode(record)


def warn_of_aggregator(deployed: Deployed) -> None:
    """Log what is to be said of the aggregator."""
    warning = aggregator_warning(deployed)
    if warning is not None:
        versions = {"zae_aggregator_version": deployed.aggregator, "zae_client_version": __version__}
        tell(AGGREGATOR_OUTDATED, "%s", warning, **versions)


def aggregator_warning(deployed: Deployed) -> str | None:
    """What to say of an aggregator of another version: it still counts, but somebody should know of it."""
    if deployed.aggregator is None or version.order(deployed.aggregator) == version.order(__version__):
        return None
    return (
        f"The aggregator has version {deployed.aggregator}, this client {__version__}; "
        "`zae-limiter upgrade --lambda-only` renews it."
    )


class Verdict(NamedTuple):
    """What a store says of its versions, and why this client cannot work with it (None: it can)."""

    deployed: Deployed
    problem: VersionError | None


async def judge(read: Callable[[Sequence[Key]], Awaitable[list[Image | None]]], namespace_name: str) -> Verdict:
    """Look whether a namespace could be opened; nothing is registered."""
    wanted = [version.key(), keys.namespace(namespace_name), *version.UNPREFIXED]
    stamped, found, *older = await read(wanted)
    deployed = version.decode(stamped)
    try:
        version.check(deployed, __version__)
        if found is None:
            check_namespaced(stamped, older)
        else:
            opened(found)
    except VersionError as problem:
        return Verdict(deployed, problem)
    return Verdict(deployed, None)


def check_namespaced(stamped: Image | None, older: Sequence[Image | None]) -> None:
    """Refuse data that no namespace holds yet; what an upgrade has left behind of them does not matter any more."""
    if stamped is None and any(older):
        raise version.mismatch("holds data of the time before namespaces")
