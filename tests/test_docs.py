"""What the documentation shows works as typed."""

from __future__ import annotations

import doctest
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.aws import engine
from tests.redis.rig import shared

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(language: str) -> list[tuple[str, str]]:
    """Every fenced block of a language, named by page and position."""
    found = []
    for page in PAGES:
        fenced = re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
        found += [(f"{page.relative_to(ROOT)}:{position}", text) for position, text in enumerate(fenced)]
    return found


@pytest.mark.parametrize(("name", "text"), blocks("python"), ids=lambda value: value[:40])
def test_python_blocks_run(name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As typed; what talks to AWS or to Redis finds the engine of the tests."""
    monkeypatch.chdir(tmp_path)
    if "dynamodb://" in text:
        monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", engine.endpoint())
    if "redis://" in text:
        url = shared.server().url
        text = text.replace('from_url("redis://localhost:6379/0"', f'from_url("{url}"')
        text = text.replace("redis://localhost:6379/0", f"{url}?prefix=docs")
    exec(compile(text, name, "exec"), {"__name__": "__main__"})


def test_shell_lines_run(tmp_path: Path) -> None:
    """The ``$`` lines of a page run one after the other in an empty folder; ``make`` targets are CI's own."""
    lines = [
        match.split("#")[0].strip()
        for _, text in blocks("console")
        for match in re.findall(r"^\$ (.*)$", text, re.MULTILINE)
        if not match.startswith("make ")
    ]
    assert any(line.startswith("zae-limiter") for line in lines)
    scripts = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    script = "set -e\n" + "\n".join(lines)
    run = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize(
    "module", ["core.bucket", "core.limit", "stores.urls", "testing", "testing.clock"], ids=lambda name: name
)
def test_docstring_examples(module: str) -> None:
    result = doctest.testmod(importlib.import_module(f"zae_limiter.{module}"))
    assert result.attempted > 0
    assert result.failed == 0
