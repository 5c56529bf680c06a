"""The Terraform module and the CDK stack have every parameter of the template, and name nothing that is not in it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tools import policies, terraform
from zae_limiter import StackOptions
from zae_limiter.records.attributes import CLIENT_ATTRIBUTES

CDK = terraform.MODULE.parent / "cdk" / "limiter_stack.py"


@pytest.fixture(scope="module")
def template() -> Any:
    return terraform.read_template()


def test_the_module_is_that_of_the_template(template: Any) -> None:
    for name, text in terraform.make_files(template).items():
        written = (terraform.MODULE / name).read_text(encoding="utf-8")
        assert written == text, f"{name} is out of date: run `python -m tools.terraform`"


def test_every_parameter_is_a_variable_and_set(template: Any) -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in terraform.MODULE.glob("*.tf"))
    variables = re.findall(r'^variable "(\w+)"', text, re.MULTILINE)
    assert len(variables) == len(set(variables))
    assert set(variables) == set(re.findall(r"\bvar\.(\w+)", text))
    assert set(re.findall(r"^    (\w+) += var\.", text, re.MULTILINE)) == {*template["Parameters"]} - {terraform.OURS}


def test_options_are_all_parameters_but_those_of_others(template: Any) -> None:
    """The CDK stack sets what `StackOptions` says."""
    assert {*StackOptions().to_parameters("my-app")} | {terraform.OURS} == {*template["Parameters"]}


def test_what_the_cdk_stack_names_is_in_the_template(template: Any) -> None:
    text = CDK.read_text(encoding="utf-8")
    (resource,) = re.findall(r'get_resource\("(\w+)"\)', text)
    overridden = re.findall(r'add_property_override\("([\w.]+)"', text)
    assert len(overridden) == 2
    for path in overridden:
        found = template["Resources"][resource]["Properties"]
        for part in path.split("."):
            found = found[part]


@pytest.mark.parametrize("name", ["CodeS3Bucket", "KmsKeyArn", "PitrRecoveryDays"])
def test_names_are_told_apart(name: str) -> None:
    assert terraform.variable_name(name).replace("_", "") == name.lower()


def test_new_stacks_of_other_tools_have_the_region_in_their_names(template: Any) -> None:
    """The template's own default keeps the names of stacks that its former versions made."""
    assert template["Parameters"]["RegionInIamNames"]["Default"] == "false"
    module = (terraform.MODULE / "parameters.tf").read_text(encoding="utf-8")
    variable = module.partition('variable "region_in_iam_names" {')[2].partition("}")[0]
    assert re.search(r"default += true", variable)
    assert 'given["RegionInIamNames"] = "true"' in CDK.read_text(encoding="utf-8")


def test_stacks_of_other_tools_say_whose_they_are() -> None:
    assert f'{terraform.OURS} = "Terraform"' in (terraform.MODULE / "main.tf").read_text(encoding="utf-8")
    assert f'given["{terraform.OURS}"] = "CDK"' in CDK.read_text(encoding="utf-8")


def test_the_acquire_policies_allow_the_attributes_of_the_codec(template: Any) -> None:
    """A list that is out of date denies what clients write, or allows what they do not: `python -m tools.policies`."""
    written = policies.TEMPLATE.read_text(encoding="utf-8")
    assert written == policies.rewrite(written)
    for name in ("AcquirePolicy", "NamespaceAcquirePolicy"):
        statements = template["Resources"][name]["Properties"]["PolicyDocument"]["Statement"]
        (writes,) = [each for each in statements if each["Sid"] == "WriteBucketsAndAlerts"]
        assert writes["Condition"]["ForAllValues:StringLike"]["dynamodb:Attributes"] == [*CLIENT_ATTRIBUTES]
