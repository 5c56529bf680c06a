"""The option names that commands had in 0.17, read from the table of these."""

from __future__ import annotations

from zae_limiter.v017.commands import OLD, OldOptions


def list_old_names(path: str) -> set[str]:
    """Return the older names of all options of a command."""
    old = OLD.get(path, OldOptions())
    spellings = (name for names in old.names.values() for part in names.split("/") for name in part.split())
    return {*spellings, *(name for each in old.options for name in (*each.opts, *each.secondary_opts))}
