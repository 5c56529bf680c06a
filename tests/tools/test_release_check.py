"""What can be released, and what the release notes are."""

from __future__ import annotations

import asyncio
import re
import zipfile
from pathlib import Path

import pytest
from tools.changelog import CHANGELOG, notes

import zae_limiter
from tools import release_check, smoke

TEXT = """# Changelog

## Unreleased

## 1.0.1 - 2026-12-02

- Fixed.

## [1.0.0] - 2026-12-01

### Added

- All.
"""


def test_notes_are_the_section_of_the_version() -> None:
    assert notes("1.0.1", TEXT) == "- Fixed.\n"
    assert notes("1.0.0", TEXT) == "### Added\n\n- All.\n"


@pytest.mark.parametrize("version", ["1.0", "2.0.0", "Unreleased"])
def test_a_version_without_notes_is_refused(version: str) -> None:
    with pytest.raises(ValueError, match="no notes"):
        notes(version, TEXT)


def test_the_newest_section_of_the_changelog_is_found() -> None:
    text = CHANGELOG.read_text(encoding="utf-8")
    newest = re.search(r"^## \[?([\w.]+)", text, re.MULTILINE)
    assert newest
    assert notes(newest[1], text)


def test_the_version_is_that_of_the_package() -> None:
    assert release_check.version() == zae_limiter.__version__


def test_a_tag_is_released_if_it_is_the_version_and_has_notes() -> None:
    release_check.check_tag("v1.0.0", "1.0.0", TEXT)


@pytest.mark.parametrize(
    ("tag", "version", "reason"),
    [
        ("v1.0.1", "1.0.0", "the tag is v1.0.1"),
        ("1.0.0", "1.0.0", "the tag is 1.0.0"),
        ("v1.0.0.dev0", "1.0.0.dev0", "version of development"),
        ("v3.0.0", "3.0.0", "no notes"),
    ],
)
def test_any_other_tag_is_not(tag: str, version: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        release_check.check_tag(tag, version, TEXT)


def test_a_wheel_that_lacks_a_file_of_the_source_is_found(tmp_path: Path) -> None:
    wheel = tmp_path / "some.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in release_check.SOURCE.rglob("*"):
            if path.is_file() and path.name != "schema.sql":
                archive.write(path, path.relative_to(release_check.SOURCE))
    assert release_check.missing_in(wheel) == {"zae_limiter/stores/schema.sql"}


def test_the_smoke_test_passes_on_the_present_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for url in smoke.URLS:
        smoke.check_blocking(url)
        asyncio.run(smoke.check_async(url))


def test_the_smoke_test_does_not_take_the_repository_for_an_installation() -> None:
    with pytest.raises(AssertionError):
        smoke.check_installation(zae_limiter.__version__)
