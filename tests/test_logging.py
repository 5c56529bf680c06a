"""What is logged: stable events with stable fields, as documented, and who is limited only where it is needed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from botocore.credentials import Credentials

import zae_limiter
from tests.aws.stacks import REGION, aws, named
from tests.kv.support import CLIENT, KEY, Watched
from tests.support.aws import engine
from tests.support.deadlines import PATIENCE
from tests.web.scripted import SERVE, Site, adjust, limiter_for
from zae_limiter import (
    Decision,
    InfrastructureError,
    Limit,
    Observer,
    RateLimiterUnavailable,
    StackOptions,
    SyncRateLimiter,
    SyncRepository,
    logs,
)
from zae_limiter.aws.template import function_name
from zae_limiter.kv import RateLimitPolicy, SyncEnforceRateLimit, TokenBucket
from zae_limiter.records import version
from zae_limiter.records.algebra import Committed, Conflict, Write
from zae_limiter.records.version import Deployed
from zae_limiter.repository.backend import log_aggregator_warning
from zae_limiter.runtime.blocking import run
from zae_limiter.runtime.housekeeper import Housekeeper
from zae_limiter.stores.dynamodb.credentials import CredentialSource
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.stores.redis.links import LinkOpener
from zae_limiter.stores.redis.settings import Address, parse
from zae_limiter.stores.redis.store import open_redis
from zae_limiter.stores.redis.wires import BlockingWire
from zae_limiter.stores.server_clock import ServerClock
from zae_limiter.testing import Fault, FaultyStore, ManualClock
from zae_limiter.web import Proxies, Rule

LIMITS = [Limit.per_minute("rpm", 10), Limit.per_minute("tpm", 1_000)]
RULE = Rule(limits=LIMITS, cost={"rpm": 1})
SOURCE = Path(zae_limiter.__file__).parent
STANDARD = {*vars(logging.makeLogRecord({})), "asctime", "message", "taskName"}
"""What every record has, with what the formatter of any handler adds to it."""


class Row(NamedTuple):
    """What the documentation says of an event."""

    level: str
    fields: set[str]


WHOSE = {"zae_namespace", "zae_backend", "zae_entity_id", "zae_resource"}
GROUPS = {
    "*whose*": WHOSE,
    "*lease*": {*WHOSE, "zae_error_type"},
    "*kv*": {"kv_key"},
}


def documented() -> dict[str, Row]:
    """The table of the module, with its groups of fields written out."""
    rows = {}
    for line in (logs.__doc__ or "").splitlines():
        found = re.fullmatch(r"\| ``([a-z_.]+)`` \| ([A-Z]+) \| .* \| (.*) \|", line)
        if found is not None:
            event, level, fields = found.groups()
            named = [GROUPS.get(field) or {_written_out(field)} for field in fields.split(", ")]
            rows[event] = Row(level, set().union(*named))
    return rows


def _written_out(field: str) -> str:
    return field.strip("`") if field.startswith("`") else f"zae_{field}"


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    """What a record carries beyond what every record does."""
    return {name: value for name, value in vars(record).items() if name not in STANDARD}


class Shaky:
    """A limiter on a store that can fail."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = FaultyStore(MemoryStore(self.clock))
        self.limiter = SyncRateLimiter(SyncRepository(self.store), on_unavailable="allow")

    def take(self) -> None:
        with self.limiter.acquire("key-1", "gpt-4", {"rpm": 1}, LIMITS):
            pass


def outage() -> None:
    shaky = Shaky()
    shaky.take()
    shaky.store.inject(Fault.FAIL_BEFORE)
    shaky.take()
    shaky.take()


def hanging_store() -> None:
    shaky = Shaky()
    shaky.take()
    shaky.store.inject(Fault.DELAY, seconds=3_600)
    shaky.take()
    shaky.clock.advance(1)
    shaky.take()


def replaced_file() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "limits.db"
        with SyncRateLimiter(f"sqlite:///{path}", on_unavailable="allow") as limiter:
            for _ in range(2):
                with limiter.acquire("key-1", "gpt-4", {"rpm": 1}, LIMITS):
                    path.unlink(missing_ok=True)


def evicting_server() -> None:
    opener = LinkOpener(BlockingWire(), {}, 1.0, "redis")
    for policy in ("noeviction", "allkeys-lru", "allkeys-lru"):
        opener.note_eviction(Address("127.0.0.1", 6379), policy)


def lost_settlement() -> None:
    shaky = Shaky()
    with shaky.limiter.acquire("key-1", "gpt-4", {"rpm": 1, "tpm": 100}, LIMITS) as lease:
        lease.adjust(tpm=-30)
        shaky.store.inject(Fault.FAIL_BEFORE)


def lost_return(more: int = 0) -> None:
    shaky = Shaky()
    with (
        contextlib.suppress(KeyError),
        shaky.limiter.acquire("key-1", "gpt-4", {"rpm": 1, "tpm": 100}, LIMITS) as lease,
    ):
        if more:
            lease.consume(tpm=more)
        shaky.store.inject(Fault.FAIL_BEFORE)
        raise KeyError


def cut_return() -> None:
    with Shaky().limiter.acquire("key-1", "gpt-4", {"rpm": 1, "tpm": 100}, LIMITS) as lease:
        lease.adjust(tpm=-130)


def exceeded_soft_limit() -> None:
    shaky, limits = Shaky(), [Limit.per_day("rpm", 1, soft=True)]
    for _ in range(3):
        with shaky.limiter.acquire("key-1", "gpt-4", {"rpm": 1}, limits):
            pass
    shaky.clock.advance(60)
    with shaky.limiter.acquire("key-1", "gpt-4", {"rpm": 1}, limits) as lease:
        lease.adjust(rpm=1)


def crossed_threshold() -> None:
    with Shaky().limiter.acquire("key-1", "gpt-4", {"tpm": 80}, [Limit.per_minute("tpm", 100, alerts=(0.8,))]):
        pass


def unrecorded_alert() -> None:
    class Forgetful(FaultyStore):
        async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
            if any("action" in write.put for write in writes):
                self.inject(Fault.FAIL_BEFORE)
            return await super().commit(writes, timeout=timeout)

    limiter = SyncRateLimiter(SyncRepository(Forgetful(MemoryStore(), free_atomic_commit=False)))
    with limiter.acquire("key-1", "gpt-4", {"tpm": 80}, [Limit.per_minute("tpm", 100, alerts=(0.8,))]):
        pass


def uncharged_parent() -> None:
    with SyncRateLimiter("memory://") as limiter:
        limiter.create_entity("org")
        limiter.create_entity("key-1", parent_id="org", cascade=True)
        limiter.set_limits("org", [Limit.per_minute("tpm", 100)])
        limiter.set_limits("key-1", [Limit.per_minute("tokens", 100)])
        with limiter.acquire("key-1", "gpt-4", {"tokens": 1}):
            pass


def lost_response() -> None:
    store = FaultyStore(MemoryStore())
    site = Site("wsgi", limiter_for("wsgi", store), rules=[RULE])
    site.ask("/", adjust(rpm=1), lambda raw: store.inject(Fault.FAIL_BEFORE), *SERVE)


def ignored_header() -> None:
    sent = {"x-forwarded-for": ["198.51.100.1"]}
    Proxies().client("203.0.113.9", lambda name: sent.get(name, []))


def skewed_host() -> None:
    ServerClock("Redis", ManualClock(100_000)).learn(40_000, 40_001, 100_000, 100_001)


def skewed_process() -> None:
    SyncRepository(MemoryStore(ManualClock(40_000)), clock=ManualClock(100_000))


def refused_client() -> None:
    clock = ManualClock()
    check = SyncEnforceRateLimit(Watched(clock), RateLimitPolicy.create(1), clock).check
    assert [check(CLIENT).allowed for _ in range(2)] == [True, False]


def reset_client() -> None:
    clock = ManualClock()
    watched = Watched(clock)
    check = SyncEnforceRateLimit(watched, clock=clock).check
    asyncio.run(watched.save(KEY, TokenBucket(0, clock.now_ms() + 10 * 86_400_000, 10)))
    check(CLIENT)


def failing_client() -> None:
    clock = ManualClock()
    SyncEnforceRateLimit(Watched(clock, {"get": OSError("down")}), clock=clock).check(CLIENT)


def failing_observer() -> None:
    class Failing(Observer):
        def on_decision(self, decision: Decision) -> None:
            raise KeyError

    limiter = SyncRateLimiter("memory://", observer=Failing())
    for _ in range(2):
        with limiter.acquire("key-1", "gpt-4", {"rpm": 1}, LIMITS):
            pass


def lost_slot() -> None:
    shaky, limits = Shaky(), [Limit.concurrent("parallel", 1, ttl=60)]
    with shaky.limiter.acquire("key-1", "gpt-4", {}, limits):
        shaky.clock.advance(60)
        run(shaky.limiter._inner.renew_slots())


def failing_chore() -> None:
    housekeeper, begun = Housekeeper(), threading.Event()

    def chore() -> None:
        begun.set()
        raise KeyError

    housekeeper.schedule(chore, 0)
    begun.wait(PATIENCE)
    housekeeper.cancel(chore)


def failed_renewal() -> None:
    session = SimpleNamespace(get_credentials=iter([Credentials("id", "secret")]).__next__)
    now = [0.0]
    source = CredentialSource(lambda: session, local=lambda: False, timer=lambda: now[0])
    source.renew().result()
    now[0] += 60
    source._found = None
    with contextlib.suppress(InfrastructureError):
        source.renew().result()


def missing_stack_then_old_aggregator() -> None:
    """A stack is deployed, its aggregator is made an old one twice, and the second time it is gone."""
    with named() as name:
        where: dict[str, Any] = {"stack": name, "region": REGION, "endpoint_url": engine.endpoint()}
        quiet = StackOptions(enable_alarms=False, enable_audit_archival=False)
        SyncRepository.open(**where, stack_options=quiet).close()
        for loses_function in (False, True):
            repository = SyncRepository.connect(**where)
            run(repository.store.commit([Write(version.KEY, (), {"lambda_version": "0.3.0"})]))
            if loses_function:
                aws().call("lambda", "delete_function", FunctionName=function_name(name))
            repository.close()
            SyncRepository.open(**where).close()


HAPPENINGS: dict[str, tuple[Callable[[], None], list[str]]] = {
    "outage": (outage, ["store.unavailable", "store.available"]),
    "hanging store": (
        hanging_store,
        ["store.unavailable", "breaker.opened", "store.available", "breaker.closed"],
    ),
    "replaced file": (replaced_file, ["store.replaced", "store.unavailable"]),
    "evicting server": (evicting_server, ["store.evicts"]),
    "lost settlement": (lost_settlement, ["lease.settlement_lost"]),
    "lost return": (lost_return, ["lease.return_lost"]),
    "cut return": (cut_return, ["lease.return_cut"]),
    "lost slot": (lost_slot, ["lease.slot_lost"]),
    "failing chore": (failing_chore, ["chore.failed"]),
    "exceeded soft limit": (exceeded_soft_limit, ["limit.overdrawn", "limit.overdrawn"]),
    "crossed threshold": (crossed_threshold, ["limit.alert"]),
    "unrecorded alert": (unrecorded_alert, ["limit.alert_unrecorded", "limit.alert"]),
    "uncharged parent": (uncharged_parent, ["config.ineffective", "limit.not_charged"]),
    "lost response": (lost_response, ["lease.settlement_lost", "web.settlement_failed"]),
    "ignored header": (ignored_header, ["web.header_ignored"]),
    "failing observer": (failing_observer, ["observer.failed"]),
    "skewed host": (skewed_host, ["clock.skewed"]),
    "skewed process": (skewed_process, ["clock.skewed"]),
    "failed renewal": (failed_renewal, ["credentials.not_renewed"]),
    "old aggregator": (lambda: log_aggregator_warning(Deployed(aggregator="0.3.0")), ["aggregator.outdated"]),
    "missing stack, then an old aggregator": (
        missing_stack_then_old_aggregator,
        ["stack.deploying", "aggregator.renewed", "aggregator.not_renewed", "aggregator.outdated"],
    ),
    "refused client": (refused_client, ["kv.refused"]),
    "reset client": (reset_client, ["kv.reset"]),
    "failing client": (failing_client, ["kv.unavailable"]),
}


def test_a_clock_that_is_off_a_cluster_names_the_same_backend_as_everything_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for url in ("redis://localhost", "redis+cluster://localhost"):
        store = open_redis(parse(url), blocking=True, host_clock=ManualClock(100_000))
        assert isinstance(store.clock, ServerClock)
        store.clock.learn(40_000, 40_001, 100_000, 100_001)
        assert caplog.records[-1].__dict__["zae_backend"] == store.capabilities.name


@pytest.mark.parametrize("name", HAPPENINGS)
def test_every_event_has_the_documented_level_and_fields(name: str, caplog: pytest.LogCaptureFixture) -> None:
    happen, events = HAPPENINGS[name]
    with caplog.at_level(logging.DEBUG, "zae_limiter"):
        happen()
    assert [record.__dict__["zae_event"] for record in caplog.records] == events
    for record, event in zip(caplog.records, events, strict=True):
        row = documented()[event]
        assert (record.levelname, set(fields_of(record))) == (row.level, {"zae_event", *row.fields})
        assert record.name == ("zae_limiter.kv" if event.startswith("kv.") else "zae_limiter")
        assert record.pathname != logs.__file__, "it is told where it happened"


def test_all_events_are_documented_and_happen_here() -> None:
    events = {
        event.name: logging.getLevelName(event.level) for event in vars(logs).values() if isinstance(event, logs.Event)
    }
    assert {name: row.level for name, row in documented().items()} == events
    assert {event for _, happened in HAPPENINGS.values() for event in happened} == set(events)


def test_what_was_lost_can_be_repaired_from_the_log(caplog: pytest.LogCaptureFixture) -> None:
    lost_settlement()
    lost_return()
    lost_return(more=50)
    settlement, single, several = (fields_of(record) for record in caplog.records)
    whose = {
        "zae_namespace": "default",
        "zae_backend": "memory",
        "zae_entity_id": "key-1",
        "zae_resource": "gpt-4",
        "zae_error_type": RateLimiterUnavailable.__name__,
    }
    assert settlement == {**whose, "zae_event": "lease.settlement_lost", "zae_tokens": {"tpm": -30}}
    assert single == {**whose, "zae_event": "lease.return_lost", "zae_tokens": {"rpm": -1, "tpm": -100}}
    assert several == single, "of what was taken several times, only what is lost"


def test_what_is_given_back_beyond_what_was_taken_is_told(caplog: pytest.LogCaptureFixture) -> None:
    shaky = Shaky()
    with shaky.limiter.acquire("key-1", "gpt-4", {"rpm": 1, "tpm": 100}, LIMITS) as lease:
        lease.adjust(tpm=-130)
        assert lease.consumed == {"rpm": 1, "tpm": 0}
        lease.release(rpm=3)
    assert [record.__dict__["zae_tokens"] for record in caplog.records] == [{"tpm": 30}, {"rpm": 2}]
    assert shaky.limiter.available("key-1", "gpt-4", LIMITS) == {"rpm": 10, "tpm": 1_000}


def test_an_outage_is_not_about_anybody(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "zae_limiter"):
        outage()
    for record in caplog.records:
        assert "key-1" not in f"{record.getMessage()} {fields_of(record)}"


class JsonLines(logging.Formatter):
    """Whatever a record carries, as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """The message, the level and the fields."""
        return json.dumps({"level": record.levelname, "message": record.getMessage(), **fields_of(record)})


@pytest.mark.parametrize("name", HAPPENINGS)
def test_fields_are_plain_enough_for_any_formatter(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "zae_limiter"):
        HAPPENINGS[name][0]()
    for record in caplog.records:
        line = json.loads(JsonLines().format(record))
        assert {key: line[key] for key in fields_of(record)} == fields_of(record)


def test_nobody_logs_past_the_events() -> None:
    for path in SOURCE.rglob("*.py"):
        if path.relative_to(SOURCE).parts[0] not in ("logs.py", "cli"):
            assert not re.search(r"^\s*(import|from) logging\b", path.read_text(encoding="utf-8"), re.MULTILINE), path
