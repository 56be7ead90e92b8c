"""The MLX engine of a model that writes: it joins all its parts behind the engine's interfaces.

All of MLX runs on the engine thread, in mlx-vlm's generation stream.
"""

import gc
import json
import platform
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Final, NamedTuple

import mlx.core as mx
import structlog
from mlx_vlm.generate.common import generation_stream

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.host.cache_folder import cache_dir
from lmx.protocol.messages.specs import WorkerSpec
from lmx.protocol.messages.tasks import Task, TaskReply
from lmx.protocol.states import LoadPhase, ModelKind, RankCall
from lmx.worker.constraints.compiler import ConstraintCompiler
from lmx.worker.engine.interfaces import Detokenizer, Engine, LoadReporter, Ranks
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
from lmx.worker.mlx.decoding.rollback import Blocks, Undo, probe_multi_token
from lmx.worker.mlx.decoding.speculation import Speculation
from lmx.worker.mlx.decoding.speculation_gate import why_off
from lmx.worker.mlx.decoding.trials import Trials
from lmx.worker.mlx.device.cpu import tables
from lmx.worker.mlx.device.gpu import on_gpu
from lmx.worker.mlx.device.metal_memory import release_memory, wire_weights
from lmx.worker.mlx.drafting.load import FoundDrafter, find_drafter, make_drafter
from lmx.worker.mlx.media.encoding import FeatureCache
from lmx.worker.mlx.media.media_prompt import MediaPrompts
from lmx.worker.mlx.media.spans import media_of
from lmx.worker.mlx.model.forward import Forward
from lmx.worker.mlx.model.load import LoadedModel, load_model
from lmx.worker.mlx.model.prompt_encoder import PromptEncoder
from lmx.worker.mlx.model.token_text import TokenTask, TokenTasks, TokenText
from lmx.worker.mlx.prefix.cache import PrefixCache
from lmx.worker.mlx.prefix.folder import prefix_namespace
from lmx.worker.mlx.ranked import RankedPace, RankedSampler
from lmx.worker.mlx.sampling.draw import warm_up_draws
from lmx.worker.mlx.sampling.sampler import BatchSampler
from lmx.worker.templates.renderer import Renderer

log = structlog.get_logger()

# This is enough to choose the first chunks of the first prompt well.
_WARM_UP_PROMPT_TOKENS: Final = 64
_GPU_WARM_UP_PROMPT_TOKENS: Final = 512
_WARM_UP_TOKENS: Final = 3

_COMPUTES: Final = "5"
"""Raise it whenever a correction, such as lmx's own ones of a library's class, changes what a model
computes or what is kept of it: prefixes on the disk that were computed otherwise are not continued
then."""

_TRIES: Final = "1"
"""Raise it whenever the trials change: what was found by others is not trusted then."""

_FEATURE_SHARE: Final = 8
"""Features of pictures and sounds get one part in this many of the prefix cache's memory."""


def load_generator(spec: WorkerSpec, advanced: LoadReporter, ranks: Ranks | None = None) -> Engine:
    """Load a model that writes, then generate a few tokens, so that the first request is not slowed
    down by that. See ``EngineFactory``."""
    with mx.stream(generation_stream):
        loaded = load_model(spec, advanced, ranks)
        generator = MlxGenerator(spec, loaded, advanced, ranks)
    if ranks is None or ranks.rank == 0:
        generator.rest()
    return Engine(
        generator.facts,
        resident=generator,
        tasks=generator,
        generator=generator,
        speculation=generator.speculation,
    )


class MlxGenerator:
    """A ``Generator``, a ``TaskEngine`` for tasks
    about tokens only, and a ``Resident``.

    The methods of the prompt thread have a tokenizer of their own, which the engine thread doesn't
    touch.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        loaded: LoadedModel,
        advanced: LoadReporter,
        ranks: Ranks | None = None,
    ) -> None:
        """Try what the model can do, and warm up. Called in the generation stream."""
        self._ranks = ranks
        advanced(LoadPhase.WARMUP, None, "")
        facts, tokenizer, forward = loaded.facts, loaded.tokenizer, loaded.forward
        _check_numbers(forward, facts)
        markers = marker_ids(tokenizer, facts.tool_parser, facts.reasoning)
        self._text = TokenText(tokenizer, facts.eos_token_ids, markers)
        self._renderer = Renderer(spec.render_timeout_s)
        # A follower gets its prompts as tokens, from rank 0.
        follows = ranks is not None and ranks.rank > 0
        if tokenizer.chat_template and not follows:
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
        self.facts = replace(facts, media=needs)
        if not follows:
            self.facts = replace(self.facts, template=self._prompts.abilities.facts)
        """What is known of the model, also by trying."""
        self._constraints = ConstraintCompiler(
            tokenizer,
            facts.vocabulary_size,
            facts.eos_token_ids,
            facts.reasoning,
            facts.tool_parser,
        )
        trials = _make_trials(spec, loaded)
        known = None if trials is None else trials.recall()
        if ranks is None or loaded.group is None:
            sampler = BatchSampler()
            blocks = known or probe_multi_token(forward, drafts=spec.speculation is not None)
            pace = PrefillPace(spec.max_decode_stall_s, on_gpu=on_gpu())
        else:
            sampler = RankedSampler(ranks, loaded.group)
            # What a constraint forces is known to rank 0 alone.
            blocks = Blocks(right=False)
            pace = RankedPace(ranks, spec.max_decode_stall_s, on_gpu=on_gpu())
        quantization = forward.kv_quantization
        mode = _batch_mode(forward, facts) if known is None else BatchMode.BATCHED
        self._speculation = _make_speculation(spec, loaded, sampler, blocks, mode)
        wire_weights(spec.wiring, spec.memory_limit_bytes)
        _warm_up(
            BatchEngine(
                forward, sampler, pace, None, None, blocks, mode=BatchMode.BATCHED, ranks=ranks
            ),
            facts,
        )
        self._model = loaded.model
        self._features = _make_feature_cache(spec, loaded)
        self._prefixes = _make_prefix_cache(spec, loaded)
        self._adapters = loaded.adapters
        right = mode is BatchMode.BATCHED and forward.kv_quantization is quantization
        if trials is not None and known is None and right:
            trials.keep(blocks)
        self._rows = BatchEngine(
            forward,
            sampler,
            pace,
            self._prefixes,
            self._speculation.running,
            blocks,
            self._features,
            mode=mode,
            ranks=ranks,
        )
        if ranks is not None:
            found = facts.context_tokens, facts.vocabulary_size, int(self._rows.together)
            ranks.check("loaded", found)

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
        row = replace(row, cache_salt=salt)
        with mx.stream(generation_stream):
            self._rows.admit(row)
        if self._ranks is not None:
            self._ranks.admit(row)

    def step(self, interrupted: Callable[[], bool] = lambda: False) -> StepOutput:
        self._order(RankCall.STEP)
        with mx.stream(generation_stream):
            return self._rows.step(interrupted)

    def remove(self, sequence_id: int) -> None:
        self._order(RankCall.REMOVE, sequence_id)
        with mx.stream(generation_stream):
            self._rows.remove(sequence_id)

    def flush(self) -> StepOutput:
        self._order(RankCall.FLUSH)
        with mx.stream(generation_stream):
            return self._rows.flush()

    def preempt(self, sequence_id: int) -> Sequence[int] | None:
        self._order(RankCall.PREEMPT, sequence_id)
        with mx.stream(generation_stream):
            return self._rows.preempt(sequence_id)

    def rest(self) -> None:
        self._order(RankCall.REST)
        with mx.stream(generation_stream):
            if self._prefixes is not None:
                self._prefixes.rest()
            tables.clear()
            gc.collect()
            mx.clear_cache()

    def shrink(self) -> None:
        """Evict half of the computed prompts in memory, and free all memory that is reserved."""
        self._order(RankCall.SHRINK)
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
        self._order(RankCall.REGROW)
        if self._prefixes is not None:
            self._prefixes.regrow()
        if self._features is not None:
            self._features.regrow()

    def close(self) -> None:
        """Write the prefixes that are to survive to disk."""
        self._order(RankCall.LEAVE)
        if self._prefixes is not None:
            with mx.stream(generation_stream):
                self._prefixes.close()
        self._renderer.kill()

    def release(self) -> None:
        """Free all rows, computed prompts and weights on a Mac, and unwire the memory."""
        if not mx.metal.is_available():
            return  # The system takes all of it back at the process's end.
        with mx.stream(generation_stream):
            del self._rows, self._speculation, self._prefixes, self._features, self._adapters
            release_memory([self._model])

    def speculation(self) -> str:
        """Return what drafts tokens and whether it does now, for people; empty if nothing does."""
        what, running = self._speculation
        return what if running is None else f"{what}: {running.state}"

    def _order(self, call: RankCall, sequence_id: int = 0) -> None:
        """Have the followers of a divided model make the same call."""
        if self._ranks is not None:
            self._ranks.order(call, sequence_id)

    def memory_bytes(self) -> int:
        """Return MLX's own count: buffers in use and buffers kept for reuse."""
        return int(mx.get_active_memory() + mx.get_cache_memory())

    def peak_memory_bytes(self) -> int:
        """Return MLX's own count of buffers in use."""
        return int(mx.get_peak_memory())


class _Drafts(NamedTuple):
    """What drafts tokens, for people, and what does it; None if nothing does."""

    what: str = ""
    running: Speculation | None = None


def _make_speculation(
    worker: WorkerSpec,
    loaded: LoadedModel,
    sampler: BatchSampler,
    blocks: Blocks,
    mode: BatchMode,
) -> _Drafts:
    spec = worker.speculation
    if spec is None:
        return _Drafts()
    folder = Path(worker.model_path)
    if not spec.auto:
        if blocks.alone is None:
            return _Drafts("off: its caches can't take tokens back")
        found = FoundDrafter("as configured", make_drafter(spec, folder, loaded))
    else:
        why = _why_off(blocks, mode, looked_up=False)
        if why is None:
            found = find_drafter(spec, folder, loaded)
            why = _why_off(blocks, mode, looked_up=found.drafter.foresees)
        if why is not None:
            return _Drafts(f"off: {why}")
    end_ids = loaded.facts.eos_token_ids
    stall_s = worker.max_decode_stall_s
    running = Speculation(spec, found.drafter, sampler, end_ids, stall_s)
    return _Drafts(found.name, running)


def _why_off(blocks: Blocks, mode: BatchMode, *, looked_up: bool) -> str | None:
    return why_off(
        takes_back=blocks.alone is not None,
        computes_again=blocks.alone is Undo.REPLAYED,
        looked_up=looked_up,
        in_turns=mode is not BatchMode.BATCHED,
    )


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
    namespace = prefix_namespace(Path(worker.model_path), _versions(worker, loaded))
    if loaded.facts.media is not None:
        spec = replace(spec, memory_bytes=spec.memory_bytes - _feature_bytes(worker))
    return PrefixCache(loaded.forward.new_cache, spec, namespace)


def _versions(worker: WorkerSpec, loaded: LoadedModel) -> list[str]:
    """Return what decides, besides a model's files, what it computes."""
    versions = [_COMPUTES, version("mlx"), version("mlx-lm"), version("mlx-vlm"), loaded.library]
    # It depends on the context which windows and rotary factors a model has.
    versions.append(json.dumps(loaded.config, sort_keys=True, default=str))
    if worker.kv_bits is not None:
        # What is stored with other bits, or with none, can't be restored.
        versions.append(f"kv_bits {worker.kv_bits}")
    return versions


def _make_trials(worker: WorkerSpec, loaded: LoadedModel) -> Trials | None:
    """Return what is remembered of the trials. Returns None for a model that more decides about
    than its files: adapters, code that comes with it, or the ranks among which it is divided."""
    if worker.adapters or loaded.allow_code or worker.ranks is not None:
        return None
    # With CUDA it also says how much memory is free at the moment.
    lasting = {name: what for name, what in mx.device_info().items() if name != "free_memory"}
    device = json.dumps(lasting, sort_keys=True, default=str)
    versions = [
        *_versions(worker, loaded),
        _TRIES,
        version("lmx"),
        version("transformers"),
        platform.platform(),
        device,
        f"drafts {worker.speculation is not None}",
    ]
    try:
        name = prefix_namespace(Path(worker.model_path), versions)
        return Trials(cache_dir() / "trials", name)
    except (OSError, RuntimeError):  # No files, or the user has no home.
        return None


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


def _check_numbers(forward: Forward, facts: ModelFacts) -> None:
    """Raise :class:`OperationError` for a model that computes something else than numbers. The
    trials would take it for one that can do nothing, and it would answer with its first token."""
    token = min(facts.eos_token_ids, default=0)
    logits = forward.decode(mx.array([[token]]), forward.new_cache(), None)
    if mx.isnan(logits).any().item():
        raise OperationError(
            ErrorCode.MODEL_SOURCE_INVALID,
            "The model computes something else than numbers: its weights are damaged, or too large "
            "for their type (float16). Fetch it again, or choose another conversion of it.",
        )


def _warm_up(rows: BatchEngine, facts: ModelFacts) -> None:
    warm_up_draws(facts.vocabulary_size)
    most_tokens = _GPU_WARM_UP_PROMPT_TOKENS if on_gpu() else _WARM_UP_PROMPT_TOKENS
    prompt_tokens = min(most_tokens, facts.context_tokens // 2)
    prompt = [min(facts.eos_token_ids, default=0)] * max(1, prompt_tokens)
    rows.admit(SequenceRequest(0, prompt, _WARM_UP_TOKENS, SequenceSampling(1.0, 0.9)))
    while not rows.idle:
        for _, error in rows.step().failed:
            raise error
