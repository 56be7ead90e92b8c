"""Speculation on tiny models: the same tokens as without it, in fewer steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_vlm.utils import load

from lmx.protocol.errors import OperationError
from lmx.protocol.messages.data import Assist
from lmx.protocol.messages.specs import PrefixCacheSpec, SpeculationSpec
from lmx.worker.engine.values import (
    Constraint,
    DraftCounts,
    GeneratedToken,
    SequenceRequest,
    SequenceSampling,
    StepOutput,
)
from lmx.worker.mlx.decoding.decode import DecodeBatch, Joining
from lmx.worker.mlx.decoding.prefill import PromptPrefill
from lmx.worker.mlx.decoding.rollback import Blocks, Undo, probe_multi_token
from lmx.worker.mlx.decoding.sequence import DecodeSequence
from lmx.worker.mlx.decoding.speculation import Speculation
from lmx.worker.mlx.drafting.draft_model import DraftModel, DraftModelSequence, load_draft
from lmx.worker.mlx.drafting.prompt_lookup import LookupDrafter
from lmx.worker.mlx.drafting.token_drafter import TokenDrafter
from lmx.worker.mlx.model.forward import Forward
from lmx.worker.mlx.sampling.sampler import BatchSampler
from tests.support.models.tiny_models import (
    CONTEXT_TOKENS,
    VOCABULARY,
    make_tiny_model,
    make_tokenizer,
)
from tests.support.rigs.engine_rig import EngineRunner, spec_of

GREEDY = SequenceSampling(0.0)
KINDS = ["llama", "qwen3", "gemma3"]
RECURRENT = ["qwen3_5", "qwen3_next", "lfm2"]
# Says itself over and over, and so do tiny models.
PROMPT = [40, 41, 42, 43, 44, 45, 46] * 5
# Stops nothing: no token has this id.
NO_END = frozenset({-1})


@cache
def blocks(forward: Forward) -> Blocks:
    return probe_multi_token(forward, drafts=True)


@dataclass
class Rig:
    """What an engine does for its decode batch, without the rest of it."""

    forward: Forward
    speculation: Callable[[BatchSampler], Speculation] | None = None
    made: dict[int, list[GeneratedToken]] = field(default_factory=dict)
    drafts: list[DraftCounts] = field(default_factory=list)
    steps: int = 0
    shared_steps: int = 0

    def __post_init__(self) -> None:
        self.sampler = BatchSampler()
        self.batch = DecodeBatch(self.forward, self.sampler, blocks(self.forward))
        self.ahead = self.speculation(self.sampler) if self.speculation else None

    def begin(self, row: SequenceRequest) -> None:
        """Prefill a row, and let it join."""
        cache = self.forward.new_cache()
        prefill = PromptPrefill(self.forward, row, cache, 0)
        self.sampler.add(
            row.sequence_id, row.sampling, row.prompt, row.constraint, row.top_logprobs
        )
        if self.ahead:
            self.ahead.add(row.sequence_id, row.assist)
        decode_row = DecodeSequence(row.sequence_id, list(row.prompt), row.max_tokens, "")
        logits = prefill.finish()
        assert not self.batch.join(Joining(decode_row, cache, logits, prefill.rope_deltas()))
        self.made[row.sequence_id] = []

    def step(self) -> None:
        """Step once; rows without tokens left leave."""
        self.steps += 1
        step = self.ahead.step(self.batch, alone=True) if self.ahead else self.batch.step()
        assert not step.failed
        for token in step.tokens:
            self.made[token.sequence_id].append(token)
        self.drafts += step.drafts
        self.shared_steps += len(step.drafts) > 1
        self.leave([row.sequence_id for row in self.batch.rows if row.left_tokens == 0])
        assert all(row.left_tokens > 0 for row in self.batch.rows)

    def leave(self, sequence_ids: Sequence[int]) -> None:
        for sequence_id in sequence_ids:
            self.sampler.remove(sequence_id)
            if self.ahead:
                self.ahead.remove(sequence_id)
        self.batch.leave(sequence_ids)

    def finish(self) -> None:
        while self.batch.rows:
            self.step()

    def tokens(self, sequence_id: int) -> list[int]:
        return [token.token for token in self.made[sequence_id]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("tiny")
    return lambda kind: make_tiny_model(root / kind, kind)


@pytest.fixture(scope="module")
def forward(folder: Callable[[str], Path]) -> Callable[[str], Forward]:
    loaded: dict[str, Forward] = {}

    def get(kind: str) -> Forward:
        if kind not in loaded:
            loaded[kind] = Forward(load(str(folder(kind)))[0])
        return loaded[kind]

    return get


def speculating(
    drafter: TokenDrafter | None = None, end_ids: frozenset[int] = NO_END, **spec: Any
) -> Callable[[BatchSampler], Speculation]:
    """Speculation for which time stands still, so that it never seems not to pay. Without a
    drafter, tokens are looked up."""
    drafter = drafter or LookupDrafter(SpeculationSpec().max_ngram_size)
    return lambda sampler: Speculation(
        SpeculationSpec(**spec), drafter, sampler, end_ids, 1.0, clock=lambda: 0.0
    )


def drafting(forward: Forward) -> DraftModel:
    return DraftModel(forward, None, forward.vocabulary_size)


def compare(
    forward: Forward,
    speculation: Callable[[BatchSampler], Speculation] | None = None,
    *,
    reported: bool = False,
    constrain: Callable[[], Constraint] | None = None,
    **row: Any,
) -> Rig:
    """Run one row with and without; return the run with it. ``told``: with drafts that are
    right at most times."""
    request: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 40, "sampling": GREEDY} | row
    plain = Rig(forward)
    plain.begin(SequenceRequest(1, constraint=constrain() if constrain else None, **request))
    plain.finish()
    if reported:
        speculation = speculating(Told([[*request["prompt"], *plain.tokens(1), 0]]))
    ahead = Rig(forward, speculation)
    ahead.begin(SequenceRequest(1, constraint=constrain() if constrain else None, **request))
    ahead.finish()
    assert ahead.tokens(1) == plain.tokens(1)
    assert len(ahead.tokens(1)) == request["max_tokens"]
    assert ahead.drafts, "nothing was drafted"
    if plain.made[1][0].scores is not None:
        for one, other in zip(plain.made[1], ahead.made[1], strict=True):
            assert one.scores is not None and other.scores is not None
            assert one.scores.logprob == pytest.approx(other.scores.logprob, abs=1e-4)
            assert [token for token, _ in one.scores.top] == [
                token for token, _ in other.scores.top
            ]
    return ahead


def acceptance(rig: Rig) -> float:
    drafted = sum(drafts.drafted_tokens for drafts in rig.drafts)
    return sum(drafts.accepted_tokens for drafts in rig.drafts) / drafted


@pytest.mark.parametrize("kind", KINDS)
class TestGreedyIsIdentical:
    def test_with_prompt_lookup(self, forward: Callable[[str], Forward], kind: str) -> None:
        compare(forward(kind), speculating())

    def test_with_itself_as_draft(self, forward: Callable[[str], Forward], kind: str) -> None:
        rig = compare(forward(kind), speculating(drafting(forward(kind))))
        assert acceptance(rig) == 1.0
        # Two plain steps to measure and one to begin with; then four drafts and one more.
        assert rig.steps <= 3 + 40 / 5 + 1

    def test_with_another_model_as_draft(
        self, forward: Callable[[str], Forward], kind: str
    ) -> None:
        other = forward("qwen3" if kind == "llama" else "llama")
        rig = compare(forward(kind), speculating(drafting(other)))
        assert acceptance(rig) < 0.5

    def test_however_much_is_right(self, forward: Callable[[str], Forward], kind: str) -> None:
        rig = compare(forward(kind), reported=True, max_tokens=60)
        assert {drafts.accepted_tokens for drafts in rig.drafts} >= {0, 1, 2, 3, 4}
        # Tiny models repeat themselves, but for when they draw.
        compare(forward(kind), reported=True, sampling=SequenceSampling(1.0, seed=2), max_tokens=60)


class Told(DraftModel):
    """Knows what is said in each row, in the order in which they come, and errs at times."""

    def __init__(self, texts: Sequence[Sequence[int]]) -> None:
        self.context_tokens = None
        self._texts = iter(texts)

    def open_sequence(self, assist: Assist) -> DraftModelSequence:
        place, text = Place(), next(self._texts)

        def forward(tokens: mx.array, _: Any) -> mx.array:
            place.offset += tokens.shape[1]
            # Right once, twice, six times, ...: every pattern of acceptance.
            wrong = place.offset**2 % 23 in (1, 6, 13, 18)
            reported = 0 if wrong else text[place.offset]
            return mx.where(mx.arange(260) == reported, 60.0, 0.0)[None]

        return DraftModelSequence(forward, [place], None)


@dataclass
class Place:
    """In place of a KV cache."""

    offset: int = 0
    state: tuple[()] = ()

    def trim(self, count: int) -> None:
        self.offset -= count


class EvenOnly:
    """Allows even tokens, and those divisible by three after one that is divisible by four."""

    def __init__(self, taken: tuple[int, ...] = ()) -> None:
        self.taken = list(taken)

    def mask(self) -> Any:
        step = 3 if self.taken and self.taken[-1] % 4 == 0 else 2
        bits = np.zeros(288, bool)
        bits[0:260:step] = True
        return np.packbits(bits, bitorder="little").view(np.uint32)

    def accept(self, token: int) -> None:
        self.taken.append(token)

    def fork(self) -> EvenOnly:
        return EvenOnly(tuple(self.taken))


SAMPLINGS = {
    "temperature": SequenceSampling(1.0, seed=5),
    "filters": SequenceSampling(0.8, top_p=0.9, top_k=20, min_p=0.01, seed=6),
    "penalties": SequenceSampling(
        0.7, seed=7, repetition_penalty=1.2, frequency_penalty=0.4, presence_penalty=0.2
    ),
    "greedy penalties": SequenceSampling(0.0, repetition_penalty=1.3, frequency_penalty=0.5),
    "min_tokens": SequenceSampling(1.0, seed=8, min_tokens=12, end_ids=frozenset(range(0, 200, 3))),
    "bias": SequenceSampling(1.0, seed=9, logit_bias=((70, 3.0), (71, -100.0))),
}


@pytest.mark.parametrize("name", SAMPLINGS)
@pytest.mark.parametrize("lookup", [True, False])
def test_draws_are_identical(forward: Callable[[str], Forward], name: str, lookup: bool) -> None:
    # Every token has come before, so that there is always something to look up.
    prompt = list(range(256))
    speculation = speculating() if lookup else None
    rig = compare(
        forward("llama"),
        speculation,
        reported=not lookup,
        sampling=SAMPLINGS[name],
        prompt=prompt,
        max_tokens=30,
    )
    assert lookup or acceptance(rig) > 0.25


@pytest.mark.parametrize("sampling", [GREEDY, SequenceSampling(1.0, seed=3)])
def test_a_constraint_is_kept_to(
    forward: Callable[[str], Forward], sampling: SequenceSampling
) -> None:
    compare(forward("llama"), speculating(), sampling=sampling, constrain=EvenOnly)
    rig = compare(forward("llama"), reported=True, sampling=sampling, constrain=EvenOnly)
    assert acceptance(rig) > 0.25


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLINGS["penalties"]])
def test_every_token_has_its_logprobs(
    forward: Callable[[str], Forward], sampling: SequenceSampling
) -> None:
    rig = compare(forward("llama"), reported=True, sampling=sampling, top_logprobs=2)
    assert all(token.scores is not None for token in rig.made[1])


def test_a_seed_draws_the_same_guesses(forward: Callable[[str], Forward]) -> None:
    sampling = SequenceSampling(1.0, seed=11)
    rig = compare(forward("llama"), speculating(drafting(forward("llama"))), sampling=sampling)
    assert acceptance(rig) == 1.0


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 4, 5, 6, 8, 9])
def test_no_row_gets_more_than_it_asked_for(
    forward: Callable[[str], Forward], max_tokens: int
) -> None:
    plain = Rig(forward("llama"))
    ahead = Rig(forward("llama"), speculating(drafting(forward("llama"))))
    for rig in (plain, ahead):
        rig.begin(SequenceRequest(1, PROMPT, max_tokens, GREEDY))
        rig.finish()
    assert ahead.tokens(1) == plain.tokens(1)
    assert len(ahead.tokens(1)) == max_tokens


@pytest.mark.parametrize(
    ("kind", "max_rows"),
    [
        *(("llama", 2), ("gemma3", 2), ("qwen3_5", 1), ("qwen3_5", 2), ("qwen3_next", 2)),
        ("lfm2", 1),
        *(
            pytest.param(*each, marks=pytest.mark.conformance)
            for each in (("llama", 1), ("gemma3", 1), ("qwen3_next", 1), ("lfm2", 2))
        ),
    ],
)
def test_rows_join_and_leave(forward: Callable[[str], Forward], kind: str, max_rows: int) -> None:
    model = forward(kind)
    rows = [
        SequenceRequest(1, PROMPT, 30, GREEDY, top_logprobs=1),
        SequenceRequest(2, [90, 91, 92] * 3, 25, SequenceSampling(0.9, seed=4)),
        SequenceRequest(3, list(range(100, 150)), 12, GREEDY),
        SequenceRequest(4, [7], 30, SAMPLINGS["penalties"]),
    ]
    alone: dict[int, list[int]] = {}
    for row in rows:
        rig = Rig(model)
        rig.begin(row)
        rig.finish()
        alone[row.sequence_id] = rig.tokens(row.sequence_id)
    texts = [[*row.prompt, *alone[row.sequence_id], 0] for row in rows]
    together = Rig(model, speculating(Told(texts), max_rows=max_rows))
    for row, pause in zip(rows, (7, 4, 2, 5), strict=True):
        together.begin(row)
        for _ in range(pause):
            together.step()
        for place, left in enumerate(together.batch.rows):
            assert len(left.tokens) == _cached_tokens(together.batch, place)
    together.leave([2])
    together.finish()
    for row in rows:
        made = together.tokens(row.sequence_id)
        assert made == alone[row.sequence_id][: len(made)]
        assert row.sequence_id == 2 or len(made) == row.max_tokens
    assert together.drafts
    # In a batch, Qwen 3.5 is wrong after several tokens.
    able = max_rows == 2 and kind != "qwen3_5"
    assert (together.shared_steps > 0) == able


def _cached_tokens(batch: DecodeBatch, place: int) -> int:
    """How many tokens of a row the last layer of full attention holds."""
    offset = [layer.offset for layer in batch.prompt_cache if hasattr(layer, "offset")][-1]
    return offset if isinstance(offset, int) else int(offset[place].item())


def test_a_recurrent_state_is_taken_back(forward: Callable[[str], Forward]) -> None:
    ways = {kind: blocks(forward(kind)).alone for kind in RECURRENT}
    assert ways == {"qwen3_5": Undo.RECORDED, "qwen3_next": Undo.REPLAYED, "lfm2": Undo.REPLAYED}
    for kind in RECURRENT:
        rig = compare(forward(kind), reported=True)
        assert 0 < acceptance(rig) < 1


class FirstAlone(Told):
    """Has drafts for its first row alone."""

    opened = 0

    def open_sequence(self, assist: Assist) -> DraftModelSequence:
        row: Any = super().open_sequence(assist)
        if self.opened:
            row.draft = lambda *_: None
        self.opened += 1
        opened: DraftModelSequence = row
        return opened


def test_a_row_is_not_judged_by_drafts_that_nobody_checked(
    forward: Callable[[str], Forward],
) -> None:
    rig = Rig(forward("qwen3_next"), speculating(FirstAlone([[0] * 200] * 2)))
    for row in (1, 2):
        rig.begin(SequenceRequest(row, PROMPT, 30, GREEDY))
    assert rig.batch.in_step and rig.ahead is not None
    for _ in range(10):
        rig.step()
    assert not rig.drafts
    assert rig.ahead.state == "on"
    assert rig.ahead._rows[1].pace.tokens(2) == SpeculationSpec().num_assistant_tokens


@pytest.mark.parametrize("kind", KINDS)
def test_by_default_the_tokens_are_the_same_as_without(
    forward: Callable[[str], Forward], kind: str
) -> None:
    """By the counted clock, a step with drafts takes as long as one without."""

    def by_default(sampler: BatchSampler) -> Speculation:
        drafter, clock = LookupDrafter(3, sure=True), count()
        spec = SpeculationSpec(auto=True)
        return Speculation(spec, drafter, sampler, NO_END, 1.0, clock=lambda: float(next(clock)))

    # This is how its text repeats itself, so that something is looked up rightly.
    plain = Rig(forward(kind))
    plain.begin(SequenceRequest(1, PROMPT, 60, GREEDY))
    plain.finish()
    prompt = [*PROMPT, *plain.tokens(1), *PROMPT]
    rig = compare(forward(kind), by_default, prompt=prompt, max_tokens=150)
    plain_steps = 150 - sum(drafts.accepted_tokens for drafts in rig.drafts)
    assert rig.steps <= plain_steps + 1
    assert rig.ahead is not None
    assert rig.ahead.state in ("on", "waits for text that repeats")


def test_by_default_nothing_is_drafted_for_many_rows(forward: Callable[[str], Forward]) -> None:
    rig = Rig(forward("llama"), speculating(LookupDrafter(3, sure=True), auto=True))
    for row in range(1, 4):
        rig.begin(SequenceRequest(row, PROMPT, 60, GREEDY))
    rig.finish()
    assert rig.ahead is not None
    assert (rig.drafts, rig.ahead.state) == ([], "off while there are more than 2 requests")


def test_nothing_is_returned_behind_an_end(forward: Callable[[str], Forward]) -> None:
    row = SequenceRequest(1, PROMPT, 30, SequenceSampling(1.0, seed=2))
    plain = Rig(forward("llama"))
    plain.begin(row)
    plain.finish()
    for end in plain.tokens(1)[8:14]:
        ahead = Rig(forward("llama"), speculating(drafting(forward("llama")), frozenset({end})))
        ahead.begin(row)
        while end not in ahead.tokens(1):
            ahead.step()
        assert ahead.drafts
        assert ahead.tokens(1)[-1] == end
        assert _cached_tokens(ahead.batch, 0) == len(PROMPT) + len(ahead.tokens(1))


def test_unlikely_guesses_are_kept_back(forward: Callable[[str], Forward]) -> None:
    draft = drafting(forward("llama"))
    sure = compare(forward("llama"), speculating(draft), top_logprobs=0)
    chances = sorted(math.exp(token.scores.logprob) for token in sure.made[1] if token.scores)
    median = chances[len(chances) // 2]
    unsure = compare(forward("llama"), speculating(draft, assistant_confidence_threshold=median))
    never = Rig(forward("llama"), speculating(draft))
    never.begin(SequenceRequest(1, PROMPT, 9, GREEDY, assist=Assist(None, chances[-1] + 0.01)))
    never.finish()
    assert not never.drafts
    assert sure.steps < unsure.steps < 40


def test_a_request_says_how_far_to_guess(forward: Callable[[str], Forward]) -> None:
    rig = compare(forward("llama"), speculating(), assist=Assist(num_assistant_tokens=2))
    assert {drafts.drafted_tokens for drafts in rig.drafts} <= {1, 2}
    most = compare(
        forward("llama"),
        speculating(drafting(forward("llama"))),
        assist=Assist(num_assistant_tokens=1000),
        max_tokens=80,
    )
    assert max(drafts.drafted_tokens for drafts in most.drafts) == 32


def test_a_draft_model_with_a_short_context_stops_at_its_end(
    forward: Callable[[str], Forward],
) -> None:
    draft = DraftModel(forward("llama"), len(PROMPT) + 12, VOCABULARY)
    rig = compare(forward("llama"), speculating(draft))
    assert acceptance(rig) == 1.0
    assert sum(drafts.accepted_tokens for drafts in rig.drafts) <= 12


class Counting:
    """A language model to which the highest token that it has is always the likeliest."""

    def __init__(self, vocabulary_size: int) -> None:
        self.vocabulary_size = vocabulary_size
        self.language_model = self

    def make_cache(self) -> list[Any]:
        return []

    def __call__(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        assert mx.all(tokens < self.vocabulary_size).item(), "it reads what is not there"
        logits = mx.arange(self.vocabulary_size, dtype=mx.float32)
        return mx.broadcast_to(logits, (*tokens.shape, self.vocabulary_size))


@pytest.mark.parametrize(("width", "likeliest"), [(1024, VOCABULARY - 1), (200, 199)])
def test_a_draft_model_may_be_wider_or_narrower(width: int, likeliest: int) -> None:
    """Models with one tokenizer are padded to different numbers of tokens."""

    def choose(logits: mx.array, _: int) -> mx.array:
        assert logits.shape == (1, VOCABULARY)
        return mx.argmax(logits, axis=-1)

    model: Any = Counting(width)
    row = DraftModel(model, None, VOCABULARY).open_sequence(Assist())
    drafted = row.draft([5, VOCABULARY - 1], 2, choose, None)
    assert drafted is not None and drafted.tolist() == [likeliest] * 2


def test_a_long_prompt_is_read_by_the_draft_model_a_chunk_a_step(
    forward: Callable[[str], Forward],
) -> None:
    rig = Rig(forward("llama"), speculating(drafting(forward("llama"))))
    rig.begin(SequenceRequest(1, PROMPT * 10, 60, GREEDY))
    read = []
    for _ in range(6):
        rig.step()
        assert rig.ahead is not None
        read.append(rig.ahead._rows[1].drafter.read_tokens)
    assert read[0] == 16
    assert all(after <= 3 * before for before, after in pairwise(read))
    rig.finish()
    assert acceptance(rig) == 1.0


def test_a_draft_model_must_speak_the_same_tokens(
    folder: Callable[[str], Path], forward: Callable[[str], Forward]
) -> None:
    tokenizer = load(str(folder("llama")))[1]
    assert load_draft(folder("qwen3"), tokenizer, VOCABULARY).context_tokens == CONTEXT_TOKENS
    odd = make_tokenizer()
    odd.add_tokens(["<odd>"])
    with pytest.raises(OperationError, match="differ in 1 entries"):
        load_draft(folder("qwen3"), odd, VOCABULARY)
    with pytest.raises(OperationError, match="state that can't be taken back"):
        load_draft(folder("lfm2"), tokenizer, VOCABULARY)


def test_an_engine_guesses_and_keeps_exactly_what_was_said(folder: Callable[[str], Path]) -> None:
    """The next turn begins with the cache of the last one, out of which drafts were taken."""
    draft = SpeculationSpec(draft_path=str(folder("qwen3")), num_assistant_tokens=3)
    cache = PrefixCacheSpec(memory_bytes=64 << 20)
    plain = EngineRunner(spec_of(folder("llama")))
    ahead = EngineRunner(spec_of(folder("llama"), prefix_cache=cache, speculation=draft))
    first = plain.alone(PROMPT, GREEDY, 30)
    assert ahead.alone(PROMPT, GREEDY, 30) == first
    turn = [*PROMPT, *first, 7, 8, 9]
    expected = plain.alone(turn, GREEDY, 20)
    row = ahead.admit(turn, GREEDY, 20)
    drafted = sum(
        drafts.drafted_tokens for output in _steps(ahead, row) for drafts in output.drafts
    )
    assert ahead.tokens[row] == expected
    assert ahead.started[row].cached_tokens >= len(PROMPT) + 30 - 1
    assert drafted > 0


def _steps(runner: EngineRunner, row: int) -> Iterator[StepOutput]:
    while row in runner.live:
        yield runner.step()


def test_an_engine_refuses_a_draft_model_that_cannot_guess(folder: Callable[[str], Path]) -> None:
    spec = SpeculationSpec(draft_path=str(folder("lfm2")))
    with pytest.raises(OperationError, match="can't be taken back"):
        EngineRunner(spec_of(folder("llama"), speculation=spec))


class Raising(EvenOnly):
    """Breaks at its sixth token."""

    def accept(self, token: int) -> None:
        super().accept(token)
        if len(self.taken) == 6:
            raise RuntimeError("sixth")


def test_a_constraint_that_raises_ends_its_row_alone(forward: Callable[[str], Forward]) -> None:
    other = SequenceRequest(2, [50, 51] * 9, 25, GREEDY)
    alone = Rig(forward("llama"))
    alone.begin(other)
    alone.finish()
    rig = Rig(forward("llama"), speculating())
    rig.begin(SequenceRequest(1, PROMPT, 25, GREEDY, constraint=Raising()))
    rig.begin(other)
    assert rig.ahead is not None
    failed: list[tuple[int, Exception]] = []
    while rig.batch.rows:
        step = rig.ahead.step(rig.batch, alone=True)
        failed += step.failed
        for token in step.tokens:
            rig.made[token.sequence_id].append(token)
        over = [row.sequence_id for row in rig.batch.rows if row.left_tokens == 0]
        rig.leave([*over, *(sequence_id for sequence_id, _ in step.failed)])
    assert [sequence_id for sequence_id, _ in failed] == [1]
    assert len(rig.made[1]) < 6
    assert rig.tokens(2) == alone.tokens(2)


@pytest.mark.conformance  # Two models of real size are loaded; the tiny ones show the same.
def test_a_real_model_says_the_same(smollm2_dir: Path, smollm2_int4_dir: Path) -> None:
    """Its own 4-bit version drafts well."""
    model, processor = load(str(smollm2_dir))
    tokenizer = getattr(processor, "tokenizer", processor)
    forward = Forward(model)
    draft = load_draft(smollm2_int4_dir, tokenizer, forward.vocabulary_size)
    prompt = tokenizer.encode("1 2 3 1 2 3 1")
    rig = compare(forward, speculating(draft), prompt=prompt, max_tokens=8)
    assert acceptance(rig) > 0.5
