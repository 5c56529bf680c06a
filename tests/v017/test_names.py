"""Names of earlier versions: all are there, and mean what they meant."""

from __future__ import annotations

import pytest

import zae_limiter
from zae_limiter import (
    FailureMode,
    LimitName,
    OnUnavailable,
    Repository,
    RepositoryProtocol,
    SyncRepository,
    SyncRepositoryProtocol,
)
from zae_limiter.repository.cache import ConfigCache

EXPORTED = """
    RateLimiter Repository RepositoryProtocol Lease StackManager SyncRateLimiter SyncRepository SyncRepositoryProtocol
    SyncLease SyncConfigCache SyncStackManager Limit LimiterInfo LimitName Entity LimitStatus BucketState UsageSnapshot
    UsageSummary ResourceCapacity EntityCapacity StackOptions BackendCapabilities Status CacheStats ConfigSource
    AuditEvent AuditAction OnUnavailable RepositoryBuilder SyncRepositoryBuilder Availability BucketOperationResult
    ScheduleEntry FailureMode
    ZAELimiterError RateLimitError InfrastructureError EntityError VersionError RateLimitExceeded EntityNotFoundError
    EntityExistsError RateLimiterUnavailable StackAlreadyExistsError InfrastructureNotFoundError VersionMismatchError
    IncompatibleSchemaError ValidationError InvalidIdentifierError InvalidNameError NamespaceNotFoundError
    LeaseExpiredError NamespaceStateError StackOperationError ResourceDisabled
"""
"""What the versions up to 0.17 export."""


@pytest.mark.parametrize("name", EXPORTED.split())
def test_a_name_can_be_imported(name: str) -> None:
    assert name in dir(zae_limiter)
    assert getattr(zae_limiter, name) is not None


def test_a_repository_is_an_instance_of_its_protocol_and_a_part_of_it_is_not() -> None:
    assert isinstance(Repository("memory://"), RepositoryProtocol)
    assert isinstance(SyncRepository("memory://"), SyncRepositoryProtocol)
    part = type("Part", (), {name: None for name in dir(Repository) if name[0] != "_" and name != "ping"})
    assert isinstance(type("Whole", (part,), {"ping": None})(), RepositoryProtocol)
    assert not isinstance(part(), RepositoryProtocol)


def test_other_names_of_the_same_things() -> None:
    assert FailureMode.FAIL_OPEN is OnUnavailable.ALLOW
    assert FailureMode.FAIL_CLOSED is OnUnavailable.BLOCK
    assert {name: value for name, value in vars(LimitName).items() if name.isupper()} == {
        name: name.lower() for name in ("RPM", "RPH", "RPD", "TPM", "TPH", "TPD")
    }
    assert zae_limiter.SyncConfigCache is ConfigCache
