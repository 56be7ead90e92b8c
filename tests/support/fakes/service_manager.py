"""``systemctl``, ``loginctl``, ``journalctl`` and ``launchctl`` for tests: they start and end what
the unit or the plist says, and keep a log of how they were called.

``put_on_path`` writes the programs into a folder. They keep in it ``calls`` and the pid of the
service, and obey these files: ``no-session`` (every call fails), ``linger``.
"""

import configparser
import os
import plistlib
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

NAMES = ("systemctl", "loginctl", "journalctl", "launchctl")
GONE_S = 90.0


def put_on_path(folder: Path) -> str:
    """Return a PATH on which the programs come first."""
    folder.mkdir()
    for name in NAMES:
        (folder / name).write_text(f"#!{sys.executable} -I\n" + Path(__file__).read_text())
        (folder / name).chmod(0o755)
    return f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin"


def calls(folder: Path) -> list[str]:
    """Return how the programs were called so far, and forget it."""
    log = folder / "calls"
    found = log.read_text().splitlines() if log.exists() else []
    log.unlink(missing_ok=True)
    return found


def systemd_service(path: Path) -> tuple[list[str], dict[str, str]]:
    """Return what a unit starts, and with which variables, as systemd reads them."""
    environment, command = {}, list[str]()
    for line in path.read_text().splitlines():
        key, _, value = line.partition("=")
        if key == "Environment":
            (word,) = shlex.split(value)
            name, _, text = word.partition("=")
            environment[name] = text.replace("%%", "%")
        elif key == "ExecStart":
            command = [word.replace("%%", "%") for word in shlex.split(value)]
    configparser.ConfigParser(interpolation=None, strict=False).read_string(path.read_text())
    return command, environment


def launchd_service(path: Path) -> tuple[list[str], dict[str, str]]:
    """Return what a plist starts, and with which variables."""
    job = plistlib.loads(path.read_bytes())
    return job["ProgramArguments"], job["EnvironmentVariables"]


def running(pid_file: Path) -> int:
    """Return the pid of the service, 0 if it does not run."""
    try:
        pid = int(pid_file.read_text())
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, ValueError):
        return 0
    return 0 if state in "ZX" else pid


def start(pid_file: Path, service: tuple[list[str], dict[str, str]]) -> None:
    if not running(pid_file):
        command, environment = service
        own = {"HOME": os.environ["HOME"]} | environment
        child = subprocess.Popen(
            command, env=own, start_new_session=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        pid_file.write_text(str(child.pid))


def stop(pid_file: Path) -> None:
    if pid := running(pid_file):
        os.kill(pid, signal.SIGTERM)
        end_s = time.monotonic() + GONE_S
        while running(pid_file) and time.monotonic() < end_s:
            time.sleep(0.05)
    pid_file.unlink(missing_ok=True)


def systemctl(folder: Path, words: list[str]) -> int:
    pid_file = folder / "pid"
    unit = Path(os.environ["HOME"], ".config/systemd/user/lmx.service")
    link = unit.parent / "default.target.wants" / unit.name
    verb = next(word for word in words if not word.startswith("-"))
    if verb == "enable":
        link.parent.mkdir(exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(unit)
    if verb in ("restart", "disable"):
        stop(pid_file)
    if verb == "disable":
        link.unlink(missing_ok=True)
    if verb in ("enable", "restart"):
        start(pid_file, systemd_service(unit))
    if verb == "show":
        print(running(pid_file))
    return 0


def launchctl(folder: Path, words: list[str]) -> int:
    pid_file, loaded = folder / "pid", folder / "loaded"
    if words[0] == "print" and words[1].endswith("com.lmx.supervisor"):
        pid = running(pid_file)
        print(f"state = running\n\tpid = {pid}" if pid else "state = not running")
        return 0 if loaded.exists() else 113
    if words[0] == "bootstrap":
        if loaded.exists():
            return 37
        loaded.touch()
        start(pid_file, launchd_service(Path(words[2])))
    if words[0] == "bootout":
        stop(pid_file)
        loaded.unlink(missing_ok=True)
    return 0


def main() -> int:
    folder, name = Path(sys.argv[0]).parent, Path(sys.argv[0]).name
    words = sys.argv[1:]
    with (folder / "calls").open("a") as log:
        log.write(shlex.join([name, *words]) + "\n")
    if (folder / "no-session").exists():
        print("Failed to connect to bus: No medium found", file=sys.stderr)
        return 1
    if name == "loginctl":
        print("yes" if (folder / "linger").exists() else "no")
    if name == "journalctl":
        print("what the service printed")
    act = {"systemctl": systemctl, "launchctl": launchctl}.get(name)
    return 0 if act is None else act(folder, words)


if __name__ == "__main__":
    sys.exit(main())
