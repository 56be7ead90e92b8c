"""What deploy/install.sh leaves alone: environments and services that are not its own."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "deploy" / "install.sh"


def run(
    home: Path, *words: str, path: str = os.environ["PATH"]
) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": path,
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


@pytest.mark.parametrize("ensures", [True, False])
def test_an_environment_of_uv_is_upgraded_where_uv_is_gone(tmp_path: Path, ensures: bool) -> None:
    """It has no pip. A Python without ensurepip, as Debian's, can't get one."""
    python = tmp_path / "place/env/bin/python"
    python.parent.mkdir(parents=True)
    (tmp_path / "place/env/.lmx-install").touch()
    python.write_text(
        '#!/bin/sh\ncase "$2" in\n'
        f"  ensurepip) {'touch has-pip' if ensures else 'exit 1'} ;;\n"
        '  pip) [ -e has-pip ] || exit 1; echo "called: $*" ;;\n'
        "esac\n"
    )
    python.chmod(0o755)
    (tmp_path / "python3.13").write_text("#!/bin/sh\n")
    (tmp_path / "python3.13").chmod(0o755)
    done = run(tmp_path, "--from", "lmx", path=f"{tmp_path}:/usr/bin:/bin")
    assert ("called: -m pip install" in done.stdout) is ensures
    assert ("has no pip: put uv on your PATH" in done.stderr) is not ensures
    assert python.exists()
