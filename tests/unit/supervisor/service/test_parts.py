"""What the parts do about a changed configuration."""

import errno
from unittest.mock import Mock

import pytest

from lmx.supervisor.config.schema import Config
from lmx.supervisor.config.settings import Settings
from lmx.supervisor.service import parts


def test_a_change_whose_budget_can_t_be_read_is_not_in_effect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing has followed it by then, so that the same reload works a moment later."""
    old, new = Config(), Config.model_validate({"memory": {"budget_fraction": 0.5}})
    base, core, guard = Mock(settings=Settings(old)), Mock(), Mock()
    parts._follow_changes(base, core, guard, Mock(), Mock(), Mock())
    short = OSError(errno.EMFILE, "too many open files")
    monkeypatch.setattr(parts, "read_memory", Mock(side_effect=[short, Mock(total_bytes=2**40)]))
    monkeypatch.setattr(parts, "read_working_set", lambda: None)
    with pytest.raises(OSError, match="too many"):
        base.settings.apply(new, 0.0)
    assert base.settings.current is old
    assert not guard.reconfigured.called and not core.reconfigured.called
    base.settings.apply(new, 0.0)
    assert base.settings.current is new
    assert guard.reconfigured.called and core.reconfigured.called
    assert base.ledger.budget_bytes == 2**39
