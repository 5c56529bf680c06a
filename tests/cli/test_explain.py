"""``zae-limiter explain``: levels that a cost does not name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.cli.terminal import fresh

if TYPE_CHECKING:
    from pathlib import Path


def test_explain_names_what_a_level_does_not_charge(tmp_path: Path) -> None:
    terminal = fresh(tmp_path)
    terminal.text("entity", "create", "org")
    terminal.text("entity", "create", "key", "--parent", "org", "--cascade")
    terminal.text("entity", "set-limits", "key", "-l", "tokens:1000/min")
    terminal.text("entity", "set-limits", "org", "-l", "tpm:100/min")
    shown = terminal.run("explain", "key", "gpt-4", "-c", "tokens:5").stderr
    assert "org: not charged here: `tokens`." in shown
    assert "key: not charged here" not in shown
    remarks = terminal.json("explain", "key", "gpt-4")["remarks"]
    assert remarks == ["key: not charged here: `tpm`.", "org: not charged here: `tokens`."]
