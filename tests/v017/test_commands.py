"""Command lines of version 0.17, typed as its documentation and its help have them."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner, Result

from tests.cli.terminal import UNSET, run
from tests.cli.test_all_commands import LEAVES
from tests.support.aws import engine
from tests.support.paths import ROOT
from tests.v017.old_names import list_old_names
from zae_limiter import SyncRepository
from zae_limiter.cli.app import root
from zae_limiter.v017.commands import OLD, RENAMED

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCUMENTED = """
zae-limiter system set-defaults -l tpm:100000 -l rpm:1000 --on-unavailable allow
zae-limiter system get-defaults
zae-limiter resource set-defaults gpt-4 -l tpm:50000 -l rpm:500
zae-limiter resource get-defaults gpt-4
zae-limiter entity set-limits user-123 --resource gpt-4 -l rpm:1000
zae-limiter entity get-limits user-123 --resource gpt-4
zae-limiter resource list
zae-limiter entity list-resources
zae-limiter entity list --with-custom-limits gpt-4
zae-limiter entity delete-limits user-123 --resource gpt-4 --yes
zae-limiter resource delete-defaults gpt-4 --yes
zae-limiter system delete-defaults --yes
"""
"""Limits at every level, as the documentation sets, shows, lists and deletes them."""

EXAMPLES = """
zae-limiter entity create org-456
zae-limiter entity create user-123 --parent org-456 --cascade
zae-limiter entity create api-key-abc --display-name "Production API" --no-cascade
zae-limiter entity show user-123
zae-limiter entity set-limits user-premium -r gpt-4 -l tpm:100000 -l rpm:1000
zae-limiter entity set-limits api-key-123 -r claude-3 -l tph:50000/hour
zae-limiter entity set-limits user-123 --resource gpt-4 -l rpm:1000:1500 -l tpm:10000/min:15000 --soft tpm
zae-limiter entity get-limits user-premium --resource gpt-4
zae-limiter entity list --with-custom-limits claude-3 --limit 10
zae-limiter entity delete-limits user-premium -r gpt-4 -y
zae-limiter entity reset user-123 --resource gpt-4
zae-limiter entity reset user-123 -r gpt-4 --limit rpm --idempotency-key ticket-1
zae-limiter entity top-up user-123 -r gpt-4 --add rpm:5000
zae-limiter entity top-up user-123 -r gpt-4 -a rpm:50 -a tpm:100 --idempotency-key order-7
zae-limiter entity set-parent user-123 --none
zae-limiter entity set-parent user-123 --parent org-456
zae-limiter entity set-cascade user-123 on --resource gpt-4
zae-limiter entity set-cascade user-123 off
zae-limiter entity clear-cascade user-123
zae-limiter entity disable user-123 --resource gpt-4
zae-limiter entity enable user-123
zae-limiter entity bypass user-123 --resource gpt-4
zae-limiter entity clear-disabled user-123 --resource gpt-4
zae-limiter resource set-defaults gpt-4 -l rpm:1000/min -l tph:50000/hour --soft tph
zae-limiter resource set-cascade gpt-4 on
zae-limiter resource clear-cascade gpt-4
zae-limiter resource disable gpt-4
zae-limiter resource enable gpt-4
zae-limiter resource bypass gpt-4
zae-limiter resource clear-disabled gpt-4
zae-limiter system set-defaults -l tph:100000/hour -l rph:5000/hour --soft rph --on-unavailable block
zae-limiter namespace register tenant-alpha tenant-beta
zae-limiter namespace list
zae-limiter namespace show tenant-alpha
zae-limiter entity create user-1 --namespace tenant-alpha
zae-limiter entity show user-1 -N tenant-alpha
zae-limiter namespace delete tenant-beta --yes
zae-limiter namespace orphans
zae-limiter audit list --entity-id user-123
zae-limiter audit list -e user-123 -l 10
zae-limiter audit list --entity-id user-123 --limit 10 --start-event-id 01JD0000000000000000000000
zae-limiter usage list --entity-id user-123
zae-limiter usage list --resource gpt-4 --window hourly
zae-limiter usage list -e user-123 -r gpt-4 -w daily -l 50 --start 2024-01-01T00:00:00Z --end 2024-01-31T23:59:59Z
zae-limiter usage list --entity-id user-123 -p
zae-limiter usage summary --entity-id user-123
zae-limiter usage summary --resource gpt-4 --window daily
zae-limiter usage summary -e user-123 -r gpt-4 -w daily --start 2024-01-01T00:00:00Z --end 2024-01-31T23:59:59Z
zae-limiter limits plan -f limits.yaml
zae-limiter limits plan --file limits.yaml --quiet
zae-limiter limits diff -f limits.yaml -q
zae-limiter limits apply -f limits.yaml -q --full --yes
zae-limiter version
zae-limiter check
zae-limiter status
"""
"""Every other command that works on data, with all its options."""

DEPLOYED = """
zae-limiter deploy --name limiter --region us-east-1
zae-limiter deploy --name my-app --region us-east-1
zae-limiter deploy --name my-app --endpoint-url http://localhost:4566 --region us-east-1
zae-limiter deploy --name my-app --no-aggregator
zae-limiter deploy --name my-app \
  --permission-boundary arn:aws:iam::aws:policy/PowerUserAccess \
  --role-name-format "pb-{}-PowerUser"
zae-limiter deploy -n my-app --lambda-timeout 30 --lambda-memory 512 --log-retention-days 7 --no-alarms \
  --no-audit-archival --enable-tracing --create-iam-roles --policy-name-format "pb-{}"
zae-limiter deploy -n my-app --enable-aggregator --enable-alarms --enable-audit-archival --no-tracing \
  --no-create-iam-roles --iam --enable-deletion-protection --enable-provisioner -t team=ml --tag env=prod --wait
zae-limiter deploy -n my-app --no-deletion-protection --no-provisioner --pitr-recovery-days 7
zae-limiter status --name my-app --region us-east-1
zae-limiter list --region us-east-1
zae-limiter list --endpoint-url http://localhost:4566
zae-limiter version --name my-app --region us-east-1
zae-limiter check --name my-app --region us-east-1
zae-limiter upgrade --name my-app --region us-east-1
zae-limiter upgrade --name my-app --lambda-only --yes
zae-limiter upgrade --name my-app --force --yes
zae-limiter namespace register tenant-alpha --name my-app
zae-limiter entity create api-key-abc --name my-app
zae-limiter entity show api-key-abc --name my-app
zae-limiter resource list --name my-app
zae-limiter limits apply -n my-app -f limits.yaml --yes
zae-limiter delete --name my-app --yes
zae-limiter cfn-template > template.yaml
zae-limiter cfn-template -o template.yaml
zae-limiter lambda-export --output lambda.zip
zae-limiter lambda-export --output lambda.zip --force
zae-limiter lambda-export -o other.zip -f
zae-limiter lambda-export --info
"""
"""Stacks: ``--endpoint-url`` is that of the tests, and > is left to a shell."""

LIMITS = "system: {limits: {rpm: {capacity: 100}}}\n"


def read(lines: str) -> list[str]:
    """Return the command lines of a text."""
    return [line.removeprefix("zae-limiter ") for line in lines.strip().splitlines()]


def type_line(line: str, **env: str) -> Result:
    """Run one line without the name of the program, and without what only a shell knows."""
    words = shlex.split(line.partition(" >")[0])
    return CliRunner(env={**UNSET, **env}).invoke(root, words, catch_exceptions=False)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run where the files are that commands read and write."""
    (tmp_path / "limits.yaml").write_text(LIMITS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def aws() -> Iterator[dict[str, str]]:
    """Return the settings of a shell whose AWS is a local one that nobody else uses."""
    running = engine.start(*engine.quick())
    try:
        yield {**engine.CREDENTIALS, "AWS_ENDPOINT_URL": running.url}
    finally:
        running.stop()


def check_lines(lines: str, env: dict[str, str]) -> None:
    """Type every line, one after the other."""
    for line in read(lines):
        done = type_line(line.replace("http://localhost:4566", env.get("AWS_ENDPOINT_URL", "")), **env)
        assert done.exit_code == 0, f"{line}\n{done.output}"


@pytest.mark.parametrize("lines", [DOCUMENTED, EXAMPLES], ids=["documented", "examples"])
def test_lines_about_data_work_as_typed_on_a_file(lines: str, folder: Path) -> None:
    check_lines(lines, {"ZAE_LIMITER_URL": f"sqlite:///{folder / 'limits.db'}"})


@pytest.mark.parametrize("lines", [DOCUMENTED, EXAMPLES], ids=["documented", "examples"])
def test_the_same_lines_answer_as_json(lines: str, folder: Path) -> None:
    for line in read(lines):
        if not line.endswith(" -p"):  # a chart is not JSON
            done = type_line(f"{line} --json", ZAE_LIMITER_URL=f"sqlite:///{folder / 'limits.db'}")
            assert json.loads(done.stdout) is not None, line


def test_lines_about_data_work_as_typed_on_the_stack_of_the_default_name(aws: dict[str, str]) -> None:
    deployed = type_line("deploy", **aws)
    assert deployed.exit_code == 0, deployed.output
    assert "zae-limiter in us-east-1" in deployed.stdout
    check_lines(DOCUMENTED, aws)
    check_lines(EXAMPLES, aws)
    told = type_line("system get-defaults", **aws)
    assert "the stack zae-limiter" in told.stderr
    assert type_line("check", **aws).stderr.count("the stack zae-limiter") == 1
    assert "rph" not in told.stdout  # the limits file has replaced it


def test_lines_about_stacks_work_as_typed(aws: dict[str, str]) -> None:
    check_lines(DEPLOYED, aws)


def test_a_stack_and_a_namespace_come_from_the_environment(aws: dict[str, str]) -> None:
    assert type_line("deploy --no-aggregator", **aws, ZAEL_STACK="from-shell").exit_code == 0
    there = aws | {"ZAEL_STACK": "from-shell", "ZAEL_NAMESPACE": "tenant-a"}
    assert type_line("namespace register tenant-a", **there | {"ZAEL_NAMESPACE": "default"}).exit_code == 0
    assert type_line("entity create key", **there).exit_code == 0
    assert type_line("entity show key -N default", **there).exit_code == 6
    assert type_line("entity show key -n from-shell -N tenant-a", **aws).exit_code == 0
    assert type_line("entity show key -n elsewhere", **there).exit_code == 14
    refused = type_line("delete --yes", **there)
    assert (refused.exit_code, "--name my-app" in refused.stderr) == (2, True)
    background = type_line("delete -n from-shell --no-wait --force --yes", **there)
    assert (background.exit_code, "in the background" in background.stdout) == (0, True)


def test_a_url_goes_before_a_stack(folder: Path) -> None:
    url = f"sqlite:///{folder / 'limits.db'}"
    made = type_line("entity create key", ZAE_LIMITER_URL=url, ZAEL_STACK="elsewhere")
    assert made.exit_code == 0
    assert "$ZAEL_STACK is not used" in made.stderr
    assert type_line("entity show key --url " + url, ZAEL_STACK="elsewhere").exit_code == 0
    assert "no region is known" in type_line("entity show key", ZAEL_STACK="elsewhere").stderr


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("loadtest run --name my-app --users 10", "zae-limiter demo"),
        ("limits cfn-template -n my-app -f limits.yaml --full", "limits apply -f FILE --yes"),
        ("limits cfn-template --help", "limits apply -f FILE --yes"),
    ],
)
def test_commands_that_are_gone_say_what_to_use(line: str, text: str) -> None:
    result = type_line(line)
    assert (result.exit_code, result.stdout) == (2, "")
    assert text in result.stderr


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("entity set-limits key -l rpm:5 --soft tpm", "'tpm' is no limit of -l"),
        ("entity set-parent key", "Nothing to change: pass --parent or --none."),
        ("entity update key", "Nothing to change: pass --display-name"),
        ("deploy --name my-app -t team=a -t team=b", "'team' is passed more than once"),
        ("entity update key -m plan=a -m plan=b", "'plan' is passed more than once"),
        ("entity set-parent key --parent org --none", "cannot be combined"),
        ("audit list key -e key", "Pass one of"),
    ],
)
def test_bad_combinations_are_usage_errors(line: str, text: str) -> None:
    result = type_line(line, ZAE_LIMITER_URL="memory://")
    assert result.exit_code == 2
    assert text in result.stderr


def test_an_empty_list_says_of_what(folder: Path) -> None:
    url = f"sqlite:///{folder / 'limits.db'}"
    for line, text in (("", "of its own."), (" --with-custom-limits nix", "of its own for nix.")):
        assert text in type_line(f"entity list{line}", ZAE_LIMITER_URL=url).stderr


def test_the_days_of_recovery_may_be_none(aws: dict[str, str]) -> None:
    result = type_line("deploy --name my-app --pitr-recovery-days -1", **aws)
    assert result.exit_code != 0
    assert "from 1 to 35; None (0 on the command line) for none" in " ".join(result.stderr.split())


def test_soft_makes_the_named_limits_soft(folder: Path) -> None:
    url = f"sqlite:///{folder / 'limits.db'}"
    made = type_line("--json entity set-limits key --soft tpm -l rpm:5 -l tpm:9", ZAE_LIMITER_URL=url)
    assert [limit.get("soft", False) for limit in json.loads(made.stdout)["limits"]] == [False, True]
    with SyncRepository(url) as repository:
        assert {limit.name: limit.soft for limit in repository.get_limits("key")} == {"rpm": False, "tpm": True}


def test_what_has_no_effect_is_said(aws: dict[str, str]) -> None:
    bare = "deploy -n plain --no-aggregator --no-alarms --no-audit-archival --no-iam"
    assert "--enable-provisioner has no effect" in type_line(f"{bare} --enable-provisioner", **aws).stderr
    assert "has no effect" not in type_line(f"{bare} --no-provisioner", **aws).stderr


def test_the_page_about_017_names_options_that_exist() -> None:
    page = (ROOT / "docs" / "migrating-from-0.17.md").read_text(encoding="utf-8")
    known = {name for path in OLD for name in list_old_names(path)}
    for param in (param for command in LEAVES.values() for param in command.params):
        known.update(param.opts, param.secondary_opts)
    assert {"--none", "--no-tracing"} <= known
    assert set(re.findall(r"(?<!-)--[a-z][a-z0-9-]+", page)) <= known


def test_the_old_names_are_of_commands_and_parameters_that_exist() -> None:
    commands = {" ".join(path): command for path, command in LEAVES.items()}
    commands |= {old: commands[f"{old.rpartition(' ')[0]} {new}"] for old, new in RENAMED.items()}
    for path, old in OLD.items():
        assert old.names.keys() <= {param.name for param in commands[path].params}, path


def test_old_names_are_in_no_help_and_no_completion() -> None:
    """A name that is shown is one that this version means."""
    for path in LEAVES:
        shown = run(*path, "--help").stdout
        for old in ("--entity-id", "--with-custom-limits", "--enable-aggregator", "--no-tracing", "--tail", "--soft"):
            assert f" {old} " not in shown, path
    context = click.Context(root)
    assert "loadtest" not in root.list_commands(context)
    assert "set-parent" not in run("entity", "--help").stdout
    assert "cfn-template" not in run("limits", "--help").stdout
