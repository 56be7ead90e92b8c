"""``doctor``: each check on good and on bad machines, which are made of answers."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lmx.supervisor.cli.doctor import bench, mac, machine, setup
from lmx.supervisor.cli.doctor.examine import examine
from lmx.supervisor.cli.doctor.lines import Line, Verdict, as_json, as_text, healthy
from lmx.supervisor.cli.doctor.system import System
from lmx.supervisor.cli.main import main
from lmx.supervisor.config.schema import Config
from lmx.supervisor.decisions.memory_reading import KernelPressure, MemoryReading
from lmx.supervisor.state.home import Home

GIB = 1024**3
OK, NOTE, WARNING, BAD = Verdict
PMSET = "Active Profiles:\nBattery Power\t-1\nAC Power\t-1*\nCurrently in use:\n sleep\t\t10\n"
SECRET = "a-very-secret-key-of-32-characters"


class Mac(System):
    """A Mac on which all is well."""

    platform = "darwin"

    def __init__(self, home: Path, **changes: Any) -> None:
        self.home = home
        self.changes = changes
        self.asked: list[tuple[str, ...]] = []

    @property
    def environment(self) -> Mapping[str, str]:
        return {"HOME": str(self.home), **self.changes.get("environment", {})}

    def python(self) -> tuple[int, int, int]:
        return 3, 13, 1

    def machine(self) -> str:
        return "arm64"

    def release(self) -> str:
        return "26.1"

    def sysctl(self, name: str) -> int | None:
        return {"kern.ipc.somaxconn": 1024, "iogpu.wired_limit_mb": 0}.get(name)

    def run(self, *command: str, limit_s: float = 10.0) -> str | None:
        self.asked.append(command)
        return {
            "/usr/bin/pmset": PMSET.replace("10", "0"),
            "/usr/bin/id": "501\n",
            "/usr/libexec/ApplicationFirewall/socketfilterfw": "Firewall is off. (State = 0)",
        }.get(command[0])

    def requirements(self) -> Sequence[str]:
        return ["mlx==0.32.4; sys_platform == 'darwin'", "mlx[cpu]==9; sys_platform == 'linux'"]

    def version(self, package: str) -> str | None:
        return {"mlx": "0.32.4", "mlx-vlm": "0.7.10", "lmx": "0.1.0"}.get(package)

    def free_bytes(self, folder: Path) -> int | None:
        return 100 * GIB

    def port_taken(self, host: str, port: int) -> bool:
        return False

    def memory(self) -> MemoryReading | None:
        return MemoryReading(64 * GIB, 40 * GIB, 3 * GIB, kernel_pressure=KernelPressure.NORMAL)

    def working_set(self) -> int | None:
        return 48 * GIB

    def files(self, folder: Path, pattern: str, newer_than_s: float) -> list[Path]:
        found: list[Path] = self.changes.get(pattern, [])
        return found

    def text(self, path: Path, most_bytes: int) -> str:
        return "panic(cpu 4): completeMemory() prepare count underflow @IOGPUMemory.cpp:550"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    place = Home(tmp_path / "h")
    place.prepare()
    return place


def found(lines: Sequence[Line], name: str) -> Line:
    return next(line for line in lines if line.name == name)


def test_a_mac_on_which_all_is_well(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mac, "__file__", "/opt/lmx/supervisor/cli/doctor/mac.py")
    title, lines = examine(Mac(home.path.parent), home, None)
    assert title == "lmx 0.1.0, macOS 26.1 arm64, Python 3.13.1"
    wrong = [line for line in lines if line.verdict is not OK and line.name != "service"]
    assert wrong == []
    assert healthy(lines)
    assert "models 47.0 GiB" in found(lines, "gpu").measured


def test_what_is_wrong_is_said_with_what_mends_it(home: Home) -> None:
    config = Config.model_validate({
        "server": {"host": "0.0.0.0", "allow_lan_without_key": True},
        "memory": {"budget_bytes": 60 * GIB},
    })  # fmt: skip
    reading = MemoryReading(64 * GIB, 40 * GIB, 22 * GIB, kernel_pressure=KernelPressure.WARNING)
    lines = {
        "python": machine.check_python((3, 15, 0)),
        "blas": machine.check_blas(None),
        "files": machine.check_files(256, "darwin"),
        "memory": machine.check_memory(reading),
        "macos": mac.check_release("13.6", "arm64"),
        "rosetta": mac.check_release("26.1", "x86_64"),
        "gpu": mac.check_gpu(config, reading, 48 * GIB, 0),
        "wired": mac.check_wired(reading, running=False),
        "backlog": mac.check_backlog(128),
        "sleep": mac.check_sleep(PMSET, config),
        "firewall": mac.check_firewall(1, config),
        "keys": setup.check_keys(config),
        "port": setup.check_port(config, running=False, taken=True),
        "processes": setup.check_processes(running=False, left=[7, 8]),
        "privacy": mac.check_guarded([Path("/Users/me/Downloads/m")], Path("/Users/me")),
    }
    verdicts = {name: line.verdict for name, line in lines.items()}
    assert verdicts == {
        "python": BAD, "blas": WARNING, "files": WARNING, "memory": WARNING, "macos": BAD,
        "rosetta": BAD, "gpu": WARNING, "wired": WARNING, "backlog": NOTE, "sleep": NOTE,
        "firewall": WARNING, "keys": WARNING, "port": BAD, "processes": WARNING,
        "privacy": WARNING,
    }  # fmt: skip
    assert all(line.mend for line in lines.values())
    assert not healthy(list(lines.values()))
    assert mac.check_release("14.8", "arm64").verdict is NOTE
    assert mac.check_wired(reading, running=True).verdict is OK
    assert mac.check_guarded([Path("/Users/me/models")], Path("/Users/me")).verdict is OK


def test_panics_and_kills_of_the_last_month(home: Home) -> None:
    system = Mac(home.path, **{"*.panic": [Path("/a.panic")]})
    panics, kills = mac.check_reports(system)
    assert (panics.verdict, kills.verdict) == (WARNING, OK)
    assert "memory.wire: never" in panics.mend


def test_packages_of_another_version(home: Home) -> None:
    assert machine.pinned(Mac(home.path).requirements(), "linux") == [("mlx", "9")]
    line = machine.check_packages(Linux(home.path))
    assert line.verdict is BAD
    assert "mlx 0.32.4 instead of 9" in line.measured


class Linux(Mac):
    platform = "linux"

    def library(self, name: str) -> str | None:
        return "libopenblas.so.0"


def test_on_linux_nothing_of_a_mac_is_asked(home: Home) -> None:
    system = Linux(home.path)
    title, lines = examine(system, home, None)
    assert title.startswith("lmx 0.1.0, Linux")
    names = {line.name for line in lines}
    assert {"blas", "files", "disk", "port", "processes", "config", "models"} <= names
    assert names.isdisjoint({"gpu", "macos", "wired", "firewall"})
    assert {command[0] for command in system.asked} == {"systemctl"}


def test_a_configuration_that_is_not_valid_is_not_shown(home: Home, tmp_path: Path) -> None:
    path = tmp_path / "lmx.yaml"
    path.write_text(f"security: {{api_keys: [{{key: {SECRET}, nmae: x}}]}}\n")
    _, lines = examine(Linux(home.path), home, path)
    assert found(lines, "config").verdict is BAD
    assert SECRET not in as_text("t", lines, "/root")


def test_a_folder_that_is_no_model_is_named(home: Home, tmp_path: Path) -> None:
    path = tmp_path / "lmx.yaml"
    path.write_text(f"models: [{{id: m, source: {tmp_path / 'none'}}}]\n")
    _, lines = examine(Linux(home.path), home, path)
    told = [line for line in lines if line.name == "models" and line.verdict is BAD]
    assert any("m can't be loaded" in line.measured for line in told)


def test_a_port_of_another_program_is_seen() -> None:
    system = System()
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert system.port_taken("127.0.0.1", port)
    assert not system.port_taken("127.0.0.1", port)


def test_a_folder_that_the_system_keeps_closed(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o000)
    assert System().refused(closed) is (os.geteuid() != 0)
    assert not System().refused(tmp_path / "none")
    assert System().run("/no/such/program") is None


def test_the_report_has_no_name_of_a_user() -> None:
    lines = [Line("disk", "room", "5 GiB free at /Users/mary/.lmx", BAD, "free some")]
    text = as_text("lmx", lines, "/Users/mary")
    assert "mary" not in text
    assert "-> free some" in text
    assert "1 bad" in text
    told = as_json("lmx", lines, "/Users/mary")
    assert told["healthy"] is False
    assert told["checks"][0]["measured"] == "5 GiB free at ~/.lmx"


def test_the_command_says_what_is_bad_by_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMX_HOME", str(tmp_path / "h"))
    monkeypatch.setenv("LMX_SERVER_PORT", "0")
    (tmp_path / "bad.yaml").write_text("server: {nonsense: 1}\n")
    good = CliRunner().invoke(main, ["doctor", "--json"])
    told = json.loads(good.stdout)
    assert good.exit_code == (0 if told["healthy"] else 1)
    assert {line["name"] for line in told["checks"]} >= {"python", "packages", "port", "keys"}
    bad = CliRunner().invoke(main, ["doctor", "--config", str(tmp_path / "bad.yaml")])
    assert bad.exit_code == 1
    assert "BAD  config" in bad.stdout


def test_memory_that_comes_back_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = [MemoryReading(100, free) for free in (10, 20, 90)]
    monkeypatch.setattr(bench, "read_memory", lambda: readings.pop(0))
    monkeypatch.setattr(bench, "_LOOK_S", 0.0)
    assert bench._until_back(100, 10)[1]
    assert readings == []


@pytest.mark.soak
def test_the_bench_measures_this_machine() -> None:
    lines = bench.bench(gpu=False)
    names = [line.name for line in lines]
    assert names == ["speed", "footprint", "back"] * 2
    assert found(lines, "speed").measured.endswith("GFLOP/s")
    assert found(lines, "footprint").verdict is OK
    if sys.platform != "darwin":
        assert bench.sleep_once().verdict is NOTE
