"""How a stack is recognised that a version before 1.0 has deployed: by its tags."""

from __future__ import annotations

from collections.abc import Mapping


def find_version(tags: Mapping[str, str]) -> str | None:
    """Return the version before 1.0 that set these tags, or None. Stacks of this version have other tags."""
    if tags.get("ManagedBy") != "zae-limiter":
        return None
    return f"zae-limiter {tags.get('zae-limiter:version', 'before 1.0')}"


def refuse(name: str, region: str, older: str) -> str:
    """Return why the stack ``name`` is not changed, and what to do with it."""
    return (
        f"Stack {name!r} in {region} was deployed by {older}, whose stacks this version does not change; nothing was "
        f"changed. `zae-limiter upgrade --name {name} --release-stack` upgrades its table and deletes the stack "
        f"without it; then `zae-limiter deploy --name {name} --adopt`."
    )
