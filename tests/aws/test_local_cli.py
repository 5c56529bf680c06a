"""``zae-limiter local``: from nothing to a granted call, on a machine without Docker and without an AWS account."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from tests.aws.local_home import SCRIPTS, Place, placed
from tests.support.paths import ROOT
from zae_limiter.aws.local import engine, home
from zae_limiter.cli.app import root

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = ROOT / "docs" / "contributing" / "local-aws.md"
ACQUIRE = "acquire key-1 gpt-4 -c rpm:1 -l rpm:60/min"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A folder of its own."""
    with placed(tmp_path) as made:
        yield made


def run(place: Place, line: str, **env: str | None) -> Result:
    """One command."""
    runner = CliRunner(env={**place.settings(), "ZAE_LIMITER_URL": None, **env})
    result = runner.invoke(root, shlex.split(line), catch_exceptions=False)
    place.note()
    return result


def data(place: Place, line: str) -> Any:
    """What a command answers as JSON; nothing else is said."""
    result = run(place, f"{line} --json")
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout)


def test_up_status_logs_and_down(place: Place) -> None:
    endpoint = f"http://127.0.0.1:{place.port}"
    started = run(place, "local up")
    assert started.exit_code == 0
    assert f"is up at {endpoint}" in started.stdout
    assert "Starting a local AWS" in started.stderr
    again = data(place, "local up")
    assert (again["started"], again["endpoint"], again["stack"]) == (False, endpoint, None)
    assert "was up already" in run(place, "local up").stdout
    shown = data(place, "local status")
    assert {name: shown[name] for name in ("running", "answers", "endpoint", "region", "pid", "stacks")} == {
        "running": True,
        "answers": True,
        "endpoint": endpoint,
        "region": "us-east-1",
        "pid": again["pid"],
        "stacks": [],
    }
    assert shown["version"] == again["version"]
    assert shown["uptime_seconds"] >= 0
    assert re.search(rf"endpoint +{endpoint}\n(.*\n)*stacks +none", run(place, "local status").stdout)
    assert str(place.port) in run(place, "local logs").stdout
    assert len(data(place, "local logs --lines 2")["lines"]) == 2
    assert data(place, "local down") == {"stopped": True, "pid": again["pid"], "purged": False}
    assert "No local AWS was running" in run(place, "local down").stdout
    following = run(place, "local logs --follow --lines 1")
    assert (following.exit_code, following.stdout.count("\n")) == (0, 1)
    assert data(place, "local down --purge")["purged"]
    assert not place.home.folder.exists()


def test_names_of_017_are_accepted(place: Place) -> None:
    started = run(place, "local up --docker-host unix:///run/docker.sock --image localstack/localstack:4.14")
    assert started.exit_code == 0
    assert "--docker-host has no effect" in started.stderr
    assert "--image has no effect" in started.stderr
    assert "--docker-host has no effect" in run(place, "local status --docker-host unix:///x").stderr
    assert len(data(place, "local logs --tail 2")["lines"]) == 2
    export = f"export AWS_ENDPOINT_URL=http://127.0.0.1:{place.port}"
    assert export in run(place, f"local env --format direnv --port {place.port}", SHELL="/bin/fish").stdout
    assert "set -gx AWS_ENDPOINT_URL" in run(place, "local env -f eval", SHELL="/bin/fish").stdout
    assert "$env:AWS_ENDPOINT_URL" in run(place, "local env -f powershell").stdout
    refused = run(place, "local env --port 1")
    assert (refused.exit_code, f"at port {place.port}" in refused.stderr) == (2, True)
    assert run(place, "local down --docker-host unix:///run/docker.sock").exit_code == 0


def test_nothing_running_is_an_answer_that_names_the_fix(place: Place) -> None:
    for line in ("local status", "local env", "local logs"):
        text, plain = run(place, line), run(place, f"{line} --json")
        assert text.exit_code == plain.exit_code == 5
        assert "zae-limiter local up" in text.output
        assert json.loads(plain.output)
    assert not place.home.folder.exists()


@pytest.mark.parametrize(
    ("line", "code", "reason"),
    [
        ("local up --name my_app", 2, "my_app"),
        ("local up --region Nowhere", 2, "region"),
        ("local up --port 70000", 2, "70000"),
        ("local up --timeout 0", 2, "timeout"),
        ("local env --shell tcsh", 2, "tcsh"),
    ],
)
def test_bad_input_starts_nothing(place: Place, line: str, code: int, reason: str) -> None:
    refused = run(place, line)
    assert (refused.exit_code, refused.stdout) == (code, "")
    assert reason in refused.stderr
    assert not place.home.folder.exists()


def test_one_that_runs_but_does_not_answer_is_told(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_HEALTH_SECONDS", 0.2)
    pid = data(place, "local up")["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        hung = run(place, "local status --json")
        refused = run(place, "local up --timeout 0.1")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert hung.exit_code == 5
    assert json.loads(hung.stdout) | {"uptime_seconds": 0} == {
        "running": True,
        "answers": False,
        "endpoint": f"http://127.0.0.1:{place.port}",
        "region": "us-east-1",
        "pid": pid,
        "version": None,
        "uptime_seconds": 0,
        "stacks": None,
    }
    assert refused.exit_code == 15
    assert "does not answer" in refused.stderr
    assert data(place, "local up")["pid"] == pid


def test_settings_for_each_shell(place: Place) -> None:
    run(place, "local up --region eu-west-1")
    settings = data(place, "local env")
    assert settings == {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{place.port}",
        **dict.fromkeys(("AWS_REGION", "AWS_DEFAULT_REGION"), "eu-west-1"),
        **dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "test"),
    }
    forms = {"bash": "export {}={}", "fish": "set -gx {} {}", "powershell": "$env:{} = '{}'"}
    own = {"/bin/zsh": "bash", "/usr/bin/fish": "fish", "/opt/pwsh": "powershell", "": "bash"}
    expected = {shell: [form.format(name, value) for name, value in settings.items()] for shell, form in forms.items()}
    for shell, lines in expected.items():
        assert run(place, f"local env --shell {shell}").stdout.splitlines() == lines
    for path, shell in own.items():
        assert run(place, "local env", SHELL=path).stdout.splitlines() == expected[shell]


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Place, Result]]:
    """A limiter, whatever account the shell is logged in to: here one that does not exist."""
    with placed(tmp_path_factory.mktemp("deployed")) as place:
        yield place, run(place, "local up --name my-app", AWS_PROFILE="of-somebody-else", AWS_SESSION_TOKEN="stale")


def test_up_with_a_name_deploys_and_says_what_to_type(deployed: tuple[Place, Result]) -> None:
    place, first = deployed
    assert first.exit_code == 0, first.output
    assert "Deploying my-app" in first.stderr
    assert os.environ.get("AWS_ENDPOINT_URL") is None
    again = data(place, "local up --name my-app -N staging")
    assert (again["started"], again["stack"]) == (False, "my-app")
    where = f"--endpoint-url http://127.0.0.1:{place.port} --region us-east-1"
    assert again["next"] == f"zae-limiter --name my-app {where} {ACQUIRE}"
    assert f"Next:  {again['next']}\n" in first.stdout
    granted = place.shell(again["next"])
    assert (granted.returncode, granted.stderr) == (0, "")
    assert "Granted to key-1" in granted.stdout
    assert data(place, "local status")["stacks"] == ["my-app"]
    assert data(place, f"--name my-app {where} namespace show staging")["name"] == "staging"


def test_after_env_no_flag_is_needed(deployed: tuple[Place, Result]) -> None:
    place, _ = deployed
    line = "zae-limiter --name my-app --json acquire key-2 gpt-4 -c rpm:1 -l rpm:5/day"
    granted = place.shell(f'eval "$(zae-limiter local env --shell bash)"\n{line}')
    assert granted.returncode == 0, granted.stderr
    assert json.loads(granted.stdout)["available"] == {"rpm": 4}
    assert place.shell(line).returncode == 2  # without it there is not even a region


def test_two_at_once_make_one(place: Place) -> None:
    words = [str(SCRIPTS / "zae-limiter"), "local", "up", "--name", "my-app", "--json"]
    both = [
        subprocess.Popen(words, env=place.settings(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)
    ]
    answers = [each.communicate() for each in both]
    place.note()
    assert [each.returncode for each in both] == [0, 0], answers
    first, second = (json.loads(out) for out, _ in answers)
    assert first["pid"] == second["pid"]
    assert sorted([first["started"], second["started"]]) == [False, True]
    assert data(place, "local status")["stacks"] == ["my-app"]


def test_the_page_works_as_typed(place: Place) -> None:
    (block,) = re.findall(r"^```shell-session\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    lines = [line.removeprefix("$ ") for line in block.splitlines()]
    assert {line.split()[2] for line in lines if line.startswith("zae-limiter local")} == {"up", "status", "down"}
    typed = place.shell("\n".join(lines), SHELL="/bin/bash")
    place.note()
    assert typed.returncode == 0, typed.stdout + typed.stderr
    assert "Granted to key-1" in typed.stdout


def test_on_a_clean_machine_it_installs_itself_once(place: Place, tmp_path: Path) -> None:
    """No Docker, no AWS settings, an empty home; and first no package index, which is told in one line."""
    passed = {name: os.environ[name] for name in os.environ if name.startswith(("PIP_", "SSL_", "LANG", "LC_"))}
    proxies = {name: os.environ[name] for name in os.environ if name.lower().endswith("_proxy")}
    clean = passed | proxies | {
        "PATH": f"{SCRIPTS}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        home.HOME: str(place.home.folder),
        "ZAE_LIMITER_LOCAL_PORT": str(place.port),
    }  # fmt: skip

    def typed(script: str, **more: str) -> subprocess.CompletedProcess[str]:
        words = ["bash", "-c", script]
        done = subprocess.run(words, env=clean | more, cwd=tmp_path, capture_output=True, text=True, check=False)
        place.note()
        return done

    offline = typed("zae-limiter local up", PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path), PIP_CONFIG_FILE=os.devnull)
    assert offline.returncode == 15
    told = offline.stderr.splitlines()[-1]
    assert told.startswith("Error: ministack could not be installed: No matching distribution found for ministack")
    assert engine.COMMAND in told

    where = f"--endpoint-url http://127.0.0.1:{place.port} --region us-east-1"
    granted = typed(f"zae-limiter local up --name my-app && zae-limiter --name my-app {where} {ACQUIRE}")
    assert granted.returncode == 0, granted.stderr
    assert "Installing ministack" in granted.stderr
    assert "Granted to key-1" in granted.stdout
    again = typed("zae-limiter local down && zae-limiter local up")
    assert again.returncode == 0, again.stderr
    assert "Installing" not in again.stderr
    assert typed("zae-limiter local down --purge").returncode == 0
    assert not place.home.folder.exists()
