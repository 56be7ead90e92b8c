"""``lmx completion``: what makes a shell complete commands, options and models."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import get_completion_class

from lmx.supervisor.cli.command import command

_PROGRAM: Final = "lmx"
_SHELLS: Final = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print what makes SHELL complete commands, options and the names of models.

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
