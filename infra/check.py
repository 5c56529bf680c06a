"""Check what is made of the template: synthesise the CDK stack, and parse the Terraform module.

    python -m infra.check

It needs the packages of ``infra/requirements.txt``, and Node.js. Terraform's own formatter is asked where there is one.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import aws_cdk
import hcl2

from zae_limiter import StackOptions

from .cdk.limiter_stack import LimiterStack

HERE = Path(__file__).parent
CASES = {
    "plain-app": StackOptions(),
    "small-app": StackOptions(enable_aggregator=False, enable_alarms=False, create_iam=False),
    "trusted-app": StackOptions(create_iam_roles=True, app_role_trust="ecs,lambda", policy_namespace_id="a1B2c3D4e5-"),
    "given-app": StackOptions(code_s3_bucket="my-bucket", code_s3_key="lambda.zip"),
}


def synthesise(folder: str) -> dict[str, Any]:
    """Return the templates that CDK makes of the cases, by name; raise if one cannot be made."""
    app = aws_cdk.App(outdir=folder)
    for name, options in CASES.items():
        LimiterStack(app, name, options=options)
    made = app.synth()
    return {name: made.get_stack_by_name(name).template for name in CASES}


def check_cdk() -> None:
    """Check the synthesised templates: the function has its code, and cfn-lint finds no error."""
    with tempfile.TemporaryDirectory() as folder:
        made = synthesise(folder)
        code = {name: each["Resources"]["Aggregator"]["Properties"]["Code"] for name, each in made.items()}
        for name in ("plain-app", "trusted-app"):
            assert set(code[name]) == {"S3Bucket", "S3Key"}, f"{name}: the function has no code"
        assert code["given-app"]["Fn::If"][1]["S3Bucket"] == "my-bucket", "given-app: other code than was asked for"
        for name, each in made.items():
            path = Path(folder) / f"linted-{name}.json"
            path.write_text(json.dumps(each), encoding="utf-8")
            # The warnings are of conditions that are constant, as options are.
            lint = [str(Path(sys.executable).with_name("cfn-lint")), "--ignore-checks", "W", "--template", str(path)]
            subprocess.run(lint, check=True)
            print(f"CDK: {name} has {len(each['Resources'])} resources")


def check_terraform() -> None:
    """Check that the module can be parsed, and is formatted."""
    for path in sorted((HERE / "terraform").glob("*.tf")):
        with path.open(encoding="utf-8") as file:
            hcl2.load(file)
        print(f"Terraform: {path.name} can be parsed")
    terraform = shutil.which("terraform") or shutil.which("tofu")
    if terraform is None:
        print("Terraform: not installed, so its formatter was not asked")
        return
    subprocess.run([terraform, "fmt", "-check", "-diff", str(HERE / "terraform")], check=True)


if __name__ == "__main__":
    check_terraform()
    check_cdk()
