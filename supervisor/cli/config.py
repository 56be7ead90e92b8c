"""Commands on the configuration: check and show it, and have a running lmx read it again."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.supervisor.cli.command import (
    Found,
    command,
    config_option,
    home,
    place,
    read_config,
)
from lmx.supervisor.state.home import Home

if TYPE_CHECKING:
    from lmx.supervisor.config.schema import ModelConfig


@click.command("reload")
@command
def reload_command() -> None:
    """Have the running lmx read its configuration again.

    Only what changed is touched: other models stay loaded and their streams continue. Of a file
    that is not valid nothing is taken; every problem in it is said, and the exit code is 4.
    """
    from lmx.supervisor.cli.operations import reload_config
    from lmx.supervisor.config.load import overridden
    from lmx.supervisor.service.launch import running_launch

    where = place()
    reload_config(where)
    launch = running_launch(where) if isinstance(where, Home) else None
    if launch is not None and launch.config is not None:
        for notice in overridden(Path(launch.config), launch.variables):
            click.echo(notice)


@click.group("config")
def config_group() -> None:
    """Check or show the configuration."""


@config_group.command("check")
@config_option
@command
def config_check(config: Path | None) -> None:
    """Say whether the configuration is valid, with every problem in it.

    It is that of the lmx that runs, as its file is now; else that of one that would be started
    here. The files of its models are looked at too. Exit code 4: something is wrong.
    """
    # With this a supervisor that is to be replaced tries the program that is to replace it: one
    # that lacks a module must not get that far.
    import lmx.supervisor.cli.serving.foreground  # noqa: F401
    from lmx.supervisor.config.extras import missing_extras
    from lmx.supervisor.config.load import InvalidConfigError, config_notices, overridden
    from lmx.supervisor.keys.file import KeyFile
    from lmx.supervisor.keys.notices import key_notices
    from lmx.supervisor.processes.handover import FOR_SUPERVISOR

    for_people = FOR_SUPERVISOR not in os.environ
    try:
        found = read_config(config)
    except InvalidConfigError as error:
        files = _file_problems(error.models, error.path) if for_people else []
        raise OperationError(error.code, "\n".join((error.message, *files))) from error
    checked = found.config
    for gap in checked.routing_gaps():
        click.echo(gap)
    notices = [
        *config_notices(found.path, found.variables),
        *overridden(found.path, found.variables),
        *missing_extras(checked),
    ]
    for notice in [*notices, *key_notices(checked, KeyFile(home().keys).peek().keys)]:
        click.echo(notice)
    # For a supervisor, a model whose files can't be read costs itself alone.
    files = _file_problems(checked.models, found.path) if for_people else []
    _report_not_in_effect(found)
    if files:
        raise OperationError(
            ErrorCode.CONFIG_INVALID,
            "\n".join((f"{found.words}: the files of models are missing or broken", *files)),
        )
    models = ", ".join(model.id for model in checked.models) or "no models"
    click.echo(f"ok: {found.words} ({models})")


def _file_problems(models: Sequence[ModelConfig], path: Path | None) -> list[str]:
    """Return a line for each model whose files can't be loaded."""
    from lmx.supervisor.config.load import source_lines
    from lmx.supervisor.processes.inspector import unreadable_models

    lines = source_lines(path)
    return [
        f"  - models.{model_id}{f' (line {lines[model_id]})' if model_id in lines else ''} {said}"
        for model_id, said in unreadable_models(models, home())
    ]


@config_group.command("show")
@config_option
@command
def config_show(config: Path | None) -> None:
    """Print the effective configuration as YAML: file, variables, options and defaults together.

    It is that of the lmx that runs, else that of one that would be started here.
    """
    import yaml

    found = read_config(config)
    _report_not_in_effect(found)
    click.echo(f"# {found.words}")
    shown = found.config.model_dump(mode="json")
    click.echo(yaml.safe_dump(shown, sort_keys=False, allow_unicode=True), nl=False)


def _report_not_in_effect(found: Found) -> None:
    if found.not_in_effect:
        sections = ", ".join(found.not_in_effect)
        click.echo(f"not in effect yet: {sections}; run `lmx reload`", err=True)
