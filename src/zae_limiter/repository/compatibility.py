"""Check whether this client can work with the stored data, when a namespace is opened."""

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


def check_version(record: Image | None) -> Deployed:
    """Return the decoded version record. Raise `VersionError` if this client cannot work with it."""
    if record is None:
        return Deployed()  # such a store has the present schema
    deployed = version.decode(record)
    version.check(deployed, __version__)
    return deployed


def decode_namespace(record: Image) -> Namespace:
    """Return the namespace of a record. Raise `VersionMismatchError` if a client of an older layout wrote it."""
    if not namespace.is_present(record):
        raise version.mismatch("was written by a client of an older layout")
    return namespace.decode(record)


def log_aggregator_warning(deployed: Deployed) -> None:
    """Log a warning if the aggregator has another version."""
    warning = aggregator_warning(deployed)
    if warning is not None:
        versions = {"zae_aggregator_version": deployed.aggregator, "zae_client_version": __version__}
        tell(AGGREGATOR_OUTDATED, "%s", warning, **versions)


def aggregator_warning(deployed: Deployed) -> str | None:
    """Return a warning about an aggregator of another version, or None. It still counts correctly."""
    if deployed.aggregator is None or version.order(deployed.aggregator) == version.order(__version__):
        return None
    return (
        f"The aggregator has version {deployed.aggregator}, this client {__version__}; "
        "`zae-limiter upgrade --lambda-only` renews it."
    )


class Compatibility(NamedTuple):
    """The versions of a store, and why this client cannot work with it (None if it can)."""

    deployed: Deployed
    problem: VersionError | None


async def check_compatibility(
    read: Callable[[Sequence[Key]], Awaitable[list[Image | None]]], namespace_name: str
) -> Compatibility:
    """Return whether the namespace could be opened. Registers nothing."""
    stamped, found, *older = await read([version.key(), keys.namespace(namespace_name), *version.UNPREFIXED])
    deployed = version.decode(stamped)
    try:
        check_version(stamped)
        if found is None:
            check_has_namespaces(stamped, older)
        else:
            decode_namespace(found)
    except VersionError as problem:
        return Compatibility(deployed, problem)
    return Compatibility(deployed, None)


def check_has_namespaces(stamped: Image | None, older: Sequence[Image | None]) -> None:
    """Raise `VersionMismatchError` for data from before namespaces, unless an upgrade has moved them."""
    if stamped is None and any(older):
        raise version.mismatch("holds data of the time before namespaces")
