"""What ``doctor`` checks of this installation, from its configuration to its service."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lmx.protocol.errors import OperationError
from lmx.protocol.messages.status import ModelStatus
from lmx.protocol.web_origins import is_loopback
from lmx.protocol.wire.endpoints import SOCKET_PATH_LIMIT_BYTES
from lmx.supervisor.cli.doctor.lines import Line, Verdict
from lmx.supervisor.cli.doctor.system import System
from lmx.supervisor.cli.service.units import LABEL
from lmx.supervisor.config.load import exposed_keys
from lmx.supervisor.config.schema import Config
from lmx.supervisor.config.sources import FolderSource, GgufSource, folder_path, parse_source
from lmx.supervisor.processes.inspector import unreadable_models
from lmx.supervisor.sockets.client import ControlClient
from lmx.supervisor.state.home import Home
from lmx.supervisor.state.process_records import Records

_LONGEST_SOCKET: Final = "w-12345678"


def check_setup(
    system: System, home: Home, config_path: Path | None, config: Config | None, *, running: bool
) -> list[Line]:
    """Return the findings. ``config`` is None if it is not valid. ``running`` says whether a
    supervisor runs."""
    lines = [check_socket_path(home), check_config(config_path, config)]
    lines.append(check_processes(running, [] if running else _left(home)))
    if config is not None:
        lines.append(check_keys(config))
        lines += check_secrecy(config_path)
        taken = not running and system.port_taken(config.server.host, config.server.port)
        lines.append(check_port(config, running=running, taken=taken))
        problems = unreadable_models(config.models, home)
        lines += check_models([f"{name} {said}" for name, said in problems], config, system)
    if running:
        lines += check_loaded(_loaded(home))
    lines.append(check_service(system))
    return lines


def check_socket_path(home: Home) -> Line:
    """Judge whether the names of sockets fit."""
    longest = len(str(home.run.path / _LONGEST_SOCKET).encode())
    fits = longest <= SOCKET_PATH_LIMIT_BYTES
    return Line(
        "sockets",
        f"names of {SOCKET_PATH_LIMIT_BYTES} bytes at most",
        f"{longest} bytes",
        Verdict.OK if fits else Verdict.BAD,
        "" if fits else "export LMX_HOME=a shorter path",
    )


def check_config(path: Path | None, config: Config | None) -> Line:
    """Judge the configuration. What is wrong is not shown: it may quote keys."""
    where = str(path or "defaults and LMX_* variables")
    if config is None:
        return Line("config", "valid", f"{where} is not", Verdict.BAD, "lmx config check")
    return Line("config", "valid", f"{where}, {len(config.models)} models", Verdict.OK)


def check_keys(config: Config) -> Line:
    """Judge who may use the API."""
    count, host = len(config.security.api_keys), config.server.host
    if is_loopback(host):
        return Line("keys", "others need a key", f"only this machine, {count} keys", Verdict.OK)
    if count:
        return Line("keys", "others need a key", f"the network, {count} keys", Verdict.OK)
    return Line(
        "keys",
        "others need a key",
        "anybody in the network may use lmx",
        Verdict.WARNING,
        "set security.api_keys",
    )


def check_secrecy(path: Path | None) -> list[Line]:
    """Judge whether other users can read the keys in the configuration."""
    mode = None if path is None else exposed_keys(path)
    if mode is None:
        return []
    measured = f"{path} has keys and mode {mode:04o}"
    fix = f"chmod 600 {path}"
    return [Line("keys", "only their user can read them", measured, Verdict.WARNING, fix)]


def check_port(config: Config, *, running: bool, taken: bool) -> Line:
    """Judge whether lmx can listen."""
    where = f"{config.server.host}:{config.server.port}"
    if running:
        return Line("port", "free, or lmx's", f"lmx runs ({where})", Verdict.OK)
    if not taken:
        return Line("port", "free, or lmx's", f"{where} is free", Verdict.OK)
    return Line(
        "port",
        "free, or lmx's",
        f"another program has {where}",
        Verdict.BAD,
        f"lsof -iTCP:{config.server.port} -sTCP:LISTEN, or LMX_SERVER_PORT=another one",
    )


def check_processes(running: bool, left: Sequence[int]) -> Line:
    """Judge whether processes were left behind."""
    assumption = "none is left without a supervisor"
    if not left:
        state = "lmx runs" if running else "lmx does not run"
        return Line("processes", assumption, state, Verdict.OK)
    return Line(
        "processes",
        assumption,
        f"{len(left)} are left: {', '.join(map(str, left))}",
        Verdict.WARNING,
        "lmx stop ends them; start takes them over",
    )


def check_models(problems: Sequence[str], config: Config, system: System) -> list[Line]:
    """Judge the models' files."""
    lines = [
        Line("models", "can be read", problem, Verdict.BAD, "correct its source in lmx.yaml")
        for problem in problems
    ] or [Line("models", "can be read", f"all {len(config.models)}", Verdict.OK)]
    return lines + [
        Line(
            "models", "the system lets lmx read them", f"{folder} is refused", Verdict.BAD,
            "move it to ~/models, or allow it in System Settings > Privacy & Security"
            if system.platform == "darwin" else f"chmod u+rx {folder}",
        )
        for folder in model_folders(config)
        if system.refused(folder)
    ]  # fmt: skip


def check_loaded(models: Sequence[ModelStatus]) -> list[Line]:
    """Judge what the workers found in their models' files."""
    return [
        Line(
            "models",
            "compute what their files say",
            f"{model.model}: {remark}",
            Verdict.WARNING,
            "choose another conversion or another model",
        )
        for model in models
        for remark in model.remarks
    ]


def _loaded(home: Home) -> Sequence[ModelStatus]:
    try:
        with ControlClient(home) as client:
            return client.status().workers
    except OperationError:
        return ()  # It has stopped, or is busy: `lmx status` says so.


def model_folders(config: Config) -> list[Path]:
    """Return the folders of this machine that models come from."""
    found = []
    for model in config.models:
        match parse_source(model.source):
            case FolderSource(path):
                found.append(folder_path(path))
            case GgufSource(path):
                found.append(folder_path(path).parent)
    return found


def check_service(system: System) -> Line:
    """Say whether the system starts lmx by itself."""
    assumption = "starts lmx with the machine, if that is wanted"
    if system.platform == "darwin":
        user = (system.run("/usr/bin/id", "-u") or "").strip()
        kinds = [
            kind
            for kind, domain in (("an agent", f"gui/{user}"), ("a daemon", "system"))
            if system.run("/bin/launchctl", "print", f"{domain}/{LABEL}") is not None
        ]
        there = bool(kinds)
        measured = f"launchd runs it as {' and '.join(kinds)}" if there else "launchd has none"
    else:
        there = any(
            system.run("systemctl", *scope, "is-enabled", "lmx") is not None
            for scope in ((), ("--user",))
        )
        measured = "systemd starts it" if there else "no unit of systemd is enabled"
    if there:
        return Line("service", assumption, measured, Verdict.OK)
    return Line("service", assumption, measured, Verdict.NOTE, "lmx service install")


def _left(home: Home) -> list[int]:
    return [record.pid for record in Records(home.state).orphans()]
