"""The WSGI middleware on real servers over sockets: what clients get, and what is charged when all is over.

waitress runs in this process, on a store in memory; gunicorn in processes of its own that were forked from one that had
loaded the app, on a file shared with this one.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.web.servers import laws
from tests.web.servers.calls import HELLO, PER_CHUNK
from tests.web.servers.client import Connection
from tests.web.servers.site import Visit, served_by

site = served_by("waitress", "gunicorn-wsgi")


class TestAnswers(laws.Answers):
    """Answers that nothing disturbs."""

    def test_what_is_written_the_old_way_arrives(self, visit: Visit) -> None:
        assert visit.ask("/writes").body == HELLO * 2
        visit.settled(rpm=1, tpm=620)


class TestFailures(laws.Failures):
    """Apps that fail, and what of the charge stays."""

    def test_an_exception_at_the_first_byte_is_charged(self, visit: Visit) -> None:
        assert visit.ask("/fails-lazily").status == 500
        visit.settled(rpm=1, tpm=620)

    def test_what_was_written_the_old_way_stays_charged(self, visit: Visit) -> None:
        with visit.connect() as connection:
            connection.request("GET", "/breaks-written", visit.client)
            assert connection.head().status == 200
        visit.settled(rpm=1, tpm=620)

    @laws.leaving
    @pytest.mark.parametrize("after", [0, 1, 3])
    def test_who_leaves_a_stream_pays_for_what_was_sent(
        self, visit: Visit, leave: Callable[[Connection], None], after: int
    ) -> None:
        laws.leave_a_stream(visit, leave, after)
        visit.tell("go")
        visit.hear("over")
        (counted,) = visit.heard("counted")
        assert int(counted) >= after
        visit.settled(rpm=1, tpm=500 + PER_CHUNK * int(counted))


class TestRefusals(laws.Refusals):
    """Requests that never reach the app."""
