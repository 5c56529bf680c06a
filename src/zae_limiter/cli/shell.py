"""The store options of a run: which store to open and how to print."""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import click

from .grid import Grid
from .output import drop_double_stop, note, print_grid, print_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..sync import SyncRateLimiter, SyncRepository

ENVIRONMENT = "ZAE_LIMITER_URL"


@dataclass
class Shell:
    """The store options of one run, collected from the root to the command."""

    url: str | None = None
    stack_name: str | None = None
    region: str | None = None
    endpoint_url: str | None = None
    namespace: str = "default"
    as_json: bool = False
    warnings: list[str] = field(default_factory=list)
    """What the library has logged, for the command to tell where it matters."""

    @contextmanager
    def repository(self) -> Iterator[SyncRepository]:
        """Open the store for the length of a block. Raise `UsageError` if none was given."""
        from ..sync import SyncRepository

        url = self.url
        if url is None and self.stack_name is None:
            url = os.environ.get(ENVIRONMENT) or None
            if url is None:
                raise click.UsageError(
                    "No store was given. Pass --url sqlite:///limits.db, "
                    f"or set it for all commands: export {ENVIRONMENT}=sqlite:///limits.db"
                )
        repository = SyncRepository(
            url, name=self.stack_name, region=self.region, endpoint_url=self.endpoint_url, namespace=self.namespace
        )
        if url is not None and not self.as_json:
            _note_store(url)
        with repository, _collect_warnings(self.warnings):
            yield repository

    @contextmanager
    def limiter(self) -> Iterator[SyncRateLimiter]:
        """Open a limiter over the store for the length of a block."""
        from ..sync import SyncRateLimiter

        with self.repository() as repository:
            yield SyncRateLimiter(repository)

    def show(self, data: object, text: Grid | str) -> None:
        """Print a result: ``data`` as JSON if that was requested, else ``text``."""
        if self.as_json:
            print_json(data)
        elif isinstance(text, Grid):
            print_grid(text)
        else:
            click.echo(drop_double_stop(text))


class _Collector(logging.Handler):
    def __init__(self, messages: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        self._messages.append(record.getMessage())


@contextmanager
def _collect_warnings(messages: list[str]) -> Iterator[None]:
    """Collect the library's warnings for the length of a block, instead of letting Python print them."""
    collector = _Collector(messages)
    logger = logging.getLogger("zae_limiter")
    logger.addHandler(collector)
    try:
        yield
    finally:
        logger.removeHandler(collector)


def _note_store(url: str) -> None:
    """Note that a memory store keeps nothing, or that a SQLite file is created."""
    parts = urlsplit(url)
    if parts.scheme == "memory":
        note("memory:// keeps nothing after this command; sqlite:///limits.db does.")
    elif parts.scheme == "sqlite":
        path = Path(unquote(parts.path.removeprefix("/")))
        if not path.exists() and path.parent.is_dir():
            note(f"{path} is created.")
