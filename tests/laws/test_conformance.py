"""The conformance suite: every store of ours passes it, and so does one of a screenful.

That the suite can fail is proved in `test_broken_stores` and `test_broken_ranges`.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.conformance import CHECKS, LIMITER_CHECKS, SHARD_CHECKS, STORE_CHECKS, Check, deviating
from tests.laws.toys import Distant, Hot, Toy, toys
from tests.support.backends import BACKENDS, Backend
from zae_limiter.records.algebra import (
    Image,
)
from zae_limiter.testing import Harness

if TYPE_CHECKING:
    from pathlib import Path

DEVIATIONS = {
    "memory": {"writes.what_was_written_stays": "nested values are kept as they are; the codecs copy them"},
    "dynamodb": {"commits.race_of_several_writes": "a transaction does not tell its images; they are read afterwards"},
}
"""What a store of ours declares not to do."""


@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_our_stores_conform(check: Check, backend: Backend, harness: Harness) -> None:
    declared = DEVIATIONS.get(backend.kind, {})
    (told,) = deviating([check], {name: why for name, why in declared.items() if name == check.name})
    told.run(harness)


SHARED = [each for each in BACKENDS if str(each) in ("sqlite-blocking", "redis-async")]
"""Stores whose one database all checks share, one of each mode."""


@pytest.mark.parametrize("sharing", SHARED, ids=str)
def test_checks_may_share_a_database(sharing: Backend, tmp_path: Path) -> None:
    failed = []
    with sharing.opener(tmp_path) as opener:
        for check in CHECKS:
            try:
                check.run(Harness(opener, blocking=sharing.blocking))
            except AssertionError as error:
                failed.append(f"{check}: {error}")
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("blocking", [False, True], ids=["async", "blocking"])
@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_a_store_of_a_screenful_conforms(check: Check, blocking: bool) -> None:
    check.run(toys(Toy, blocking))


@pytest.mark.parametrize("blocking", [False, True], ids=["async", "blocking"])
@pytest.mark.parametrize("check", LIMITER_CHECKS, ids=str)
@pytest.mark.parametrize("kind", [Distant, Hot])
def test_the_limiter_conforms_without_free_commits(kind: type[Toy], check: Check, blocking: bool) -> None:
    check.run(toys(kind, blocking))


@pytest.mark.parametrize("blocking", [False, True], ids=["async", "blocking"])
@pytest.mark.parametrize("check", SHARD_CHECKS, ids=str)
def test_the_limiter_conforms_where_buckets_are_split(check: Check, blocking: bool) -> None:
    check.run(toys(Hot, blocking))


@pytest.mark.parametrize("backend", [each for each in BACKENDS if each.kind == "dynamodb"], ids=str, indirect=True)
@pytest.mark.parametrize("check", SHARD_CHECKS, ids=str)
def test_our_store_that_splits_buckets_conforms(check: Check, harness: Harness) -> None:
    check.run(harness)


# Deviations are named, run all the same, and have to fail.


class Forgetful(Toy):
    """Does not keep expired records apart, and says so."""

    def live(self, image: Image | None) -> bool:
        return image is not None


def test_a_declared_deviation_is_named_and_run() -> None:
    checks = deviating(STORE_CHECKS, {"expiry.absent_for_reads": "records never expire here"})
    (deviating_one,) = [check for check in checks if check.deviation]
    assert str(deviating_one) == "expiry.absent_for_reads [deviates: records never expire here]"
    deviating_one.run(toys(Forgetful, True))


def test_a_deviation_that_is_none_is_an_error() -> None:
    (check,) = [each for each in deviating(STORE_CHECKS, {"guards.equal": "who knows"}) if each.deviation]
    with pytest.raises(AssertionError, match=r"guards\.equal holds, but a deviation is declared: 'who knows'"):
        check.run(toys(Toy, True))


def test_a_deviation_from_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"no such checks: guards\.equals"):
        deviating(STORE_CHECKS, {"guards.equals": "a slip of the pen"})


def test_checks_are_named_once_and_claim_something() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS) == len(STORE_CHECKS) + len(LIMITER_CHECKS)
    assert not {check.name for check in CHECKS} & {check.name for check in SHARD_CHECKS}
    assert all(check.claim for check in (*CHECKS, *SHARD_CHECKS))


def test_the_suite_needs_no_test_library() -> None:
    """A third party may run it with whatever it likes: importing it loads neither pytest nor hypothesis."""
    code = "import sys, zae_limiter.testing.conformance; print(sorted({'pytest', 'hypothesis'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_the_suite_works_without_assert_statements() -> None:
    """Under ``python -O`` it fails a broken store all the same."""
    code = "from zae_limiter.testing.conformance.check import *; same(1, 1.0, 'they differ in type')"
    found = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, text=True, check=False)
    assert "AssertionError: they differ in type" in found.stderr
