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


QUOTA = Limit.quota("tpd", 3_000, every="hour")
FAMILIES = {
    "rates": LIMITS,
    "soft": [LIMITS[0], Limit("tpm", 1_000, 333, 7, soft=True)],
    "quota": [LIMITS[0], QUOTA],
    "rollover": [LIMITS[0], Limit.quota("tpm", 1_000, every="hour", rollover=700)],
    "alerts": [LIMITS[0], Limit("tpm", 1_000, 333, 7, alerts=(0.5, 0.9))],
    "floors": [LIMITS[0], Limit("tpm", 1_000, 333, 7, floors=(("batch", 0.3),))],
}
"""The limits of the levels of a family: those of the organisation differ from those of the others."""

FAMILY_STEPS = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 999, 1_000, 60_000, HOUR_MS, -1_000, 30 * 24 * HOUR_MS]),
        st.sampled_from(["key-1", "key-2", "project", "org"]),
        st.fixed_dictionaries(
            {"rpm": st.sampled_from([0, 1, 5, 11])},
            optional={"tpm": st.sampled_from([0, 1, 300, 501]), "tpd": st.sampled_from([0, 7, 2_000])},
        ),
        st.sampled_from(["keep", "settle less", "settle more", "settle both", "fail", "late"]),
        st.sampled_from([0, 0, 1, 5_000, HOUR_MS]),
    ),
    max_size=14,
)


class Family(Client):
    """The same for two keys under a project under an organisation, whose limits may be of other kinds."""

    def __init__(self, *, in_place: bool, top: list[Limit]) -> None:
        super().__init__(in_place=in_place, lasting=False)
        self.limiter.create_entity("org")
        self.limiter.set_limits(
            "org", [*top, *(limit for limit in (*LIMITS, QUOTA) if limit.name not in {each.name for each in top})]
        )
        self.limiter.set_system_defaults([*LIMITS, QUOTA])
        self.limiter.create_entity("project", parent_id="org", cascade=True)
        for key in ("key-1", "key-2"):
            self.limiter.create_entity(key, parent_id="project", cascade=True)

    def move(self, wait_ms: int, who: str, cost: dict[str, int], end: str, held_ms: int) -> tuple[str, object]:
        """Let time pass, acquire, end the lease a while later; return what the caller saw."""
        self.clock.set_ms(max(START, self.clock.now_ms() + wait_ms))
        priority = "batch" if end == "keep" and any(limit.floors for limit in self.limiter.get_limits("org")) else None
        try:
            with self.limiter.acquire(who, "gpt-4", cost, priority=priority) as lease:
                self.clock.advance_ms(held_ms)
                if end == "settle less":
                    lease.settle({name: amount // 2 for name, amount in cost.items()})
                elif end == "settle more":
                    lease.settle({name: 2 * amount + 300 for name, amount in cost.items()})
                elif end == "settle both":
                    lease.settle({name: 0 if name == "rpm" else 3 * amount for name, amount in cost.items()})
                elif end == "fail":
                    raise ZeroDivisionError
            if end == "late":
                lease.exit(final=False)
        except RateLimitExceeded as refusal:
            return type(refusal).__name__, refusal.as_dict()
        except ZeroDivisionError:
            pass
        return "granted", (lease.consumed, lease.available, lease.overdrawn)

    def buckets(self) -> dict[str, Image]:
        """Return all buckets."""
        return {
            image["entity_id"]: {name: value for name, value in image.items() if name != "mk" and name[:3] != "GSI"}
            for image in self.store.images.values()
            if image.get("b_rpm_tk") is not None
        }


@pytest.mark.parametrize("kind", FAMILIES)
@given(FAMILY_STEPS)
def test_a_family_is_charged_and_settled_in_place_as_by_guarded_commits(
    kind: str, steps: list[tuple[int, str, dict[str, int], str, int]]
) -> None:
    one, other = Family(in_place=True, top=FAMILIES[kind]), Family(in_place=False, top=FAMILIES[kind])
    outcome = "granted"
    for wait_ms, who, cost, end, held_ms in steps:
        # A refusal in place has looked at the store, one by guarded commits need not: they know different instants.
        wait_ms = wait_ms if outcome == "granted" else max(0, wait_ms)
        found = one.move(wait_ms, who, cost, end, held_ms)
        outcome = found[0]
        assert found == other.move(wait_ms, who, cost, end, held_ms)
        assert one.buckets() == other.buckets()


@pytest.mark.parametrize("lasting", [False, True])
@given(STEPS)
def test_taking_in_place_leaves_the_same_bucket_as_a_guarded_commit(
    lasting: bool, steps: list[tuple[int, dict[str, int], str]]
) -> None:
    one, other = Client(in_place=True, lasting=lasting), Client(in_place=False, lasting=lasting)
    for step in steps:
        assert one.step(*step) == other.step(*step)
        assert one.bucket() == other.bucket()
