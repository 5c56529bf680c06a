"""How much work a path makes before any limit is asked: it grows with the length of the path, up to a longest one."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.web.drive import PEER
from tests.web.pattern_steps import Steps
from tests.web.scripted import Site, limiter_for
from zae_limiter import Limit
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import ManualClock
from zae_limiter.web import Answer, Rule, paths as paths_module
from zae_limiter.web.paths import LONGEST, Prefix, read_path
from zae_limiter.web.templates import Template

RPM = Limit.per_day("rpm", 10)
IP = f"ip:{PEER}"
TEMPLATES = (
    "/v1/chat",
    "/{a}/{b}/{c}/x",
    "/{a}{b}{c}",
    "/{a}-{b}-{c}.json",
    "/{a:int}-{b:float}-{c:uuid}",
    "/{rest:path}",
    "/{rest:path}/raw",
    "/{a:path}/{b:path}",
    "/{a:path}/x/{b:path}/y",
    "/{a:path}/{b}/x/{c:path}/{d}-{e}/y",
    "/{a:path}/{b:path}/{c:path}/{d:path}/y",
    "/x{a:path}-{b}",
    "/{a:path}-{b:path}.json",
    "/{tenant}/{a:path}.{b}/y/*",
)
UNITS = (
    "/a",
    "/x",
    "/",
    "a",
    "-",
    "/-",
    "x-",
    "/x/",
    "1",
    "/..",
    ".json",
    "/raw",
    "/x/y",
    "\n",
    "/\n",
    "/a-a/y",
    "//x/y",
)


@pytest.fixture(params=["asgi", "wsgi"])
def mode(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def site_of(mode: str, *rules: Rule, **options: Any) -> Site:
    return Site(mode, limiter_for(mode, MemoryStore(ManualClock())), rules=rules or None, **options)


@pytest.mark.parametrize("text", TEMPLATES)
@pytest.mark.parametrize("way", ["exactly", "loosely"])
def test_the_work_of_a_template_grows_no_faster_than_the_path(text: str, way: str) -> None:
    template = Template(text)
    pattern = template._exact if way == "exactly" else template._loose
    for unit in UNITS:
        for start in ("/", "", "/x", "/v1/chat/"):
            counts = []
            for number in (60, 120, 240):
                path = start + unit * number
                steps = Steps(pattern, path)
                assert steps.matched == (pattern.fullmatch(path) is not None), (path, pattern.pattern)
                counts.append(steps.count)
            assert counts[1] <= 2 * counts[0] + 100, (unit, start, counts)
            assert counts[2] <= 2 * counts[1] + 100, (unit, start, counts)


def test_the_count_of_steps_sees_work_that_grows_faster() -> None:
    """What the patterns of templates would be without atomic groups."""
    pattern = re.compile("/.*/x/.*/y", re.DOTALL)
    few, many = (Steps(pattern, "/x" * number).count for number in (60, 120))
    assert many > 3 * few


def test_a_path_is_read_once_however_many_rules_there_are(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []

    def counted(path: str, *others: Any) -> Any:
        reads.append(path)
        return read_path(path, *others)

    monkeypatch.setattr(paths_module, "read_path", counted)
    rules = [Rule([f"/a/{number}", f"/b/{number}"], limits=[RPM]) for number in range(20)]
    site = site_of(mode, *rules, limits=[RPM])
    site.ask("/v1//x/../chat/")
    assert reads == ["/v1//x/../chat/"]


@pytest.mark.parametrize("unit", UNITS)
def test_a_path_is_read_in_a_number_of_ways_that_does_not_grow_with_it(unit: str) -> None:
    prefixes = [
        Prefix("/x", anywhere=True),
        Prefix("/x/y"),
        Prefix("/a"),
    ]
    for start in ("/", "", "/x", "http:"):
        few, many = (read_path(start + unit * number, prefixes) for number in (60, 4_000))
        assert len(many.others) == len(few.others) <= 24
        assert max(map(len, (many.main, *many.others))) <= len(start + unit * 4_000) + 1


def test_a_path_that_is_too_long_is_answered_with_414(mode: str) -> None:
    site = site_of(mode, Rule("/v1/{rest:path}", limits=[RPM], resource="v1"), limits=[RPM])
    longest = "/v1/" + "a" * (LONGEST - 4)
    assert site.ask(longest).status == 200
    reply = site.ask(f"{longest}a")
    assert reply.status == 414
    assert str(LONGEST) in reply.problem()["detail"]
    assert reply.header("retry-after") is None
    assert site.left(IP, "v1", RPM) == {"rpm": 9}
    assert site.left(IP, "http", RPM) == {"rpm": 10}


def test_an_exemption_does_not_take_a_path_that_is_too_long(mode: str) -> None:
    site = site_of(mode, Rule("/static/*", exempt=True), limits=[RPM])
    assert site.ask("/static/" + "a" * LONGEST).status == 414


def test_a_path_of_any_length_is_served_where_no_rule_looks_at_it(mode: str) -> None:
    long = "/" + "a" * 60_000
    assert site_of(mode, limits=[RPM]).ask(long).status == 200
    by_header = Rule(lambda request: request.header("x-batch") == "1", limits=[RPM], resource="batch")
    assert site_of(mode, by_header).ask(long, headers=[("x-batch", "1")]).status == 200


def test_the_answer_to_a_path_that_is_too_long_can_be_another_one(mode: str) -> None:
    def respond(request: Any, answer: Answer, error: Exception) -> Answer:
        assert answer.status == 414
        return Answer(404, (("Content-Type", "text/plain"),), b"")

    site = site_of(mode, Rule("/v1/*", limits=[RPM]), respond=respond)
    assert site.ask("/" + "a" * LONGEST).status == 404
