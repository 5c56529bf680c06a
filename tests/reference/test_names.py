"""The public names and keywords of 0.17 beside ours: whatever a program for 0.17 may write is taken, or named here."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

import zae_limiter
from tests.reference import lists_names
from tests.reference.test_upgrade import PYTHON

pytestmark = [
    pytest.mark.reference,
    pytest.mark.skipif(not PYTHON.exists(), reason="version 0.17 is not installed; `make bench` sets it up"),
]

ITEMS = "it makes, reads or writes items of 0.17's layout, for 0.17's own limiter"
WHOLE = "a bucket is told as a whole, whatever it is split over"
LOCAL = "refusals are remembered with what was last seen of a bucket, without a time of their own"
SHARDS = "shards are found, split and repaired by the limiter itself"

CALENDAR = "`calendar` says which windows a quota has; a schedule is of the limit"
LIMITS = "a soft or bypassed limit is told by its config: `get_limits`, `resolve_access`"
CREDITS = "`credits` has them one by one"
NO_PROVISIONER = "there is no provisioner; `zae-limiter limits apply` does its work"
UNRAISED = "no bucket has to be written for a switch: it is never raised"

REASONS = {
    "BucketState.accrues": ITEMS,
    "BucketState.bypass": LIMITS,
    "BucketState.bypass_until_ms": LIMITS,
    "BucketState.ceiling_milli": ITEMS,
    "BucketState.effective_refill_amount_milli": ITEMS,
    "BucketState.effective_refill_period_ms": ITEMS,
    "BucketState.fast_path_short": ITEMS,
    "BucketState.from_limit.shard_count": WHOLE,
    "BucketState.from_limit.starting_tokens_milli": ITEMS,
    "BucketState.grant_count": WHOLE,
    "BucketState.grant_shard_count": WHOLE,
    "BucketState.is_quota_state": CALENDAR,
    "BucketState.report_shard_count": WHOLE,
    "BucketState.report_top_up_milli": CREDITS,
    "BucketState.reset_after_seconds": CALENDAR,
    "BucketState.reset_number": ITEMS,
    "BucketState.reset_sched": CALENDAR,
    "BucketState.reset_target_milli": ITEMS,
    "BucketState.retry_refill_amount_milli": ITEMS,
    "BucketState.sched": CALENDAR,
    "BucketState.shard_count": WHOLE,
    "BucketState.soft": LIMITS,
    "BucketState.soft_until_ms": LIMITS,
    "BucketState.stored_item_sched_raw": ITEMS,
    "BucketState.stored_sched_raw": ITEMS,
    "BucketState.stored_vu_ms": ITEMS,
    "BucketState.stored_vu_read": ITEMS,
    "BucketState.topped_up_milli": CREDITS,
    "BucketState.window_applied_ms": ITEMS,
    "BucketState.window_consumed_mark_milli": ITEMS,
    "BucketState.window_end_ms": ITEMS,
    "BucketState.window_roll_target_milli": ITEMS,
    "BucketState.window_rolled": ITEMS,
    "Entity.incarnation": "an entity has a version",
    "Entity.parent_generation": "the same",
    "FanoutIncomplete.action": UNRAISED,
    "FanoutIncomplete.cause": UNRAISED,
    "FanoutIncomplete.entity_id": UNRAISED,
    "FanoutIncomplete.resource": UNRAISED,
    "FanoutIncomplete.stamped": UNRAISED,
    "Lease.compute_images": ITEMS,
    "Lease.entries": "what was taken is `consumed`",
    "Lease.repository": "a lease is no way to it",
    "Limit.per_shard": SHARDS,
    "Limit.reset_after": "`Limit.quota(reset_after=...)` makes such a limit, `reset_after_seconds` tells it",
    "Limit.reset_schedule": "`Limit.quota(cron=...)` makes such a limit",
    "Repository.batch_get_buckets": ITEMS,
    "Repository.batch_get_configs": ITEMS,
    "Repository.batch_get_entity_and_buckets": ITEMS,
    "Repository.build_bucket_operation": ITEMS,
    "Repository.build_bucket_put_item": ITEMS,
    "Repository.build_bucket_update_item": ITEMS,
    "Repository.build_bypass_consume": ITEMS,
    "Repository.build_composite_adjust": ITEMS,
    "Repository.build_composite_create": ITEMS,
    "Repository.build_composite_normal": ITEMS,
    "Repository.build_composite_retry": ITEMS,
    "Repository.build_operation_record": ITEMS,
    "Repository.build_owner_check": ITEMS,
    "Repository.build_quota_donor_debits": ITEMS,
    "Repository.build_stamp_fix": ITEMS,
    "Repository.bump_shard_count": SHARDS,
    "Repository.connect.rejection_cache_size": LOCAL,
    "Repository.connect.rejection_cache_ttl": LOCAL,
    "Repository.connect.stamp_ttl": ITEMS,
    "Repository.fix_bucket_stamps": ITEMS,
    "Repository.get_bucket.shard_id": WHOLE,
    "Repository.get_buckets.shard_id": WHOLE,
    "Repository.get_provisioner_state": "limits files are compared with the store itself",
    "Repository.get_shard_window_starts": SHARDS,
    "Repository.limits_read_fresh": ITEMS,
    "Repository.open.rejection_cache_size": LOCAL,
    "Repository.open.rejection_cache_ttl": LOCAL,
    "Repository.open.stamp_ttl": ITEMS,
    "Repository.plan_quota_shard": SHARDS,
    "Repository.put_provisioner_state": "limits files are compared with the store itself",
    "Repository.reconcile_bucket_to_defaults": "a bucket follows its limits by itself",
    "Repository.repair_created_quota_shard": SHARDS,
    "Repository.require_reset_after_readers": ITEMS,
    "Repository.resolve_access.consistent_read": "every read is consistent",
    "Repository.resolve_access.include_limits": ITEMS,
    "Repository.resolve_access.include_system": ITEMS,
    "Repository.resolve_bypass_from_fetched": ITEMS,
    "Repository.resolve_cascade_from_fetched": ITEMS,
    "Repository.resolve_disabled": "`resolve_access` tells it",
    "Repository.resolve_disabled_from_fetched": ITEMS,
    "Repository.resolve_limits.cascade_out": ITEMS,
    "Repository.resolve_limits.disabled_out": ITEMS,
    "Repository.resolve_soft_limits": "`resolve_limits` tells it of each limit",
    "Repository.restamp_owner_if_current": ITEMS,
    "Repository.select_shard": SHARDS,
    "Repository.set_version_record": "deployments and upgrades write it",
    "Repository.speculative_consume": ITEMS,
    "Repository.transact_write": ITEMS,
    "Repository.write_each": ITEMS,
    "StackManager.deploy_provisioner_code": NO_PROVISIONER,
    "StackManager.ensure_tags.lambda_version": "every deployment sets the tags of the versions",
    "StackManager.ensure_tags.refresh_versions": "the same",
    "StackManager.ensure_tags.wait": "it waits",
    "StackManager.provisioner_exists": NO_PROVISIONER,
    "StackManager.wait_for_esm_ready.min_stabilization": "it waits until the stream is connected, no longer",
    "StackOptions.deploys_aggregator_lambda": "`enable_aggregator` says it",
    "StackOptions.deploys_provisioner_lambda": NO_PROVISIONER,
}
"""The names and keywords that are not taken, and why. The blocking classes have the same."""


GONE = {
    "zae_limiter.bucket_ops": ITEMS,
    "zae_limiter.infra.provisioner_builder": NO_PROVISIONER,
    "zae_limiter.limits_cli": "its commands are in `zae_limiter.cli`",
    "zae_limiter.loadtest": "`zae-limiter demo` runs without AWS",
    "zae_limiter.local": "its commands are in `zae_limiter.cli`",
    "zae_limiter.locust": "`zae-limiter demo` runs without AWS",
    "zae_limiter.migrations": "`zae-limiter upgrade` moves every older layout",
    "zae_limiter.rejection_cache": LOCAL,
    "zae_limiter.visualization": "`zae-limiter usage --plot` draws usage",
}
"""The modules and packages that are not there, and why."""


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    """Return what 0.17 lists."""
    done = subprocess.run([PYTHON, lists_names.__file__], capture_output=True, text=True, check=True, timeout=60)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def test_every_public_name_is_there(reference: dict[str, Any]) -> None:
    assert [name for name in reference["names"] if not hasattr(zae_limiter, name)] == []


def test_every_module_is_there_or_has_a_reason(reference: dict[str, Any]) -> None:
    gone = [name for name in reference["modules"] if not name.startswith(tuple(GONE))]
    assert [name for name in gone if find_spec(name) is None] == []
    assert [name for name in GONE if find_spec(name) is not None or name not in reference["modules"]] == []


def test_every_member_and_every_keyword_is_there_or_has_a_reason(reference: dict[str, Any]) -> None:
    assert set(find_missing(reference["members"])) == REASONS.keys()


def find_missing(members: dict[str, dict[str, list[str] | None]]) -> Iterator[str]:
    ours = lists_names.list_members(zae_limiter)
    for kind, theirs in members.items():
        for name, keywords in theirs.items():
            whose = f"{kind.removeprefix('Sync')}.{name}".removesuffix(".__init__")
            if name not in ours[kind]:
                yield whose
                continue
            known = ours[kind][name]
            if keywords is not None and known is not None:
                yield from (f"{whose}.{keyword}" for keyword in keywords if keyword not in known)
