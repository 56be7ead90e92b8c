"""POST /v1/embeddings: texts to vectors."""

import secrets
from base64 import b64encode
from collections.abc import Callable
from typing import Final, Literal

import orjson
from aiohttp import web

from lmx.protocol.messages.tasks import Vectors
from lmx.router.event_loop import yield_to_loop
from lmx.router.http.responses import Answer, json_pieces
from lmx.router.inference.model_choice import models_of_kind
from lmx.router.inference.tasks import Computed, compute, floats_of, read_task, vectors_of
from lmx.router.jobs.live import RequestKind
from lmx.router.rendering.envelope import Usage
from lmx.router.schema.requests.tasks import EMBEDDING, EmbeddingRequest, parse_embedding

_AT_ONCE: Final = 16
"""How many vectors are written out before other requests get their turn on the loop: some
milliseconds of work."""


class Embedding(Answer):
    """The vector of one input."""

    object: Literal["embedding"]
    index: int
    """The input's place in the request, from 0."""
    embedding: list[float] | str
    """The vector: numbers, or with `base64` its 32-bit floats, little-endian, as text."""


class EmbeddingList(Answer):
    """A vector for each input, in the inputs' order."""

    object: Literal["list"]
    data: list[Embedding]
    """The vectors."""
    model: str
    """The id of the model that answered."""
    usage: Usage
    """How many tokens it took."""


async def embeddings(request: web.Request) -> web.Response:
    """Return a vector for each input, in the inputs' order."""
    wanted, embed = await read_task(request, parse_embedding, EmbeddingRequest, EMBEDDING)
    models = await models_of_kind(request, wanted.model)
    answer_id = f"embd-{secrets.token_hex(12)}"
    computed = await compute(request, models, embed, RequestKind.EMBEDDING, answer_id)
    write = _in_base64 if wanted.encoding_format == "base64" else _as_object
    data = await written_vectors(computed, write)
    rest = orjson.dumps({"model": computed.model_id, "usage": computed.usage})
    return json_pieces([b'{"object":"list","data":[', *data, b"]," + rest[1:]])


async def written_vectors(computed: Computed, write: Callable[[int, bytes], bytes]) -> list[bytes]:
    """Return the vectors of the texts, in the texts' order, each as ``write`` writes it out. That
    gets the text's index, and the vector as 32-bit floats. All but the first begin with a comma."""
    texts: dict[int, bytes] = {}
    for part in computed.parts:
        assert isinstance(part, Vectors)
        for index, vector in vectors_of(part):
            texts[index] = (b"," if index else b"") + write(index, vector)
            if len(texts) % _AT_ONCE == 0:
                await yield_to_loop()
    return [texts[index] for index in range(len(texts))]


def _as_object(index: int, vector: bytes) -> bytes:
    return orjson.dumps({"object": "embedding", "index": index, "embedding": floats_of(vector)})


def _in_base64(index: int, vector: bytes) -> bytes:
    shown = b64encode(vector).decode()
    return orjson.dumps({"object": "embedding", "index": index, "embedding": shown})


def as_array(_index: int, vector: bytes) -> bytes:
    """Write a vector out as an array of numbers."""
    return orjson.dumps(floats_of(vector))
