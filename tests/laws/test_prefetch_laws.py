"""The laws and the conformance suite with tokens that are drawn in advance: half a second ahead, and a minute.

Half a second ahead only what is asked for often is drawn in advance, as in earnest. A minute ahead nearly everything
is, so that the few moves of a scenario meet it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance import LIMITER_CHECKS, Check
from tests.laws import test_laws
from tests.support.backends import PREFETCHING, Backend

if TYPE_CHECKING:
    from collections.abc import Callable

    from zae_limiter.testing import Harness

LAWS: list[Callable[[Backend, Harness], None]] = [
    test_laws.test_law_1_never_over_admit,
    test_laws.test_law_1_with_buckets_that_expire,
    test_laws.test_law_2_refill_is_exact,
    test_laws.test_law_3_the_promised_moment,
    test_laws.test_law_4_all_or_nothing,
    test_laws.test_law_5_not_yet_and_never,
    test_laws.test_law_6_a_clock_that_is_behind,
]

LAWFUL = [check for check in LIMITER_CHECKS if check.name.startswith("lawful.")]

SOME = {"sqlite-async", "redis-async", "dynamodb-blocking"}
CHOSEN = [backend for backend in PREFETCHING if str(backend).rpartition("-prefetch")[0] in SOME]
"""Every kind of server, and both modes."""
AHEAD = [
    backend for backend in CHOSEN if backend.prefetch < 1 and str(backend).startswith(("sqlite-async", "dynamodb"))
]
"""Most checks ask for so little that nothing is drawn in advance: two are enough to see that."""
FAR_AHEAD = [backend for backend in CHOSEN if backend.prefetch > 1]


@pytest.mark.parametrize("backend", FAR_AHEAD, ids=str, indirect=True)
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__.removeprefix("test_"))
def test_the_laws_hold_a_minute_ahead(
    law: Callable[[Backend, Harness], None], backend: Backend, harness: Harness
) -> None:
    law(backend, harness)


@pytest.mark.parametrize("backend", FAR_AHEAD, ids=str, indirect=True)
@pytest.mark.parametrize("check", LAWFUL, ids=str)
def test_lawful_a_minute_ahead(check: Check, harness: Harness) -> None:
    check.run(harness)


@pytest.mark.parametrize("backend", AHEAD, ids=str, indirect=True)
@pytest.mark.parametrize("check", LIMITER_CHECKS, ids=str)
def test_the_limiter_conforms_half_a_second_ahead(check: Check, harness: Harness) -> None:
    check.run(harness)
