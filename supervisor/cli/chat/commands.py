"""Commands that talk with a model."""

import click

from lmx.supervisor.cli.command import command, place
from lmx.supervisor.cli.completion import MODEL


@click.command()
@click.argument("model", required=False, type=MODEL)
@command
def chat(model: str | None) -> None:
    """Talk with MODEL in the terminal.

    Without MODEL it is one that is loaded. Ctrl-C stops an answer, Ctrl-D leaves, /help lists the
    commands. What comes through a pipe gets one answer.

    \b
    Examples:
      lmx chat qwen3-8b
      echo "Why is the sky blue?" | lmx chat
      git diff | lmx chat > review.txt
    """
    from lmx.supervisor.cli.chat.session import chat as talk

    talk(place(), model, None)


@click.command()
@click.argument("model", type=MODEL)
@click.argument("prompt", nargs=-1)
@command
def run(model: str, prompt: tuple[str, ...]) -> None:
    """Talk with MODEL, or have it answer PROMPT; what is not here is downloaded first.

    MODEL is also a short name or org/name of the hub, as for `lmx pull`.

    \b
    Examples:
      lmx run qwen3-8b
      lmx run qwen3-8b "Why is the sky blue?"
    """
    from lmx.supervisor.cli.chat.session import chat as talk

    talk(place(), model, " ".join(prompt) or None, fetch=True)
