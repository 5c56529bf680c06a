"""One limit in several regions: what replication by the last writer loses, and what does not lose anything."""

from __future__ import annotations

import pytest
from bench.regions import TRAFFIC, Traffic, allowed, simulate

from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "operate" / "global-tables.md").read_text(encoding="utf-8")
BUSY, _, QUIET = TRAFFIC


@pytest.mark.parametrize("traffic", TRAFFIC, ids=lambda traffic: traffic.name.replace(" ", "-"))
@pytest.mark.parametrize("arrangement", ["shares", "home"])
def test_shares_and_a_home_region_never_admit_more_than_the_limit(traffic: Traffic, arrangement: str) -> None:
    found = simulate(traffic, 500, arrangement, seconds=10)
    assert found <= allowed(10)
    if traffic is not QUIET:
        assert found > 0.99 * allowed(10), "nothing is held back where all regions want more than their share"


def test_one_bucket_that_is_replicated_admits_the_limit_in_every_region() -> None:
    assert simulate(BUSY, 100, "shared", seconds=10) > 1.9 * allowed(10)


def test_a_region_that_is_hardly_used_gives_the_others_their_tokens_back() -> None:
    assert simulate(QUIET, 500, "shared", seconds=30) > 3 * allowed(30)


def test_the_page_shows_what_the_simulation_prints() -> None:
    found = [simulate(QUIET, 500, each) for each in ("shared", "shares", "home")]
    assert f"{QUIET.name:<28}{500:>9} ms{found[0]:>12}{found[1]:>8}{found[2]:>13}\n" in PAGE
