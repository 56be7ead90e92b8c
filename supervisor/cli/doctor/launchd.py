"""Tries as an agent of launchd whether macOS lets it read what lmx needs: from a terminal it all
works. The agent is thrown away at once."""

from __future__ import annotations

import json
import os
import plistlib
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lmx.supervisor.cli.doctor.lines import Line, Verdict
from lmx.supervisor.cli.doctor.system import System

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
    """Return what an agent could read. ``folders`` are those that lmx needs."""
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
        mend = "move the checkout out of Documents, Desktop and Downloads: its Python must start"
        return Line("launchd", _ASSUMPTION, "it did not start", Verdict.WARNING, mend)
    refused = sorted(folder for folder, read in json.loads(text).items() if not read)
    if refused:
        mend = "move them, e.g. to ~/models, or allow it in System Settings > Privacy & Security"
        measured = f"not {', '.join(refused)}"
        return Line("launchd", _ASSUMPTION, measured, Verdict.WARNING, mend)
    return Line("launchd", _ASSUMPTION, "it can", Verdict.OK)
