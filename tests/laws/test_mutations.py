"""The laws have teeth: every small change of the arithmetic makes one of them fail.

A mutation is a change of the source of one function, put in wherever the package uses it. Each names the check that
has to fail by it. A mutation that survives is a hole in the laws.
"""

from __future__ import annotations
import __future__

import inspect
import sys
import textwrap
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from zae_limiter.core.draw import AnchoredLimit, Guard

from tests.conformance import LIMITER_CHECKS
from tests.laws.toys import Distant, Toy, toys
from tests.support.deadlines import Hangs, ends_within
from zae_limiter.records.algebra import Write
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import Harness

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zae_limiter import Clock
    from zae_limiter.records.algebra import Image
    from zae_limiter.records.level import Level

CHECKS = {check.name: check for check in LIMITER_CHECKS}
ORACLE = ("tests.conformance", "zae_limiter.testing.conformance")


class Mutation(NamedTuple):
    """``old`` becomes ``new`` in a function; ``killer`` is the check that must not live with it."""

    function: str
    old: str
    new: str
    killer: str
    where: str = "toy"

    def __str__(self) -> str:
        return f"{self.function}: {self.old} -> {self.new}"


def replace_everywhere(monkeypatch: pytest.MonkeyPatch, original: object, mutant: object) -> None:
    """Put ``mutant`` wherever a module or one of its classes has ``original``, but for the oracle."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("zae_limiter", "tests") and not name.startswith(ORACLE):
            for owner in (module, *(value for value in vars(module).values() if isinstance(value, type))):
                for attribute, value in list(vars(owner).items()):
                    if value is original:
                        monkeypatch.setattr(owner, attribute, mutant)


def original_of(mutation: Mutation) -> Any:
    """The function as it is."""
    module, _, name = mutation.function.rpartition(".")
    package, _, owner = module.rpartition(".")
    if owner[0].isupper():
        return getattr(getattr(import_module(f"zae_limiter.{package}"), owner), name)
    return getattr(import_module(f"zae_limiter.{module}"), name)


def mutant_of(mutation: Mutation) -> Any:
    """The function with its source changed, in the namespace of its module."""
    original = original_of(mutation)
    source = textwrap.dedent(inspect.getsource(original))
    assert mutation.old in source, f"no longer there: {mutation}"
    changed = source.replace(mutation.old, mutation.new)
    code = compile(changed, "<mutant>", "exec", flags=__future__.annotations.compiler_flag)
    made: dict[str, Any] = {}
    exec(code, vars(sys.modules[original.__module__]), made)
    return made[original.__name__]


def memory_harness() -> Harness:
    """The memory store, which lends its records."""
    shared: list[MemoryStore] = []

    def opened(clock: Clock, blocking: bool) -> MemoryStore:
        shared[:] = shared or [MemoryStore(clock)]
        return shared[0]

    return Harness(opened, blocking=True)


HARNESSES: dict[str, Callable[[], Harness]] = {
    "toy": lambda: toys(Toy, True),
    "memory": memory_harness,
    "distant": lambda: toys(Distant, True),
    "distant, async": lambda: toys(Distant, False),
}

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
OVERDRAWN = "policies.what_a_soft_limit_is_overdrawn_by_is_counted"
NOT_OVERDRAWN = "policies.what_was_given_back_is_not_overdrawn"
THRESHOLDS = "policies.thresholds_are_announced_by_the_write_that_crosses_them"
STALE_MARKS = "policies.thresholds_are_announced_by_clients_that_have_seen_another_level"
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
TOGETHER = "resources.several_resources_are_taken_together_or_not_at_all"
TOGETHER_AT_ONCE = "resources.as_many_of_several_resources_as_there_are"
APART = "resources.each_of_several_resources_is_settled_on_its_own"
USAGE = "accounts.usage_is_what_was_consumed"
READ = "accounts.usage_that_was_read_is_not_booked_again"
TURN = "accounts.usage_at_the_turn_of_an_hour"
LASTING = "accounts.usage_is_kept_for_as_long_as_promised"
OUTLIVES = "accounts.usage_outlives_its_bucket_and_its_entity"
MADE = "(ticks * rule.amount + rule.phase) // rule.period"
SINCE = "((now_ms - anchor_ms) * amount + rest) // period"
CEIL = "-((rule.phase - target * rule.period) // rule.amount)"
INSIDE = '(tk, "between", (low, room - 1))'
UNFIT = "need, now_ms, put, add)) is None:\n            return None"
BIG = "needed > limit.capacity * MILLI"

MUTATIONS = [
    # Windows of a calendar, floors, soft limits and thresholds.
    Mutation("core.alerts.find_mark", "// PARTS", "// PARTS - 1", STALE_MARKS),
    Mutation("core.alerts.Marks.band", "levels[reached + 1] + 1", "-_FAR", THRESHOLDS),
    Mutation("core.alerts.Marks.band", "levels[reached]", "_FAR", STALE_MARKS),
    Mutation("core.alerts.Marks.count_announced", "if last > window", "if last >= window", THRESHOLDS),
    Mutation("core.alerts.cross_quota", "range(announced, reached)", "range(reached)", THRESHOLDS),
    Mutation("core.alerts.cross_quota", "marks.band(announced)[0]", "-_FAR", STALE_MARKS),
    Mutation("core.alerts.cross_rate", "range(first, last)", "range(last)", THRESHOLDS),
    Mutation("records.watching.watch", 'guards.append((entry.al, "=", image[entry.al]))', "pass", STALE_MARKS),
    Mutation("records.watching._narrow", "crossing.before[1] - seen.since", "_FAR", STALE_MARKS),
    Mutation("records.watching._narrow", "crossing.after[0] - seen.change", "-_FAR", STALE_MARKS),
    Mutation("records.watching._narrow", "crossing.after[1] - seen.change", "_FAR", STALE_MARKS),
    Mutation("core.draw._overdraw", "cost - max(0, held)", "cost", OVERDRAWN),
    Mutation("core.draw._overdraw", "cost - max(0, held)", "cost - held", OVERDRAWN),
    Mutation("core.draw._overdraw", '(tk, "=", tokens)', '(tk, "<=", tokens)', OVERDRAWN, "distant"),
    Mutation("core.draw._overdraw", '(tk, "<=", -since)', '(tk, "<=", room)', NOT_OVERDRAWN, "distant"),
    Mutation("core.draw.owe", "< cost - since", "< -since", OVERDRAWN),
    Mutation("records.settlement._find_overdrawn", "-held", "taken", OVERDRAWN),
    Mutation("records.settlement.Charge.returned_overdraft", "-amount)", "-(2**60))", OVERDRAWN),
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
    Mutation("records.reshaping.reshape", "current, put[entry.ws] = entry.begin(now_ms), now_ms", "pass", SESSIONS),
    Mutation("records.reshaping.reshape", "and name in cost and", "and", FIRST_USE),
    Mutation("records.charging._further_attributes", "found[entry.ws] = now_ms", "pass", AFTER),
    Mutation("limiter.planning.plan_part", "limits.idle.isdisjoint(cost)", "True", SESSIONS),
    Mutation("records.settlement.SettlementDraft.owe", "0, self._instant_ms, ov", "0, 0, ov", SWALLOWED),
    # Schedules.
    Mutation("core.borders.carry", "min(ceiling + made, rule.capacity, new.capacity)", "new.capacity", SCHEDULES),
    Mutation("core.borders.carry", "made = between(rule, start, end)", "made = 0", SCHEDULES),
    Mutation("core.borders._switches", "border <= span.now_ms", "False", SCHEDULES),
    Mutation("core.borders._switches", "since = span.changed_ms", "since = span.now_ms", INSTANT),
    Mutation("records.bucket.carry_over", "min(level.since.get(name, now_ms), now_ms)", "now_ms", INSTANT),
    Mutation("records.reshaping.stamp", "image[CONFIG_VERSION] >= version", "True", STAMPED),
    Mutation("records.charging.is_ahead", "stamped > level.known_version", "False", STAMPED),
    Mutation("core.borders.wait_across", "fits_ms < end", "True", ACROSS),
    Mutation("core.borders._cross", "min(rule.capacity, level)", "rule.capacity", LATER),
    Mutation("core.borders._cross", "NEVER_USED if", "rule.capacity if", LATER),
    Mutation("core.schedule._decisive", "entries[: entries.index(active) + 1]", "entries[:1]", SCHEDULES),
    Mutation("core.schedule.ScheduleEntry.matches", "find_zone(self.tz)", 'find_zone("UTC")', SCHEDULES),
    Mutation("records.charging.anchored_limits", "level.scheduled and", "False and", SCHEDULES),
    Mutation("core.bucket.produced", "rule.calendar.index(instant_ms)", "instant_ms // 86_400_000", WINDOW),
    Mutation("core.draw.draw", "low = need + least - since", "low = need - since", FLOOR),
    Mutation("core.draw.draw", "need + least > capacity or", "need > capacity or", FLOOR, "memory"),
    Mutation("core.draw.draw_all", "need + least", "need", FLOOR, "memory"),
    Mutation(
        "core.decide.Reading.wait_ms", "wait_ms(balances, cost_milli + least", "wait_ms(balances, cost_milli", FLOOR
    ),
    Mutation("core.limit.Limit.floor", '.get(priority or "", 0.0)', '.get("batch", 0.0)', FLOOR),
    # Credits.
    Mutation("core.credit.divide", "max(0, min(cost, level))", "min(cost, level)", CREDIT),
    Mutation("core.credit.divide", "max(0, min(cost, level))", "0", CREDIT),
    Mutation("core.credit.divide", "min(level, cost + least)", "max(0, min(level, cost + least))", CREDIT),
    Mutation("core.credit.divide", "_take(lots, cost + least - covered)", "_take(lots, cost - covered)", CREDIT),
    Mutation("core.credit.divide", "return None if missing else", "return", CREDIT),
    Mutation("core.credit._take", "min(held, amount)", "held", CREDIT),
    Mutation("core.credit._take", "amount -= taken[attr]", "pass", CREDIT),
    Mutation("core.credit.draw_with_credits", "add[attr] = -amount", "pass", CREDIT),
    Mutation("core.credit.draw_with_credits", "add[limit.tc] = cost", "pass", CREDIT),
    Mutation("core.credit.draw_with_credits", "in needed.items()", "in ()", CREDITS_SHARED),
    Mutation("core.credit.draw_with_credits", "covered - allowance", "SOFT", CREDITS_SHARED),
    Mutation("core.credit.suffices", "max(limit.least, 0)", "0", "credits.a_floor_is_left_of_both"),
    Mutation("core.credit.take_last", "in reversed(spent)", "in spent", CREDIT),
    Mutation("core.credit.take_last", "left[name] = left.get(name, 0) - back", "pass", CREDIT),
    Mutation("core.bucket.ShardBalance.credit", "expires_ms > now_ms", "expires_ms >= now_ms", CREDIT_KEPT),
    Mutation("core.bucket.wait_ms", "min(end - 1, max(early, full_ms))", "max(early, full_ms)", CREDIT),
    Mutation("core.bucket.wait_ms", "if now_ms < end < FOR_EVER", "if end < 0", CREDIT),
    Mutation("records.lots._parse_lots", "lot.expires_ms)", "-lot.expires_ms)", CREDIT),
    Mutation("records.lots.held_lots", "lot.expires_ms > now_ms", "True", "credits.expired_credit_is_not_spent"),
    Mutation("records.settlement.settle", "- credit.get(name, 0)", "", RETURNED),
    Mutation("records.settlement.SettlementDraft.return_lots", "self._is_same_bucket and", "", GONE_WITH),
    Mutation("records.credits.fill_up", "between(rule, put[ANCHOR], now_ms)", "between(rule, 0, now_ms)", FILLED),
    Mutation("records.bucket.full_at", "max(latest, last_expiry(image))", "latest", CREDIT_KEPT),
    # What a rate has made by an instant.
    Mutation("core.bucket.produced", MADE, "ticks // 1000 * 1000 * rule.amount // rule.period", PROMISE),
    Mutation("core.bucket.produced", MADE, "ticks * (rule.amount // rule.period)", EXACT),
    Mutation("core.bucket.produced", MADE, "2 * ticks * rule.amount // rule.period", EXACT),
    Mutation("core.bucket.produced", MADE, "-(-ticks * rule.amount // rule.period)", SLOW_PROMISE),
    Mutation("core.bucket.produced", MADE, "round(ticks * rule.amount / rule.period)", SLOW_PROMISE),
    # The first instant at which a cost fits.
    Mutation("core.bucket.first_instant", CEIL, "target * rule.period // rule.amount", PROMISE),
    Mutation("core.bucket.first_instant", CEIL, "1 - (-target * rule.period // rule.amount)", PROMISE),
    Mutation("core.bucket.first_instant", CEIL, "-1 - (-target * rule.period // rule.amount)", PROMISE),
    Mutation("core.bucket.first_instant", CEIL, "round(target * rule.period / rule.amount)", PROMISE),
    Mutation("core.bucket.first_instant", "+ cost_milli - tokens_milli", "- tokens_milli", PROMISE),
    Mutation("core.bucket.wait_ms", "- now_ms", "- now_ms + 1", PROMISE),
    Mutation("core.decide.describe_limit", "held_milli < need", "held_milli <= need", "leases.refusal_tells_which"),
    # The ceiling, and taking to the last millitoken.
    Mutation(
        "core.bucket.level",
        "min(rule.capacity, tokens_milli + between(rule, anchor_ms, now_ms))",
        "tokens_milli + between(rule, anchor_ms, now_ms)",
        "leases.never_beyond_the_ceiling",
    ),
    Mutation("core.draw.draw_all", "held > capacity", "False", IDLE, "memory"),
    Mutation("core.draw.draw_all", "tokens -= held - capacity", "pass", IDLE, "memory"),
    Mutation("core.draw.draw_all", "held < need", "held < need - 1", SLOW_PROMISE, "memory"),
    Mutation("core.draw.draw_all", "held < need", "held < need - 1000", IDLE, "memory"),
    Mutation("core.draw.draw", "room + shift - need", "tokens + shift - need", IDLE),
    Mutation("core.draw.draw", INSIDE, '(tk, "between", (low, 2**60))', TWICE),
    Mutation("core.draw.draw", "if tokens >= room:", "if tokens >= room + 10**12:", IDLE),
    Mutation("core.draw.draw", "low = need + least - since", "low = need + least - since - 1", SLOW_PROMISE),
    Mutation("core.draw.draw", "low = need + least - since", "low = need + least - since + 1", PROMISE),
    Mutation("core.draw.draw", "low = need + least - since", "low = -(2**60)", OVER),
    Mutation("core.draw.draw", "need + least > capacity or", "", NEVER),
    Mutation("core.draw.draw", "since - after", "after - since", CHANGED),
    # Charging.
    Mutation("core.draw.draw", SINCE, "-((anchor_ms - now_ms) * amount // period)", SLOW_PROMISE),
    Mutation("core.draw.draw", SINCE, "(now_ms + 1 - anchor_ms) * amount // period", PROMISE),
    Mutation("core.draw.draw", SINCE, "max(0, (now_ms - anchor_ms) * amount // period)", BACK),
    Mutation("records.charging.charge", '[(ANCHOR, "=", limits.anchor_ms)]', "[]", NEWS),
    Mutation("core.draw.draw", INSIDE, '(tk, ">=", low)', TWICE),
    Mutation("core.draw.draw", '(tk, ">", room - 1)', '(tk, ">", -(2**60))', OVER),
    Mutation("core.draw.draw", '(tk, ">=", low)', '(tk, ">=", -(2**60))', DEBT),
    Mutation("records.charging.charge", "put[NEWEST] = now_ms", "pass", PAST),
    Mutation("records.charging.charge", UNFIT, UNFIT.replace("return None", "continue"), OVER),
    Mutation("core.draw.draw", "add[tc] = need", "pass", COUNTED),
    Mutation("core.draw.draw_all", SINCE, "-((anchor_ms - now_ms) * amount // period)", SLOW_PROMISE, "memory"),
    Mutation("core.draw.draw_all", SINCE, "(now_ms + 1 - anchor_ms) * amount // period", PROMISE, "memory"),
    Mutation("core.draw.draw_all", SINCE, "max(0, (now_ms - anchor_ms) * amount // period)", BACK, "memory"),
    Mutation("core.draw.draw_all", "after[tc] += need", "pass", COUNTED, "memory"),
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
    Mutation(
        "records.charging.first_charge", "need + entries[name].least > entries[name].rule.capacity", "False", NEVER
    ),
    # Settling.
    Mutation("records.settlement.SettlementDraft.give_back", "not self._is_same_bucket or", "", ANEW),
    Mutation("records.settlement.SettlementDraft.give_back", 'self.add[attribute(name, "tk")] = amount', "pass", ORDER),
    Mutation("records.settlement.SettlementDraft._is_same_window", "return False", "pass", YESTERDAY),
    Mutation("records.settlement.SettlementDraft._is_same_window", "whole.capacity > whole.amount", "False", YESTERDAY),
    Mutation("records.settlement.SettlementDraft.owe", "amount, self._instant_ms,", "amount, 0,", UNESTIMATED),
    Mutation("core.draw.settle_all", "after[tk] -= owed", "pass", ORDER, "memory"),
    Mutation("limiter.in_place.InPlace._settle", "image[MADE] == left.get(MADE)", "True", ANEW, "memory"),
    Mutation("core.draw.settle_all", "after[tc] += owed", "pass", COUNTED, "memory"),
    Mutation("limiter.in_place.InPlace._settle", "settled[CHANGES] += 1", "pass", USAGE, "memory"),
    Mutation(
        "limiter.draw_plan.PlannedBucket.note_debt", "self.level.lifetime_ms and", "False and", FORGIVEN, "memory"
    ),
    Mutation(
        "core.draw.settle_all",
        "tokens -= held - capacity",
        "pass",
        UNESTIMATED,
        "memory",
    ),
    Mutation("records.reshaping.reshape", "for attr in (ANCHOR, MADE)", "for attr in (ANCHOR,)", MOVED),
    Mutation(
        "records.settlement.SettlementDraft.__init__", "for attr in (ANCHOR, MADE)", "for attr in (ANCHOR,)", ANEW
    ),
    Mutation("records.settlement.settle", 'draft.add[attribute(name, "tc")] = amount', "pass", COUNTED),
    Mutation("core.draw.owe", "if tokens >= room", "if tokens >= room + 10**12", UNESTIMATED),
    Mutation("limiter.settling.settlement_parts", "if here or slots:", "if here and not parts:", LEAK),
    # Changed limits.
    Mutation("core.borders.carry", "rule.capacity, new.capacity)", "_FAR)", "levels.news_travels_with_the_bucket"),
    Mutation("core.borders.carry", "made, min(ceiling + made, rule.capacity)", "made, ceiling", CHANGED),
    Mutation("records.reshaping.reshape", "max(now_ms, image[ANCHOR] + 1)", "now_ms", NEWS),
    Mutation("records.reshaping._reshape_limit", "between(rule, anchor, now_ms)", "0", "levels.changed_at_once"),
    Mutation("records.reshaping._move_limit", "between(rule, image[ANCHOR], anchor)", "0", "levels.limits_come_and_go"),
    Mutation("records.reshaping._reshape_limit", "limit.carried(change.ceiling, change.produced)", "limit", INSTANT),
    Mutation("records.bucket._balances", "min(change.ceiling, ", "max(-_FAR, ", CHANGED),
    Mutation(
        "records.reshaping.keep_in_debt", "NEVER if TTL in image else None", "None", "leases.default_buckets_expire"
    ),
    Mutation(
        "limiter.draw_plan._renewal",
        "- level.lifetime_ms",
        "- 10**15",
        "leases.debt_is_not_forgotten",
        "memory",
    ),
    Mutation("records.reshaping.keep_in_debt", "max(write", "min(write", "leases.debt_outlives_a_cut"),
    Mutation(
        "records.charging.charge",
        "expires_ms := now_ms + level.lifetime_ms",
        "expires_ms := now_ms + 1",
        "leases.default_buckets_expire",
    ),
    # Usage.
    Mutation("records.ledger.with_usage", "now_ms < image", "now_ms <= image", TURN, "memory"),
    Mutation("records.ledger.book", "(*seen, *unspent)", "unspent", READ, "memory"),
    Mutation("records.ledger.book", "CHANGES: 0, BOOKINGS: image", "BOOKINGS: image", USAGE, "memory"),
    Mutation("records.ledger._accruals", "image[HOUR_END] - 1", "image[HOUR_END]", USAGE, "memory"),
    Mutation("records.ledger._entries", "usage_days * DAY_MS", "0", LASTING, "memory"),
    Mutation("records.ledger.kept_ms", "LONGEST_WINDOW_DAYS + 1", "0", LASTING, "memory"),
    Mutation("records.charging.charge", "add[CHANGES] = changes", "pass", USAGE, "memory"),
    Mutation("records.settlement.settle", "draft.add[CHANGES] = changes", "pass", USAGE, "memory"),
    Mutation("limiter.in_place.InPlace._draw", "drawn[CHANGES] += 1", "pass", USAGE, "memory"),
    Mutation("limiter.draw_plan._read_numbers", "hour_end - 1", "_FAR", TURN, "memory"),
    Mutation("repository.buckets.plan_forgetting", ", *accruals]", "]", OUTLIVES, "memory"),
    # Deciding.
    Mutation("core.decide.refusal", BIG, "False", NEVER),
    Mutation("core.decide.refusal", "reading.wait_ms(limit, need, now_ms) >= FOR_EVER", "False", NEVER),
    Mutation("core.decide.Reading.wait_ms", "cost_milli + least > limit", "cost_milli + least >= limit", NEVER),
    Mutation("core.decide.find_fitting", "shard[name] -= need", "pass", AT_ONCE, "distant, async"),
    Mutation("core.decide.find_fitting", "shard[name] >= need", "True", AT_ONCE, "distant, async"),
    Mutation("core.decide.wait_for", "max(", "min(", PROMISE),
    Mutation("limiter.deciding.Draft.share", "later=dict(later)", "later={}", AT_ONCE, "distant, async"),
    Mutation("core.decide.refusal", "limit.name + reading.qualifier", "limit.name", TOGETHER),
    Mutation("core.decide.describe", "limit.name + reading.qualifier", "limit.name", APART),
    Mutation("core.decide.find_fitting", "name + reading.qualifier", "name", TOGETHER_AT_ONCE, "distant, async"),
    Mutation("limiter.chain.Chain.cost_at", "name.removesuffix(end)", "name", TOGETHER),
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


def fails(mutation: Mutation) -> bool:
    """Whether the killer notices, by an AssertionError or by never coming to an end."""
    try:
        with ends_within(10):
            CHECKS[mutation.killer].run(HARNESSES[mutation.where]())
    except (AssertionError, Hangs):
        return True
    return False


def forget_results() -> None:
    """Forget what functions have remembered, with or without a mutation."""
    for name, module in list(sys.modules.items()):
        if name.startswith("zae_limiter."):
            for value in vars(module).values():
                if hasattr(value, "cache_clear"):
                    value.cache_clear()


def check_killed(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the killer of a mutation passes without it and fails with it."""
    assert not fails(mutation), "the check passes without the mutation"
    replace_everywhere(monkeypatch, original_of(mutation), mutant_of(mutation))
    forget_results()
    try:
        assert fails(mutation), f"survives: {mutation}"
    finally:
        forget_results()


@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_killed(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    check_killed(mutation, monkeypatch)


# The formulas that other limiters use, as whole functions.


def stamping(level: Level, image: Image, _limits: Any, cost: Mapping[str, int], now_ms: int, *_: Any) -> Write | None:
    """Refill what is due, drop the fraction, and stamp the instant, at every write."""
    return _refilled(level, image, cost, now_ms, now_ms)


def drifting(level: Level, image: Image, _limits: Any, cost: Mapping[str, int], now_ms: int, *_: Any) -> Write | None:
    """Advance the stamp by ``tokens * period // amount``, the time the tokens are said to have taken."""
    rule = next(iter(level.token_limits.values())).rule
    made = max(0, now_ms - image["rf"]) * rule.amount // rule.period
    return _refilled(level, image, cost, now_ms, image["rf"] + made * rule.period // rule.amount)


def _refilled(level: Level, image: Image, cost: Mapping[str, int], now_ms: int, stamp_ms: int) -> Write | None:
    put: dict[str, Any] = {"rf": stamp_ms}
    for name, entry in level.token_limits.items():
        made = max(0, now_ms - image["rf"]) * entry.rule.amount // entry.rule.period
        tokens = min(entry.rule.capacity, image[entry.tk] + made)
        need = cost.get(name, 0)
        if 0 < need > tokens:
            return None
        put[entry.tk] = tokens - need
    return Write(level.key, (("rf", "=", image["rf"]),), put)


def swallowing(
    limit: AnchoredLimit, tokens: int, cost: int | None, now_ms: int, put: Image, add: Image, after: int | None = None
) -> Guard | None:
    """Take from what has accrued beyond the ceiling, as a single conditional add does."""
    need, since = cost or 0, limit.since(now_ms)
    if tokens < need - since:
        return None
    add |= {limit.tk: (0 if after is None else since - after) - need, limit.tc: need}
    return (limit.tk, ">=", need - since)


@pytest.mark.parametrize(
    ("function", "mutant", "killer"),
    [
        ("records.charging.charge", stamping, EXACT),
        ("records.charging.charge", drifting, EXACT),
        ("core.draw.draw", swallowing, IDLE),
    ],
)
def test_the_formulas_of_others_are_killed(
    function: str, mutant: Callable[..., Any], killer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation = Mutation(function, "", "", killer)
    replace_everywhere(monkeypatch, original_of(mutation), mutant)
    assert fails(mutation), f"survives: {mutant.__doc__}"
