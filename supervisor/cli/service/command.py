"""The commands ``lmx service ...``."""

import os
import signal
import sys

import click

from lmx.supervisor.cli.command import Exit, command, home

_system_option = click.option(
    "--system", is_flag=True, help="Starts with the machine, before anybody logs in (needs sudo)."
)
_dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Print what would be written and run; change nothing."
)


@click.group()
@command
def service() -> None:
    """Run lmx as a service: started at login or at boot, and again after a crash.

    It is a launchd agent on a Mac, and a systemd user service on Linux. With --system it is a
    launchd daemon or a systemd system service, and runs as the user who typed sudo.

    \b
    Examples:
      lmx service install
      lmx service install --dry-run
      sudo "$(command -v lmx)" service install --system
    """
    home()  # refuses another machine's lmx


@service.command()
@_system_option
@_dry_run_option
@command
def install(system: bool, dry_run: bool) -> None:
    """Install the service and start it.

    Returns when lmx answers. The service runs this lmx, with this LMX_HOME and its lmx.yaml. After
    a change of these, type it again. LMX_* variables that configure lmx, and HF_TOKEN, are not part
    of it: put settings into lmx.yaml.
    """
    from lmx.supervisor.cli.service import changes

    changes.install(system=system, dry_run=dry_run)


@service.command()
@_system_option
@command
def status(system: bool) -> None:
    """Show whether it is installed and runs.

    Exit code 3: it does not run.
    """
    from lmx.supervisor.cli.service import changes

    if not changes.show_status(system=system):
        sys.exit(Exit.NOT_RUNNING)


@service.command()
@_system_option
@click.option("-n", "--lines", type=click.IntRange(1), default=50, help="How many (default: 50).")
@click.option("-f", "--follow", is_flag=True, help="Show new lines as they come.")
@command
def logs(system: bool, lines: int, follow: bool) -> None:
    """Show what the service has printed.

    That is what is not in lmx's own log, as when it can't start. `lmx logs` shows that one.
    """
    from lmx.supervisor.cli.service import changes

    arguments = changes.log_command(lines, system=system, follow=follow)
    # Python ignores it, and what is ignored stays so in the program.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.execvp(arguments[0], arguments)  # noqa: S606  no shell


@service.command()
@_system_option
@_dry_run_option
@command
def restart(system: bool, dry_run: bool) -> None:
    """Restart the service, also after `lmx stop`.

    Streams may finish first. `lmx restart --supervisor` takes a new version and keeps the models
    loaded.
    """
    from lmx.supervisor.cli.service import changes

    changes.restart(system=system, dry_run=dry_run)


@service.command()
@_system_option
@_dry_run_option
@command
def uninstall(system: bool, dry_run: bool) -> None:
    """Stop the service and remove it.

    Streams may finish first. The configuration, the models and all else in LMX_HOME stay.
    """
    from lmx.supervisor.cli.service import changes

    changes.uninstall(system=system, dry_run=dry_run)
