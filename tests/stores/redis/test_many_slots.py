"""Commits that say much of a long record: the full script looks at every byte a few times, whatever their number."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from hashlib import sha1
from unittest import mock

import pytest
from hypothesis import given, settings

from tests.stores.redis.support import Driven
from tests.stores.redis.test_records import IMAGES, WRITES, fresh
from tests.support.redis.server import Server
from zae_limiter import CorruptRecordError
from zae_limiter.records.algebra import ABSENT, Committed, Conflict, Image, Key, Write, apply_write, holds
from zae_limiter.runtime.blocking import run
from zae_limiter.stores.redis import store
from zae_limiter.stores.redis.images import encode, tokens_of
from zae_limiter.stores.redis.resp import COMMIT, pack_arguments
from zae_limiter.stores.redis.settings import parse
from zae_limiter.stores.redis.store import RedisStore, open_redis
from zae_limiter.testing import ManualClock

KEY = Key("ns/BUCKET#key#gpt-4#0", "#STATE")
COUNTING = """
local bytes, plain, tables = 0, string, table
local string, table = setmetatable({}, {__index = plain}), setmetatable({}, {__index = tables})
string.find = function(text, what, from, ...)
  local first, last = plain.find(text, what, from, ...)
  bytes = bytes + (last or #text) - (from or 1)
  return first, last
end
string.sub = function(...)
  local part = plain.sub(...)
  bytes = bytes + #part
  return part
end
table.concat = function(...)
  local text = tables.concat(...)
  bytes = bytes + #text
  return text
end
local function script()
%s
end
local answer = script()
return {plain.sub(answer, 1, 1), bytes}
"""
"""Runs a script, and returns the outcome and how many bytes were searched and copied."""


def held(count: int) -> Image:
    """A bucket of which so many slots are taken."""
    slots = {
        attr: value
        for n in range(count)
        for attr, value in (
            (f"s_slots_{n}", 1_700_000_000_000 + n),
            (f"f_slots_{n}", f"18bcfe56800.{n:x}-{n:08x}-927c0"),
        )
    }
    return {"rf": 1, "sl": 1, "b_slots_cp": count * 1000, "b_slots_tn": count, "b_slots_tc": 0, **slots}


def renew(image: Image, until_ms: int) -> Write:
    """A write that renews all slots of a bucket."""
    attrs = [attr for attr in image if attr.startswith("s_")]
    guards = tuple((attr, "=", image[attr]) for slot in attrs for attr in ("f_" + slot[2:], slot))
    return Write(KEY, guards, dict.fromkeys(attrs, until_ms), {"b_slots_tc": 9})


def text(image: Image) -> str:
    return "\n" + "".join(f"{attr}={encode(value)}\n" for attr, value in image.items())


def count_bytes(server: Server, count: int) -> int:
    """How many bytes the full script searches and copies to renew so many slots."""
    image = held(count)
    server.command("SET", "record", text(image))
    tokens = tokens_of(renew(image, 1_700_000_200_000), 0)
    script = COUNTING % COMMIT.text.decode()
    outcome, touched = server.command("EVAL", script, 1, "record", encode(tokens), "")
    assert outcome == "1"
    return int(touched)


def test_renewing_four_times_the_slots_takes_the_server_four_times_the_work(server: Server) -> None:
    few, many = count_bytes(server, 500), count_bytes(server, 2_000)
    assert few < 8 * len(text(held(500)))
    assert many < 4.5 * few


@pytest.mark.parametrize("count", [10, 100])
def test_few_and_many_changes_come_to_the_same(mode: Driven, server: Server, count: int) -> None:
    """Put, added, removed, removed and put again, with an expiry; and refused by a single guard."""
    driven = mode.store(server.url)
    image = held(count)
    assert isinstance(mode.run(driven.commit([Write(KEY, (ABSENT,), image)])), Committed)
    now_ms = driven.clock.now_ms()
    write = renew(image, 1_700_000_200_000)
    write = write._replace(
        put={**write.put, "new": "ä", "b_slots_tc": 1},
        add={**write.add, "there": 2, "rf": -3},
        remove=("f_slots_1", "s_slots_1", "missing", "ttl"),
        expires_at_ms=now_ms + 60_000,
    )
    wrong = write._replace(guards=(*write.guards, ("f_slots_3", "=", "another")))
    assert mode.run(driven.commit([wrong])) == Conflict({KEY: image})
    expected = apply_write(image, write)
    assert mode.run(driven.commit([write])) == Committed((expected,))
    assert mode.run(driven.read([KEY])) == [expected]
    bad = renew(held(count), 1)._replace(guards=(), add={"new": 1})
    with pytest.raises(CorruptRecordError):
        mode.run(driven.commit([bad]))
    assert mode.run(driven.read([KEY])) == [expected]


@pytest.fixture
def thorough(running: Server) -> Iterator[RedisStore]:
    """A store whose full script takes every record apart, however little is said of it."""
    script = copy(COMMIT)
    script.text = COMMIT.text.replace(b"local MUCH = 64", b"local MUCH = -1")
    assert script.text != COMMIT.text
    script.digest = sha1(script.text).hexdigest()
    script._by_digest = pack_arguments("EVALSHA", script.digest)
    script.head = script._pack_head  # type: ignore[assignment]
    with mock.patch.object(store, "COMMIT", script):
        made = open_redis(parse(f"{running.url}?prefix=thorough"), blocking=True, clock=ManualClock())
        yield made
        run(made.close())


@settings(max_examples=250)
@given(write=WRITES, image=IMAGES)
def test_a_record_that_is_taken_apart_becomes_what_the_algebra_says(
    thorough: RedisStore, write: Write, image: Image | None
) -> None:
    (key,) = fresh()
    if image is not None:
        image = {**image, "there": 1}
        assert isinstance(run(thorough.commit([Write(key, (), image)])), Committed)
    write = write._replace(key=key, expires_at_ms=write.expires_at_ms and thorough.clock.now_ms() + write.expires_at_ms)
    committed = holds(image, write.guards)
    expected = apply_write(image, write) if committed and not write.is_check else image
    outcome = run(thorough.commit([write]))
    assert isinstance(outcome, Committed) is committed
    assert (outcome.images[0] if isinstance(outcome, Committed) else outcome.images[key]) == expected
    assert run(thorough.read([key])) == [expected]
