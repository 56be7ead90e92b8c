"""Commands about lmx itself: its version, and the help of its commands."""

import platform
import sys

import click

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.supervisor.cli.command import command, place


@click.command()
@command
def version() -> None:
    """Show the version of this program, and of the lmx that runs."""
    from importlib.metadata import version as installed

    python = ".".join(map(str, sys.version_info[:3]))
    machine = f"{platform.system()} {platform.machine()}"
    click.echo(f"lmx {installed('lmx')} (Python {python}, {machine})")
    there = place()
    from lmx.supervisor.sockets.client import open_client
    from lmx.supervisor.sockets.http_client import HttpClient, Remote

    if isinstance(there, Remote):
        api = HttpClient(there, _ANSWER_S)
        found = api.call("GET", "/version")
        if not isinstance(found, dict) or "version" not in found:
            raise api.not_lmx(str(found))
        click.echo(f"{there.url} runs lmx {found['version']}")
        return
    try:
        with open_client(there, _ANSWER_S) as client:
            running = client.status().supervisor
    except OperationError as error:
        if error.code is not ErrorCode.NOT_RUNNING:
            raise
        click.echo("lmx is not running")
        return
    click.echo(f"lmx {running.version} is running (pid {running.pid})")


_ANSWER_S = 10.0


@click.command("help")
@click.argument("names", metavar="[COMMAND]...", nargs=-1)
@click.pass_context
def help_command(context: click.Context, names: tuple[str, ...]) -> None:
    """Show the help of COMMAND, as `lmx COMMAND -h` does."""
    shown = context.find_root()
    for name in names:
        group = shown.command
        found = group.get_command(shown, name) if isinstance(group, click.Group) else None
        if found is None:
            raise click.UsageError(
                f"there is no command {' '.join(names)!r}: `lmx help` lists them"
            )
        shown = click.Context(found, parent=shown, info_name=name)
    click.echo(shown.command.get_help(shown))
