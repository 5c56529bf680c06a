"""Errors: what they say to clients and to programs, and that they arrive whole in another process."""

from __future__ import annotations

import copy
import pickle

import pytest

import zae_limiter
from zae_limiter import (
    AccessDeniedError,
    IncompatibleSchemaError,
    InfrastructureNotFoundError,
    Limit,
    LimitStatus,
    NamespaceNotFoundError,
    NamespaceStateError,
    RateLimiterUnavailable,
    RateLimitExceeded,
    StackAlreadyExistsError,
    StackOperationError,
    ValidationError,
    VersionMismatchError,
    ZAELimiterError,
    exceptions,
)
from zae_limiter.manifest.states import Place, Problem


@pytest.mark.parametrize(
    ("seconds", "header"), [(0.001, "1"), (0.999, "1"), (1.0, "1"), (1.001, "2"), (59.9999, "60"), (86_400.0, "86400")]
)
def test_retry_after_is_a_whole_number_of_seconds_rounded_up(seconds: float, header: str) -> None:
    assert RateLimitExceeded([status(seconds)]).retry_after_header == header


def status(seconds: float = 1.0) -> LimitStatus:
    limit = Limit.per_hour("rpm", 100)
    return LimitStatus("key", "gpt-4", "rpm", limit, 0, 1, exceeded=True, retry_after_seconds=seconds)


ERRORS: list[ZAELimiterError] = [
    RateLimitExceeded((status(),), contended=True),
    zae_limiter.CapacityExceeded((status(),)),
    zae_limiter.ResourceDisabled("key", "gpt-4", "entity"),
    zae_limiter.LeaseExpiredError("over"),
    zae_limiter.SlotLostError("lost"),
    RateLimiterUnavailable("down", OSError("refused"), entity_id="key", resource="gpt-4", stack_name="app"),
    AccessDeniedError("no", OSError("403"), entity_id="key", resource="gpt-4", stack_name="app"),
    zae_limiter.CorruptRecordError("odd", stack_name="app"),
    StackOperationError("failed", stack_name="app", reason="quota", events=[{"resource": "Table", "status": "X"}]),
    StackAlreadyExistsError("there", stack_name="app"),
    InfrastructureNotFoundError("missing", stack_name="app"),
    zae_limiter.ConfigurationError("wrong", option="ssl_ca_certs", stack_name="my-app"),
    NamespaceNotFoundError("unknown", namespace_name="tenant"),
    NamespaceStateError("busy", namespace_name="tenant", state="purging"),
    zae_limiter.EntityNotFoundError("key"),
    zae_limiter.EntityExistsError("key"),
    zae_limiter.EntityVersionError("key", 1, 2),
    VersionMismatchError("old", client_version="1.0.0", schema_version="0.9.0", lambda_version="0.9.1"),
    IncompatibleSchemaError("new", client_version="1.0.0", schema_version="2.0.0", migration_guide_url="https://x"),
    zae_limiter.RateLimiterClosedError(),
    ValidationError("limit", 0, "must be 1 or more"),
    ValidationError("entity_id", "x" * 300, "too long"),
    zae_limiter.InvalidIdentifierError("entity_id", "a#b", "no #"),
    zae_limiter.InvalidNameError("resource", "1", "a letter first"),
    zae_limiter.ManifestError([Problem(Place(1, 2), "system", "no limits")], "limits.toml"),
    zae_limiter.PlanOutdatedError(["system"], 0),
    zae_limiter.FanoutIncomplete("never"),
]


def fields(error: ZAELimiterError) -> dict[str, object]:
    """Return what is to be seen of an error, other errors as texts: those are never equal."""
    names = [name for name in dir(error) if not name.startswith("_")]
    found = {name: getattr(error, name) for name in names if not callable(getattr(error, name))}
    seen = {name: repr(value) if isinstance(value, BaseException) else value for name, value in found.items()}
    return {**seen, "text": str(error), "type": type(error)}


def test_every_public_error_is_tried() -> None:
    public = {each for each in vars(exceptions).values() if isinstance(each, type)}
    bases = {each for each in public if any(each is not other and issubclass(other, each) for other in public)}
    assert public - bases <= {type(error) for error in ERRORS}


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_it_keeps_its_fields_when_it_is_copied_and_sent_to_another_process(error: ZAELimiterError) -> None:
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert fields(twin) == fields(error)


def test_fields_that_nobody_knows_have_a_value() -> None:
    assert StackOperationError("failed").stack_name is None
    assert (StackOperationError("failed").reason, StackOperationError("failed").events) == ("", ())
    assert (NamespaceStateError("busy").namespace_name, NamespaceStateError("busy").state) == ("", "")
    assert VersionMismatchError("old").can_auto_update is False
    assert (RateLimiterUnavailable("down").stack_name, RateLimiterUnavailable("down").table_name) == (None, None)


def test_a_field_that_an_error_does_not_have_is_a_mistake() -> None:
    with pytest.raises(TypeError, match="NamespaceStateError has no field 'stat'"):
        NamespaceStateError("busy", stat="active")


def test_a_program_that_catches_an_unavailable_limiter_also_catches_a_denied_one() -> None:
    assert issubclass(exceptions.PermissionDenied, RateLimiterUnavailable)
    assert zae_limiter.PermissionDenied is AccessDeniedError
    assert zae_limiter.StackCreationError is StackOperationError


def test_a_refusal_as_json_has_the_fields_of_older_clients_too() -> None:
    refused = RateLimitExceeded([status()]).as_dict()
    assert refused["contended"] is False
    assert {name: refused["limits"][0][name] for name in ("kind", "soft", "resets_at_ms")} == {
        "kind": "rate",
        "soft": False,
        "resets_at_ms": None,
    }
