"""A macmon that says what a test wants: a program for a folder on the PATH."""

import sys
from pathlib import Path

_LINES = """
import json, time
from datetime import UTC, datetime
watts = {"cpu_power": 2.5, "gpu_power": 15.0, "ane_power": 0.5, "ram_power": 2.0, "sys_power": 40.0}
while True:
    print(json.dumps({"timestamp": datetime.now(UTC).isoformat(), **watts}), flush=True)
    time.sleep(0.2)
"""
WATTS = 20.0
"""What the usual one says that the chip takes."""


def fake_macmon(folder: Path, code: str = _LINES) -> Path:
    """Write the program into a folder, and return its path."""
    program = folder / "macmon"
    program.write_text(f"#!{sys.executable} -IS\n{code}")
    program.chmod(0o755)
    return program
