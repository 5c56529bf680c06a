"""Whether the limits of a parent limit a child: they are charged by name."""

from __future__ import annotations

from collections.abc import Iterable

from .limit import Limit


def share_no_name(own: Iterable[Limit], above: Iterable[Limit]) -> bool:
    """Return whether limits of a parent limit nothing of a child, as none has the name of one of the child's.

    A concurrency limit counts whatever its name is.
    """
    theirs = list(above)
    names_above, names_own = {limit.name for limit in theirs}, {limit.name for limit in own}
    slotted = any(limit.is_concurrency for limit in theirs)
    return bool(names_own) and bool(names_above) and not slotted and names_own.isdisjoint(names_above)
