"""What all commands share: the exit codes, how errors are shown, where the configuration is."""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from lmx.protocol.errors import ErrorCode, LmxError
from lmx.supervisor.state.home import Home

if TYPE_CHECKING:
    from lmx.supervisor.config.schema import Config


class Exit(IntEnum):
    """Exit codes, for scripts."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_RUNNING = 3
    CONFIG_INVALID = 4
    ALREADY_RUNNING = 5


_EXITS: Final = {
    ErrorCode.NOT_RUNNING: Exit.NOT_RUNNING,
    ErrorCode.CONFIG_INVALID: Exit.CONFIG_INVALID,
    ErrorCode.ALREADY_RUNNING: Exit.ALREADY_RUNNING,
}


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Turn an :class:`LmxError`, or an error of the file system, into a message and an exit code.
    Ctrl-C ends the command as the signal does, once the terminal is restored."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            function(*args, **kwargs)
        except LmxError as error:
            _fail(error)
        except KeyboardInterrupt:
            # The command dies of the signal and has no exit code, so that a shell's loop over
            # commands ends too.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        except BrokenPipeError:
            raise  # nobody reads any more, as in `logs | head`: click ends without a word
        except OSError as error:
            where = error.filename or home().path
            click.echo(f"lmx-supervisor: {where}: {error.strerror or error}", err=True)
            sys.exit(Exit.FAILED)

    return wrapped


def _fail(error: LmxError) -> NoReturn:
    click.echo(f"lmx-supervisor: {error.message}", err=True)
    sys.exit(_EXITS.get(error.code, Exit.FAILED))


def home() -> Home:
    """Return the home that the environment names."""
    return Home.from_environment(os.environ)


def config_path(chosen: Path | None) -> Path | None:
    """Return the configuration's file: the chosen one, that of ``LMX_CONFIG``, that of the home, or
    None."""
    if chosen is not None:
        return chosen
    named = os.environ.get("LMX_CONFIG")
    if named:
        return Path(named).expanduser()
    default = home().default_config
    return default if default.exists() else None


def read_config(chosen: Path | None) -> Config:
    """Return the effective configuration. Raises :class:`OperationError` (config_invalid)."""
    from lmx.supervisor.config.load import load_config

    return load_config(config_path(chosen), os.environ)


config_option = click.option(
    "--config", "config", type=click.Path(path_type=Path), default=None,
    help="Configuration file (default: $LMX_CONFIG, then lmx.yaml in $LMX_HOME).",
)  # fmt: skip

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
