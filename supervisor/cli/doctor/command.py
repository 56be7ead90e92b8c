"""The command ``doctor``."""

import sys
from pathlib import Path

import click

from lmx.supervisor.cli.command import (
    Exit,
    command,
    config_option,
    home,
    json_option,
    path_in_use,
    valid_config,
)


@click.command()
@config_option
@json_option
@click.option(
    "--bench", is_flag=True, help="Also measure the device, its memory, processes (up to minutes)."
)
@click.option("--sleep", is_flag=True, help="Also put this Mac to sleep once; wake it again.")
@command
def doctor(config: Path | None, as_json: bool, bench: bool, sleep: bool) -> None:
    """Check this machine and this installation, and say how to fix what is wrong.

    The text can be shown to others: it has no keys and no prompts. The exit code is 1 if something
    does not work.
    """
    from lmx.supervisor.cli.doctor.examine import examine, measure, sleep_once
    from lmx.supervisor.cli.doctor.lines import as_json as json_report
    from lmx.supervisor.cli.doctor.lines import as_text, healthy
    from lmx.supervisor.cli.doctor.system import System
    from lmx.supervisor.cli.views.json_output import json_text

    system = System()
    found = examine(system, home(), path_in_use(config), valid_config(config))
    lines = found.lines
    lines += measure(system, found.folders) if bench else []
    lines += [sleep_once()] if sleep else []
    user_home = str(Path.home())
    if as_json:
        click.echo(json_text(json_report(found.title, lines, user_home)))
    else:
        click.echo(as_text(found.title, lines, user_home))
    if not healthy(lines):
        sys.exit(Exit.FAILED)
