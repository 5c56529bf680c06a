"""A damaged record of any kind is named as such, whatever is missing from it or in its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from zae_limiter import AuditEvent, CorruptRecordError, Entity, Namespace
from zae_limiter.records import audit, entity, keys, namespace, once, usage
from zae_limiter.records.algebra import Image

EVENT = AuditEvent(
    event_id="e1", timestamp="2026-11-17T00:00:00Z", action="created", entity_id="k", principal="me", details={"a": 1}
)
SPACE = Namespace("acme", "ns1", "active", "2026-11-17T00:00:00Z")
SNAPSHOT = {
    "entity_id": "k", "resource": "r", "window": "hour", "window_start": "2026-11-17T00", "window_end": "2026-11-17T01",
    "rpm": 5000, "over:rpm": 1000, "total_events": 3,
}  # fmt: skip
OTHERS: list[Any] = [5, "x", [], {"a": 1}, 1.5, True]
KINDS: dict[str, tuple[Callable[[Image], object], Image, tuple[str, ...]]] = {
    "namespace": (
        namespace.decode,
        dict(namespace.register(SPACE)[0].put),
        ("namespace_id", "status", "created_at"),
    ),
    "entity": (
        entity.decode,
        entity.encode("ns", Entity(id="k", name="K", parent_id="p", cascade=True, metadata={"a": 1}, version=2)),
        ("entity_id",),
    ),
    "audit": (
        audit.decode,
        dict(audit.record("ns", EVENT, None).put),
        ("event_id", "timestamp", "action", "entity_id"),
    ),
    "usage": (usage.inspect, SNAPSHOT, ("entity_id", "resource", "window", "window_start", "window_end")),
    "idempotency": (
        once.decode,
        dict(once.record(keys.once("ns", "k", "d"), "ns", {"a": 1}, {"b": 2}, {"c": 3}, 0).put),
        ("asked", "result", "event"),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_attribute_has_its_type(kind: str) -> None:
    decode, image, _ = KINDS[kind]
    assert decode(image)
    for attr, value in image.items():
        if not attr.startswith("GSI"):
            for other in OTHERS:
                if type(other) is not type(value):
                    with pytest.raises(CorruptRecordError, match=f"The {kind} record .* damaged: {attr} is "):
                        decode({**image, attr: other})


@pytest.mark.parametrize("kind", KINDS)
def test_what_it_needs_is_there(kind: str) -> None:
    decode, image, required = KINDS[kind]
    for attr in required:
        with pytest.raises(CorruptRecordError, match=f"{attr} is None"):
            decode({name: value for name, value in image.items() if name != attr})


@pytest.mark.parametrize(("kind", "attr"), [("entity", "version"), ("usage", "rpm"), ("usage", "total_events")])
def test_a_number_may_be_absent_but_not_null(kind: str, attr: str) -> None:
    decode, image, _ = KINDS[kind]
    decode({name: value for name, value in image.items() if name != attr})
    with pytest.raises(CorruptRecordError, match=f"{attr} is None"):
        decode({**image, attr: None})


def test_a_text_may_be_null() -> None:
    assert entity.decode({"entity_id": "k", "parent_id": None, "name": None}).parent_id is None


def test_a_long_value_is_cut() -> None:
    broken: Any = ["x" * 100_000]
    with pytest.raises(CorruptRecordError) as caught:
        entity.decode({"entity_id": broken})
    assert len(str(caught.value)) < 400
