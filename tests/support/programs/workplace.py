"""Where a program of other people runs in a test: as a user starts it, with a home of its own.

None of them may look for updates or report what they do: their own switches say so.
"""

import contextlib
import os
import signal
import subprocess
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.rigs.rig import Rig, wait_until

_QUIET: Final = {
    # Claude Code.
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_TELEMETRY": "1",
    # It asks for no permissions as root otherwise.
    "IS_SANDBOX": "1",
    # opencode, which has npm fetch what its plugins may need.
    "npm_config_offline": "true",
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    # LiteLLM, and what comes with it.
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "HF_HUB_OFFLINE": "1",
    # All of them.
    "DO_NOT_TRACK": "1",
}
_TIMEOUT_S: Final = 300.0


@dataclass(frozen=True)
class Workplace:
    """A folder to work in and a home, both empty at first, and the lmx that programs ask."""

    lmx: Rig
    key: str
    folder: Path
    home: Path

    @property
    def root(self) -> str:
        """The address of lmx, without a path."""
        return self.lmx.url.removesuffix("/v1")

    def get(self, path: str) -> bytes:
        """Return what lmx answers to a GET."""
        asked = urllib.request.Request(
            self.root + path, headers={"Authorization": f"Bearer {self.key}"}
        )
        with urllib.request.urlopen(asked, timeout=_TIMEOUT_S) as answer:
            found: bytes = answer.read()
        return found

    def environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Return what a program sees: nothing of this process's but the path."""
        mine = {"PATH": os.environ["PATH"], "HOME": str(self.home), "LMX_API_KEY": self.key}
        return {**mine, **_QUIET, **variables}

    def run(self, command: Sequence[str], **variables: str) -> str:
        """Run a program to its end, and return what it prints. Fails with all of that if it
        fails."""
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment(variables), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    def interrupt(self, command: Sequence[str], model: str, **variables: str) -> None:
        """Start a program, send it SIGINT once ``model`` writes for it, and wait until both have
        ended: the program, and the answer, as one whose client has left."""
        before = self.left
        with subprocess.Popen(
            command, cwd=self.folder, env=self.environment(variables), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        ) as process:  # fmt: skip
            try:
                wait_until(
                    lambda: self.lmx.worker(model)["requests_active"], f"{model} writes", _TIMEOUT_S
                )
                # As a terminal does: programs run in programs.
                os.killpg(process.pid, signal.SIGINT)
                process.wait(_TIMEOUT_S)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        wait_until(lambda: self.left > before, "lmx notes that the client has left")
        wait_until(lambda: not self.lmx.worker(model)["requests_active"], f"{model} writes no more")

    @property
    def left(self) -> int:
        """How many clients have left before their answer was whole."""
        ended = self.lmx.log_events("router", "http.request")
        return sum(one.get("error") == "client_disconnected" for one in ended)
