"""``lmx-supervisor``: the command line. Exit codes are a contract, see :class:`Exit`."""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
from collections.abc import Callable
from enum import IntEnum
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

import click

from lmx.protocol.errors import ErrorCode, LmxError
from lmx.supervisor.config import Config
from lmx.supervisor.config_load import load_config
from lmx.supervisor.home import Home

# Ctrl-C ends a command without a traceback, also while it is still importing; `up` sets handlers
# of its own.
signal.signal(signal.SIGINT, signal.SIG_DFL)


class Exit(IntEnum):
    """Exit codes, for scripts."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_RUNNING = 3
    CONFIG_INVALID = 4
    ALREADY_RUNNING = 5


_EXITS = {
    ErrorCode.NOT_RUNNING: Exit.NOT_RUNNING,
    ErrorCode.CONFIG_INVALID: Exit.CONFIG_INVALID,
    ErrorCode.ALREADY_RUNNING: Exit.ALREADY_RUNNING,
}


def _fail(error: LmxError) -> NoReturn:
    click.echo(f"lmx-supervisor: {error.message}", err=True)
    sys.exit(_EXITS.get(error.code, Exit.FAILED))


def _command(function: Callable[..., None]) -> Callable[..., None]:
    """Turn an :class:`LmxError`, or what the file system has to say, into a message and an
    exit code."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        try:
            function(*args, **kwargs)
        except LmxError as error:
            _fail(error)
        except OSError as error:
            where = error.filename or _home().path
            click.echo(f"lmx-supervisor: {where}: {error.strerror or error}", err=True)
            sys.exit(Exit.FAILED)

    return wrapped


def _home() -> Home:
    return Home.from_environment(os.environ)


def _config_path(chosen: Path | None) -> Path | None:
    if chosen is not None:
        return chosen
    named = os.environ.get("LMX_CONFIG")
    if named:
        return Path(named).expanduser()
    default = _home().default_config
    return default if default.exists() else None


def _load_config(chosen: Path | None) -> Config:
    return load_config(_config_path(chosen), os.environ)


_config_option = click.option(
    "--config", "config", type=click.Path(path_type=Path), default=None,
    help="Configuration file (default: $LMX_CONFIG, then lmx.yaml in $LMX_HOME).",
)  # fmt: skip


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("lmx"), prog_name="lmx-supervisor")
def main() -> None:
    """Serve language models on this machine, each in a process of its own.

    Exit codes: 0 done, 1 failed, 2 wrong usage, 3 lmx is not running, 4 the configuration is
    invalid, 5 lmx is running already. State is kept in LMX_HOME (default ~/.lmx).
    """


@main.command()
@_config_option
@click.option("--detached", is_flag=True, hidden=True, help="Log to the log file only.")
@_command
def up(config: Path | None, detached: bool) -> None:
    """Run in the foreground until Ctrl-C; a second Ctrl-C stops at once."""
    from lmx.supervisor.foreground import run_foreground

    run_foreground(_load_config(config), _home(), version("lmx"), detached=detached)


@main.command()
@_config_option
@_command
def start(config: Path | None) -> None:
    """Run in the background; returns when the API answers."""
    from lmx.supervisor.background import start_background

    path = _config_path(config)
    load_config(path, os.environ)
    status = start_background(_home(), path)
    click.echo(f"lmx is running (pid {status['supervisor']['pid']}) at {status['router']['url']}")


@main.command()
@_command
def stop() -> None:
    """Stop everything; returns when no process is left."""
    from lmx.supervisor.background import stop_background

    pid = stop_background(_home())
    click.echo(f"stopped lmx (pid {pid})")


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@_command
def status(as_json: bool) -> None:
    """Show the processes, the models and their memory."""
    from lmx.supervisor.control_client import ControlClient

    with ControlClient(_home()) as client:
        found = client.status()
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    from lmx.supervisor.console import make_console, print_status

    print_status(make_console(), found)


@main.command()
@click.argument("model")
@_command
def load(model: str) -> None:
    """Load MODEL and wait until it answers."""
    from lmx.supervisor.operations import load_model

    load_model(_home(), model)


@main.command()
@click.argument("model")
@_command
def unload(model: str) -> None:
    """Let MODEL's streams end, then give its memory back. A new request loads it again."""
    from lmx.supervisor.operations import unload_model

    unload_model(_home(), model)


@main.command()
@click.argument("model")
@_command
def kill(model: str) -> None:
    """SIGKILL MODEL's worker now, hung or not. The API stays up and the model comes back."""
    from lmx.supervisor.operations import kill_model

    kill_model(_home(), model)


@main.command()
@click.argument("model")
@_command
def restart(model: str) -> None:
    """Let MODEL's streams end, load it anew and wait; also ends a quarantine."""
    from lmx.supervisor.operations import restart_model

    restart_model(_home(), model)


@main.command()
@click.argument("model", required=False)
@click.option("-f", "--follow", is_flag=True, help="Go on as lines are written.")
@click.option("-n", "--lines", default=50, show_default=True, type=click.IntRange(0, 100_000))
@click.option("--router", is_flag=True, help="The router's log.")
@_command
def logs(model: str | None, follow: bool, lines: int, router: bool) -> None:
    """Show the log of MODEL's worker, of the router, or of the supervisor."""
    from lmx.supervisor.log_view import show_log

    home = _home()
    if model is not None and router:
        raise click.UsageError("give either MODEL or --router")
    if router:
        path = home.router_log
    elif model is not None:
        path = _worker_log(home, model)
    else:
        path = home.supervisor_log
    show_log(path, lines, follow=follow)


def _worker_log(home: Home, model: str) -> Path:
    """Return a model's log by id or alias; also when lmx is down, for what ran last."""
    path = home.worker_log(model)
    if path.exists():
        return path
    from lmx.supervisor.control_client import ControlClient, supervisor_runs

    if supervisor_runs(home):
        with ControlClient(home) as client:
            for worker in client.status()["workers"]:
                if model in worker["aliases"]:
                    return home.worker_log(worker["model"])
    return path


@main.group("config")
def config_group() -> None:
    """Check or show the configuration."""


@config_group.command("check")
@_config_option
@_command
def config_check(config: Path | None) -> None:
    """Say whether the configuration is valid, with every problem in it."""
    checked = _load_config(config)
    models = ", ".join(model.id for model in checked.models) or "no models"
    click.echo(f"ok: {_config_path(config) or 'defaults and LMX_* variables'} ({models})")


@config_group.command("show")
@_config_option
@_command
def config_show(config: Path | None) -> None:
    """Print the effective configuration as YAML: file, variables and defaults together."""
    import yaml

    shown = _load_config(config).model_dump(mode="json")
    click.echo(yaml.safe_dump(shown, sort_keys=False, allow_unicode=True), nl=False)


if __name__ == "__main__":
    main()
