"""What ``doctor`` checks of this installation, from its configuration to its service."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lmx.protocol.errors import LmxError
from lmx.protocol.messages.keys import ApiKey, KeyScope
from lmx.protocol.messages.peers import GetPeers, Peer, PeerList
from lmx.protocol.messages.status import ModelStatus, SystemStatus
from lmx.protocol.web_origins import is_loopback
from lmx.protocol.wire.endpoints import SOCKET_PATH_LIMIT_BYTES
from lmx.supervisor.cli.doctor.lines import Line, Verdict
from lmx.supervisor.cli.doctor.ranks import check_ranks
from lmx.supervisor.cli.doctor.system import System
from lmx.supervisor.cli.service.units import LABEL
from lmx.supervisor.config.extras import install_line
from lmx.supervisor.config.load import exposed_keys
from lmx.supervisor.config.schema import Config
from lmx.supervisor.config.sources import FolderSource, GgufSource, folder_path, parse_source
from lmx.supervisor.keys.file import KeyFile
from lmx.supervisor.keys.notices import key_notices
from lmx.supervisor.processes.inspector import unreadable_models
from lmx.supervisor.sockets.client import ControlClient, status_of
from lmx.supervisor.state.home import Home
from lmx.supervisor.state.process_records import Records, RouterRecord

_LONGEST_SOCKET: Final = "w-12345678"


def check_setup(
    system: System, home: Home, config_path: Path | None, config: Config | None, *, running: bool
) -> list[Line]:
    """Return the findings. ``config`` is None if it is not valid. ``running`` says whether a
    supervisor runs."""
    lines = [check_socket_path(home), check_config(config_path, config)]
    left = [] if running else Records(home.state).orphans()
    lines.append(check_processes(running, [record.pid for record in left]))
    if config is not None:
        lines += check_keys(config, KeyFile(home.keys).peek().keys)
        lines += check_secrecy(config_path)
        taken = not running and system.port_taken(config.server)
        routers = [record for record in left if isinstance(record, RouterRecord)]
        has_port = any(router.port == config.server.port for router in routers)
        lines.append(check_port(config, running=running, taken=taken, left=has_port))
        problems = unreadable_models(config.models, home)
        lines += check_models([f"{name} {said}" for name, said in problems], config, system)
    status = status_of(home) if running else None
    if config is not None and config.server.advertise:
        lines.append(check_mdns(system.version("zeroconf") is not None, status))
    if config is not None and running and any(model.hosts for model in config.models):
        lines += check_ranks(config, _peers(home))
    if status is not None:
        lines += check_loaded(status.workers)
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


def check_keys(config: Config, stored: Sequence[ApiKey]) -> list[Line]:
    """Judge who may use the API. ``stored`` are the keys of lmx's home."""
    for_models = [key for key in stored if KeyScope.INFERENCE in key.scopes]
    count, assumption = len(config.security.api_keys) + len(for_models), "others need a key"
    reached = "only this machine" if is_loopback(config.server.host) else "the network"
    lines = [
        Line("keys", "are as they should be", notice, Verdict.WARNING, "lmx key list")
        for notice in key_notices(config, stored)
    ]
    if count or config.closed_without_key or is_loopback(config.server.host):
        return [Line("keys", assumption, f"{reached}, {count} keys", Verdict.OK), *lines]
    open_to_all = "anybody in the network may use lmx"
    return [Line("keys", assumption, open_to_all, Verdict.WARNING, "lmx key add NAME"), *lines]


def check_secrecy(path: Path | None) -> list[Line]:
    """Judge whether other users can read the keys in the configuration."""
    mode = None if path is None else exposed_keys(path)
    if mode is None:
        return []
    measured = f"{path} has keys and mode {mode:04o}"
    fix = f"chmod 600 {path}"
    return [Line("keys", "only their user can read them", measured, Verdict.WARNING, fix)]


def check_port(config: Config, *, running: bool, taken: bool, left: bool = False) -> Line:
    """Judge whether lmx can listen. ``left`` says whether a router of lmx is left on the port: the
    next supervisor takes it over."""
    where = f"{config.server.host}:{config.server.port}"
    if running:
        return Line("port", "free, or lmx's", f"lmx runs ({where})", Verdict.OK)
    if not taken:
        return Line("port", "free, or lmx's", f"{where} is free", Verdict.OK)
    if left:
        measured = f"{where} is taken by the router of an lmx that was killed"
        return Line("port", "free, or lmx's", measured, Verdict.OK)
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


def check_mdns(installed: bool, status: SystemStatus | None) -> Line:
    """Judge whether the network knows lmx by its name. ``status`` is None if lmx does not run."""
    assumption = "the network knows lmx by a name"
    if not installed:
        fix = install_line("mdns")
        return Line("mdns", assumption, "zeroconf is missing", Verdict.WARNING, fix)
    if status is None:
        return Line("mdns", assumption, "lmx does not run", Verdict.NOTE)
    url = status.router.announced_url
    if url is None:
        said = "it is not announced (yet)"
        return Line("mdns", assumption, said, Verdict.WARNING, "lmx status says why")
    return Line("mdns", assumption, url, Verdict.OK)


def _peers(home: Home) -> tuple[Peer, ...]:
    try:
        with ControlClient(home) as client:
            found = client.ask(GetPeers())
    except LmxError:
        return ()
    return found.peers if isinstance(found, PeerList) else ()


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
