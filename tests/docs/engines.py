"""What the documentation talks to: the local AWS and the Redis of the tests, under the names that the pages use."""

from __future__ import annotations

from tests.support.aws import engine
from tests.support.redis import shared

REDIS = "redis://localhost:6379/0"


def settings(text: str) -> dict[str, str]:
    """The environment that a text needs: whatever it asks of AWS goes to the local one."""
    if not any(word in text for word in ("dynamodb://", "--name", "stack=")):
        return {}
    return {**engine.CREDENTIALS, "AWS_ENDPOINT_URL": engine.endpoint()}


def redirected(text: str, prefix: str) -> str:
    """A text whose Redis is the server of the tests, apart from everybody else's keys there."""
    if REDIS not in text:
        return text
    url = shared.server().url
    return text.replace(f'from_url("{REDIS}"', f'from_url("{url}"').replace(REDIS, f"{url}?prefix={prefix}")
