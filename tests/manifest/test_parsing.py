"""What a limits file states, and every mistake in it with its place."""

from __future__ import annotations

import pickle
import sys
from datetime import timedelta
from textwrap import dedent

import pytest

from zae_limiter import Limit, ManifestError, PlanOutdatedError, ZAELimiterError
from zae_limiter.core.values import Access, OnUnavailable
from zae_limiter.manifest.fields import json_schema
from zae_limiter.manifest.parsing import parse_manifest
from zae_limiter.manifest.states import SYSTEM, Manifest, Subject

YAML = """
    system:
      on_unavailable: allow
      limits:
        rpm: 600
        tpm: 10000/min:15000
        tpd: 1000000/day@Europe/Berlin
    resources:
      gpt-4:
        switch: disabled
        limits:
          tpm: {rate: 10, per: 30s, burst: 20, soft: yes, floors: {batch: 0.3}}
          usd: {quota: 30, every: month, on: 31, at: 10:30, tz: Europe/Berlin, rollover: 5}
          win: {quota: 5, every: 90min}
          use: {quota: 4, reset_after: 5h, rollover: 1}
          work: {quota: 7, cron: "0,30 9 * * mon-fri", tz: Europe/Berlin}
          parallel: {concurrent: 10, ttl: 2min, max_hold: 600, floors: {batch: 0.3}}
          jobs: 5/concurrent,ttl=30,soft
    entities:
      key-1:
        parent: acme
        cascade: true
        switch: none
        limits: {}
        resources:
          gpt-4: {switch: bypassed}
      acme: {name: Acme Inc.}
      007: {}
      only-limits: {limits: {rpm: 1/s}}
"""
TOML = """
    [system]
    on_unavailable = "allow"
    [system.limits]
    rpm = 600
    tpm = "10000/min:15000"
    tpd = "1000000/day@Europe/Berlin"
    [resources.gpt-4]
    switch = "disabled"
    limits.tpm = {rate = 10, per = 30, burst = 20, soft = true, floors = {batch = 0.3}}
    limits.usd = {quota = 30, every = "month", on = 31, at = "10:30", tz = "Europe/Berlin", rollover = 5}
    limits.win = {quota = 5, every = "90min"}
    limits.use = {quota = 4, reset_after = 18000, rollover = 1}
    limits.work = {quota = 7, cron = "0,30 9 * * mon-fri", tz = "Europe/Berlin"}
    limits.parallel = {concurrent = 10, ttl = 120, max_hold = "10min", floors = {batch = 0.3}}
    limits.jobs = {concurrent = 5, ttl = 30, soft = true}
    [entities.key-1]
    parent = "acme"
    cascade = true
    switch = "none"
    limits = {}
    resources.gpt-4.switch = "bypassed"
    [entities.acme]
    name = "Acme Inc."
    [entities.007]
    [entities.only-limits.limits]
    rpm = "1/s"
"""


def parse(text: str, format: str = "yaml") -> Manifest:
    return parse_manifest(dedent(text), format, f"limits.{format}")


@pytest.mark.parametrize(("text", "format"), [(YAML, "yaml"), (TOML, "toml")])
def test_a_file_states_everything(text: str, format: str) -> None:
    found = parse(text, format)
    floors = {"batch": 0.3}
    assert found.levels == {
        SYSTEM: {
            "on_unavailable": OnUnavailable.ALLOW,
            "limits": (
                Limit.per_minute("rpm", 600),
                Limit.quota("tpd", 1_000_000, tz="Europe/Berlin"),
                Limit.per_minute("tpm", 10_000, burst=15_000),
            ),
        },
        Subject(None, "gpt-4"): {
            "access": Access.DISABLED,
            "limits": (
                Limit.concurrent("jobs", 5, ttl=30, soft=True),
                Limit.concurrent("parallel", 10, ttl=120, max_hold=600, floors=floors),
                Limit.custom("tpm", 20, 10, 30, soft=True, floors=floors),
                Limit.quota("usd", 30, every="month", on=31, at="10:30", tz="Europe/Berlin", rollover=5),
                Limit.quota("use", 4, reset_after=timedelta(hours=5), rollover=1),
                Limit.quota("win", 5, every="90min@"),
                Limit.quota("work", 7, cron="0,30 9 * * MON-FRI", tz="Europe/Berlin"),
            ),
        },
        Subject("key-1", "_default_"): {"access": None, "limits": ()},
        Subject("key-1", "gpt-4"): {"access": Access.BYPASSED},
        Subject("only-limits", "_default_"): {"limits": (Limit.per_second("rpm", 1),)},
    }
    assert found.entities == {
        "key-1": {"parent_id": "acme", "cascade": True},
        "acme": {"name": "Acme Inc."},
        "007": {},
    }


def test_a_parent_with_limits_only_is_created_too() -> None:
    found = parse("entities: {key: {parent: acme}, acme: {limits: {rpm: 1}}}")
    assert found.entities == {"key": {"parent_id": "acme"}, "acme": {}}


MISTAKES = {
    "sytem: {}": (1, 1, "did you mean 'system'"),
    "nonsense: {}": (1, 1, "known are namespace, system, resources, entities"),
    "[]": (1, 1, "must be a mapping"),
    "": (1, 1, "states nothing"),
    "system: 5": (1, 9, "must be a mapping"),
    "system:\n  on_unavailable: maybe": (2, 19, "allow, block"),
    "system:\n  limits:\n    rpm: lots": (3, 10, "'lots' is not a whole number"),
    "system:\n  limits:\n    rpm: 5\n    rpm: 6": (4, 5, "given twice, first on line 3"),
    "system: {limits: {1x: 5}}": (1, 19, "must start with a letter"),
    "system: {limits: {wcu: 5}}": (1, 19, "reserved"),
    "system:\n  limits:\n    x: 5,soft=1": (3, 8, "'soft' takes none"),
    "system:\n  limits:\n    x: 5,soft=true": (3, 8, "'soft' takes none"),
    "system:\n  limits:\n    x: 5,at=09:00": (3, 8, "'at=09:00' is for a quota, not for a rate"),
    "system:\n  limits:\n    x: 5,batch=0.1,batch=0.2": (3, 8, "'batch' is given twice"),
    "system: {limits: {x: [1]}}": (1, 22, "must be a limit"),
    "system: {limits: {x: true}}": (1, 22, "must be a limit"),
    "system: {limits: {x: {rate: 1, quota: 2}}}": (1, 23, "cannot be combined with quota"),
    "system: {limits: {x: {capacity: 1, rate: 2}}}": (1, 36, "cannot be combined with capacity"),
    "system: {limits: {x: {quota: 1, cron: 0 9 * * 1, every: hour}}}": (1, 57, "cannot be combined with cron"),
    "system: {limits: {x: {quota: 1, cron: 0 9 * * 1, every: 5h}}}": (1, 57, "cannot be combined with cron"),
    "system: {limits: {x: {quota: 1, every: 2h, reset_after: 5h}}}": (1, 40, "cannot be combined with reset_after"),
    "system: {limits: {x: {per: min}}}": (1, 22, "needs a rate, a quota or concurrent"),
    "system: {limits: {x: {rate: 1.5}}}": (1, 29, "whole number"),
    "system: {limits: {x: {rate: 0}}}": (1, 29, "between 1"),
    "system: {limits: {x: {rate: 1, per: eon}}}": (1, 37, "30s"),
    "system: {limits: {x: {rate: 1, per: 0}}}": (1, 37, "between 1"),
    "system: {limits: {x: {rate: 1, per: 0s}}}": (1, 37, "between 1"),
    "system: {limits: {x: {rate: 1, burst: -1}}}": (1, 39, "between 1"),
    "system: {limits: {x: {rate: 1, soft: 3}}}": (1, 38, "true or false"),
    "system: {limits: {x: {rate: 1, floors: 3}}}": (1, 40, "must map priorities"),
    "system: {limits: {x: {rate: 1, alerts: 0.8}}}": (1, 40, "must be a list"),
    "system: {limits: {x: {rate: 1, alerts: [0.8, 80]}}}": (1, 40, "at most 1"),
    "system: {limits: {x: {rate: 1, alerts: [much]}}}": (1, 40, "at most 1"),
    "system: {limits: {x: {rate: 1, alerts: [{a: 1}]}}}": (1, 40, "at most 1"),
    "system: {limits: {x: {rate: 1, floors: {a: 2}}}}": (1, 44, "from 0 to below 1"),
    "system: {limits: {x: {rate: 1, colour: 2}}}": (1, 32, "no known key"),
    "system: {limits: {x: {rate: 1, every: day}}}": (1, 32, "no known key"),
    "system: {limits: {x: {quota: none}}}": (1, 30, "whole number"),
    "system: {limits: {x: {quota: 1, every: eon}}}": (1, 40, "hour, day"),
    "system: {limits: {x: {quota: 1, every: 5}}}": (1, 40, "such as 90min"),
    "system: {limits: {x: {quota: 1, every: 0s}}}": (1, 40, "such as 90min"),
    "system: {limits: {x: {quota: 1, every: 5s, on: 1}}}": (1, 44, "is for hours"),
    "system: {limits: {x: {quota: 1, tz: Mars}}}": (1, 37, "no time zone"),
    "system: {limits: {x: {quota: 1, at: 25:00}}}": (1, 37, "HH:MM"),
    "system: {limits: {x: {quota: 1, every: month, on: 40}}}": (1, 51, "1 to 31"),
    "system: {limits: {x: {quota: 1, rollover: -1}}}": (1, 43, "between 0"),
    "system: {limits: {x: {quota: 1, reset_after: soon}}}": (1, 46, "such as 5h"),
    "system: {limits: {x: {quota: 1, reset_after: 99999d}}}": (1, 46, "at most ten years"),
    "system: {limits: {x: {quota: 1, reset_after: 5h, at: 10:30}}}": (1, 54, "cannot be combined with reset_after"),
    "system: {limits: {x: {rate: 1, schedule: 5}}}": (1, 42, "must be a list"),
    "system: {limits: {x: {rate: 1, schedule: [5]}}}": (1, 43, "must be a mapping with cron"),
    "system: {limits: {x: {rate: 1, schedule: [{cron: 5}]}}}": (1, 50, "five fields"),
    "system: {limits: {x: {rate: 1, schedule: [{cron: '* 9 * * *', scale: -1}]}}}": (1, 70, "above 0"),
    "system: {limits: {x: {rate: 1, schedule: [{cron: '* 9 * * *'}]}}}": (1, 43, "either a scale or"),
    "system: {limits: {x: {rate: 1, schedule: [{cron: '* 9 * * *', scal: 1}]}}}": (1, 63, "no known key"),
    "system: {limits: {x: {quota: 1, schedule: [{cron: '* 9 * * *', refill_amount: 1}]}}}": (1, 43, "of a quota"),
    "system: {limits: {x: {quota: 1, cron: daily}}}": (1, 39, "five fields"),
    "system: {limits: {x: {quota: 1, cron: 0 9 * * 1, on: 1}}}": (1, 54, "cannot be combined with cron"),
    "system: {limits: {x: {concurrent: 0}}}": (1, 35, "between 1 and 10000"),
    "system: {limits: {x: {concurrent: 1.5}}}": (1, 35, "whole number"),
    "system: {limits: {x: {concurrent: 5, ttl: soon}}}": (1, 43, "such as 30s or 2min"),
    "system: {limits: {x: {concurrent: 5, ttl: 2d}}}": (1, 43, "between 1 and 86400"),
    "system: {limits: {x: {concurrent: 5, ttl: true}}}": (1, 43, "whole number"),
    "system: {limits: {x: {concurrent: 5, max_hold: 30}}}": (1, 48, "must not be shorter than ttl, which is 60 s"),
    "system: {limits: {x: {concurrent: 5, burst: 2}}}": (1, 38, "no known key"),
    "system: {limits: {x: {concurrent: 5, alerts: [0.8]}}}": (1, 38, "no known key"),
    "system: {limits: {x: {concurrent: 5, rate: 2}}}": (1, 38, "cannot be combined with concurrent"),
    "system: {limits: {x: {rate: 5, ttl: 2}}}": (1, 32, "no known key"),
    "system: {limits: {x: {concurrent: 5, floors: {a: 2}}}}": (1, 50, "from 0 to below 1"),
    "system: {limits: {x: {concurrent: 5, schedule: [{cron: '* 9 * * *', refill_amount: 1}]}}}": (1, 48, "the slots"),
    "system: {limits: {x: '5/concurrent,alert=0.8'}}": (1, 22, "is not for a concurrency limit"),
    "namespace: other": (1, 12, "is not 'default'"),
    "resources: {a: {disabled: maybe}}": (1, 27, "true, false or bypass"),
    "resources: {a: {switch: enabled, disabled: true}}": (1, 34, "cannot be combined"),
    "resources: {a: {cascades: true}}": (1, 17, "no known key"),
    "system: {limits: {x: {capacity: 1, refill_period: 1.5}}}": (1, 51, "whole number"),
    "system: {limits: {x: {capacity: 1, reset_after_seconds: 5h}}}": (1, 57, "whole number"),
    "system: {limits: {x: {capacity: 1, reset_after_seconds: 5, reset_schedule: [{cron: 0 0 * * *}]}}}": (
        *(1, 36),
        "cannot be combined with reset_schedule",
    ),
    "system: {limits: {x: {capacity: 1, refill_amount: 0}}}": (1, 51, "1 or more without reset_schedule"),
    "system: {limits: {x: {capacity: 1, reset_schedule: daily}}}": (1, 52, "a list of mappings with cron"),
    "system: {limits: {x: {capacity: 1, reset_schedule: [daily]}}}": (1, 52, "a list of mappings with cron"),
    "system: {limits: {x: {capacity: 1, reset_schedule: [{tz: UTC}]}}}": (1, 52, "a list of mappings with cron"),
    "system: {limits: {x: {capacity: 1, reset_schedule: [{cron: daily}]}}}": (1, 52, "five fields"),
    "system: {limits: {x: {capacity: 1, reset_schedule: [{cron: 0 0 * * *, tz: Mars}]}}}": (1, 52, "no time zone"),
    "system: {limits: {x: {capacity: 1, refill_amount: 2, reset_schedule: [{cron: 0 0 * * *}]}}}": (1, 51, "be 0"),
    "system: {limits: {x: {capacity: 1, reset_schedule: [{cron: 0 0 * * *}, {cron: 5 5 * * *}]}}}": (1, 52, "several"),
    "resources: {a: {cascade: maybe}}": (1, 26, "true, false or none"),
    "resources:\n  bad name: {}": (2, 3, "must start with a letter"),
    "resources:\n  gpt-4: {switch: off}": (2, 19, "enabled, disabled, bypassed, none"),
    "resources:\n  gpt-4: {parent: a}": (2, 11, "no known key"),
    "entities:\n  x#y: {}": (2, 3, "must not contain '#'"),
    "entities:\n  a: {cascade: 1}": (2, 16, "true or false"),
    "entities:\n  a: {name: 5}": (2, 13, "must be a string"),
    "entities:\n  a: {parent: 'x#y'}": (2, 15, "must not contain '#'"),
    "entities:\n  a: {parent: a}": (2, 15, "would close a cycle: a -> a"),
    "entities:\n  a: {limits: {x: 1}, resources: {_default_: {limits: {}}}}": (2, 35, "for the entity already"),
    "system: {limits: {x: !!python/name:os.system 1}}": (1, 22, "could not determine a constructor"),
    "system: &a {limits: {x: *a}}": (1, 9, "holds itself"),
    "? [a]\n: 1": (1, 3, "not a text"),
    "a: b: c": (1, 5, "is not YAML"),
    "a: 1\n--- \nb: 1": (2, 1, "is not YAML"),
    "a: \x01": (1, 1, "is not YAML"),
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_in_yaml_has_a_line_and_a_column(text: str) -> None:
    line, column, message = MISTAKES[text]
    with pytest.raises(ManifestError) as caught:
        parse(text)
    assert [problem.place for problem in caught.value.problems if message in problem.message] == [(line, column)]
    assert f"limits.yaml:{line}:{column}: " in str(caught.value)


TOML_MISTAKES = {
    "sytem = 1": (1, 1, "did you mean 'system'"),
    "[system]\nlimits.rpm = 'lots'": (2, 14, "whole number"),
    "# first\n[system.limits]\nx = { rate = 1,  per = 'eon' }": (3, 24, "30s"),
    '[system]\n\nlimits."x" = { rate = 1, floors = { a = 2.0 } }': (3, 41, "from 0 to below 1"),
    "[system.limits]\nx = [\n 1,\n {rate = 2},\n]": (2, 5, "must be a limit"),
    '[resources]\n"bad name" = {}': (2, 1, "must start with a letter"),
    '[entities."x#y"]': (1, 11, "must not contain '#'"),
    "entities.'a'.parent = 'a'": (1, 23, "cycle"),
    '[entities.a]\nname = """\nx\ny"""\ncascade = 1': (5, 11, "true or false"),
    "[system]\n[system]": (2, 8, "is not TOML"),
    "a = ": (1, 5, "is not TOML"),
    "\n\n[system": (3, 8, "is not TOML"),
}


@pytest.mark.parametrize("text", TOML_MISTAKES)
def test_a_mistake_in_toml_has_a_line_and_a_column(text: str) -> None:
    line, column, message = TOML_MISTAKES[text]
    with pytest.raises(ManifestError) as caught:
        parse(text, "toml")
    assert [problem.place for problem in caught.value.problems if message in problem.message] == [(line, column)]


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file() -> None:
    together = """\
        sytem: {}
        system:
          on_unavailable: maybe
          limits:
            rpm: 5
            rpm: 6
            q: {quota: -1, every: month, on: 40, at: 25:00, tz: Mars, rollover: x, soft: 3, floors: {a: 2, b: 3}}
            r: {rate: 1.5, per: eon, burst: 0, colour: red}
        resources: {gpt-4: 5, 5: {}}
        entities:
          a: {parent: b, cascade: 1, name: 5}
          b: {parent: a}
    """
    with pytest.raises(ManifestError) as caught:
        parse(together)
    problems = caught.value.problems
    assert [problem.path.rpartition(".")[2] for problem in problems] == [
        *("sytem", "on_unavailable", "rpm", "quota", "on", "at", "tz", "rollover", "soft", "a", "b"),
        *("rate", "per", "burst", "colour", "gpt-4", "5", "parent", "cascade", "name", "parent"),
    ]
    assert str(caught.value).startswith("21 mistakes in limits.yaml, nothing was changed.\n")


def test_a_manifest_of_version_0_17_keeps_its_meaning() -> None:
    found = parse("""
        namespace: default
        system: {on_unavailable: block, limits: {rpm: {capacity: 1000}}}
        resources:
          gpt-4:
            disabled: true
            limits: {tpm: {capacity: 50000, burst: 75000, soft: true}, rpd: {capacity: 9, refill_period: 86400}}
        entities:
          user-premium:
            resources:
              gpt-4: {disabled: bypass, limits: {rpm: {capacity: 5, refill_amount: 2}}}
              llm: {disabled: false}
    """)
    assert found.entities == {}
    assert found.levels[SYSTEM]["limits"] == (Limit.per_minute("rpm", 1000),)
    assert found.levels[Subject(None, "gpt-4")] == {
        "access": Access.DISABLED,
        "limits": (Limit.per_day("rpd", 9), Limit.per_minute("tpm", 75_000, soft=True)),
    }
    assert found.levels[Subject("user-premium", "gpt-4")] == {
        "access": Access.BYPASSED,
        "limits": (Limit.per_minute("rpm", 2, burst=5),),
    }
    assert found.levels[Subject("user-premium", "llm")] == {"access": Access.ENABLED}


def test_a_quota_of_version_0_17_keeps_its_meaning() -> None:
    found = parse("""
        namespace: default
        resources:
          gpt-4:
            disabled: null
            cascade: null
            limits:
              day: {capacity: 9, reset_schedule: [{cron: 0 0 * * *, tz: Europe/Berlin}]}
              half: {capacity: 9, refill_amount: 0, soft: true, reset_schedule: [{cron: 0 0 1 1 *}, {cron: 0 0 1 7 *}]}
              none: {capacity: 9, reset_schedule: []}
              nine: {capacity: 9, reset_schedule: [{cron: "* 9 * * *"}]}
              used: {capacity: 9, reset_after_seconds: 18000}
          flat: {cascade: false}
        entities: {key: {resources: {_default_: {cascade: true}}}}
    """)
    assert found.levels == {
        Subject(None, "gpt-4"): {
            "limits": (
                Limit.quota("day", 9, cron="0 0 * * *", tz="Europe/Berlin"),
                Limit.quota("half", 9, cron="0 0 1 1,7 *", soft=True),
                Limit.quota("nine", 9, cron="0 9 * * *"),
                Limit.per_minute("none", 9),
                Limit.quota("used", 9, reset_after=timedelta(hours=5)),
            )
        },
        Subject(None, "flat"): {"cascade": False},
        Subject("key", "_default_"): {"cascade": True},
    }


def test_an_anchor_can_be_used_again() -> None:
    found = parse("resources: {a: &usual {limits: {rpm: 5}}, b: *usual}")
    assert found.levels[Subject(None, "a")] == found.levels[Subject(None, "b")] != {}


def test_a_deep_hierarchy_is_a_mistake() -> None:
    chain = "\n".join(f"  e{number}: {{parent: e{number + 1}}}" for number in range(8))
    with pytest.raises(ManifestError, match="deeper than 8 levels"):
        parse(f"entities:\n{chain}\n  e8: {{}}")


def test_without_pyyaml_the_command_that_installs_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ZAELimiterError, match=r"pip install 'zae-limiter\[limits\]'"):
        parse(YAML)
    assert parse(TOML, "toml").entities


def test_errors_can_be_sent_to_other_processes() -> None:
    with pytest.raises(ManifestError) as caught:
        parse("x: 1")
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.problems, str(again)) == (caught.value.problems, str(caught.value))
    outdated = pickle.loads(pickle.dumps(PlanOutdatedError(["a"], 2)))
    assert (outdated.conflicts, outdated.applied) == (("a",), 2)


def test_the_schema_knows_every_key() -> None:
    schema = json_schema()
    assert set(schema["properties"]) == {"namespace", "system", "resources", "entities"}
    parts = schema["$defs"]
    assert set(parts["entity"]["properties"]) == {
        "name",
        "parent",
        "cascade",
        "limits",
        "switch",
        "disabled",
        "resources",
    }
    quota, concurrent, capacity, rate = parts["limit"]["anyOf"][1:]
    policy = {"soft", "floors", "alerts", "schedule"}
    resets = {"reset_schedule", "reset_after_seconds"}
    windows = {"every", "tz", "at", "on", "cron", "reset_after"}
    assert set(quota["properties"]) == {"quota", "rollover", *windows, *policy}
    assert set(capacity["properties"]) == {"capacity", "burst", "refill_amount", "refill_period", *resets, *policy}
    assert set(rate["properties"]) == {"rate", "per", "burst", *policy}
    assert set(concurrent["properties"]) == {"concurrent", "ttl", "max_hold", *policy - {"alerts"}}
