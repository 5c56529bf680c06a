"""Everything but `aws.local` works where the names that only Unix has do not exist, as on Windows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.deadlines import PATIENCE
from zae_limiter import __version__

SOURCE = Path(__file__).parent.parent / "src"

WITHOUT_UNIX = """
import asyncio, multiprocessing, os, select, signal, subprocess, sys, tempfile, threading, warnings
import botocore.session, click, httpx, redis, redis.asyncio, rich.console, rich.live, rich.prompt

for module, names in {
    os: ("register_at_fork", "fork", "forkpty", "getuid", "geteuid", "getgid", "getpgid", "killpg", "setsid", "uname"),
    select: ("poll", "epoll", "kqueue"),
    signal: ("SIGKILL", "SIGALRM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGCHLD", "alarm", "setitimer", "pthread_kill"),
}.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
for name in ("fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty"):
    sys.modules[name] = None
warnings.filterwarnings("error", category=EncodingWarning, module="zae_limiter")
"""
IMPORT_ALL = """
import importlib, pkgutil
import zae_limiter

zae_limiter.RateLimiter
found = [module.name for module in pkgutil.walk_packages(zae_limiter.__path__, "zae_limiter.")]
for name in found:
    if not name.startswith("zae_limiter.aws.local"):
        print(importlib.import_module(name).__name__)
"""
ACQUIRE = """
from zae_limiter import Limit, RateLimiter, RateLimitExceeded, SyncRateLimiter

limits = [Limit.per_day("requests", 3)]

def take(url):
    with SyncRateLimiter(url) as limiter:
        limiter.set_system_defaults(limits)
        with limiter.acquire("key", "gpt-4", {"requests": 2}) as lease:
            lease.adjust(requests=1)
        return limiter.available("key", "gpt-4")["requests"]

async def take_async(url):
    async with RateLimiter(url) as limiter:
        await limiter.set_system_defaults(limits)
        try:
            async with limiter.acquire("other", "gpt-4", {"requests": 3}):
                async with limiter.acquire("other", "gpt-4", {"requests": 1}):
                    pass
        except RateLimitExceeded as refused:
            return refused.retry_after_seconds > 0

for url in ("memory://", "sqlite:///limits.db"):
    print(url, take(url), asyncio.run(take_async(url)))
"""
COMMANDS = """
from zae_limiter.cli import main

for arguments in (["--version"], ["--url", "memory://", "acquire", "key", "gpt-4", "-c", "rpm:1", "-l", "rpm:60/min"]):
    try:
        main(arguments)
    except SystemExit as ended:
        assert not ended.code, ended.code
"""


def run(code: str, folder: Path) -> list[str]:
    """Run ``code`` in an interpreter without the names of Unix and return the lines it prints."""
    done = subprocess.run(
        [sys.executable, "-X", "warn_default_encoding", "-c", WITHOUT_UNIX + code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_every_module_but_the_local_aws_can_be_imported(tmp_path: Path) -> None:
    for optional in ("fastapi", "opentelemetry"):
        pytest.importorskip(optional)
    imported = run(IMPORT_ALL, tmp_path)
    files = {path.relative_to(SOURCE).with_suffix("").as_posix() for path in (SOURCE / "zae_limiter").rglob("*.py")}
    expected = {file.removesuffix("/__init__").replace("/", ".") for file in files} - {"zae_limiter"}
    assert {name for name in expected if not name.startswith("zae_limiter.aws.local")} == set(imported)


def test_acquires_on_memory_and_sqlite_work_blocking_and_async(tmp_path: Path) -> None:
    assert run(ACQUIRE, tmp_path) == ["memory:// 0 True", "sqlite:///limits.db 0 True"]


@pytest.mark.skipif(os.name == "nt", reason="there it would be a file of the host")
def test_a_url_with_a_drive_is_the_path_that_windows_knows(tmp_path: Path) -> None:
    (tmp_path / "C:" / "data").mkdir(parents=True)
    run("import zae_limiter; zae_limiter.SyncRateLimiter('sqlite:///C:/data/limits.db').get_entity('key')", tmp_path)
    assert (tmp_path / "C:" / "data" / "limits.db").is_file()


def test_the_command_line_works(tmp_path: Path) -> None:
    version, *granted = run(COMMANDS, tmp_path)
    assert version.endswith(__version__)
    assert granted
