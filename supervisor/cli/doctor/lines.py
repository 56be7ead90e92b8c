"""A finding of ``doctor``, and how findings are shown. Pure.

The text is made to be pasted where others can read it: it has no keys, no prompts, and the home of
the user is written as ``~``.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final, Literal

INSTALL_AGAIN: Final = "install lmx again, in the way that it was installed"


class Verdict(StrEnum):
    """What follows from a measurement."""

    OK = "ok"
    NOTE = "note"
    """Nothing is wrong, and it is worth knowing."""
    WARNING = "warning"
    """lmx works, and could work better or fail later."""
    BAD = "bad"
    """Something does not work."""


Name = Literal[
    # Of every machine, then of this installation.
    "python", "packages", "blas", "files", "memory", "disk", "energy",
    "sockets", "config", "processes", "keys", "port", "mdns", "ranks", "models",
    "service",
    # Of a Mac.
    "macos", "gpu", "pressure", "wired", "backlog", "sleep", "backups", "firewall", "rdma",
    "thunderbolt", "panics", "killed", "privacy",
    # With --bench and --sleep.
    "exits", "stacks", "exec", "descriptors", "launchd", "speed", "footprint", "counted", "back",
    "pause", "batch", "together", "kernel", "bench", "clock",
]  # fmt: skip
"""What is checked. ``docs/start/doctor.md`` has a row for each."""


@dataclass(frozen=True, slots=True)
class Line:
    """One assumption, checked."""

    name: Name
    """One word, always the same."""
    assumption: str
    """What lmx needs."""
    measured: str
    verdict: Verdict
    fix: str = ""
    """The command that fixes it, or what to do; empty if there is nothing to fix."""


_MARKS: Final = {
    Verdict.OK: "ok",
    Verdict.NOTE: "note",
    Verdict.WARNING: "WARN",
    Verdict.BAD: "BAD",
}


def healthy(lines: Sequence[Line]) -> bool:
    """Return whether nothing is broken."""
    return all(line.verdict is not Verdict.BAD for line in lines)


def as_text(title: str, lines: Sequence[Line], user_home: str) -> str:
    """Return the report for people."""
    width = max((len(line.name) for line in lines), default=0)
    rows = [title]
    for line in lines:
        rows.append(
            f"{_MARKS[line.verdict]:<5}{line.name:<{width}}  {line.measured} ({line.assumption})"
        )
        if line.fix:
            rows.append(f"{'':<{width + 7}}-> {line.fix}")
    bad, warnings = (
        sum(line.verdict is verdict for line in lines) for verdict in (Verdict.BAD, Verdict.WARNING)
    )
    rows.append(f"{len(lines)} checks: {bad} bad, {warnings} warnings")
    return private("\n".join(rows), user_home)


def as_json(title: str, lines: Sequence[Line], user_home: str) -> dict[str, Any]:
    """Return the report for programs. Its shape is in ``docs/start/doctor.md``: keys and names are
    added to it, and none is changed or removed."""
    found = [
        {name: private(str(value), user_home) for name, value in asdict(line).items()}
        for line in lines
    ]
    return {"system": title, "healthy": healthy(lines), "checks": found}


def private(text: str, user_home: str) -> str:
    """Return the text without the name of the user's folder."""
    return text.replace(user_home, "~") if len(user_home) > 1 else text
