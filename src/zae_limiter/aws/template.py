"""The template, and the names of its resources."""

from __future__ import annotations

from importlib import resources

from .stack_options import StackOptions, function_name as function_name

OWNER = "ManagedBy"
OURS = {OWNER: "zae-limiter"}
"""The parameter that tells our stacks from those that others make of the template: unlike tags, an import sets it."""


def read_template() -> str:
    """Return the text of the template."""
    return resources.files(__package__).joinpath("template.yaml").read_text(encoding="utf-8")


def table_template() -> str:
    """Return the template with the table only, for importing an existing table."""
    head, heading, rest = read_template().partition("\nResources:\n")
    table = rest.partition("\n\n  ")[0]  # the first resource, up to a blank line
    return f"{head}{heading}{table}\n"


def queue_name(name: str) -> str:
    """Return the name of the aggregator's dead-letter queue."""
    return f"{name}-aggregator-dlq"


def log_group(name: str) -> str:
    """Return the name of the aggregator's log group."""
    return f"/aws/lambda/{function_name(name)}"


def encode_parameters(name: str, options: StackOptions) -> dict[str, str]:
    """Return every parameter of the stack. Raise `ValidationError` for options that do not fit its name."""
    return options.to_parameters(name) | OURS
