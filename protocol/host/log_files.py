"""Where in the folder of the logs each process logs. Names only."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path


def worker_log(folder: Path, model_id: str) -> Path:
    """Return the log file of a model's workers; one after the other write to it."""
    return process_log(folder, f"worker-{slug(model_id)}")


def process_log(folder: Path, process: str) -> Path:
    """Return the log file of a process that there is one of: ``router``, ``supervisor``."""
    return folder / f"{process}.log"


def rotated(path: Path, number: int) -> Path:
    """Return where a log file is after it was rotated ``number`` times."""
    return path.with_name(f"{path.name}.{number}")


def slug(model_id: str) -> str:
    """Return a model id as a file name that no other id has, whatever the file system thinks
    of case and length: one that had to be changed gets a piece of its hash."""
    name = re.sub(r"[^a-z0-9.+@-]", "_", model_id.lower())[:80]
    if name == model_id:
        return name
    return f"{name}.{hashlib.sha256(model_id.encode()).hexdigest()[:8]}"
