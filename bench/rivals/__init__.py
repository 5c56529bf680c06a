"""The rivals for the same workloads, ours first."""

from __future__ import annotations

from importlib.util import find_spec

from bench.rivals.limits_library import FIXED, SLIDING
from bench.rivals.ours import OURS
from bench.rivals.port import Rival
from bench.rivals.pyrate_library import PYRATE
from bench.rivals.throttled_library import THROTTLED

RIVALS: dict[str, Rival] = {each.name: each for each in (OURS, FIXED, SLIDING, THROTTLED, PYRATE)}


def _reserving() -> tuple[Rival, ...]:
    """Those that need Python 3.12, and so an environment of their own: none in the others."""
    if find_spec("token_throttle") is None:
        return ()
    from bench.rivals.llmratelimiter_library import LLM_RATE_LIMITER
    from bench.rivals.token_throttle_library import TOKEN_THROTTLE

    return TOKEN_THROTTLE, LLM_RATE_LIMITER


RESERVING: dict[str, Rival] = {each.name: each for each in (OURS, *_reserving())}
"""Those that reserve an estimate and settle it."""
