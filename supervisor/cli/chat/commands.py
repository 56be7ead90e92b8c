"""Commands that talk with a model."""

from collections.abc import Callable
from typing import Any

import click

from lmx.supervisor.cli.command import Number, command, place
from lmx.supervisor.cli.completion import MODEL, MODEL_OR_SHORT_NAME


def _conversation_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options of :func:`_talk` to a command."""
    for decorate in (
        click.option("--stats", is_flag=True, help="Show tokens and speed after each answer."),
        click.option(
            "--image", "images", multiple=True, metavar="FILE",
            help="Send an image with the first message.",
        ),
        click.option("--max-tokens", type=click.IntRange(1), help="Limit of each answer."),
        click.option("--temperature", type=Number(0, 2), help="0 is the least random."),
        click.option("--system", metavar="TEXT", help="System prompt: how the model is to answer."),
    ):  # fmt: skip
        function = decorate(function)
    return function


def _talk(
    model: str | None,
    prompt: str | None,
    *,
    system: str | None,
    temperature: float | None,
    max_tokens: int | None,
    images: tuple[str, ...],
    stats: bool,
    fetch: bool = False,
    **parameters: Any,
) -> None:
    from lmx.supervisor.cli.chat.conversation import Conversation, typed_text
    from lmx.supervisor.cli.chat.session import chat as talk
    from lmx.supervisor.cli.chat.session import image_part

    given = {"temperature": temperature, "max_tokens": max_tokens, **parameters}
    conversation = Conversation(
        "",
        None if system is None else typed_text(system),
        attached=[image_part(name) for name in images],
        parameters={name: value for name, value in given.items() if value is not None},
        stats=stats,
    )
    asked = None if prompt is None else typed_text(prompt)
    talk(place(), model, asked, conversation, fetch=fetch)


@click.command()
@click.argument("model", required=False, type=MODEL)
@_conversation_options
@command
def chat(model: str | None, **options: Any) -> None:
    """Talk with MODEL in the terminal; starts lmx if it does not run.

    Without MODEL it is one that is loaded. Ctrl-C stops an answer, Ctrl-D leaves, /help lists the
    commands. What comes through a pipe gets one answer.

    \b
    Examples:
      lmx chat qwen3-8b
      lmx chat --system "Answer in one sentence." --temperature 0
      echo "Why is the sky blue?" | lmx chat
      git diff | lmx chat > review.txt
    """
    _talk(model, None, **options)


@click.command()
@click.argument("model", type=MODEL_OR_SHORT_NAME)
@click.argument("prompt", nargs=-1)
@_conversation_options
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    help="json: the model answers with a JSON object.",
)
@command
def run(model: str, prompt: tuple[str, ...], form: str, **options: Any) -> None:
    """Talk with MODEL, or have it answer PROMPT; starts lmx and downloads MODEL first if need be.

    MODEL is also a short name or org/name of the hub, as for `lmx pull`.

    \b
    Examples:
      lmx run qwen3-8b
      lmx run qwen3-8b "Why is the sky blue?"
      lmx run gemma3-4b "What is this?" --image photo.jpg
      lmx run qwen3-8b "Three colours, as JSON" --format json
    """
    response_format = {"type": "json_object"} if form == "json" else None
    asked = " ".join(prompt) or None
    _talk(model, asked, fetch=True, response_format=response_format, **options)
