"""Numbers that tell buckets apart that were made in the same millisecond."""

from __future__ import annotations

import os
from itertools import count

serials = count(int.from_bytes(os.urandom(4)))
"""Consecutive in a process, and begun at random in each."""
