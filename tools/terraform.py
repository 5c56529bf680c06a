"""Keep the Terraform module that of the template: ``python -m tools.terraform`` rewrites what follows from it.

Every parameter of the template is a variable of the module, and every output an output. A variable that is not set
leaves the parameter at its default.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

MODULE = Path(__file__).parents[1] / "infra" / "terraform"
OURS = "ManagedBy"
"""The parameter that only `zae-limiter deploy` sets."""
_HEAD = "# Written by `python -m tools.terraform` from the template.\n"
_NEW_STACKS = {"RegionInIamNames": "true"}
"""Parameters whose default in the template is for stacks of its former versions, with the values of new ones."""
_WORD = re.compile(r"S3|[A-Z][a-z]+")


def read_template() -> Mapping[str, Any]:
    """Return the template as a tree."""
    from cfnlint.decode import decode

    found, _ = decode(str(resources.files("zae_limiter.aws").joinpath("template.yaml")))
    tree: Mapping[str, Any] = found
    return tree


def variable_name(parameter: str) -> str:
    """Return the name of a parameter or output in Terraform.

    >>> variable_name("CodeS3Bucket"), variable_name("LambdaMemory")
    ('code_s3_bucket', 'lambda_memory')
    """
    return "_".join(_WORD.findall(parameter)).lower()


def make_files(template: Mapping[str, Any]) -> dict[str, str]:
    """Return the generated files of the module by name."""
    declared = {name: each for name, each in template["Parameters"].items() if name != OURS}
    return {
        "parameters.tf": _HEAD + _locals(declared) + "".join(map(_variable, declared, declared.values())),
        "outputs.tf": _HEAD + "".join(map(_output, template["Outputs"])),
    }


def _locals(declared: Mapping[str, Any]) -> str:
    widest = max(map(len, declared))
    lines = "".join(f"    {name:{widest}} = var.{variable_name(name)}\n" for name in declared)
    return f"\nlocals {{\n  parameters = {{\n{lines}  }}\n}}\n"


def _variable(name: str, declared: Mapping[str, Any]) -> str:
    flag = set(declared.get("AllowedValues", ())) == {"true", "false"}
    default = _NEW_STACKS.get(name)
    kind = "bool" if flag else "number" if declared["Type"] == "Number" else "string"
    usual = default or str(declared["Default"]) or "none"
    text = f"{declared['Description'].rstrip('.')}. Default: {usual}."
    return (
        f'\nvariable "{variable_name(name)}" {{\n  description = {_quote(text)}\n'
        f"  type        = {kind}\n  default     = {default or 'null'}\n}}\n"
    )


def _output(name: str) -> str:
    return (
        f'\noutput "{variable_name(name)}" {{\n'
        f'  value = lookup(aws_cloudformation_stack.limiter.outputs, "{name}", null)\n}}\n'
    )


def _quote(text: str) -> str:
    """Return a text of Terraform, in which ``${`` begins no expression."""
    return json.dumps(text, ensure_ascii=False).replace("${", "$${")


def main() -> int:
    """Write the files, and say which have changed."""
    for name, text in make_files(read_template()).items():
        path = MODULE / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"{path.name} was rewritten")
    return 0


if __name__ == "__main__":
    sys.exit(main())
