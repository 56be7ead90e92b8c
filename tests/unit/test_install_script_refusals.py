"""What deploy/install.sh leaves alone: environments and services that are not its own."""

import os
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "deploy" / "install.sh"


def run(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "LMX_INSTALL_DIR": "place",
        "LMX_BIN_DIR": "bin",
    }
    return subprocess.run(
        ["sh", SCRIPT, *words], cwd=home, env=environment,
        capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip


def test_only_its_own_environment_and_service_are_removed(tmp_path: Path) -> None:
    lmx = tmp_path / "place/env/bin/lmx"
    lmx.parent.mkdir(parents=True)
    lmx.write_text('#!/bin/sh\necho "called: $*"\n')
    lmx.chmod(0o755)
    done = run(tmp_path, "--uninstall")
    assert f"{tmp_path}/place/env is not an environment that install.sh made" in done.stderr
    assert done.returncode == 1
    assert lmx.exists()

    (tmp_path / "place/env/.lmx-install").touch()
    unit = tmp_path / ".config/systemd/user/lmx.service"
    unit.parent.mkdir(parents=True)
    unit.write_text("ExecStart=/opt/lmx up\n")
    done = run(tmp_path, "--uninstall")
    assert done.returncode == 0, done.stderr
    assert "called: stop" in done.stdout
    assert "called: service" not in done.stdout
    assert not lmx.exists()
