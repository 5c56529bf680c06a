"""The engine can do what DynamoDB documents, and one that cannot is told by name."""

from __future__ import annotations

import pytest

from tests.support.aws import abilities, engine


def test_the_engine_has_every_documented_ability() -> None:
    assert not abilities.lacking(), f"the engine at {engine.endpoint()} lacks: {', '.join(abilities.lacking())}"


def test_tests_are_skipped_where_an_engine_named_from_outside_lacks_what_is_essential(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(engine.URL, engine.endpoint())
    monkeypatch.setattr(abilities, "lacking", lambda: {"transactions": True, "time to live": False})
    with pytest.raises(pytest.skip.Exception, match=r"^the engine lacks: transactions$"):
        abilities.skip_where_lacking()
    monkeypatch.setattr(abilities, "lacking", lambda: {"time to live": False})
    abilities.skip_where_lacking()


def test_the_engine_of_the_tests_is_never_a_reason_to_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(engine.URL, raising=False)
    monkeypatch.setattr(abilities, "lacking", lambda: {"transactions": True})
    abilities.skip_where_lacking()


@pytest.mark.parametrize("ability", [*abilities.ESSENTIAL, *abilities.FURTHER])
def test_an_ability_that_is_missing_is_noticed(ability: str) -> None:
    """An engine that answers nothing but ``{}`` can do nothing."""

    class Nothing(abilities.Probe):
        def call(self, operation: str, **request: object) -> dict[str, object]:
            return {}

    assert not (abilities.ESSENTIAL | abilities.FURTHER)[ability](Nothing(None, "t"))  # type: ignore[arg-type]
