"""Messages between a router and a worker: the hot path. See PROTOCOL.md, "Streams".

Router to worker: Generate, Credit, Cancel. Worker to router: Accepted, Refused, Outputs,
Pulse. A stream is named by ``stream_id``, unique for one router and one worker; two routers
may use the same number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lmx.protocol.errors import ErrorCode
from lmx.protocol.models.sampling import SamplingParameters
from lmx.protocol.states import DeltaKind, FinishReason, StructureKind, ToolChoice
from lmx.protocol.wire.codec import message


@dataclass(frozen=True, slots=True)
class TokenBias:
    """What is added to one token's logit."""

    token: int
    bias: float


@dataclass(frozen=True, slots=True)
class Sampling(SamplingParameters):
    """How the tokens of one request are drawn. A parameter that is None has the model's default:
    the configuration's, else that of the model's own files."""

    seed: int | None = None
    """The same seed draws the same tokens. None: a random one."""
    logit_bias: tuple[TokenBias, ...] = ()
    """What is added to the logits of some tokens."""
    ignore_eos: bool = False
    """Whether the model's end tokens do not end the answer."""
    min_tokens: int = 0
    """Before so many tokens neither an end token nor a stop ends the answer."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end the answer as well, and are no part of it."""


@dataclass(frozen=True, slots=True)
class Search:
    """How many answers, and how they are found.

    ``n`` are returned of ``best_of`` that are made (at least ``n``). With ``beam``, ``best_of``
    is the width of a beam search, whose scores are divided by length to the power of
    ``length_penalty``; otherwise all are sampled, and the likeliest by token are returned.
    """

    n: int = 1
    best_of: int = 1
    beam: bool = False
    length_penalty: float = 1.0


@dataclass(frozen=True, slots=True)
class Structure:
    """The form that the answer must have.

    ``text``: the JSON schema as JSON; the regular expression; the choices as a JSON array of
    strings; the grammar (Lark or GBNF). Empty for a JSON object. ``param`` is the request's
    field, for errors. ``whitespace``: a regular expression for each stretch of white space in
    JSON; None: what models write.
    """

    kind: StructureKind
    text: str
    param: str
    whitespace: str | None = None


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of a request, as OpenAI's objects, checked by the router.

    ``function``: the one that must be called, once, with ``choice`` REQUIRED. ``allowed``: the
    names of those that may be called, None for all. Without ``parallel`` an answer holds one
    call at most.
    """

    tools: tuple[dict[str, Any], ...]
    choice: ToolChoice = ToolChoice.AUTO
    function: str | None = None
    parallel: bool = True
    allowed: tuple[str, ...] | None = None

    @property
    def one_call(self) -> bool:
        """Whether an answer holds one call at most."""
        return self.function is not None or not self.parallel

    @property
    def known(self) -> tuple[dict[str, Any], ...]:
        """The tools that the model is told of: none of those that are not allowed."""
        if self.choice is ToolChoice.NONE:
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
    """How a reasoning model thinks. ``effort`` is OpenAI's word, given to the template; whether
    it means thinking at all ("none") is said by ``enabled``. ``budget_tokens`` ends the thinking
    when it has become so long. None: as the model does."""

    effort: str | None = None
    enabled: bool | None = None
    budget_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Assist:
    """How far speculation goes in this request. None: as the model is configured."""

    num_assistant_tokens: int | None = None
    assistant_confidence_threshold: float | None = None
    max_ngram_size: int | None = None


@message
@dataclass(frozen=True, slots=True)
class Generate:
    """Answer a conversation (``messages``) or continue a text (``prompt``, ``prompt_tokens``).

    Exactly one of the three is given. ``messages`` are OpenAI's, checked by the router, text
    only. ``max_tokens`` None means up to the model's default, else the rest of the context.
    ``credit_deltas`` is how many deltas may be sent before the first Credit.
    ``top_logprobs``: None for none, else how many alternatives each token comes with.
    ``parse``: reasoning and tool calls are told apart from content. ``echo``: the answer
    begins with the prompt, and with its logprobs where they are asked for. Only requests with
    the same ``cache_salt`` share cached prefixes. ``keep_alive_s``: for how long the model is to
    stay loaded after this request, when no other comes; 0: not at all, negative: forever, None:
    as it is configured. ``owner`` says whose it is, without saying who that is: owners take turns
    where requests wait. ``memory_wait_s``: for how long at most it waits for a row while the
    machine is short of memory; None: as at other times.
    ``whole``: nobody reads the answer before its end, so that one that turns out not to satisfy its
    schema may be made once more. ``token_ids``: those of prompt and answer are told.
    """

    stream_id: int
    request_id: str
    sampling: Sampling
    credit_deltas: int
    messages: tuple[dict[str, Any], ...] | None = None
    prompt: str | None = None
    prompt_tokens: tuple[int, ...] | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    search: Search = Search()
    top_logprobs: int | None = None
    echo: bool = False
    parse: bool = True
    template_kwargs: dict[str, Any] | None = None
    structure: Structure | None = None
    tool_use: ToolUse | None = None
    thinking: Thinking = Thinking()
    assist: Assist = Assist()
    cache_salt: str = ""
    keep_alive_s: float | None = None
    owner: str = ""
    memory_wait_s: float | None = None
    whole: bool = False
    token_ids: bool = False


@message
@dataclass(frozen=True, slots=True)
class Credit:
    """The reader has taken ``deltas`` more deltas: as many more may be sent."""

    stream_id: int
    deltas: int


@message
@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop at once, wherever the stream is: queued, in prefill, decoding. No reply."""

    stream_id: int


@message
@dataclass(frozen=True, slots=True)
class Preparing:
    """The worker renders and tokenizes this request now, or cuts this task into pieces. If it ends
    before its verdict, this request may have done it; those that only wait have not."""

    stream_id: int


@message
@dataclass(frozen=True, slots=True)
class Accepted:
    """The prompt fits and waits for (or has) a row. Exactly one Accepted or Refused comes.

    ``remarks`` say, for people, what is done otherwise than it was asked for. ``prompt_ids`` where
    token ids were asked for."""

    stream_id: int
    prompt_tokens: int
    queued: int
    remarks: tuple[str, ...] = ()
    prompt_ids: tuple[int, ...] = ()


@message
@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing was produced and nothing will be. Safe to send elsewhere or again."""

    stream_id: int
    code: ErrorCode
    message: str
    param: str | None = None
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class TopLogprob:
    """A token that was likely in one place."""

    token: bytes
    logprob: float
    token_id: int


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token that was chosen, and how likely it was: by the model, before any parameter of
    the request. ``token`` is its bytes, which may be a part of a character. ``logprob`` None:
    the first token of a prompt, which nothing came before."""

    token: bytes
    logprob: float | None
    token_id: int
    top: tuple[TopLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCallPart:
    """Which call a delta's text is an argument fragment of; its beginning has id and name."""

    index: int
    call_id: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    """Text that is final: it will not change, holds whole characters and no stop string.

    ``index`` is the answer's. ``logprobs`` are those of the tokens whose text came to its end
    here, for content alone. ``tokens`` counts tokens of every kind; ``token_ids`` are theirs,
    where they were asked for.
    """

    stream_id: int
    text: str
    tokens: int
    index: int = 0
    kind: DeltaKind = DeltaKind.CONTENT
    call: ToolCallPart | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ChoiceEnded:
    """One of a stream's answers is whole. ``stop`` is the stop string or token id (as text)
    that ended it, None for EOS and every other end."""

    stream_id: int
    index: int
    reason: FinishReason
    stop: str | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Counts for one stream; real ones, from the engine. The prompt is counted once, the
    tokens of all answers together."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timings:
    """Where the time went, in seconds, measured in the worker.

    ``queue_s``: from arrival to the start of prefill. ``prefill_s``: to the first token.
    ``decode_s``: from the first token to the last. Of ``drafted_tokens`` that were guessed
    ahead, ``accepted_tokens`` were right.
    """

    queue_s: float
    prefill_s: float
    decode_s: float
    drafted_tokens: int = 0
    accepted_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Finished:
    """The stream ended well; its deltas and the ends of its answers came before, or earlier
    in the same message."""

    stream_id: int
    usage: Usage
    timings: Timings


@dataclass(frozen=True, slots=True)
class Failed:
    """The stream ended badly after it was accepted."""

    stream_id: int
    code: ErrorCode
    message: str


@message
@dataclass(frozen=True, slots=True)
class Outputs:
    """All that one engine step produced for one router: one message, however many rows. What is
    large goes in several, the ends with the last."""

    deltas: tuple[Delta, ...] = ()
    ended: tuple[ChoiceEnded, ...] = ()
    finished: tuple[Finished, ...] = ()
    failed: tuple[Failed, ...] = ()


@message
@dataclass(frozen=True, slots=True)
class Pulse:
    """The worker's I/O loop lives; sent each beat to every router with an open stream.

    It finds routers that have gone (the send fails) also while no token is due, and tells
    a router whose supervisor is down that the worker is still there. It says nothing of the
    engine's progress: that is the supervisor's to judge.
    """

    instance: str
    streams: int
