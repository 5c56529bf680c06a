"""Names of earlier versions for things that are called otherwise here, so that programs with them run."""

from __future__ import annotations

from types import new_class
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, runtime_checkable

from ..core.values import OnUnavailable
from ..repository.cache import ConfigCache as SyncConfigCache
from ..repository.repository import Repository
from ..sync import SyncRepository

__all__ = [
    "ConfigSource",
    "FailureMode",
    "LimitName",
    "RepositoryProtocol",
    "SyncConfigCache",
    "SyncRepositoryProtocol",
]

ConfigSource: TypeAlias = Literal["entity", "entity_default", "resource", "system"]
"""The level that limits come from."""


class LimitName:
    """Usual names of limits: requests and tokens per minute, hour and day."""

    RPM, RPH, RPD = "rpm", "rph", "rpd"
    TPM, TPH, TPD = "tpm", "tph", "tpd"


class FailureMode:
    """The values of `OnUnavailable` under their first names."""

    FAIL_OPEN = OnUnavailable.ALLOW
    FAIL_CLOSED = OnUnavailable.BLOCK


def _protocol_of(kind: type, name: str) -> Any:
    """Return a protocol with the public names of a class: what has them all is an instance of it."""
    members = {each: Any for each in dir(kind) if not each.startswith("_")}
    text = f"Whatever has the public names of `{kind.__name__}`."
    contents = {"__annotations__": members, "__doc__": text, "__module__": __name__}
    return runtime_checkable(new_class(name, (Protocol,), {}, lambda body: body.update(contents)))


if TYPE_CHECKING:
    RepositoryProtocol: TypeAlias = Repository
    SyncRepositoryProtocol: TypeAlias = SyncRepository
else:
    RepositoryProtocol = _protocol_of(Repository, "RepositoryProtocol")
    SyncRepositoryProtocol = _protocol_of(SyncRepository, "SyncRepositoryProtocol")
