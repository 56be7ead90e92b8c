"""The commands ``backup`` and ``restore``."""

import os
import time
from pathlib import Path

import click

from lmx.supervisor.cli.command import command, home, path_in_use


@click.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
@command
def backup(file: Path | None) -> None:
    """Write what matters into one file.

    That is the configuration, keys, pins, added models and the usage; not models' files, nor logs.
    lmx may run. The default name has the date. The file holds keys: only you can read it.
    """
    from importlib.metadata import version

    from lmx.supervisor.state.backup import default_name, write_backup

    target = file or Path()
    if target.is_dir():
        target /= default_name(time.time())
    config = path_in_use(None)
    names = write_backup(home(), config, target, version("lmx"), _note)
    click.echo(f"wrote {target}: {', '.join(names)}")
    if config is not None and not os.path.lexists(config):
        _note(f"{config} is not there: no configuration is in it")
    elif config is not None and "lmx.yaml" in names and config.absolute() != home().default_config:
        _note(f"{config} is in it as lmx.yaml")


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@command
def restore(file: Path) -> None:
    """Put a backup's files back into LMX_HOME.

    lmx must not run. The files that are there are kept in a folder next to them.
    """
    from lmx.supervisor.state.backup import restore_backup

    restored = restore_backup(home(), file, time.time(), _note)
    about = restored.manifest
    click.echo(
        f"restored {', '.join(about.sums)} of {about.created}, written by lmx {about.version}"
    )
    if restored.kept is not None:
        click.echo(f"what was there before is in {restored.kept}")
    if named := os.environ.get("LMX_CONFIG"):
        _note(f"LMX_CONFIG names {named}, and the restored file is {home().default_config}")
    click.echo("next: `lmx config check`, then `lmx start`")


def _note(text: str) -> None:
    click.echo(f"note: {text}", err=True)
