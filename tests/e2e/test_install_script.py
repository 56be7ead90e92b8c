"""A fake home from deploy/install.sh over a service, an upgrade, a backup and a restore to the last
file: nothing is left. By uv and by pip; minutes, and a gigabyte each: ``make installs``."""

import json
import os
import plistlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.test_install import tools, wheel  # noqa: F401  fixtures
from tests.support.rigs.user_home import UserHome

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = str(ROOT / "deploy" / "install.sh")
INSTALL_S = 1200
UNIT = ".config/systemd/user/lmx.service"


@pytest.mark.parametrize("by", ["uv", "pip"])
def test_nothing_is_left(by: str, wheel: Path, tools: Path, tmp_path: Path) -> None:  # noqa: F811
    user = UserHome(tmp_path, str(tmp_path / "a home/.local/bin/lmx"))
    (user.programs / "python3.12").symlink_to(sys.executable)
    if by == "uv":
        (user.programs / "uv").symlink_to(tools / "uv")
    # Where packages come from is this machine's; their caches are not the script's.
    for name, value in os.environ.items():
        if name.startswith(("PIP_", "UV_", "SSL_", "http", "HTTP")):
            user.environment[name] = value
    user.environment |= {"PIP_NO_CACHE_DIR": "1", "UV_CACHE_DIR": str(tmp_path / "uv-cache")}
    try:
        lives_and_goes(user, wheel, by)
    finally:
        user.end()


def lives_and_goes(user: UserHome, wheel: Path, by: str) -> None:  # noqa: F811
    said = user.run("sh", SCRIPT, "--from", str(wheel), limit_s=INSTALL_S)
    assert f"Installed lmx, version 0.1.0: {user.program}" in said
    assert "is not on your PATH" in said
    assert (".local/share/lmx/env/bin/uv" in user.files()) is False
    size = sum(path.stat().st_size for path in user.path.rglob("*") if path.is_file())
    print(f"\ninstall.sh by {by}: {size / 1e6:.0f} MB")
    assert "lmx service install" not in user.lmx("service", "install", "--dry-run").split("\n")[0]

    user.configure()
    user.lmx("service", "install")
    unit = user.path / UNIT
    assert f'ExecStart="{user.program}" up --detached' in unit.read_text()
    verified(unit)
    as_plist(user)

    # An upgrade under a service that runs.
    before = json.loads(user.lmx("status", "--json"))["supervisor"]
    said = user.run("sh", SCRIPT, "--from", str(wheel), limit_s=INSTALL_S)
    assert "lmx restart --supervisor" in said
    user.lmx("restart", "--supervisor")
    after = json.loads(user.lmx("status", "--json"))["supervisor"]
    assert (before["pid"], before["epoch"]) != (after["pid"], after["epoch"])
    assert "it runs (pid " in user.lmx("service", "status")

    archive = user.path / "kept.zip"
    user.lmx("backup", str(archive))
    user.lmx("service", "uninstall")
    shutil.rmtree(user.lmx_home)
    user.lmx("restore", str(archive))
    user.lmx("service", "install")
    archive.unlink()

    # What the script says of uninstalling, and what docs/start/install.md does then.
    said = user.run("sh", SCRIPT, "--uninstall", limit_s=INSTALL_S)
    assert str(user.lmx_home) in said
    assert user.processes() == []
    shutil.rmtree(user.lmx_home)
    shutil.rmtree(user.path / ".cache/lmx", ignore_errors=True)
    left = sorted(str(path.relative_to(user.path)) for path in user.path.rglob("*"))
    assert left == [".local", ".local/bin", ".local/share"], left


def verified(unit: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        return
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert [line for line in done.stderr.splitlines() if str(unit) in line] == []


def as_plist(user: UserHome) -> None:
    """What the installed lmx would write on a Mac is a plist of what runs here."""
    code = (
        "from lmx.supervisor.cli.main import main; from lmx.supervisor.cli.service import changes;"
        "changes.PLATFORM = 'darwin'; main(['service', 'install', '--dry-run'])"
    )
    said = user.run(str(Path(user.program).resolve().with_name("python")), "-c", code)
    _, start, rest = said.partition("<?xml")
    text, _, _ = rest.partition("would run:")
    job = plistlib.loads((start + text).strip().encode())
    assert job["ProgramArguments"][1:] == ["up", "--detached"]
    assert job["EnvironmentVariables"]["LMX_HOME"] == str(user.lmx_home)
