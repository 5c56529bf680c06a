"""Write what is stored as a limits file, which `plan` then finds equal to it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ..core.names import DEFAULT_RESOURCE
from ..records.config import Config
from .document import import_yaml
from .limits import write_limit
from .states import SYSTEM, Stored

_BARE = re.compile(r"[A-Za-z0-9_-]+\Z")


def export_data(stored: Stored) -> dict[str, Any]:
    """Return the content of a limits file that states all that is stored.

    An empty store has a system without limits: a file that states nothing at all is taken for a mistake.
    """
    data: dict[str, Any] = {}
    if SYSTEM in stored.levels:
        data["system"] = _export_level(stored.levels[SYSTEM])
    resources: dict[str, Any] = {}
    entities: dict[str, Any] = {entity_id: {} for entity_id in sorted(stored.entities)}
    for entity_id, entity in sorted(stored.entities.items()):
        given = {"name": None if entity.name == entity_id else entity.name, "parent": entity.parent_id}
        entities[entity_id] |= {field: value for field, value in given.items() if value is not None}
        entities[entity_id]["cascade"] = entity.cascade
    for (whose, resource), config in sorted(stored.levels.items(), key=lambda each: str(each[0])):
        if whose is None and resource is not None:
            resources[resource] = _export_level(config)
        elif whose is not None and resource == DEFAULT_RESOURCE:
            level = _export_level(config)
            if "cascade" in level:  # of the entity itself it is another thing
                below = {DEFAULT_RESOURCE: {"cascade": level.pop("cascade")}}
                entities.setdefault(whose, {}).setdefault("resources", {}).update(below)
            entities.setdefault(whose, {}).update(level)
        elif whose is not None:
            entities.setdefault(whose, {}).setdefault("resources", {})[resource] = _export_level(config)
    data |= {key: each for key, each in (("resources", resources), ("entities", entities)) if each}
    return data or {"system": {}}


def _export_level(config: Config) -> dict[str, Any]:
    made: dict[str, Any] = {
        "on_unavailable": config.on_unavailable and config.on_unavailable.value,
        "switch": config.access and config.access.value,
        "cascade": config.cascade,
        "limits": {limit.name: write_limit(limit) for limit in config.limits or ()} or None,
    }
    return {field: value for field, value in made.items() if value is not None}


def write_document(data: Mapping[str, Any], format: str) -> str:
    """Return the content of a limits file in ``yaml`` or ``toml``."""
    if format == "toml":
        return "\n".join(_write_tables(data, ())).strip() + "\n"
    text: str = import_yaml().safe_dump(dict(data), sort_keys=False, allow_unicode=True, default_flow_style=None)
    return text


def _write_tables(data: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    """Yield the lines of a table and of those below it. Mappings below ``limits`` are written on one line."""
    inline = bool(path) and path[-1] == "limits"
    tables = {} if inline else {key: each for key, each in data.items() if isinstance(each, Mapping)}
    plain = {key: each for key, each in data.items() if key not in tables}
    if path and (plain or not tables):
        yield f"\n[{'.'.join(map(_write_key, path))}]"
    for key, each in plain.items():
        yield f"{_write_key(key)} = {_write_value(each)}"
    for key, each in tables.items():
        yield from _write_tables(each, (*path, key))


def _write_key(key: str) -> str:
    return key if _BARE.match(key) else json.dumps(key, ensure_ascii=False)


def _write_value(value: object) -> str:
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_write_key(key)} = {_write_value(each)}' for key, each in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_write_value, value))}]"
    return json.dumps(value, ensure_ascii=False)
