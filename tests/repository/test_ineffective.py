"""Settings that have no effect as things stand are stored, and logged."""

from __future__ import annotations

import pytest

from tests.limiter.test_uncharged import TOKENS, TPM, events
from tests.support.acquiring import take
from zae_limiter import Limit
from zae_limiter.testing import Harness

EVENT = "config.ineffective"


async def test_set_limits_warns_if_child_and_parent_share_no_name(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    limiter = harness.limiter()
    await limiter.create_entity("org")
    await limiter.create_entity("key", parent_id="org", cascade=True)
    await limiter.set_limits("org", [TPM])
    assert events(caplog, EVENT) == []
    await limiter.set_limits("key", [TOKENS])
    assert events(caplog, EVENT) == ["key and its parent org have no limit of the same name"]
    await limiter.set_limits("org", [TPM], "gpt-4")
    assert events(caplog, EVENT)[1:] == ["key and its parent org have no limit of the same name on gpt-4"]
    for limits in ([TPM, TOKENS], [TPM, Limit.concurrent("parallel", 5)]):
        await limiter.set_limits("org", limits, "gpt-4")
    await limiter.update_entity("key", cascade=False)
    await limiter.set_limits("key", [TOKENS])
    assert len(events(caplog, EVENT)) == 2


async def test_create_entity_with_cascade_warns_if_it_shares_no_name_with_its_parent(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([TOKENS])
    await limiter.create_entity("org")
    await limiter.set_limits("org", [TPM])
    await limiter.create_entity("quiet", parent_id="org")
    assert events(caplog, EVENT) == []
    await limiter.create_entity("key", parent_id="org", cascade=True)
    assert events(caplog, EVENT) == ["key and its parent org have no limit of the same name"]


async def test_cascade_without_a_parent_is_logged(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    limiter = harness.limiter()
    await limiter.create_entity("key", cascade=True)
    await limiter.create_entity("other")
    await limiter.update_entity("other", cascade=True)
    expected = [f"cascade has no effect on {name} until it has a parent" for name in ("key", "other")]
    assert events(caplog, EVENT) == expected
    await limiter.update_entity("key", parent_id="other")
    await limiter.update_entity("key", name="Key")
    assert events(caplog, EVENT) == expected


async def test_floors_of_soft_limits_are_logged(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([Limit.per_minute("tpm", 10, floors={"batch": 0.5})])
    await limiter.set_resource_defaults("gpt-4", [Limit.per_minute("tpm", 10, soft=True)])
    assert events(caplog, EVENT) == []
    limit = Limit.per_minute("tpm", 10, soft=True, floors={"batch": 0.5})
    await limiter.set_system_defaults([limit])
    await limiter.set_resource_defaults("gpt-4", [limit])
    await limiter.set_limits("key", [limit])
    assert events(caplog, EVENT) == ["the floors of tpm have no effect while it is soft"] * 3


async def test_a_switch_for_a_name_that_nothing_is_known_of_is_logged(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([TPM])
    await limiter.create_entity("created")
    await limiter.set_limits("limited", [TPM], "gpt-5")
    await take(limiter, {"tpm": 1}, entity="used")
    await limiter.set_resource_defaults("gpt-6", [TPM])
    for entity_id in ("created", "limited", "used"):
        await limiter.disable_entity(entity_id)
    for resource in ("gpt-4", "gpt-5", "gpt-6"):
        await limiter.disable_resource(resource)
    assert events(caplog, EVENT) == []
    for _ in range(2):
        await limiter.disable_entity("typo")
        await limiter.bypass_resource("tpyo")
    expected = [f"the switch is for the {name}, of which nothing is known" for name in ("entity typo", "resource tpyo")]
    assert events(caplog, EVENT) == expected * 2


async def test_a_cascade_policy_without_a_parent_is_logged(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    limiter = harness.limiter()
    await limiter.set_entity_cascade("alone", True)
    await limiter.set_entity_cascade("alone", True, "gpt-4")
    await limiter.set_limits("lone", [TPM], cascade=True)
    names = ("alone", "alone", "lone")
    expected = [f"cascade has no effect on {name} until it has a parent" for name in names]
    assert events(caplog, EVENT) == expected
    await limiter.create_entity("org")
    await limiter.create_entity("key", parent_id="org", cascade=True)
    await limiter.set_entity_cascade("key", True)
    await limiter.set_entity_cascade("key", False)
    await limiter.set_limits("lone", [TOKENS])
    assert events(caplog, EVENT) == expected
    await limiter.update_entity("key", parent_id=None)
    assert events(caplog, EVENT)[3:] == ["cascade has no effect on key until it has a parent"]


async def test_a_cascade_policy_warns_if_child_and_parent_share_no_name(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    limiter = harness.limiter()
    await limiter.create_entity("org")
    await limiter.create_entity("key", parent_id="org")
    await limiter.set_limits("org", [TPM])
    await limiter.set_limits("key", [TOKENS])
    assert events(caplog, EVENT) == []
    await limiter.set_entity_cascade("key", True)
    assert events(caplog, EVENT) == ["key and its parent org have no limit of the same name"]


async def test_a_switch_for_a_misspelt_resource_of_a_known_entity_is_logged(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([TPM])
    await take(limiter, {"tpm": 1})
    await limiter.disable_entity("key", "gpt-4")
    assert events(caplog, EVENT) == []
    await limiter.disable_entity("key", "gtp-4")
    assert events(caplog, EVENT) == ["the switch is for the resource gtp-4, of which nothing is known"]
