"""Drives an MLX engine as the engine thread does, without threads; and what its models would
say without it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest import mock

import mlx.core as mx
from mlx_vlm.models.cache import make_prompt_cache
from mlx_vlm.utils import load

from lmx.protocol.messages.specs import (
    AdapterSpec,
    LogSpec,
    PrefixCacheSpec,
    SpeculationSpec,
    WorkerSpec,
)
from lmx.protocol.messages.tasks import TaskPart
from lmx.protocol.models.kind import read_kind
from lmx.protocol.states import LoadPhase, ModelKind
from lmx.worker.engine.interfaces import Engine, Generator, Resident, TaskEngine
from lmx.worker.engine.values import (
    Hypothesis,
    ModelFacts,
    PrefillFinished,
    PromptSource,
    SequenceRequest,
    SequenceSampling,
    StepOutput,
    TaskPiece,
    TokenScores,
)
from lmx.worker.lifecycle import load_engine
from lmx.worker.mlx import engine as generators
from lmx.worker.mlx.device import cpu
from lmx.worker.ranks.leader import Leader
from tests.support.rigs.one_renderer import renderer

GREEDY = SequenceSampling(0.0)
HOT = SequenceSampling(1.0, seed=1234)
WARM_TOP_P = SequenceSampling(0.8, 0.7, 77)

# So short that a chunk beside decoding rows is always of the least size.
NO_STALL_S = 1e-6


def spec_of(
    folder: Path,
    *,
    context_length: int | None = None,
    max_decode_stall_s: float = NO_STALL_S,
    prefix_cache: PrefixCacheSpec | None = None,
    speculation: SpeculationSpec | None = None,
    tool_parser: str | None = None,
    adapters: Mapping[str, Path] | None = None,
    kv_bits: int | None = None,
) -> WorkerSpec:
    return WorkerSpec(
        instance="00000000",
        model_id="m",
        model_path=str(folder),
        run_dir="/nowhere",
        log=LogSpec("/nowhere"),
        engine="lmx.worker.mlx.factory:create",
        engine_options={},
        memory_limit_bytes=4 << 30,
        max_rows=4,
        max_queue=4,
        context_length=context_length,
        max_decode_stall_s=max_decode_stall_s,
        prefix_cache=prefix_cache,
        speculation=speculation,
        tool_parser=tool_parser,
        adapters=tuple(AdapterSpec(name, str(path)) for name, path in (adapters or {}).items()),
        kv_bits=kv_bits,
        # What is known to be wrong is examined too.
        allow_inexact=True,
    )


def task_engine(folder: Path, kind: ModelKind, **fields: Any) -> Engine:
    """Return the engine of a model that generates no text, as a worker of it loads it."""
    # Not every model that ranks can be known by its files.
    assert kind is ModelKind.RERANK or read_kind(folder) is kind
    return load_engine(replace(spec_of(folder), kind=kind, **fields), lambda *_: None)


def finished(piece: TaskPiece) -> tuple[TaskPart, int]:
    """Return what a piece of a task makes, and how often it paused."""
    pauses = 0
    while (part := piece()) is None:
        pauses += 1
    return part, pauses


_TRIED: dict[tuple[Any, ...], Any] = {}
"""What loads have found out by trying, by what it depends on."""


@contextmanager
def tried_once(spec: WorkerSpec) -> Iterator[None]:
    """Have a load take over what another load of such a model in this process has found out by
    trying, which is half of the time of a load: what it can do with several tokens at once, and
    which of its rows run at the same time."""
    config = (Path(spec.model_path) / "config.json").read_bytes()
    key = (config, spec.kv_bits, spec.context_length, len(spec.adapters))
    inner: Any = generators
    probe, choose = inner.probe_multi_token, inner._batch_mode

    def probed(forward: Any, *, drafts: bool) -> Any:
        case = (*key, drafts)
        if case not in _TRIED:
            _TRIED[case] = probe(forward, drafts=drafts)
        return _TRIED[case]

    def chosen(forward: Any, facts: ModelFacts) -> Any:
        if key not in _TRIED:
            _TRIED[key] = choose(forward, facts), forward.kv_quantization
        mode, forward.kv_quantization = _TRIED[key]
        return mode

    with mock.patch.multiple(generators, probe_multi_token=probed, _batch_mode=chosen):
        yield


class EngineRunner:
    """An engine, and what its rows made. A row is removed when it has made what was asked.
    ``ranks``: those of a spec that has them; they are started. ``fresh``: it is tried what the
    model can do, whatever other loads have found out."""

    def __init__(
        self, spec: WorkerSpec, ranks: Leader | None = None, *, fresh: bool = False
    ) -> None:
        self.phases: list[tuple[LoadPhase, float | None]] = []
        # A renderer is a process. Hundreds of engines that are made one after the other share one.
        with (
            mock.patch.object(generators, "Renderer", lambda _timeout_s: renderer()),
            nullcontext() if fresh or ranks else tried_once(spec),
        ):
            engine = load_engine(
                spec, lambda phase, fraction, _: self.phases.append((phase, fraction)), ranks
            )
        assert engine.generator is not None
        self.facts: ModelFacts = engine.facts
        self.resident: Resident = engine.resident
        self.tasks: TaskEngine = engine.tasks
        self.generator: Generator = engine.generator
        self.requests: dict[int, SequenceRequest] = {}
        self.live: dict[int, int] = {}
        self.tokens: dict[int, list[int]] = {}
        self.scores: dict[int, list[TokenScores]] = {}
        self.started: dict[int, PrefillFinished] = {}
        self.failed: dict[int, Exception] = {}
        self.found: dict[int, Sequence[Hypothesis]] = {}
        self._next_row = 1

    def encode(self, text: str) -> list[int]:
        source = PromptSource(messages=[{"role": "user", "content": text}])
        return list(self.generator.encode(source).tokens)

    def admit(
        self,
        prompt: str | Sequence[int],
        sampling: SequenceSampling = GREEDY,
        max_tokens: int = 8,
        **more: Any,
    ) -> int:
        while not self.generator.can_admit():
            self.step()
        sequence_id, self._next_row = self._next_row, self._next_row + 1
        tokens = self.encode(prompt) if isinstance(prompt, str) else prompt
        self.requests[sequence_id] = SequenceRequest(
            sequence_id, tokens, max_tokens, sampling, **more
        )
        self.generator.admit(self.requests[sequence_id])
        self.tokens[sequence_id], self.scores[sequence_id] = [], []
        self.live[sequence_id] = max_tokens
        return sequence_id

    def step(self, interrupted: Callable[[], bool] = lambda: False) -> StepOutput:
        """EOS is a token like any other here."""
        return self._take(self.generator.step(interrupted))

    def flush(self) -> StepOutput:
        return self._take(self.generator.flush())

    def _take(self, output: StepOutput) -> StepOutput:
        for started in output.started:
            self.started[started.sequence_id] = started
        for sequence_id, token, scores in output.tokens:
            self.tokens[sequence_id].append(token)
            if scores is not None:
                self.scores[sequence_id].append(scores)
            if len(self.tokens[sequence_id]) == self.live[sequence_id]:
                self.remove(sequence_id)
        for sequence_id, error in output.failed:
            self.failed[sequence_id] = error
            del self.live[sequence_id]
        for sequence_id, found in output.found:
            self.found[sequence_id] = found
            del self.live[sequence_id]
        return output

    def remove(self, sequence_id: int) -> None:
        self.generator.remove(sequence_id)
        del self.live[sequence_id]

    def until(self, condition: Callable[[], Any]) -> None:
        while not condition():
            self.step()

    def finish(self) -> None:
        self.until(lambda: not self.live)

    def finish_row(self, sequence_id: int) -> None:
        self.until(lambda: sequence_id not in self.live)

    def alone(
        self,
        prompt: str | Sequence[int],
        sampling: SequenceSampling = GREEDY,
        max_tokens: int = 8,
        **more: Any,
    ) -> list[int]:
        sequence_id = self.admit(prompt, sampling, max_tokens, **more)
        self.finish()
        return self.tokens[sequence_id]

    def clear(self) -> None:
        """Remove what a failed test left behind."""
        for sequence_id in list(self.live):
            self.remove(sequence_id)

    def text(self, tokens: Iterable[int]) -> str:
        detokenizer = self.generator.detokenizer(False)
        return "".join([*map(detokenizer.add, tokens), detokenizer.flush()])


@contextmanager
def functions_of_mlx() -> Iterator[None]:
    """Let models be computed by mlx's own functions, and not by those of lmx for a CPU."""
    with (
        mock.patch.object(mx.fast, "rms_norm", cpu._mlx_rms_norm),
        mock.patch.object(mx.fast, "rope", cpu._mlx_rope),
    ):
        yield


class Plain:
    """A model by itself: one forward over all tokens for each answer, no cache, no batch, nothing
    of lmx."""

    def __init__(self, folder: Path) -> None:
        self._model, _ = load(str(folder))

    def logits(self, tokens: Sequence[int]) -> mx.array:
        """Return those after each token, [tokens, vocabulary]."""
        features = self._model.get_input_embeddings(mx.array([list(tokens)])).to_dict()
        arguments = {name: value for name, value in features.items() if value is not None}
        language_model = self._model.language_model
        with functions_of_mlx():
            output = language_model(
                mx.array([list(tokens)]), cache=make_prompt_cache(language_model), **arguments
            )
        logits: mx.array = getattr(output, "logits", output)[0]
        return logits

    def logprobs(self, tokens: Sequence[int]) -> mx.array:
        logits = self.logits(tokens)
        return logits - mx.logsumexp(logits, axis=-1, keepdims=True)

    def likeliest(self, prompt: Sequence[int], answer: Sequence[int]) -> list[int]:
        """Return the likeliest token in each place of an answer, after those before it. It is
        the answer itself exactly if that is the greedy one."""
        logits = self.logits([*prompt, *answer])
        best = mx.argmax(logits[len(prompt) - 1 : -1], axis=-1)
        return cast(list[int], best.tolist())
