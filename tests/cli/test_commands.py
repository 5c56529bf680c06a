"""Every command on a SQLite file, as text and as JSON."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from tests.cli.terminal import Terminal, fresh, populated, words
from zae_limiter import Limit, SyncRepository

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    """A fresh file."""
    return fresh(tmp_path)


# Entities.


def test_entity_create_show_and_children(terminal: Terminal) -> None:
    assert "Acme Inc." in terminal.text("entity", "create", "acme", "--display-name", "Acme Inc.", "-m", "plan=pro")
    made = terminal.json("entity", "create", "chat", "--parent", "acme", "--cascade")
    assert made["parent_id"] == "acme"
    assert made["cascade"] is True
    terminal.text("entity", "create", "key", "--parent", "chat")

    assert "key < chat < acme" in terminal.text("entity", "show", "key")
    shown = terminal.json("entity", "show", "acme")
    assert (shown["id"], shown["metadata"], shown["version"]) == ("acme", {"plan": "pro"}, 1)

    assert ["chat", "chat", "yes", "1"] in [line[:4] for line in words(terminal.text("entity", "children", "acme"))]
    assert [child["id"] for child in terminal.json("entity", "children", "acme")] == ["chat"]
    empty = terminal.run("entity", "children", "key")
    assert (empty.stdout, empty.stderr) == ("", "note: key has no children.\n")


def test_entity_update(terminal: Terminal) -> None:
    terminal.text("entity", "create", "acme")
    terminal.text("entity", "create", "key", "--parent", "acme", "--cascade", "--display-name", "Key")
    changed = terminal.json("entity", "update", "key", "--no-parent", "--no-cascade", "-m", "a=b=c")
    assert (changed["parent_id"], changed["cascade"], changed["name"]) == (None, False, "Key")
    assert changed["metadata"] == {"a": "b=c"}
    assert terminal.json("entity", "update", "key", "--display-name", "", "--parent", "acme")["name"] == "key"
    assert terminal.run("entity", "update", "key", "--cascade", "--expected-version", "1").exit_code == 8
    assert "Nothing to change" in terminal.run("entity", "update", "key").stderr
    assert "cannot be combined" in terminal.run("entity", "update", "key", "--parent", "acme", "--no-parent").stderr


def test_entity_delete_asks(terminal: Terminal) -> None:
    terminal.text("entity", "create", "key")
    for answer in ("n\n", ""):
        declined = terminal.run("entity", "delete", "key", input=answer)
        assert declined.exit_code == 1
        assert declined.stdout == ""
        assert "nothing was changed" in declined.stderr
    assert terminal.run("entity", "delete", "key", input="y\n").stdout == "Deleted key.\n"
    terminal.text("entity", "create", "key")
    assert terminal.json("entity", "delete", "key", "--yes") == {"deleted": "key"}


def test_entity_limits(terminal: Terminal) -> None:
    table = terminal.text("entity", "set-limits", "key", "-r", "gpt-4", "-l", "tpm:10000/min:15000", "-l", "rpm:60")
    assert ["tpm", "10,000/min", "15,000"] in words(table)
    terminal.text("entity", "set-limits", "key", "-l", "rpm:5/sec")
    got = terminal.json("entity", "get-limits", "key", "-r", "gpt-4")
    assert [Limit.from_dict(limit) for limit in got["limits"]] == [
        Limit.per_minute("rpm", 60),
        Limit.per_minute("tpm", 10_000, burst=15_000),
    ]
    assert ["rpm", "5/s", "5"] in words(terminal.text("entity", "get-limits", "key"))

    listed = terminal.json("entity", "list")
    assert [(row["entity_id"], row["resource"]) for row in listed] == [("key", "_default_"), ("key", "gpt-4")]
    assert "tpm 10,000/min (burst 15,000)" in terminal.text("entity", "list", "-r", "gpt-4")
    assert terminal.json("entity", "list-resources") == ["_default_", "gpt-4"]
    assert ["gpt-4", "-"] in words(terminal.text("entity", "list-resources"))

    assert "Deleted" in terminal.text("entity", "delete-limits", "key", "-r", "gpt-4", "--yes")
    assert terminal.json("entity", "get-limits", "key", "-r", "gpt-4")["limits"] == []
    assert "no limits of its own for gpt-4" in terminal.run("entity", "get-limits", "key", "-r", "gpt-4").stderr


def test_limits_of_every_kind(terminal: Terminal) -> None:
    cron = "work:7/cron(0,30 */2 * * 1-5)@Europe/Berlin,soft"
    given = (
        cron,
        "use:3/5h@first-use",
        "tpd:1000+200/day@Europe/Berlin,at=06:00",
        "rpm:60,soft",
        "tpm:100/min:200,batch=0.3,free=0.5",
    )
    table = words(
        terminal.text("entity", "set-limits", "key", "-r", "gpt-4", *(part for each in given for part in ("-l", each)))
    )
    assert ["tpd", "1,000/day@Europe/Berlin,at=06:00", "1,200"] in table
    assert ["tpm", "100/min", "200", "batch", "leaves", "30%,", "free", "leaves", "50%"] in table
    got = terminal.json("entity", "get-limits", "key", "-r", "gpt-4")["limits"]
    assert [Limit.from_dict(limit) for limit in got] == [
        Limit.per_minute("rpm", 60, soft=True),
        Limit.quota("tpd", 1_000, tz="Europe/Berlin", at="06:00", rollover=200),
        Limit.per_minute("tpm", 100, burst=200, floors={"batch": 0.3, "free": 0.5}),
        Limit.quota("use", 3, reset_after=timedelta(hours=5)),
        Limit.quota("work", 7, cron="0,30 */2 * * 1-5", tz="Europe/Berlin", soft=True),
    ]
    terminal.text("acquire", "key", "gpt-4", "-c", "tpd:200")
    shown = words(terminal.text("entity", "buckets", "key"))
    assert any("tpd" in row and "1,000/day@Europe/Berlin,at=06:00" in row for row in shown)
    listed = terminal.text("entity", "list", "-r", "gpt-4")
    assert "rpm 60/min (soft)" in listed
    assert "tpd 1,000/day@Europe/Berlin,at=06:00 (rollover 200)" in listed


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x:1/day@Mars", "tz = 'Mars': is no time zone known here"),
        ("x:1/cron(0 9 * *)@UTC", "cron = '0 9 * *': must have five fields"),
        ("x:1/fortnight@UTC", "every = 'fortnight': must be a timedelta or one of"),
        ("x:a/day@UTC", "the amount 'a' is not a whole number"),
        ("x:1+b/day@UTC", "the rollover 'b' is not a whole number"),
        ("x:1/day@UTC,at=9", "at = '9': must be a local time"),
        ("x:1,what", "'what' is neither 'soft' nor a floor such as batch=0.3"),
        ("x:1,batch=2", "floors['batch'] = 2.0"),
    ],
)
def test_what_is_wrong_with_a_limit_is_named(terminal: Terminal, text: str, told: str) -> None:
    result = terminal.run("entity", "set-limits", "key", "-l", text)
    assert result.exit_code == 2
    assert told in " ".join(result.stderr.split())


def test_switches(terminal: Terminal) -> None:
    terminal.text("system", "set-defaults", "-l", "rpm:1")
    terminal.text("entity", "create", "key")
    assert terminal.text("entity", "disable", "key", "-r", "gpt-4") == "key is disabled on gpt-4.\n"
    refused = terminal.run("acquire", "key", "gpt-4", "-c", "rpm:1")
    assert (refused.exit_code, "Entity 'key' is disabled on 'gpt-4'." in refused.stderr) == (22, True)
    assert terminal.json("entity", "bypass", "key") == {"entity_id": "key", "resource": None, "access": "bypassed"}
    terminal.text("acquire", "key", "gpt-3", "-c", "rpm:50")
    assert terminal.text("resource", "disable", "gpt-3") == "gpt-3 is disabled.\n"
    assert terminal.run("acquire", "other", "gpt-3", "-c", "rpm:1").exit_code == 22
    assert terminal.json("resource", "enable", "gpt-3") == {"resource": "gpt-3", "access": "enabled"}
    terminal.text("acquire", "other", "gpt-3", "-c", "rpm:1")
    terminal.text("resource", "disable", "gpt-3")
    assert terminal.text("resource", "clear-disabled", "gpt-3") == "gpt-3 has no switch.\n"
    assert terminal.text("entity", "clear-disabled", "key") == "key has no switch.\n"
    assert terminal.run("acquire", "key", "gpt-3", "-c", "rpm:50").exit_code != 0


def test_cascade_policies(terminal: Terminal) -> None:
    terminal.text("system", "set-defaults", "-l", "rpm:10")
    terminal.text("entity", "create", "org")
    terminal.text("entity", "create", "key", "--parent", "org")
    assert terminal.text("resource", "set-cascade", "gpt-4", "true") == "gpt-4 charges parents.\n"
    answer = terminal.text("entity", "set-cascade", "key", "false", "-r", "gpt-4")
    assert answer == "key does not charge its parent on gpt-4.\n"
    assert (
        "org is not charged: key does not charge parents on gpt-4 by its cascade policy."
        in terminal.run("explain", "key", "gpt-4").output
    )
    cleared = {"entity_id": "key", "resource": "gpt-4", "cascade": None}
    assert terminal.json("entity", "clear-cascade", "key", "-r", "gpt-4") == cleared
    told = terminal.run("explain", "key", "gpt-4").stderr
    assert "org is charged: gpt-4 charges parents by its cascade policy." in told
    assert "not charged" not in told
    terminal.text("resource", "set-cascade", "gpt-4", "false")
    told = terminal.run("explain", "key", "gpt-4").stderr
    assert "org is not charged: gpt-4 does not charge parents by its cascade policy." in told
    terminal.text("entity", "set-cascade", "key", "false")
    told = terminal.run("explain", "key", "gpt-4").stderr
    assert "org is not charged: key does not charge parents by its cascade policy." in told
    assert terminal.json("resource", "clear-cascade", "gpt-4") == {"resource": "gpt-4", "cascade": None}
    assert terminal.run("entity", "set-cascade", "key", "perhaps").exit_code == 2


def test_switches_and_cascade_policies_are_shown(terminal: Terminal) -> None:
    terminal.text("entity", "create", "key")
    assert terminal.json("entity", "show", "key")["access"] is None
    assert "switch" not in terminal.text("entity", "show", "key")
    assert terminal.run("entity", "get-limits", "key").stderr.count("note:") == 1
    terminal.text("entity", "disable", "key")
    terminal.text("entity", "set-cascade", "key", "false")
    assert ["switch", "disabled"] in words(terminal.text("entity", "show", "key"))
    shown = terminal.json("entity", "show", "key")
    assert (shown["id"], shown["access"], shown["cascade_policy"]) == ("key", "disabled", False)
    told = terminal.run("entity", "get-limits", "key").stderr
    assert "key on all resources is disabled." in told
    assert "key on all resources does not charge parents by its cascade policy." in told
    terminal.text("entity", "enable", "key", "-r", "gpt-4")
    got = terminal.json("entity", "get-limits", "key", "-r", "gpt-4")
    assert (got["limits"], got["access"], got["cascade_policy"]) == ([], "enabled", None)
    terminal.text("resource", "bypass", "gpt-4")
    terminal.text("resource", "set-cascade", "gpt-4", "true")
    got = terminal.json("resource", "get-defaults", "gpt-4")
    assert (got["access"], got["cascade_policy"]) == ("bypassed", True)
    told = terminal.run("resource", "get-defaults", "gpt-4").stderr
    assert "gpt-4 is bypassed." in told
    assert "gpt-4 charges parents by its cascade policy." in told


@pytest.mark.parametrize(
    "command",
    ["disable {}", "bypass {}", "set-cascade {} true", "top-up {} -r gpt-4 --add rpm:1", "reset {} -r gpt-4"],
)
def test_a_command_about_an_id_that_nobody_created_is_done_and_noted(terminal: Terminal, command: str) -> None:
    terminal.text("system", "set-defaults", "-l", "rpm:10")
    terminal.text("entity", "create", "key")
    assert "exists" not in terminal.run("entity", *command.format("key").split()).stderr
    result = terminal.run("entity", *command.format("kye").split())
    assert (result.exit_code, "note: no entity 'kye' exists" in result.stderr) == (0, True)
    terminal.json("entity", *command.format("kye").split())


def test_a_bypass_is_of_its_level_only(terminal: Terminal) -> None:
    terminal.text("system", "set-defaults", "-l", "rpm:10/day")
    terminal.text("entity", "create", "org")
    terminal.text("entity", "create", "key", "--parent", "org", "--cascade")
    terminal.text("entity", "set-limits", "key", "-l", "rpm:2/day")
    terminal.text("entity", "bypass", "key")
    granted = terminal.text("acquire", "key", "gpt-4", "-c", "rpm:5")
    assert granted.startswith("Granted to key on gpt-4 (bypassed; overdrawn: rpm).\n")
    answer = terminal.json("acquire", "key", "gpt-4", "-c", "rpm:1")
    assert (answer["bypassed"], answer["overdrawn"]) == (True, ["rpm"])
    explained = terminal.run("explain", "key", "gpt-4", "-c", "rpm:5")
    assert "key is bypassed: its limits refuse nothing. Those of other levels still decide." in explained.stderr
    assert "when rpm of org has refilled." in explained.stdout
    levels = terminal.json("explain", "key", "gpt-4")["levels"]
    assert [level["bypassed"] for level in levels] == [True, False]
    assert terminal.run("acquire", "key", "gpt-4", "-c", "rpm:5").exit_code == 3
    assert "still refuse" in terminal.text("entity", "bypass", "--help")


def test_priorities(terminal: Terminal) -> None:
    terminal.text("system", "set-defaults", "-l", "rpm:10/day,batch=0.3,paid=0", "-l", "tpm:10/day,soft")
    call = ("key", "gpt-4", "-c", "rpm:8", "-c", "tpm:20")
    never = terminal.run("acquire", *call, "--priority", "batch")
    assert (never.exit_code, "above the maximum 7 (3 kept for others)" in never.stderr) == (4, True)
    text = terminal.text("explain", *call, "--priority", "batch")
    assert text.endswith("never fits: above the maximum 7 of rpm of key, 3 kept for others.\n")
    assert "batch leaves 30%, paid leaves 0%" in text
    assert "soft" in text
    found = terminal.json("explain", *call, "--priority", "batch")["levels"][0]["limits"]
    assert [(each["floor"], each["floors"], each["soft"]) for each in found] == [
        (3, {"batch": 0.3, "paid": 0.0}, False),
        (0, {}, True),
    ]
    assert terminal.json("explain", *call, "--priority", "paid")["fits_in_seconds"] == 0
    answer = terminal.json("acquire", *call, "--priority", "paid")
    assert (answer["bypassed"], answer["overdrawn"]) == (False, ["tpm"])
    for command in ("acquire", "explain"):
        unknown = terminal.run(command, *call, "--priority", "none")
        assert (unknown.exit_code, "there are batch, paid" in unknown.stderr) == (2, True)


def test_explain_shows_when_a_quota_comes_back(terminal: Terminal) -> None:
    terminal.text("system", "set-defaults", "-l", "tpd:10/year@Europe/Berlin,at=09:00", "-l", "rpm:10")
    text = terminal.text("explain", "key", "gpt-4", "-c", "tpd:1")
    assert re.search(r"20[0-9]{2}-01-01 09:00 Europe/Berlin +now", text)
    terminal.text("acquire", "key", "gpt-4", "-c", "tpd:10")
    text = terminal.text("explain", "key", "gpt-4", "-c", "tpd:1")
    assert text.endswith("when a new window of tpd of key has begun.\n")
    (found, _) = sorted(terminal.json("explain", "key", "gpt-4")["levels"][0]["limits"], key=lambda each: each["kind"])
    assert found["resets_at"].endswith("-01-01T09:00:00+01:00")
    assert "resets" not in terminal.text("explain", "key", "gpt-4", "-l", "rpm:10")


def test_entity_list_goes_over_pages_and_stops_where_told(terminal: Terminal) -> None:
    with SyncRepository(terminal.url) as repository:
        for number in range(150):
            repository.set_limits(f"key-{number:03}", [Limit.per_minute("rpm", 1)])
    assert len(terminal.json("entity", "list")) == 150
    result = terminal.run("entity", "list", "--most", "120")
    assert len(result.stdout.splitlines()) == 2 + 120
    assert "more than 120" in result.stderr


def test_buckets_and_reset(terminal: Terminal) -> None:
    assert "not used anything" in terminal.run("entity", "buckets", "key").stderr
    terminal.text("acquire", "key", "gpt-4", "-c", "rpm:3", "-l", "rpm:10/day")
    assert ["gpt-4", "rpm", "7", "10", "10/day", "3"] in words(terminal.text("entity", "buckets", "key"))
    (state,) = terminal.json("entity", "buckets", "key", "-r", "gpt-4")
    assert (state["tokens_milli"], state["total_consumed_milli"]) == (7000, 3000)
    terminal.text("entity", "reset-bucket", "key", "gpt-4", "--yes")
    (state,) = terminal.json("entity", "buckets", "key")
    assert (state["tokens_milli"], state["total_consumed_milli"]) == (10_000, 3000)


def test_credits(terminal: Terminal) -> None:
    top_up = ("entity", "top-up", "key", "--resource", "gpt-4", "--add", "rpm:5", "--idempotency-key", "order-7")
    terminal.text("system", "set-defaults", "-l", "rpm:10/day")
    terminal.text("acquire", "key", "gpt-4", "-c", "rpm:3")
    assert ["key", "gpt-4", "rpm", "5"] in words(terminal.text(*top_up, "--expires", "30d"))
    done = {"entity_id": "key", "resource": "gpt-4", "shards": 1, "amounts": {"rpm": 5}}
    assert terminal.json(*top_up, "--expires", "31d") == done
    assert ["gpt-4", "rpm", "7", "5", "10", "10/day", "3"] in words(terminal.text("entity", "buckets", "key"))
    ((lot,),) = [state["credits"] for state in terminal.json("entity", "buckets", "key")]
    assert lot["tokens_milli"] == 5000
    ((level,),) = [level["limits"] for level in terminal.json("explain", "key", "gpt-4")["levels"]]
    assert (level["available"], level["credit"]) == (12, 5)
    assert "of it credit" in terminal.text("explain", "key", "gpt-4")
    assert "above the maximum 15 of rpm" in terminal.text("explain", "key", "gpt-4", "-c", "rpm:16")
    filled = terminal.json("entity", "reset", "key", "-r", "gpt-4", "--limit", "rpm", "--idempotency-key", "t")
    assert filled == {**done, "amounts": {"rpm": 3}}
    assert terminal.json("available", "key", "gpt-4")["available"] == {"rpm": 15}
    actions = [event["action"] for event in terminal.json("audit", "list", "key")]
    assert actions == ["bucket_reset", "bucket_topped_up"]


@pytest.mark.parametrize("wrong", ["soon", "30", "2020-01-01", "2030-01-01T00:00"])
def test_a_wrong_expiry_says_how_to_write_one(terminal: Terminal, wrong: str) -> None:
    result = terminal.run("entity", "top-up", "key", "-r", "gpt-4", "--add", "rpm:5", "--expires", wrong)
    assert result.exit_code == 2
    assert "expir" in result.stderr
    assert "datetime" not in result.stderr


# Defaults.


def test_resource_defaults(terminal: Terminal) -> None:
    table = terminal.text("resource", "set-defaults", "gpt-4", "-l", "rpm:10/day", "-l", "jobs:2/30s")
    assert ["jobs", "2/30", "s", "2"] in words(table)
    assert len(terminal.json("resource", "get-defaults", "gpt-4")["limits"]) == 2
    assert terminal.json("resource", "list")[0]["resource"] == "gpt-4"
    assert "jobs 2/30 s, rpm 10/day" in terminal.text("resource", "list")
    assert terminal.run("resource", "delete-defaults", "gpt-4", input="n\n").exit_code == 1
    assert terminal.text("resource", "delete-defaults", "gpt-4", "--yes") == "Deleted the limits of gpt-4.\n"
    assert "no limits" in terminal.run("resource", "get-defaults", "gpt-4").stderr
    assert terminal.json("resource", "list") == []


def test_resource_capacity(terminal: Terminal) -> None:
    terminal.text("resource", "set-defaults", "gpt-4", "-l", "rpm:10/day")
    assert "No entity has used rpm" in terminal.run("resource", "capacity", "gpt-4", "rpm").stderr
    terminal.text("entity", "create", "org")
    terminal.text("entity", "create", "c", "--parent", "org")
    for key, used in (("a", "5"), ("b", "7"), ("c", "6")):
        terminal.text("acquire", key, "gpt-4", "-c", f"rpm:{used}")
    lines = words(terminal.text("resource", "capacity", "gpt-4", "rpm"))
    assert lines[2:] == [
        ["b", "3", "10", "70.0", "%"],
        ["c", "4", "10", "60.0", "%"],
        ["a", "5", "10", "50.0", "%"],
        ["all", "12", "30", "60.0", "%"],
    ]
    found = terminal.json("resource", "capacity", "gpt-4", "--limit", "rpm", "--parents-only")
    busiest = [each["entity_id"] for each in found["entities"]]
    assert (found["total_capacity"], found["total_available"], busiest) == (20, 8, ["b", "a"])
    for given in ([], ["rpm", "--limit", "rpm"]):
        assert "Pass the limit once" in terminal.run("resource", "capacity", "gpt-4", *given).stderr


def test_system_defaults(terminal: Terminal) -> None:
    assert "no system defaults" in terminal.run("system", "get-defaults").stderr
    result = terminal.run("system", "set-defaults", "-l", "rpm:10/hour", "--on-unavailable", "allow")
    assert ["rpm", "10/h", "10"] in words(result.stdout)
    assert "calls are allowed" in result.stderr
    assert terminal.json("system", "get-defaults")["on_unavailable"] == "allow"
    assert terminal.json("system", "delete-defaults", "--yes") == {"limits": [], "on_unavailable": None}
    assert terminal.json("system", "get-defaults") == {"limits": [], "on_unavailable": None}


# Trying limits.


def test_acquire_takes_and_tells_what_is_left(terminal: Terminal) -> None:
    terminal.text("system", "set-defaults", "-l", "rpm:10/day", "-l", "tpm:1000/day")
    text = terminal.text("acquire", "key", "gpt-4", "-c", "rpm:1", "-c", "tpm:500", "--max-wait", "5")
    assert text.startswith("Granted to key on gpt-4.\n")
    assert ["tpm", "500", "500"] in words(text)
    answer = terminal.json("acquire", "key", "gpt-4", "-c", "rpm:1", "-c", "tpm:100", "--adjust", "tpm:+1500")
    assert answer["granted"] is True
    assert answer["degraded"] is False
    assert answer["consumed"] == {"rpm": 1, "tpm": 1600}
    assert answer["available"] == {"rpm": 8, "tpm": -1100}
    assert ["tpm", "-1,100"] in words(terminal.text("available", "key", "gpt-4"))
    assert terminal.json("available", "key", "gpt-4")["available"] == {"rpm": 8, "tpm": -1100}
    settled = terminal.json("acquire", "third", "gpt-4", "-c", "tpm:800", "--settle", "tpm:530", "--adjust", "tpm:+20")
    assert settled["consumed"] == {"tpm": 550}
    refund = terminal.json("acquire", "other", "gpt-4", "-c", "tpm:800", "--adjust", "tpm:-300")
    assert refund["available"]["tpm"] == 500


def test_acquire_of_several_resources(terminal: Terminal) -> None:
    terminal.text("system", "set-defaults", "-l", "rpm:10/day", "-l", "tpm:1000/day")
    text = terminal.text("acquire", "key", "gpt-4", "-c", "rpm:1", "--also", "tools:rpm:2", "--also", "tools:tpm:5")
    assert text.startswith("Granted to key on gpt-4, tools.\n")
    assert ["rpm", "1", "9"] in words(text)
    assert ["tools:rpm", "2", "8"] in words(text)
    answer = terminal.json("acquire", "key", "gpt-4", "-c", "rpm:1", "--also", "tools:rpm:2")
    assert answer["also"] == {"tools": {"consumed": {"rpm": 2}, "available": {"rpm": 6, "tpm": 995}, "overdrawn": []}}
    assert terminal.run("acquire", "key", "gpt-4", "-c", "rpm:1", "--also", "tools:rpm:7").exit_code == 3
    assert terminal.json("available", "key", "gpt-4")["available"]["rpm"] == 8, "nothing was taken"
    spaced = terminal.json("acquire", "key", "gpt-4", "-c", "rpm:1", "--also", "a:b:rpm:3")
    assert spaced["also"]["a:b"]["consumed"] == {"rpm": 3}
    for wrong in (
        ["tools"],
        ["tools:rpm"],
        [":rpm:1"],
        ["rpm:1"],
        ["tools::1"],
        ["tools:rpm:x"],
        ["tools:rpm:1", "--also", "tools:rpm:1"],
        ["gpt-4:rpm:1"],
    ):
        assert terminal.run("acquire", "key", "gpt-4", "-c", "rpm:1", "--also", *wrong).exit_code == 2


def test_acquire_refused_never_and_bad_input(terminal: Terminal) -> None:
    limits = ("-l", "rpm:2/day")
    terminal.text("acquire", "key", "gpt-4", "-c", "rpm:2", *limits)
    refused = terminal.run("acquire", "key", "gpt-4", "-c", "rpm:1", *limits, "--max-wait", "1")
    assert (refused.exit_code, refused.stdout) == (3, "")
    assert "retry in" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    never = terminal.run("acquire", "key", "gpt-4", "-c", "rpm:3", *limits)
    assert never.exit_code == 4
    assert "costs 3 rpm, above the maximum 2; retrying will not help" in never.stderr
    assert terminal.run("acquire", "key", "gpt-4", "-c", "tpm:1", *limits).exit_code == 2
    unset = terminal.run("acquire", "key", "gpt-4", "-c", "rpm:1")
    assert unset.exit_code == 2
    assert "`system set-defaults`" in unset.stderr
    assert "-l" in unset.stderr


def test_acquire_refused_as_json(terminal: Terminal) -> None:
    terminal.text("acquire", "key", "gpt-4", "-c", "rpm:2", "-l", "rpm:2/day")
    refused = terminal.run("acquire", "key", "gpt-4", "-c", "rpm:1", "-l", "rpm:2/day", "--json")
    assert (refused.exit_code, refused.stdout) == (3, "")
    answer = json.loads(refused.stderr)
    assert (answer["error"], answer["exit_code"]) == ("rate_limit_exceeded", 3)
    assert answer["retry_after_seconds"] > 0
    assert [(limit["limit_name"], limit["exceeded"]) for limit in answer["limits"]] == [("rpm", True)]


@pytest.fixture
def family(terminal: Terminal) -> Terminal:
    """A key of a project of an organisation, with limits at all levels."""
    return populated(terminal)


def test_explain_shows_where_every_limit_comes_from(family: Terminal) -> None:
    text = family.text("explain", "key", "gpt-4", "-c", "rpm:1", "-c", "tpm:500")
    assert "entity (over resource, system)" in text
    assert "entity_default (over resource, system)" in text
    assert "resource (over system)" in text
    assert text.endswith("\nrpm 1, tpm 500 fits now.\n")
    found = family.json("explain", "key", "gpt-4")
    assert [(level["entity_id"], level["source"]) for level in found["levels"]] == [
        ("key", "entity"),
        ("chat", "entity_default"),
        ("acme", "resource"),
    ]
    assert found["levels"][0]["hides"] == ["resource", "system"]
    assert found["levels"][1]["limits"][1]["available"] == 5000


def test_explain_says_when_and_why_not(family: Terminal) -> None:
    family.text("acquire", "key", "gpt-4", "-c", "rpm:1", "-c", "tpm:900")
    late = family.text("explain", "key", "gpt-4", "-c", "tpm:900")
    assert late.splitlines()[-1] == "tpm 900 fits in 24 h, when tpm of key has refilled."
    seconds = family.json("explain", "key", "gpt-4", "-c", "tpm:900")["fits_in_seconds"]
    assert 86_000 < seconds <= 86_400
    never = family.text("explain", "key", "gpt-4", "-c", "tpm:901")
    assert never.splitlines()[-1] == "tpm 901 never fits: above the maximum 900 of tpm of key."
    assert family.json("explain", "key", "gpt-4", "-c", "tpm:901")["fits_in_seconds"] is None
    assert family.run("explain", "key", "gpt-4", "-c", "cpu:1").exit_code == 2


def test_explain_without_a_cost_says_when_one_more_fits(family: Terminal) -> None:
    assert family.text("explain", "key", "gpt-4").endswith("\nOne more of each limit fits now.\n")
    family.text("acquire", "key", "gpt-4", "-c", "rpm:1", "-c", "tpm:900")
    text = family.text("explain", "key", "gpt-4")
    assert [line[-1] for line in words(text)[2:-2] if "tpm" in line] == ["s", "now", "now"]
    assert re.search(r"\nOne more of each limit fits in 1 min [0-9]+ s, when tpm of key has refilled\.\n$", text)
    found = family.json("explain", "key", "gpt-4")
    assert found["cost"] == {}
    assert 60 < found["fits_in_seconds"] <= 96


def test_explain_remarks_on_what_is_not_charged(family: Terminal) -> None:
    assert "was never created" in family.run("explain", "stranger", "gpt-4").stderr
    family.text("entity", "update", "chat", "--no-cascade")
    assert "acme is not charged: chat does not cascade." in family.run("explain", "key", "gpt-4").stderr
    family.text("entity", "update", "chat", "--cascade")
    family.text("resource", "delete-defaults", "gpt-4", "--yes")
    family.text("system", "delete-defaults", "--yes")
    assert "acme is not charged: no limits are stored" in family.run("explain", "key", "gpt-4").stderr


def test_explain_with_limits_given(family: Terminal) -> None:
    found = family.json("explain", "key", "gpt-4", "-l", "rpm:7/day", "-c", "rpm:1")
    assert found["levels"][0]["source"] == "override"
    assert found["levels"][0]["hides"] == ["entity", "resource", "system"]


# Namespaces, audit, status.


def test_namespaces(terminal: Terminal) -> None:
    assert [each["name"] for each in terminal.json("namespace", "register", "blue", "green")] == ["blue", "green"]
    assert [line[0] for line in words(terminal.text("namespace", "list"))[2:]] == ["blue", "default", "green"]
    shown = terminal.json("namespace", "show", "blue")
    assert "active" in terminal.text("namespace", "show", "blue")

    terminal.text("entity", "create", "key", "-N", "blue")
    assert terminal.run("entity", "show", "key", "-N", "green").exit_code == 6

    assert shown["id"] in terminal.text("namespace", "delete", "blue", "--yes")
    assert terminal.run("entity", "show", "key", "-N", "blue").exit_code == 9
    assert [each["id"] for each in terminal.json("namespace", "orphans")] == [shown["id"]]
    assert "deleted" in terminal.text("namespace", "orphans")
    assert terminal.json("namespace", "recover", "--", shown["id"])["status"] == "active"
    assert terminal.json("entity", "show", "key", "-N", "blue")["id"] == "key"


def test_namespace_purge(terminal: Terminal) -> None:
    (made,) = terminal.json("namespace", "register", "blue")
    with SyncRepository(terminal.url, namespace="blue") as repository:
        for number in range(600):
            repository.create_entity(f"key-{number}")
    active = terminal.run("namespace", "purge", "--yes", "--", made["id"])
    assert active.exit_code == 10
    assert "Namespace 'blue' is active; delete it first. `zae-limiter namespace delete`" in active.stderr
    terminal.text("namespace", "delete", "blue", "--yes")
    assert terminal.run("namespace", "purge", "--", made["id"], input="n\n").exit_code == 1
    purged = terminal.run("namespace", "purge", "--yes", "--", made["id"])
    assert purged.exit_code == 0
    assert purged.stdout == f"Purged {made['id']}, 1,201 records.\n"
    assert purged.stderr == "purging ... 1,000 records\n"
    gone = terminal.run("namespace", "purge", "--yes", "--", made["id"])
    assert gone.exit_code == 9
    assert "`namespace orphans`" in gone.stderr

    (again,) = terminal.json("namespace", "register", "blue")
    terminal.text("namespace", "delete", "blue", "--yes")
    counted = terminal.json("namespace", "purge", "--yes", "--", again["id"])
    assert counted == {"namespace_id": again["id"], "purged": 1}


def test_audit(terminal: Terminal) -> None:
    terminal.text("entity", "create", "key")
    terminal.text("entity", "set-limits", "key", "-r", "gpt-4", "-l", "rpm:60", "--principal", "alice")
    terminal.text("system", "set-defaults", "-l", "rpm:60", "--on-unavailable", "block")
    terminal.text("resource", "set-defaults", "gpt-4", "-l", "rpm:60")
    terminal.text("namespace", "register", "blue")
    events = terminal.json("audit", "list", "key")
    assert [(event["action"], event["principal"]) for event in events] == [
        ("limits_set", "alice"),
        ("entity_created", "tester"),
    ]
    assert "rpm 60/min" in terminal.text("audit", "list", "key")
    assert "on_unavailable=block" in terminal.text("audit", "list", "--system")
    assert terminal.json("audit", "list", "--resource", "gpt-4")[0]["entity_id"] == "$RESOURCE:gpt-4"
    assert "namespace_registered" in terminal.text("audit", "list", "--of-namespace", "blue")

    first = terminal.run("audit", "list", "key", "--most", "1")
    assert events[0]["event_id"] in first.stderr
    assert [event["action"] for event in terminal.json("audit", "list", "key", "--before", events[0]["event_id"])] == [
        "entity_created"
    ]
    assert "No changes of nobody" in terminal.run("audit", "list", "nobody").stderr
    assert terminal.run("audit", "list").exit_code == 2
    assert terminal.run("audit", "list", "key", "--system").exit_code == 2


def test_status_and_version(terminal: Terminal) -> None:
    found = terminal.json("status")
    assert (found["available"], found["backend"], found["namespace"]) == (True, "sqlite", "default")
    assert ["answers", "yes"] in words(terminal.text("status"))
    assert "Python" in terminal.raw("version").stdout
    assert json.loads(terminal.raw("version", "--json").stdout)["zae_limiter"]
    assert terminal.raw("--version").stdout.startswith("zae-limiter ")
