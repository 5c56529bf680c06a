"""An AWS account that judges every request by its policies: a local engine of its own, with a stack of ours in it.

The engine knows actions, resources and who asks. It does not know which keys a request to DynamoDB names; a `Guarded`
wire before it judges that, by the same policies.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import lru_cache
from typing import Any, NamedTuple

import botocore.session

from tests.aws.policies import Document, asks, refused
from tests.support.aws import engine
from tests.support.aws.http1 import Message
from tests.support.aws.wire import JSON, Wire, _Upstream
from zae_limiter import StackOptions
from zae_limiter.aws import template

REGION = "us-east-1"


class Keys(NamedTuple):
    """The access key of somebody."""

    id: str
    secret: str


ROOT = Keys(engine.CREDENTIALS["AWS_ACCESS_KEY_ID"], engine.CREDENTIALS["AWS_SECRET_ACCESS_KEY"])


@dataclass(frozen=True)
class Account:
    """An account and the outputs of the one stack in it, which is named as its table."""

    url: str
    stack: str
    outputs: dict[str, str] = field(default_factory=dict)
    region: str = REGION

    def client(self, service: str) -> Any:
        """A client of the account's root."""
        return client(service, self.url, region=self.region)

    def document(self, policy: str) -> Document:
        """A managed policy of the stack, by the name of its output."""
        iam = self.client("iam")
        found = iam.get_policy(PolicyArn=self.outputs[policy])["Policy"]
        version = iam.get_policy_version(PolicyArn=found["Arn"], VersionId=found["DefaultVersionId"])
        document: Document = version["PolicyVersion"]["Document"]
        return document

    def role_document(self, role: str, policy: str) -> Document:
        """A policy inside a role."""
        document: Document = self.client("iam").get_role_policy(RoleName=role, PolicyName=policy)["PolicyDocument"]
        return document

    def user(self, name: str, policy: str) -> Keys:
        """A new user with a managed policy of the stack, as far as the engine knows its conditions."""
        iam = self.client("iam")
        iam.create_user(UserName=name)
        known = json.dumps(_without_keys(self.document(policy)))
        iam.put_user_policy(UserName=name, PolicyName="known", PolicyDocument=known)
        made = iam.create_access_key(UserName=name)["AccessKey"]
        return Keys(made["AccessKeyId"], made["SecretAccessKey"])


def _without_keys(document: Document) -> Document:
    """The policy for an engine that takes no request to name a key: without the condition that it has to name one."""
    statements = [dict(each) for each in document["Statement"]]
    for each in statements:
        if "Condition" in each:
            each["Condition"] = {operator: keys for operator, keys in each["Condition"].items() if operator != "Null"}
    return {**document, "Statement": statements}


_SESSION = botocore.session.Session()


@lru_cache(maxsize=32)
def client(service: str, url: str, keys: Keys = ROOT, region: str = REGION) -> Any:
    """A client of a service, of the engine's root unless it is somebody else's."""
    return _SESSION.create_client(
        service, region_name=region, endpoint_url=url, aws_access_key_id=keys.id, aws_secret_access_key=keys.secret
    )


def deployed(url: str, stack: str, options: StackOptions, region: str = REGION) -> Account:
    """The account with a stack of the template in it."""
    cloudformation = client("cloudformation", url, region=region)
    parameters = template.encode_parameters(stack, options)
    cloudformation.create_stack(
        StackName=stack,
        TemplateBody=template.read_template(),
        Capabilities=["CAPABILITY_NAMED_IAM"],
        Parameters=[{"ParameterKey": key, "ParameterValue": value} for key, value in parameters.items()],
    )
    waiter = cloudformation.get_waiter("stack_create_complete")
    waiter.wait(StackName=stack, WaiterConfig={"Delay": 0.1, "MaxAttempts": 300})
    (found,) = cloudformation.describe_stacks(StackName=stack)["Stacks"]
    return Account(url, stack, {each["OutputKey"]: each["OutputValue"] for each in found["Outputs"]}, region)


@contextlib.contextmanager
def judged() -> Iterator[str]:
    """An engine that judges requests by policies; it is gone afterwards."""
    running = engine.start(*engine.quick(), AUTH="true")
    try:
        yield running.url
    finally:
        running.stop()


@contextlib.contextmanager
def acting_as(keys: Keys) -> Iterator[None]:
    """Whoever is opened inside has these credentials."""
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    before = {name: os.environ.pop(name, None) for name in names}
    os.environ.update(zip(names, keys, strict=True))
    try:
        yield
    finally:
        for name, value in before.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value


class Guarded(Wire):
    """A wire that answers for IAM where a policy does not allow a request."""

    def __init__(self, url: str, document: Document, tables: str) -> None:
        super().__init__(url)
        self._document = document
        self._tables = tables

    async def _pass_on(self, request: Message, upstream: _Upstream, number: int) -> Message | None:
        operation = (request.header("X-Amz-Target") or "").rpartition(".")[2]
        wanted = asks(operation, json.loads(request.body), self._tables)
        denied = next(refused(self._document, wanted), None)
        if denied is None:
            return await super()._pass_on(request, upstream, number)
        said = f"User is not authorized to perform: {denied.action} on resource: {denied.resource}"
        body = json.dumps({"__type": "com.amazon.coral.service#AccessDeniedException", "Message": said}).encode()
        headers = (("Content-Type", JSON), ("Date", formatdate(usegmt=True)))
        return Message("HTTP/1.1 400 Bad Request", headers, body)
