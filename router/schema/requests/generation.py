"""What every request that generates text may hold, chat or completion."""

import math
from dataclasses import replace
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, WithJsonSchema
from pydantic_core import PydanticCustomError, PydanticKnownError

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages.data import BACKGROUND_PRIORITY, Generate
from lmx.protocol.models.keep_alive import parse_keep_alive
from lmx.router.schema.requests.sampling import (
    SamplingFields,
    assist_of,
    only_value,
    sampling_of,
    search_of,
)
from lmx.router.schema.requests.structure import StructureFields, structure_of
from lmx.router.schema.validation import LIST, MAX_COUNT, TEXT, TEXT_OR_LIST, Count, Strict, invalid

_LabelName = Annotated[str, Field(max_length=64)]
_LabelText = Annotated[str, Field(max_length=512)]
_MAX_LABELS: Final = 16
_SWITCH: Final = "<switch>"


def _counted(labels: Any) -> Any:
    # pydantic checks all of them first, and would describe each fault.
    if isinstance(labels, dict) and len(labels) > _MAX_LABELS:
        raise PydanticKnownError(
            "too_long",
            {
                "field_type": "Dictionary",
                "max_length": _MAX_LABELS,
                "actual_length": len(labels),
            },
        )
    return labels


Labels = Annotated[
    dict[_LabelName, _LabelText], Field(max_length=_MAX_LABELS), BeforeValidator(_counted)
]
"""OpenAI's limits: what is shown again has the form that clients expect."""


FLEX: Final = "flex"
"""The tier of requests that may wait."""


class LabelFields(Strict):
    """Who asks, what for, and how it is billed."""

    user: str | None = None
    """It is accepted, and changes nothing."""
    metadata: Labels | None = None
    """It is accepted, and changes nothing: up to 16 names of up to 64 characters, each with a
    string of up to 512. A response of `/v1/responses` shows it again."""
    safety_identifier: str | None = None
    """It is accepted, and changes nothing."""
    service_tier: str | None = None
    """`flex`: the request runs only while no other request needs the model, as lines of batches do:
    it waits while another one runs or waits there, and is paused when one comes. Any other value
    changes nothing. An answer says which it was, `flex` or `default`."""
    prompt_cache_key: str | None = None
    """It is accepted, and changes nothing: prefixes are found by themselves, and `cache_salt` keeps
    them apart."""
    prompt_cache_retention: str | None = None
    """It is accepted, and changes nothing: prefixes are cached while they fit."""
    store: bool | None = None
    """It is accepted, and changes nothing: `jobs` in the configuration decides what is kept of an
    answer."""
    verbosity: Literal["low", "medium", "high"] | None = None
    """It is accepted, and changes nothing: set the length of answers in the system message."""

    @property
    def tier(self) -> Literal["flex", "default"] | None:
        """How the request was served, as its answer says it; None if it did not name a tier."""
        if self.service_tier is None:
            return None
        return "flex" if self.service_tier == FLEX else "default"


def _seconds(value: Any) -> Any:
    seconds = None if isinstance(value, bool) else parse_keep_alive(value)
    if isinstance(seconds, str) and seconds.isdecimal():
        seconds = float(seconds)
    if not isinstance(seconds, float) or not math.isfinite(seconds):
        given = repr(value[:40]) if isinstance(value, str) else type(value).__name__
        raise PydanticCustomError("keep_alive_form", "no duration", {"given": given})
    return seconds


def _think_form(value: object) -> str | None:
    if isinstance(value, str):
        return TEXT
    return _SWITCH if isinstance(value, bool) else None


Think = Annotated[
    Annotated[bool, Tag(_SWITCH)] | Annotated[Literal["low", "medium", "high", "max"], Tag(TEXT)],
    Discriminator(
        _think_form,
        custom_error_type="text_or_switch",
        custom_error_message="a boolean or a string",
    ),
]
"""Whether, or with how much effort, a model thinks: Ollama's field."""


class ResidencyFields(Strict):
    """For how long the model stays loaded."""

    keep_alive: (
        Annotated[float, BeforeValidator(_seconds), WithJsonSchema({"type": ["number", "string"]})]
        | None
    ) = None
    """For how long the model stays loaded after the end of this request when no other comes:
    seconds, or a duration such as "5m" or "1h30m". 0 is not at all; a negative number or "forever"
    is for ever. Pinned models stay in any case. The name is Ollama's. Default: the model's, else
    `memory.keep_alive`."""
    ttl: Count | None = None
    """The same as `keep_alive`, in whole seconds, by LM Studio's name. Both, different, are a
    400."""


def keep_alive_of(request: ResidencyFields) -> float | None:
    """Return how many seconds a model stays loaded after a request when no other comes: 0 means not
    at all, a negative number for ever, None as it is configured.

    Raises :class:`RequestError` if the two names have different values.
    """
    wanted, ttl = request.keep_alive, request.ttl
    seconds: float | None = only_value("one limit", {"keep_alive": wanted, "ttl": ttl})
    return seconds


MAX_STOPS: Final = 64
MAX_STOP_CHARS: Final = 4096
"""The end of the answer is compared with all beginnings of a stop string at each token."""

_MAX_SALT: Final = 256

_Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]


def _without_empty(stop: Any) -> Any:
    if stop == "":
        return None
    return [one for one in stop if one != ""] if isinstance(stop, list) else stop


def _not_zero(limit: int) -> int:
    if limit == 0:
        raise PydanticCustomError("no_tokens", "no tokens")
    return limit


Limit = Annotated[int, Field(ge=-1, le=MAX_COUNT)]
"""A limit of an answer's length; -1 stands for none."""

_AnswerLimit = Annotated[Limit, AfterValidator(_not_zero)]


Stops = Annotated[
    Annotated[
        Annotated[_Stop, Tag(TEXT)]
        | Annotated[list[_Stop], Field(max_length=MAX_STOPS), Tag(LIST)],
        TEXT_OR_LIST,
    ]
    | None,
    BeforeValidator(_without_empty),
]
"""Texts that end an answer: one, or several, of which empty ones are left out."""


def texts_of(stops: Stops) -> tuple[str, ...]:
    """Return the texts that end an answer, often none."""
    return (stops,) if isinstance(stops, str) else tuple(stops or ())


class AnswerFields(ResidencyFields):
    """What a request for a generated answer has in every API, by the API's own names."""

    stream: bool | None = None
    """The answer is sent as it comes, as server-sent events. Default: false."""

    @property
    def streams(self) -> bool:
        """Whether the answer is sent as it comes."""
        return bool(self.stream)

    @property
    def token_limit(self) -> int | None:
        """How many tokens the answer may have. None: no limit was requested."""
        return None

    @property
    def stop_texts(self) -> tuple[str, ...]:
        """The texts that end the answer, often none."""
        return ()

    @property
    def drawing(self) -> Strict:
        """The fields that control how tokens are drawn."""
        return self


class SharingFields(Strict):
    """How a request shares its model with others."""

    cache_salt: Annotated[str, Field(min_length=1, max_length=_MAX_SALT)] | None = None
    """Only requests with the same one share cached prefixes. The name is vLLM's. Default: none."""
    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] | None = None
    """Of requests that wait for the same model, those of a lower value begin first, however long
    the others have waited, and their prompts are read first; when memory runs out, those of a
    higher value pause first. A key may
    have a lowest value (`priority` in its configuration), which is taken instead of a lower one.
    The name is vLLM's. Default: 0."""


class StreamOptions(Strict):
    """What a stream has besides the answer."""

    include_usage: bool | None = None
    """A last chunk has the usage, and all others `"usage": null`. Default: false."""
    continuous_usage_stats: bool | None = None
    """Every chunk has the usage so far. It needs `include_usage`. Only the last chunk's is exact: a
    token can be counted with the text that comes after it. The name is vLLM's. Default: false."""


class GenerationFields(SamplingFields, StructureFields, AnswerFields, SharingFields, LabelFields):
    """The fields that both kinds of request share."""

    model: str | None = None
    """The id, an alias or the source of a model, or a name that routes (`auto` ...). A model that
    does not generate text is a 400 that names its route. Default: the configured one."""
    stream_options: StreamOptions | None = None
    """What a stream has besides the answer. It is allowed with `stream: true` only."""
    max_completion_tokens: _AnswerLimit | None = None
    """How many tokens the answer has at most, reasoning included. The model's `max_tokens_limit`
    and its context cap it. -1 is the same as none. Default: the model's, else up to the context."""
    max_tokens: _AnswerLimit | None = None
    """The older name of `max_completion_tokens`. Both, different, are a 400."""
    stop: Stops = None
    """Texts that end the answer, and are not in it: one, or up to 64, of up to 4096 characters.
    Empty ones are left out. They are matched on the text as the model writes it: across tokens, in
    reasoning and in tool calls too. Default: none."""
    include_stop_str_in_output: bool | None = None
    """The text of `stop` that ended the answer stays in it. Default: false; on /v3 true in streams,
    where false is a 400 (as at OpenVINO Model Server)."""
    return_token_ids: bool | None = None
    """The answer has the tokens too, also in streams: `prompt_token_ids`, and `token_ids` in each
    choice, without the end token, which is not counted either. With completions the prompt's are in
    the choices. The name is vLLM's. Default: false."""
    prompt_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    """How many alternatives come with each token of the prompt. The answer then has the prompt's
    tokens too, each with its logprob and its rank: `prompt_logprobs`, a list of maps by token id,
    with null for the first token. With completions it is in the choices. The whole prompt is
    computed, even where a part of it is cached. With `stream` it is a 400, and so are more than
    262,144 logprobs. The name is vLLM's. Default: none."""
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=MAX_COUNT)] | None = None
    """How many tokens at the end of the prompt are taken; those before them are cut off. -1: as
    many as fit into the model's context besides the answer, for which at most a quarter of it is
    kept free; where something is cut off, the model reads only where images, sounds and videos
    were. 0 is a 400, and so are any other number with media where something is cut off, and a text
    that is far longer than the context. The name is vLLM's. Default: all."""

    @property
    def token_limit(self) -> int | None:
        limit = (
            self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        )
        return None if limit == -1 else limit

    @property
    def stop_texts(self) -> tuple[str, ...]:
        return texts_of(self.stop)

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk that carries the usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        """Whether every chunk of a stream carries the usage so far."""
        return self.include_usage and bool(
            self.stream_options and self.stream_options.continuous_usage_stats
        )

    def include_stop(self, *, ovms: bool) -> bool:
        """Return whether a stop string stays in the answer. ``ovms`` selects the rules of /v3."""
        if self.include_stop_str_in_output is None:
            return ovms and self.streams
        return self.include_stop_str_in_output


def generate_of(fields: AnswerFields, *, ovms: bool = False) -> Generate:
    """Return the request to a worker, without its prompt, ids and credit. ``ovms`` selects the
    rules of /v3. Raises :class:`RequestError` for fields that contradict each other."""
    generate = Generate(
        stream_id=0,
        request_id="",
        credit_deltas=0,
        sampling=sampling_of(fields.drawing),
        max_tokens=fields.token_limit,
        stop=fields.stop_texts,
        keep_alive_s=keep_alive_of(fields),
        whole=not fields.streams,
    )
    if isinstance(fields, SharingFields):
        is_flex = isinstance(fields, LabelFields) and fields.service_tier == FLEX
        priority = BACKGROUND_PRIORITY if is_flex else fields.priority or 0
        generate = replace(generate, cache_salt=fields.cache_salt or "", priority=priority)
    if isinstance(fields, GenerationFields):
        generate = replace(
            generate,
            include_stop=fields.include_stop(ovms=ovms),
            search=search_of(fields, ovms=ovms),
            structure=structure_of(fields),
            assist=assist_of(fields),
            token_ids=bool(fields.return_token_ids),
            prompt_logprobs=fields.prompt_logprobs,
            truncate_prompt_tokens=fields.truncate_prompt_tokens,
        )
    return generate


def check_generation(request: GenerationFields, *, ovms: bool) -> None:
    """Raise :class:`RequestError` for the first fields that contradict each other."""
    _check_token_limits(request)
    if request.truncate_prompt_tokens == 0:
        raise invalid(
            "truncate_prompt_tokens", "must be -1 or at least 1, got 0: a prompt has a token."
        )
    if request.stream_options is not None and not request.stream:
        raise invalid(
            "stream_options", "is allowed with `stream: true` only: remove it, or stream."
        )
    if request.prompt_logprobs is not None and request.stream:
        raise invalid(
            "prompt_logprobs", "can't be combined with `stream: true`: leave one of them out."
        )
    options = request.stream_options
    if options is not None and options.continuous_usage_stats and not options.include_usage:
        raise RequestError(
            ErrorCode.INVALID_VALUE,
            "`continuous_usage_stats` needs `include_usage: true`.",
            param="stream_options.continuous_usage_stats",
        )
    if ovms and request.stream and request.include_stop_str_in_output is False:
        raise invalid(
            "include_stop_str_in_output",
            "can't be false in a stream on /v3: leave it out, or use /v1.",
        )


def _check_token_limits(request: GenerationFields) -> None:
    new, old = request.max_completion_tokens, request.max_tokens
    only_value("one limit", {"max_completion_tokens": new, "max_tokens": old})
    limit, least = request.token_limit, request.min_tokens
    if limit is not None and least is not None and least > limit:
        raise invalid("min_tokens", f"({least}) is more than the answer may have ({limit}).")
