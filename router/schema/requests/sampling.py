"""How tokens are drawn and how many answers are made: the fields, their rules, and the resulting
request to a worker."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import Field, WithJsonSchema

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages.data import Assist, Sampling, Search, TokenBias
from lmx.protocol.models.sampling import MAX_ASSISTANT_TOKENS, MAX_NGRAM, PARAMETERS
from lmx.router.schema.validation import (
    INT64_MAX,
    INT64_MIN,
    MAX_COUNT,
    Count,
    Strict,
    invalid,
    short,
)

MAX_ANSWERS: Final = 128
MAX_BIASES: Final = 1024
MAX_STOP_IDS: Final = 1024
MAX_ALLOWED_IDS: Final = 65_536
MAX_BAD_WORDS: Final = 256
_MAX_BAD_WORD_CHARS: Final = 256
_BIAS_LIMIT: Final = 100.0
_BIASES: Final[dict[str, Any]] = {
    "type": "object",
    "maxProperties": MAX_BIASES,
    "propertyNames": {"pattern": r"^[0-9]{1,10}$"},
    "additionalProperties": {"type": "number", "minimum": -_BIAS_LIMIT, "maximum": _BIAS_LIMIT},
}
_KEY_SHOWN: Final = 20
"""How many characters of a wrong ``logit_bias`` key an error's path repeats."""

_Answers = Annotated[int, Field(ge=1, le=MAX_ANSWERS)]
_Share = Annotated[float, Field(ge=0, le=1)]


def parameter(name: str) -> Any:
    """Return a field with the range and the meaning of a parameter for which models have
    defaults."""
    known = PARAMETERS[name]
    return Field(
        None,
        **known.bounds,
        description=f"{known.meaning} Default: the model's, else {known.default:g}.",
    )


class ParameterFields(Strict):
    """The parameters whose names all APIs share but Anthropic's, which has a few of them."""

    temperature: float | None = parameter("temperature")
    top_p: float | None = parameter("top_p")
    top_k: int | None = parameter("top_k")
    min_p: float | None = parameter("min_p")
    typical_p: float | None = parameter("typical_p")
    presence_penalty: float | None = parameter("presence_penalty")
    frequency_penalty: float | None = parameter("frequency_penalty")


class SamplingFields(ParameterFields):
    """None means the same as leaving a field out: the model's own default."""

    repetition_penalty: float | None = parameter("repetition_penalty")
    repeat_penalty: float | None = Field(
        None,
        **PARAMETERS["repetition_penalty"].bounds,
        description="The same as `repetition_penalty`, by llama.cpp's name. Both, different, are a "
        "400.",
    )
    seed: Annotated[int, Field(ge=INT64_MIN, le=INT64_MAX)] | None = None
    """The same seed draws the same tokens, whatever else runs. -1 is the same as none. Default:
    random (0 at OpenVINO Model Server)."""
    # Its entries are checked by hand, after their number: pydantic would describe each fault.
    logit_bias: Annotated[dict[str, Any], WithJsonSchema(_BIASES)] | None = None
    """What is added to the logits of up to 1024 tokens: token ids, as strings, with numbers from
    -100 to 100. Default: none."""
    ignore_eos: bool | None = None
    """The model's end tokens do not end the answer. Default: false."""
    min_tokens: Count | None = None
    """The answer has at least this many tokens: before that, neither an end token nor a stop ends
    it. It is at most the answer's limit. The name is vLLM's. Default: 0."""
    stop_token_ids: (
        Annotated[list[Count], Field(max_length=MAX_STOP_IDS, fail_fast=True)] | None
    ) = None
    """Tokens that end the answer, and are not in it. The name is vLLM's. Default: none."""
    allowed_token_ids: (
        Annotated[list[Count], Field(max_length=MAX_ALLOWED_IDS, fail_fast=True)] | None
    ) = None
    """The only tokens that the answer may have. An end token that is not among them does not come
    either. The name is vLLM's. Default: all tokens."""
    bad_words: (
        Annotated[
            list[Annotated[str, Field(min_length=1, max_length=_MAX_BAD_WORD_CHARS)]],
            Field(max_length=MAX_BAD_WORDS),
        ]
        | None
    ) = None
    """Texts that the answer may not have: up to 256, of up to 256 characters. The token that would
    complete one is never drawn. A text is cut into tokens in two ways, as at the beginning of an
    answer and as after a space; other tokens that spell the same may come. The name is vLLM's.
    Default: none."""
    n: _Answers | None = None
    """How many answers are returned. Default: 1."""
    best_of: _Answers | None = None
    """How many answers are made, at least `n`, of which the `n` best are returned. On /v3 it is the
    width of a beam search. Default: `n`."""
    use_beam_search: bool | None = None
    """The answers are found by a beam search. The name is vLLM's. Default: false."""
    length_penalty: Annotated[float, Field(ge=-10, le=10)] | None = None
    """The scores of beams are divided by the length to this power. Without beams it is a 400,
    unless it is 1. Default: 1."""
    num_assistant_tokens: Annotated[int, Field(ge=1, le=MAX_ASSISTANT_TOKENS)] | None = None
    """How many tokens are guessed at a time. Together with `assistant_confidence_threshold` it is a
    400, as at OpenVINO Model Server. Default: the model's."""
    assistant_confidence_threshold: _Share | None = None
    """A draft model stops guessing when it is less sure than this. Default: the model's."""
    max_ngram_size: Annotated[int, Field(ge=1, le=MAX_NGRAM)] | None = None
    """For prompt lookup: the longest run of tokens that is looked for. Values above 8 act as 8.
    Default: the model's."""


def only_value(what: str, given: Mapping[str, Any]) -> Any:
    """Return the value of what has several names; None if none of them is given.

    The error names ``what`` the names stand for: :class:`RequestError` if two have different
    values.
    """
    named = [(name, value) for name, value in given.items() if value is not None]
    for name, value in named[1:]:
        first, wanted = named[0]
        if value != wanted:
            raise RequestError(
                ErrorCode.INVALID_VALUE,
                f"`{first}` ({short(wanted)}) and `{name}` ({short(value)}) differ: they are two "
                f"names of {what}, send one of them.",
                param=name,
            )
    return named[0][1] if named else None


def sampling_of(fields: Strict) -> Sampling:
    """Return how tokens are drawn, by those of the parameters that ``fields`` has. Raises
    :class:`RequestError` for a wrong ``logit_bias``, and for two names of one penalty with
    different values."""
    drawn: dict[str, Any] = {name: getattr(fields, name, None) for name in (*PARAMETERS, "seed")}
    if drawn["seed"] == -1:  # as at vLLM, llama.cpp and Ollama
        drawn["seed"] = None
    penalties = ("repetition_penalty", "repeat_penalty")
    drawn["repetition_penalty"] = only_value(
        "one penalty", {name: getattr(fields, name, None) for name in penalties}
    )
    if not isinstance(fields, SamplingFields):
        return Sampling(**drawn)
    return Sampling(
        **drawn,
        logit_bias=_biases(fields.logit_bias or {}),
        ignore_eos=bool(fields.ignore_eos),
        min_tokens=fields.min_tokens or 0,
        stop_token_ids=tuple(fields.stop_token_ids or ()),
        allowed_token_ids=tuple(fields.allowed_token_ids or ()),
        bad_words=tuple(fields.bad_words or ()),
    )


def search_of(fields: SamplingFields, *, ovms: bool = False) -> Search:
    """Return how many answers are made, how they are made, and how many of them are returned.

    Beam search is used if the request names it, and if more answers are made than returned and no
    temperature above 0 is there to sample them with. ``ovms`` selects the rules of /v3, where
    ``best_of`` above 1 is always the width of a beam search. Raises :class:`RequestError` if fewer
    answers are made than returned, and for a ``length_penalty`` without beams.
    """
    given = fields.n or 1
    made = given if fields.best_of is None else fields.best_of
    if made < given:
        raise invalid(
            "best_of",
            f"({made}) is less than `n` ({given}): the answers are chosen from as many as "
            "`best_of` requires. Raise it, or leave it out.",
        )
    sampled = bool(fields.temperature) and fields.top_p != 0
    beam = bool(fields.use_beam_search) or (made > given and not sampled)
    if ovms and fields.best_of is not None and fields.best_of > 1:
        beam = True
    # A value that changes nothing is always allowed: some clients send every default.
    if not beam and fields.length_penalty not in (None, 1.0):
        way = "a `best_of` above 1" if ovms else "`use_beam_search: true`"
        raise invalid(
            "length_penalty",
            "ranks the answers of a beam search, which this is not: leave it out, or ask for "
            f"beams with {way}.",
        )
    return Search(
        n=given,
        best_of=made,
        beam=beam,
        length_penalty=1.0 if fields.length_penalty is None else fields.length_penalty,
    )


def assist_of(fields: SamplingFields) -> Assist:
    """Return how far speculation goes. Raises :class:`RequestError` if the request uses both ways
    to set it."""
    if (
        fields.num_assistant_tokens is not None
        and fields.assistant_confidence_threshold is not None
    ):
        raise invalid(
            "assistant_confidence_threshold",
            "can't be combined with `num_assistant_tokens`: send one of them.",
        )
    return Assist(
        num_assistant_tokens=fields.num_assistant_tokens,
        assistant_confidence_threshold=fields.assistant_confidence_threshold,
        max_ngram_size=fields.max_ngram_size,
    )


def _biases(given: dict[str, Any]) -> tuple[TokenBias, ...]:
    if len(given) > MAX_BIASES:
        raise invalid("logit_bias", f"must hold at most {MAX_BIASES} entries, got {len(given)}.")
    return tuple(_bias(key, value) for key, value in given.items())


def _bias(key: str, value: object) -> TokenBias:
    path = f"logit_bias.{key[:_KEY_SHOWN]}"
    # int() alone is not enough: it takes " 1_0 " and the digits of every script.
    if not (key.isascii() and key.isdecimal()) or len(key) > 10 or int(key) > MAX_COUNT:
        raise invalid(
            path, "is no token id: the keys of `logit_bias` must be token ids, as strings."
        )
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(
            ErrorCode.INVALID_TYPE, f"`{path}` must be a number, got {short(value)}.", param=path
        )
    if not -_BIAS_LIMIT <= value <= _BIAS_LIMIT:
        raise invalid(
            path, f"must be from {-_BIAS_LIMIT:g} to {_BIAS_LIMIT:g}, got {short(value)}."
        )
    return TokenBias(int(key), float(value))
