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
        for variable, value in aws().items():
            monkeypatch.setenv(variable, value)
    if "redis://" in text:
        url = shared.server().url
        text = text.replace('from_url("redis://localhost:6379/0"', f'from_url("{url}"')
        text = text.replace("redis://localhost:6379/0", f"{url}?prefix=docs")
    exec(compile(text, name, "exec"), {"__name__": "__main__"})


def test_shell_lines_run(tmp_path: Path) -> None:
    """The ``$`` lines of all pages run one after the other in an empty folder; ``make`` targets are CI's own."""
    lines = [line for line in dollars(blocks("console")) if not line.startswith("make ")]
    assert any(line.startswith("zae-limiter") for line in lines)
    run_lines(lines, tmp_path, {})


def test_shell_lines_about_aws_run(tmp_path: Path) -> None:
    """Those of the page about AWS, against the engine of the tests, in which other pages have a table my-app."""
    lines = dollars([block for block in blocks("shell-session") if block[0].startswith("docs/aws.md")])
    assert len(lines) >= 5
    run_lines([line.replace("my-app", "docs-shell") for line in lines], tmp_path, aws())


def aws() -> dict[str, str]:
    """The environment in which everything finds the local AWS of the tests."""
    return {**engine.CREDENTIALS, "AWS_ENDPOINT_URL": engine.endpoint()}


def dollars(found: list[tuple[str, str]]) -> list[str]:
    """What is typed."""
    matches = (match for _, text in found for match in re.findall(r"^\$ (.*)$", text, re.MULTILINE))
    return [match.split("#")[0].strip() for match in matches]


def run_lines(lines: list[str], folder: Path, settings: dict[str, str]) -> None:
    scripts = str(Path(sys.executable).parent)
    environment = {**os.environ, **settings, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    script = "set -e\n" + "\n".join(lines)
    run = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize(
    "module", ["core.bucket", "core.limit", "stores.urls", "testing", "testing.clock"], ids=lambda name: name
)
def test_docstring_examples(module: str) -> None:
    result = doctest.testmod(importlib.import_module(f"zae_limiter.{module}"))
    assert result.attempted > 0
    assert result.failed == 0
