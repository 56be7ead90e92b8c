"""The cell that the configuration in effect is in: who hears of a change, and who may refuse it."""

from typing import Any

import pytest

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.supervisor.config.schema import Config
from lmx.supervisor.config.settings import Change, Settings


def config(**sections: Any) -> Config:
    return Config.model_validate(sections)


OLD, NEW = config(), config(memory={"soft_line": 0.5})


def test_those_who_react_are_called_in_order_and_find_the_new_one_in_effect() -> None:
    settings = Settings(OLD)
    seen: list[tuple[str, float, bool]] = []

    def reaction(name: str) -> Any:
        def react(change: Change, now_s: float) -> None:
            assert (change.old, change.new) == (OLD, NEW)
            seen.append((name, now_s, settings.current is NEW))

        return react

    settings.on_change(reaction("first"), reaction("second"))
    assert settings.apply(NEW, 3.0).sections == ("memory",)
    assert seen == [("first", 3.0, True), ("second", 3.0, True)]


def test_nobody_is_called_where_nothing_differs() -> None:
    settings = Settings(OLD)
    settings.on_change(lambda _change, _now_s: pytest.fail("nothing has changed"))
    assert settings.apply(config(), 0.0).sections == ()
    assert settings.current is OLD


@pytest.mark.parametrize("error", [OperationError(ErrorCode.CONFIG_INVALID, "no"), TypeError("no")])
def test_one_that_is_refused_is_not_in_effect(error: Exception) -> None:
    """A bug in who may refuse it is a refusal too: a later change finds what differs."""
    settings = Settings(OLD)

    def refuse(change: Change, now_s: float) -> None:
        raise error

    settings.on_change(refuse, lambda _change, _now_s: pytest.fail("it was refused"))
    with pytest.raises(type(error), match="no"):
        settings.apply(NEW, 0.0)
    assert settings.current is OLD


@pytest.mark.parametrize("error", [OperationError(ErrorCode.CONFIG_INVALID, "no"), TypeError("no")])
def test_one_that_was_accepted_is_in_effect_whatever_fails_after_that(error: Exception) -> None:
    """Those before the one that fails have acted by then."""
    settings = Settings(OLD)

    def fail(change: Change, now_s: float) -> None:
        raise error

    settings.on_change(lambda _change, _now_s: None, fail)
    with pytest.raises(type(error)):
        settings.apply(NEW, 0.0)
    assert settings.current is NEW
