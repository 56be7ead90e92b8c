"""Turns a Generate into a request for the engine. It runs on the prompt thread, where it may take
long.

Each parameter has the first value that is set by: the request, the model's configuration (the
spec), its generation_config.json, the default of :data:`lmx.protocol.models.sampling.PARAMETERS`.
"""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages.data import Assist, Generate, Sampling, Thinking
from lmx.protocol.messages.specs import SpeculationSpec, WorkerSpec
from lmx.protocol.models.sampling import PARAMETERS
from lmx.protocol.states import ToolChoice
from lmx.worker.engine.interfaces import Generator
from lmx.worker.engine.values import (
    BeamSearch,
    ConstraintMaker,
    ConstraintSource,
    EncodedPrompt,
    ModelFacts,
    PromptSource,
    SequenceRequest,
    SequenceSampling,
)
from lmx.worker.formats.parser import OutputParser
from lmx.worker.media.values import Media
from lmx.worker.scheduling.kv_admission import fitting_tokens
from lmx.worker.scheduling.requests import EngineRequest, TextRules
from lmx.worker.scheduling.seeds import answer_seed

_MAX_PROMPT_SCORES: Final = 1 << 18
"""The logprobs of a prompt's tokens and of their alternatives that one answer may have. They are
20 MB of JSON, which the router makes in one go."""


def resolve_sampling(
    asked: Sampling, spec: WorkerSpec, facts: ModelFacts, random_seed: int
) -> SequenceSampling:
    """Return how a row is sampled. ``random_seed`` is used if the request has no seed. Pure.

    Raises :class:`RequestError` for a token id that the model doesn't have.
    """
    _check_tokens([bias.token for bias in asked.logit_bias], facts, "logit_bias")
    _check_tokens(asked.stop_token_ids, facts, "stop_token_ids")
    _check_tokens(asked.allowed_token_ids, facts, "allowed_token_ids")
    parameters: dict[str, Any] = {
        name: _first(
            getattr(asked, name), getattr(spec, name), getattr(facts.sampling, name), known.default
        )
        for name, known in PARAMETERS.items()
    }
    if parameters["top_p"] == 0:
        parameters |= {"temperature": 0.0, "top_p": 1.0}
    parameters["top_k"] = max(0, parameters["top_k"])
    return SequenceSampling(
        **parameters,
        logit_bias=tuple((bias.token, bias.bias) for bias in asked.logit_bias),
        min_tokens=asked.min_tokens,
        end_ids=(frozenset() if asked.ignore_eos else facts.eos_token_ids)
        | frozenset(asked.stop_token_ids),
        seed=random_seed if asked.seed is None else asked.seed,
    )


def resolve_max_tokens(
    asked: int | None, spec: WorkerSpec, prompt_tokens: int, facts: ModelFacts, param: str
) -> int:
    """Return how many tokens an answer may have: at least 1, unless the request wants none.

    Raises :class:`RequestError` (``context_length_exceeded``) if the prompt leaves no token for the
    answer, or does not fit itself. A limit that is too high is lowered, not refused.
    """
    left_tokens = facts.context_tokens - prompt_tokens
    if asked == 0 and left_tokens >= 0:
        return 0
    if left_tokens < 1:
        raise RequestError(
            ErrorCode.CONTEXT_LENGTH_EXCEEDED,
            f"The {param} {'is' if param == 'prompt' else 'are'} {prompt_tokens} tokens long, and "
            f"the model's context of {facts.context_tokens} tokens has to hold them and the "
            f"answer: shorten them{facts.longer_context}.",
            param=param,
        )
    wanted = asked if asked is not None else spec.default_max_tokens
    limits = [left_tokens, wanted, spec.max_tokens_limit]
    return max(1, min(limit for limit in limits if limit is not None))


def truncated(
    prompt: Sequence[int], request: Generate, spec: WorkerSpec, context_tokens: int
) -> Sequence[int]:
    """Return the end of a prompt, as long as the request allows. Pure.

    -1 keeps room for the answer: as much as it may have, but at most a quarter of the context. An
    answer without a limit, or with one that no prompt leaves room for, has what is left: a prompt
    is then cut only if it leaves nothing.
    """
    most = request.truncate_prompt_tokens
    if most is None:
        return prompt
    if most < 0:
        asked = request.max_tokens if request.max_tokens is not None else spec.default_max_tokens
        limits = [asked, spec.max_tokens_limit, context_tokens]
        answer_tokens = min(limit for limit in limits if limit is not None)
        if answer_tokens == context_tokens > len(prompt):
            return prompt
        most = context_tokens - min(answer_tokens, max(1, context_tokens // 4))
    return prompt[-most:]


def _first(*values: float | None) -> float:
    return next(value for value in values if value is not None)


def _check_tokens(tokens: Sequence[int], facts: ModelFacts, param: str) -> None:
    unknown = [token for token in tokens if not 0 <= token < facts.vocabulary_size]
    if unknown:
        raise RequestError(
            ErrorCode.INVALID_VALUE,
            f"`{param}` has the token {unknown[0]}, and the model's tokens are 0 to "
            f"{facts.vocabulary_size - 1}.",
            param=param,
        )


_RETRY_TEMPERATURE: Final = 0.7
_SEEDS: Final = 2**63 - 1


def encode_prompt(
    generator: Generator,
    facts: ModelFacts,
    spec: WorkerSpec,
    request: Generate,
    media: Sequence[Media] = (),
) -> EncodedPrompt:
    """Render and tokenize a request. ``media`` are its own, decoded; the model takes them.

    Raises ``RequestError`` for a prompt, an adapter or a thinking that the model does not take.
    """
    _check_adapter(request.adapter, facts)
    _check_thinking(request.thinking, facts, request.adapter or spec.model_id)
    return generator.encode(
        PromptSource(
            messages=request.messages,
            text=request.prompt,
            infill=request.infill,
            tokens=request.prompt_tokens,
            template_kwargs={**(spec.template_kwargs or {}), **(request.template_kwargs or {})},
            tool_use=request.tool_use,
            thinking=request.thinking,
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=request.continue_final_message,
            media=media,
            media_params=tuple(item.param for item in request.media),
        )
    )


def prepare(
    generator: Generator,
    facts: ModelFacts,
    spec: WorkerSpec,
    request: Generate,
    run_id: int,
    next_sequence_id: Callable[[], int],
    arrived_s: float,
    media: Sequence[Media] = (),
    *,
    decode_s: float = 0.0,
    is_retry: bool = False,
) -> EngineRequest:
    """Render, tokenize, compile and check a request. Raises ``RequestError`` if it can't be met.

    ``media`` as for :func:`encode_prompt`; ``decode_s`` is how long it took to decode them.

    ``is_retry`` means that the answers must differ from earlier ones: they are drawn with other
    seeds, even if the request wants the likeliest tokens. The logprobs of the prompt were sent with
    the earlier ones.
    """
    if is_retry:
        request = replace(request, prompt_logprobs=None)
    encoded = encode_prompt(generator, facts, spec, request, media)
    remarks: list[str] = []
    if encoded.media is not None and request.truncate_prompt_tokens == -1:
        tokens = encoded.tokens
        if len(truncated(tokens, request, spec, facts.context_tokens)) < len(tokens):
            # Their tokens belong together, and can't be cut.
            request = replace(request, messages=_as_text(request.messages or ()), media=())
            encoded = encode_prompt(generator, facts, spec, request)
            remarks.append(_LEFT_OUT)
    limited = _limited(facts, spec, request, encoded, is_retry=is_retry)
    constraint = generator.constrain(
        ConstraintSource(
            request.structure,
            request.tool_use,
            request.thinking,
            encoded.thinking_open,
            not request.parse or _in_answer(request, encoded),
            request.sampling.allowed_token_ids,
            request.sampling.bad_words,
        )
    ) or ConstraintMaker(None)
    asked = _Asked(request, encoded, limited, constraint)
    _check_combinations(asked)
    if asked.is_cut and request.truncate_prompt_tokens == -1:
        cut_tokens = len(encoded.tokens) - len(limited.prompt)
        remarks.append(
            f"The prompt does not fit into the model's context besides the answer: its first "
            f"{cut_tokens} tokens were cut off."
        )
    return EngineRequest(
        run_id,
        request.request_id,
        _rows(asked, next_sequence_id),
        _text_rules(asked, facts),
        request.search.n,
        arrived_s,
        request.owner,
        request.memory_wait_s,
        constraint.check,
        (*remarks, *constraint.remarks),
        constraint.call_checks,
        encoded.ignored,
        decode_s,
    )


_LEFT_OUT: Final = (
    "The conversation does not fit into the model's context besides the answer: the model reads "
    "only where its images, sounds and videos were."
)


def _as_text(messages: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Return messages with a word in the place of each image, sound and video. Those that have none
    stay as they are."""
    return tuple(
        {**message, "content": "\n".join(part.get("text", f"[{part['type']}]") for part in content)}
        if isinstance(content := message.get("content"), list)
        and any(part["type"] != "text" for part in content)
        else message
        for message in messages
    )


class _Limited(NamedTuple):
    """What a request's rows may take and draw."""

    prompt: Sequence[int]
    max_tokens: int
    sampling: SequenceSampling
    beam: BeamSearch | None


def _limited(
    facts: ModelFacts,
    spec: WorkerSpec,
    request: Generate,
    encoded: EncodedPrompt,
    *,
    is_retry: bool,
) -> _Limited:
    """Hold a request against what the model and its worker have."""
    prompt = truncated(encoded.tokens, request, spec, facts.context_tokens)
    param = "prompt" if request.messages is None else "messages"
    max_tokens = resolve_max_tokens(request.max_tokens, spec, len(prompt), facts, param)
    sampling = resolve_sampling(request.sampling, spec, facts, secrets.randbits(63))
    if not request.sampling.ignore_eos:
        sampling = replace(sampling, end_ids=sampling.end_ids | encoded.end_ids)
    if is_retry:
        warmer = max(sampling.temperature, _RETRY_TEMPERATURE)
        sampling = replace(sampling, temperature=warmer, seed=~sampling.seed & _SEEDS)
    beam = _beam(request, spec, sampling)
    _check_assist(request.assist, spec.speculation)
    _check_memory(spec, len(prompt), beam.width if beam else 1, param)
    _check_scores(request, len(prompt))
    return _Limited(prompt, max_tokens, sampling, beam)


class _Asked(NamedTuple):
    """A request, and what was made of it."""

    request: Generate
    encoded: EncodedPrompt
    limited: _Limited
    constraint: ConstraintMaker

    @property
    def is_cut(self) -> bool:
        """Whether a part of the prompt is left out."""
        return len(self.limited.prompt) < len(self.encoded.tokens)


class _Combination(NamedTuple):
    """A parameter that can't be combined with something that only a worker knows."""

    param: str
    other: str
    remedy: str
    is_asked: Callable[[_Asked], bool]


_IMPOSSIBLE: Final = (
    _Combination(
        "truncate_prompt_tokens",
        "images, sounds and videos",
        "leave it out",
        lambda asked: asked.encoded.media is not None and asked.is_cut,
    ),
    _Combination(
        "echo",
        "a schema of which a part is checked when the answer is whole",
        "leave one of them out",
        lambda asked: asked.request.echo and asked.constraint.check is not None,
    ),
)
"""What can't be combined. What the request alone shows is refused by the router."""


def _check_combinations(asked: _Asked) -> None:
    for one in _IMPOSSIBLE:
        if one.is_asked(asked):
            raise RequestError(
                ErrorCode.UNSUPPORTED_VALUE,
                f"`{one.param}` can't be combined with {one.other}: {one.remedy}.",
                param=one.param,
            )


def _rows(asked: _Asked, next_sequence_id: Callable[[], int]) -> tuple[SequenceRequest, ...]:
    """Return a row for each answer, or one for a beam search."""
    request, encoded, limited, constraint = asked
    search, sampling = request.search, limited.sampling
    ranked = limited.beam is None and search.best_of > search.n
    return tuple(
        SequenceRequest(
            sequence_id=next_sequence_id(),
            prompt=limited.prompt,
            max_tokens=limited.max_tokens,
            sampling=replace(sampling, seed=answer_seed(sampling.seed, index)),
            constraint=constraint() if constraint.make else None,
            top_logprobs=0 if ranked and request.top_logprobs is None else request.top_logprobs,
            prompt_logprobs=_prompt_top(request),
            beam=limited.beam,
            assist=request.assist,
            cache_salt=request.cache_salt,
            adapter=request.adapter,
            media=encoded.media,
            priority=request.priority,
        )
        for index in range(1 if limited.beam else max(search.n, search.best_of))
    )


def _check_thinking(thinking: Thinking, facts: ModelFacts, model_id: str) -> None:
    if thinking.required and facts.reasoning is None:
        raise RequestError(
            ErrorCode.UNSUPPORTED_VALUE,
            f'"{model_id}" does not support thinking: leave `{thinking.param}` out.',
            param=thinking.param,
        )


def _check_adapter(adapter: str, facts: ModelFacts) -> None:
    if not adapter:
        return
    if adapter not in facts.adapters:
        raise RequestError(
            ErrorCode.MODEL_NOT_FOUND,
            f"The model's worker has no adapter {adapter!r}.",
            param="model",
        )
    problem = facts.adapters[adapter]
    if problem is not None:
        raise RequestError(
            ErrorCode.MODEL_SOURCE_INVALID,
            f"The adapter {adapter!r} can't be used: {problem}.",
            param="model",
        )


def _check_assist(assist: Assist, speculation: SpeculationSpec | None) -> None:
    """Refuse settings of speculation that the model does not have, or not in this way."""
    by_draft = speculation is not None and (
        speculation.draft_path is not None or speculation.own_heads
    )
    found = speculation is not None and speculation.auto
    usable = {
        "num_assistant_tokens": speculation is not None,
        "assistant_confidence_threshold": by_draft or found,
        "max_ngram_size": speculation is not None and not by_draft,
    }
    for name, is_usable in usable.items():
        if getattr(assist, name) is not None and not is_usable:
            how = (
                "does not guess tokens ahead (`speculation` in its configuration)"
                if speculation is None
                else f"guesses tokens ahead by {'a draft model' if by_draft else 'prompt lookup'}"
            )
            raise RequestError(
                ErrorCode.UNSUPPORTED_VALUE,
                f"`{name}` has no meaning for this model, which {how}: leave it out.",
                param=name,
            )


def _beam(request: Generate, spec: WorkerSpec, sampling: SequenceSampling) -> BeamSearch | None:
    search = request.search
    if not search.beam:
        return None
    if spec.ranks is not None:
        raise RequestError(
            ErrorCode.UNSUPPORTED_VALUE,
            "`use_beam_search` is not there for this model, which is divided among "
            f"{spec.ranks.count} processes (`ranks` in its configuration): leave it out.",
            param="use_beam_search",
        )
    width = max(search.best_of, search.n)
    if width > spec.max_rows:
        param = "best_of" if search.best_of > search.n else "n"
        raise RequestError(
            ErrorCode.INVALID_VALUE,
            f"A beam search with `{param}` {width} needs as many places, and this model has "
            f"{spec.max_rows}: ask for fewer.",
            param=param,
        )
    return BeamSearch(width, search.length_penalty, sampling.end_ids)


def _check_memory(spec: WorkerSpec, prompt_tokens: int, sequences: int, param: str) -> None:
    """Refuse a prompt whose KV cache, with one more token, would not fit even alone."""
    if spec.kv_cache_bytes is None:
        return
    needed = prompt_tokens + 1
    most = fitting_tokens(spec.kv_layers, spec.kv_cache_bytes, sequences, needed)
    if most == needed:
        return
    beams = f" for each of {sequences} beams" if sequences > 1 else ""
    raise RequestError(
        ErrorCode.CONTEXT_LENGTH_EXCEEDED,
        f"The {param} {'is' if param == 'prompt' else 'are'} {prompt_tokens} tokens long, and "
        f"the memory that this model has for its KV cache ({spec.kv_cache_bytes / 1024**2:.0f} "
        f"MiB) holds {most} tokens{beams}, the answer's included: shorten them, or have the "
        "model configured with a larger memory_bytes, or a context_length and a concurrency "
        "for which there is memory.",
        param=param,
    )


def _prompt_top(request: Generate) -> int | None:
    """Return how many alternatives the tokens of the prompt need, for the prompt's own logprobs and
    for those of its echo; None: they need no logprobs."""
    echoed = request.top_logprobs if request.echo else None
    return max((top for top in (echoed, request.prompt_logprobs) if top is not None), default=None)


def _check_scores(request: Generate, prompt_tokens: int) -> None:
    top = _prompt_top(request)
    if top is None or prompt_tokens * (1 + top) <= _MAX_PROMPT_SCORES:
        return
    raise RequestError(
        ErrorCode.INVALID_VALUE,
        f"The prompt has {prompt_tokens} tokens, which with {top} alternatives each are more than "
        f"the {_MAX_PROMPT_SCORES} logprobs that an answer may have of its prompt: ask for fewer "
        "alternatives, or send a shorter prompt.",
        param="prompt_logprobs" if top == request.prompt_logprobs else "logprobs",
    )


def _in_answer(request: Generate, encoded: EncodedPrompt) -> bool:
    """Return whether the prompt ends inside the text of an answer, which is continued."""
    return request.continue_final_message and not encoded.thinking_open


def _text_rules(asked: _Asked, facts: ModelFacts) -> TextRules:
    request, encoded = asked.request, asked.encoded
    sampling, tool_use = request.sampling, request.tool_use
    tools = tool_use.known if tool_use and tool_use.choice is not ToolChoice.NONE else ()
    forced = None
    if tool_use is not None and tool_use.choice is ToolChoice.REQUIRED:
        forced = [tool["function"]["name"] for _, tool in tool_use.callable()]
    parses = request.parse and (bool(tools) or facts.reasoning is not None)
    return TextRules(
        eos=frozenset() if sampling.ignore_eos else facts.eos_token_ids | encoded.end_ids,
        stop_ids=frozenset(sampling.stop_token_ids),
        stop=request.stop,
        include_stop=request.include_stop,
        min_tokens=sampling.min_tokens,
        make_parser=(
            lambda: OutputParser(
                facts.reasoning,
                encoded.thinking_open,
                facts.tool_parser,
                tools,
                parallel=tool_use is None or not tool_use.one_call,
                calls_only=forced is not None,
                only=forced[0] if forced is not None and len(forced) == 1 else None,
                either=request.structure is not None,
                marked_calls=asked.constraint.marked_calls,
                open_calls=facts.calls_in_open_thought,
                thinking_closed=encoded.thinking_closed,
                in_answer=_in_answer(request, encoded),
            )
        )
        if parses
        else None,
        logprobs=request.top_logprobs is not None,
        echo=request.echo,
        prompt_logprobs=request.prompt_logprobs,
        prompt=None if asked.is_cut else request.prompt,
        token_ids=request.token_ids,
        continues=not parses or request.continue_final_message,
        show_reread=request.show_reread,
    )
