"""Prints, as JSON, the public methods of 0.17 with their keywords; runs in an environment that has it."""

from __future__ import annotations

import inspect
import json
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

KINDS = (
    *("RateLimiter", "SyncRateLimiter", "Repository", "SyncRepository", "Lease", "SyncLease"),
    *("Limit", "Entity", "ScheduleEntry", "AuditEvent", "LimitStatus", "UsageSnapshot", "UsageSummary"),
    *("ResourceCapacity", "EntityCapacity", "CacheStats", "Availability", "BucketOperationResult"),
    *(
        "Status",
        "LimiterInfo",
        "BucketState",
        "BackendCapabilities",
        "StackOptions",
        "StackManager",
        "SyncStackManager",
    ),
)
MAKERS = ("Limit", "Entity", "ScheduleEntry", "CacheStats", "AuditEvent", "StackOptions")
"""Those of them that programs make themselves."""


def list_members(library: Any) -> dict[str, dict[str, list[str] | None]]:
    """Return by class the public members, and the keywords of those that are functions."""
    found: dict[str, dict[str, list[str] | None]] = {}
    for kind in (*KINDS, *list_errors(library)):
        owner = getattr(library, kind)
        public = [name for name in dir(owner) if not name.startswith("_") and name not in dir(Exception)]
        members = {name: list_keywords(getattr(owner, name)) for name in public}
        fields = [name for name in getattr(owner, "__match_args__", ()) if not name.startswith("_")]
        if issubclass(owner, Exception):  # what an error is made of are its attributes
            fields += list_keywords(owner.__init__) or []
        members |= {name: None for name in fields if name not in members}
        if kind in MAKERS:
            members["__init__"] = list_keywords(owner)
        found[kind] = members
    return found


def list_errors(library: Any) -> list[str]:
    """Return the names of the public errors."""
    found = {name: getattr(library, name) for name in library.__all__}
    return [name for name, kind in found.items() if isinstance(kind, type) and issubclass(kind, Exception)]


def list_keywords(member: Any) -> list[str] | None:
    """Return the parameters of a function that can be named; None for anything else."""
    if not callable(member):
        return None
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    named = inspect.signature(member).parameters.values()
    return [each.name for each in named if each.kind in kinds and each.name != "self" and not each.name.startswith("_")]


def list_modules(*packages: str) -> list[str]:
    """Return the modules in some packages and in the packages in these, without importing any of them."""
    found = []
    for package in packages:
        folders = [Path(place) for place in import_module(package).__path__]
        files = [(file, folder) for folder in folders for file in folder.rglob("*.py")]
        parts = [(package, *file.relative_to(folder).with_suffix("").parts) for file, folder in files]
        found += [".".join(each).removesuffix(".__init__") for each in parts]
    return sorted(name for name in found if "._" not in name)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    library = import_module("zae_limiter")
    modules = list_modules("zae_limiter", "zae_limiter_aggregator")
    print(json.dumps({"members": list_members(library), "names": sorted(library.__all__), "modules": modules}))
