"""Whether a supervisor may take the place of one that has died, with the configuration it has."""

from __future__ import annotations

import os
from pathlib import Path

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.supervisor.cli.command import config_path as found_path
from lmx.supervisor.cli.command import from_words, own_config
from lmx.supervisor.service.launch import left_launch, other_configuration
from lmx.supervisor.state.home import Home


def settle_takeover(home: Home, config_path: Path | None, choice: str | None) -> None:
    """Look whether a supervisor that died has left processes, and with which configuration.

    With the choice ``recorded`` the environment of this process becomes that of the launch before.
    Raises :class:`OperationError` (config_invalid) without a choice, when the configuration of
    this command is another one: models would end, and the address might change.
    """
    launch = left_launch(home)
    if launch is None or choice == "new":
        return
    if choice == "recorded":
        launch.restore(os.environ)
        return
    other = other_configuration(launch, own_config(config_path))
    if other is not None:
        here = from_words(found_path(config_path), os.environ)
        raise OperationError(
            ErrorCode.CONFIG_INVALID,
            "a supervisor has died, and what it started still serves with another configuration "
            "than this command has:\n"
            f"  - it was started with: {launch.words}\n"
            f"  - this command has: {here}\n"
            f"  - what would change: {other}\n"
            "Choose: --take-over recorded continues as it was, --take-over new makes these "
            "changes, and `lmx stop` ends what serves",
        )
