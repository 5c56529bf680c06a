"""The names of what a stack holds; each is derived from the name of the stack, which is also that of its table."""

from __future__ import annotations


def function_name(name: str) -> str:
    """The aggregator."""
    return f"{name}-aggregator"


def queue_name(name: str) -> str:
    """The queue of what the aggregator could not process."""
    return f"{name}-aggregator-dlq"


def log_group(name: str) -> str:
    """The aggregator's log."""
    return f"/aws/lambda/{function_name(name)}"
