"""What all commands share: the exit codes, how errors are shown, where the configuration is."""

from __future__ import annotations

import functools
import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click
from click.core import ParameterSource

from lmx.protocol.errors import ErrorCode, LmxError, OperationError
from lmx.protocol.free_text import terminal_text
from lmx.protocol.host.imports import import_structlog, quick_imports
from lmx.protocol.host.log_files import append_to
from lmx.supervisor.cli.service.units import LABEL
from lmx.supervisor.sockets.http_client import Remote
from lmx.supervisor.state.home import Home

if TYPE_CHECKING:
    from lmx.supervisor.config.schema import Config
    from lmx.supervisor.service.launch import Launch
    from lmx.supervisor.sockets.client import Place


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
    """Turn every error into a message and an exit code: a traceback is never shown. Ctrl-C ends
    the command as the signal does, once the terminal is restored."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        import_structlog()  # most commands do, and with rich it takes twice as long
        import structlog

        # stdout is for the answer alone, which a script may read.
        structlog.configure(logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))
        for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
            if getattr(sys, name) is None:  # whoever started the command closed it
                stream = open(os.devnull, mode)  # noqa: PTH123, SIM115  as long as the process
                setattr(sys, name, stream)
        try:
            function(*args, **kwargs)
        except LmxError as error:
            _fail(error)
        except KeyboardInterrupt:
            # The command dies of the signal and has no exit code, so that a shell's loop over
            # commands ends too.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        except (BrokenPipeError, click.ClickException, click.exceptions.Exit, click.Abort):
            # Nobody reads any more, as in `logs | head`: click ends without a word. The others are
            # click's own, which it shows itself.
            raise
        except OSError as error:
            where = error.filename or "a file"
            click.echo(f"lmx: {where}: {error.strerror or error}", err=True)
            sys.exit(Exit.FAILED)
        except Exception as error:
            _fail_by_bug(error)

    return wrapped


def _fail(error: LmxError) -> NoReturn:
    said = error.message if error.message.startswith("lmx is") else f"lmx: {error.message}"
    click.echo(terminal_text(said), err=True)
    status, wait_s = _EXITS.get(error.code, Exit.FAILED), 0.0
    context = click.get_current_context(silent=True)
    if context is not None and context.info_name == "up":
        status, wait_s = for_launchd(status, os.environ)
    time.sleep(wait_s)
    sys.exit(status)


_CONFIG_WAIT_S: Final = 60.0


def for_launchd(status: Exit, environment: Mapping[str, str]) -> tuple[Exit, float]:
    """Return the exit code of ``up``, and how long to wait before it. Pure.

    launchd starts what has failed again every ten seconds, for ever, and has no list of codes
    for which it should not: with a supervisor that runs already it must look done, and a
    configuration is not corrected within seconds.
    """
    if environment.get("XPC_SERVICE_NAME") != LABEL:
        return status, 0.0
    if status is Exit.ALREADY_RUNNING:
        return Exit.OK, 0.0
    return status, _CONFIG_WAIT_S if status is Exit.CONFIG_INVALID else 0.0


def _fail_by_bug(error: Exception) -> NoReturn:
    """Say that this is a bug of lmx, and keep the traceback for whoever fixes it."""
    what = " ".join(f"{type(error).__name__}: {error}".split())
    try:
        log = Home.from_environment(os.environ).logs / "command-line.log"
        with open(append_to(log), "a", encoding="utf-8") as file:  # noqa: PTH123  of a descriptor
            file.write("".join(traceback.format_exception(error)))
        where = f"the details are in {log}"
    except (LmxError, OSError):
        where = "its details can't be kept, because there is no folder of logs to write to"
    click.echo(f"lmx: a bug in lmx ended this command ({what}); {where}", err=True)
    sys.exit(Exit.FAILED)


URL_VARIABLE: Final = "LMX_URL"
KEY_VARIABLE: Final = "LMX_API_KEY"


def remote_place(context: click.Context | None = None) -> Remote | None:
    """Return the lmx at ``--url`` or ``LMX_URL``; None if the command is about this machine's.
    Raises as :func:`given_remote` does."""
    context = context or click.get_current_context(silent=True)
    if context is None or context.command.hidden:  # lmx itself runs the hidden commands
        return None
    url = context.find_root().params.get("url")
    return None if not url else given_remote(url)


def given_remote(address: str) -> Remote:
    """Return the server at an address that was given to the command, with the key that was given.
    Raises :class:`click.UsageError` if it can't be one."""
    try:
        return Remote.parse(address, given_key())
    except OperationError as error:
        raise click.UsageError(error.message) from error


def given_key(source: ParameterSource | None = None) -> str | None:
    """Return the key that was given by ``--key`` or ``LMX_API_KEY``, or only by one of them; None
    if none was."""
    context = click.get_current_context(silent=True)
    if context is None:
        return os.environ.get(KEY_VARIABLE) or None
    root = context.find_root()
    if source is not None and root.get_parameter_source("key") is not source:
        return None
    return root.params.get("key") or None


def place() -> Place:
    """Return which lmx the command is about: the one at ``--url`` or ``LMX_URL``, else this
    machine's. Raises as :func:`home` does."""
    return remote_place() or home()


def home() -> Home:
    """Return the home that the environment names, for a command about this machine's lmx. Raises
    :class:`OperationError`: config_invalid if it can't be one, and unsupported_value if the command
    is about another machine's lmx."""
    if remote_place() is not None:
        from lmx.supervisor.sockets.remote import not_remote

        _, _, name = click.get_current_context().command_path.partition(" ")
        raise not_remote(f"`lmx {name}`")
    found = Home.from_environment(os.environ)
    found.check()
    return found


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


def own_config(chosen: Path | None) -> Config:
    """Return the configuration that an lmx started here and now would have. Raises
    :class:`OperationError` (config_invalid)."""
    from lmx.supervisor.config.load import load_config

    context = click.get_current_context(silent=True)
    given = {} if context is None else context.params
    options = {
        variable: option
        for name, (variable, option) in SERVING_OPTIONS.items()
        if given.get(name) not in (None, ())
    }
    return load_config(config_path(chosen), os.environ, options, keys_kept=home().has_keys)


SERVING_OPTIONS: Final = {
    "host": ("LMX_SERVER_HOST", "--host"),
    "port": ("LMX_SERVER_PORT", "--port"),
    "api_keys": ("LMX_SECURITY_API_KEYS", "--api-key"),
    "models": ("LMX_MODELS", "MODEL"),
}
"""Parameters of commands that start lmx: the variable that each one sets, and its name."""


@dataclass(frozen=True, slots=True)
class Found:
    """A configuration, and where it is from."""

    config: Config
    path: Path | None
    """Its file, or None."""
    words: str
    """Where it is from, for people."""
    variables: Mapping[str, str]
    """The variables that go over it, and others."""
    not_in_effect: tuple[str, ...] = ()
    """The sections of it that the lmx that runs has not read yet."""


def read_config(chosen: Path | None) -> Found:
    """Return the configuration that commands speak about: of the lmx that runs, with the variables
    and options that it was started with; else what an lmx started here and now would have.

    A file that is named by ``--config`` or ``LMX_CONFIG``, and is another one than the running lmx
    has, goes before it. Raises :class:`OperationError` (config_invalid).
    """
    with quick_imports():
        from lmx.supervisor.config.load import load_config

    path, launch = _in_use(chosen)
    variables = os.environ if launch is None else launch.variables
    config = load_config(path, variables, keys_kept=home().has_keys)
    if launch is None:
        return Found(config, path, from_words(path, variables), variables)
    words = f"the running lmx: {launch.words}"
    return Found(config, path, words, variables, launch.changed(config))


def valid_config(chosen: Path | None = None) -> Config | None:
    """Return the same configuration, and None while it is not valid: an lmx that runs keeps what
    was valid before."""
    try:
        return read_config(chosen).config
    except OperationError:
        return None


def path_in_use(chosen: Path | None) -> Path | None:
    """Return the file of the configuration of :func:`read_config`, which may be invalid or missing;
    None if there is none."""
    return _in_use(chosen)[0]


def _in_use(chosen: Path | None) -> tuple[Path | None, Launch | None]:
    """Return the file that commands speak about, and with what the lmx that runs with it was
    started."""
    with quick_imports():
        from lmx.supervisor.processes.handover import FOR_SUPERVISOR
        from lmx.supervisor.service.launch import running_launch

    named = config_path(chosen) if chosen or os.environ.get("LMX_CONFIG") else None
    launch = None if FOR_SUPERVISOR in os.environ else running_launch(home())
    if launch is not None and (named is None or str(named.absolute()) == launch.config):
        return None if launch.config is None else Path(launch.config), launch
    return config_path(chosen), None


def served_config(chosen: Path | None = None) -> Config:
    """Return the configuration of :func:`read_config` with the models that were added. Raises what
    that raises."""
    from lmx.supervisor.inventory.added import with_added
    from lmx.supervisor.inventory.added_file import AddedFile

    return with_added(read_config(chosen).config, AddedFile(home().added_models).read())


def admin_key(here: Home) -> str:
    """Return the admin key of this machine's lmx. Raises ``OSError`` if it can't be read, and as
    :func:`read_config` does if there is no other key than that of the configuration."""
    try:
        configured = read_config(None).config.security.admin_key_text
    except OperationError:
        # An lmx that runs keeps what was valid.
        if not here.admin_key.exists():
            raise
        configured = None
    return configured or here.admin_key.read_text().strip()


def from_words(path: Path | None, environment: Mapping[str, str]) -> str:
    """Return where a configuration is from, for people: its file and its variables."""
    from lmx.supervisor.service.launch import Launch

    return Launch.of(path, environment).words


class Number(click.FloatRange):
    """A number in a range. What is no number (NaN) would be in each of them."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value!r} is no number", param, ctx)
        return number


def notice(text: str) -> None:
    """Say on stderr what is out of the ordinary. stdout is for the answer."""
    click.echo(f"lmx: {terminal_text(text)}", err=True)


config_option = click.option(
    "--config",
    "config",
    type=click.Path(path_type=Path),
    default=None,
    help="Configuration file (default: $LMX_CONFIG, then lmx.yaml in $LMX_HOME).",
)


def remote_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options of the group that say which lmx commands are about."""
    for decorate in (
        click.option(
            "--key", envvar=KEY_VARIABLE, metavar="KEY",
            help="Key for that lmx: the admin key, or an API key for chat, run, batch, bench and "
            "launch. Other users can see it in `ps`; use LMX_API_KEY instead.",
        ),
        click.option(
            "--url", envvar=URL_VARIABLE, metavar="URL",
            help="Address of another machine's lmx, as http://studio:8000 (default: $LMX_URL, then "
            "this machine's lmx).",
        ),
    ):  # fmt: skip
        function = decorate(function)
    return function


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
