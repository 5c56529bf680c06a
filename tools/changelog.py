"""The notes of a release: ``python -m tools.changelog v1.0.0`` prints that version's part of ``CHANGELOG.md``."""

from __future__ import annotations

import re
import sys
from pathlib import Path

CHANGELOG = Path(__file__).parent.parent / "CHANGELOG.md"


def notes(version: str, text: str) -> str:
    """Return what the changelog says of a version, without its heading. Raise ``ValueError`` if it says nothing."""
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        heading, _, body = section.partition("\n")
        if heading.strip("[] ").split("]")[0].split(" ")[0] == version and body.strip():
            return body.strip() + "\n"
    raise ValueError(f"CHANGELOG.md has no notes under the heading '## {version}'")


if __name__ == "__main__":
    sys.stdout.write(notes(sys.argv[1].removeprefix("v"), CHANGELOG.read_text(encoding="utf-8")))
