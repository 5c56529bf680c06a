"""Deployments under the names of 0.17: the template, the function's package, and finding limiters."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ..aws import package, template
from ..repository.opening import StackOperations
from ..sync.opening import SyncStackOperations

if TYPE_CHECKING:
    from ..core.reports import LimiterInfo

get_cfn_template = template.read_template


def build_lambda_package() -> bytes:
    """Return the zip of the aggregator's code."""
    return package.build()


def write_lambda_package(output_path: str | Path) -> int:
    """Write the zip of the aggregator's code and return its size in bytes."""
    return Path(output_path).write_bytes(package.build())


def get_package_info() -> dict[str, Any]:
    """Return where the aggregator's code is, how much of it there is, and how it is called."""
    modules = package.modules()
    return {
        "package_path": str(resources.files(package.AGGREGATOR)),
        "python_files": len(modules),
        "uncompressed_size": sum(len(module.source) for module in modules),
        "handler": f"{package.AGGREGATOR}.handler.handler",
        "runtime_dependencies": [],
    }


class _Discovery:
    """Finds the limiters that are deployed in a region of an AWS account."""

    def __init__(self, region: str | None = None, endpoint_url: str | None = None) -> None:
        self.region, self.endpoint_url = region, endpoint_url


class InfrastructureDiscovery(_Discovery):
    """Finds the limiters that are deployed in a region. `Repository.list_deployed` does the same."""

    async def list_limiters(self) -> list[LimiterInfo]:
        """Return the limiters, sorted by name."""
        return await StackOperations.list_deployed(self.region, self.endpoint_url)

    async def close(self) -> None:
        """Do nothing: it keeps no connection."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None: ...


class SyncInfrastructureDiscovery(_Discovery):
    """Finds the limiters that are deployed in a region. `SyncRepository.list_deployed` does the same."""

    def list_limiters(self) -> list[LimiterInfo]:
        """Return the limiters, sorted by name."""
        return SyncStackOperations.list_deployed(self.region, self.endpoint_url)

    def close(self) -> None:
        """Do nothing: it keeps no connection."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None: ...
