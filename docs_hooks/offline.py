"""The site needs no network: what the theme would load from elsewhere comes with it, and nothing else may.

A hook of MkDocs. After the build it points the theme's script to the files in ``docs/vendor``, then looks through every
page, style and script for an address outside of the site that a browser would load by itself. Each is a warning, which
fails a strict build. Links that somebody has to click are fine.

``docs/vendor`` holds Mermaid (the npm package ``@mermaid-js/tiny`` 11.17.2) and what searching needs when the site is
opened as a file (``iframe-worker`` 1.0.4), both unchanged and with their licences.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

log = logging.getLogger("mkdocs.hooks.offline")

_FROM_BUNDLE = "document.querySelector(\"script[src*='assets/javascripts/bundle']\").src"
REPLACED = {
    r'"https://unpkg\.com/mermaid@[^"]*"': f'new URL("../../vendor/mermaid/mermaid.tiny.js",{_FROM_BUNDLE}).href',
    r'"https://unpkg\.com/resize-observer-polyfill"': '"data:text/javascript,"',  # every browser since 2020 has it
}
"""Addresses in the theme's script, and the expressions that take their place."""

NEVER_LOADED = (
    "http://www.w3.org/",  # the names of XML languages
    "https://api.github.com/",  # asked for the stars of a `repo_url`, which `on_config` refuses
)
_CLICKED = {"a", "area"}
_NAMED_ONLY = {"canonical", "alternate", "author", "license", "prev", "next"}
_LOADING = {"src", "href", "xlink:href", "poster", "data", "srcset"}
_ADDRESS = r"(?:https?:)?//[^\s\"'`()<>\\]+"
_IN_STYLE = re.compile(rf"(?:url\(\s*|@import\s+)[\"']?({_ADDRESS})", re.IGNORECASE)
_IN_SCRIPT = re.compile(rf"[\"'`]({_ADDRESS})")
_IN_LIST = re.compile(rf"(?:^|,)\s*({_ADDRESS})")
_HOST = re.compile(r"(?:https?:)?//[\w-]+(\.[\w-]+)+")


def on_config(config: Any, **_: object) -> None:
    """Called by MkDocs before the build."""
    if config.repo_url:
        log.warning("repo_url: the theme would ask the host of the repository for its stars, on every visit")


def on_post_build(config: Any, **_: object) -> None:
    """Called by MkDocs when the site is written."""
    site = Path(config.site_dir)
    bundles = sorted((site / "assets" / "javascripts").glob("bundle*.js"))
    for bundle in bundles:
        text = bundle.read_text(encoding="utf-8")
        bundle.write_text(with_own_files(text), encoding="utf-8")
    for name, address in sorted(loaded_from_outside(site)):
        log.warning("%s loads %s: bring it into docs/vendor", name, address)


def with_own_files(script: str) -> str:
    """Return the theme's script with our files in the place of addresses outside."""
    for address, expression in REPLACED.items():
        script, count = re.subn(address, expression, script)
        if count != 1:
            log.warning("the theme's script names %s %d times, not once: see docs_hooks/offline.py", address, count)
    return script


def loaded_from_outside(site: Path) -> Iterator[tuple[str, str]]:
    """Find every file of a site that would load something from elsewhere, with the address."""
    readers = {".html": in_page, ".svg": in_page, ".css": in_style, ".js": in_script}
    for path in site.rglob("*"):
        if path.suffix in readers:
            for address in readers[path.suffix](path.read_text(encoding="utf-8")):
                yield path.relative_to(site).as_posix(), address


def in_style(text: str) -> Iterator[str]:
    """Addresses that a style sheet loads."""
    return _outside(_IN_STYLE.findall(text))


def in_script(text: str) -> Iterator[str]:
    """Addresses that a script holds as a string of their own."""
    return _outside(_IN_SCRIPT.findall(text))


def in_page(text: str) -> Iterator[str]:
    """Addresses that a page or a picture loads, its own styles and scripts included."""
    reader = _PageReader()
    reader.feed(text)
    reader.close()
    return _outside(reader.found)


def _outside(addresses: list[str]) -> Iterator[str]:
    """Those that name a host, less what is never loaded."""
    for address in addresses:
        if _HOST.match(address) and not address.startswith(NEVER_LOADED):
            yield address


class _PageReader(HTMLParser):
    """Collects addresses that are loaded without a click."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self._inside = tag
        self.found += in_style(given.get("style", ""))
        if tag in _CLICKED or set(given.get("rel", "").split()) & _NAMED_ONLY:
            return
        for name in _LOADING & given.keys():
            self.found += _IN_LIST.findall(given[name])

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "style":
            self.found += in_style(data)
        elif self._inside == "script":
            self.found += in_script(data)
