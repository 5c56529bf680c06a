"""The picture of the demo is what the demo shows."""

from __future__ import annotations

import re
from html import unescape

from docs_hooks.demo_picture import PICTURE, draw
from docs_hooks.offline import in_page

from tests.support.paths import ROOT


def _words(svg: str) -> str:
    """What is written in a picture; how it is set differs between versions of rich."""
    return " ".join(unescape(" ".join(re.findall(r"<text[^>]*>(.*?)</text>", svg))).split())


def test_the_picture_is_that_of_a_run_today() -> None:
    assert _words(PICTURE.read_text(encoding="utf-8")) == _words(draw()), "run `make picture`"


def test_the_picture_shows_debt_refusals_and_the_verdict() -> None:
    words = _words(PICTURE.read_text(encoding="utf-8"))
    for told in ("debt", "retry after", "Never over the limit", "The books balance"):
        assert told in words


def test_the_picture_needs_no_font_from_elsewhere() -> None:
    assert list(in_page(draw())) == []
    assert "font-face" not in PICTURE.read_text(encoding="utf-8")


def test_the_readme_shows_the_picture() -> None:
    assert f"]({PICTURE.relative_to(ROOT).as_posix()})" in (ROOT / "README.md").read_text(encoding="utf-8")
