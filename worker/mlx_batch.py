"""The MLX engine: mlx-vlm's ``BatchGenerator`` behind the worker's engine interface.

Written for mlx-vlm 0.7.10, whose private attributes ``_prompt_batch``, ``_generation_batch`` and
``_unprocessed_sequences`` it reads; ``tests/engine`` holds the behaviour that it relies on.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Mapping, Sequence
from typing import Any, Final

import mlx.core as mx
from mlx_vlm.generate import BatchGenerator

from lmx.protocol.specs import WorkerSpec
from lmx.protocol.states import LoadPhase
from lmx.worker.detokenize import Decode, IncrementalDetokenizer
from lmx.worker.engine import LoadReporter, ModelFacts, RowRequest, RowSampling, StepOutput
from lmx.worker.mlx_load import LoadedModel, load_model
from lmx.worker.mlx_prompt import PromptEncoder
from lmx.worker.mlx_sampling import RowSampler

# Between two tokens of the rows that decode: seconds with a small model and the reference BLAS.
_CHUNK_TOKENS_CPU: Final = 64
_CHUNK_TOKENS_METAL: Final = 2048
_WARM_UP_TOKENS: Final = 3


class MlxEngine:
    """See :class:`lmx.worker.engine.Engine`. All of MLX happens on the engine thread."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self._uid_of: dict[int, int] = {}
        self._row_of: dict[int, int] = {}
        self._sampler = RowSampler()

    def load(self, advanced: LoadReporter) -> ModelFacts:
        """Load, then generate a few tokens, so that the first request doesn't pay for it."""
        loaded = load_model(self._spec, advanced)
        self._model = loaded.model
        self._decode = _own_decode(loaded)
        self._special = _special_ids(loaded)
        self._prompts = PromptEncoder(loaded.tokenizer, loaded.facts.context_tokens)
        self._generator = self._make_generator()
        advanced(LoadPhase.WARMUP, None, "")
        self._warm_up(loaded.facts)
        return loaded.facts

    def encode(
        self, messages: Sequence[Mapping[str, Any]], template_kwargs: Mapping[str, Any]
    ) -> Sequence[int]:
        """Render and tokenize, with a tokenizer that no other thread touches."""
        return self._prompts.encode(messages, template_kwargs)

    def detokenizer(self) -> IncrementalDetokenizer:
        """Return a new row's detokenizer; special tokens are no text."""
        return IncrementalDetokenizer(self._decode, self._special)

    def can_admit(self) -> bool:
        """One prompt at a time: the generator sorts those that wait by length, so that a long
        one would starve, and prefill of several at once is wrong for some models."""
        generator = self._generator
        return generator._prompt_batch is None and not generator._unprocessed_sequences

    def admit(self, row: RowRequest) -> None:
        """Embed the prompt (lazily) and hand it over."""
        with mx.stream(self._generator.stream):
            features = self._model.get_input_embeddings(mx.array([row.prompt]))
        arguments = {name: value for name, value in features.to_dict().items() if value is not None}
        (uid,) = self._generator.insert([list(row.prompt)], [row.max_tokens], [arguments])
        self._sampler.add(uid, row.sampling)
        self._uid_of[row.row_id] = uid
        self._row_of[uid] = row.row_id

    def step(self) -> StepOutput:
        """One token for each decoding row, and one chunk of the prompt in prefill."""
        generator = self._generator
        before = self._prefill_left()
        _, responses = generator.next()
        if generator._prompt_batch is not None:
            # The generator starts a chunk and doesn't wait for it. Where the scheduler lets it
            # run ahead (a CPU's hardly does), a prompt's work would pile up in one later step:
            # no token for other rows, no cancelling, and progress that isn't.
            with mx.stream(generator.stream):
                mx.eval(_cache_states(generator._prompt_batch.prompt_cache))
        tokens = [(self._row_of[response.uid], response.token) for response in responses]
        for response in responses:
            if response.finish_reason is not None:
                self._forget(response.uid)
        return StepOutput(tokens, before - self._prefill_left())

    def remove(self, row_id: int) -> None:
        """Take the row out of wherever it is."""
        uid = self._uid_of.get(row_id)
        if uid is not None:
            self._generator.remove(uid)
            self._forget(uid)

    def rest(self) -> None:
        """Give the buffers of ended rows back."""
        gc.collect()
        mx.clear_cache()

    def memory_bytes(self) -> int:
        """MLX's own count: buffers in use and buffers kept for reuse."""
        return int(mx.get_active_memory() + mx.get_cache_memory())

    def _make_generator(self) -> Any:
        metal = bool(mx.metal.is_available())
        options = self._spec.engine_options
        chunk_tokens = _CHUNK_TOKENS_METAL if metal else _CHUNK_TOKENS_CPU
        generator = BatchGenerator(
            self._model,
            _NeverStop(),
            sampler=self._sampler,
            completion_batch_size=self._spec.max_rows,
            prefill_batch_size=1,
            prefill_step_size=options.get("prefill_chunk_tokens", chunk_tokens),
            compute_logprobs=False,
        )
        self._sampler.bind(generator)
        if metal:
            # The generator has just claimed the machine's maximum, and so has every other
            # worker's.
            most_bytes = int(mx.device_info()["max_recommended_working_set_size"])
            # Weights that are not wired would be paged in at every step.
            share_bytes = max(self._spec.memory_limit_bytes, int(mx.get_active_memory()))
            mx.set_wired_limit(min(share_bytes, most_bytes))
        return generator

    def _warm_up(self, facts: ModelFacts) -> None:
        tokens = min(_WARM_UP_TOKENS, facts.context_tokens - 1)
        prompt = [min(facts.eos_token_ids, default=0)]
        self.admit(RowRequest(0, prompt, max(1, tokens), RowSampling(1.0, 0.9, 0)))
        while self._uid_of:
            self.step()
        self.rest()

    def _prefill_left(self) -> int:
        """Return how many prompt tokens of the row in prefill are still to be processed."""
        generator = self._generator
        waiting = sum(len(sequence[1]) for sequence in generator._unprocessed_sequences)
        if generator._prompt_batch is not None:
            waiting += generator._prompt_batch._input_ids.shape[1]
        return int(waiting)

    def _forget(self, uid: int) -> None:
        del self._uid_of[self._row_of.pop(uid)]
        self._sampler.remove(uid)


class _NeverStop:
    """In place of a processor: its stopping criterion, which never stops a row. The worker
    knows when a row ends, and removes it."""

    def __init__(self) -> None:
        self.stopping_criteria = self

    def add_eos_token_ids(self, token_ids: object) -> None:
        """Called by the generator with the stop tokens that it was given: none."""

    def __call__(self, token: int) -> bool:
        return False


def _own_decode(loaded: LoadedModel) -> Decode:
    """Return a decode function for the engine thread, on a copy of the tokenizer.

    The Rust tokenizer where there is one: ten times faster than through transformers. Special
    tokens are not skipped here; the detokenizer has left them out.
    """
    backend = getattr(loaded.tokenizer, "backend_tokenizer", None)
    if backend is not None:
        rust = copy.deepcopy(backend)
        return lambda ids: str(rust.decode(ids, skip_special_tokens=False))
    tokenizer = copy.deepcopy(loaded.tokenizer)
    return lambda ids: str(tokenizer.decode(ids, clean_up_tokenization_spaces=False))


def _special_ids(loaded: LoadedModel) -> frozenset[int]:
    """Return the tokens that are never text. ``all_special_ids`` has only those with a role of
    their own; a tokenizer marks more of them."""
    tokenizer = loaded.tokenizer
    added = getattr(tokenizer, "added_tokens_decoder", {})
    marked = {token_id for token_id, token in added.items() if token.special}
    return frozenset(tokenizer.all_special_ids) | marked | loaded.facts.eos_token_ids


def _cache_states(prompt_cache: Sequence[Any]) -> list[Any]:
    states = []
    for layer in prompt_cache:
        try:
            states.append(layer.state)
        except (AttributeError, TypeError):
            continue  # A cache that holds nothing yet; mlx-vlm passes over it in the same way.
    return states
