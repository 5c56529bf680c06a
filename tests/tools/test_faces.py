"""The blocking classes are those that the tool writes, and it writes what is asked of it."""

from __future__ import annotations

import ast
import difflib
import doctest
import inspect
from pathlib import Path

import pytest
from tools.faces import phrasing, specials
from tools.faces.__main__ import main
from tools.faces.sources import read_class
from tools.faces.specials import ADDED, COPIED, INSTEAD, MODULES, REPHRASED, SPECIALS
from tools.faces.words import blocking_words
from tools.faces.writing import PACKAGE, ROOT, async_classes, find_changes, write_faces

from zae_limiter import StackManager, SyncStackManager
from zae_limiter.sync import facade

FACES = {kind.__name__: f"Sync{kind.__name__}" for kind in async_classes()}


def differences(path: Path, wanted: str) -> str:
    """What would change in a file, line by line."""
    found = path.read_text(encoding="utf-8") if path.exists() else ""
    return "\n".join(
        difflib.unified_diff(found.splitlines(), wanted.splitlines(), "found", "written", lineterm="", n=1)
    )


def test_the_faces_are_those_of_the_async_classes() -> None:
    changes = [
        f"{path.relative_to(ROOT)}:\n{differences(path, text or '')}" for path, text in find_changes(ROOT / "src")
    ]
    assert not changes, "run `python -m tools.faces` and commit what it writes\n" + "\n".join(changes)


def test_it_writes_missing_files_mends_edited_ones_and_deletes_strays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--check"], tmp_path) == 1
    assert main([], tmp_path) == 0
    written = capsys.readouterr().out.splitlines()
    assert "written: zae_limiter/sync/facade.py" in written
    assert len(written) == 2 * len(write_faces())
    assert main(["--check"], tmp_path) == 0
    changed, stray = tmp_path / PACKAGE / "limiter" / "sync_lease.py", tmp_path / PACKAGE / "sync" / "stray.py"
    before = changed.read_text(encoding="utf-8")
    changed.write_text(before.replace("run(self._write_late())", "pass"), encoding="utf-8")
    stray.touch()
    assert main(["--check"], tmp_path) == 1
    assert capsys.readouterr().out.splitlines() == [
        "differs: zae_limiter/limiter/sync_lease.py",
        "differs: zae_limiter/sync/stray.py",
    ]
    assert main([], tmp_path) == 0
    assert changed.read_text(encoding="utf-8") == before
    assert not stray.exists()


def test_every_file_says_that_it_is_written() -> None:
    assert all("Written by ``python -m tools.faces``" in text for text in write_faces().values())


def test_every_exception_is_one() -> None:
    """An exception for something that does not exist any more has to go."""
    members = {
        f"{kind.__name__}.{getattr(node, 'name', None) or ast.unparse(getattr(node, 'target', node))}"
        for kind in async_classes()
        for node in read_class(kind).body
    }
    assert SPECIALS.keys() <= members
    assert {f"Lease.{name}" for name in INSTEAD} <= members
    assert ADDED.keys() <= FACES.keys()
    assert {f"{PACKAGE}.{name}" for name in MODULES} <= {kind.__module__ for kind in async_classes()}
    assert all(special.reason for special in SPECIALS.values())


TOY = '''
class Toy(Base):
    """A `Toy` and a `Repository`; ``await`` it."""

    size: int
    """How large it is."""

    def __init__(self, size: int = 1, *, name: str = "x", **more: object) -> None: ...

    @property
    def weight(self) -> int: ...

    @weight.setter
    def weight(self, weight: int) -> None: ...

    @overload
    async def look(self) -> Repository: ...

    @overload
    async def look(self, where: str) -> None: ...

    async def look(self, where: str | None = None) -> Repository | None:
        """Look."""
        return await self._look(where)

    async def forget(self, first: int, /, *rest: int, why: str) -> None: ...

    def peek(self) -> Coroutine[Any, Any, int]: ...

    @classmethod
    async def find(cls, name: str) -> Self: ...

    def copied(self) -> Lease:
        return Lease(self, self.size)

    async def _look(self, where: str | None) -> None: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *error: object) -> None: ...
'''
HELD = '''
class SyncToy(SyncBase):
    """A `Toy` and a `SyncRepository`; ``await`` it."""

    _inner: Toy
    size: int
    """How large it is."""

    def __init__(self, size: int = 1, *, name: str = "x", **more: object) -> None:
        self._inner = BlockingToy(size, name=name, **more)

    @property
    def weight(self) -> int:
        return self._inner.weight

    @weight.setter
    def weight(self, weight: int) -> None:
        self._inner.weight = weight

    @overload
    def look(self) -> SyncRepository: ...

    @overload
    def look(self, where: str) -> None: ...

    def look(self, where: str | None = None) -> SyncRepository | None:
        """Look."""
        inner: Any = self._inner
        answer: SyncRepository | None = run(inner.look(where))
        return answer

    def forget(self, first: int, /, *rest: int, why: str) -> None:
        run(self._inner.forget(first, *rest, why=why))

    def peek(self) -> int:
        return self._inner.peek()

    @classmethod
    def find(cls, name: str) -> Self:
        return cls._of(run(BlockingToy.find(name)))

    def copied(self) -> SyncLease:
        return SyncLease(self._inner, self.size)

    def __enter__(self) -> Self:
        run(self._inner.__aenter__())
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
'''


def parsed(source: str) -> ast.ClassDef:
    (found,) = ast.parse(source).body
    assert isinstance(found, ast.ClassDef)
    return found


def spelled(node: ast.ClassDef) -> str:
    return ast.unparse(ast.fix_missing_locations(node))


def test_a_face_that_holds_the_async_object(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SPECIALS, "Toy.copied", specials.Special(COPIED, "a trial"))
    faces = {"Repository": "SyncRepository", "Lease": "SyncLease", "Toy": "SyncToy"}
    made = spelled(phrasing.wrap(parsed(TOY), ["SyncBase"], faces))
    assert made == spelled(parsed(HELD))


def test_a_face_that_is_the_same_code_without_await() -> None:
    toy = '''
class Lease(Base):
    async def enter(self) -> Lease:
        """Await `Lease.exit`."""
        await (self._take() if self._open else self._limiter.take(self))
        await self.exit()
        async with self.turn() as lease:
            return await self._of(Lease)
        async for each in self.parts():
            await each.exit()

    async def exit(self) -> None:
        await self._end(error)

    async def _end(self, error: BaseException | None) -> None: ...
'''
    face = '''
class SyncLease(Base):
    def enter(self) -> SyncLease:
        """Await `SyncLease.exit`."""
        run(self._take() if self._open else self._limiter.take(self))
        self.exit()
        with self.turn() as lease:
            return run(self._of(SyncLease))
        for each in self.parts():
            run(each.exit())

    def exit(self) -> None:
        run(self._exit(failed=error is not None))
'''
    assert spelled(phrasing.rephrase(parsed(toy), FACES, {"enter", "exit"})) == spelled(parsed(face))


def test_what_has_to_differ_differs() -> None:
    text = (
        ">>> import asyncio\n>>> async def take(limiter: RateLimiter) -> None:\n...     async with limiter.acquire():\n"
        "...         await limiter.close()\n>>> asyncio.run(take(RateLimiter()))\n"
        "A `Repository` and a `Lease`; `RateLimiterClosedError` and `SyncLease` stay."
    )
    assert blocking_words(text) == (
        ">>> def take(limiter: SyncRateLimiter) -> None:\n...     with limiter.acquire():\n"
        "...         limiter.close()\n>>> take(SyncRateLimiter())\n"
        "A `SyncRepository` and a `SyncLease`; `RateLimiterClosedError` and `SyncLease` stay."
    )


@pytest.mark.parametrize("kind", async_classes(), ids=lambda kind: kind.__name__)
def test_every_public_name_has_a_docstring(kind: type) -> None:
    names = [name for name in vars(kind) if not name.startswith("_") and callable(getattr(kind, name))]
    assert inspect.getdoc(kind)
    assert all(inspect.getdoc(getattr(kind, name)) for name in names)


@pytest.mark.parametrize("name", [name for name in vars(StackManager) if not name.startswith("_")])
def test_the_managers_of_stacks_say_the_same(name: str) -> None:
    """These are written by hand: the async one hands its work to a thread that runs the blocking one."""
    said, wanted = (inspect.getdoc(getattr(kind, name)) for kind in (SyncStackManager, StackManager))
    assert wanted
    assert said == blocking_words(wanted)
    assert inspect.getdoc(SyncStackManager) == blocking_words(inspect.getdoc(StackManager) or "")


def test_the_examples_in_blocking_docstrings_run() -> None:
    done = doctest.testmod(facade)
    assert done.attempted
    assert not done.failed


def test_leases_await_nothing_but_coroutines_that_never_suspend() -> None:
    """The face of a lease calls the methods that block in it, and runs the coroutines of what it inherits."""
    own = {node.name for kind in REPHRASED for node in read_class(kind).body if isinstance(node, ast.AsyncFunctionDef)}
    text = write_faces()[f"{PACKAGE}.limiter.sync_lease"]
    assert "await" not in text.replace("``await``", "")
    assert not any(f"run(self.{name}(" in text for name in own)
