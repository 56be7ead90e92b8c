"""What is otherwise where a GPU computes: how rows are tried together, how large the first prompt
is, how often buffers are given back. MLX says that it computes on one, and records what it is
asked."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest
from structlog.testing import capture_logs

from lmx.worker.engine.values import SequenceRequest, SequenceSampling, StepOutput
from lmx.worker.mlx import engine
from lmx.worker.mlx.batching import batch_engine
from lmx.worker.mlx.decoding import batch_mode, decode
from lmx.worker.mlx.decoding.pace import LEAST_TOKENS, MOST_TOKENS, PrefillPace


@pytest.fixture(params=[True, False], ids=["gpu", "cpu"])
def on_gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    device = mx.Device(mx.gpu if request.param else mx.cpu)
    monkeypatch.setattr(mx, "default_device", lambda: device)
    return bool(request.param)


@pytest.fixture
def cleared(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for each time that all buffers were given back."""
    calls: list[str] = []
    monkeypatch.setattr(mx, "clear_cache", lambda: calls.append("clear_cache"))
    return calls


def batch() -> decode.DecodeBatch:
    forward: Any = SimpleNamespace(adapter=None)
    return decode.DecodeBatch(forward, SimpleNamespace(), SimpleNamespace())  # type: ignore[arg-type]


# Trying whether rows may decode together.


@pytest.mark.parametrize(
    ("off", "cpu_fits", "gpu_fits"),
    [
        ((0.0, 0.0, 0.0), True, True),
        ((0.2, 0.2, 0.2), False, True),
        ((0.9, 0.2, 0.2), False, True),
        ((0.2, 0.9, 0.9), False, False),
        ((float("nan"),) * 3, False, False),
    ],
)
def test_on_a_gpu_one_pair_of_prompts_decides_nothing(
    monkeypatch: pytest.MonkeyPatch,
    on_gpu: bool,
    off: Sequence[float],
    cpu_fits: bool,
    gpu_fits: bool,
) -> None:
    """Rounding moves the logits of a pair now and then; a fault moves those of each."""
    shifts: list[int] = []

    def tried(_: Any, shift: int) -> float:
        shifts.append(shift)
        return off[len(shifts) - 1]

    monkeypatch.setattr(batch_mode, "_off", tried)
    forward: Any = SimpleNamespace(vocabulary_size=100, model=None)
    with capture_logs() as logs:
        fits = batch_mode.can_batch(forward)
    assert fits is (gpu_fits if on_gpu else cpu_fits)
    assert len(set(shifts)) == (3 if on_gpu else 1)
    assert [line["event"] for line in logs] == [
        "batching.probed" if fits else "batching.probe_failed"
    ]
    assert logs[0]["off"] == pytest.approx(sorted(off)[1] if on_gpu else off[0], nan_ok=True)


# The size of a prompt's chunks.


def test_on_a_gpu_a_prompt_alone_takes_chunks_that_keep_it_busy() -> None:
    slow_s = 1 / 120  # A model of 32 billion parameters reads so many tokens a second.
    sizes = {}
    for on_gpu in (True, False):
        pace = PrefillPace(0.6, on_gpu=on_gpu)
        pace.prefilled(LEAST_TOKENS, LEAST_TOKENS * slow_s, 0, decoding=False)
        first = pace.chunk(0, decoding=False)
        pace.prefilled(MOST_TOKENS, MOST_TOKENS * slow_s, 0, decoding=False)
        sizes[on_gpu] = (first, pace.chunk(0, decoding=False), pace.chunk(0, decoding=True))
    assert sizes[True] == (256, 256, 53)
    assert sizes[False] == (2 * LEAST_TOKENS, 120, 53)


class Prompts:
    """The rows of the warm-up."""

    def __init__(self) -> None:
        self.admitted: list[SequenceRequest] = []

    @property
    def idle(self) -> bool:
        return True

    def admit(self, row: SequenceRequest) -> None:
        self.admitted.append(row)

    def step(self) -> StepOutput:
        raise AssertionError("it is idle")


def test_the_warm_up_is_as_large_as_the_first_chunks(
    monkeypatch: pytest.MonkeyPatch, on_gpu: bool
) -> None:
    monkeypatch.setattr(engine, "warm_up_draws", lambda vocabulary: None)
    facts: Any = SimpleNamespace(
        vocabulary_size=100, context_tokens=32_768, eos_token_ids=frozenset({2})
    )
    prompts: Any = Prompts()
    engine._warm_up(prompts, facts)
    facts.context_tokens = 100
    engine._warm_up(prompts, facts)
    lengths = [len(row.prompt) for row in prompts.admitted]
    assert lengths == [512 if on_gpu else 64, 50], "never more than a short context has"


# Giving buffers back, which the next step makes anew.


def test_on_a_gpu_buffers_are_kept_for_hundreds_of_steps(on_gpu: bool, cleared: list[str]) -> None:
    decoding = batch()
    for _ in range(1024):
        decoding._clean_up()
    assert len(cleared) == (2 if on_gpu else 20)


class Read:
    """A prompt that has been read."""

    ready = True
    media = None
    chunk = None
    prompt_cache: Sequence[Any] = ()
    cached_tokens = 0


@pytest.mark.parametrize("decoding", [True, False])
def test_a_join_takes_no_buffers_from_the_rows_that_decode(
    monkeypatch: pytest.MonkeyPatch, on_gpu: bool, cleared: list[str], decoding: bool
) -> None:
    joined: list[int] = []
    for name in ("_advance_prefill", "_finish_prefill"):
        monkeypatch.setattr(batch_engine.BatchEngine, name, lambda *_: None)
    monkeypatch.setattr(
        batch_engine.BatchEngine, "_join", lambda _, row, *rest: joined.append(row.sequence_id)
    )
    pace = PrefillPace(1.0, on_gpu=on_gpu)
    forward: Any = SimpleNamespace(adapter=None)
    nothing: Any = SimpleNamespace()
    row_set = batch_engine.BatchEngine(
        forward, nothing, pace, None, None, nothing, mode=batch_mode.BatchMode.BATCHED
    )
    row_set._prompts.add(SequenceRequest(7, [1, 2], 1, SequenceSampling(0.0)))
    prompt = row_set._prompts._prompts[7]
    prompt.prefill = Read()  # type: ignore[assignment]
    row_set._read(prompt, decoding, StepOutput(), lambda: False)
    assert joined == [7]
    assert len(cleared) == (0 if on_gpu and decoding else 1)


# The last row leaves while its next token is computed.


def test_what_the_gpu_still_computes_is_waited_for_before_it_is_dropped(
    monkeypatch: pytest.MonkeyPatch, on_gpu: bool
) -> None:
    waited: list[mx.array] = []
    monkeypatch.setattr(mx, "eval", lambda *arrays: waited.extend(arrays))
    decoding = batch()
    ahead = mx.array([5])
    decoding.rows, decoding._sequence_ids = [SimpleNamespace()], [1]  # type: ignore[list-item]
    decoding._next = ahead
    decoding.leave([1])
    assert decoding._next is None and not decoding.rows
    assert waited == ([ahead] if on_gpu else [])
