"""Rows of all kinds that come, end, are removed, and are preempted and come back at any time: each
makes what it makes alone.

The seeds are fixed; a row's tokens alone are those of an engine without prefix cache and guesses.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from lmx.protocol.messages.specs import PrefixCacheSpec, SpeculationSpec
from lmx.worker.engine.values import (
    BeamSearch,
    Hypothesis,
    PrefillFinished,
    SequenceRequest,
    SequenceSampling,
    StepOutput,
    TokenScores,
)
from lmx.worker.mlx.decoding.prefill import PrefillChunk, PromptPrefill
from lmx.worker.scheduling import length_buckets
from tests.support.models.text_models import make_text_model
from tests.support.models.tiny_models import CONFIGS as TINY
from tests.support.models.tiny_models import VOCABULARY, make_tiny_model
from tests.support.rigs.engine_rig import (
    GREEDY,
    HOT,
    NO_STALL_S,
    WARM_TOP_P,
    EngineRunner,
    Plain,
    spec_of,
)

pytestmark = pytest.mark.long

BAD: Final = 254
"""A prompt with this token can't be read."""

NEVER: Final = 1 << 30

KV_BITS: Final = {"llama-64": 8, "gemma3-64": 4, "qwen3_next-64": 4}
"""The kinds whose keys and values are quantized."""

PREEMPTING: Final = ("draft", "small")
"""The engines whose rows are preempted."""

SAMPLINGS: Final = (
    GREEDY,
    GREEDY,
    HOT,
    WARM_TOP_P,
    SequenceSampling(0.0, repetition_penalty=1.3),
    SequenceSampling(1.0, seed=5, presence_penalty=0.5, frequency_penalty=0.2),
    SequenceSampling(0.0, min_tokens=4, end_ids=frozenset(range(0, 256, 3))),
)


class Residues:
    """Allows every ``every``-th token, from another one on each time; until it raises."""

    def __init__(self, every: int, masks: int = NEVER, accepts: int = NEVER) -> None:
        self._every = every
        self._masks = masks
        self._accepts = accepts
        self._made = 0

    def mask(self) -> npt.NDArray[np.uint32]:
        self._masks -= 1
        if self._masks < 0:
            raise RuntimeError("mask")
        allowed = np.zeros(-(-VOCABULARY // 32) * 32, np.bool_)
        allowed[self._made % self._every :: self._every] = True
        return np.packbits(allowed, bitorder="little").view(np.uint32)

    def accept(self, token: int) -> None:
        self._accepts -= 1
        if self._accepts < 0:
            raise RuntimeError("accept")
        assert token % self._every == self._made % self._every
        self._made += 1

    def fork(self) -> Residues:
        forked = Residues(self._every, self._masks, self._accepts)
        forked._made = self._made
        return forked


@dataclasses.dataclass(frozen=True)
class Asked:
    prompt: tuple[int, ...]
    sampling: SequenceSampling
    max_tokens: int
    constraint: tuple[int, ...]
    top_logprobs: int | None
    prompt_logprobs: int | None
    beam: BeamSearch | None
    cache_salt: str

    @property
    def may_fail(self) -> bool:
        return BAD in self.prompt or len(self.constraint) > 1 or bool(self.beam and self.constraint)

    def admit(self, runner: EngineRunner) -> int:
        return runner.admit(
            list(self.prompt),
            self.sampling,
            self.max_tokens,
            constraint=Residues(*self.constraint) if self.constraint else None,
            top_logprobs=self.top_logprobs,
            prompt_logprobs=self.prompt_logprobs,
            beam=self.beam,
            cache_salt=self.cache_salt,
        )


@dataclasses.dataclass(frozen=True)
class Made:
    tokens: Sequence[int]
    scores: Sequence[TokenScores]
    prompt_scores: Sequence[TokenScores]
    found: Sequence[Hypothesis]


class Alone:
    """What rows make alone, each computed once, and with ``plain`` checked against the model by
    itself."""

    def __init__(self, runner: EngineRunner, plain: Plain | None = None) -> None:
        self._runner = runner
        self._plain = plain
        self._made: dict[Asked, Made] = {}

    def __call__(self, asked: Asked) -> Made:
        asked = dataclasses.replace(asked, constraint=asked.constraint[:1], cache_salt="")
        if asked not in self._made:
            runner = self._runner
            sequence_id = asked.admit(runner)
            runner.finish()
            self._made[asked] = Made(
                runner.tokens[sequence_id],
                runner.scores[sequence_id],
                runner.started[sequence_id].prompt_scores,
                runner.found.get(sequence_id, ()),
            )
            if self._plain is not None and asked.beam is None:
                self._check(self._plain, asked, self._made[asked])
        return self._made[asked]

    def _check(self, plain: Plain, asked: Asked, made: Made) -> None:
        prompt, tokens = asked.prompt, made.tokens
        if asked.sampling is GREEDY and not asked.constraint:
            assert tokens == plain.likeliest(prompt, tokens)
        after_prompt = len(prompt) - 1
        logprobs = plain.logprobs([*prompt, *tokens])
        for token, right, scores in (
            *zip(prompt[1:], logprobs[:after_prompt], made.prompt_scores, strict=False),
            *zip(tokens, logprobs[after_prompt:], made.scores, strict=False),
        ):
            assert scores.logprob == pytest.approx(right[token].item(), abs=2e-3)
            best = mx.sort(-right)[: len(scores.top)]
            assert [value for _, value in scores.top] == pytest.approx((-best).tolist(), abs=2e-3)


class RandomRun:
    """Admits, steps, removes and, with ``preempts``, preempts at random, and checks what comes of
    it."""

    def __init__(
        self,
        runner: EngineRunner,
        seed: int,
        samplings: Sequence[SequenceSampling] = SAMPLINGS,
        *,
        preempts: bool = False,
    ) -> None:
        self.runner = runner
        self.samplings = samplings
        self.preempts = preempts
        self.away: dict[int, SequenceRequest] = {}
        """The rows that were preempted, as they come back."""
        self.read: dict[int, PrefillFinished] = {}
        """How those began that were preempted after that."""
        self.random = random.Random(seed)
        self.interruptions = random.Random(seed)
        """Between which layers chunks pause: that changes nothing of what is done else."""
        self.asked: dict[int, Asked] = {}
        self.removed: set[int] = set()
        self.prefill_tokens = 0
        base = self._tokens(300)
        self.bases = [base, base[:200] + self._tokens(150), self._tokens(150), self._tokens(90)]

    def go(self) -> None:
        for _ in range(20):
            chance = self.random.random()
            if chance < 0.4 and len(self.runner.live) < 10:
                asked = self._ask()
                for _ in range(self.random.choice((1, 1, 1, 2, 3))):
                    self._wait_for_room()
                    self.asked[asked.admit(self.runner)] = asked
            elif chance < 0.9:
                for _ in range(self.random.randrange(1, 12)):
                    self._step()
            elif here := self._here():
                sequence_id = self.random.choice(here)
                self.runner.remove(sequence_id)
                self.removed.add(sequence_id)
            if self.preempts:
                self._preempt()
        self._come_back()
        for _ in range(3000):
            if not self.runner.live:
                return
            self._step()
        raise AssertionError(f"rows that wait for ever: {self.runner.live}")

    def check(self, alone: Callable[[Asked], Made]) -> None:
        runner = self.runner
        all_read = True
        for sequence_id, asked in self.asked.items():
            failed = sequence_id in runner.failed
            assert not failed or asked.may_fail, runner.failed
            if sequence_id not in runner.started:
                all_read = False
                assert failed or sequence_id in self.removed
                continue
            if asked.beam is not None and failed:
                continue
            expected, started = (
                alone(asked),
                self.read.get(sequence_id, runner.started[sequence_id]),
            )
            assert 0 <= started.cached_tokens < len(asked.prompt)
            assert_near(started.prompt_scores, expected.prompt_scores)
            if asked.beam is not None:
                if sequence_id in runner.found:
                    found = [one.tokens for one in runner.found[sequence_id]]
                    assert found == [one.tokens for one in expected.found]
                continue
            made = runner.tokens[sequence_id]
            assert made == expected.tokens[: len(made)]
            assert len(made) == len(expected.tokens) or failed or sequence_id in self.removed
            if asked.top_logprobs is not None:
                assert_near(runner.scores[sequence_id], expected.scores[: len(made)])
        if all_read and not self.preempts:
            assert self.prefill_tokens == sum(
                len(asked.prompt) - runner.started[sequence_id].cached_tokens
                for sequence_id, asked in self.asked.items()
            )
        inner: Any = runner.generator
        rows = inner._rows
        assert rows.idle
        assert not rows._sampler._rows
        assert not rows._sampler._edits
        # It turns itself off where a cache does not hold what it is said to.
        assert not rows._prefixes or rows._prefixes.enabled
        assert not rows._speculation or not rows._speculation._rows

    def _step(self) -> StepOutput:
        made = self.runner.step(lambda: self.interruptions.random() < 0.4)
        self.prefill_tokens += made.prefill_tokens
        reported = [sequence_id for sequence_id, *_ in [*made.tokens, *made.started, *made.failed]]
        assert not self.removed.intersection(reported)
        return made

    def _wait_for_room(self) -> None:
        """A model whose rows can't live beside each other has one row at a time."""
        while not self.runner.generator.can_admit():
            self._step()

    def _here(self) -> list[int]:
        return [sequence_id for sequence_id in self.runner.live if sequence_id not in self.away]

    def _preempt(self) -> None:
        if self.random.random() < 0.5:
            self._come_back()
        self.runner.flush()
        if not (here := self._here()) or self.random.random() < 0.5:
            return
        sequence_id = self.random.choice(here)
        made = self.runner.generator.preempt(sequence_id)
        if made is None:
            assert self.asked[sequence_id].beam is not None
            return
        assert list(made) == self.runner.tokens[sequence_id]
        row = self.runner.requests[sequence_id]
        if (started := self.runner.started.get(sequence_id)) is not None:
            self.read.setdefault(sequence_id, started)
            row = dataclasses.replace(row, prompt_logprobs=None)
        self.away[sequence_id] = dataclasses.replace(
            row,
            prompt=[*row.prompt, *made],
            max_tokens=row.max_tokens - len(made),
            generated_tokens=len(made),
        )

    def _come_back(self) -> None:
        for row in self.away.values():
            self._wait_for_room()
            self.runner.generator.admit(row)
        self.away.clear()

    def _tokens(self, count: int) -> list[int]:
        return [self.random.randrange(1, 200) for _ in range(count)]

    def _prompt(self) -> list[int]:
        pick = self.random
        ended = [sequence_id for sequence_id in self.asked if sequence_id not in self.runner.live]
        if ended and pick.random() < 0.3:  # The next turn.
            sequence_id = pick.choice(ended)
            turn = [*self.asked[sequence_id].prompt, *self.runner.tokens[sequence_id]]
            return turn[:420] + self._tokens(pick.randrange(1, 20))
        if pick.random() < 0.6:
            base = pick.choice(self.bases)
            return base[: pick.randrange(1, len(base))] + self._tokens(pick.randrange(30))
        return self._tokens(pick.choice((1, 2, 5, 20, 70)))

    def _ask(self) -> Asked:
        pick = self.random
        prompt = self._prompt()
        if pick.random() < 0.04:
            prompt.insert(len(prompt) // 2, BAD)
        constraints: tuple[tuple[int, ...], ...] = (
            *((),) * 12,
            (2,),
            (7,),
            (2, pick.randrange(6)),
            (2, NEVER, pick.randrange(6)),
        )
        return Asked(
            tuple(prompt),
            pick.choice(self.samplings),
            pick.choice((1, 1, 2, 3, 8, 15, 30)),
            pick.choice(constraints),
            pick.choice((None, None, 0, 2)),
            2 if pick.random() < 0.1 else None,
            BeamSearch(2, 1.0, frozenset({3, 4})) if pick.random() < 0.06 else None,
            pick.choice(("", "", "", "another")),
        )


def assert_near(some: Sequence[TokenScores], others: Sequence[TokenScores]) -> None:
    assert len(some) == len(others)
    for one, other in zip(some, others, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=2e-3)
        assert [value for _, value in one.top] == pytest.approx(
            [value for _, value in other.top], abs=2e-3
        )


@pytest.fixture(autouse=True)
def faults_and_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts that can't be read, and buckets of rows that differ by little."""
    begin = PromptPrefill.begin

    def begin_or_raise(self: PromptPrefill, most_tokens: int, stops: Sequence[int]) -> PrefillChunk:
        asked = self.row.prompt[: len(self.row.prompt) - self.row.generated_tokens]
        if BAD in asked[self.done_tokens : self.done_tokens + most_tokens]:
            raise RuntimeError("a bad prompt")
        return begin(self, most_tokens, stops)

    monkeypatch.setattr(PromptPrefill, "begin", begin_or_raise)
    monkeypatch.setattr(length_buckets, "_MAX_MORE_TOKENS", 32)


@pytest.mark.parametrize(
    ("kind", "engines"),
    [
        ("llama", "memory draft"),
        ("gemma3", "small"),
        ("qwen3_5", "disk small"),
        ("deepseek_v3", "small"),  # Latent keys.
        ("lfm2", "small"),
        ("mamba2", "small"),
        *((kind, "small") for kind in KV_BITS),
        # Caches of several parts.
        pytest.param("baichuan_m1", "small", marks=pytest.mark.conformance),
        # States, and latent keys.
        pytest.param("bailing_hybrid", "small", marks=pytest.mark.conformance),
        *(
            pytest.param(kind, "small draft", marks=pytest.mark.conformance)
            for kind in (
                "cohere2",
                "gear",
                "iquestloopcoder",
                "llama4",  # Its rows take turns.
                "llama4_text",
                "longcat_flash_ngram",
                "qwen3",
                "qwen3_next",
                "rwkv7",
            )
        ),
    ],
)
def test_each_row_of_a_random_run_is_as_alone(tmp_path: Path, kind: str, engines: str) -> None:
    make = make_tiny_model if kind in TINY or kind in KV_BITS else make_text_model
    folder = make(tmp_path / "model", kind)
    draft = make_tiny_model(tmp_path / "draft", "llama")
    disk = PrefixCacheSpec(200_000, str(tmp_path / "disk"), 64 << 20)
    specs: dict[str, dict[str, Any]] = {
        "memory": {"max_decode_stall_s": NO_STALL_S, "prefix_cache": PrefixCacheSpec(64 << 20)},
        "small": {"max_decode_stall_s": 10, "prefix_cache": PrefixCacheSpec(150_000)},
        "disk": {"prefix_cache": disk, "speculation": SpeculationSpec()},
        "draft": {"max_decode_stall_s": 10, "speculation": SpeculationSpec(draft_path=str(draft))},
    }
    # Some logits are so even that rounding decides what is drawn.
    even = kind not in ("llama", "gemma3", "deepseek_v3", "llama-64", "gemma3-64")
    samplings = [one for one in SAMPLINGS if not even or one.temperature == 0]
    plain = Plain(folder) if kind in TINY else None
    kv_bits = KV_BITS.get(kind)
    alone = Alone(EngineRunner(spec_of(folder, kv_bits=kv_bits, max_decode_stall_s=10)), plain)
    for seed, engine in enumerate(engines.split()):
        runner = EngineRunner(spec_of(folder, kv_bits=kv_bits, **specs[engine]))
        run = RandomRun(runner, seed, samplings, preempts=engine in PREEMPTING)
        run.go()
        run.check(alone)
        runner.resident.close()


def test_rows_give_back_all_memory(tmp_path: Path) -> None:
    """Ended, failed or removed at any time."""
    runner = EngineRunner(
        spec_of(make_tiny_model(tmp_path / "model", "llama"), max_decode_stall_s=NO_STALL_S)
    )
    held = []
    for seed in range(2):
        RandomRun(runner, seed).go()
        runner.failed.clear()  # Their tracebacks hold what was being read.
        runner.resident.rest()
        held.append(mx.get_active_memory())
    # What the sampler has prepared for a batch may differ by a few numbers.
    assert max(held) - held[0] < 20_000
