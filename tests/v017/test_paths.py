"""The import paths of 0.17: each gives what exists here, and nobody who does not use one pays for it."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import zae_limiter
from zae_limiter.aws import package
from zae_limiter.records import keys
from zae_limiter.stores.dynamodb.table import table_definition
from zae_limiter.v017 import PATHS

SOURCE = Path(zae_limiter.__file__).parent
SAME = ("cli", "limiter", "repository", "zae_limiter_aggregator.handler")
"""The paths that are modules of this version too."""


@pytest.mark.parametrize("path", PATHS)
def test_a_path_has_its_names(path: str) -> None:
    module = import_module(path)
    assert [name for name in PATHS[path] if not callable(getattr(module, name, None))] == []


@pytest.mark.parametrize("path", PATHS)
def test_a_public_class_is_the_same_everywhere(path: str) -> None:
    module = import_module(path)
    public = [name for name in PATHS[path] if isinstance(getattr(zae_limiter, name, None), type)]
    assert [name for name in public if getattr(module, name) is not getattr(zae_limiter, name)] == []


@pytest.mark.parametrize("path", PATHS)
def test_a_name_that_never_was_there_is_missing(path: str) -> None:
    assert not hasattr(import_module(path), "never_there")


@pytest.mark.parametrize("path", PATHS)
def test_a_path_can_be_the_first_import_of_a_program(path: str) -> None:
    """Each in a process of its own: none of them needs another one to be imported before."""
    statement = f"from {path} import {', '.join(PATHS[path])}"
    subprocess.run([sys.executable, "-c", statement], check=True)


def test_modules_at_old_paths_only_import() -> None:
    for path in [each for each in PATHS if not each.endswith(SAME)]:
        text = inspect.getsource(import_module(path))
        assert "def " not in text, path
        assert "class " not in text, path


def test_all_modules_that_only_import_are_listed() -> None:
    """So that `PATHS` is the whole list of them."""
    found = [file for file in SOURCE.rglob("*.py") if "A path of 0.17" in file.read_text(encoding="utf-8")]
    parts = [file.relative_to(SOURCE.parent).with_suffix("").parts for file in found]
    paths = {".".join(each).removesuffix(".__init__") for each in parts}
    assert paths <= PATHS.keys()
    assert len(paths) > 15


@pytest.mark.parametrize("statement", ["import zae_limiter", "from zae_limiter import SyncRateLimiter, RateLimiter"])
def test_a_program_of_this_version_loads_none_of_it(statement: str) -> None:
    listed = [path for path in PATHS if not path.endswith(SAME)]
    code = f"import sys; {statement}; print([each for each in {[*listed, 'zae_limiter.v017']} if each in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"


def test_the_function_of_the_stack_has_none_of_it() -> None:
    assert not [module.path for module in package.modules() if "v017" in module.path]


def test_the_guide_names_every_path() -> None:
    guide = (SOURCE.parents[1] / "docs" / "migrating-from-0.17.md").read_text(encoding="utf-8")
    short = [path.removeprefix("zae_limiter").removeprefix("_aggregator") for path in PATHS]
    assert [path for path in short if f"{path}`" not in guide] == []


def test_keys_are_those_of_this_version() -> None:
    schema = import_module("zae_limiter.schema")
    assert schema.pk_bucket("ns", "key", "gpt-4", 3) == keys.bucket("ns", "key", "gpt-4", 3).pk
    assert schema.parse_bucket_pk("ns/BUCKET#key#gpt-4#3") == ("ns", "key", "gpt-4", 3)
    assert schema.parse_namespace("ns/ENTITY#key") == ("ns", "ENTITY#key")
    assert (schema.sk_meta(), schema.sk_state(), schema.sk_version()) == ("#META", "#STATE", "#VERSION")
    assert (schema.sk_namespace("prod"), schema.sk_nsid("abc")) == ("#NAMESPACE#prod", "#NSID#abc")
    assert (schema.sk_namespace_prefix(), schema.sk_nsid_prefix()) == ("#NAMESPACE#", "#NSID#")
    assert (schema.sk_resources(), schema.sk_entity_config_resources()) == ("#RESOURCES", "#ENTITY_CONFIG_RESOURCES")
    assert schema.gsi3_sk_entity("key") == "key"
    assert schema.calculate_ttl(1_999) == 86_401
    assert schema.get_table_definition("my-app") == table_definition("my-app")
    with pytest.raises(ValueError, match="no namespace"):
        schema.parse_namespace("ENTITY#key")


@pytest.mark.parametrize(
    ("attr", "parts"),
    [("b_my_limit_tk", ("my_limit", "tk")), ("rf", None), ("b_x", None), ("b__tk", None), ("x_y_tk", None)],
)
def test_attributes_of_buckets_are_taken_apart(attr: str, parts: tuple[str, str] | None) -> None:
    schema = import_module("zae_limiter.schema")
    assert schema.parse_bucket_attr(attr) == parts
    if parts is not None:
        assert schema.bucket_attr(*parts) == attr


def test_names_of_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    naming = import_module("zae_limiter.naming")
    for variable in ("ZAEL_STACK", "ZAEL_NAMESPACE"):
        monkeypatch.delenv(variable, raising=False)
    assert (naming.resolve_stack_name(None), naming.resolve_namespace_name(None)) == ("zae-limiter", "default")
    monkeypatch.setenv("ZAEL_STACK", "other")
    monkeypatch.setenv("ZAEL_NAMESPACE", "tenant")
    assert (naming.resolve_stack_name(None), naming.resolve_namespace_name(None)) == ("other", "tenant")
    assert (naming.resolve_stack_name("mine"), naming.resolve_namespace_name("me")) == ("mine", "me")
    assert naming.normalize_name("my-app") == naming.normalize_stack_name("my-app") == "my-app"
    for check in (naming.validate_name, naming.validate_stack_name, naming.normalize_name):
        with pytest.raises(zae_limiter.ValidationError):
            check("my_app")


def test_versions() -> None:
    version = import_module("zae_limiter.version")
    assert str(version.parse_version("v0.10.1-rc.1")) == "0.10.1-rc.1"
    assert str(version.parse_version("1.0")) == "1.0.0"
    assert version.parse_version("1.0.0-rc.1") < version.parse_version("1.0.0") < version.parse_version("1.10.0")
    assert version.parse_version("1.0") == version.parse_version("1.0.0")
    with pytest.raises(ValueError, match="is not a version"):
        version.parse_version("latest")
    assert version.get_schema_version() == version.CURRENT_SCHEMA_VERSION


@pytest.mark.parametrize(
    ("record", "flags"),
    [
        ({"schema_version": "1.0.0", "lambda_version": "1.1.0"}, (True, False, False, False)),
        ({"schema_version": "1.0.0", "lambda_version": "1.0.0"}, (True, False, True, False)),
        ({"schema_version": "0.10.0", "client_min_version": "0.0.0"}, (False, True, False, False)),
        ({"schema_version": "2.0.0"}, (False, False, False, True)),
        ({"schema_version": "1.0.0", "client_min_version": "1.2.0"}, (False, False, False, True)),
    ],
)
def test_compatibility(record: dict[str, str], flags: tuple[bool, ...]) -> None:
    version = import_module("zae_limiter.version")
    found = version.check_compatibility("1.1.0", version.InfrastructureVersion.from_record(record))
    assert flags == (
        found.is_compatible,
        found.requires_schema_migration,
        found.requires_lambda_update,
        found.requires_client_upgrade,
    )
    assert bool(found.message) is not found.is_compatible


def test_the_package_of_the_function(tmp_path: Path) -> None:
    builder = import_module("zae_limiter.infra.lambda_builder")
    path = tmp_path / "lambda.zip"
    assert builder.write_lambda_package(path) == len(builder.build_lambda_package()) == path.stat().st_size
    info = builder.get_package_info()
    assert info["handler"] == "zae_limiter_aggregator.handler.handler"
    assert info["python_files"] > 10
    assert info["uncompressed_size"] < path.stat().st_size
    assert Path(info["package_path"]).is_dir()


def test_the_template() -> None:
    assert "PitrRecoveryDays" in import_module("zae_limiter.infra").get_cfn_template()
