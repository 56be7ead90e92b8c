"""What launchd and systemd are given to run lmx: the text of a plist, and of a unit file. This
module is pure."""

import math
import plistlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

LABEL: Final = "com.lmx.supervisor"
"""The name of the service in launchd."""
UNIT: Final = "lmx.service"
"""The name of the service in systemd."""

_SLACK_S: Final = 15.0
_SHORTEST_STOP_S: Final = 60

_KEPT: Final = (
    "LMX_CONFIG", "LMX_CACHE_DIR", "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE",
    "HUGGINGFACE_HUB_CACHE", "HF_ENDPOINT",
)  # fmt: skip
"""Where files are. A service without these would look for its models elsewhere."""
_PROGRAM_FOLDERS: Final = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin")
_MAC_PROGRAM_FOLDERS: Final = ("/opt/homebrew/bin", *_PROGRAM_FOLDERS)
WRITTEN_BY: Final = "Written by `lmx service install`, which writes it again after an upgrade."


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """What is filled into a template."""

    program: str
    """The absolute path of ``lmx``."""
    user_home: str
    """The home folder of the user that lmx runs as."""
    user: str | None
    """That user's name, if the service is one of the system; None for a service of the user's own
    session."""
    environment: Mapping[str, str]
    """All variables that lmx gets."""
    stop_s: int
    """Seconds from SIGTERM to SIGKILL."""


def service_environment(
    environment: Mapping[str, str], lmx_home: str, program_folder: str, *, mac: bool
) -> dict[str, str]:
    """Return the variables of a service that is installed from a shell with ``environment``: where
    files are, and a PATH that does not depend on the shell. Secrets are not among them."""
    kept = {name: environment[name] for name in _KEPT if environment.get(name)}
    others = _MAC_PROGRAM_FOLDERS if mac else _PROGRAM_FOLDERS
    folders = dict.fromkeys([program_folder, *others])
    return {"LMX_HOME": lmx_home, "PATH": ":".join(folders), **kept}


def left_out(environment: Mapping[str, str]) -> list[str]:
    """Return the variables of a shell that count for an lmx that is started there, and that a
    service does not get."""
    known = {"LMX_HOME", *_KEPT}
    return sorted(
        name
        for name, value in environment.items()
        if value and (name.startswith("LMX_") or name == "HF_TOKEN") and name not in known
    )


def stop_seconds(bound_s: float) -> int:
    """Return how long the system waits for lmx to end, for the most that lmx takes."""
    return max(_SHORTEST_STOP_S, math.ceil(bound_s + _SLACK_S))


def unusable(settings: ServiceSettings, *, systemd: bool) -> str | None:
    """Return why these settings can't be written into a service's file; None if they can."""
    texts = [settings.program, settings.user_home, *settings.environment.values()]
    for text in texts:
        if any(each < " " or each == "\x7f" or "\ud800" <= each <= "\udfff" for each in text):
            return f"{text!a} has characters that can't be part of a service's file"
    if systemd and set(settings.program) & set("\"'\\"):
        return (
            f"systemd does not start a program whose path has quotes or backslashes "
            f"({settings.program}): install lmx into another folder"
        )
    return None


def launchd_plist(template: bytes, settings: ServiceSettings) -> str:
    """Return the content of a plist."""
    job: dict[str, Any] = plistlib.loads(template)
    job["ProgramArguments"][0] = settings.program
    job["EnvironmentVariables"] = dict(settings.environment)
    job["ExitTimeOut"] = settings.stop_s
    job["StandardErrorPath"] = job["StandardErrorPath"].replace("@HOME@", settings.user_home)
    if settings.user is not None:
        job["UserName"] = settings.user
        job["EnvironmentVariables"]["HOME"] = settings.user_home
    head, start, rest = plistlib.dumps(job, sort_keys=False).decode().partition("<plist")
    return f"{head}<!-- {WRITTEN_BY} -->\n{start}{rest}"


def systemd_unit(template: str, settings: ServiceSettings) -> str:
    """Return the content of a unit file."""
    _, start, body = template.partition("[Unit]\n")
    scope, target = (" --user", "default.target") if settings.user is None else ("", _AT_BOOT)
    lines = [
        f"# {WRITTEN_BY}",
        f"# Changes of your own belong into a drop-in: `systemctl{scope} edit lmx` makes one.",
        "",
        start.rstrip("\n"),
    ]
    for line in body.splitlines():
        if line == "Environment=@ENVIRONMENT@":
            lines += [
                f"Environment={_quoted(f'{name}={value}')}"
                for name, value in settings.environment.items()
            ]
        elif line != "User=@USER@" or settings.user is not None:
            lines.append(
                line.replace("@USER@", str(settings.user))
                .replace("@LMX@", _quoted(settings.program))
                .replace("@STOP_S@", str(settings.stop_s))
                .replace("@TARGET@", target)
            )
    return "\n".join(lines) + "\n"


_AT_BOOT: Final = "multi-user.target"


def _quoted(text: str) -> str:
    """Return one word for systemd: it expands percent signs, and undoes backslashes."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'
