"""Prints every command of zae-limiter 0.17 with its options, as JSON."""

from __future__ import annotations

import json
from importlib.metadata import entry_points
from typing import Any


def walk(command: Any, path: str = "") -> dict[str, list[str]]:
    """Return the options of all commands below one, by the words that are typed."""
    below = getattr(command, "commands", None)
    if below is None:
        return {path: sorted(name for each in command.params for name in (*each.opts, *each.secondary_opts))}
    return {words: options for name in below for words, options in walk(below[name], f"{path} {name}".strip()).items()}


if __name__ == "__main__":
    (script,) = entry_points(group="console_scripts", name="zae-limiter")
    print(json.dumps(walk(script.load())))
