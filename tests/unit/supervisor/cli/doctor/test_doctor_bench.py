"""``doctor --bench``: what it measures, with processes that say what a device would."""

import plistlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lmx.supervisor.cli.doctor import device, examine, processes
from lmx.supervisor.cli.doctor import mac as launchd
from lmx.supervisor.cli.doctor.lines import Verdict
from lmx.supervisor.cli.doctor.system import System
from lmx.supervisor.decisions.memory_reading import MemoryReading
from lmx.supervisor.processes.exit_watch import ExitWatch
from tests.support.fakes.fake_machine import Mac, line_of

OK, NOTE, WARNING, BAD = Verdict


@pytest.mark.parametrize(
    ("after", "missing"),
    [
        ([(10, 90), (20, 80), (88, 12)], 0),
        ([(10, 90), (20, 80)], 80),
        # What is not wired has been taken by other programs.
        ([(10, 12)], 0),
    ],
)
def test_memory_that_comes_back_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, after: list[tuple[int, int]], missing: int
) -> None:
    """Available and wired, in turn; the last one stays."""
    readings = [MemoryReading(110, available, wired) for available, wired in after]
    monkeypatch.setattr(
        device, "read_memory", lambda: readings[0] if len(readings) == 1 else readings.pop(0)
    )
    monkeypatch.setattr(device, "_LOOK_S", 0.0)
    monkeypatch.setattr(device, "_BACK_S", 0.02 if missing else 60.0)
    assert device._until_back(MemoryReading(110, 100, 0), 100)[1] == missing


@pytest.mark.parametrize(
    ("said", "verdict", "words"),
    [
        ({"took": 3.04}, OK, "3.0 s"),
        ({"error": "[METAL] Command buffer execution failed: Caused GPU Timeout"}, NOTE, "Timeout"),
        (None, WARNING, "ended"),
    ],
)
def test_a_long_kernel_runs_or_fails_in_words(
    said: dict[str, Any] | None, verdict: Verdict, words: str
) -> None:
    line = device.judge_kernel("a kernel of 3 s", said)
    assert line.verdict is verdict
    assert words in line.measured
    assert bool(line.fix) is (verdict is not OK)


SAYS: dict[str, str] = {
    "good": """
import json, sys
json.loads(sys.stdin.readline())
print(json.dumps({"off": 0.01, "same": True}), flush=True)
for line in sys.stdin:
    print(json.dumps({"rate": 30.0}), flush=True)
""",
    "bad": """
import json, sys
sys.stdin.readline()
print(json.dumps({"off": 0.5, "same": False}), flush=True)
for number, line in enumerate(sys.stdin):
    print(json.dumps({"rate": 1.0 if number == 1 else 30.0}), flush=True)
""",
    "gone": "",
}


@pytest.mark.parametrize(
    ("says", "verdicts"),
    [("good", {OK}), ("bad", {WARNING, NOTE}), ("gone", {BAD})],
)
def test_two_that_decode_are_judged(
    monkeypatch: pytest.MonkeyPatch, says: str, verdicts: set[Verdict]
) -> None:
    monkeypatch.setattr(device, "_DECODE", SAYS[says])
    lines = device.decoding(64, 1, 0.0)
    assert {line.verdict for line in lines} == verdicts
    assert says == "gone" or [line.name for line in lines] == ["batch", "together"]


def test_the_programs_are_programs() -> None:
    for program in (device._HOLD, device._DECODE, device._KERNEL, launchd._PROGRAM):
        compile(program, "program", "exec")


class Agents(Mac):
    """A Mac whose launchd runs an agent at once."""

    def __init__(self, home: Path, **changes: Any) -> None:
        super().__init__(home, **changes)
        self.loaded: list[str] = []

    def run(self, *command: str, limit_s: float = 10.0) -> str | None:
        if command[1] == "bootout":
            self.loaded.remove(command[2])
            return ""
        assert command[:2] == ("/bin/launchctl", "bootstrap")
        if self.changes.get("none"):
            return None
        job = plistlib.loads(Path(command[3]).read_bytes())
        self.loaded.append(f"{command[2]}/{job['Label']}")
        if not self.changes.get("never"):
            subprocess.run(job["ProgramArguments"], check=True, timeout=180)
        return ""

    def text(self, path: Path, most_bytes: int) -> str:
        text = System.text(self, path, most_bytes)
        closed = self.changes.get("closed")
        return text if closed is None else text.replace(f'{closed}": true', f'{closed}": false')


@pytest.mark.parametrize(
    ("changes", "verdict", "words"),
    [
        ({}, OK, "it can"),
        ({"closed": "models"}, WARNING, "models"),
        ({"never": True}, WARNING, "did not start"),
        ({"none": True}, NOTE, "without a login"),
    ],
)
def test_an_agent_of_launchd_is_tried_and_thrown_away(
    tmp_path: Path, changes: dict[str, Any], verdict: Verdict, words: str
) -> None:
    (tmp_path / "models").mkdir()
    system = Agents(tmp_path, **changes)
    folders = [tmp_path, tmp_path / "models", tmp_path / "none"]
    line = launchd.check_launchd(system, folders, answer_s=0.0 if "never" in changes else 60.0)
    assert line.verdict is verdict
    assert words in line.measured
    assert system.loaded == []


def test_processes_are_seen_to_end_to_write_and_to_continue() -> None:
    lines = processes.try_processes()
    assert [line.name for line in lines] == ["exits", "stacks", "exec", "descriptors"]
    assert {line.verdict for line in lines} == {OK}, lines


def test_an_end_that_nobody_reports_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExitWatch, "watch", lambda *_: None)
    monkeypatch.setattr(processes, "_LIMIT_S", 0.05)
    assert processes.check_exits().verdict is BAD


def test_what_goes_wrong_with_processes_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_EXEC", "print('1 0')")
    monkeypatch.setattr(processes, "_OPEN", "print(7)")
    monkeypatch.setattr(processes, "_HANG", "print('ready')")
    lines = [processes.check_exec(), processes.check_descriptors(), processes.check_stacks()]
    assert {line.verdict for line in lines} == {WARNING}
    assert all(line.fix for line in lines)


@pytest.mark.soak
def test_the_bench_measures_this_machine() -> None:
    lines = [*device.held_memory(256, gpu=False), *device.decoding(256, 2, 0.2)]
    names = [line.name for line in lines]
    assert names == ["speed", "footprint", "counted", "back"] * 2 + ["batch", "together"]
    assert line_of(lines, "speed").measured.endswith("GFLOP/s")
    assert line_of(lines, "footprint").verdict is OK
    assert line_of(lines, "batch").verdict is OK
    if sys.platform != "darwin":
        assert examine.sleep_once().verdict is NOTE
