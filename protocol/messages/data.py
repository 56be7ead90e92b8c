"""Messages between a router and a worker: the hot path. See PROTOCOL.md, "Streams".

Router to worker: Generate, Credit, Cancel. Worker to router: Accepted, Refused, Outputs,
Pulse. A stream is named by ``stream_id``, unique for one router and one worker; two routers
may use the same number.
"""

from dataclasses import dataclass
from typing import Any, Final

from lmx.protocol.errors import ErrorCode
from lmx.protocol.free_text import FreeText
from lmx.protocol.messages.media import MediaItem
from lmx.protocol.models.sampling import SamplingParameters
from lmx.protocol.states import (
    DeltaKind,
    FinishReason,
    RereadReason,
    StructureKind,
    ToolChoice,
)
from lmx.protocol.wire.codec import message

BACKGROUND_PRIORITY: Final = 1_000_001
"""The priority of requests that take only what nobody else wants: they have no rows while a request
of a lower value has one, or waits for one. No other request may have as high a value."""


@dataclass(frozen=True, slots=True)
class TokenBias:
    """One token, and what is added to its logit."""

    token: int
    bias: float


@dataclass(frozen=True, slots=True)
class Sampling(SamplingParameters):
    """How the tokens of one request are drawn. For a parameter that is None the default of the
    model applies: that of the configuration, else that of the model's own files."""

    seed: int | None = None
    """The same seed draws the same tokens. None: a random seed."""
    logit_bias: tuple[TokenBias, ...] = ()
    """What is added to the logits of some tokens."""
    ignore_eos: bool = False
    """Whether the answer continues after an end token of the model."""
    min_tokens: int = 0
    """Neither an end token nor a stop string ends the answer before it has this many tokens."""
    stop_token_ids: tuple[int, ...] = ()
    """More tokens that end the answer. They are not part of it."""
    allowed_token_ids: tuple[int, ...] = ()
    """The only tokens that the answer may have. None given: all of them."""
    bad_words: tuple[str, ...] = ()
    """Texts that the answer may not have."""


@dataclass(frozen=True, slots=True)
class Search:
    """How many answers a request gets, and how they are found."""

    n: int = 1
    """The number of answers that are returned."""
    best_of: int = 1
    """The number of answers that are generated, at least ``n``. The ones with the highest mean
    probability of a token are returned. With ``beam`` it is the width of the beam search."""
    beam: bool = False
    """Whether the answers are found by beam search. Otherwise they are sampled."""
    length_penalty: float = 1.0
    """A beam search divides the score of an answer by its length to the power of this."""


@dataclass(frozen=True, slots=True)
class Structure:
    """The form that the answer must have."""

    kind: StructureKind
    text: str
    """The JSON schema, as JSON; the regular expression; the choices, as a JSON array of strings;
    or the grammar (Lark or GBNF). It is empty for a JSON object."""
    param: str
    """The field of the request that asks for this form. Errors name it."""
    whitespace: str | None = None
    """The regular expression that each stretch of white space in JSON must match. None: white
    space as models usually write it."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of a request, and how the model may use them."""

    tools: tuple[dict[str, Any], ...]
    """The tools as OpenAI's objects. The router has checked them."""
    choice: ToolChoice = ToolChoice.AUTO
    function: str | None = None
    """The name of the function that the answer must call exactly once. ``choice`` is REQUIRED
    then."""
    parallel: bool = True
    """Whether an answer may hold more than one call."""
    allowed: tuple[str, ...] | None = None
    """The names of the tools that may be called. None: all of them."""
    described: bool = False
    """Whether the prompt describes the tools also where ``choice`` is NONE: it begins then as those
    of the same conversation that may call them."""

    @property
    def one_call(self) -> bool:
        """Whether an answer holds one call at most."""
        return self.function is not None or not self.parallel

    @property
    def known(self) -> tuple[dict[str, Any], ...]:
        """The tools that the prompt describes to the model: only those that are allowed."""
        if self.choice is ToolChoice.NONE and not self.described:
            return ()
        return tuple(tool for tool in self.tools if self._is_allowed(tool))

    def callable(self) -> list[tuple[int, dict[str, Any]]]:
        """Return the tools that an answer may call, each with its place among ``tools``."""
        return [
            (index, tool)
            for index, tool in enumerate(self.tools)
            if self._is_allowed(tool) and self.function in (None, tool["function"]["name"])
        ]

    def _is_allowed(self, tool: dict[str, Any]) -> bool:
        return self.allowed is None or tool["function"]["name"] in self.allowed


@dataclass(frozen=True, slots=True)
class Thinking:
    """How a reasoning model thinks. Where a field is None, the model decides."""

    effort: str | None = None
    """OpenAI's word for the effort. The chat template gets the nearest that it takes."""
    enabled: bool | None = None
    """Whether the model thinks at all. The effort "none" means that it does not."""
    budget_tokens: int | None = None
    """The thinking is ended when it is this long."""
    param: str = "reasoning_effort"
    """The field of the request that asks for the effort."""
    required: bool = False
    """Whether the request is refused if the model does not think at all."""


@dataclass(frozen=True, slots=True)
class Assist:
    """How many tokens are guessed ahead in this request (speculative decoding). Where a field is
    None, the model's configuration applies."""

    num_assistant_tokens: int | None = None
    assistant_confidence_threshold: float | None = None
    max_ngram_size: int | None = None


@dataclass(frozen=True, slots=True)
class InfillFile:
    """Another file that the model reads before it fills a gap."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Infill:
    """What a model reads besides the text before a gap that it fills."""

    suffix: str
    """What comes after the gap."""
    begun: str = ""
    """How the answer begins."""
    files: tuple[InfillFile, ...] = ()
    param: str = "suffix"
    """The field of the request that asks for it."""


@message
@dataclass(frozen=True, slots=True)
class Generate:
    """Answer a conversation (``messages``) or continue a text (``prompt``, ``prompt_tokens``).

    Exactly one of the three is given.
    """

    stream_id: int
    request_id: str
    sampling: Sampling
    credit_deltas: int
    """How many deltas the worker may send before the first Credit."""
    messages: tuple[dict[str, Any], ...] | None = None
    """OpenAI's messages. The router has checked them. The content of a message of text alone is a
    string. That of a message with media is a list of parts in the order of the request:
    ``{"type": "text", "text": ...}``, and ``{"type": KIND, "media": INDEX}`` with a kind and a
    place in ``media``."""
    prompt: str | None = None
    prompt_tokens: tuple[int, ...] | None = None
    infill: Infill | None = None
    """With ``prompt``: the answer stands between the prompt and what is here."""
    max_tokens: int | None = None
    """The answer ends after this many tokens. None: the model's default; where it has none, the
    rest of the context. 0: nothing but the prompt is computed."""
    stop: tuple[str, ...] = ()
    """Strings that end the answer."""
    include_stop: bool = False
    """Whether the stop string is part of the answer."""
    search: Search = Search()
    top_logprobs: int | None = None
    """How many alternatives come with the logprob of each token. None: no logprobs at all."""
    echo: bool = False
    """Whether the answer begins with the prompt, and with its logprobs if logprobs are asked
    for."""
    prompt_logprobs: int | None = None
    """How many alternatives come with the logprob of each token of the prompt, in deltas of the
    kind PROMPT before the answers. None: there are no such deltas."""
    parse: bool = True
    """Whether reasoning and tool calls are separated from the content."""
    template_kwargs: dict[str, Any] | None = None
    structure: Structure | None = None
    tool_use: ToolUse | None = None
    thinking: Thinking = Thinking()
    assist: Assist = Assist()
    cache_salt: str = ""
    """Only requests with the same salt share cached prefixes."""
    keep_alive_s: float | None = None
    """For how long the model stays loaded after this request if no other request comes. 0: it is
    unloaded at once; negative: it stays forever; None: as it is configured."""
    owner: str = ""
    """An opaque name of the client whose request this is. Owners take turns where requests wait."""
    priority: int = 0
    """Requests of a lower value begin before those of a higher one, their prompts are read first,
    and they are preempted after them when memory runs out. Owners take turns among requests of the
    same value. See also :data:`BACKGROUND_PRIORITY`."""
    memory_wait_s: float | None = None
    """The longest that the request waits for a row while the machine is short of memory. None: as
    long as at other times."""
    whole: bool = False
    """Whether nobody reads the answer before its end. Then an answer that does not satisfy its
    schema may be generated once more."""
    token_ids: bool = False
    """Whether the ids of the tokens of the prompt and of the answer are sent too."""
    add_generation_prompt: bool = True
    """Whether the prompt of a conversation ends where an answer begins. Else it ends with the last
    message."""
    continue_final_message: bool = False
    """Whether the prompt of a conversation ends inside the last message, which the answer continues
    with."""
    truncate_prompt_tokens: int | None = None
    """How many tokens at the end of the prompt are taken. -1: as many as the context has room for
    besides the answer, for which at most a quarter of it is kept free; None: all of them."""
    adapter: str = ""
    """The id of the adapter that is applied to the model. Empty: none."""
    show_reread: bool = False
    """Whether :class:`Reread` has the texts around the place where the prompt departs from an
    earlier one."""
    media: tuple[MediaItem, ...] = ()
    """The images, sounds and videos of the messages. The bytes of each are one more frame behind
    this message."""


@message
@dataclass(frozen=True, slots=True)
class Credit:
    """The reader has taken ``deltas`` deltas, so that the worker may send as many more."""

    stream_id: int
    deltas: int


@message
@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop the stream at once, whether it is queued, in prefill or decoding. There is no reply."""

    stream_id: int


@message
@dataclass(frozen=True, slots=True)
class Preparing:
    """The worker starts to render and tokenize this request, or to cut this task into pieces.

    If the worker dies before it sends Accepted or Refused, this request may be what killed it.
    Requests that only waited are not."""

    stream_id: int


@message
@dataclass(frozen=True, slots=True)
class Accepted:
    """The prompt fits, and the request has a row or waits for one. Each request gets exactly one
    Accepted or Refused."""

    stream_id: int
    prompt_tokens: int
    queued: int
    remarks: tuple[FreeText, ...] = ()
    """Sentences for people about what the worker does differently from what was requested."""
    prompt_ids: tuple[int, ...] = ()
    """The ids of the prompt's tokens, if token ids were requested."""
    ignored: tuple[str, ...] = ()
    """The fields of the request that change nothing, because the model can't do what they ask."""


@message
@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing was produced and nothing will be. The request can safely be sent again, or to
    another worker."""

    stream_id: int
    code: ErrorCode
    message: FreeText
    param: FreeText | None = None
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class TopLogprob:
    """A token that was likely at one position."""

    token: bytes
    logprob: float
    token_id: int


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token that was chosen, and how likely the model made it, before any parameter of the
    request was applied."""

    token: bytes
    """The bytes of the token, which may be part of a character only."""
    logprob: float | None
    """None for the first token of a prompt, which has nothing before it."""
    token_id: int
    top: tuple[TopLogprob, ...] = ()
    """The likeliest tokens at this position."""
    rank: int | None = None
    """How many tokens were at least as likely, this one included. None: it was not counted."""


@dataclass(frozen=True, slots=True)
class ToolCallPart:
    """The tool call whose arguments the text of a delta continues. The first part of a call has
    its id and its name."""

    index: int
    call_id: str | None = None
    name: str | None = None


# One is made for every token, here and there, and a frozen one takes four times as long to make.
# It is a value all the same: nothing changes it once it is sent.
@dataclass(slots=True)
class Delta:
    """Text that is final: it will not change, holds whole characters and no stop string."""

    stream_id: int
    """The stream that it belongs to. Within a worker it is the number of the job, and becomes that
    of the stream when the delta is sent."""
    text: str
    tokens: int
    """The number of tokens that this delta stands for, of every kind."""
    index: int = 0
    """Which of the stream's answers the text belongs to, from 0."""
    kind: DeltaKind = DeltaKind.CONTENT
    call: ToolCallPart | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    """The logprobs of the tokens whose text ends in this delta, which is content; or those of the
    next tokens of the prompt."""
    token_ids: tuple[int, ...] = ()
    """The ids of the tokens that ``tokens`` counts, if they were requested."""


@dataclass(frozen=True, slots=True)
class ChoiceEnded:
    """One of a stream's answers is complete."""

    stream_id: int
    index: int
    reason: FinishReason
    stop: str | None = None
    """The stop string, or the id of the stop token as text, that ended the answer. None if an end
    token of the model or anything else ended it."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The token counts of one stream, as the engine counted them. The prompt is counted once, and
    the tokens of all answers are added up."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    image_tokens: int = 0
    """How many of the prompt's tokens stand for images."""
    audio_tokens: int = 0
    """How many of the prompt's tokens stand for sound."""
    video_tokens: int = 0
    """How many of the prompt's tokens stand for the frames of videos."""


@dataclass(frozen=True, slots=True)
class Timings:
    """How long each part of a generation took, measured in the worker."""

    queue_s: float
    """From the arrival of the request to the start of prefill."""
    prefill_s: float
    """From the start of prefill to the first token."""
    decode_s: float
    """From the first token to the last."""
    drafted_tokens: int = 0
    """The number of tokens that speculation guessed ahead."""
    accepted_tokens: int = 0
    """How many of the drafted tokens were right."""
    energy_joules: float | None = None
    """The energy that the machine took for it; None where that is not measured."""


@dataclass(frozen=True, slots=True)
class Reread:
    """Why much of a prompt was computed although it had been computed for an earlier prompt of the
    same model and the same cache salt."""

    reason: RereadReason
    position: int
    """The first token that differs from the earlier prompt; where none does, the first that was
    computed again."""
    expected_tokens: int
    """How many tokens of the prompt had been computed before: ``cached_tokens`` of the usage would
    have been as many."""
    before: FreeText = ""
    """The text before ``position``. The three texts have some 60 characters each. They are there
    only for a reason that is a difference, and if :attr:`Generate.show_reread` asks for them."""
    was: FreeText = ""
    """The text behind it in the earlier prompt."""
    now: FreeText = ""
    """The text behind it in this prompt."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The stream ended well. Its deltas and the ends of its answers came in earlier messages, or
    earlier in the same message."""

    stream_id: int
    usage: Usage
    timings: Timings
    remarks: tuple[FreeText, ...] = ()
    """Further sentences like those of :class:`Accepted`, about the whole answer."""
    reread: Reread | None = None
    """None: the prompt was not computed before, or little of it is computed again."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The stream ended badly after it was accepted."""

    stream_id: int
    code: ErrorCode
    message: FreeText


@message
@dataclass(frozen=True, slots=True)
class Outputs:
    """All that one step of the engine produced for one router: one message for all rows. If steps
    follow each other within milliseconds, it may be that of a few steps. If it is large, it is
    split into several messages, and the last of them has the ends."""

    deltas: tuple[Delta, ...] = ()
    ended: tuple[ChoiceEnded, ...] = ()
    finished: tuple[Finished, ...] = ()
    failed: tuple[Failed, ...] = ()


@message
@dataclass(frozen=True, slots=True)
class Pulse:
    """The worker's I/O loop is alive. The worker sends it each beat to every router that has an
    open stream.

    By it the worker notices that a router has gone (the send fails) even while there is no token
    to send, and a router whose supervisor is down sees that the worker is still there. It says
    nothing about the engine's progress, which only the supervisor judges.
    """

    instance: str
    streams: int
