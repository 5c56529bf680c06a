"""Everybody who does the same work, ours first."""

from bench.rivals.limits_library import FIXED, SLIDING
from bench.rivals.ours import OURS
from bench.rivals.port import Rival
from bench.rivals.pyrate_library import PYRATE
from bench.rivals.throttled_library import THROTTLED

RIVALS: dict[str, Rival] = {each.name: each for each in (OURS, FIXED, SLIDING, THROTTLED, PYRATE)}
