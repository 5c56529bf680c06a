"""A CDK stack of the template, with the aggregator's code in it: ``cdk deploy`` is all that it takes.

app = aws_cdk.App()
LimiterStack(app, "my-app", options=StackOptions(lambda_memory=512))
app.synth()
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from aws_cdk import Stack
from aws_cdk.aws_s3_assets import Asset
from aws_cdk.cloudformation_include import CfnInclude
from constructs import Construct

from zae_limiter import StackOptions
from zae_limiter.aws import package


class LimiterStack(Stack):
    """A limiter's table and what is around it."""

    def __init__(
        self,
        scope: Construct,
        name: str,
        *,
        options: StackOptions | None = None,
        **kwargs: Any,
    ) -> None:
        """Define the stack.

        Args:
            scope: The app.
            name: The name of the stack, and of its table.
            options: The options of the deployment. Their tags are not used: `aws_cdk.Tags` sets those of an app.
            **kwargs: What `aws_cdk.Stack` takes, e.g. ``env``.
        """
        super().__init__(scope, name, stack_name=name, **kwargs)
        wanted, usual = options or StackOptions(), StackOptions().to_parameters(name)
        given = {key: value for key, value in wanted.to_parameters(name).items() if value != usual[key]}
        if wanted.region_in_iam_names is not False:  # the template's default is for stacks of its former versions
            given["RegionInIamNames"] = "true"
        given["ManagedBy"] = "CDK"
        text = resources.files("zae_limiter.aws").joinpath("template.yaml")
        with resources.as_file(text) as path:
            self.included = CfnInclude(self, "Limiter", template_file=str(path), parameters=given)
        if wanted.enable_aggregator and wanted.code_s3_bucket is None:
            code = Asset(self, "Code", path=str(_write_package()))
            # Not by parameters: the rules of the template have these, and cannot hold the name of CDK's bucket.
            place = {"S3Bucket": code.s3_bucket_name, "S3Key": code.s3_object_key}
            function = self.included.get_resource("Aggregator")
            function.add_property_override("Code", place)
            function.add_property_override("Environment.Variables.ZAE_LIMITER_CODE_SOURCE", "s3")

    def output(self, name: str) -> str:
        """Return an output of the template, e.g. ``AcquirePolicyArn``, for other stacks of the app."""
        value: str = self.included.get_output(name).value
        return value


def _write_package() -> Path:
    """Write the function's code where CDK finds it. The same version is the same bytes, and so the same asset."""
    path = Path(mkdtemp()) / "aggregator.zip"
    path.write_bytes(package.build())
    return path
