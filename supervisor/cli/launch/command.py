"""``lmx launch``: reads what is served, chooses a model, and becomes the program."""

import functools
import json
import os
import re
import shlex
import shutil
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from lmx.protocol.errors import ErrorCode, OperationError, ProtocolError
from lmx.protocol.host.imports import users_environment
from lmx.protocol.host.regular_file import TooLargeError, read_regular
from lmx.supervisor.cli.command import command, place
from lmx.supervisor.cli.completion import MODEL
from lmx.supervisor.cli.launch.choice import Chosen, choose, is_being_read, named
from lmx.supervisor.cli.launch.programs import (
    KEY,
    KEY_VARIABLE,
    PROGRAMS,
    Program,
    Setup,
    Target,
)
from lmx.supervisor.state.atomic_write import atomic_write
from lmx.supervisor.state.home import Home

if TYPE_CHECKING:
    from lmx.supervisor.cli.chat.client import ChatClient
    from lmx.supervisor.sockets.client import Place
    from lmx.supervisor.sockets.http_client import Remote

_MOST_BYTES: Final = 1024**2
_KNOWN_S: Final = 30.0
"""A file is read within seconds; a download is not waited for."""
_POLL_S: Final = 0.3
_NO_KEY: Final = "unused"
"""Programs want a key, also for an lmx that has none."""


@click.command(
    epilog="\b\nPrograms:\n"
    + "\n".join(f"  {name:<10} {one.title}: {one.install}" for name, one in PROGRAMS.items())
)
@click.argument("name", metavar="PROGRAM", type=click.Choice(list(PROGRAMS)))
@click.option("--model", type=MODEL, help="Ask this model (default: the best that is served).")
@click.option(
    "--print", "only_print", is_flag=True, help="Print the commands instead, and change nothing."
)
@click.option("--undo", is_flag=True, help="Remove the files that this command wrote for PROGRAM.")
@click.argument("arguments", metavar="[-- ARGUMENTS]", nargs=-1, type=click.UNPROCESSED)
@command
def launch(
    name: str, model: str | None, only_print: bool, undo: bool, arguments: tuple[str, ...]
) -> None:
    """Start a coding agent that asks lmx, for as long as it runs.

    PROGRAM gets the address, the key, the model and the length of its context by variables and
    options of its own; its configuration files stay as they are. Without --model it is the
    default model if that calls tools and has enough context, else one that is loaded, else the
    first that does. The exit code is the program's.

    \b
    Examples:
      lmx launch claude
      lmx launch codex --model qwen3-coder-30b
      lmx launch opencode -- run "Write the tests for parser.py"
      lmx launch aider --print
    """
    program = PROGRAMS[name]
    # Also for a program that asks another machine's lmx.
    own_home = Home.from_environment(os.environ)
    folder = own_home.launched / name
    if undo:
        _undo(program, folder)
        return
    path = shutil.which(program.command)
    if path is None and not only_print:
        raise OperationError(
            ErrorCode.UNSUPPORTED_VALUE,
            f"{program.title} is not installed (no `{program.command}` on PATH): "
            f"`{program.install}` installs it",
        )
    from lmx.supervisor.cli.chat.session import choose as chosen_name
    from lmx.supervisor.cli.chat.session import connect
    from lmx.supervisor.cli.chat.start import start_for

    asked = place()
    if isinstance(asked, Home) and not only_print:
        start_for(asked, model, fetch=False)
    client = connect(asked)
    _wait_known(client)
    longest_context = functools.partial(_longest_context, asked)
    if model is None:
        chosen = choose(program, client.models(), client.default_model(), longest_context)
    else:
        name_there = chosen_name(client, model)
        chosen = named(program, name_there, client.model(name_there), longest_context)
    for warning in chosen.warnings:
        click.echo(f"lmx: {warning}", err=True)
    own: Mapping[str, Any] = {}
    if program.settings_path is not None:
        if only_print:
            # What is printed is shown to others: it has no keys for other servers.
            click.echo("# The settings in your own file are left out here.")
        else:
            own = _settings(program.settings_path(os.environ))
    setup = program.setup(_target(chosen, client.remote.url, folder, own))
    if path is None or only_print:
        click.echo("\n".join(_script(program, setup, client.remote.key, arguments)))
        return
    if setup.files:
        own_home.prepare()
    _become(program, path, chosen, setup, client.remote, arguments)


def _wait_known(client: "ChatClient") -> None:
    """Wait until it is known what models can do whose files are just being read, as those of an
    lmx that has only just been started."""
    deadline_s = time.monotonic() + _KNOWN_S
    while time.monotonic() < deadline_s and any(map(is_being_read, client.models())):
        time.sleep(_POLL_S)


def _longest_context(place: "Place", model: str) -> int | None:
    from lmx.protocol.messages.control import LoadPlan, PlanLoad
    from lmx.supervisor.sockets.client import open_client

    try:
        with open_client(place) as client:
            plan: LoadPlan = client.ask(PlanLoad(model))
    except (OperationError, ProtocolError):  # an API key may not ask this of another machine
        return None
    return plan.longest_context


def _target(chosen: Chosen, root: str, folder: Path, own: Mapping[str, Any]) -> Target:
    return Target(
        root, chosen.name, chosen.context_tokens, chosen.images, chosen.reasoning, folder, own
    )


def _settings(path: Path) -> Mapping[str, Any]:
    """Return the settings in a file of the user's, none if there is no such file. Raises
    :class:`OperationError` (invalid_value) if it can't be read."""
    try:
        found = json.loads(read_regular(path, _MOST_BYTES))
    except FileNotFoundError:
        return {}
    except (OSError, TooLargeError, ValueError, RecursionError) as error:
        raise OperationError(
            ErrorCode.INVALID_VALUE, f"the settings in {path} can't be read: {error}"
        ) from error
    if not isinstance(found, dict):
        raise OperationError(ErrorCode.INVALID_VALUE, f"the settings in {path} are no JSON object")
    return found


def _script(
    program: Program, setup: Setup, key: str | None, arguments: Sequence[str]
) -> Iterator[str]:
    """Yield the lines of a shell script that does what would be done. It does not show the key."""
    missing = f":-{_NO_KEY}" if key is None else ":?set it to an API key of lmx"
    yield f'export {KEY_VARIABLE}="${{{KEY_VARIABLE}{missing}}}"'
    for file, text in setup.files.items():
        yield f"mkdir -p {shlex.quote(str(file.parent))}"
        # The shell replaces the variable of the key, and nothing else.
        escaped = re.sub(r"([\\$`])", r"\\\1", text).replace(KEY, f"${KEY_VARIABLE}")
        yield f"cat > {shlex.quote(str(file))} <<END\n{escaped}END"
    if setup.removed:
        yield f"unset {' '.join(setup.removed)}"
    for variable, value in setup.variables.items():
        text = f'"${KEY_VARIABLE}"' if value == KEY else shlex.quote(value)
        yield f"export {variable}={text}"
    yield shlex.join([program.command, *setup.arguments, *arguments])


def _become(
    program: Program,
    path: str,
    chosen: Chosen,
    setup: Setup,
    api: "Remote",
    arguments: Sequence[str],
) -> NoReturn:
    """Write the files, and replace this process by the program."""
    key = api.key or _NO_KEY
    for file, text in setup.files.items():
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        atomic_write(file, text.replace(KEY, key))
    variables = {name: key if value == KEY else value for name, value in setup.variables.items()}
    environment = {**users_environment(), KEY_VARIABLE: key, **variables}
    for variable in setup.removed:
        environment.pop(variable, None)
    click.echo(
        f"{program.title} asks {chosen.name} at {api.url} ({chosen.context_tokens:,} tokens of "
        "context)",
        err=True,
    )
    # Python ignores it, and what is ignored stays so in the program.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.execve(path, [program.command, *setup.arguments, *arguments], environment)  # noqa: S606


def _undo(program: Program, folder: Path) -> None:
    if folder.is_dir():
        shutil.rmtree(folder)
        click.echo(f"removed {folder}; no file of {program.title} was ever changed")
    else:
        click.echo(f"nothing to undo: no file of {program.title} was ever changed")
