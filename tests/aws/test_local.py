"""The local AWS of a user: started once, found again, never mistaken for another process, gone when it is stopped."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.aws.local_home import Place, placed
from tests.support.aws import engine as tested
from tests.support.deadlines import PATIENCE
from zae_limiter import RateLimiterUnavailable, StackOperationError, ValidationError
from zae_limiter.aws.local import engine, home, lifecycle
from zae_limiter.aws.local.home import Process, birth, hold_lock

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A folder of its own, with the ministack of the tests."""
    monkeypatch.setenv(engine.COMMAND, tested.command())
    with placed(tmp_path) as made:
        yield made


@contextmanager
def bystander(*words: str) -> Iterator[Process]:
    """A process of somebody else."""
    program = words or ("sh", "-c", "echo ready; read line")
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as child:
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == b"ready\n"
            yield Process(child.pid, birth(child.pid) or "ended")
        finally:
            child.kill()


def pretending(folder: Path, script: str) -> str:
    """A program that is no ministack."""
    program = folder / "pretender"
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(0o755)
    return str(program)


def recorded(process: Process, port: int = 1) -> home.RunningEngine:
    return home.RunningEngine(process, port, "us-east-1", time.time())


def test_it_starts_once_and_stops_once(place: Place) -> None:
    first, second = place.up(), place.up()
    assert (first.started, second.started) == (True, False)
    assert first.running == second.running
    assert first.version == second.version == engine.version(place.port)
    assert home.find_running(place.home) == first.running
    assert 0 <= first.running.uptime_seconds <= time.time() - first.running.since
    assert place.down() == first.running
    assert not first.running.process.alive
    assert engine.version(place.port) is None
    assert home.find_running(place.home) is None
    assert place.down() is None
    assert not place.home.scratch.exists()


def test_nothing_is_made_where_nothing_ran(place: Place) -> None:
    assert place.down(purge=True) is None
    assert not place.home.folder.exists()
    with pytest.raises(RateLimiterUnavailable, match="zae-limiter local up"):
        lifecycle.require_running(place.home)


def test_another_port_is_no_second_engine(place: Place) -> None:
    found = place.up()
    for port in (None, place.port):
        assert lifecycle.up(place.home, place.said.append, port=port).running == found.running
    with pytest.raises(StackOperationError, match=f"on port {place.port} already, not on 1: .* local down"):
        lifecycle.up(place.home, place.said.append, port=1)
    assert found.running.process.alive


def test_a_port_that_is_taken_is_named(place: Place) -> None:
    with socket.create_server(("127.0.0.1", place.port)), pytest.raises(StackOperationError) as refused:
        place.up()
    assert str(place.port) in str(refused.value)
    assert "--port" in str(refused.value)
    assert not place.home.log.exists()
    assert place.up().started


def test_a_region_is_checked_before_anything_is_done(place: Place) -> None:
    with pytest.raises(ValidationError, match="region"):
        lifecycle.up(place.home, place.said.append, port=place.port, region="Ireland!")
    assert not place.home.folder.exists()


def test_a_crash_at_the_start_is_told_with_the_last_words(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(engine.COMMAND, pretending(tmp_path, "echo all is well\necho no room >&2\nexit 3"))
    with pytest.raises(StackOperationError) as crashed:
        place.up()
    assert "all is well | no room" in str(crashed.value)
    assert "\n" not in str(crashed.value)
    assert not place.home.record.exists()


def test_one_that_never_answers_is_ended(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(engine.COMMAND, pretending(tmp_path, "exec sleep 600"))
    seen: list[Process] = []
    keep = home.save_running

    def watched(where: home.Home, running: home.RunningEngine) -> None:
        keep(where, running)
        seen.append(running.process)

    monkeypatch.setattr(lifecycle, "save_running", watched)
    with pytest.raises(StackOperationError, match=f"does not answer on port {place.port}"):
        place.up(patience=0.3)
    assert len(seen) == 1
    assert not seen[0].alive
    assert not place.home.record.exists()


def test_an_engine_whose_starter_was_killed_is_taken_up(place: Place) -> None:
    place.home.folder.mkdir()
    orphan = engine.start(place.home, [tested.command()], place.port, "eu-west-1")
    home.save_running(place.home, orphan)
    found = place.up()
    assert (found.started, found.running) == (False, orphan)
    assert found.running.region == "eu-west-1"


def test_a_killed_engine_is_not_believed_and_replaced(place: Place) -> None:
    killed = place.up().running
    os.kill(killed.process.pid, signal.SIGKILL)
    while killed.process.alive:
        time.sleep(0.01)
    assert home.find_running(place.home) is None
    with pytest.raises(RateLimiterUnavailable):
        lifecycle.require_running(place.home)
    found = place.up()
    assert found.started
    assert found.running.process != killed.process


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"', '{"process": 3}', '{"process": {"pid": "x", "birth": "y"}}'])
def test_a_damaged_record_is_none(place: Place, text: str) -> None:
    place.home.folder.mkdir()
    place.home.record.write_text(text, encoding="utf-8")
    assert home.find_running(place.home) is None
    assert place.down() is None


def test_a_recycled_pid_is_neither_believed_nor_killed(place: Place) -> None:
    place.home.folder.mkdir()
    with bystander() as other:
        home.save_running(place.home, recorded(other._replace(birth="before"), place.port))
        assert home.find_running(place.home) is None
        assert place.down(purge=True) is None
        other._replace(birth="before").end(10)
        assert other.alive


def test_a_stale_record_gives_way(place: Place) -> None:
    place.home.folder.mkdir()
    with bystander() as other:
        home.save_running(place.home, recorded(other._replace(birth="before"), place.port))
        found = place.up()
        assert found.started
        assert other.alive
    assert home.find_running(place.home) == found.running


@pytest.mark.parametrize("proc", ["/proc", "/nowhere"], ids=["proc", "ps"])
def test_processes_are_told_apart_by_their_birth(proc: str) -> None:
    table = Path(proc)
    assert birth(os.getpid(), table) == birth(os.getpid(), table) is not None
    with bystander() as other:
        assert birth(other.pid, table)
        os.kill(other.pid, signal.SIGKILL)
        while birth(other.pid, table) is not None:  # it stays as a zombie, which does not run
            time.sleep(0.01)
    assert birth(other.pid, table) is None


def test_what_does_not_listen_is_ended_hard() -> None:
    with bystander("sh", "-c", 'trap "" TERM; echo ready; while :; do sleep 600; done') as deaf:
        deaf.end(0.2)
        assert not deaf.alive


def test_purging_takes_only_what_is_ours(place: Place) -> None:
    place.up()
    mine = place.home.folder / "mine.txt"
    mine.write_text("keep", encoding="utf-8")
    assert place.down(purge=True) is not None
    assert [path.name for path in place.home.folder.iterdir()] == ["mine.txt"]
    mine.unlink()
    place.home.environment.mkdir()
    assert place.down(purge=True) is None
    assert not place.home.folder.exists()


def test_turns_follow_each_other_even_when_the_lock_is_purged(place: Place) -> None:
    waiting, order = threading.Event(), []

    def second() -> None:
        with hold_lock(place.home, lambda text: waiting.set()):
            order.append("second")
            assert place.home.lock.exists()

    other = threading.Thread(target=second)
    with hold_lock(place.home, place.said.append):
        other.start()
        assert waiting.wait(PATIENCE)
        order.append("first")
        place.home.lock.unlink()
    other.join()
    assert order == ["first", "second"]
    assert place.said == []


def test_a_folder_that_cannot_be_used_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(ValidationError, match=home.HOME):
        lifecycle.up(home.Home(tmp_path / "file" / "below"), print)


def test_following_a_log_ends_with_the_engine(place: Place) -> None:
    place.home.folder.mkdir()
    assert engine.read_log(place.home, 5) == []
    with bystander() as other, place.home.log.open("w", encoding="utf-8", buffering=1) as log:
        home.save_running(place.home, recorded(other))
        log.write("one\ntwo\nthree\n")
        assert engine.read_log(place.home, 2) == ["two", "three"]
        lines = engine.follow_log(place.home, 1)
        assert next(lines) == "three"
        log.write("four ")
        log.flush()
        log.write("and five\n")
        assert next(lines) == "four and five"
        log.write("the end")
        log.flush()
        other.end(10)
        assert list(lines) == ["the end"]


def test_the_engine_knows_nothing_of_the_user_s_account(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_PROFILE", "PERSIST_STATE", "USE_SSL", "PYTHONPATH", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "1")
    made = engine.environment(place.home, 4600, "eu-west-1")
    assert not made.keys() & {"AWS_PROFILE", "USE_SSL", "PYTHONPATH", "HTTPS_PROXY"}
    assert (made["BIND_HOST"], made["GATEWAY_PORT"], made["PERSIST_STATE"]) == ("127.0.0.1", "4600", "0")
    assert {made["HOME"], made["TMPDIR"]} == {str(place.home.scratch)}


def test_a_ministack_that_is_named_must_be_there(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(engine.COMMAND, "/nowhere/ministack")
    with pytest.raises(ValidationError, match=engine.COMMAND):
        place.up()


def test_the_home_is_where_the_platform_keeps_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(home.HOME, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    for given, expected in ((None, ".local/share"), ("", ".local/share"), ("odd", ".local/share"), ("/data", "/data")):
        monkeypatch.delenv("XDG_DATA_HOME", raising=False)
        if given is not None:
            monkeypatch.setenv("XDG_DATA_HOME", given)
        assert home.find_home().folder == tmp_path / expected / "zae-limiter" / "local"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert home.find_home().folder == tmp_path / "Library" / "Application Support" / "zae-limiter" / "local"
    monkeypatch.setenv(home.HOME, "~/mine")
    assert home.find_home().folder == tmp_path / "mine"
    for bad in ("", "relative/path"):
        monkeypatch.setenv(home.HOME, bad)
        with pytest.raises(ValidationError, match="absolute"):
            home.find_home()
