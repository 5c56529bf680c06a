"""The conformance suite: what every store has to do, as checks that any store can run.

Ten lines prove a store of your own, in both modes, with pytest::

    import pytest
    from zae_limiter.testing import Harness
    from zae_limiter.testing.conformance import CHECKS

    @pytest.mark.parametrize("blocking", [False, True], ids=["async", "blocking"])
    @pytest.mark.parametrize("check", CHECKS, ids=str)
    def test_my_store(check, blocking, tmp_path):
        check.run(Harness(lambda clock, blocking: MyStore(tmp_path, clock, blocking), blocking=blocking))

The function given to `Harness` opens one more client of the *same* data each time it is called, and its clients
decide by the clock they are given. Checks use keys and namespaces of their own, so they may share one database,
and they close what they open. Nothing here needs pytest: a check that fails raises AssertionError.

What a store cannot do it declares, by the name of the check and with a reason::

    CHECKS = deviating(CHECKS, {"values.big_numbers": "numbers are doubles here"})

A declared deviation is still run, shows its reason in the name of the check, and has to fail.

The checks are about the four verbs and the algebra of guarded writes, which is all that a limiter asks of a store. That
the limiter keeps its laws on any store that passes them is proved in the tests of this project.
"""

from . import commits, expiry, guards, lifecycle, ranges, values, writes
from .check import Check, checks_of, deviating

STORE_CHECKS: tuple[Check, ...] = tuple(
    check
    for module in (guards, writes, commits, expiry, values, ranges, lifecycle)
    for check in checks_of(vars(module))
)
"""What every store has to do."""

CHECKS = STORE_CHECKS
"""All public checks: those of a store. The project adds its own for the limiter in `tests/conformance`."""

__all__ = ["CHECKS", "STORE_CHECKS", "Check", "deviating"]
