"""What a request gets that names nothing, and the clocks."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages.data import Assist, Generate, Sampling, Search, Thinking, TokenBias
from lmx.protocol.messages.specs import LogSpec, SpeculationSpec, WorkerSpec
from lmx.protocol.models.sampling import PARAMETERS, SamplingParameters
from lmx.protocol.states import DeltaKind
from lmx.worker.engine.values import (
    ConstraintMaker,
    ConstraintSource,
    EncodedPrompt,
    ModelFacts,
    PromptSource,
    ReasoningMarkers,
    SequenceSampling,
)
from lmx.worker.media.values import Picture
from lmx.worker.scheduling.prepare import prepare, resolve_max_tokens, resolve_sampling, truncated
from lmx.worker.scheduling.progress import ProgressClock
from lmx.worker.scheduling.seeds import answer_seed
from lmx.worker.service.admission import QueueEstimate
from tests.support.fakes.scripted_engine import ScriptedEngine

SPEC = WorkerSpec("0", "m", "/", "/", LogSpec("/"), "a:b", {}, 1, 1, 1)
FACTS = ModelFacts(100, frozenset({7}), 50)
ENDS = FACTS.eos_token_ids


@pytest.mark.parametrize(
    ("asked", "configured", "file", "expected"),
    [
        (0.0, 0.5, 0.6, 0.0),
        (None, 0.5, 0.6, 0.5),
        (None, 0.0, 0.6, 0.0),
        (None, None, 0.6, 0.6),
        (None, None, None, 0.7),
    ],
)
def test_temperature_order(
    asked: float | None, configured: float | None, file: float | None, expected: float
) -> None:
    spec = dataclasses.replace(SPEC, temperature=configured)
    facts = dataclasses.replace(FACTS, sampling=SamplingParameters(temperature=file))
    assert resolve_sampling(Sampling(temperature=asked), spec, facts, 9) == SequenceSampling(
        expected, 1.0, 9, end_ids=ENDS
    )


def test_top_p_and_seed_order() -> None:
    spec = dataclasses.replace(SPEC, top_p=0.5)
    facts = dataclasses.replace(FACTS, sampling=SamplingParameters(top_p=0.6))
    asked = Sampling(temperature=1, top_p=0.4, seed=0)
    assert resolve_sampling(asked, spec, facts, 9) == SequenceSampling(1, 0.4, 0, end_ids=ENDS)
    assert resolve_sampling(Sampling(), spec, facts, 9).top_p == 0.5
    assert resolve_sampling(Sampling(), SPEC, facts, 9).top_p == 0.6


def test_no_share_at_all_is_the_likeliest_token_whoever_says_it() -> None:
    greedy = SequenceSampling(0.0, 1.0, 9, end_ids=ENDS)
    assert resolve_sampling(Sampling(temperature=1, top_p=0), SPEC, FACTS, 9) == greedy
    spec = dataclasses.replace(SPEC, top_p=0)
    assert resolve_sampling(Sampling(temperature=1), spec, FACTS, 9) == greedy


@pytest.mark.parametrize(
    ("field", "neutral"),
    [(name, known.default) for name, known in PARAMETERS.items()],
)
def test_values_of_the_request_then_the_config_then_the_file(field: str, neutral: float) -> None:
    def resolved(asked: Sampling, spec: WorkerSpec, facts: ModelFacts) -> float:
        value: float = getattr(resolve_sampling(asked, spec, facts, 9), field)
        return value

    def with_value(base: Any, value: float) -> Any:
        return dataclasses.replace(base, **{field: value})

    facts = dataclasses.replace(FACTS, sampling=with_value(SamplingParameters(), 3))
    assert resolved(Sampling(), SPEC, FACTS) == neutral
    assert resolved(Sampling(), SPEC, facts) == 3
    spec = with_value(SPEC, 2)
    assert resolved(Sampling(), spec, facts) == 2
    assert resolved(with_value(Sampling(), 1), spec, facts) == 1


@pytest.mark.parametrize(("top_k", "drawn_from"), [(None, 0), (-1, 0), (0, 0), (1, 1)])
def test_top_k_has_two_words_for_all(top_k: int | None, drawn_from: int) -> None:
    assert resolve_sampling(Sampling(top_k=top_k), SPEC, FACTS, 9).top_k == drawn_from


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        (Sampling(logit_bias=(TokenBias(49, 1.0), TokenBias(50, 1.0))), "logit_bias"),
        (Sampling(stop_token_ids=(-1,)), "stop_token_ids"),
    ],
)
def test_tokens_that_the_model_has_not_are_refused(asked: Sampling, param: str) -> None:
    with pytest.raises(RequestError, match=f"`{param}` has the token .* 0 to 49") as raised:
        resolve_sampling(asked, SPEC, FACTS, 9)
    assert raised.value.param == param


def test_what_ends_an_answer() -> None:
    asked = Sampling(stop_token_ids=(3,))
    assert resolve_sampling(asked, SPEC, FACTS, 9).end_ids == {3, 7}
    asked = dataclasses.replace(asked, ignore_eos=True)
    assert resolve_sampling(asked, SPEC, FACTS, 9).end_ids == {3}


@given(seed=st.integers(-(2**63), 2**63 - 1))
def test_each_answer_has_a_seed_of_its_own(seed: int) -> None:
    seeds = [answer_seed(seed, index) for index in range(20)]
    assert seeds[0] == seed
    assert len(set(seeds)) == 20
    assert all(abs(other) < 2**64 for other in seeds)


@pytest.mark.parametrize(
    ("asked", "default", "limit", "expected"),
    [
        (None, None, None, 60),
        (None, 20, None, 20),
        (10, 20, None, 10),
        (90, None, None, 60),
        (50, None, 30, 30),
        (None, None, 30, 30),
    ],
)
def test_max_tokens(
    asked: int | None, default: int | None, limit: int | None, expected: int
) -> None:
    spec = dataclasses.replace(SPEC, default_max_tokens=default, max_tokens_limit=limit)
    assert resolve_max_tokens(asked, spec, 40, FACTS, "messages") == expected


@given(prompt=st.integers(1, 200), asked=st.none() | st.integers(1, 300))
def test_prompt_and_answer_fit_the_context(prompt: int, asked: int | None) -> None:
    try:
        tokens = resolve_max_tokens(asked, SPEC, prompt, FACTS, "messages")
    except RequestError as error:
        assert prompt >= 100
        assert (error.code, error.param) == (ErrorCode.CONTEXT_LENGTH_EXCEEDED, "messages")
        assert str(prompt) in error.message
        assert "100" in error.message
    else:
        assert 1 <= tokens <= 100 - prompt


@pytest.mark.parametrize(
    ("most", "asked", "default", "left"),
    [
        (None, None, None, 200),
        (30, None, None, 30),
        (500, None, None, 200),
        (-1, 20, 50, 80),
        (-1, None, 10, 90),
        (-1, None, 50, 75),
        (-1, None, None, 75),
        (-1, 0, None, 100),
        (-1, 99, None, 75),
        (-1, 1000, None, 75),
        (-1, 2**31 - 1, None, 75),
    ],
)
def test_the_end_of_a_prompt_is_taken(
    most: int | None, asked: int | None, default: int | None, left: int
) -> None:
    spec = dataclasses.replace(SPEC, default_max_tokens=default)
    request = Generate(
        1, "req", Sampling(), 1, prompt="p", max_tokens=asked, truncate_prompt_tokens=most
    )
    assert truncated(range(200), request, spec, 100) == range(200 - left, 200)


@pytest.mark.parametrize(
    ("asked", "limit", "prompt", "left"),
    [
        (None, None, 99, 99),
        (100, None, 99, 99),
        (2**31 - 1, None, 99, 99),
        (None, None, 100, 75),
        (99, None, 75, 75),
        (99, None, 99, 75),
        (20, None, 80, 80),
        (2**31 - 1, 20, 99, 80),
    ],
)
def test_a_prompt_that_leaves_room_for_its_answer_is_not_cut(
    asked: int | None, limit: int | None, prompt: int, left: int
) -> None:
    spec = dataclasses.replace(SPEC, default_max_tokens=None, max_tokens_limit=limit)
    request = Generate(
        1, "req", Sampling(), 1, prompt="p", max_tokens=asked, truncate_prompt_tokens=-1
    )
    assert len(truncated(range(prompt), request, spec, 100)) == left


def test_no_token_at_all_fits_a_full_context() -> None:
    assert resolve_max_tokens(0, SPEC, 100, FACTS, "prompt") == 0
    with pytest.raises(RequestError, match=r"shorten them\.$"):
        resolve_max_tokens(0, SPEC, 101, FACTS, "prompt")
    short = dataclasses.replace(FACTS, own_context_tokens=4096)
    with pytest.raises(RequestError, match=r"context_length set to more \(up to 4096\)\.$"):
        resolve_max_tokens(0, SPEC, 101, short, "prompt")


def test_progress_clock_counts_only_while_work_is_in_flight() -> None:
    clock = ProgressClock()
    assert clock.stalled_for_s(50) == 0
    clock.begin(100)
    assert clock.stalled_for_s(103) == 3
    clock.begin(103)
    assert clock.stalled_for_s(104) == 4, "more work is no progress"
    clock.advance(105)
    assert clock.stalled_for_s(106) == 1
    clock.end()
    clock.end()
    assert (clock.in_flight, clock.stalled_for_s(200)) == (0, 0)
    clock.begin(300)
    assert clock.stalled_for_s(301) == 1


def test_retry_after_follows_how_long_streams_hold_their_rows() -> None:
    estimate = QueueEstimate()
    assert estimate.retry_after_s(2) == 1
    estimate.ended(20)
    assert estimate.retry_after_s(2) == 10
    assert estimate.retry_after_s(1) == 20, "fewer run, where memory is short"
    assert estimate.retry_after_s(0) == 20
    estimate.ended(1000)
    assert estimate.retry_after_s(2) == 60


@pytest.mark.parametrize(
    ("search", "param"),
    [(Search(n=3, best_of=3, beam=True), "n"), (Search(n=1, best_of=3, beam=True), "best_of")],
)
def test_beams_without_places_name_the_field_that_asks_for_them(search: Search, param: str) -> None:
    spec = dataclasses.replace(SPEC, max_rows=2)
    request = Generate(1, "r", Sampling(), 1, prompt="x", search=search)
    with pytest.raises(RequestError) as caught:
        prepare(ScriptedEngine({}), FACTS, spec, request, 1, lambda: 1, 0.0)
    assert caught.value.param == param
    assert f"`{param}` 3" in caught.value.message


LOOKUP = SpeculationSpec()
DRAFT = SpeculationSpec(draft_path="/models/draft")
HEADS = SpeculationSpec(own_heads=True)
FOUND = SpeculationSpec(auto=True)


@pytest.mark.parametrize(
    ("speculation", "assist", "param"),
    [
        (None, Assist(num_assistant_tokens=3), "num_assistant_tokens"),
        (None, Assist(assistant_confidence_threshold=0.4), "assistant_confidence_threshold"),
        (None, Assist(max_ngram_size=3), "max_ngram_size"),
        (LOOKUP, Assist(assistant_confidence_threshold=0.4), "assistant_confidence_threshold"),
        (DRAFT, Assist(max_ngram_size=3), "max_ngram_size"),
        (HEADS, Assist(max_ngram_size=3), "max_ngram_size"),
        (None, Assist(), None),
        (LOOKUP, Assist(num_assistant_tokens=3, max_ngram_size=3), None),
        (DRAFT, Assist(assistant_confidence_threshold=0.4), None),
        (HEADS, Assist(assistant_confidence_threshold=0.4), None),
        (FOUND, Assist(assistant_confidence_threshold=0.4, max_ngram_size=3), None),
    ],
)
def test_guessing_ahead_is_refused_where_the_model_does_not_do_it_so(
    speculation: SpeculationSpec | None, assist: Assist, param: str | None
) -> None:
    spec = dataclasses.replace(SPEC, speculation=speculation)
    request = Generate(1, "r", Sampling(), 1, prompt="x", assist=assist)
    if param is None:
        prepare(ScriptedEngine({}), FACTS, spec, request, 1, lambda: 1, 0.0)
        return
    with pytest.raises(RequestError) as caught:
        prepare(ScriptedEngine({}), FACTS, spec, request, 1, lambda: 1, 0.0)
    assert (caught.value.code, caught.value.param) == (ErrorCode.UNSUPPORTED_VALUE, param)


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"prompt_logprobs": 5}, "prompt_logprobs"),
        ({"echo": True, "top_logprobs": 5}, "logprobs"),
        ({"echo": True, "top_logprobs": 5, "prompt_logprobs": 1}, "logprobs"),
        ({"echo": True, "top_logprobs": 4}, None),
        ({"top_logprobs": 20}, None),
    ],
)
def test_too_many_logprobs_of_a_prompt_are_refused(
    asked: dict[str, Any], param: str | None
) -> None:
    facts = dataclasses.replace(FACTS, context_tokens=60_000)
    request = Generate(1, "r", Sampling(), 1, prompt_tokens=(1,) * 50_000, **asked)
    engine = ScriptedEngine({"context_length": 60_000})
    if param is None:
        prepare(engine, facts, SPEC, request, 1, lambda: 1, 0.0)
        return
    with pytest.raises(RequestError, match="more than the 262144 logprobs") as caught:
        prepare(engine, facts, SPEC, request, 1, lambda: 1, 0.0)
    assert caught.value.param == param


def test_thinking_that_is_required_is_refused_where_the_model_does_not_think() -> None:
    thinks = dataclasses.replace(FACTS, reasoning=ReasoningMarkers("<think>", "</think>"))
    for facts, thinking, refused in (
        (FACTS, Thinking(enabled=True, param="think", required=True), True),
        (FACTS, Thinking(enabled=True), False),
        (thinks, Thinking(enabled=True, param="think", required=True), False),
    ):
        request = Generate(1, "r", Sampling(), 1, prompt="x", thinking=thinking)
        if not refused:
            prepare(ScriptedEngine({}), facts, SPEC, request, 1, lambda: 1, 0.0)
            continue
        with pytest.raises(RequestError, match='"m" does not support thinking') as caught:
            prepare(ScriptedEngine({}), facts, SPEC, request, 1, lambda: 1, 0.0)
        assert (caught.value.code, caught.value.param) == (ErrorCode.UNSUPPORTED_VALUE, "think")


def test_what_is_not_enforced_is_reported_without_a_constraint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = ScriptedEngine({})
    maker = ConstraintMaker(None, remarks=("Calls are not enforced.",))
    monkeypatch.setattr(engine, "constrain", lambda source: maker)
    request = Generate(1, "r", Sampling(), 1, prompt="x")
    job = prepare(engine, FACTS, SPEC, request, 1, lambda: 1, 0.0)
    assert job.remarks == ("Calls are not enforced.",)
    assert [row.constraint for row in job.sequences] == [None]


def test_a_request_s_priority_is_its_job_s_and_its_rows() -> None:
    for priority in (-3, 0, 5):
        search = Search(n=2)
        request = Generate(1, "r", Sampling(), 1, prompt="x", priority=priority, search=search)
        for again in (False, True):
            job = prepare(
                ScriptedEngine({}), FACTS, SPEC, request, 1, lambda: 1, 0.0, is_retry=again
            )
            assert [row.priority for row in job.sequences] == [priority, priority]
            assert job.priority == priority


def test_media_come_to_the_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ScriptedEngine({})
    sources: list[PromptSource] = []

    def encode(source: PromptSource) -> EncodedPrompt:
        sources.append(source)
        return EncodedPrompt([1])

    monkeypatch.setattr(engine, "encode", encode)
    request = Generate(1, "r", Sampling(), 1, messages=())
    picture = Picture(np.zeros((2, 2, 3), np.uint8))
    for media in ((picture,), ()):
        prepare(engine, FACTS, SPEC, request, 1, lambda: 1, 0.0, media)
        assert sources[-1].media == media


@pytest.mark.parametrize(
    ("most", "text_tokens", "read"), [(-1, 50, 50), (-1, 200, 75), (None, 50, None), (9, 50, None)]
)
def test_a_conversation_that_is_cut_is_read_without_its_media(
    monkeypatch: pytest.MonkeyPatch, most: int | None, text_tokens: int, read: int | None
) -> None:
    engine = ScriptedEngine({})
    sources: list[PromptSource] = []
    held: Any = object()

    def encode(source: PromptSource) -> EncodedPrompt:
        sources.append(source)
        return (
            EncodedPrompt([1] * 120, media=held)
            if source.media
            else EncodedPrompt([1] * text_tokens)
        )

    monkeypatch.setattr(engine, "encode", encode)
    pictured = [{"type": "text", "text": "This:"}, {"type": "image", "media": 0}]
    cut_up = [{"type": "text", "text": "We"}, {"type": "text", "text": "ll?"}]
    messages = ({"role": "user", "content": pictured}, {"role": "user", "content": cut_up})
    request = Generate(
        1, "r", Sampling(), 1, messages=messages, max_tokens=50, truncate_prompt_tokens=most
    )
    media = (Picture(np.zeros((2, 2, 3), np.uint8)),)
    if read is None:
        code = "images" if most else "shorten"
        with pytest.raises(RequestError, match=code):
            prepare(engine, FACTS, SPEC, request, 1, lambda: 1, 0.0, media)
        return
    job = prepare(engine, FACTS, SPEC, request, 1, lambda: 1, 0.0, media)
    assert [one["content"] for one in sources[-1].messages or ()] == ["This:\n[image]", cut_up]
    assert not sources[-1].media and not sources[-1].media_params
    (row,) = job.sequences
    assert (len(row.prompt), row.media) == (read, None)
    assert "images, sounds and videos" in job.remarks[0]
    cut = [f"its first {text_tokens - read} tokens were cut off"] if read < text_tokens else []
    assert len(job.remarks) == 1 + len(cut) and all(one in job.remarks[-1] for one in cut)
    # One that fits is read as it is.
    facts = dataclasses.replace(FACTS, context_tokens=1000)
    whole = prepare(engine, facts, SPEC, request, 1, lambda: 1, 0.0, media)
    assert (whole.sequences[0].media, whole.remarks) == (held, ())


@pytest.mark.parametrize("closed", [True, False])
def test_an_answer_behind_the_thinking_that_the_prompt_has_ended(
    monkeypatch: pytest.MonkeyPatch, closed: bool
) -> None:
    engine = ScriptedEngine({})
    encoded = EncodedPrompt([1], thinking_closed=closed)
    monkeypatch.setattr(engine, "encode", lambda source: encoded)
    facts = dataclasses.replace(FACTS, reasoning=ReasoningMarkers("<think>", "</think>"))
    request = Generate(1, "r", Sampling(), 1, messages=())
    job = prepare(engine, facts, SPEC, request, 1, lambda: 1, 0.0)
    assert job.rules.make_parser is not None
    parser = job.rules.make_parser()
    parts = [*parser.add("The <think> tag."), *parser.finish()]
    assert (len(parts) == 1) is closed


@pytest.mark.parametrize(
    ("parse", "continues", "thinking_open", "only_form"),
    [
        (True, False, False, False),
        (False, False, False, True),
        (True, True, False, True),
        (True, True, True, False),
    ],
)
def test_a_form_is_that_of_the_whole_text_where_nothing_comes_before_it(
    monkeypatch: pytest.MonkeyPatch,
    parse: bool,
    continues: bool,
    thinking_open: bool,
    only_form: bool,
) -> None:
    engine = ScriptedEngine({})
    sources: list[ConstraintSource] = []
    monkeypatch.setattr(engine, "encode", lambda source: EncodedPrompt([1], thinking_open))
    monkeypatch.setattr(engine, "constrain", sources.append)
    facts = dataclasses.replace(
        FACTS,
        reasoning=ReasoningMarkers("<|channel|>analysis<|message|>", "<|end|>"),
        tool_parser="harmony",
    )
    request = Generate(
        1, "r", Sampling(), 1, messages=(), parse=parse, continue_final_message=continues
    )
    job = prepare(engine, facts, SPEC, request, 1, lambda: 1, 0.0)
    (source,) = sources
    assert source.only_form is only_form
    if parse:
        assert job.rules.make_parser is not None
        kinds = [part.kind for part in job.rules.make_parser().add("and so on.")]
        assert kinds == (
            [DeltaKind.REASONING] if thinking_open else [DeltaKind.CONTENT] * continues
        )
