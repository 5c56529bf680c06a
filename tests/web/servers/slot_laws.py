"""What holds of slots on every server, ASGI or WSGI: never more calls than slots, and none is left when all is over."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import accumulate

import pytest

from tests.web.servers import laws
from tests.web.servers.calls import CHUNKS, HELLO
from tests.web.servers.client import Connection, Truncated
from tests.web.servers.site import Visit

MANY = 100


@contextlib.contextmanager
def asking(visit: Visit, path: str) -> Iterator[list[Connection]]:
    """Many connections, on each of which the same was asked."""
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(visit.connect()) for _ in range(MANY)]
        for connection in connections:
            connection.request("GET", path, visit.client)
        yield connections


def most_in_flight(visit: Visit) -> int:
    """The most calls that were in the handler at once; all have left it."""
    moves = [*accumulate(map(int, visit.heard("moves")))]
    assert moves[-1] == 0
    return max(moves)


class Slots:
    """Calls in flight."""

    def test_of_many_at_once_five_are_served_and_the_others_refused(self, visit: Visit) -> None:
        with asking(visit, "/five/holds") as connections:
            visit.hear("over", MANY - 5)
            visit.hear("moves", 5)  # who has a slot may not have come to the handler yet
            assert visit.in_flight() == 5
            visit.tell("go")
            answers = [connection.response() for connection in connections]
        assert Counter(answer.status for answer in answers) == {200: 5, 429: MANY - 5}
        visit.hear("over", MANY)
        assert most_in_flight(visit) == 5
        assert visit.in_flight() == 0
        for answer in answers:
            policy = answer.header("ratelimit-policy")
            assert policy == '"parallel";q=5;qu="concurrent-requests"'
            if answer.status == 200:
                assert answer.header("ratelimit") in [f'"parallel";r={free}' for free in range(5)]
                continue
            assert laws.is_refusal(answer)
            problem, wait = answer.json(), answer.header("retry-after")
            assert answer.header("ratelimit") == f'"parallel";r=0;t={wait}'
            assert (problem["violated-policies"], problem["at_latest"]) == (["parallel"], True)
            assert (problem["limits"][0]["in_flight"], problem["limits"][0]["remaining"]) == (5, 0)

    def test_of_many_that_wait_five_are_served_at_once(self, visit: Visit) -> None:
        with asking(visit, "/queue/gathers") as connections:
            answers = [connection.response() for connection in connections]
        assert {(answer.status, answer.body) for answer in answers} == {(200, HELLO)}
        visit.hear("over", MANY)
        assert most_in_flight(visit) == 5
        assert visit.in_flight("queue") == 0

    @pytest.mark.parametrize("path", ["plain", "nothing", "empty", "file", "adjusted", "raises-late"])
    def test_an_answer_frees_its_slot(self, visit: Visit, path: str) -> None:
        """Also the next request on the same connection finds it free, as soon as it has the answer."""
        for _ in range(7):
            with visit.connect() as connection:
                assert connection.ask("GET", f"/five/{path}", visit.client).status < 300
        visit.hear("over", 7)
        assert visit.in_flight() == 0

    def test_head_frees_its_slot(self, visit: Visit) -> None:
        assert visit.ask("/five/plain", "HEAD").status == 200
        visit.hear("over")
        assert visit.in_flight() == 0

    def test_a_failure_frees_its_slot(self, visit: Visit) -> None:
        assert visit.ask("/five/fails").status == 500
        visit.hear("over")
        assert visit.in_flight() == 0

    def test_a_body_that_breaks_off_frees_its_slot(self, visit: Visit) -> None:
        with visit.connect() as connection:
            connection.request("GET", "/five/breaks", visit.client)
            assert connection.head().status == 200
            assert connection.piece() == CHUNKS[0]
            assert visit.in_flight() == 1
            visit.tell("seen")
            with pytest.raises((Truncated, ConnectionResetError)):
                connection.piece()
        visit.hear("over")
        assert visit.in_flight() == 0

    @pytest.mark.parametrize("path", ["stream", "events"])
    def test_a_stream_holds_its_slot_to_its_end(self, visit: Visit, path: str) -> None:
        with visit.connect() as connection:
            connection.request("GET", f"/five/{path}", visit.client)
            assert connection.head().status == 200
            for _ in range(5):
                assert connection.piece()
                assert visit.in_flight() == 1
                visit.tell("seen")
            assert connection.piece() == b""
        visit.hear("over")
        assert visit.in_flight() == 0

    @laws.leaving
    @pytest.mark.parametrize("after", [0, 1, 3])
    def test_who_leaves_a_stream_frees_its_slot(
        self, visit: Visit, leave: Callable[[Connection], None], after: int
    ) -> None:
        laws.leave_a_stream(visit, leave, after, "/five/counts", seen=lambda: visit.in_flight() == 1)
        if visit.site.is_deaf:
            visit.tell("go")
        visit.hear("over")
        assert visit.in_flight() == 0

    @laws.leaving
    def test_who_leaves_a_flood_frees_its_slot(self, visit: Visit, leave: Callable[[Connection], None]) -> None:
        with visit.connect() as connection:
            connection.request("GET", "/five/floods", visit.client)
            connection.head()
            visit.hear("sent")
            assert visit.in_flight() == 1
            leave(connection)
        visit.hear("over")
        assert visit.in_flight() == 0

    @laws.leaving
    def test_who_leaves_before_the_first_byte_frees_its_slot_when_the_app_is_done(
        self, visit: Visit, leave: Callable[[Connection], None]
    ) -> None:
        with visit.connect() as connection:
            connection.request("GET", "/five/holds", visit.client)
            visit.hear("moves")
            assert visit.in_flight() == 1
            leave(connection)
        visit.tell("go")
        visit.hear("over")
        assert visit.in_flight() == 0
