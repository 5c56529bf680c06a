"""Versions of clients and stores, under the names of 0.17."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import total_ordering
from typing import NamedTuple

from ..core.errors import VersionError
from ..records import version

CURRENT_SCHEMA_VERSION = version.SCHEMA_VERSION


@total_ordering
@dataclass(frozen=True, slots=True)
class ParsedVersion:
    """A version; a pre-release is before its release."""

    major: int
    minor: int
    patch: int
    prerelease: str | None = None

    def __str__(self) -> str:
        numbers = f"{self.major}.{self.minor}.{self.patch}"
        return numbers if self.prerelease is None else f"{numbers}-{self.prerelease}"

    def __lt__(self, other: ParsedVersion) -> bool:
        return version.order(str(self)) < version.order(str(other))


class InfrastructureVersion(NamedTuple):
    """The contents of a version record."""

    schema_version: str
    lambda_version: str | None
    template_version: str | None
    client_min_version: str

    @classmethod
    def from_record(cls, record: Mapping[str, str | None]) -> InfrastructureVersion:
        """Return what `Repository.get_version_record` has returned."""
        known = version.decode({name: value for name, value in record.items() if value is not None})
        return cls(known.schema, known.aggregator, record.get("template_version"), known.client_min)


class CompatibilityResult(NamedTuple):
    """Whether a client can use a store, and what has to be done first."""

    is_compatible: bool
    requires_schema_migration: bool = False
    requires_lambda_update: bool = False
    requires_template_update: bool = False
    requires_client_upgrade: bool = False
    message: str = ""


def parse_version(version_str: str) -> ParsedVersion:
    """Return the parts of a version. Raise ValueError for a string that is no version."""
    (major, minor, patch, _), _, _ = version.order(version_str)
    return ParsedVersion(major, minor, patch, version_str.lstrip("v0123456789.-") or None)


def get_schema_version() -> str:
    """Return the version of the layout that this client writes."""
    return CURRENT_SCHEMA_VERSION


def check_compatibility(client_version: str, infra_version: InfrastructureVersion) -> CompatibilityResult:
    """Return whether a client of this version can use a store of that one."""
    deployed = version.Deployed(
        infra_version.schema_version, infra_version.client_min_version, infra_version.lambda_version
    )
    outdated = version.is_aggregator_older(deployed, client_version)
    try:
        version.check(deployed, client_version)
    except VersionError as problem:
        migrates = version.needs_upgrade(deployed)
        return CompatibilityResult(False, migrates, outdated, False, not migrates, str(problem))
    return CompatibilityResult(True, requires_lambda_update=outdated)
