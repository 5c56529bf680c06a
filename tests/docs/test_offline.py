"""The site needs no network, and its code is read in full. The build itself runs the same check on every page."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from docs_hooks import offline
from docs_hooks.offline import in_page, in_script, in_style, loaded_from_outside, with_own_files

from tests.support.paths import ROOT

DOCS = ROOT / "docs"
SETTINGS = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
THEME = 'load("https://unpkg.com/mermaid@11/dist/mermaid.min.js");poly("https://unpkg.com/resize-observer-polyfill")'


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (in_page, '<script src="https://cdn.example.com/a.js"></script>'),
        (in_page, '<script src="//cdn.example.com/a.js"></script>'),
        (in_page, '<link rel="stylesheet" href="https://cdn.example.com/a.css">'),
        (in_page, '<link rel="preconnect" href="https://cdn.example.com" crossorigin>'),
        (in_page, '<img src="a.png" srcset="a.png 1x, https://cdn.example.com/b.png 2x">'),
        (in_page, '<p style="background: url(https://cdn.example.com/a.png)">text</p>'),
        (in_page, "<style>@font-face { src: url('https://cdn.example.com/a.woff2') }</style>"),
        (in_page, '<script>load("https://cdn.example.com/a.js")</script>'),
        (in_page, '<svg><image xlink:href="https://cdn.example.com/a.png"/></svg>'),
        (in_style, '@import "https://cdn.example.com/a.css";'),
        (in_style, "a { background: url( //cdn.example.com/a.png ) }"),
        (in_script, "fetch(`https://cdn.example.com/${name}`)"),
    ],
)
def test_an_address_that_a_browser_would_load_is_found(read: Callable[[str], Iterator[str]], text: str) -> None:
    assert [each for each in read(text) if "//cdn.example.com" in each]


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (in_page, '<p>See <a href="https://example.com/page">there</a> or https://example.com.</p>'),
        (in_page, '<link rel="canonical" href="https://example.com/page">'),
        (in_page, '<img src="plots/a.svg"><script src="../assets/a.js"></script><pre>"https://example.com"</pre>'),
        (in_page, '<svg xmlns="http://www.w3.org/2000/svg"><use href="#a"/></svg>'),
        (in_style, "/* https://example.com */ a { background: url(data:image/png;base64,//aa) }"),
        (in_script, 'create("http://www.w3.org/2000/svg"); // https://example.com'),
    ],
)
def test_links_to_click_names_and_prose_are_fine(read: Callable[[str], Iterator[str]], text: str) -> None:
    assert list(read(text)) == []


def test_the_theme_loads_our_files() -> None:
    assert list(in_script(THEME))
    ours = with_own_files(THEME)
    assert list(in_script(ours)) == []
    (path,) = re.findall(r'new URL\("([^"]*)"', ours)
    assert (DOCS / "assets" / "javascripts" / path).resolve().is_file()


@pytest.mark.parametrize("script", ["", THEME * 2], ids=["gone", "twice"])
def test_a_theme_that_loads_them_otherwise_fails_the_build(script: str, caplog: pytest.LogCaptureFixture) -> None:
    with_own_files(script)
    assert len(_warnings(caplog)) == len(offline.REPLACED)


def test_a_site_that_loads_from_outside_fails_the_build(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    scripts = tmp_path / "assets" / "javascripts"
    scripts.mkdir(parents=True)
    (scripts / "bundle.min.js").write_text(THEME, encoding="utf-8")
    (tmp_path / "index.html").write_text("<p>nothing</p>", encoding="utf-8")
    offline.on_post_build(SimpleNamespace(site_dir=str(tmp_path)))
    assert _warnings(caplog) == []
    (tmp_path / "index.html").write_text('<img src="https://example.com/a.png">', encoding="utf-8")
    (scripts / "bundle.min.js").write_text(THEME, encoding="utf-8")
    offline.on_post_build(SimpleNamespace(site_dir=str(tmp_path)))
    assert _warnings(caplog) == ["index.html loads https://example.com/a.png: bring it into docs/vendor"]


def test_a_repository_whose_stars_would_be_asked_for_fails_the_build(caplog: pytest.LogCaptureFixture) -> None:
    offline.on_config(SimpleNamespace(repo_url=None))
    assert _warnings(caplog) == []
    offline.on_config(SimpleNamespace(repo_url="https://example.com/repository"))
    assert len(_warnings(caplog)) == 1


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What fails a strict build: warnings of a logger below MkDocs's own."""
    return [
        each.getMessage()
        for each in caplog.records
        if each.levelno >= logging.WARNING and each.name.startswith("mkdocs.")
    ]


def test_pictures_styles_and_scripts_of_the_documentation_load_nothing_from_outside() -> None:
    assert list(loaded_from_outside(DOCS)) == []


def test_what_comes_from_others_has_its_licence() -> None:
    folders = [path for path in (DOCS / "vendor").iterdir() if path.is_dir()]
    assert {path.name for path in folders} == {"mermaid", "iframe-worker"}
    for folder in folders:
        assert "Permission is hereby granted" in (folder / "LICENSE").read_text(encoding="utf-8")


def test_the_settings_make_the_site_strict_and_offline() -> None:
    lines = {line.strip() for line in SETTINGS.splitlines()}
    assert {"strict: true", "font: false", "- offline", "- docs_hooks/offline.py"} <= lines
    for name in re.findall(r"^ +- ((?:vendor|stylesheets)/\S+)$", SETTINGS, re.MULTILINE):
        assert (DOCS / name).is_file()


def test_long_lines_of_code_go_on_below_instead_of_being_cut_off() -> None:
    assert "- stylesheets/extra.css" in SETTINGS
    style = (DOCS / "stylesheets" / "extra.css").read_text(encoding="utf-8")
    (rules,) = re.findall(r"^\.md-typeset pre > code \{(.*?)\}", style, re.DOTALL | re.MULTILINE)
    assert "white-space: pre-wrap;" in rules
