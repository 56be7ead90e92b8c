"""What ``doctor`` checks of a Mac only."""

import json
import os
import plistlib
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lmx.protocol.web_origins import is_loopback
from lmx.supervisor.cli.doctor.lines import Line, Verdict
from lmx.supervisor.cli.doctor.links import check_links
from lmx.supervisor.cli.doctor.system import System
from lmx.supervisor.config.schema import Config
from lmx.supervisor.decisions.ledger import budget_bytes, format_bytes
from lmx.supervisor.decisions.memory_reading import KernelPressure, MemoryReading
from lmx.supervisor.memory.working_set import LIMIT_NAME
from lmx.supervisor.state.home import Home

_FIRST_RELEASE: Final = 14
_WIRING_RELEASE: Final = 15
_BACKLOG: Final = 1024
_MONTH_S: Final = 30 * 86_400.0
_MOST_REPORT_BYTES: Final = 256 * 1024
_REPORTS: Final = Path("/Library/Logs/DiagnosticReports")
_NO_PANICS: Final = "none of the GPU's memory in a month"
_NO_KILLS: Final = "macOS has killed no Python in a month"
_BLOCKS_ALL: Final = 2
_USUAL_WIRED_BYTES: Final = 8 * 1024**3
"""A Mac without models has 2 to 5 GiB wired."""

_GUARDED: Final = ("Documents", "Desktop", "Downloads")
"""Folders of a user that macOS keeps from programs that launchd runs, without a word."""


def check_mac(
    system: System, home: Home, config: Config, folders: Sequence[Path], *, running: bool
) -> list[Line]:
    """Return the findings. ``folders`` are those that lmx needs."""
    reading, working_set = system.memory(), system.working_set()
    lines = [check_release(system.release(), system.machine())]
    if reading is not None and working_set is not None:
        limit_mb = system.sysctl(LIMIT_NAME) or 0
        lines.append(check_gpu(config, reading, working_set, limit_mb))
        left, available = system.sysctl("kern.memorystatus_level"), system.other_available_bytes()
        lines.append(check_pressure(reading, left, available))
        lines.append(check_wired(reading, running=running))
    lines.append(check_backlog(system.sysctl("kern.ipc.somaxconn")))
    battery = "'Battery Power'" in (system.run("/usr/bin/pmset", "-g", "batt") or "")
    lines.append(check_sleep(system.run("/usr/bin/pmset", "-g"), config, battery=battery))
    places = _kept_out(home)
    lines.append(check_backups(system.run("/usr/bin/tmutil", "isexcluded", *places), places))
    lines.append(check_firewall(_firewall(system), config))
    lines += check_links(system, config)
    lines += check_reports(system)
    lines.append(check_guarded(folders, Path(system.environment.get("HOME", "/"))))
    return lines


def check_release(release: str, machine: str) -> Line:
    """Judge macOS and the processor."""
    assumption, measured = "macOS 14 or newer on Apple Silicon", f"macOS {release}, {machine}"
    major = int(release.split(".")[0]) if release.split(".")[0].isdigit() else 0
    if machine != "arm64":
        fix = "use a Python for arm64: this is an Intel Mac, or a Python that Rosetta runs"
        return Line("macos", assumption, measured, Verdict.BAD, fix)
    if major < _FIRST_RELEASE:
        return Line("macos", assumption, measured, Verdict.BAD, "update macOS")
    if major < _WIRING_RELEASE:
        fix = "macOS 15 can wire memory: models beyond half of the memory are faster there"
        return Line("macos", assumption, measured, Verdict.NOTE, fix)
    return Line("macos", assumption, measured, Verdict.OK)


def check_gpu(config: Config, reading: MemoryReading, working_set: int, limit_mb: int) -> Line:
    """Say how much the GPU may have, and how much of it lmx uses."""
    total = reading.total_bytes
    budget = budget_bytes(config.memory, total, working_set)
    measured = (
        f"the GPU may have {format_bytes(working_set)} of {format_bytes(total)}, models "
        f"{format_bytes(budget)}"
    )
    if limit_mb:
        measured += f" ({LIMIT_NAME} is {limit_mb})"
    wished = config.memory.budget_bytes
    over = wished is not None and int(wished) > budget
    fix = f"sudo sysctl {LIMIT_NAME}=... raises it, until the Mac is started again" if over else ""
    return Line(
        "gpu",
        "the budget is within what the GPU may have",
        measured,
        Verdict.WARNING if over else Verdict.OK,
        fix,
    )


def check_pressure(reading: MemoryReading, left: int | None, other_bytes: int) -> Line:
    """Show the measures of a shortage side by side: lmx goes by the first one. ``left`` is how much
    the kernel says is left, in percent, ``other_bytes`` what psutil calls available."""
    level = reading.kernel_pressure
    measured = (
        f"{'unknown' if level is None else level.name.lower()}; {left}% left by the kernel's "
        f"count; Memory Used {format_bytes(reading.used_bytes)}, by another count "
        f"{format_bytes(reading.total_bytes - other_bytes)}"
    )
    short = level is not KernelPressure.NORMAL
    return Line(
        "pressure",
        "macOS says itself how short memory is",
        measured,
        Verdict.WARNING if short else Verdict.OK,
        "close other programs, or lower memory.budget_bytes" if short else "",
    )


def check_wired(reading: MemoryReading, *, running: bool) -> Line:
    """Judge whether memory of ended processes has stayed wired."""
    wired = reading.wired_bytes or 0
    leaked = not running and wired > max(_USUAL_WIRED_BYTES, reading.total_bytes // 6)
    return Line(
        "wired",
        "little, if no model is loaded",
        f"{format_bytes(wired)} {'while lmx runs' if running else 'while lmx does not run'}",
        Verdict.WARNING if leaked else Verdict.OK,
        "start the Mac again: memory of a program that was killed may have stayed wired"
        if leaked
        else "",
    )


def check_backlog(backlog: int | None) -> Line:
    """Judge how many connections may wait to be accepted."""
    if backlog is None or backlog >= _BACKLOG:
        return Line("backlog", f"{_BACKLOG} or more", str(backlog), Verdict.OK)
    return Line(
        "backlog",
        f"{_BACKLOG} or more new connections may wait",
        str(backlog),
        Verdict.NOTE,
        f"sudo sysctl kern.ipc.somaxconn={_BACKLOG}, then restart lmx: matters for bursts of "
        f"more than {backlog}",
    )


def check_sleep(output: str | None, config: Config, *, battery: bool = False) -> Line:
    """Judge whether the Mac goes to sleep by itself."""
    found = re.search(r"^\s*sleep\s+(\d+)", output or "", re.MULTILINE)
    prevent = config.server.prevent_sleep
    minutes = int(found.group(1)) if found else None
    measured = {None: "unknown", 0: "it does not sleep"}.get(minutes, f"after {minutes} minutes")
    measured += f"; server.prevent_sleep is {prevent}{', on battery' if battery else ''}"
    sleeps = minutes != 0 and prevent != "always"
    return Line(
        "sleep",
        "a server that others use stays awake",
        measured,
        Verdict.NOTE if sleeps else Verdict.OK,
        "sudo pmset -c sleep 0, or server.prevent_sleep: always" if sleeps else "",
    )


def check_backups(output: str | None, places: Sequence[str]) -> Line:
    """Judge whether Time Machine leaves out the folders ``places``, which can be fetched or
    computed again."""
    copied = (output or "").count("[Included]")
    measured = f"{copied} of lmx's folders are" if copied else "they are not"
    return Line(
        "backups",
        "models and caches are in no backup",
        "unknown" if output is None else measured,
        Verdict.NOTE if copied else Verdict.OK,
        f"tmutil addexclusion {shlex.join(places)}" if copied else "",
    )


def check_firewall(state: int | None, config: Config) -> Line:
    """Judge the application firewall. It asks once for each Python, and drops silently when nobody
    is logged in. In the state 2 it lets nobody in, whatever was allowed."""
    on = bool(state)
    others = not is_loopback(config.server.host) or any(model.hosts for model in config.models)
    measured = {None: "unknown", 0: "off", 2: "on, and blocks all"}.get(state, "on")
    if state == _BLOCKS_ALL and others:
        fix = "sudo /usr/libexec/ApplicationFirewall/socketfilterfw --setblockall off"
        return Line("firewall", "lets others in, if they are to be", measured, Verdict.WARNING, fix)
    return Line(
        "firewall", "lets others in, if they are to be", measured,
        Verdict.WARNING if on and others else Verdict.OK,
        "sudo /usr/libexec/ApplicationFirewall/socketfilterfw --unblockapp "
        + shlex.quote(os.path.realpath(sys.executable)) if on and others else "",
    )  # fmt: skip


def check_reports(system: System) -> list[Line]:
    """Look for kernel panics of the GPU's memory, and for kills by the system, in a month."""
    if system.refused(_REPORTS):
        measured, fix = "unknown: only administrators may look", f"sudo ls {_REPORTS}"
        return [
            Line("panics", _NO_PANICS, measured, Verdict.NOTE, fix),
            Line("killed", _NO_KILLS, measured, Verdict.NOTE, fix),
        ]
    panics = [
        path
        for path in system.files(_REPORTS, "*.panic", _MONTH_S)
        if "IOGPU" in system.text(path, _MOST_REPORT_BYTES)
    ]
    kills = [
        path
        for path in system.files(_REPORTS, "JetsamEvent*", _MONTH_S)
        if "python" in system.text(path, _MOST_REPORT_BYTES).lower()
    ]
    return [
        Line(
            "panics", _NO_PANICS, f"{len(panics)}",
            Verdict.WARNING if panics else Verdict.OK,
            "set memory.wire: never, and max_rows: 1 if they continue" if panics else "",
        ),
        Line(
            "killed", _NO_KILLS, f"{len(kills)} reports",
            Verdict.WARNING if kills else Verdict.OK,
            "lower memory.budget_bytes" if kills else "",
        ),
    ]  # fmt: skip


def check_guarded(folders: Sequence[Path], user: Path) -> Line:
    """Judge whether launchd's agents can read what lmx needs."""
    guarded = sorted(
        {
            str(folder)
            for folder in folders
            if folder.is_relative_to("/Volumes")
            or any(folder.is_relative_to(user / name) for name in _GUARDED)
        }
    )
    measured = ", ".join(guarded) or "none of lmx's folders is in one of them"
    return Line(
        "privacy",
        "not in Documents, Desktop, Downloads or /Volumes",
        measured,
        Verdict.WARNING if guarded else Verdict.OK,
        "move it, e.g. to ~/models and ~/lmx: macOS keeps these from programs that launchd runs"
        if guarded
        else "",
    )


def _kept_out(home: Home) -> list[str]:
    return [str(each) for each in (home.models, home.cache, home.temporary) if each.exists()]


def _firewall(system: System) -> int | None:
    output = system.run("/usr/libexec/ApplicationFirewall/socketfilterfw", "--getglobalstate")
    found = re.search(r"State = (\d)", output or "")
    return int(found.group(1)) if found else None


_ANSWER_S: Final = 10.0
_LOOK_S: Final = 0.1
_MOST_BYTES: Final = 64 * 1024
_ASSUMPTION: Final = "an agent can read lmx's folders"

_PROGRAM: Final = """
import json, os, sys
found = {}
for folder in sys.argv[2:]:
    try:
        os.listdir(folder)
    except PermissionError:
        found[folder] = False
    except OSError:
        pass
    else:
        found[folder] = True
with open(sys.argv[1] + ".new", "w") as file:
    json.dump(found, file)
os.replace(sys.argv[1] + ".new", sys.argv[1])
"""


def check_launchd(system: System, folders: Sequence[Path], answer_s: float = _ANSWER_S) -> Line:
    """Return what an agent of launchd can read, where a terminal can read all of it. The agent is
    removed at once. ``folders`` are those that lmx needs."""
    label = f"com.lmx.doctor.{os.getpid()}"
    domain = f"gui/{os.getuid()}"
    with tempfile.TemporaryDirectory() as scratch:
        answer, plist = Path(scratch) / "answer.json", Path(scratch) / f"{label}.plist"
        arguments = [sys.executable, "-P", "-c", _PROGRAM, str(answer), *map(str, folders)]
        plist.write_bytes(
            plistlib.dumps({"Label": label, "ProgramArguments": arguments, "RunAtLoad": True})
        )
        if system.run("/bin/launchctl", "bootstrap", domain, str(plist)) is None:
            measured = "none can be started here, as over ssh without a login at the screen"
            return Line("launchd", _ASSUMPTION, measured, Verdict.NOTE, "use a LaunchDaemon")
        try:
            deadline_s = time.monotonic() + answer_s
            while not (text := system.text(answer, _MOST_BYTES)):
                if time.monotonic() >= deadline_s:
                    break
                time.sleep(_LOOK_S)
        finally:
            system.run("/bin/launchctl", "bootout", f"{domain}/{label}")
    if not text:
        fix = "move the checkout out of Documents, Desktop and Downloads: its Python must start"
        return Line("launchd", _ASSUMPTION, "it did not start", Verdict.WARNING, fix)
    refused = sorted(folder for folder, read in json.loads(text).items() if not read)
    if refused:
        fix = "move them, e.g. to ~/models, or allow it in System Settings > Privacy & Security"
        measured = f"not {', '.join(refused)}"
        return Line("launchd", _ASSUMPTION, measured, Verdict.WARNING, fix)
    return Line("launchd", _ASSUMPTION, "it can", Verdict.OK)
