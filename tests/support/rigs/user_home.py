"""A user's home without anything in it, and programs that act as the system's."""

import subprocess
from collections.abc import Collection
from pathlib import Path

import psutil

from tests.support.fakes import service_manager
from tests.support.rigs.rig import called

CONFIG = "server: {port: 0}\nmemory: {budget_fraction: 0.5}\n"


class UserHome:
    """Commands of the ``lmx`` at ``program`` run in it, with no variables of the shell; those of
    the names ``here`` in this process, because a process of their own is mostly imports."""

    def __init__(self, folder: Path, program: str, here: Collection[str] = ()) -> None:
        self.program, self._here = program, here
        self.path, self.programs = folder / "a home", folder / "programs"
        self.path.mkdir()
        self.lmx_home = self.path / ".lmx"
        self.environment = {
            "HOME": str(self.path),
            "PATH": service_manager.put_on_path(self.programs),
        }

    def lmx(self, *words: str, code: int = 0) -> str:
        """What a command of lmx prints."""
        if words[0] in self._here:
            done = called(words, self.environment, self.path)
            assert done.returncode == code, done.stdout + done.stderr
            return done.stdout + done.stderr
        return self.run(self.program, *words, code=code)

    def run(self, *words: str, code: int = 0, limit_s: float = 300) -> str:
        """What a command prints."""
        done = subprocess.run(
            words, env=self.environment, stdin=subprocess.DEVNULL, timeout=limit_s, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, cwd=self.path,
        )  # fmt: skip
        assert done.returncode == code, done.stdout
        return done.stdout

    def configure(self, text: str = CONFIG) -> None:
        """Write ``lmx.yaml``."""
        self.lmx_home.mkdir(mode=0o700, exist_ok=True)
        (self.lmx_home / "lmx.yaml").write_text(text)

    def files(self) -> set[str]:
        """Everything but what is in LMX_HOME."""
        found = (path.relative_to(self.path) for path in self.path.rglob("*"))
        return {str(path) for path in found if path.parts[0] != ".lmx"}

    def processes(self) -> list[psutil.Process]:
        """Those that have its LMX_HOME."""
        return [each for each in psutil.process_iter() if home_of(each) == str(self.lmx_home)]

    def end(self) -> None:
        """End the lmx that runs."""
        if Path(self.program).exists():
            subprocess.run(
                [self.program, "stop"],
                env=self.environment, capture_output=True, timeout=300, check=False,
            )  # fmt: skip


def home_of(process: psutil.Process) -> str | None:
    try:
        return process.environ().get("LMX_HOME")
    except psutil.Error:
        return None
