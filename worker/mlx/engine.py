"""The MLX engine of a model that writes: it joins all its parts behind the engine's interfaces.

All of MLX runs on the engine thread, in mlx-vlm's generation stream.
"""

import gc
import json
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Final

import mlx.core as mx
import structlog
from mlx_vlm.generate.common import generation_stream

from lmx.protocol.messages.specs import WorkerSpec
from lmx.protocol.messages.tasks import Task, TaskReply
from lmx.protocol.states import LoadPhase, ModelKind
from lmx.worker.constraints.compiler import ConstraintCompiler
from lmx.worker.engine.interfaces import Detokenizer, Engine, LoadReporter
from lmx.worker.engine.values import (
    ConstraintMaker,
    ConstraintSource,
    EncodedPrompt,
    ModelFacts,
    PromptSource,
    SequenceRequest,
    SequenceSampling,
    StepOutput,
    wrong_kind,
)
from lmx.worker.formats.families.table import marker_ids
from lmx.worker.media.values import Media
from lmx.worker.mlx.batching.batch_engine import BatchEngine
from lmx.worker.mlx.decoding.batch_mode import BatchMode, can_batch, can_run_serially
from lmx.worker.mlx.decoding.media_probe import probe_media
from lmx.worker.mlx.decoding.pace import PrefillPace
from lmx.worker.mlx.decoding.rollback import Blocks, probe_multi_token
from lmx.worker.mlx.decoding.speculation import Speculation
from lmx.worker.mlx.device.cpu import tables
from lmx.worker.mlx.device.metal_memory import release_memory, wire_weights
from lmx.worker.mlx.drafting.load import make_drafter
from lmx.worker.mlx.media.encoding import FeatureCache
from lmx.worker.mlx.media.media_prompt import MediaPrompts
from lmx.worker.mlx.media.spans import media_of
from lmx.worker.mlx.model.forward import Forward
from lmx.worker.mlx.model.load import LoadedModel, load_model
from lmx.worker.mlx.model.prompt_encoder import PromptEncoder
from lmx.worker.mlx.model.token_text import TokenTask, TokenTasks, TokenText
from lmx.worker.mlx.prefix.cache import PrefixCache
from lmx.worker.mlx.prefix.folder import prefix_namespace
from lmx.worker.mlx.sampling.draw import warm_up_draws
from lmx.worker.mlx.sampling.sampler import BatchSampler
from lmx.worker.templates.renderer import Renderer

log = structlog.get_logger()

# This is enough to choose the first chunks of the first prompt well.
_WARM_UP_PROMPT_TOKENS: Final = 64
_GPU_WARM_UP_PROMPT_TOKENS: Final = 512
_WARM_UP_TOKENS: Final = 3

_COMPUTES: Final = "3"
"""Raise it whenever lmx's own corrections of a library's class change what a model computes:
prefixes on the disk that were computed otherwise are not continued then."""

_FEATURE_SHARE: Final = 8
"""Features of pictures and sounds get one part in this many of the prefix cache's memory."""


def load_generator(spec: WorkerSpec, advanced: LoadReporter) -> Engine:
    """Load a model that writes, then generate a few tokens, so that the first request is not slowed
    down by that. See ``EngineFactory``."""
    with mx.stream(generation_stream):
        loaded = load_model(spec, advanced)
        generator = MlxGenerator(spec, loaded, advanced)
    generator.rest()
    return Engine(generator.facts, resident=generator, tasks=generator, generator=generator)


class MlxGenerator:
    """A ``Generator``, a ``TaskEngine`` for tasks
    about tokens only, and a ``Resident``.

    The methods of the prompt thread have a tokenizer of their own, which the engine thread doesn't
    touch.
    """

    def __init__(self, spec: WorkerSpec, loaded: LoadedModel, advanced: LoadReporter) -> None:
        """Try what the model can do, and warm up. Called in the generation stream."""
        advanced(LoadPhase.WARMUP, None, "")
        facts, tokenizer, forward = loaded.facts, loaded.tokenizer, loaded.forward
        markers = marker_ids(tokenizer, facts.tool_parser, facts.reasoning)
        self._text = TokenText(tokenizer, facts.eos_token_ids, markers)
        self._renderer = Renderer(spec.render_timeout_s)
        if tokenizer.chat_template:
            # This is done now, so that the first request doesn't wait for it.
            self._renderer.start()
        self._prompts = PromptEncoder(tokenizer, facts, self._renderer, _media_prompts(loaded))
        self._token_tasks = TokenTasks(
            tokenizer,
            facts.vocabulary_size,
            facts.context_tokens,
            self._prompts.encode,
            spec.template_kwargs,
        )
        needs = facts.media
        if needs is not None:
            needs = probe_media(forward, self._prompts.encode, needs)
        abilities = self._prompts.abilities
        self.facts = replace(facts, media=needs, template=abilities.facts)
        """What is known of the model, also by trying."""
        self._constraints = ConstraintCompiler(
            tokenizer,
            facts.vocabulary_size,
            facts.eos_token_ids,
            facts.reasoning,
            facts.tool_parser,
        )
        sampler = BatchSampler()
        blocks = probe_multi_token(forward, drafts=spec.speculation is not None)
        speculation = _make_speculation(spec, loaded, sampler, blocks)
        wire_weights(spec.wiring, spec.memory_limit_bytes)
        pace = PrefillPace(spec.max_decode_stall_s, on_gpu=mx.metal.is_available())
        _warm_up(
            BatchEngine(forward, sampler, pace, None, None, blocks, mode=BatchMode.BATCHED), facts
        )
        self._model = loaded.model
        self._features = _make_feature_cache(spec, loaded)
        self._prefixes = _make_prefix_cache(spec, loaded)
        self._adapters = loaded.adapters
        self._rows = BatchEngine(
            forward,
            sampler,
            pace,
            self._prefixes,
            speculation,
            blocks,
            self._features,
            mode=_batch_mode(forward, facts),
        )

    def encode(self, source: PromptSource) -> EncodedPrompt:
        return self._prompts.encode(source)

    def constrain(self, source: ConstraintSource) -> ConstraintMaker | None:
        return self._constraints.compile(source)

    def plan(self, task: Task, media: Sequence[Media] = ()) -> TaskReply:
        if isinstance(task, TokenTask):
            return self._token_tasks.reply(task, media)
        raise wrong_kind(ModelKind.CHAT)

    def detokenizer(
        self, markers: bool, after: Sequence[int] = (), *, special: bool = False
    ) -> Detokenizer:
        return self._text.detokenizer(markers, after, special=special)

    def token_bytes(self, token: int) -> bytes:
        return self._text.token_bytes(token)

    def can_admit(self) -> bool:
        """Return whether a row may begin: always; but if the rows of the model can't run at
        the same time, only while no other one does."""
        return self._rows.can_admit()

    def admit(self, row: SequenceRequest) -> None:
        # Rows share what is computed of their prompts if they have the same salt.
        salt = self._adapters.prefix_salt(row.adapter, row.cache_salt)
        if (media := media_of(row)) is not None:
            salt += media.salt
        with mx.stream(generation_stream):
            self._rows.admit(replace(row, cache_salt=salt))

    def step(self) -> StepOutput:
        with mx.stream(generation_stream):
            return self._rows.step()

    def remove(self, sequence_id: int) -> None:
        with mx.stream(generation_stream):
            self._rows.remove(sequence_id)

    def flush(self) -> StepOutput:
        with mx.stream(generation_stream):
            return self._rows.flush()

    def preempt(self, sequence_id: int) -> Sequence[int] | None:
        with mx.stream(generation_stream):
            return self._rows.preempt(sequence_id)

    def rest(self) -> None:
        with mx.stream(generation_stream):
            if self._prefixes is not None:
                self._prefixes.rest()
            tables.clear()
            gc.collect()
            mx.clear_cache()

    def shrink(self) -> None:
        """Evict half of the computed prompts in memory, and free all memory that is reserved."""
        with mx.stream(generation_stream):
            self._rows.shrink()
            if self._prefixes is not None:
                self._prefixes.shrink()
            if self._features is not None:
                self._features.shrink()
            gc.collect()
            mx.clear_cache()

    def regrow(self) -> None:
        """Let computed prompts take their whole share again."""
        if self._prefixes is not None:
            self._prefixes.regrow()
        if self._features is not None:
            self._features.regrow()

    def close(self) -> None:
        """Write the prefixes that are to survive to disk."""
        if self._prefixes is not None:
            with mx.stream(generation_stream):
                self._prefixes.close()
        self._renderer.kill()

    def release(self) -> None:
        """Free all rows, computed prompts and weights on a Mac, and unwire the memory."""
        if not mx.metal.is_available():
            return  # The system takes all of it back at the process's end.
        with mx.stream(generation_stream):
            del self._rows, self._prefixes, self._features, self._adapters
            release_memory([self._model])

    def memory_bytes(self) -> int:
        """Return MLX's own count: buffers in use and buffers kept for reuse."""
        return int(mx.get_active_memory() + mx.get_cache_memory())

    def peak_memory_bytes(self) -> int:
        """Return MLX's own count of buffers in use."""
        return int(mx.get_peak_memory())


def _make_speculation(
    worker: WorkerSpec, loaded: LoadedModel, sampler: BatchSampler, blocks: Blocks
) -> Speculation | None:
    spec = worker.speculation
    if spec is None or blocks.alone is None:
        return None
    drafter = make_drafter(spec, Path(worker.model_path), loaded)
    end_ids = loaded.facts.eos_token_ids
    return Speculation(spec, drafter, sampler, end_ids, worker.max_decode_stall_s)


def _batch_mode(forward: Forward, facts: ModelFacts) -> BatchMode:
    """Return which rows run at the same time."""
    if _can_batch(forward):
        return BatchMode.BATCHED
    # What a model keeps of its last picture is not tried.
    if facts.media is None and can_run_serially(forward):
        log.warning(
            "batching.serial", advice="each row decodes by itself: many of them take longer"
        )
        return BatchMode.SERIAL
    log.warning("batching.disabled", advice="a request waits until the one before has ended")
    return BatchMode.DISABLED


def _can_batch(forward: Forward) -> bool:
    """Return whether rows of different lengths can decode together. If they can't because of the
    way in which quantized keys and values are read (Qwen 3.5), those are read expanded from now
    on."""
    if can_batch(forward):
        return True
    quantization = forward.kv_quantization
    if quantization is None:
        return False
    forward.kv_quantization = quantization.expanded()
    if can_batch(forward):
        log.info("batching.enabled", reason="quantized keys and values are expanded to be read")
        return True
    forward.kv_quantization = quantization
    return False


def _make_prefix_cache(worker: WorkerSpec, loaded: LoadedModel) -> PrefixCache | None:
    spec = worker.prefix_cache
    if spec is None or loaded.forward.atomic_prompts:
        return None
    versions = [_COMPUTES, version("mlx"), version("mlx-lm"), version("mlx-vlm"), loaded.library]
    # It depends on the context which windows and rotary factors a model has.
    versions.append(json.dumps(loaded.config, sort_keys=True, default=str))
    if worker.kv_bits is not None:
        # What is stored with other bits, or with none, can't be restored.
        versions.append(f"kv_bits {worker.kv_bits}")
    namespace = prefix_namespace(Path(worker.model_path), versions)
    if loaded.facts.media is not None:
        spec = replace(spec, memory_bytes=spec.memory_bytes - _feature_bytes(worker))
    return PrefixCache(loaded.forward.new_cache, spec, namespace)


def _make_feature_cache(worker: WorkerSpec, loaded: LoadedModel) -> FeatureCache | None:
    return None if loaded.facts.media is None else FeatureCache(_feature_bytes(worker))


def _feature_bytes(worker: WorkerSpec) -> int:
    """Return how much of what is for computed prompts is for features of pictures and sounds."""
    spec = worker.prefix_cache
    return 0 if spec is None else spec.memory_bytes // _FEATURE_SHARE


def _media_prompts(loaded: LoadedModel) -> MediaPrompts | None:
    if loaded.facts.media is None:
        return None
    config = loaded.model.config
    model_type = str(getattr(config, "model_type", ""))
    return MediaPrompts(loaded.processor, loaded.tokenizer, config, model_type)


def _warm_up(rows: BatchEngine, facts: ModelFacts) -> None:
    warm_up_draws(facts.vocabulary_size)
    on_gpu = mx.metal.is_available()
    most_tokens = _GPU_WARM_UP_PROMPT_TOKENS if on_gpu else _WARM_UP_PROMPT_TOKENS
    prompt_tokens = min(most_tokens, facts.context_tokens // 2)
    prompt = [min(facts.eos_token_ids, default=0)] * max(1, prompt_tokens)
    rows.admit(SequenceRequest(0, prompt, _WARM_UP_TOKENS, SequenceSampling(1.0, 0.9)))
    while not rows.idle:
        for _, error in rows.step().failed:
            raise error
