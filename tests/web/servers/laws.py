"""What holds on every server, ASGI or WSGI: answers arrive unchanged, and when all is over the balance is exact."""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Callable

import pytest

from tests.web.apps import COST, FULL, NARROW
from tests.web.servers.calls import CHUNKS, HELLO, PER_CHUNK
from tests.web.servers.client import Connection, Response, Truncated
from tests.web.servers.site import BLOB, Visit

MANY = 100
LEAVING = {"closes": Connection.close, "resets": Connection.reset}
"""The two ways to hang up."""

leaving = pytest.mark.parametrize("leave", LEAVING.values(), ids=LEAVING)


def leave_a_stream(
    visit: Visit,
    leave: Callable[[Connection], None],
    after: int,
    path: str = "/counts",
    seen: Callable[[], bool] = lambda: True,
) -> None:
    """Hang up when so many chunks have come, the app waits, and ``seen`` says that all is as it should be then."""
    with visit.connect() as connection:
        connection.request("GET", f"{path}?after={after}", visit.client)
        if after:
            connection.head()
        assert [connection.piece() for _ in range(after)] == [CHUNKS[0]] * after
        visit.hear("paused")
        assert seen()
        leave(connection)


def is_refusal(answer: Response) -> bool:
    """Whether it is the whole of a 429."""
    problem = answer.json()
    assert answer.header("content-type") == "application/problem+json"
    assert answer.header("cache-control") == "no-store"
    assert answer.header("content-length") == str(len(answer.body))
    assert answer.header("retry-after") == str(problem["retryAfter"])
    assert problem["retryAfter"] >= 1
    return bool(answer.status == problem["status"] == 429)


class Answers:
    """Answers that nothing disturbs."""

    @pytest.mark.parametrize(
        ("path", "status", "body", "tpm"),
        [
            ("/plain", 200, HELLO, 500),
            ("/adjusted", 200, HELLO, 620),
            ("/released", 200, HELLO, 200),
            ("/nothing", 204, b"", 500),
            ("/empty", 200, b"", 500),
            ("/file", 200, BLOB, 500),
        ],
        ids=lambda value: value if isinstance(value, str) else None,
    )
    def test_an_answer_arrives_whole_and_is_charged(
        self, visit: Visit, path: str, status: int, body: bytes, tpm: int
    ) -> None:
        answer = visit.ask(path)
        assert (answer.status, answer.body) == (status, body)
        visit.settled(rpm=1, tpm=tpm)

    def test_a_connection_is_kept(self, visit: Visit) -> None:
        with visit.connect() as connection:
            for path in ("/plain", "/adjusted", "/empty", "/cookies", "/plain"):
                assert connection.ask("GET", path, visit.client).status in (200, 201)
        visit.settled(5, rpm=5, tpm=2620)

    def test_a_chunk_arrives_before_the_next_one_is_made(self, visit: Visit) -> None:
        with visit.connect() as connection:
            connection.request("GET", "/stream", visit.client)
            assert connection.head().status == 200
            for chunk in CHUNKS:
                assert connection.piece() == chunk
                visit.charged(**COST)
                visit.tell("seen")
            assert connection.piece() == b""
        visit.settled(**COST)

    def test_each_event_costs_what_it_says(self, visit: Visit) -> None:
        with visit.connect() as connection:
            connection.request("GET", "/events", visit.client)
            assert (connection.head().header("content-type") or "").startswith("text/event-stream")
            for number in range(5):
                assert connection.piece() == f"data: {number}\n\n".encode()
                visit.charged(**COST)
                visit.tell("seen")
            assert connection.piece() == b""
        visit.settled(rpm=1, tpm=500 + 5 * PER_CHUNK)

    @pytest.mark.parametrize("path", ["/plain", "/free/plain"])
    def test_head_has_no_body(self, visit: Visit, path: str) -> None:
        with visit.connect() as connection:
            for _ in range(2):
                answer = connection.ask("HEAD", path, visit.client)
                assert (answer.status, answer.header("content-length"), answer.body) == (200, "5", b"")
            assert connection.ask("GET", path, visit.client).body == HELLO
        visit.settled(3, **({} if "free" in path else {"rpm": 3, "tpm": 1500}))

    def test_headers_of_the_app_are_kept_and_ours_added(self, visit: Visit) -> None:
        answer = visit.ask("/cookies")
        assert answer.status == 201
        assert answer.every("set-cookie") == ["a=1", "b=2"]
        assert answer.every("x-app") == ["kept"]
        assert answer.every("vary") == ["Accept"]
        assert (answer.header("ratelimit-policy") or "").startswith('"rpm";q=1;w=86400')
        assert (answer.header("ratelimit") or "").startswith('"rpm";r=99;t=')

    def test_an_exempt_path_is_left_alone(self, visit: Visit) -> None:
        visit.spend(**FULL)
        answer = visit.ask("/free/plain")
        assert (answer.status, answer.body, answer.header("ratelimit")) == (200, HELLO, None)

    def test_in_two_lines_it_goes_by_the_address(self, visit: Visit) -> None:
        before = visit.left("http", client="ip:127.0.0.1")
        answer = visit.ask("/simple/plain")
        visit.hear("over")
        assert answer.body == HELLO
        assert visit.left("http", client="ip:127.0.0.1") == {**before, "rpm": before["rpm"] - 1}

    def test_a_body_arrives_as_it_was_sent(self, visit: Visit) -> None:
        expected = f"{len(BLOB)} {hashlib.sha256(BLOB).hexdigest()}".encode()
        with visit.connect() as connection:
            assert connection.ask("POST", "/upload", visit.client, body=BLOB).body == expected
            connection.request("POST", "/upload", visit.client, headers=[("Transfer-Encoding", "chunked")])
            for start in range(0, len(BLOB), 100_000):
                piece = BLOB[start : start + 100_000]
                connection.send(b"%x\r\n%b\r\n" % (len(piece), piece))
            connection.send(b"0\r\n\r\n")
            assert connection.response().body == expected
        visit.settled(2, rpm=2, tpm=1000)

    def test_a_body_waits_for_100_continue(self, visit: Visit) -> None:
        headers = [("Expect", "100-continue"), ("Content-Length", str(len(BLOB)))]
        with visit.connect() as connection:
            connection.request("POST", "/upload", visit.client, headers=headers)
            assert connection.head().status == 100
            connection.send(BLOB)
            assert connection.response().body == f"{len(BLOB)} {hashlib.sha256(BLOB).hexdigest()}".encode()
        visit.settled(**COST)

    def test_of_many_at_once_as_many_pass_as_may(self, visit: Visit) -> None:
        with contextlib.ExitStack() as stack:
            connections = [stack.enter_context(visit.connect()) for _ in range(MANY)]
            for connection in connections:
                connection.request("GET", "/narrow/plain", visit.client)
            statuses = Counter(connection.response().status for connection in connections)
        assert statuses == {200: 10, 429: MANY - 10}
        assert len(visit.heard("called")) == 10
        visit.hear("over", MANY)
        assert visit.left("narrow", NARROW) == {"rpm": 0}


class Failures:
    """Apps that fail, and what of the charge stays."""

    def test_an_exception_before_the_start_is_charged(self, visit: Visit) -> None:
        assert visit.ask("/fails").status == 500
        visit.settled(rpm=1, tpm=620)

    def test_after_the_start_what_was_adjusted_is_charged(self, visit: Visit) -> None:
        with visit.connect() as connection:
            connection.request("GET", "/breaks", visit.client)
            assert connection.head().status == 200
            assert connection.piece() == CHUNKS[0]
            visit.tell("seen")
            with pytest.raises((Truncated, ConnectionResetError)):
                connection.piece()
        visit.settled(rpm=1, tpm=620)

    def test_after_the_end_the_answer_has_arrived(self, visit: Visit) -> None:
        answer = visit.ask("/raises-late")
        assert (answer.status, answer.body) == (200, HELLO)
        visit.settled(rpm=1, tpm=620)

    @pytest.mark.parametrize(
        ("path", "status"), [("/takes-more", 429), ("/takes-too-much", 413), ("/loses-store", 503)]
    )
    def test_a_refusal_inside_the_app_is_answered_and_costs_nothing(self, visit: Visit, path: str, status: int) -> None:
        answer = visit.ask(path)
        assert (answer.status, answer.json()["status"]) == (status, status)
        visit.settled()

    @leaving
    def test_who_leaves_before_the_first_byte_pays(self, visit: Visit, leave: Callable[[Connection], None]) -> None:
        with visit.connect() as connection:
            connection.request("GET", "/waits", visit.client)
            visit.hear("waiting")
            leave(connection)
        visit.tell("go")
        visit.hear("over")
        visit.settled(rpm=1, tpm=500 + 120 * len(visit.heard("adjusted")))

    @leaving
    def test_who_leaves_a_flood_pays_for_what_was_sent(self, visit: Visit, leave: Callable[[Connection], None]) -> None:
        with visit.connect() as connection:
            connection.request("GET", "/floods", visit.client)
            connection.head()
            visit.hear("sent")
            leave(connection)
        visit.hear("over")
        (counted,) = visit.heard("counted")
        assert int(counted) > 0
        visit.settled(rpm=1, tpm=500 + PER_CHUNK * int(counted))


class Refusals:
    """Requests that never reach the app."""

    def test_a_refusal_takes_nothing_and_keeps_the_connection(self, visit: Visit) -> None:
        visit.spend(tpm=99_600)
        with visit.connect() as connection:
            assert is_refusal(connection.ask("GET", "/plain", visit.client))
            bare = connection.ask("HEAD", "/plain", visit.client)
            assert (bare.status, bare.body, int(bare.header("content-length") or 0) > 0) == (429, b"", True)
            assert is_refusal(connection.ask("POST", "/plain", visit.client, body=b"little"))
            assert connection.ask("GET", "/free/plain", visit.client).body == HELLO
        visit.settled(4, tpm=99_600)
        assert visit.heard("called") == ["GET"]

    def test_a_refusal_does_not_wait_for_the_body(self, visit: Visit) -> None:
        visit.spend(tpm=99_600)
        with visit.connect() as connection:
            connection.request("POST", "/upload", visit.client, headers=[("Content-Length", str(len(BLOB)))])
            early = len(BLOB) if visit.site.reads_ahead else 1000
            connection.send(BLOB[:early])
            assert is_refusal(connection.response())
            if visit.site.keeps:
                connection.send(BLOB[early:])
                assert connection.ask("GET", "/free/plain", visit.client).body == HELLO
            else:
                with contextlib.suppress(OSError):
                    connection.send(BLOB[early:])
                assert connection.ended()
        visit.hear("over")
        visit.charged(tpm=99_600)
        assert visit.heard("called") == ["GET"] * visit.site.keeps

    def test_a_refusal_asks_for_no_body(self, visit: Visit) -> None:
        visit.spend(tpm=99_600)
        headers = [("Expect", "100-continue"), ("Content-Length", str(len(BLOB)))]
        with visit.connect() as connection:
            connection.request("POST", "/upload", visit.client, headers=headers)
            assert connection.head().status == (100 if visit.site.hurries else 429)

    def test_a_cost_above_the_capacity_is_another_answer(self, visit: Visit) -> None:
        answer = visit.ask("/costly/plain")
        assert (answer.status, answer.header("retry-after")) == (413, None)
        assert answer.header("content-type") == "application/problem+json"
        visit.settled()
        assert visit.heard("called") == []

    def test_without_a_store_the_policy_decides(self, visit: Visit) -> None:
        answer = visit.ask("/blocked/plain")
        assert (answer.status, answer.json()["status"]) == (503, 503)
        assert int(answer.header("retry-after") or 0) >= 1
        assert visit.heard("called") == []
        for path in ("/allowed/plain", "/allowed/adjusted"):
            answer = visit.ask(path)
            assert (answer.status, answer.body, answer.header("ratelimit")) == (200, HELLO, None)
