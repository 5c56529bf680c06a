"""Check hierarchies of entities."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .validation import ValidationError

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_DEPTH = 8
"""Most levels of a hierarchy, the entity itself included."""


def check_ancestry(entity_id: str, ancestors: Sequence[str], height: int = 1) -> None:
    """Raise `ValidationError` for a parent that would close a cycle or exceed `MAX_DEPTH`.

    ``ancestors`` starts with the parent and goes up; ``height`` is the number of levels from the entity down, itself
    included.
    """
    parent = ancestors[0] if ancestors else None
    if entity_id in ancestors:
        path = " -> ".join((entity_id, *ancestors[: ancestors.index(entity_id) + 1]))
        raise ValidationError("parent_id", parent, f"would close a cycle: {path}")
    if len(ancestors) + height > MAX_DEPTH:
        path = " -> ".join(ancestors)
        raise ValidationError("parent_id", parent, f"would make the hierarchy deeper than {MAX_DEPTH} levels: {path}")
