"""What Ollama's requests that generate text share (options, forms and thinking), and the requests
about one model."""

from typing import Annotated, Any, Literal

import orjson
from pydantic import Field, Tag, model_validator

from lmx.protocol.messages.data import Structure, Thinking
from lmx.protocol.states import StructureKind
from lmx.router.schema.requests.generation import AnswerFields, Stops, Think, texts_of
from lmx.router.schema.requests.sampling import ParameterFields, parameter
from lmx.router.schema.validation import (
    INT64_MAX,
    INT64_MIN,
    MAX_COUNT,
    OBJECT,
    TEXT,
    TEXT_OR_OBJECT,
    FreeObject,
    Strict,
    missing,
    validated,
)


class Options(ParameterFields):
    """How the answer is made. Options that are not here are named in `X-Lmx-Ignored`, and change
    nothing: above all `num_ctx`, since a model's context is configured."""

    num_predict: Annotated[int, Field(ge=-2, le=MAX_COUNT)] | None = None
    """How many tokens the answer has at most. 0, -1 and -2: as many as fit into the context.
    Default: the model's, else up to the context."""
    stop: Stops = None
    """Texts that end the answer, and are not in it: one, or up to 64. Default: none."""
    seed: Annotated[int, Field(ge=INT64_MIN, le=INT64_MAX)] | None = None
    """The same seed draws the same tokens. -1 is the same as none. Default: random."""
    repeat_penalty: float | None = parameter("repetition_penalty")

    @model_validator(mode="before")
    @classmethod
    def _whole(cls, options: Any) -> Any:
        """Return options whose whole numbers may be written as 128.0: to Ollama they are the same,
        and programs send them so."""
        if not isinstance(options, dict):
            return options
        whole = {
            name: int(value)
            for name in ("num_predict", "seed", "top_k")
            if isinstance(value := options.get(name), float) and value.is_integer()
        }
        return {**options, **whole}


class OllamaFields(AnswerFields):
    """The fields that both kinds of request share."""

    model: str
    """The id, an alias or the source of a model, or a name that routes (`auto` ...); each also with
    `:latest` at its end."""
    stream: bool | None = None
    """The answer is sent as it comes, as lines of JSON. Default: true."""
    format: (
        Annotated[
            Annotated[Literal["", "json"], Tag(TEXT)] | Annotated[FreeObject, Tag(OBJECT)],
            TEXT_OR_OBJECT,
        ]
        | None
    ) = None
    """The form that the answer must have: `json` for any JSON object, or a JSON schema. It is
    enforced while the answer is written. Default: text."""
    options: Options | None = None
    """How the answer is made. Default: the model's."""
    think: Think | None = None
    """Whether, or with how much effort, the model thinks before it answers, for models that can
    switch it. Of a model that does not think, anything but false is a 400. Default: the model's."""
    logprobs: bool | None = None
    """The tokens of the answer come with their logprobs. Default: false."""
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    """With `logprobs`, how many of the likeliest tokens are shown in the place of each. Default:
    none."""

    @property
    def streams(self) -> bool:
        return self.stream is not False

    @property
    def token_limit(self) -> int | None:
        limit = self.options.num_predict if self.options else None
        return limit if limit is None or limit > 0 else MAX_COUNT

    @property
    def stop_texts(self) -> tuple[str, ...]:
        return texts_of(self.options.stop if self.options else None)

    @property
    def thinking(self) -> Thinking:
        """How the model thinks."""
        if isinstance(self.think, str):
            return Thinking(self.think, enabled=True, param="think", required=True)
        return Thinking(enabled=self.think, param="think", required=bool(self.think))

    @property
    def drawing(self) -> Options:
        return self.options or Options()

    @property
    def structure(self) -> Structure | None:
        """The form that the answer must have."""
        if not self.format:
            return None
        if isinstance(self.format, str):
            return Structure(StructureKind.JSON_OBJECT, "", "format")
        return Structure(StructureKind.JSON_SCHEMA, orjson.dumps(self.format).decode(), "format")


def ignored_options(body: dict[str, Any]) -> list[str]:
    """Return the options that change nothing."""
    options = body.get("options")
    if not isinstance(options, dict):
        return []
    return [f"options.{name}" for name in options if name not in Options.model_fields]


class OllamaModelName(Strict):
    """The name of a model."""

    model: str | None = None
    """The id, an alias or the source of a model, also with `:latest` at its end."""
    name: str | None = None
    """An older name of `model`."""


class OllamaShowRequest(OllamaModelName):
    """The body of POST /api/show."""

    verbose: bool | None = None
    """It is accepted, and changes nothing."""


def parse_ollama_show(body: dict[str, Any]) -> str:
    """Return the name of the model. Raises :class:`RequestError` (400) for the first fault."""
    return name_of(validated(OllamaShowRequest, body))


def name_of(request: OllamaModelName) -> str:
    """Return the name that a request gives. Raises :class:`RequestError` if it gives none."""
    name = request.model or request.name
    if not name:
        raise missing("model")
    return name


class OllamaPullRequest(OllamaModelName):
    """The body of POST /api/pull."""

    stream: bool | None = None
    """The answer comes as lines of JSON. Default: true."""
    insecure: bool | None = None
    """It is accepted, and changes nothing."""


def parse_ollama_pull(body: dict[str, Any]) -> tuple[str, bool]:
    """Return the name of the model, and whether the answer comes as lines of JSON. Raises
    :class:`RequestError` (400) for the first fault."""
    request = validated(OllamaPullRequest, body)
    return name_of(request), request.stream is not False
