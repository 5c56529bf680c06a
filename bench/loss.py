"""All or nothing: what a refusal by the second limit costs at the first."""

from __future__ import annotations

from itertools import count

from bench.rivals.port import Quota, Rival
from bench.workloads import BOTH, ONE

RPM, TPM = Quota("rpm", 100, 3600), Quota("tpm", 2_500, 3600)
ASKED = 25
"""Of which the second limit admits five."""


def measured(rival: Rival, url: str) -> int:
    """Tokens of the first limit that are gone although nothing was granted for them."""
    taker = rival.open(url, (RPM, TPM))
    granted = sum([taker.take("lost", BOTH) for _ in range(ASKED)])
    left = next(number for number in count() if not taker.take("lost", ONE))
    taker.close()
    return RPM.amount - granted - left
