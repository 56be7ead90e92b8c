"""``LMX_HOME``: where lmx keeps all that it writes. Paths only."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lmx.protocol.endpoints import RunDirectory


@dataclass(frozen=True, slots=True)
class Home:
    """The folders below ``LMX_HOME`` (default ``~/.lmx``)."""

    path: Path

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Home:
        """Return the home that ``LMX_HOME`` names, absolute."""
        chosen = environment.get("LMX_HOME") or "~/.lmx"
        return cls(Path(os.path.abspath(Path(chosen).expanduser())))  # noqa: PTH100

    @property
    def run(self) -> RunDirectory:
        """Sockets; private to the user."""
        return RunDirectory(self.path / "run")

    @property
    def state(self) -> Path:
        """Records of running processes, and what is to be remembered."""
        return self.path / "state"

    @property
    def logs(self) -> Path:
        """A file for each process."""
        return self.path / "logs"

    @property
    def models(self) -> Path:
        """Models that lmx imported."""
        return self.path / "models"

    @property
    def temporary(self) -> Path:
        """``TMPDIR`` of every child process."""
        return self.path / "tmp"

    @property
    def default_config(self) -> Path:
        """Used when neither ``--config`` nor ``LMX_CONFIG`` names another."""
        return self.path / "lmx.yaml"

    def worker_log(self, model_id: str) -> Path:
        """Return the log file of a model's workers; one after the other write to it."""
        return self.logs / f"worker-{slug(model_id)}.log"

    @property
    def router_log(self) -> Path:
        """The router's log."""
        return self.logs / "router.log"

    @property
    def supervisor_log(self) -> Path:
        """The supervisor's own log."""
        return self.logs / "supervisor.log"

    def prepare(self) -> None:
        """Make the folders, readable by their owner alone."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder in (self.state, self.logs, self.models, self.temporary):
            folder.mkdir(exist_ok=True, mode=0o700)
        self.run.prepare()


def slug(model_id: str) -> str:
    """Return a model id as a file name: two ids that differ may not share one."""
    return re.sub(r"[^A-Za-z0-9.+@-]", lambda match: f"_{ord(match.group()):x}_", model_id)
