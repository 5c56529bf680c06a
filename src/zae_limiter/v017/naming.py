"""Names of stacks and namespaces, under the names of 0.17."""

from __future__ import annotations

import os

from ..core import names
from ..repository import backend, opening

STACK_ENV_VAR, DEFAULT_STACK_NAME = opening.STACK, opening.DEFAULT_STACK
NAMESPACE_ENV_VAR, DEFAULT_OPEN_NAMESPACE = opening.NAMESPACE, backend.DEFAULT_NAMESPACE
resolve_namespace_name = opening.find_namespace
PREFIX = "ZAEL-"
"""What versions before 0.6 put before the name of a stack."""


def validate_stack_name(name: str) -> None:
    """Raise `ValidationError` for an invalid name of a stack."""
    names.stack(name, "name")


def normalize_stack_name(name: str) -> str:
    """Return the name of a stack as it is. Raise `ValidationError` if it is invalid."""
    return names.stack(name, "name")


def resolve_stack_name(stack: str | None) -> str:
    """Return the stack to use: the given one, that of ``$ZAEL_STACK``, or the default."""
    return normalize_stack_name(stack or os.environ.get(STACK_ENV_VAR) or DEFAULT_STACK_NAME)


validate_name, normalize_name = validate_stack_name, normalize_stack_name
