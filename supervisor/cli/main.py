"""``lmx-supervisor``: the command line. The exit codes are a contract, see
:mod:`lmx.supervisor.cli.command`."""

from __future__ import annotations

import signal
from pathlib import Path

import click

from lmx.supervisor.cli import config as cli_config
from lmx.supervisor.cli import disk, models, watch
from lmx.supervisor.cli.command import command, config_option, config_path, home, read_config

# Ctrl-C ends a command without a traceback also while it is still importing; each command, and
# `up`, set handlers of their own.
signal.signal(signal.SIGINT, signal.SIG_DFL)


class _InOrder(click.Group):
    """Lists commands in the order in which they were added: those of one purpose together."""

    def list_commands(self, _context: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=_InOrder, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="lmx", prog_name="lmx-supervisor")
def main() -> None:
    """Serve language models on this machine, each in a process of its own.

    Exit codes: 0 done, 1 failed, 2 wrong usage, 3 lmx is not running, 4 the configuration is
    invalid, 5 lmx is running already. State is kept in LMX_HOME (default ~/.lmx).
    """


@main.command()
@config_option
@click.option("--detached", is_flag=True, hidden=True, help="Log to the log file only.")
@click.option("--background", is_flag=True, hidden=True, help="Nobody else looks after it.")
@click.option("--asker", "asker_id", hidden=True, help="The process that wants it.")
@click.option("--because", default="", hidden=True, help="Why it is started.")
@click.option("--lock-fd", type=int, hidden=True, help="The lock, held by this process already.")
@click.option("--listen-fd", type=int, hidden=True, help="The listening socket, inherited.")
@click.option("--down", multiple=True, hidden=True, help="A model that stays down.")
@click.option("--held", multiple=True, hidden=True, help="A model that was drained.")
@command
def up(
    config: Path | None,
    detached: bool,
    background: bool,
    asker_id: str | None,
    because: str,
    lock_fd: int | None,
    listen_fd: int | None,
    down: tuple[str, ...],
    held: tuple[str, ...],
) -> None:
    """Run in the foreground until Ctrl-C.

    Streams may finish first; a second Ctrl-C stops at once.
    """
    from importlib.metadata import version

    from lmx.protocol.host.imports import quick_imports

    with quick_imports():
        from lmx.supervisor.cli.foreground import run_foreground
        from lmx.supervisor.processes.handover import Handover, Invocation, Successor

    handover = None if lock_fd is None else Handover(lock_fd, listen_fd, down, held)
    successor = None if asker_id is None else Successor(asker_id, because)
    invocation = Invocation(
        config, detached, lambda: read_config(config), handover, background, successor
    )
    run_foreground(invocation, home(), version("lmx"))


@main.command()
@config_option
@command
def start(config: Path | None) -> None:
    """Run in the background; returns when the API answers."""
    from lmx.supervisor.cli.background import start_background

    read_config(config)
    status = start_background(home(), config_path(config))
    url, *others = status.router.urls
    click.echo(f"lmx is running (pid {status.supervisor.pid}) at {url}")
    if others:
        click.echo(f"also at {', '.join(others)}")


@main.command(hidden=True)
@config_option
@click.option("--guarded", required=True, help="Who starts a dead supervisor again.")
@click.option("--silence", "silence_s", type=float, required=True, help="For how long it was.")
@command
def rescue(config: Path | None, guarded: str, silence_s: float) -> None:
    """See to a supervisor that is silent. Routers run this."""
    from lmx.supervisor.cli.rescue import run_rescue
    from lmx.supervisor.processes.handover import Guarded

    run_rescue(home(), config, Guarded(guarded), silence_s)


@main.command()
@command
def stop() -> None:
    """Stop everything; returns when no process is left.

    Streams may finish first; a second `stop` meanwhile stops at once and cuts them off. A
    supervisor that hangs or has died is no hindrance: what it left is ended.
    """
    from lmx.supervisor.cli import without_supervisor

    pid = without_supervisor.stop(home(), click.echo)
    click.echo(f"stopped lmx (pid {pid})")


for _commands in (watch.COMMANDS, models.COMMANDS, disk.COMMANDS, cli_config.COMMANDS):
    for _command in _commands:
        main.add_command(_command)


if __name__ == "__main__":
    main()
