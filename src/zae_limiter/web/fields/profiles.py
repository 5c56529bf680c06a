"""The profiles by name, and which of them go together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...core.errors import ValidationError
from .customary import openai, x_ratelimit
from .ietf import ietf_07, ietf_11

if TYPE_CHECKING:
    from .policy import Profile

PROFILES: dict[str, Profile] = {
    "ietf": ietf_11,
    "ietf-11": ietf_11,
    "ietf-07": ietf_07,
    "x-ratelimit": x_ratelimit,
    "openai": openai,
}
"""The profiles by name; ``none`` is the absence of all."""


def check_profiles(value: object) -> tuple[str, ...]:
    """The names of profiles; there are none in ``none``."""
    names = (value,) if isinstance(value, str) else value
    known = f"one or several of {', '.join(PROFILES)}, or none"
    if not isinstance(names, Sequence):
        raise ValidationError("profiles", value, f"must be {known}")
    for name in names:
        if name != "none" and (not isinstance(name, str) or name not in PROFILES):
            raise ValidationError("profiles", name, f"is no profile; choose {known}")
    if "none" in names and len(names) > 1:
        raise ValidationError("profiles", value, "asks for fields and for none; leave one of them out")
    if len({name.partition("-")[0] for name in names}) < len(names):
        raise ValidationError("profiles", value, "has profiles twice that share their field names; keep one of them")
    return tuple(name for name in names if name != "none")
