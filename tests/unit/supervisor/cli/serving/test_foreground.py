"""The supervisor in a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmx.protocol.host.log_limit import LogLimit
from lmx.supervisor.cli.serving import foreground
from lmx.supervisor.config.schema import LogConfig
from lmx.supervisor.state.home import Home


def test_a_log_that_cannot_be_kept_keeps_no_other_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[str] = []

    def keep_to(path: Path, _limit: LogLimit) -> bool:
        kept.append(path.name)
        raise OSError(13, f"{path.name} is not ours")

    home = Home(tmp_path)
    home.prepare()
    for name in "abc":
        (home.logs / f"{name}.log").touch()
    monkeypatch.setattr(foreground, "keep_to", keep_to)
    monkeypatch.setattr(foreground, "keep_forever", lambda _keep, _name: None)
    monkeypatch.setattr(foreground, "configure_logs", lambda *_args, **_options: None)
    logs = foreground._Logs(home, LogConfig(), detached=False)
    with pytest.raises(OSError, match="is not ours") as raised:
        logs._keep_once()
    assert {"a.log", "b.log", "c.log"} <= set(kept)
    assert kept[0] in str(raised.value)
