"""What a request of Ollama's embeddings may hold."""

from typing import Annotated, Any

from pydantic import Field, Tag

from lmx.protocol.messages.tasks import Embed
from lmx.router.schema.requests.generation import ResidencyFields, keep_alive_of
from lmx.router.schema.requests.tasks import MAX_INPUTS
from lmx.router.schema.validation import (
    LIST,
    TEXT,
    TEXT_OR_LIST,
    FreeObject,
    NonEmpty,
    Positive,
    validated,
)
from lmx.router.workers.dispatch import COMPUTE_DEADLINE_S


class OllamaEmbedFields(ResidencyFields):
    """The fields that the newer and the older request share."""

    model: str
    """The id, an alias or the source of an embedding model, also with `:latest` at its end."""
    options: FreeObject | None = None
    """Options are accepted, and change nothing."""


class OllamaEmbedRequest(OllamaEmbedFields):
    """The body of POST /api/embed."""

    input: Annotated[
        Annotated[str, Tag(TEXT)]
        | Annotated[list[NonEmpty], Field(max_length=MAX_INPUTS, fail_fast=True), Tag(LIST)],
        TEXT_OR_LIST,
    ]
    """A text, or an array of texts. Of an empty one there are no vectors."""
    dimensions: Positive | None = None
    """How many of each vector's first numbers are returned, scaled to length 1. Default: all."""
    truncate: bool | None = None
    """A text that is longer than the model's context is cut off at its end. With false it is a 400.
    Default: true."""


class OllamaEmbeddingsRequest(OllamaEmbedFields):
    """The body of POST /api/embeddings, which is older. A text that is too long is cut off."""

    prompt: str
    """A text. Of an empty one the vector is empty."""


def parse_ollama_embed(body: dict[str, Any]) -> tuple[OllamaEmbedRequest, Embed]:
    """Return the checked request, and the task for a worker. Raises :class:`RequestError` (400) for
    the first fault."""
    request = validated(OllamaEmbedRequest, body)
    given = request.input
    texts = tuple(given) if not isinstance(given, str) else (given,) if given else ()
    return request, _task(
        request, texts, request.dimensions, truncate=request.truncate is not False
    )


def parse_ollama_embeddings(body: dict[str, Any]) -> tuple[OllamaEmbeddingsRequest, Embed]:
    """Return the checked request, and the task for a worker. Raises as
    :func:`parse_ollama_embed`."""
    request = validated(OllamaEmbeddingsRequest, body)
    texts = (request.prompt,) if request.prompt else ()
    return request, _task(request, texts, None, truncate=True)


def _task(
    request: OllamaEmbedFields, texts: tuple[str, ...], dimensions: int | None, *, truncate: bool
) -> Embed:
    return Embed(
        0,
        "",
        COMPUTE_DEADLINE_S,
        texts=texts,
        dimensions=dimensions,
        keep_alive_s=keep_alive_of(request),
        truncate=truncate,
    )
