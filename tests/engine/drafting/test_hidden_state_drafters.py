"""What a row's drafter hears and takes: each token once, with its own hidden states, in order."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmx.protocol.messages.specs import SpeculationSpec
from lmx.worker.engine.values import SequenceSampling
from lmx.worker.mlx.drafting.hidden_state_drafter import HiddenStateSequence, _OneByOne
from lmx.worker.mlx.memory.drafters import OBSERVED_TOKENS
from lmx.worker.mlx.model.forward import Forward
from lmx.worker.mlx.model.hidden import HiddenStates, HiddenTap, layer_modules
from lmx.worker.mlx.model.text_model import load_text_model
from tests.support.models.tiny_drafters import make_eagle, make_target
from tests.support.rigs.budgets import examples
from tests.support.rigs.device import near
from tests.support.rigs.engine_rig import EngineRunner, spec_of

PROMPT = [40, 41, 42, 43, 90, 91, 7, 8, 9, 10] * 3


class Recorder:
    """Stands for a drafter of mlx-vlm that keeps the keys and values of its right drafts, as the
    heads for further tokens do. It drafts 1000, 1001, ..."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, int]] = []
        """Places, and the tokens after them; the place of a draft is that of the token before."""
        self.resets = 0
        self._drafted = 0

    def reset(self, _: Any) -> None:
        self.resets += 1
        self.taken, self._drafted = [], 0

    def accept_verified_tokens(
        self,
        hidden: mx.array,
        tokens: mx.array,
        accepted: int,
        new_tokens: Sequence[int],
        sampler: Callable[[mx.array], mx.array],
        token_dtype: Any,
    ) -> None:
        kept = min(accepted, self._drafted)
        del self.taken[len(self.taken) - (self._drafted - kept) :]
        drafted: Any = tokens[0].tolist()
        following = [*drafted, *new_tokens]
        places: Any = hidden[0, :, 0].tolist()
        assert len(places) == len(following)
        self.taken += list(zip(map(int, places), following, strict=True))[kept:]
        self._drafted = 0

    def draft_block(
        self, last: mx.array, hidden: mx.array, cache: None, size: int, *_: Any
    ) -> mx.array:
        place = self.taken[-1][0]
        self._drafted = size - 2
        self.taken += [(place + 1 + n, 1000 + n) for n in range(size - 2)]
        return mx.array([[1000 + n for n in range(size - 1)]])


def states(begin: int, count: int) -> HiddenStates:
    return HiddenStates(begin, mx.arange(begin, begin + count).reshape(1, count, 1))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("plain"), st.integers(1, 3)),
        st.tuples(st.just("draft"), st.integers(1, 4), st.integers(0, 4)),
        st.tuples(st.just("gap"), st.integers(1, 3)),
    ),
    max_size=12,
)


@settings(max_examples=examples(100), deadline=None)
@given(STEPS)
def test_each_place_is_taken_once_with_the_token_after_it(steps: list[Any]) -> None:
    model = Recorder()
    row = HiddenStateSequence(_OneByOne(model, None), 100)
    text = list(range(50, 56))
    row.observe(states(0, 5))
    for step in steps:
        kind, numbers = step[0], step[1:]
        if kind == "draft" and row.most_drafts(len(text)):
            drafts = row.draft(text[row.read_tokens :], numbers[0], lambda *_: mx.array([0]), None)
            assert drafts is not None
            assert drafts.size == numbers[0]
            settled = len(model.taken) - (numbers[0] - 1)
            first = model.taken[0][0]
            expected = [(at, text[at + 1]) for at in range(first, len(text) - 1)]
            assert model.taken[:settled] == expected
            accepted = min(numbers[1], numbers[0])
            row.keep(accepted)
            fed, new = 1 + accepted, [*range(1000, 1000 + accepted), 60]
        else:
            fed = numbers[0]
            new = [60 + n for n in range(fed)]
        if kind != "gap":
            row.observe(states(len(text) - 1, fed))
        text += new
        assert (row.most_drafts(len(text)) == 0) == (kind == "gap")


def test_what_waits_has_a_limit() -> None:
    model = Recorder()
    row = HiddenStateSequence(_OneByOne(model, None), 100)
    row.observe(states(0, OBSERVED_TOKENS))
    for place in range(OBSERVED_TOKENS, 3 * OBSERVED_TOKENS):
        row.observe(states(place, 1))
    length = 3 * OBSERVED_TOKENS + 1
    assert row.most_drafts(length) == 100
    assert length - row.read_tokens == OBSERVED_TOKENS
    assert model.resets == 1, "it has taken nothing that is gone"


def test_rows_observe_what_one_pass_over_the_whole_text_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    observed: list[HiddenStates] = []
    observe = HiddenStateSequence.observe

    def capture_hidden(row: HiddenStateSequence, hidden: HiddenStates) -> None:
        observed.append(hidden)
        observe(row, hidden)

    target = make_target(tmp_path / "target", "llama")
    spec = SpeculationSpec(draft_path=str(make_eagle(tmp_path / "draft", target)))
    runner = EngineRunner(spec_of(target, max_decode_stall_s=10, speculation=spec))
    monkeypatch.setattr(HiddenStateSequence, "observe", capture_hidden)
    generator: Any = runner.generator
    # Time stands still, so that drafting never seems not to pay.
    monkeypatch.setattr(generator._rows._speculation, "_clock", lambda: 0.0)
    text = [*PROMPT, *runner.alone(PROMPT, SequenceSampling(1.0, seed=5), 30)]
    model = load_text_model(target)
    forward = Forward(model)
    forward.tap = HiddenTap(layer_modules(model.language_model.inner, [0, 1, 2]))
    _, whole = forward.capture_hidden(
        lambda: forward.decode(mx.array([text]), forward.new_cache(), None)
    )
    places = [
        at for part in observed for at in range(part.begin, part.begin + part.states.shape[1])
    ]
    assert places == list(range(len(text)))
    together = mx.concatenate([part.states for part in observed], axis=1)
    assert mx.allclose(together, whole, atol=near(1e-3)).item()
