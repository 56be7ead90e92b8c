"""The name of a model as an argument of a command. A shell that asks gets the names there are."""

from __future__ import annotations

import os
from typing import Final

import click
from click.shell_completion import CompletionItem

_ANSWER_S: Final = 1.0
"""A person who has pressed the tab key waits no longer."""


class ModelName(click.types.StringParamType):
    """Any text: whether a model has that name is said by whoever looks it up."""

    name = "model"

    def shell_complete(
        self, _context: click.Context, _parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the names of models that begin as what was typed. A failure is silent, because
        there is a half typed line on the terminal."""
        try:
            names = model_names()
        except Exception:
            return []
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def model_names() -> list[str]:
    """Return the ids and aliases of the models of the lmx that runs, else of the configuration."""
    from lmx.supervisor.sockets.client import ControlClient, supervisor_runs
    from lmx.supervisor.state.home import Home

    home = Home.from_environment(os.environ)
    if supervisor_runs(home):
        with ControlClient(home, _ANSWER_S) as client:
            workers = client.status().workers
        return [name for one in workers for name in (one.model, *one.aliases)]
    from lmx.supervisor.cli.command import read_config
    from lmx.supervisor.inventory.added import with_added
    from lmx.supervisor.inventory.added_file import AddedFile

    served = with_added(read_config(None).config, AddedFile(home.added_models).read())
    return [name for model in served.models for name in model.names]


MODEL: Final = ModelName()
