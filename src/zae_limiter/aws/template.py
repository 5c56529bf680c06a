"""The template, the names of its resources, and the options of a stack as parameters and back.

A parameter that a stack lacks, because an older template made it, has its default.
"""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING, Any

from .stack_fields import BOUNDARY_NAME, CODECS, DURATION_THRESHOLD, MS_PER_PERCENT, PARAMETERS
from .stack_iam import FORMATS
from .stack_options import StackOptions, function_name as function_name

if TYPE_CHECKING:
    from collections.abc import Mapping

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


def decode_options(parameters: Mapping[str, str]) -> StackOptions:
    """Return the options of a stack from its parameters, without the tags.

    A stack whose template did not know ``RegionInIamNames`` has names without it, and keeps them: other names would be
    other roles and policies.
    """
    parameters = {"RegionInIamNames": "false", **parameters}
    given: dict[str, Any] = {
        option: CODECS[option][1](parameters[parameter])
        for option, parameter in PARAMETERS.items()
        if parameter in parameters
    }
    for option, (start, _) in FORMATS.items():
        format = f"{parameters.get(f'{start}Prefix', '')}{{}}{parameters.get(f'{start}Suffix', '')}"
        given[option] = None if format == "{}" else format
    if parameters.get(BOUNDARY_NAME):
        given["permission_boundary"] = parameters[BOUNDARY_NAME]
    if DURATION_THRESHOLD in parameters:
        timeout = given.get("lambda_timeout", StackOptions().lambda_timeout)
        percent = int(parameters[DURATION_THRESHOLD]) // (timeout * MS_PER_PERCENT)
        given["lambda_duration_threshold_pct"] = min(100, max(1, percent))  # other tools set any
    return StackOptions(**given)


def check_options(name: str, options: StackOptions) -> None:
    """Raise `ValidationError` for options that could not be deployed under this name. The reason names the fix."""
    options.check_stack_name(name)
