"""The log files in the folder of the logs: their names, and how they are opened."""

import hashlib
import os
import re
from pathlib import Path


def append_to(path: Path) -> int:
    """Return a descriptor that appends to a file, and make the file if it is not there. Only its
    owner can read it, whatever the umask: logs quote what people sent. Raises ``OSError``."""
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)


def worker_log(folder: Path, model_id: str) -> Path:
    """Return the log file of a model's workers. They write to it one after the other."""
    return process_log(folder, f"worker-{slug(model_id)}")


def process_log(folder: Path, process: str) -> Path:
    """Return the log file of a kind of process that exists once: ``router``, ``supervisor``."""
    return folder / f"{process}.log"


def rotated(path: Path, number: int) -> Path:
    """Return the path of a log file after it was rotated ``number`` times."""
    return path.with_name(f"{path.name}.{number}")


def slug(model_id: str) -> str:
    """Return a file name for a model id that no other id has, whatever the file system does with
    case and length. An id that had to be changed gets a part of its hash."""
    name = re.sub(r"[^a-z0-9.+@-]", "_", model_id.lower())[:80]
    if name == model_id:
        return name
    return f"{name}.{hashlib.sha256(model_id.encode()).hexdigest()[:8]}"
