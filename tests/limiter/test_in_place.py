"""A store inside the process: taking in place does to a bucket exactly what a guarded commit does."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from zae_limiter import Limit, RateLimitExceeded, SyncRateLimiter
from zae_limiter.records.algebra import Image
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.stores.port import UpdatesInPlace
from zae_limiter.testing import FaultyStore, ManualClock

START = 1_800_000_000_000
HOUR_MS = 3_600_000
LIMITS = [Limit("rpm", 10, 7, 60), Limit("tpm", 1_000, 333, 7)]

STEPS = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 999, 1_000, 60_000, HOUR_MS, 30 * 24 * HOUR_MS]),
        st.fixed_dictionaries(
            {"rpm": st.sampled_from([0, 1, 9, 10, 11])}, optional={"tpm": st.sampled_from([0, 1, 500, 1_001])}
        ),
        st.sampled_from(["keep", "adjust", "release", "fail", "limits"]),
    ),
    max_size=12,
)


class Client:
    """A blocking limiter over a memory store of its own, in place or by guarded commits."""

    def __init__(self, *, in_place: bool, lasting: bool) -> None:
        self.clock = ManualClock(START)
        self.store = MemoryStore(self.clock)
        store = self.store if in_place else FaultyStore(self.store)
        assert isinstance(store, UpdatesInPlace) == in_place
        self.limiter = SyncRateLimiter(store)
        self.limiter.set_system_defaults(LIMITS)
        if lasting:
            self.limiter.set_limits("key", LIMITS)

    def step(self, wait_ms: int, cost: dict[str, int], end: str) -> tuple[str, object]:
        """Let time pass, acquire, end the lease; return what the caller saw."""
        self.clock.set_ms(self.clock.now_ms() + wait_ms)
        try:
            with self.limiter.acquire("key", "gpt-4", cost) as lease:
                if end == "adjust":
                    lease.adjust(tpm=700)
                elif end == "release":
                    lease.release(rpm=cost["rpm"])
                elif end == "limits":
                    self.limiter.set_system_defaults([*LIMITS[:1], Limit("tpm", 900, 100, 7)])
                elif end == "fail":
                    raise ZeroDivisionError
        except RateLimitExceeded as refusal:
            return type(refusal).__name__, refusal.as_dict()
        except ZeroDivisionError:
            pass
        return "granted", (lease.consumed, lease.available)

    def bucket(self) -> Image | None:
        """Return the bucket without what is different in every bucket: the namespace and its serial number."""
        image = next((image for image in self.store.images.values() if image.get("b_rpm_tk") is not None), None)
        return image and {name: value for name, value in image.items() if name != "mk" and not name.startswith("GSI")}


@pytest.mark.parametrize("lasting", [False, True])
@given(STEPS)
def test_taking_in_place_leaves_the_same_bucket_as_a_guarded_commit(
    lasting: bool, steps: list[tuple[int, dict[str, int], str]]
) -> None:
    one, other = Client(in_place=True, lasting=lasting), Client(in_place=False, lasting=lasting)
    for step in steps:
        assert one.step(*step) == other.step(*step)
        assert one.bucket() == other.bucket()
