"""What deploy/install.sh leaves alone: environments and services that are not its own."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.rigs.rig import wait_until

SCRIPT = Path(__file__).resolve().parents[2] / "deploy" / "install.sh"


def run(
    home: Path, *words: str, path: str = os.environ["PATH"], script: Path = SCRIPT
) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": path,
        "HOME": str(home),
        "LMX_INSTALL_DIR": "place",
        "LMX_BIN_DIR": "bin",
    }
    return subprocess.run(
        ["sh", script, *words], cwd=home, env=environment,
        capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip


def test_a_script_in_no_checkout_installs_nothing_of_its_own_choice(tmp_path: Path) -> None:
    """A package index may have another program of that name."""
    alone = tmp_path / "install.sh"
    alone.write_bytes(SCRIPT.read_bytes())
    done = run(tmp_path, script=alone)
    assert (done.returncode, "--from SOURCE" in done.stderr) == (1, True), done
    assert not (tmp_path / "place").exists()


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


def test_an_lmx_whose_python_is_gone_is_removed(tmp_path: Path) -> None:
    lmx = tmp_path / "place/env/bin/lmx"
    lmx.parent.mkdir(parents=True)
    lmx.write_text("#!/no/such/python\n")
    lmx.chmod(0o755)
    (tmp_path / "place/env/.lmx-install").touch()
    unit = tmp_path / ".config/systemd/user/lmx.service"
    unit.parent.mkdir(parents=True)
    unit.write_text(f"ExecStart={lmx} up\n")
    done = run(tmp_path, "--uninstall")
    assert (done.returncode, f"{unit} starts this lmx" in done.stderr) == (1, True), done
    unit.unlink()
    done = run(tmp_path, "--uninstall")
    assert (done.returncode, "Removed lmx from" in done.stdout) == (0, True), done
    assert not lmx.exists()


def python_that(tmp_path: Path, makes: str) -> str:
    """Return a PATH with a Python whose module venv does what a script says."""
    python = tmp_path / "python3.13"
    python.write_text(f'#!/bin/sh\n[ "$2" != venv ] && exit 0\n{makes}\n')
    python.chmod(0o755)
    return f"{tmp_path}:/usr/bin:/bin"


def test_an_environment_whose_python_is_gone_is_made_again(tmp_path: Path) -> None:
    python = tmp_path / "place/env/bin/python"
    python.parent.mkdir(parents=True)
    python.symlink_to("/no/such/python")
    (tmp_path / "place/env/.lmx-install").touch()
    path = python_that(
        tmp_path,
        '[ ! -e "$3" ] || exit 1\nmkdir -p "$3/bin"\n'
        'printf \'#!/bin/sh\necho "called: $*"; exit 1\n\' > "$3/bin/python"\n'
        'chmod +x "$3/bin/python"',
    )
    done = run(tmp_path, "--from", "lmx", path=path)
    assert "called: -m pip install" in done.stdout, done
    assert "has no module venv" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_installation_that_is_interrupted_leaves_nothing(
    tmp_path: Path, number: signal.Signals
) -> None:
    path = python_that(tmp_path, 'mkdir -p "$3"; : > ready; exec sleep 300')
    # A shell that starts the tests in the background ignores SIGINT, and nohup SIGHUP.
    heeds = f"import os, signal, sys; signal.signal({int(number)}, signal.SIG_DFL)"
    script = [
        sys.executable,
        "-c",
        f"{heeds}; os.execv('/bin/sh', sys.argv[1:])",
        "sh",
        str(SCRIPT),
    ]
    variables = {"HOME": str(tmp_path), "LMX_INSTALL_DIR": "place", "PATH": path}
    with subprocess.Popen(
        [*script, "--from", "lmx"], cwd=tmp_path, env=variables, start_new_session=True
    ) as process:
        wait_until((tmp_path / "ready").exists, "the environment is being made")
        os.killpg(process.pid, number)
        assert process.wait(90) != 0
    assert not (tmp_path / "place").exists()


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
