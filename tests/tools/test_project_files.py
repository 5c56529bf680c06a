"""What the files around the project name exists: targets, modules, files, versions."""

from __future__ import annotations

import re
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.paths import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
PROSE = [*(ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md"))]
TEMPLATE = ROOT / ".github" / "pull_request_template.md"
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def named(path: Path) -> str:
    return path.name


def steps(workflow: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"].values()
    return [step for job in jobs for step in job.get("steps", ())]


@pytest.mark.parametrize("path", [*WORKFLOWS, *PROSE, TEMPLATE], ids=named)
def test_the_targets_that_are_named_exist(path: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    text = path.read_text(encoding="utf-8")
    assert set(re.findall(r"(?:`|\$ |run: )make ([\w-]+)", text)) <= targets


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=named)
def test_the_modules_that_a_workflow_runs_exist(workflow: Path) -> None:
    for step in steps(workflow):
        for module in re.findall(r"python3? -m ([\w.]+)", step.get("run", "")):
            assert module == "pip" or find_spec(module) is not None, module


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=named)
def test_actions_are_pinned_to_a_version_and_jobs_end(workflow: Path) -> None:
    found = yaml.safe_load(workflow.read_text(encoding="utf-8"))
    for step in steps(workflow):
        assert re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v\d+)", step.get("uses", "actions/none@v1")), step
    for name, job in found["jobs"].items():
        assert "uses" in job or job["timeout-minutes"] <= 60, name
    assert found["permissions"] == {"contents": "read"}, "a job that needs more rights asks for them itself"


def test_ci_runs_on_every_python_that_is_promised() -> None:
    promised = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))["jobs"]
    matrix = jobs["embedded"]["strategy"]["matrix"]
    assert matrix["python"] == promised
    assert set(jobs["stores"]["strategy"]["matrix"]["python"]) <= set(promised)
    assert set(matrix["system"]) == {"ubuntu", "macos", "windows"}
    assert PROJECT["requires-python"] == f">={promised[0]}"


@pytest.mark.parametrize("path", PROSE, ids=named)
def test_links_lead_to_files_of_the_repository(path: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text(encoding="utf-8"))
    assert links
    for link in links:
        assert link.startswith("https://") or (ROOT / link).exists(), link


def test_every_file_names_the_same_repository() -> None:
    home = PROJECT["urls"]["Homepage"]
    assert all(url.startswith((home, "https://zeroae.github.io/zae-limiter")) for url in PROJECT["urls"].values())
    for path in (*PROSE, *FORMS):
        for url in re.findall(r"https://github\.com/[\w.-]+/[\w-]+", path.read_text(encoding="utf-8")):
            assert url == home, path


@pytest.mark.parametrize("form", [form for form in FORMS if form.name != "config.yml"], ids=named)
def test_a_form_has_a_question_that_must_be_answered(form: Path) -> None:
    found = yaml.safe_load(form.read_text(encoding="utf-8"))
    assert found["name"]
    assert found["description"]
    assert any(part.get("validations", {}).get("required") for part in found["body"])
