"""Commands on the configuration: check and show it, and have a running lmx read it again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import click

from lmx.supervisor.cli.command import command, config_option, config_path, home, read_config


@click.command("reload")
@command
def reload_command() -> None:
    """Have the running lmx read its configuration again.

    Only what changed is touched: other models stay loaded and their streams go on. Of a file
    that is not valid nothing is taken; every problem in it is said, and the exit code is 4.
    """
    from lmx.supervisor.cli.operations import reload_config

    reload_config(home())


@click.group("config")
def config_group() -> None:
    """Check or show the configuration."""


@config_group.command("check")
@config_option
@command
def config_check(config: Path | None) -> None:
    """Say whether the configuration is valid, with every problem in it.

    Models whose files can't be read are named too; they cost themselves alone.
    """
    # With this a supervisor that is to be replaced tries the program that is to replace it: one
    # that lacks a module must not get that far.
    import lmx.supervisor.cli.foreground  # noqa: F401
    from lmx.supervisor.config.load import config_notices
    from lmx.supervisor.inventory.unreadable import unreadable_models
    from lmx.supervisor.processes.handover import FOR_SUPERVISOR

    checked = read_config(config)
    models = ", ".join(model.id for model in checked.models) or "no models"
    for gap in checked.routing_gaps():
        click.echo(gap)
    for notice in config_notices(config_path(config)):
        click.echo(notice)
    if FOR_SUPERVISOR not in os.environ:
        for problem in unreadable_models(checked, home()):
            click.echo(problem)
    click.echo(f"ok: {config_path(config) or 'defaults and LMX_* variables'} ({models})")


@config_group.command("show")
@config_option
@command
def config_show(config: Path | None) -> None:
    """Print the effective configuration as YAML: file, variables and defaults together."""
    import yaml

    shown = read_config(config).model_dump(mode="json")
    click.echo(yaml.safe_dump(shown, sort_keys=False, allow_unicode=True), nl=False)


COMMANDS: Final = (reload_command, config_group)
