"""``lmx completion``: what makes a shell complete commands, options and the names of models."""

import contextlib
import os
from collections.abc import Callable, Iterable
from typing import Final

import click
from click.shell_completion import CompletionItem, get_completion_class

from lmx.supervisor.cli.command import command, remote_place, served_config

_ANSWER_S: Final = 1.0
"""A person who has pressed the tab key waits no longer."""


class ModelName(click.types.StringParamType):
    """Any text: whether a model has that name is said by whoever looks it up."""

    name = "model"

    def __init__(self, *sources: Callable[[click.Context], Iterable[str]]) -> None:
        self._sources = sources
        """Functions that return names. One that fails has none."""

    def shell_complete(
        self, context: click.Context, _parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the names that begin as what was typed. A failure is silent, because there is a
        half typed line on the terminal."""
        names: dict[str, None] = {}
        for source in self._sources:
            with contextlib.suppress(Exception):
                names |= dict.fromkeys(source(context))
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def model_names(context: click.Context) -> list[str]:
    """Return the ids and aliases of the models of the lmx that runs, else of the configuration."""
    from lmx.supervisor.sockets.client import open_client, supervisor_runs
    from lmx.supervisor.state.home import Home

    home = Home.from_environment(os.environ)
    place = remote_place(context) or home
    if place is not home or supervisor_runs(home):
        with open_client(place, _ANSWER_S) as client:
            workers = client.status().workers
        return [name for one in workers for name in (one.model, *one.aliases)]
    return [name for model in served_config().models for name in model.names]


def short_names(_context: click.Context) -> Iterable[str]:
    """Return the short names of models of the hub."""
    from lmx.supervisor.config.known_models import KNOWN_MODELS

    return KNOWN_MODELS


MODEL: Final = ModelName(model_names)
SHORT_NAME: Final = ModelName(short_names)
MODEL_OR_SHORT_NAME: Final = ModelName(model_names, short_names)


_PROGRAM: Final = "lmx"
_SHELLS: Final = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script for SHELL: commands, options and names of models.

    \b
    bash:  lmx completion bash >> ~/.bashrc
    zsh:   lmx completion zsh >> ~/.zshrc        (below the line with compinit)
    fish:  lmx completion fish > ~/.config/fish/completions/lmx.fish
    """
    _print(context, shell)


@command
def _print(context: click.Context, shell: str) -> None:
    kind = get_completion_class(shell)
    assert kind is not None  # click has the shells that may be chosen
    made = kind(context.find_root().command, {}, _PROGRAM, f"_{_PROGRAM.upper()}_COMPLETE")
    # Not `made.source()`: for bash it starts a bash to see how old that one is.
    click.echo(made.source_template % made.source_vars())
