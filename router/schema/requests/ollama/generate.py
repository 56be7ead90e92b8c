"""What a request of Ollama's completion may hold."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages.data import Generate
from lmx.router.media.source import MediaSource
from lmx.router.schema.requests.conversation.messages import MAX_CALLS
from lmx.router.schema.requests.ollama.chat import generation, loading, with_images
from lmx.router.schema.requests.ollama.common import OllamaFields
from lmx.router.schema.validation import validated


class OllamaGenerateRequest(OllamaFields):
    """The body of POST /api/generate."""

    prompt: str | None = None
    """What the model answers; with `raw`, what it goes on with. None or an empty one: the model is
    loaded, and with a `keep_alive` of 0 unloaded."""
    system: str | None = None
    """The system prompt. Default: none."""
    raw: bool | None = None
    """The prompt is not put into the model's template. Default: false."""
    suffix: str | None = None
    """What comes after the answer. A text that is not empty is a 400."""
    images: Annotated[list[str], Field(max_length=MAX_CALLS)] | None = None
    """Pictures as base64, before the prompt."""

    @property
    def only_loads(self) -> bool:
        """Whether there is nothing to answer."""
        return not self.prompt


def parse_ollama_generate(
    body: dict[str, Any],
) -> tuple[OllamaGenerateRequest, Generate, tuple[MediaSource, ...]]:
    """Return the checked request, the request to a worker, without ids, credit and media, and where
    the media come from. Raises :class:`RequestError` (400) for the first fault."""
    request = validated(OllamaGenerateRequest, body)
    if request.suffix:
        raise RequestError(
            ErrorCode.UNSUPPORTED_VALUE,
            "`suffix` is not supported: write the whole of what the model goes on with into "
            "`prompt`, with `raw`.",
            param="suffix",
        )
    if not request.prompt:
        return request, loading(request), ()
    if request.raw:
        if request.images:
            raise RequestError(
                ErrorCode.UNSUPPORTED_VALUE,
                "`images` can't be combined with `raw`: the model's template puts them into the "
                "prompt.",
                param="images",
            )
        return request, generation(request, prompt=request.prompt, parse=False), ()
    system = [{"role": "system", "content": request.system}] if request.system else []
    sources: list[MediaSource] = []
    content = with_images(request.prompt, request.images or (), "images", sources)
    messages = (*system, {"role": "user", "content": content})
    return request, generation(request, messages=messages), tuple(sources)
