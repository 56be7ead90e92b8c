"""With what configuration an lmx was started: recorded in its state, so that every command speaks
about the lmx that runs, and no other one takes its place unnoticed when its supervisor has died."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmx.protocol.errors import OperationError
from lmx.supervisor.config.diff import compare
from lmx.supervisor.config.load import load_config, setting_variables
from lmx.supervisor.config.model import AddedModelConfig
from lmx.supervisor.config.schema import Config
from lmx.supervisor.sockets.client import supervisor_runs
from lmx.supervisor.state.disk_retry import Change
from lmx.supervisor.state.home import Home
from lmx.supervisor.state.process_records import Records
from lmx.supervisor.state.state_file import StateFile


@dataclass(frozen=True, slots=True)
class Launch:
    """What decides about a configuration, and what came of it."""

    config: str | None
    """The absolute path of the file, or None."""
    variables: dict[str, str]
    """The ``LMX_*`` variables that are settings. Options of the command line have become variables
    by then. Keys may be among them, so that only the owner may read the file of it."""
    sections: dict[str, Any]
    """The configuration in effect by its sections, without the models that were added, and without
    keys."""

    @classmethod
    def of(
        cls, path: Path | None, environment: Mapping[str, str], config: Config | None = None
    ) -> Launch:
        """Return what an lmx with this file and environment is started with."""
        return cls(
            None if path is None else str(path.absolute()),
            setting_variables(environment),
            {} if config is None else sections_of(config),
        )

    @property
    def words(self) -> str:
        """The file and the variables, for people. Values are left out: keys may be among them."""
        parts = [] if self.config is None else [self.config]
        return ", ".join([*parts, *self.variables]) or "defaults and LMX_* variables"

    def read(self, *, keys_kept: bool) -> Config:
        """Return the configuration that an lmx with this file and these variables has now; see
        :func:`load_config`. Raises :class:`OperationError` (config_invalid)."""
        path = None if self.config is None else Path(self.config)
        return load_config(path, self.variables, keys_kept=keys_kept)

    def changed(self, config: Config) -> tuple[str, ...]:
        """Return the sections in which a configuration differs from the one in effect."""
        now = sections_of(config)
        before = self.sections
        # The order of the patterns counts, which two dicts don't compare.
        return tuple(
            name
            for name, section in now.items()
            if section != before.get(name)
            or (name == "routing" and list(section["patterns"]) != list(before[name]["patterns"]))
        )

    def restore(self, environment: MutableMapping[str, str]) -> None:
        """Give an environment the variables of this launch, and none of its own settings."""
        for name in setting_variables(environment):
            del environment[name]
        environment.update(self.variables)
        environment.pop("LMX_CONFIG", None)
        if self.config is not None:
            environment["LMX_CONFIG"] = self.config


def sections_of(config: Config) -> dict[str, Any]:
    """Return a configuration as plain values, without the models that were added, and with masks in
    place of keys."""
    written = tuple(m for m in config.models if not isinstance(m, AddedModelConfig))
    return config.model_copy(update={"models": written}).model_dump(mode="json")


class LaunchFile:
    """``state/launch.json``. ``change`` changes a file, and never raises ``OSError``."""

    def __init__(self, home: Home, change: Callable[[Path, Change], None]) -> None:
        self._file = StateFile(home.launch, _parse)
        self._change = change

    def save(self, launch: Launch) -> None:
        """Record with what this lmx was started, and what is in effect."""
        self._change(self._file.path, lambda: self._file.save(dataclasses.asdict(launch)))

    def forget(self) -> None:
        """Remove the record: nothing of this lmx runs any more."""
        path = self._file.path
        self._change(path, lambda: path.unlink(missing_ok=True))


def running_launch(home: Home) -> Launch | None:
    """Return with what the lmx that runs was started, also if its supervisor has died and its
    processes serve. None if nothing runs, or nothing was recorded."""
    if supervisor_runs(home):
        return _recorded(home)
    return left_launch(home, locked=True)


def left_launch(home: Home, *, locked: bool = False) -> Launch | None:
    """Return with what a supervisor that died was started, if its processes still run. None
    otherwise. ``locked`` means that the caller knows that no other supervisor runs."""
    if not locked and supervisor_runs(home):
        return None
    launch = _recorded(home)
    return launch if launch is not None and Records(home.state).orphans() else None


def _recorded(home: Home) -> Launch | None:
    launch = StateFile(home.launch, _parse).peek()
    default = home.default_config.absolute()
    if launch is None or launch.config not in (None, str(default)):
        return launch
    # The home's own file is read at each reload if it is there by then.
    return dataclasses.replace(launch, config=str(default) if default.exists() else None)


def other_configuration(launch: Launch, config: Config, *, keys_kept: bool) -> str | None:
    """Return how a configuration differs from the one of a launch, for people; None if it does not.
    A file that both read is compared as it is now, so that an edited file is no other
    configuration."""
    try:
        before = launch.read(keys_kept=keys_kept)
    except OperationError as error:
        return f"that can't be read any more ({error.message})"
    diff = compare(before, config)
    if not diff.sections:
        return None
    return "; ".join(diff.sentences) or f"changed: {', '.join(diff.sections)}"


def taken_over(launch: Launch, config: Config) -> str:
    """Return what the event of a takeover says."""
    changed = launch.changed(config)
    detail = "the processes that a supervisor left when it died continue"
    if not changed:
        return detail
    return f"{detail}; its configuration ({launch.words}) was another one: {', '.join(changed)}"


def _parse(found: Any) -> Launch:
    launch = Launch(**found)
    if not (
        isinstance(launch.config, str | None)
        and isinstance(launch.sections, dict)
        and all(isinstance(value, str) for value in launch.variables.values())
    ):
        raise TypeError("it has values of other types")
    return launch
