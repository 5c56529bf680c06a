"""The laws have teeth: every small change of the arithmetic makes one of them fail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.laws.mutants import Mutation, check_killed, fails, original_of, replace_everywhere
from zae_limiter.core.change import Change, Shortfall
from zae_limiter.core.production import FAR

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from zae_limiter.core.change import Drawn
    from zae_limiter.core.tokens import TokenFields
    from zae_limiter.records.algebra import Image
    from zae_limiter.records.charging import Shortfalls
    from zae_limiter.records.level import BucketLimits

KINDS = "policies.all_kinds_in_one_bucket"
WINDOW = "policies.a_quota_is_back_when_its_window_begins"
CRON = "windows.a_quota_by_cron"
FIRST_USE = "windows.a_window_begins_with_its_first_use"
SESSIONS = "windows.windows_of_first_use_in_the_books"
SWALLOWED = "windows.idle_windows_swallow_nothing"
AFTER = "windows.what_comes_back_after_a_window"
INSTANT = "levels.changes_count_from_their_instant"
STAMPED = "levels.changes_of_an_entity_reach_every_process"
SCHEDULES = "schedules.schedules_in_the_books"
ACROSS = "schedules.a_wait_across_a_border"
LATER = "schedules.not_yet_and_never_with_a_schedule"
FLOOR = "policies.a_floor_is_left_to_others"
CREDIT = "credits.credits_are_spent_after_the_allowance"
CREDITS_SHARED = "credits.several_clients_share_credits"
RETURNED = "credits.credits_return_before_the_allowance"
CREDIT_KEPT = "credits.a_bucket_with_credits_is_kept"
FILLED = "credits.a_partial_reset_does_not_void_open_leases"
GONE_WITH = "credits.credits_go_with_the_entity"
OVERDRAWN = "soft.what_a_soft_limit_is_overdrawn_by_is_counted"
NOT_OVERDRAWN = "soft.what_was_given_back_is_not_overdrawn"
THRESHOLDS = "alerts.thresholds_are_announced_by_the_write_that_crosses_them"
STALE_MARKS = "alerts.thresholds_are_announced_by_clients_that_have_seen_another_level"
IDLE = "lawful.law_1_after_an_idle_time"
OVER = "lawful.law_1_never_over_admit"
EXACT = "lawful.law_2_refill_is_exact"
PROMISE = "lawful.law_3_the_promised_moment"
SLOW_PROMISE = "lawful.law_3_for_a_slow_limit"
NOTHING = "lawful.law_4_all_or_nothing"
NEVER = "lawful.law_5_never_and_not_yet"
BACK = "lawful.law_6_time_never_runs_backwards"
LEAK = "lawful.law_7_nothing_leaks"
CHANGED = "levels.changed_limits_apply"
NEWS = "levels.old_rates_do_not_linger"
COUNTED = "leases.consumption_is_counted"
CEILING = "leases.never_beyond_the_ceiling"
ORDER = "settlements.failures_in_any_order"
MOVED = "settlements.give_back_after_a_deletion_and_changed_limits"
ANEW = "settlements.give_back_to_a_bucket_made_since"
PAST = "settlements.the_past_is_not_rated_again"
YESTERDAY = "settlements.a_quota_is_settled_after_its_window"
FORGIVEN = "leases.debt_is_not_forgotten"
UNESTIMATED = "leases.unestimated_use_is_not_swallowed"
DEBT = "settlements.nothing_of_a_limit_in_debt"
TWICE = "leases.given_back_elsewhere_is_not_taken_twice"
AT_ONCE = "leases.exactly_as_many"
ALL_OF_SEVERAL = "resources.as_many_of_several_resources_as_there_are"
TOGETHER = "resources.several_resources_are_taken_together_or_not_at_all"
TOGETHER_AT_ONCE = "resources.as_many_of_several_resources_as_there_are"
APART = "resources.each_of_several_resources_is_settled_on_its_own"
USAGE = "accounts.usage_is_what_was_consumed"
READ = "accounts.usage_that_was_read_is_not_booked_again"
TURN = "accounts.usage_at_the_turn_of_an_hour"
LASTING = "accounts.usage_is_kept_for_as_long_as_promised"
OUTLIVES = "accounts.usage_outlives_its_bucket_and_its_entity"
MADE = "(ticks * self.amount + self.phase) // self.period"
SINCE = "((now_ms - anchor_ms) * amount + rest) // period"
CEIL = "-((self.phase - total * self.period) // self.amount)"
INSIDE = "low), room - 1"
CARRIED = "carry_over(level, image, name, old.rule, limit.rule, now_ms)"
BIG = "needed > limit.capacity * MILLI"

MUTATIONS = [
    # Windows of a calendar, floors, soft limits and thresholds.
    Mutation("core.alerts.find_mark", "// PARTS", "// PARTS - 1", STALE_MARKS),
    Mutation("core.alerts.AlertLevels.band", "levels[reached + 1] + 1", "-FAR", THRESHOLDS),
    Mutation("core.alerts.AlertLevels.band", "levels[reached]", "FAR", STALE_MARKS),
    Mutation("core.alerts.AlertLevels.count_announced", "if last > window", "if last >= window", THRESHOLDS),
    Mutation("core.alerts.cross_quota", "range(announced, reached)", "range(reached)", THRESHOLDS),
    Mutation("core.alerts.cross_quota", "alert_levels.band(announced)[0]", "-FAR", STALE_MARKS),
    Mutation("core.alerts.cross_rate", "range(first, last)", "range(last)", THRESHOLDS),
    Mutation("records.watching.watch", "change.equals[at.announced] = image[at.announced]", "pass", STALE_MARKS),
    Mutation("records.watching._cross", "crossing.before[1] - since", "2**62", STALE_MARKS),
    Mutation("records.watching._cross", "crossing.after[0] - moved", "-(2**62)", STALE_MARKS),
    Mutation("records.watching._cross", "crossing.after[1] - moved", "2**62", STALE_MARKS),
    Mutation("core.tokens._overdraw", "cost - max(0, held)", "cost", OVERDRAWN),
    Mutation("core.tokens._overdraw", "cost - max(0, held)", "cost - held", OVERDRAWN),
    Mutation("core.tokens._overdraw", "(tokens, tokens)", "(-FAR, tokens)", OVERDRAWN, "distant"),
    Mutation("core.tokens._overdraw", "(-FAR, -since)", "(-FAR, capacity - since)", NOT_OVERDRAWN, "distant"),
    Mutation("core.tokens.owe", "< cost", "< 0", OVERDRAWN),
    Mutation("records.settlement._count_beyond", "-left", "taken", OVERDRAWN),
    Mutation("records.settlement.Receipt.returned_overdraft", "-amount)", "-(2**60))", OVERDRAWN),
    Mutation("records.ledger._used", "ov - ob", "0", OVERDRAWN, "memory"),
    Mutation("core.calendar.Calendar.index", "found += 1", "break", KINDS),
    Mutation("core.calendar.Calendar.index", "found -= 1", "break", WINDOW),
    Mutation("core.calendar.Calendar.index", "<= instant_ms", "< instant_ms", WINDOW),
    Mutation("core.calendar.Calendar.start", "_start(self, index)", "_start(self, index) + 1", WINDOW),
    Mutation("core.calendar._find_start", ", calendar.at_minutes", ", 60", WINDOW),
    Mutation("core.cron.Cron.local_time", "self.minutes[slot]", "self.minutes[0]", CRON),
    Mutation("core.cron.Cron.local_time", "divmod(number, len(self.minutes))", "number, 0", CRON),
    Mutation("core.cron._find_days", "and simulated.match_day(day)", "", CRON),
    Mutation("core.calendar._find_instant", "(0, 1)", "(1, 1)", CRON),
    Mutation("core.calendar._find_instant", "first <= second", "first", CRON),
    Mutation("core.calendar.Calendar.index", "- (self.phase_ms or 0)", "", FIRST_USE),
    Mutation("core.calendar.Calendar.is_idle", "instant_ms >= self", "instant_ms > self", FIRST_USE),
    Mutation(
        "records.migration.migrate", "current, put[limit.at.window] = limit.begin(now_ms), now_ms", "pass", SESSIONS
    ),
    Mutation("records.migration.migrate", "if name in cost and", "if", FIRST_USE),
    Mutation("records.charging._further_attributes", "found[limit.at.window] = now_ms", "pass", AFTER),
    Mutation("limiter.planning.plan_part", "frame.idle.isdisjoint(cost)", "True", SESSIONS),
    Mutation(
        "records.settlement.Settlement.owe",
        "[ANCHOR], instant_ms",
        "[ANCHOR], 0 if rule.calendar else instant_ms",
        SWALLOWED,
    ),
    # Schedules.
    Mutation("core.borders.carry", "min(ceiling + made, rule.capacity, new.capacity)", "new.capacity", SCHEDULES),
    Mutation("core.borders.carry", "made = rule.produced_between(start, end)", "made = 0", SCHEDULES),
    Mutation("core.borders._switches", "border <= span.now_ms", "False", SCHEDULES),
    Mutation("core.borders._switches", "since = span.changed_ms", "since = span.now_ms", INSTANT),
    Mutation("records.bucket.carry_over", "min(level.since.get(name, now_ms), now_ms)", "now_ms", INSTANT),
    Mutation("records.migration.stamp", "image[CONFIG_VERSION] >= version", "True", STAMPED),
    Mutation("records.charging.is_ahead", "stamped > level.known_version", "False", STAMPED),
    Mutation("core.borders.wait_across", "fits_ms < end", "True", ACROSS),
    Mutation("core.borders._cross", "min(rule.capacity, level)", "rule.capacity", LATER),
    Mutation("core.borders._cross", "NEVER_USED if", "rule.capacity if", LATER),
    Mutation("core.schedule._decisive", "entries[: entries.index(active) + 1]", "entries[:1]", SCHEDULES),
    Mutation("core.schedule.ScheduleEntry.matches", "find_zone(self.tz)", 'find_zone("UTC")', SCHEDULES),
    Mutation("records.charging._is_kept_as", "not level.scheduled or", "True or", SCHEDULES),
    Mutation("core.production.Rule.produced", "self.calendar.index(instant_ms)", "instant_ms // 86_400_000", WINDOW),
    Mutation("core.tokens.draw", "low = cost + floor - since", "low = cost - since", FLOOR),
    Mutation("core.tokens.draw", "or cost + floor > capacity", "or cost > capacity", FLOOR, "memory"),
    Mutation("core.tokens.draw_all", "need + floor", "need", FLOOR, "memory"),
    Mutation(
        "core.decide.Reading.wait_ms", "wait_ms(balances, cost_milli + floor", "wait_ms(balances, cost_milli", FLOOR
    ),
    Mutation("core.limit.Limit.floor", '.get(priority or "", 0.0)', '.get("batch", 0.0)', FLOOR),
    # Credits.
    Mutation("core.credits.divide", "max(0, min(cost, level))", "min(cost, level)", CREDIT),
    Mutation("core.credits.divide", "max(0, min(cost, level))", "0", CREDIT),
    Mutation("core.credits.divide", "min(level, cost + floor)", "max(0, min(level, cost + floor))", CREDIT),
    Mutation("core.credits.divide", "_take(lots, cost + floor - covered)", "_take(lots, cost - covered)", CREDIT),
    Mutation("core.credits.divide", "return None if missing else", "return", CREDIT),
    Mutation("core.credits._take", "min(held, amount)", "held", CREDIT),
    Mutation("core.credits._take", "amount -= taken[attr]", "pass", CREDIT),
    Mutation("core.credits.draw_with_credits", "change.add[attr] = -amount", "pass", CREDIT),
    Mutation("core.credits.draw_with_credits", "change.add[at.consumed] = need", "pass", CREDIT),
    Mutation("core.credits.draw_with_credits", "in needed.items()", "in ()", CREDITS_SHARED),
    Mutation("core.credits.draw_with_credits", "covered - allowance", "SOFT", CREDITS_SHARED),
    Mutation(
        "records.charging.charge",
        "tokens + made) < need + floor",
        "tokens + made) < need",
        "credits.a_floor_is_left_of_both",
    ),
    Mutation("core.credits.take_last", "in reversed(spent)", "in spent", CREDIT),
    Mutation("core.credits.take_last", "left[name] = left.get(name, 0) - back", "pass", CREDIT),
    Mutation("core.balances.Tokens.credit", "expires_ms > now_ms", "expires_ms >= now_ms", CREDIT_KEPT),
    Mutation("core.balances.wait_ms", "min(end - 1, max(early, full_ms))", "max(early, full_ms)", CREDIT),
    Mutation("core.balances.wait_ms", "if now_ms < end < FOR_EVER", "if end < 0", CREDIT),
    Mutation("records.lots._parse_lots", "lot.expires_ms)", "-lot.expires_ms)", CREDIT),
    Mutation("records.lots.held_lots", "lot.expires_ms > now_ms", "True", "credits.expired_credit_is_not_spent"),
    Mutation("records.settlement.settle", "- credit.get(name, 0)", "", RETURNED),
    Mutation("records.settlement.settle", "in lots if here.is_same_bucket else ()", "in lots", GONE_WITH),
    Mutation(
        "records.credits.fill_up", "rule.produced_between(anchor, now_ms)", "rule.produced_between(0, now_ms)", FILLED
    ),
    Mutation("records.bucket.full_at", "max(latest, last_expiry(image))", "latest", CREDIT_KEPT),
    # What a rate has made by an instant.
    Mutation("core.production.Rule.produced", MADE, "ticks // 1000 * 1000 * self.amount // self.period", PROMISE),
    Mutation("core.production.Rule.produced", MADE, "ticks * (self.amount // self.period)", EXACT),
    Mutation("core.production.Rule.produced", MADE, "2 * ticks * self.amount // self.period", EXACT),
    Mutation("core.production.Rule.produced", MADE, "-(-ticks * self.amount // self.period)", SLOW_PROMISE),
    Mutation("core.production.Rule.produced", MADE, "round(ticks * self.amount / self.period)", SLOW_PROMISE),
    # The first instant at which a cost fits.
    Mutation("core.production.Rule.reaches", CEIL, "total * self.period // self.amount", PROMISE),
    Mutation("core.production.Rule.reaches", CEIL, "1 - (-total * self.period // self.amount)", PROMISE),
    Mutation("core.production.Rule.reaches", CEIL, "-1 - (-total * self.period // self.amount)", PROMISE),
    Mutation("core.production.Rule.reaches", CEIL, "round(total * self.period / self.amount)", PROMISE),
    Mutation("core.production.Rule.fits_at", "+ needed - tokens", "- tokens", PROMISE),
    Mutation("core.balances.wait_ms", "fits_at(cost_milli) - now_ms", "fits_at(cost_milli) - now_ms + 1", PROMISE),
    Mutation("core.decide.Reading.describe", "held < need", "held <= need", "leases.refusal_tells_which"),
    # The ceiling, and taking to the last millitoken.
    Mutation(
        "core.production.Rule.level",
        "min(self.capacity, tokens + self.produced_between(anchor_ms, now_ms))",
        "tokens + self.produced_between(anchor_ms, now_ms)",
        "leases.never_beyond_the_ceiling",
    ),
    Mutation("core.tokens.draw_all", "held > capacity", "False", IDLE, "memory"),
    Mutation("core.tokens.draw_all", "tokens -= held - capacity", "pass", IDLE, "memory"),
    Mutation("core.tokens.draw_all", "held < need", "held < need - 1", SLOW_PROMISE, "memory"),
    Mutation("core.tokens.draw_all", "held < need", "held < need - 1000", IDLE, "memory"),
    Mutation("core.tokens.draw", "room + by", "tokens + by", IDLE),
    Mutation("core.tokens.draw", INSIDE, "low), 2**60", TWICE),
    Mutation("core.tokens.draw", "if tokens >= room:", "if tokens >= room + 10**12:", IDLE),
    Mutation("core.tokens.draw", "low = cost + floor - since", "low = cost + floor - since - 1", SLOW_PROMISE),
    Mutation("core.tokens.draw", "low = cost + floor - since", "low = cost + floor - since + 1", PROMISE),
    Mutation("core.tokens.draw", "low = cost + floor - since", "low = -(2**60)", OVER),
    Mutation("core.tokens.draw", "or cost + floor > capacity", "", NEVER),
    Mutation("core.tokens.draw", "since - since_after", "since_after - since", CHANGED),
    # Charging.
    Mutation("records.charging.charge", SINCE, "-((anchor_ms - now_ms) * amount // period)", SLOW_PROMISE),
    Mutation("records.charging.charge", SINCE, "(now_ms + 1 - anchor_ms) * amount // period", PROMISE),
    Mutation("records.charging.charge", SINCE, "max(0, (now_ms - anchor_ms) * amount // period)", BACK),
    Mutation("records.charging.charge", "Change({ANCHOR: frame.anchor_ms})", "Change()", NEWS),
    Mutation("core.tokens.draw", INSIDE, "low), FAR", TWICE),
    Mutation("core.tokens.draw", "= room, FAR", "= -(2**60), FAR", OVER),
    Mutation("core.tokens.draw", "= low, FAR", "= -(2**60), FAR", DEBT),
    Mutation("records.charging.charge", "change.put[NEWEST] = now_ms", "pass", PAST),
    Mutation("records.charging.charge", "if not fits:", "if False:", OVER),
    Mutation("core.tokens.draw", "if cost:\n        change.add[at.consumed] = cost", "if cost:\n        pass", COUNTED),
    Mutation("core.tokens.draw_all", SINCE, "-((anchor_ms - now_ms) * amount // period)", SLOW_PROMISE, "memory"),
    Mutation("core.tokens.draw_all", SINCE, "(now_ms + 1 - anchor_ms) * amount // period", PROMISE, "memory"),
    Mutation("core.tokens.draw_all", SINCE, "max(0, (now_ms - anchor_ms) * amount // period)", BACK, "memory"),
    Mutation("core.tokens.draw_all", "after[tc] += need\n    return", "pass\n    return", COUNTED, "memory"),
    Mutation("core.tokens.draw_all", "after[tc] += need\n            continue", "continue", COUNTED, "memory"),
    Mutation(
        "records.charging.new_bucket",
        "= capacity - taken",
        "= capacity",
        "leases.estimate_is_taken_first",
    ),
    Mutation(
        "records.charging.new_bucket",
        "expires_ms = now_ms + lifetime_ms",
        "expires_ms = now_ms + 1",
        "leases.default_buckets_expire",
    ),
    Mutation("records.charging.first_charge", "need + limits[name].floor > limits[name].rule.capacity", "False", NEVER),
    # Settling.
    Mutation("records.settlement.settle", "back > 0 and here.is_same_bucket", "back > 0", ANEW),
    Mutation("records.settlement.Settlement.give_back", "self.change.add[at.tokens] = amount", "pass", ORDER),
    Mutation("records.settlement.Settlement._is_same_window", "return False", "pass", YESTERDAY),
    Mutation("records.settlement.Settlement._is_same_window", "whole.capacity > whole.amount", "False", YESTERDAY),
    Mutation(
        "records.settlement.Settlement.owe",
        "[ANCHOR], instant_ms",
        "[ANCHOR], instant_ms if rule.calendar else 0",
        UNESTIMATED,
    ),
    Mutation("limiter.in_place.InPlace._settle", "image[MADE] != left.get(MADE)", "False", ANEW, "memory"),
    Mutation(
        "core.tokens.draw_all",
        "if need < 0:\n            after[tk] = tokens - need",
        "if need < 0:\n            pass",
        ORDER,
        "memory",
    ),
    Mutation("limiter.in_place.InPlace._settle", "settled[CHANGES] += 1", "pass", USAGE, "memory"),
    Mutation(
        "limiter.draw_plan.PlannedBucket.note_debt", "self.level.lifetime_ms and", "False and", FORGIVEN, "memory"
    ),
    Mutation(
        "core.tokens.draw_all",
        "tokens -= held - capacity",
        "pass",
        UNESTIMATED,
        "memory",
    ),
    Mutation("records.migration._begin", "for attr in (ANCHOR, MADE)", "for attr in (ANCHOR,)", MOVED),
    Mutation("records.settlement.settle", "for attr in (ANCHOR, MADE)", "for attr in (ANCHOR,)", ANEW),
    Mutation("records.settlement.settle", "change.add[token_fields(name).consumed] = amount", "pass", COUNTED),
    Mutation("core.tokens.draw", "if tokens >= room", "if tokens >= room + 10**12", UNESTIMATED),
    Mutation("limiter.settling.settlement_parts", "if here or slots:", "if here and not parts:", LEAK),
    # Changed limits.
    Mutation("core.borders.carry", "rule.capacity, new.capacity)", "FAR)", "levels.news_travels_with_the_bucket"),
    Mutation("core.borders.carry", "made, min(ceiling + made, rule.capacity)", "made, ceiling", CHANGED),
    Mutation("records.migration.migrate", "max(now_ms, image[ANCHOR] + 1)", "now_ms", NEWS),
    Mutation(
        "records.migration.migrate", "current.rule.produced_between(put[ANCHOR], now_ms)", "0", "levels.changed_at_once"
    ),
    Mutation(
        "records.migration.migrate",
        "stored[name].since(put[ANCHOR])",
        "0",
        "levels.limits_come_and_go",
    ),
    Mutation("records.migration.migrate", CARRIED, "(old.since(now_ms), old.rule.capacity)", INSTANT),
    Mutation("records.bucket._balances", "min(ceiling, ", "max(-FAR, ", CHANGED),
    Mutation(
        "records.charging.put_expiry_off", "NEVER if TTL in image else None", "None", "leases.default_buckets_expire"
    ),
    Mutation(
        "limiter.draw_plan._renewal",
        "- level.lifetime_ms",
        "- 10**15",
        "leases.debt_is_not_forgotten",
        "memory",
    ),
    Mutation("records.charging.put_expiry_off", "max(now", "min(now", "leases.debt_outlives_a_cut"),
    Mutation(
        "records.charging.put_expiry_off",
        "now_ms + level.lifetime_ms, full_at",
        "now_ms + 1, full_at",
        "leases.default_buckets_expire",
    ),
    # Usage.
    Mutation("records.ledger.with_usage", "now_ms < image", "now_ms <= image", TURN, "memory"),
    Mutation("records.ledger.book", "(*seen, *unspent)", "unspent", READ, "memory"),
    Mutation("records.ledger.book", "CHANGES: 0, BOOKINGS: image", "BOOKINGS: image", USAGE, "memory"),
    Mutation("records.ledger._accruals", "image[HOUR_END] - 1", "image[HOUR_END]", USAGE, "memory"),
    Mutation("records.ledger._entries", "usage_days * DAY_MS", "0", LASTING, "memory"),
    Mutation("records.ledger.kept_ms", "LONGEST_WINDOW_DAYS + 1", "0", LASTING, "memory"),
    Mutation("records.charging.charge", "change.add[CHANGES] = changes", "pass", USAGE, "memory"),
    Mutation("records.settlement.settle", "change.add[CHANGES] = changes", "pass", USAGE, "memory"),
    Mutation("limiter.in_place.InPlace._draw", "drawn[CHANGES] += 1", "pass", USAGE, "memory"),
    Mutation("limiter.draw_plan._read_numbers", "hour_end - 1", "_FAR", TURN, "memory"),
    Mutation("repository.buckets.plan_forgetting", ", *accruals]", "]", OUTLIVES, "memory"),
    # Deciding.
    Mutation("core.decide.refusal", BIG, "False", NEVER),
    Mutation("core.decide.refusal", "wait_for(readings, cost_milli, now_ms) >= FOR_EVER", "False", LATER),
    Mutation("core.decide.Reading.wait_ms", "cost_milli + floor > limit", "cost_milli + floor >= limit", NEVER),
    Mutation("core.decide.find_fitting", "left[name] -= need", "pass", AT_ONCE, "distant, async"),
    Mutation("core.decide.find_fitting", "left[name] >= need", "True", AT_ONCE, "distant, async"),
    Mutation("core.decide.wait_for", "max(", "min(", PROMISE),
    Mutation("limiter.planning.CommitPlan.share", "later=later)", "later={})", AT_ONCE, "distant, async"),
    Mutation("core.decide._find_needs", "limit.name + reading.qualifier", "limit.name", ALL_OF_SEVERAL, "distant"),
    Mutation("core.decide.describe", "limit.name + reading.qualifier", "limit.name", APART),
    Mutation("core.decide.find_fitting", "name + reading.qualifier", "name", TOGETHER_AT_ONCE, "distant, async"),
    Mutation("limiter.charge_path.ChargePath.cost_at", "name.removesuffix(end)", "name", TOGETHER),
    Mutation("limiter.grant.Grant.split_by_resource", "== level.resource", "!= level.resource", APART),
    Mutation(
        "limiter.grant.Grant.split_by_resource",
        "for amounts in (self.cost, self.later)",
        "for amounts in ({}, {})",
        APART,
    ),
    Mutation(
        "limiter.committing._undo",
        "name: -amount",
        "name: 0",
        "levels.any_level_refuses",
        "distant",
    ),
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_killed(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    check_killed(mutation, monkeypatch)


# The formulas that other limiters use, as whole functions.


def stamping(
    level: BucketLimits, image: Image, _frame: Any, cost: Mapping[str, int], now_ms: int, *_: Any
) -> Change | Shortfalls:
    """Refill what is due, drop the fraction, and stamp the instant, at every write."""
    return _refilled(level, image, cost, now_ms, now_ms)


def drifting(
    level: BucketLimits, image: Image, _frame: Any, cost: Mapping[str, int], now_ms: int, *_: Any
) -> Change | Shortfalls:
    """Advance the stamp by ``tokens * period // amount``, the time the tokens are said to have taken."""
    rule = next(iter(level.token_limits.values())).rule
    made = max(0, now_ms - image["rf"]) * rule.amount // rule.period
    return _refilled(level, image, cost, now_ms, image["rf"] + made * rule.period // rule.amount)


def _refilled(
    level: BucketLimits, image: Image, cost: Mapping[str, int], now_ms: int, stamp_ms: int
) -> Change | Shortfalls:
    change = Change()
    change.equals["rf"], change.put["rf"] = image["rf"], stamp_ms
    for name, limit in level.token_limits.items():
        made = max(0, now_ms - image["rf"]) * limit.rule.amount // limit.rule.period
        tokens = min(limit.rule.capacity, image[limit.at.tokens] + made)
        need = cost.get(name, 0)
        if 0 < need > tokens:
            return [Shortfall(name, is_permanent=False)]
        change.put[limit.at.tokens] = tokens - need
    return change


def swallowing(
    change: Change,
    at: TokenFields,
    drawn: Drawn,
    need: int | None,
    *_: Any,
) -> bool:
    """Take from what has accrued beyond the ceiling, as a single conditional add does."""
    tokens, since, _capacity, since_after = drawn
    cost, shift = need or 0, None if since_after is None else since - since_after
    if tokens < cost - since:
        return False
    change.add |= {at.tokens: (shift or 0) - cost, at.consumed: cost}
    change.bounds[at.tokens] = cost - since, FAR
    return True


@pytest.mark.parametrize(
    ("function", "mutant", "killer"),
    [
        ("records.charging.charge", stamping, EXACT),
        ("records.charging.charge", drifting, EXACT),
        ("core.tokens.draw", swallowing, IDLE),
    ],
)
def test_the_formulas_of_others_are_killed(
    function: str, mutant: Callable[..., Any], killer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation = Mutation(function, "", "", killer)
    replace_everywhere(monkeypatch, original_of(mutation), mutant)
    assert fails(killer, mutation.where), f"survives: {mutant.__doc__}"
