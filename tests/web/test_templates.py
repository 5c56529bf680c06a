"""Path templates: what they mean, and that no spelling of a path gets around a limit or into an exemption."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from zae_limiter import ValidationError
from zae_limiter.web.paths import normalise, read_path
from zae_limiter.web.templates import Template

FITTING = [
    ("/", "/"),
    ("/v1/chat", "/v1/chat"),
    ("/v1/items/{id}", "/v1/items/7"),
    ("/v1/items/{id}", "/v1/items/a b"),
    ("/v1/items/{id}/parts/{part}", "/v1/items/7/parts/x.y"),
    ("/v1/items/{id:int}", "/v1/items/7"),
    ("/v1/items/{id:str}", "/v1/items/seven"),
    ("/v1/items/{id:uuid}", "/v1/items/0b0c1f3e-9f2f-4a57-8a5a-0a5d3bb2a0f1"),
    ("/v1/prices/{price:float}", "/v1/prices/1.5"),
    ("/v1/{name}.json", "/v1/report.json"),
    ("/files/{rest:path}", "/files/a/b/c"),
    ("/files/{rest:path}/raw", "/files/a/b/raw"),
    ("/v1/*", "/v1"),
    ("/v1/*", "/v1/"),
    ("/v1/*", "/v1/a/b"),
    ("/*", "/"),
    ("/*", "/anything/at/all"),
    ("/tenants/{tenant}/*", "/tenants/t/x/y"),
    ("/v1.0/a+b(c)", "/v1.0/a+b(c)"),
    ("/café", "/café"),
    ("/a/b/", "/a/b/"),
]
STRANGERS = [
    ("/", "/x"),
    ("/v1/chat", "/v1/chats"),
    ("/v1/chat", "/v1"),
    ("/v1/chat", "/v2/chat"),
    ("/v1/chat", "/x/v1/chat"),
    ("/v1/items/{id}", "/v1/items"),
    ("/v1/items/{id}", "/v1/items/7/parts"),
    ("/v1/{name}.json", "/v1/report_json"),
    ("/files/{rest:path}/raw", "/files/a/b/cooked"),
    ("/v1/*", "/v10"),
    ("/v1/*", "/v10/a"),
    ("/v1.0/x", "/v1a0/x"),
]
BAD = {
    "v1/chat": "start with '/'",
    "": "start with '/'",
    "http://host/v1": "start with '/'",
    "/v1/{": "stray '{'",
    "/v1/}": "stray '}'",
    "/v1/{}": "stray '{'",
    "/v1/{a b}": "stray '{'",
    "/v1/{7}": "stray '{'",
    "/v1/{id:regex}": "stray '{'",
    "/v1/{{id}}": "stray '{'",
    "/v1/*/chat": "stray '*'",
    "/v1/**": "stray '*'",
    "/v1/*.js": "stray '*'",
    "/v1/*/": "stray '*'",
    "/v1*": "stray '*'",
}

SPELLINGS = {
    "slash at the end": "/v1/chat/",
    "slashes at the end": "/v1/chat///",
    "two slashes in front": "//v1/chat",
    "two slashes inside": "/v1//chat",
    "slashes all over": "///v1////chat//",
    "no slash in front": "v1/chat",
    "absolute form": "http://testserver/v1/chat",
    "absolute form, no authority": "http:/v1/chat",
    "absolute form, any scheme": "a+b-c.9:/v1/chat",
    "absolute form, port": "https://user:pass@testserver:8443/v1/chat",
    "absolute form, encoded parameters": "http://testserver/v1/chat;a=b",
    "absolute form, encoded query": "http://testserver/v1/chat?a=b",
    "absolute form, encoded fragment": "http://testserver/v1/chat#a",
    "no slash in front, parameters": "v1/chat;a",
    "line feed at the end": "/v1/chat\n",
    "slash and line feed at the end": "/v1/chat/\n",
    "upper case": "/V1/CHAT",
    "mixed case": "/v1/Chat",
    "dot segment": "/v1/./chat",
    "dot segment in front": "/./v1/chat",
    "dot segment at the end": "/v1/chat/.",
    "dot segment, no slash in front": "./v1/chat",
    "parent segment": "/v1/x/../chat",
    "parent segment in front": "/../v1/chat",
    "parent segment at the end": "/v1/chat/x/..",
    "through another path": "/static/../v1/chat",
    "dots and slashes": "//static/..//v1/.//chat",
}

BY_HANDLER = {
    "path parameter, empty": ("/files/{rest:path}", "/files/"),
    "path parameter, empty inside": ("/files/{rest:path}/raw", "/files//raw"),
    "path parameter, nothing": ("/files/{rest:path}", "/files"),
    "path parameter, slashes": ("/files/{rest:path}", "/files///a"),
    "path parameter, parents": ("/v1/{rest:path}", "/v1/../public/x"),
    "path parameter, parents inside": ("/v1/{rest:path}", "/v1/a/../../public"),
    "below, parents": ("/v1/*", "/v1/../public/x"),
    "parameter, parent": ("/v1/{name}", "/v1/.."),
    "parameter, dot": ("/v1/{name}", "/v1/."),
    "parameter, line feed": ("/v1/{name}", "/v1/a\n"),
    "template of odd case": ("/V1/Chat", "/V1/Chat"),
    "template with a slash at the end": ("/v1/chat/", "/v1/chat"),
    "root, line feed": ("/", "/\n"),
}
"""Template and path: an app routes the path as it stands, and to the handler of the template."""


def fits(template: str, path: str) -> bool:
    """Whether a rule that limits is for the path."""
    paths = read_path(path)
    return any(Template(template).matches_loosely(text) for text in (paths.main, *paths.others))


def is_exempt(template: str, path: str) -> bool:
    """Whether a rule that exempts is for the path."""
    paths = read_path(path)
    return paths.plain and Template(template).matches_exactly(paths.main)


@pytest.mark.parametrize(("template", "path"), FITTING)
def test_it_fits(template: str, path: str) -> None:
    assert fits(template, path)
    assert is_exempt(template, path)


@pytest.mark.parametrize(("template", "path"), STRANGERS)
def test_it_does_not_fit(template: str, path: str) -> None:
    assert not fits(template, path)
    assert not is_exempt(template, path)


@pytest.mark.parametrize("text", BAD)
def test_a_bad_template_says_what_is_wrong(text: str) -> None:
    with pytest.raises(ValidationError) as raised:
        Template(text)
    assert raised.value.field == "match"
    assert raised.value.value == text
    assert BAD[text] in raised.value.reason


@pytest.mark.parametrize("value", [None, 7, b"/v1", ["/v1"], object])
def test_a_template_is_a_text(value: object) -> None:
    with pytest.raises(ValidationError, match="must be a path template such as") as raised:
        Template(value)
    assert (raised.value.field, raised.value.value) == ("match", value)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_one_resource_spelt_in_many_ways_is_limited(spelling: str) -> None:
    path = SPELLINGS[spelling]
    assert fits("/v1/chat", path)
    assert fits("/v1/{name}", path)
    assert fits("/v1/*", path)
    assert fits("/{rest:path}", path)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_no_odd_spelling_is_exempted(spelling: str) -> None:
    path = SPELLINGS[spelling]
    assert not is_exempt("/v1/chat", path)


ELSEWHERE = {
    "parents": "/static/../v1/chat",
    "parents at the end": "/static/..",
    "parents, upper case": "/static/../V1/Chat",
    "slashes": "/static//../v1/chat",
    "slashes only": "/static//v1/chat",
    "slashes at the end": "/static//",
    "dot": "/static/./v1/chat",
    "line feed": "/static/v1/chat\n",
    "upper case": "/STATIC/v1/chat",
    "no slash in front": "static/v1/chat",
    "absolute form": "http://testserver/static/v1/chat",
    "absolute form of another path": "http:/static/../v1/chat",
}


@pytest.mark.parametrize("spelling", ELSEWHERE)
@pytest.mark.parametrize("template", ["/static/*", "/static/{rest:path}"])
def test_an_exemption_of_all_below_lets_no_odd_spelling_in(template: str, spelling: str) -> None:
    assert not is_exempt(template, ELSEWHERE[spelling])


@pytest.mark.parametrize(
    ("template", "path"),
    [
        ("/items/{id:int}", "/items/search"),
        ("/items/{id:int}", "/items/-7"),
        ("/items/{id:int}", "/items/7\n"),
        ("/items/{id:float}", "/items/x"),
        ("/items/{id:uuid}", "/items/search"),
    ],
)
def test_an_exemption_by_a_typed_parameter_is_for_that_type(template: str, path: str) -> None:
    """Another route may serve the rest; a limit is for all of them."""
    assert not is_exempt(template, path)
    assert fits(template, path)


@pytest.mark.parametrize("case", BY_HANDLER)
def test_what_the_handler_would_serve_is_limited(case: str) -> None:
    template, path = BY_HANDLER[case]
    assert fits(template, path)


ODD = st.text(st.sampled_from("/.aA \n\0;?#:%\\é~*{}"), max_size=12)


@given(ODD | st.text(max_size=20))
def test_no_path_makes_an_error(path: str) -> None:
    for text in ("/", "/v1/chat", "/v1/{name}", "/files/{rest:path}", "/*"):
        assert not is_exempt(text, path) or fits(text, path)


@given(ODD | st.text(max_size=20))
def test_the_normal_spelling_is_its_own_normal_spelling(path: str) -> None:
    once = normalise(path)
    assert normalise(once) == once
    assert once.startswith("/")
    assert not {"", ".", ".."} & set(once.split("/")[1:]) or once == "/"


@given(ODD)
def test_everything_is_below_the_root(path: str) -> None:
    assert fits("/*", path)
    assert fits("/{rest:path}", path)


@given(st.lists(st.text(st.characters(exclude_characters="/\n{}*"), min_size=1, max_size=6), max_size=4))
def test_a_plain_path_is_its_own_template(segments: list[str]) -> None:
    path = "/" + "/".join(segments)
    assert fits(path, path)
    assert is_exempt(path, path) == (not {".", ".."} & set(segments))


def test_a_path_of_a_mebibyte_takes_no_time_to_speak_of() -> None:
    """Nothing in it backtracks: what is tried once per character and template would take hours otherwise."""
    long = "/a" * 500_000
    for text in ("/v1/chat", "/{a}/{b}/{c}", "/files/{rest:path}", "/{rest:path}/b"):
        for path in (long, f"{long}//", "/" * 1_000_000, "/.." * 300_000, "a:" * 500_000, f"{long};", "/\n" * 500_000):
            fits(text, path)
            is_exempt(text, path)
