"""Levels whose limits a cost does not name: they limit nothing, and that is reported."""

from __future__ import annotations

import pytest

from tests.support.acquiring import take
from zae_limiter import Limit, RateLimiter, ValidationError
from zae_limiter.testing import Harness

TOKENS, TPM, PARALLEL = Limit.per_minute("tokens", 1_000), Limit.per_minute("tpm", 100), Limit.concurrent("parallel", 9)


async def prepare(harness: Harness, own: list[Limit], above: list[Limit]) -> RateLimiter:
    limiter = harness.limiter()
    await limiter.create_entity("org")
    await limiter.create_entity("key", parent_id="org", cascade=True)
    await limiter.set_limits("key", own)
    await limiter.set_limits("org", above)
    return limiter


def events(caplog: pytest.LogCaptureFixture, name: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.__dict__.get("zae_event") == name]


async def test_a_parent_whose_limits_have_other_names_is_logged_once(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    limiter = await prepare(harness, [TOKENS], [TPM])
    for _ in range(3):
        await take(limiter, {"tokens": 300})
        harness.clock.advance(120)  # the config is read again
    (message,) = events(caplog, "limit.not_charged")
    assert message == "no limit of org on gpt-4 is in the cost of key: it names tokens, the limits are tpm"
    (record,) = [each for each in caplog.records if each.__dict__.get("zae_event") == "limit.not_charged"]
    assert (record.levelname, record.__dict__["zae_entity_id"]) == ("WARNING", "org")
    assert (record.__dict__["zae_resource"], record.__dict__["zae_charged_by"]) == ("gpt-4", "key")
    async with limiter.acquire("key", {"gpt-4": {"tokens": 1}, "tools": {"tokens": 1}}):
        pass
    assert len(events(caplog, "limit.not_charged")) == 2, "the other resource is another chain"


async def test_a_parent_with_a_limit_in_the_cost_is_not_logged(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    limiter = await prepare(harness, [TOKENS, TPM], [TPM])
    await take(limiter, {"tokens": 1, "tpm": 1})
    await limiter.set_limits("org", [TPM, PARALLEL])
    await take(limiter, {"tokens": 1})
    with pytest.raises(ValidationError, match="rpm"):
        await take(limiter, {"rpm": 1})
    assert events(caplog, "limit.not_charged") == []
