"""What a request of Ollama's completion may hold."""

from functools import cached_property
from typing import Annotated, Any

from pydantic import Field

from lmx.protocol.messages.data import Generate, Infill
from lmx.router.media.source import MediaSource
from lmx.router.rendering.ollama_context import MOST_NUMBERS, Turn, turns_of
from lmx.router.schema.requests.conversation.messages import MAX_CALLS, MAX_MESSAGES
from lmx.router.schema.requests.ollama.chat import generation, loading, with_images
from lmx.router.schema.requests.ollama.common import OllamaFields
from lmx.router.schema.validation import invalid, unsupported, validated


class OllamaGenerateRequest(OllamaFields):
    """The body of POST /api/generate."""

    prompt: str | None = None
    """What the model answers; with `raw`, what it continues. None or an empty one: the model is
    loaded, and with a `keep_alive` of 0 unloaded."""
    system: str | None = None
    """The system prompt. Default: none."""
    raw: bool | None = None
    """The prompt is not put into the model's template. Default: false."""
    suffix: str | None = None
    """What comes after the answer: the model fills the gap between the prompt and this, without
    its template. A model without tokens for that is a 400. Default: none."""
    images: Annotated[list[str], Field(max_length=MAX_CALLS)] | None = None
    """Pictures as base64, before the prompt."""
    context: Annotated[list[int], Field(max_length=MOST_NUMBERS, fail_fast=True)] | None = None
    """The `context` of an earlier answer: the prompt continues that conversation, of any model.
    Pictures are not in it. Default: none."""
    template: str | None = None
    """A text that is not empty is a 400: the prompt has the form of the model's own template."""

    @property
    def only_loads(self) -> bool:
        """Whether there is nothing to answer."""
        return not self.prompt and not self.suffix

    @property
    def in_template(self) -> bool:
        """Whether the prompt is put into the model's template."""
        return not self.raw and not self.suffix

    @cached_property
    def turns(self) -> list[Turn]:
        """The conversation with the prompt as its last turn. Raises :class:`RequestError` for a
        `context` that lmx did not make."""
        try:
            earlier = turns_of(self.context) if self.context else []
            if len(earlier) >= MAX_MESSAGES:
                raise ValueError(f"it has more than {MAX_MESSAGES} turns")
        except ValueError as error:
            raise invalid(
                "context",
                f"is not one that lmx has returned: {error}. Send it as it was, or the "
                "conversation as `messages` to /api/chat.",
            ) from error
        if self.system:
            earlier = [("system", self.system), *(one for one in earlier if one[0] != "system")]
        return [*earlier, ("user", self.prompt or "")]


def parse_ollama_generate(
    body: dict[str, Any],
) -> tuple[OllamaGenerateRequest, Generate, tuple[MediaSource, ...]]:
    """Return the checked request, the request to a worker, without ids, credit and media, and where
    the media come from. Raises :class:`RequestError` (400) for the first fault."""
    request = validated(OllamaGenerateRequest, body)
    if request.template:
        raise unsupported(
            "template",
            "is not supported, since the prompt has the form of the model's own: leave it out, "
            "or write the whole prompt with `raw`.",
        )
    if request.only_loads:
        return request, loading(request), ()
    if not request.in_template:
        for name in ("images", "system", "context"):
            if getattr(request, name):
                raise unsupported(
                    name,
                    f"can't be combined with `{'raw' if request.raw else 'suffix'}`: the model's "
                    "template would put it into the prompt.",
                )
        infill = Infill(request.suffix) if request.suffix else None
        prompt = request.prompt or ""
        return request, generation(request, prompt=prompt, infill=infill, parse=False), ()
    sources: list[MediaSource] = []
    *earlier, (role, prompt) = request.turns
    content = with_images(prompt, request.images or (), "images", sources)
    messages = (
        *({"role": speaker, "content": text} for speaker, text in earlier),
        {"role": role, "content": content},
    )
    return request, generation(request, messages=messages), tuple(sources)
