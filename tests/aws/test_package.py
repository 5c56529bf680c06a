"""The Lambda package: the same bytes everywhere, and enough to run on its own."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import botocore
import pytest
from click.testing import CliRunner

import zae_limiter
from zae_limiter.aws import package
from zae_limiter.cli.app import root

SOURCE = Path(zae_limiter.__file__).parents[1]
LIBRARIES = Path(botocore.__file__).parents[1]

BUILD = "import sys; from zae_limiter.aws import package; sys.stdout.buffer.write(package.build())"

IMPORT = """
import json, sys
archive, *libraries = sys.argv[1:]
sys.path = [archive, *[path for path in sys.path if "site-packages" not in path], *libraries]
import zae_limiter_aggregator.handler as handler
assert handler.__file__.startswith(archive), handler.__file__
from zae_limiter.stores.dynamodb.client import open_client
open_client("table", blocking=True, region="us-east-1")
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules if "__" not in name})))
"""

OURS = {"zae_limiter", "zae_limiter_aggregator"}


@pytest.fixture(scope="module")
def built() -> bytes:
    return package.build()


@pytest.fixture
def archive(built: bytes, tmp_path: Path) -> Path:
    path = tmp_path / "lambda.zip"
    path.write_bytes(built)
    return path


def names(content: bytes) -> list[str]:
    return zipfile.ZipFile(io.BytesIO(content)).namelist()


def test_it_holds_the_aggregator_and_what_it_needs_and_no_more(built: bytes) -> None:
    found = names(built)
    assert {"zae_limiter_aggregator/handler.py", "zae_limiter/__init__.py", "zae_limiter/_version.py"} <= set(found)
    assert all(name.endswith(".py") for name in found)
    unneeded = ("cli", "web", "kv", "testing", "aws", "sync", "repository", "stores/redis", "stores/sqlite")
    assert not [name for name in found for each in unneeded if name.startswith(f"zae_limiter/{each}")]
    whole = {path.relative_to(SOURCE).as_posix() for path in (SOURCE / "zae_limiter_aggregator").rglob("*.py")}
    assert whole <= set(found)


def test_it_is_small(built: bytes) -> None:
    assert len(built) < 560_000  # the sources of ours alone: any dependency would be more


def test_its_entries_depend_on_nothing_but_their_content(built: bytes) -> None:
    entries = zipfile.ZipFile(io.BytesIO(built)).infolist()
    assert [entry.filename for entry in entries] == sorted(entry.filename for entry in entries)
    assert {entry.date_time for entry in entries} == {(1980, 1, 1, 0, 0, 0)}
    assert {(entry.external_attr >> 16, entry.create_system) for entry in entries} == {(0o100644, 3)}
    assert {entry.compress_type for entry in entries} == {zipfile.ZIP_STORED}


def test_building_twice_makes_the_same_bytes(built: bytes) -> None:
    assert package.build() == built


def test_other_times_folders_and_machines_make_the_same_bytes(built: bytes, tmp_path: Path) -> None:
    for name in OURS:
        shutil.copytree(SOURCE / name, tmp_path / "copy" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (tmp_path / "copy").rglob("*"):
        os.utime(path, (1, 1))
        path.chmod(0o700)
    (tmp_path / "elsewhere").mkdir()
    environment = {"PYTHONPATH": str(tmp_path / "copy"), "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo"}
    made = subprocess.run(
        [sys.executable, "-c", BUILD], cwd=tmp_path / "elsewhere", env=environment, capture_output=True, check=True
    )
    assert made.stdout == built


def test_it_runs_alone_with_nothing_but_botocore(archive: Path, tmp_path: Path) -> None:
    """What Lambda has: the standard library, botocore with what it needs, and the zip."""
    (tmp_path / "runtime").mkdir()
    for name in ("botocore", "jmespath", "dateutil", "urllib3", "six.py"):
        (tmp_path / "runtime" / name).symlink_to(LIBRARIES / name)
    run = [sys.executable, "-I", "-c", IMPORT, str(archive), str(tmp_path / "runtime")]
    done = subprocess.run(run, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    allowed = OURS | {"botocore", "jmespath", "dateutil", "urllib3", "six"} | sys.stdlib_module_names
    assert [name for name in json.loads(done.stdout) if name not in allowed and not name.startswith("_")] == []


def test_its_digest_is_the_one_that_lambda_tells(built: bytes) -> None:
    assert base64.b64decode(package.sha256(built)) == hashlib.sha256(built).digest()


def test_what_only_type_checkers_see_is_not_followed() -> None:
    source = b"""
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from zae_limiter.records import audit
else:
    from zae_limiter.records import usage
def late():
    from ..clock import Clock
from . import values
"""
    module = package.Module(("zae_limiter", "core", "made"), False, source)
    found = set(package._imports(module))
    assert ("zae_limiter", "records", "usage") in found
    assert ("zae_limiter", "clock") in found
    assert ("zae_limiter", "core", "values") in found
    assert ("zae_limiter", "records", "audit") not in found


def test_the_command_writes_it(built: bytes, tmp_path: Path) -> None:
    target = str(tmp_path / "lambda.zip")
    runner = CliRunner()
    told = runner.invoke(root, ["lambda-export", "--output", target])
    assert told.exit_code == 0
    assert package.sha256(built) in told.stdout
    assert Path(target).read_bytes() == built
    again = runner.invoke(root, ["lambda-export", "--output", target])
    assert (again.exit_code, "--force" in again.stderr) == (2, True)
    shown = runner.invoke(root, ["lambda-export", "--output", target, "--force", "--json"])
    assert json.loads(shown.stdout) == {"path": target, "bytes": len(built), "code_sha256": package.sha256(built)}
