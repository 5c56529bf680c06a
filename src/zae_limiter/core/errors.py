"""Everything that can go wrong, as types.

    ZAELimiterError
    ├── RateLimitError
    │   ├── RateLimitExceeded            not yet: carries when
    │   │   └── CapacityExceeded         never: carries the maximum, no retry-after
    │   ├── ResourceDisabled             switched off: no retry-after
    │   ├── LeaseExpiredError
    │   └── SlotLostError                a block that was cancelled because its slot was lost
    ├── InfrastructureError
    │   ├── RateLimiterUnavailable       no decision: the store did not answer
    │   │   └── AccessDeniedError        the store says no to us: no outage, so no unavailability policy covers it
    │   ├── ConfigurationError           a wrong file or option of ours: no outage either
    │   ├── CorruptRecordError           the store answered with something that is no record of ours
    │   ├── StackOperationError
    │   ├── StackAlreadyExistsError
    │   ├── InfrastructureNotFoundError
    │   ├── NamespaceNotFoundError
    │   └── NamespaceStateError
    ├── EntityError
    │   ├── EntityNotFoundError
    │   ├── EntityExistsError
    │   └── EntityVersionError
    ├── VersionError
    │   ├── VersionMismatchError
    │   └── IncompatibleSchemaError
    ├── RateLimiterClosedError           used after close()
    ├── ValidationError                  bad input: field, value, reason
    │   ├── InvalidIdentifierError
    │   └── InvalidNameError
    ├── ManifestError                    a limits file with mistakes: all of them
    ├── PlanOutdatedError                others have changed what a plan is about
    └── FanoutIncomplete                 of 0.17, never raised

A refusal is never a failure and a failure never a refusal: ``except RateLimitExceeded`` catches
only "the numbers say no", ``except RateLimiterUnavailable`` only "nobody knows".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .refusals import (
    CapacityExceeded as CapacityExceeded,
    RateLimitError as RateLimitError,
    RateLimitExceeded as RateLimitExceeded,
    spell_duration as spell_duration,
)
from .validation import (
    InvalidIdentifierError as InvalidIdentifierError,
    InvalidNameError as InvalidNameError,
    ValidationError as ValidationError,
    ZAELimiterError as ZAELimiterError,
)


def quote(error: object) -> str:
    """Return the text of another error without its final full stop, to be quoted in a sentence.

    >>> quote(OSError("Connection refused."))
    'Connection refused'
    """
    return str(error).rstrip(" .")


class ResourceDisabled(RateLimitError):
    """Requests of an entity for a resource are switched off; a retry does not help until somebody switches them on.

    Attributes:
        entity_id: The entity, or the one above it that is switched off.
        resource: The resource.
        level: Where it is switched off: ``entity``, ``entity_default`` or ``resource``.
    """

    _made_from = ("entity_id", "resource", "level")

    def __init__(self, entity_id: str, resource: str, level: str) -> None:
        what = f"Resource {resource!r}" if level == "resource" else f"Entity {entity_id!r}"
        where = f" on {resource!r}" if level == "entity" else ""
        super().__init__(f"{what} is disabled{where}.")
        self.entity_id = entity_id
        self.resource = resource
        self.level = level


class LeaseExpiredError(RateLimitError):
    """The lease was used after its block had ended."""


class SlotLostError(RateLimitError):
    """A block was cancelled because its lease has lost its slot, as it was asked for by ``on_lost="cancel"``."""


class _AboutSomething(ZAELimiterError):
    """An error with a message and fields: those of its class, which have a value also where nobody knows better.

    Args:
        message: The text of the error.
        **fields: Attributes of the class, by their names.
    """

    def __init__(self, message: str = "", **fields: Any) -> None:
        super().__init__(message)
        for name, value in fields.items():
            if not hasattr(type(self), name):
                raise TypeError(f"{type(self).__name__} has no field {name!r}")
            setattr(self, name, value)


class InfrastructureError(_AboutSomething):
    """An error of the store or of its deployment, not of the limits."""

    stack_name: str | None = None
    """The DynamoDB stack; None where it is not known, or the store is another one."""

    @property
    def table_name(self) -> str | None:
        """The DynamoDB table, which is called like its stack."""
        return self.stack_name


class RateLimiterUnavailable(InfrastructureError):
    """The store failed or did not answer in time, so no decision could be made."""

    cause: BaseException | None = None
    """The underlying error."""
    entity_id: str | None = None
    """The entity of the acquire."""
    resource: str | None = None
    """The resource of the acquire."""

    def __init__(
        self,
        message: str,
        cause: BaseException | None = None,
        *,
        entity_id: str | None = None,
        resource: str | None = None,
        stack_name: str | None = None,
    ) -> None:
        super().__init__(message, cause=cause, entity_id=entity_id, resource=resource, stack_name=stack_name)


class AccessDeniedError(RateLimiterUnavailable):
    """Credentials are missing, invalid or lack a permission, so no decision could be made.

    It is no outage: no unavailability policy covers it.
    """


class ConfigurationError(InfrastructureError):
    """A file or an option of the store is wrong, e.g. a certificate, so it cannot be used until somebody mends that.

    It is no outage: no unavailability policy covers it.
    """

    option: str | None = None
    """The option that is wrong, as the URL or the environment names it; None where it is not a single one."""


class CorruptRecordError(InfrastructureError):
    """A stored record is not what its key says. It never counts as unlimited."""


class StackOperationError(InfrastructureError):
    """A CloudFormation operation failed."""

    reason: str = ""
    """Why, as CloudFormation says it; empty where it says nothing."""
    events: Sequence[Mapping[str, Any]] = ()
    """The events of the failed operation, oldest first, by CloudFormation's names: ``LogicalResourceId``,
    ``ResourceType``, ``ResourceStatus``, ``ResourceStatusReason``, ``EventId``."""


class StackAlreadyExistsError(InfrastructureError):
    """The stack, or a resource of it, already exists."""


class InfrastructureNotFoundError(InfrastructureError):
    """The table or stack does not exist."""


class NamespaceNotFoundError(InfrastructureError):
    """No namespace of this name or id is registered."""

    namespace_name: str = ""
    """The name, or the id where it was looked for by that."""


class NamespaceStateError(InfrastructureError):
    """The namespace is not in a state that allows the operation."""

    namespace_name: str = ""
    """Its name."""
    state: str = ""
    """Its state as it was read: ``active``, ``deleted`` or ``purging``."""


class EntityError(ZAELimiterError):
    """An error about an entity."""


class EntityNotFoundError(EntityError):
    """The entity does not exist."""

    _made_from = ("entity_id",)

    def __init__(self, entity_id: str) -> None:
        super().__init__(f"Entity {entity_id!r} does not exist; create it first.")
        self.entity_id = entity_id


class EntityExistsError(EntityError):
    """An entity with this id already exists."""

    _made_from = ("entity_id",)

    def __init__(self, entity_id: str) -> None:
        super().__init__(f"Entity {entity_id!r} already exists; update it instead.")
        self.entity_id = entity_id


class EntityVersionError(EntityError):
    """Somebody else has changed the entity since it was read; ``expected`` and ``actual`` are versions."""

    _made_from = ("entity_id", "expected", "actual")

    def __init__(self, entity_id: str, expected: int, actual: int) -> None:
        super().__init__(
            f"Entity {entity_id!r} is at version {actual}, not {expected}; read it again and repeat the change."
        )
        self.entity_id = entity_id
        self.expected = expected
        self.actual = actual


class VersionError(_AboutSomething):
    """Client and stored data are not compatible."""

    client_version: str | None = None
    """The version of this library."""
    schema_version: str | None = None
    """The version of the stored data; None where they tell none."""


class VersionMismatchError(VersionError):
    """The stored data need an upgrade."""

    lambda_version: str | None = None
    """The version of the aggregator, where it is known."""
    can_auto_update: bool = False
    """Always False: no client upgrades data by itself, `zae-limiter upgrade` does."""


class IncompatibleSchemaError(VersionError):
    """This client cannot read the stored schema."""

    migration_guide_url: str | None = None
    """Where the way to it is described."""


class RateLimiterClosedError(ZAELimiterError, RuntimeError):
    """A limiter or a repository was used after `close`. No unavailability policy covers this."""

    def __init__(
        self, message: str = "The limiter is closed: it or its repository was closed. Open a new one."
    ) -> None:
        super().__init__(message)


class FanoutIncomplete(ZAELimiterError):
    """Never raised: the error of 0.17 for a switch that is stored but not yet in every bucket, where none is here."""


PermissionDenied = AccessDeniedError
StackCreationError = StackOperationError
"""The names of 0.17 and of 0.10."""
