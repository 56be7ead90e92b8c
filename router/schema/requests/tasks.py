"""The fields of requests that generate nothing: embeddings, reranking, tokenizing."""

from typing import Annotated, Any, Final, Literal

from pydantic import Field, Tag

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages.tasks import Detokenize, Embed, Rerank, Tokenize
from lmx.router.media.source import PartSource
from lmx.router.schema.requests.completions import (
    ID_LISTS,
    IDS,
    MAX_PROMPT_TOKENS,
    PROMPT_FORM,
    TEXTS,
    TokenArray,
)
from lmx.router.schema.requests.conversation.media import VideoDefaults
from lmx.router.schema.requests.conversation.messages import (
    Messages,
    check_messages,
    plain_messages,
)
from lmx.router.schema.requests.conversation.tools import ToolFields, tool_use_of
from lmx.router.schema.requests.generation import ResidencyFields, keep_alive_of
from lmx.router.schema.requests.unsupported import refuse_unsupported
from lmx.router.schema.validation import (
    LIST,
    OBJECT,
    TEXT,
    TEXT_OR_LIST,
    TEXT_OR_OBJECT,
    Count,
    FreeObject,
    NonEmpty,
    Positive,
    Strict,
    invalid,
    unsupported,
    validated,
)
from lmx.router.workers.dispatch import COMPUTE_DEADLINE_S, TOKENIZE_DEADLINE_S

MAX_INPUTS: Final = 2048
"""OpenAI's limit."""

_INPUTS: Final = Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True)

_Input = Annotated[
    Annotated[NonEmpty, Tag(TEXT)]
    | Annotated[list[NonEmpty], _INPUTS, Tag(TEXTS)]
    | Annotated[TokenArray, Tag(IDS)]
    | Annotated[list[TokenArray], _INPUTS, Tag(ID_LISTS)],
    PROMPT_FORM,
]

EMBEDDING: Final[dict[str, tuple[Any, ...]]] = {
    "add_special_tokens": (True,),
    "normalize": (True,),
    "truncate_prompt_tokens": (),
}
"""Maps a field to the values that mean the same as leaving it out, as in :mod:`unsupported`."""

RERANK: Final[dict[str, tuple[Any, ...]]] = {
    "max_chunks_per_doc": (),
    "max_tokens_per_doc": (),
    "rank_fields": (["text"], []),
    "truncate_prompt_tokens": (),
}
SCORE: Final[dict[str, tuple[Any, ...]]] = {
    "mm_processor_kwargs": ({},),
    "truncate_prompt_tokens": (),
    "use_activation": (True,),
}
TOKENIZE: Final[dict[str, tuple[Any, ...]]] = {
    "chat_template": (),
    "continue_final_message": (False,),
    "mm_processor_kwargs": ({},),
}


class EmbeddingRequest(ResidencyFields):
    """The body of POST /v1/embeddings."""

    model: str | None = None
    """The id, an alias or the source of an embedding model. Default: the configured one."""
    input: _Input
    """A text, or an array of texts, of tokens, or of arrays of tokens."""
    encoding_format: Literal["float", "base64"] | None = None
    """Numbers, or 32-bit floats in base64. Default: float."""
    dimensions: Positive | None = None
    """How many of each vector's first numbers are returned, scaled to length 1. Default: all."""
    user: str | None = None
    """It is accepted, and changes nothing."""


class Document(Strict):
    """A document as an object."""

    text: NonEmpty
    """The document's text."""


class RerankRequest(ResidencyFields):
    """The body of POST /v1/rerank."""

    model: str | None = None
    """The id, an alias or the source of a reranking model. Default: the configured one."""
    query: NonEmpty
    """What the documents are to answer."""
    documents: Annotated[
        list[
            Annotated[
                Annotated[NonEmpty, Tag(TEXT)] | Annotated[Document, Tag(OBJECT)], TEXT_OR_OBJECT
            ]
        ],
        _INPUTS,
    ]
    """Texts, or objects with a `text`."""
    top_n: Positive | None = None
    """How many of the best are returned. Default: all."""
    return_documents: bool | None = None
    """The answer repeats the texts. Default: true."""

    @property
    def texts(self) -> tuple[str, ...]:
        """The documents' texts."""
        return tuple(
            document if isinstance(document, str) else document.text for document in self.documents
        )


_Texts = Annotated[
    Annotated[NonEmpty, Tag(TEXT)] | Annotated[list[NonEmpty], _INPUTS, Tag(LIST)], TEXT_OR_LIST
]


class ScoreRequest(ResidencyFields):
    """The body of POST /v1/score: one text and several, or as many as others."""

    model: str | None = None
    """The id, an alias or the source of a reranking or embedding model. Default: the configured
    one."""
    text_1: _Texts
    """The first text of each pair: one for all, or as many as there are second ones."""
    text_2: _Texts
    """The second texts of the pairs: one or several."""

    @property
    def first(self) -> tuple[str, ...]:
        """The first texts of the pairs: one, or as many as the second."""
        return (self.text_1,) if isinstance(self.text_1, str) else tuple(self.text_1)

    @property
    def second(self) -> tuple[str, ...]:
        """The second texts of the pairs."""
        return (self.text_2,) if isinstance(self.text_2, str) else tuple(self.text_2)


class TokenizerInfoQuery(Strict):
    """The query of GET /tokenizer_info."""

    model: str | None = None
    """The id, an alias or the source of a model. Default: the configured one."""


class TokenizeRequest(ToolFields, VideoDefaults):
    """The body of POST /tokenize: ``prompt``, or ``messages``."""

    model: str | None = None
    """The id, an alias or the source of a model. Default: the configured one."""
    prompt: str | None = None
    """A text. Either this or `messages` must be given."""
    messages: Messages | None = None
    """A conversation. Either this or `prompt` must be given."""
    add_special_tokens: bool | None = None
    """The tokens that begin or end a text for this model are added. Default: true."""
    add_generation_prompt: bool | None = None
    """The conversation ends with the start of an answer. Default: true."""
    return_token_strs: bool | None = None
    """The answer has the tokens as texts too. Default: false."""
    chat_template_kwargs: FreeObject | None = None
    """Values for the model's chat template. Default: the model's configuration."""


class DetokenizeRequest(Strict):
    """The body of POST /detokenize."""

    model: str | None = None
    """The id, an alias or the source of a model. Default: the configured one."""
    tokens: Annotated[list[Count], Field(max_length=MAX_PROMPT_TOKENS, fail_fast=True)]
    """Token ids."""


def parse_embedding(body: dict[str, Any]) -> tuple[EmbeddingRequest, Embed]:
    """Return the checked request, and the request to a worker, without its id. Raises
    :class:`RequestError` (400) for the first fault, as the other functions here do."""
    request = validated(EmbeddingRequest, body)
    refuse_unsupported(body, EMBEDDING)
    inputs = request.input
    if isinstance(inputs, str):
        inputs = [inputs]
    # It is one input of tokens, or inputs of one kind: the first shows the kind of all.
    texts: tuple[str, ...] = ()
    tokens: tuple[tuple[int, ...], ...] = ()
    match inputs[0]:
        case str():
            texts = tuple(inputs)
        case list():
            tokens = tuple(map(tuple, inputs))
        case _:
            tokens = (tuple(inputs),)
    return request, Embed(
        0, "", COMPUTE_DEADLINE_S, texts, tokens, request.dimensions, keep_alive_of(request)
    )


def parse_rerank(body: dict[str, Any]) -> tuple[RerankRequest, Rerank]:
    """Return the checked request, and the request to a worker."""
    request = validated(RerankRequest, body)
    refuse_unsupported(body, RERANK)
    return request, Rerank(
        0, "", COMPUTE_DEADLINE_S, request.query, request.texts, keep_alive_of(request)
    )


def parse_score(body: dict[str, Any]) -> ScoreRequest:
    """Return the checked request."""
    request = validated(ScoreRequest, body)
    refuse_unsupported(body, SCORE)
    if len(request.first) not in (1, len(request.second)):
        raise invalid(
            "text_1",
            f"has {len(request.first)} texts and `text_2` {len(request.second)}: give one text "
            "and several, or as many as others.",
        )
    return request


def reranking_of(request: ScoreRequest) -> Rerank:
    """Return the request to a reranking model for pairs of texts."""
    first = request.first
    return Rerank(
        0,
        "",
        COMPUTE_DEADLINE_S,
        first[0],
        request.second,
        keep_alive_of(request),
        queries=first if len(first) > 1 else (),
    )


def embedding_of(request: ScoreRequest) -> Embed:
    """Return the request to an embedding model for pairs of texts."""
    texts = (*request.first, *request.second)
    return Embed(0, "", COMPUTE_DEADLINE_S, texts, keep_alive_s=keep_alive_of(request))


def parse_tokenize(
    body: dict[str, Any],
) -> tuple[TokenizeRequest, Tokenize, tuple[PartSource, ...]]:
    """Return the checked request, the request to a worker, and where the media of its messages come
    from."""
    request = validated(TokenizeRequest, body)
    refuse_unsupported(body, TOKENIZE)
    if (request.prompt is None) == (request.messages is None):
        raise RequestError(
            ErrorCode.MISSING_PARAMETER if request.prompt is None else ErrorCode.INVALID_VALUE,
            "Give either `prompt` or `messages`, one of the two.",
            param="prompt",
        )
    if request.messages is None:
        task = Tokenize(
            0,
            "",
            TOKENIZE_DEADLINE_S,
            text=request.prompt,
            add_special_tokens=request.add_special_tokens is not False,
            pieces=bool(request.return_token_strs),
        )
        return request, task, ()
    check_messages(request.messages)
    messages, media = plain_messages(request.messages, request)
    if request.add_special_tokens:
        raise unsupported(
            "add_special_tokens", "is for `prompt`: with `messages` the chat template has them."
        )
    task = Tokenize(
        0,
        "",
        TOKENIZE_DEADLINE_S,
        messages=messages,
        add_generation_prompt=request.add_generation_prompt is not False,
        template_kwargs=request.chat_template_kwargs,
        tool_use=tool_use_of(request),
        pieces=bool(request.return_token_strs),
    )
    return request, task, media


def parse_detokenize(body: dict[str, Any]) -> tuple[DetokenizeRequest, Detokenize]:
    """Return the checked request, and the request to a worker."""
    request = validated(DetokenizeRequest, body)
    return request, Detokenize(0, "", TOKENIZE_DEADLINE_S, tuple(request.tokens))
