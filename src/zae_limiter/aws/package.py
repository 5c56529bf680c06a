"""The Lambda package: the aggregator and the modules of ours that it imports, as a zip, built and uploaded.

The same sources make the same bytes on every machine: names are sorted, times and permissions fixed, and nothing is
compressed, as compressors differ. It is pure Python, so it runs on every architecture. It is uploaded to the function
directly, so that a stack needs no bucket for it; or to S3, from where other tools deploy it.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import io
import time
import zipfile
from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

from .._version import __version__
from ..core.errors import StackOperationError
from .calls import Aws, code_of, poll
from .stack_options import StackOptions
from .template import function_name

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


AGGREGATOR = "zae_limiter_aggregator"
_OURS = (AGGREGATOR, "zae_limiter")
_VERSION = "zae-limiter-version"
"""The metadata of a package in S3 that name its version."""


class Module(NamedTuple):
    """A module of ours: the parts of its dotted name, whether it is a package, and its text."""

    parts: tuple[str, ...]
    is_package: bool
    source: bytes

    @property
    def path(self) -> str:
        """The path in the zip."""
        return "/".join(self.parts) + ("/__init__.py" if self.is_package else ".py")


def build() -> bytes:
    """Build the zip and return its bytes."""
    output = io.BytesIO()
    with zipfile.ZipFile(output, "w", zipfile.ZIP_STORED) as archive:
        for module in sorted(modules(), key=lambda module: module.path):
            entry = zipfile.ZipInfo(module.path, date_time=(1980, 1, 1, 0, 0, 0))
            entry.external_attr = 0o100644 << 16
            entry.create_system = 3  # Unix
            archive.writestr(entry, module.source)
    return output.getvalue()


def sha256(package: bytes) -> str:
    """Return the digest in the form in which Lambda reports it."""
    return base64.b64encode(hashlib.sha256(package).digest()).decode()


def modules() -> list[Module]:
    """Return all modules of the aggregator and those that they import, directly or not."""
    found: dict[tuple[str, ...], Module] = {}
    wanted = list(_below(resources.files(AGGREGATOR), (AGGREGATOR,)))
    while wanted:
        parts = wanted.pop()
        module = None if parts in found else _read(parts)
        if module is not None:
            found[parts] = module
            wanted += (parts[:length] for length in range(1, len(parts)))
            wanted += _imports(module)
    return list(found.values())


def _below(folder: Traversable, parts: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    yield parts
    for each in folder.iterdir():
        if each.is_dir() and each.joinpath("__init__.py").is_file():
            yield from _below(each, (*parts, each.name))
        elif each.name.endswith(".py") and each.name != "__init__.py":
            yield (*parts, each.name.removesuffix(".py"))


def _read(parts: tuple[str, ...]) -> Module | None:
    """Return the module of that name, or None if it is not a module of ours."""
    if parts[0] not in _OURS:
        return None
    place = resources.files(parts[0])
    package = place.joinpath(*parts[1:], "__init__.py")
    if package.is_file():
        return Module(parts, True, package.read_bytes())
    file = place.joinpath(*parts[1:-1], f"{parts[-1]}.py")
    return Module(parts, False, file.read_bytes()) if len(parts) > 1 and file.is_file() else None


def _imports(module: Module) -> Iterator[tuple[str, ...]]:
    """Yield the names that a module may import; some of them are not modules."""
    package = module.parts if module.is_package else module.parts[:-1]
    tree = ast.parse(module.source)
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []  # it is never executed
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            target = (*base, *(node.module.split(".") if node.module else ()))
            yield target
            yield from ((*target, alias.name) for alias in node.names)


_build_once = cache(build)


def is_current(configuration: dict[str, Any]) -> bool:
    """Return whether a function has this version's code."""
    return bool(configuration["CodeSha256"] == sha256(_build_once()))


def is_from_s3(configuration: dict[str, Any]) -> bool:
    """Return whether the stack takes a function's code from S3."""
    return bool(configuration.get("Environment", {}).get("Variables", {}).get("ZAE_LIMITER_CODE_SOURCE") == "s3")


def find_version(aws: Aws, name: str, options: StackOptions) -> str | None:
    """Return the version of the function's code; None if it comes from S3 and its object does not tell."""
    if options.code_s3_bucket is None:
        return __version__
    if is_current(aws.call("lambda", "get_function_configuration", FunctionName=function_name(name))):
        return __version__
    version = {} if options.code_s3_version is None else {"VersionId": options.code_s3_version}
    found = aws.call_if_allowed("s3", "head_object", Bucket=options.code_s3_bucket, Key=options.code_s3_key, **version)
    return None if found is None else found.get("Metadata", {}).get(_VERSION)


class StoredPackage(NamedTuple):
    """A package in S3, and its digest as Lambda reports it."""

    bucket: str
    key: str
    version: str | None
    """None in a bucket without versioning."""
    code_sha256: str


def store(aws: Aws, bucket: str, key: str) -> StoredPackage:
    """Upload this version's package to S3. A key that is empty or ends in ``/`` gets a name with version and digest."""
    content = _build_once()
    if not key or key.endswith("/"):
        key = f"{key}zae-limiter-{__version__}-{hashlib.sha256(content).hexdigest()[:12]}.zip"
    metadata = {_VERSION: __version__}
    answer = aws.call("s3", "put_object", Bucket=bucket, Key=key, Body=content, Metadata=metadata)
    return StoredPackage(bucket, key, answer.get("VersionId"), sha256(content))


def upload(aws: Aws, name: str) -> str:
    """Upload this version's code unless the function has it, or has it from S3.

    Return ``uploaded``, ``unchanged`` or ``from S3``.
    """
    function = function_name(name)
    busy = StackOperationError(f"Too much contention on Lambda function {function!r}; deploy again later.")

    def look() -> dict[str, Any] | None:
        found = aws.call("lambda", "get_function_configuration", FunctionName=function)
        return None if found.get("State") == "Pending" or found.get("LastUpdateStatus") == "InProgress" else found

    def send() -> dict[str, Any] | None:
        try:
            return aws.call("lambda", "update_function_code", FunctionName=function, ZipFile=_build_once())
        except StackOperationError as error:
            if code_of(error) != "ResourceConflictException":  # another client is changing it
                raise
            return None

    present = poll(look, time.sleep, busy)
    if is_from_s3(present):
        return "from S3"
    if is_current(present):
        return "unchanged"
    poll(send, time.sleep, busy)
    found = poll(look, time.sleep, busy)
    if "Failed" in (found.get("State"), found.get("LastUpdateStatus")):
        reason = found.get("LastUpdateStatusReason") or found.get("StateReason") or "AWS gives no reason"
        raise StackOperationError(f"The code of Lambda function {function!r} could not be changed: {reason}")
    return "uploaded"
