"""Names of the resources of a stack, derived from the name of the stack."""

from __future__ import annotations


def function_name(name: str) -> str:
    """Return the name of the aggregator's function."""
    return f"{name}-aggregator"


def queue_name(name: str) -> str:
    """Return the name of the aggregator's dead-letter queue."""
    return f"{name}-aggregator-dlq"


def log_group(name: str) -> str:
    """Return the name of the aggregator's log group."""
    return f"/aws/lambda/{function_name(name)}"
