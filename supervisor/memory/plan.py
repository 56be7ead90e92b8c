"""Plans how much memory a model's worker gets before it is loaded, and for what.

The plan comes from the engine's estimate (:mod:`lmx.protocol.models.memory`) and from what earlier
workers were measured at. This is arithmetic only: the engine knows where its figures come from.
:func:`settings_key` is the name under which a worker's measured memory is remembered.
"""

import hashlib
import json
from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import Any, Final

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.models.memory import KvLayers, MediaMemory, activation_bytes, kv_bytes
from lmx.protocol.states import ModelKind
from lmx.supervisor.config.model import AddedModelConfig
from lmx.supervisor.config.schema import ModelConfig
from lmx.supervisor.memory.inspection import MOST_BYTES, ModelFiles
from lmx.supervisor.memory.measured import Measured

_KEY_CHARACTERS: Final = 32
_LITTLE: Final = 4
"""What is measured above an estimate is little if it is one part in so many of the work."""


def settings_key(
    model: ModelConfig,
    kind: ModelKind,
    files: ModelFiles,
    context_tokens: int | None,
    draft: ModelFiles | None,
    kv_bits: int | None = None,
) -> str:
    """Return a hash of the model, its revision and the settings that its memory depends on."""
    parts = [
        files.revision,
        None if draft is None else draft.revision,
        kind.value,
        context_tokens,
        _settings(model),
    ]
    if kv_bits is not None or model.kv_cache_bytes is not None:
        # What was measured before these settings existed still holds without them.
        parts += [kv_bits, model.kv_cache_bytes]
    if model.ranks > 1:
        parts += [model.ranks, model.parallel]
    if model.hosts:
        parts.append("hosts")
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:_KEY_CHARACTERS]


def _settings(model: ModelConfig) -> list[Any]:
    cache, speculation = model.prefix_cache, model.speculation
    return [
        model.kept_rows,
        model.max_rows,
        model.memory_bytes,
        (cache.enabled, cache.memory_bytes),
        speculation.model_dump(exclude={"draft"}) if speculation.is_chosen else None,
        (model.engine, model.engine_options),
    ]


_LEAST_PREFIX_BYTES: Final = 256 * 1024**2
"""The smallest prefix cache, also for a model whose cache the estimate knows nothing about. It
holds some thousand tokens of a small model."""

_MOST_PREFIX_BYTES: Final = 2 * 1024**3
"""The largest prefix cache by default. Beyond it there is the disk, because reading from it is
faster than computing again."""

_PREFIX_SHARE: Final = 4
"""By default the prefix cache is at most one part in this many of all that the worker can get."""

_LEAST_KV_TOKENS: Final = 4096
"""The KV cache has room for at least this many tokens, so that short contexts are batched too."""

_DRAFT_WINDOW_TOKENS: Final = 320
"""So many tokens besides its window has a draft model's cache room for: guesses that are taken back
out of it, and whole steps."""

_USUAL_CONTEXT_TOKENS: Final = 32_768
"""A context that is not configured is at most this long while memory is short: every model would
reserve gigabytes for more."""

_LONG_CONTEXT_SHARE: Final = 2
"""A longer one may take one part in this many of the budget, divided among all models."""

_LEAST_CONTEXT_TOKENS: Final = 2048
_CONTEXT_STEP_TOKENS: Final = 256
_UNKNOWN_CONTEXT_TOKENS: Final = 4096
"""The context that is assumed if neither the model nor the configuration says how long it is. The
worker then asks people to configure it."""

_ENCODER_CONTEXT_TOKENS: Final = 512


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes by what they are for, for one context length."""

    weights_bytes: int
    draft_bytes: int
    """The weights of the draft model."""
    adapters_bytes: int
    """The weights of all adapters."""
    process_bytes: int
    kv_layers: tuple[KvLayers, ...]
    """The layers of the model and of its draft model."""
    context_tokens: int | None
    """None: the worker finds it out."""
    kv_cache_bytes: int
    prefix_cache_bytes: int
    activation_bytes: int
    buffers_bytes: int
    """Freed memory that the engine keeps for reuse."""
    kv_bits: int | None = None
    """The bits of each number in the caches of the model. None: they are not quantized."""
    media: MediaMemory | None = None
    """What the model's eyes and ears take; None for a model that takes text only."""
    decoder_bytes: int = 0
    """The most that the process takes which decodes images, sounds and videos for the worker; 0 for
    a model that takes none."""
    ranks: int = 1
    """Among how many processes of this machine the model is divided. The figures are those of all
    of them."""

    @property
    def media_bytes(self) -> int:
        """What computing what is seen in one picture takes. Several are computed one after the
        other."""
        return self.media.image_bytes if self.media else 0

    @property
    def static_bytes(self) -> int:
        """What is taken once the model is loaded."""
        return self.weights_bytes + self.draft_bytes + self.adapters_bytes + self.process_bytes

    @property
    def rank_bytes(self) -> int:
        """What each of the processes takes at most: they have equal parts."""
        return -(-self.total_bytes // self.ranks)

    @property
    def total_bytes(self) -> int:
        """What is taken at most while the worker works."""
        return (
            self.static_bytes
            + self.kv_cache_bytes
            + self.prefix_cache_bytes
            + self.activation_bytes
            + self.media_bytes
            + self.decoder_bytes
            + self.buffers_bytes
        )


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What a model's worker gets, in bytes, by what it is for."""

    static_bytes: int
    """What is taken once the model is loaded: weights, a draft model, adapters, the process."""
    prefix_cache_bytes: int = 0
    """This is taken only while the worker works, and so are the next two."""
    kv_cache_bytes: int | None = None
    activation_bytes: int = 0
    peak_bytes: int = 0
    """The most that a worker with these settings was ever measured at; 0 if none was."""
    set_bytes: int | None = None
    """The share that a person set. It overrides all other figures."""
    context_tokens: int | None = None
    """None: the model's own context length."""
    kv_layers: tuple[KvLayers, ...] = ()
    settings_key: str = ""
    """The key of model, revision and settings under which measurements are kept."""
    weights_bytes: int = 0
    """A part of ``static_bytes``."""
    kv_bits: int | None = None
    """As in :class:`Estimate`."""
    decoder_bytes: int = 0
    """As in :class:`Estimate`. It is no part of what workers are measured at."""
    budget_bytes: int = 0
    """The budget, if the estimate fits it; else 0. A context is as long as the estimate allows: if
    a little more is measured, there is that much less for the work, and the model stays."""

    @property
    def working_bytes(self) -> int:
        """What the worker takes at work, beyond what it takes once the model is loaded."""
        return (
            (self.kv_cache_bytes or 0)
            + self.prefix_cache_bytes
            + self.activation_bytes
            + self.decoder_bytes
        )

    @property
    def worker_bytes(self) -> int:
        """What is reserved for the worker's own process."""
        return max(self.static_bytes, self.reserve_bytes - self.decoder_bytes)

    @property
    def reserve_bytes(self) -> int:
        """What is reserved before the load."""
        return self.corrected_bytes(self.static_bytes)

    def corrected_bytes(self, static_bytes: int) -> int:
        """Return what must be reserved once ``static_bytes`` were measured after the load: the
        measured figure in place of the estimate, and room for the work."""
        if self.set_bytes is not None:
            return max(self.set_bytes, static_bytes)
        wanted = max(static_bytes + self.working_bytes, self.peak_bytes + self.decoder_bytes)
        excess_bytes = wanted - self.budget_bytes
        little = excess_bytes <= self.working_bytes // _LITTLE
        return self.budget_bytes if excess_bytes > 0 and little else wanted


def plan_memory(
    model: ModelConfig,
    kind: ModelKind,
    files: ModelFiles,
    draft: ModelFiles | None,
    budget_bytes: int,
    measured: Measured | None,
    default_kv_bits: int | None = None,
    decoder_bytes: int = 0,
    models: int = 1,
) -> tuple[Estimate, MemoryPlan]:
    """Return the estimate and the plan for a model's worker, from what was read of the model's
    files and of those of its draft model. ``default_kv_bits`` is that of a model which doesn't say
    it; ``decoder_bytes`` and ``models`` as in :func:`estimate_memory`.

    Raises :class:`lmx.protocol.errors.OperationError` for figures that no model has.
    """
    estimated = estimate_memory(
        model, kind, files, draft, budget_bytes, default_kv_bits, decoder_bytes, models
    )
    plan = plan_of(model, kind, files, draft, estimated, measured)
    # A single worker that once grew beyond all bounds must not keep its model unloaded for ever.
    most_bytes = max(0, budget_bytes - plan.decoder_bytes)
    plan = replace(plan, peak_bytes=min(plan.peak_bytes, most_bytes))
    if estimated.total_bytes > budget_bytes:
        return estimated, plan
    return estimated, replace(plan, budget_bytes=budget_bytes)


def plan_of(
    model: ModelConfig,
    kind: ModelKind,
    files: ModelFiles,
    draft: ModelFiles | None,
    estimate: Estimate,
    measured: Measured | None,
) -> MemoryPlan:
    """Return the plan that follows from an estimate, and from what was measured before."""
    key = settings_key(model, kind, files, estimate.context_tokens, draft, estimate.kv_bits)
    found = measured.lookup(key) if measured is not None else None
    chat = kind is ModelKind.CHAT
    return MemoryPlan(
        static_bytes=found.static_bytes if found else estimate.static_bytes,
        prefix_cache_bytes=estimate.prefix_cache_bytes,
        kv_cache_bytes=estimate.kv_cache_bytes if chat and estimate.kv_layers else None,
        activation_bytes=estimate.activation_bytes + estimate.media_bytes + estimate.buffers_bytes,
        peak_bytes=found.peak_bytes if found else 0,
        set_bytes=_set_bytes(model),
        context_tokens=estimate.context_tokens,
        kv_layers=estimate.kv_layers if chat else (),
        settings_key=key,
        weights_bytes=estimate.weights_bytes,
        kv_bits=estimate.kv_bits,
        decoder_bytes=estimate.decoder_bytes,
    )


def estimate_memory(
    model: ModelConfig,
    kind: ModelKind,
    files: ModelFiles,
    draft: ModelFiles | None,
    budget_bytes: int,
    default_kv_bits: int | None = None,
    decoder_bytes: int = 0,
    models: int = 1,
) -> Estimate:
    """Return what a model's worker takes, without what was measured before.
    ``default_kv_bits`` is that of a model which doesn't say it, and ``decoder_bytes`` the most that
    decoding takes, for a model that takes more than text. ``models`` are to share the budget.

    A context that is not configured is the model's own, up to 32,768 tokens; the longest, in steps
    of 256, with which the worker takes no more than its part of half of the budget, if that is
    longer. It is no longer than ``budget_bytes``, or the share that a person set, has room for, but
    at least 2048 tokens. If not even those fit, the ledger says so. An encoder's text, which is
    computed whole, is as long as the model takes it; if the budget has no room for that, as long as
    half of it has room for, but at least 512 tokens. Raises :class:`OperationError` for figures
    that no model has.
    """
    kv_bits = _kv_bits(model, kind, files, default_kv_bits)
    if files.memory.media is None and kind is not ModelKind.TRANSCRIPTION:
        decoder_bytes = 0
    if model.hosts:
        # Each machine has one rank, and this one's budget stands for all.
        set_bytes = None if model.memory_bytes is None else model.ranks * int(model.memory_bytes)
        whole = model.model_copy(update={"memory_bytes": set_bytes})
        budget_bytes *= model.ranks
        found = _one_of(
            _fitted(whole, kind, files, draft, budget_bytes, kv_bits, decoder_bytes, models)
        )
    else:
        found = _fitted(model, kind, files, draft, budget_bytes, kv_bits, decoder_bytes, models)
    if found.total_bytes > MOST_BYTES:
        raise OperationError(
            ErrorCode.MODEL_SOURCE_INVALID,
            f"the config.json of {model.id} makes no sense: the model would take more than "
            f"{MOST_BYTES} bytes",
        )
    return found


def _one_of(estimate: Estimate) -> Estimate:
    """Return what one of the ranks takes: they have equal parts."""

    def part(whole_bytes: int) -> int:
        return -(-whole_bytes // estimate.ranks)

    return replace(
        estimate,
        weights_bytes=part(estimate.weights_bytes),
        process_bytes=part(estimate.process_bytes),
        kv_cache_bytes=part(estimate.kv_cache_bytes),
        prefix_cache_bytes=part(estimate.prefix_cache_bytes),
        activation_bytes=part(estimate.activation_bytes),
        buffers_bytes=part(estimate.buffers_bytes),
        ranks=1,
    )


def context_problem(model: ModelConfig, native_tokens: int | None) -> str | None:
    """Return what is wrong with the context length that is set for a model: it is longer than the
    model was made for, and somebody chose it. Returns None if nothing is wrong or that is not known
    yet."""
    wanted = model.context_length
    if native_tokens is None or wanted is None or wanted <= native_tokens:
        return None
    if isinstance(model, AddedModelConfig) and model.context_at_most:
        return None
    return (
        f"{model.id} can't have a context of {wanted} tokens: at most {native_tokens}, which is "
        "what the model has"
    )


def _kv_bits(
    model: ModelConfig, kind: ModelKind, files: ModelFiles, default: int | None
) -> int | None:
    """Return the bits of each number in a model's caches. None: they are not quantized.

    Raises :class:`OperationError` if the model's own key can't be kept. With the default for all
    models, such a model has its caches as they are.
    """
    if model.kv_bits == "none" or kind is not ModelKind.CHAT:
        return None
    bits = default if model.kv_bits is None else model.kv_bits
    layers = files.memory.kv_layers
    if bits is None or not layers or files.memory.kv_layers_with(bits) != layers:
        return bits
    if model.kv_bits is None:
        return None
    raise OperationError(
        ErrorCode.CONFIG_INVALID,
        f"{model.id} has no KV cache that can be quantized (kv_bits {bits}): its layers keep a "
        "window or a state, or its heads have a width that is no multiple of 32. Leave kv_bits out",
        param="kv_bits",
    )


def _fitted(
    model: ModelConfig,
    kind: ModelKind,
    files: ModelFiles,
    draft: ModelFiles | None,
    budget_bytes: int,
    kv_bits: int | None,
    decoder_bytes: int,
    models: int,
) -> Estimate:
    available_bytes = _set_bytes(model) or budget_bytes
    native = files.context_tokens
    model = _within_own_context(model, native)
    configured = model.context_length
    if kind is not ModelKind.CHAT:
        longest = native or _ENCODER_CONTEXT_TOKENS
        if kind not in (ModelKind.EMBEDDING, ModelKind.RERANK):
            return _encoder(model, files, min(configured or longest, longest), decoder_bytes)
        found = _encoder(model, files, configured or longest, decoder_bytes)
        lengths = range(_ENCODER_CONTEXT_TOKENS, longest, _CONTEXT_STEP_TOKENS)
        if configured is not None or found.total_bytes <= available_bytes or not lengths:
            return found
        # The whole budget would be taken from all other models for a text that is rarely sent.
        share_bytes = _set_bytes(model) or budget_bytes // _LONG_CONTEXT_SHARE
        fitting = bisect_right(
            lengths,
            share_bytes,
            key=lambda each: _encoder(model, files, each, decoder_bytes).total_bytes,
        )
        tokens = lengths[max(0, fitting - 1)]
        return replace(_encoder(model, files, tokens, decoder_bytes), context_tokens=tokens)

    def with_context(tokens: int) -> Estimate:
        return _writer(model, files, draft, tokens, available_bytes, kv_bits, decoder_bytes)

    if configured is not None or native is None:
        tokens = configured or _UNKNOWN_CONTEXT_TOKENS
        # The worker reports the error if this is longer than the model's own context.
        return replace(with_context(min(tokens, native or tokens)), context_tokens=configured)
    longest = min(native, _USUAL_CONTEXT_TOKENS)
    found = with_context(longest)
    if found.total_bytes > available_bytes:
        lengths = range(_LEAST_CONTEXT_TOKENS, longest, _CONTEXT_STEP_TOKENS)
        if not lengths:
            return found
        fitting = bisect_right(
            lengths, available_bytes, key=lambda each: with_context(each).total_bytes
        )
        return with_context(lengths[max(0, fitting - 1)])
    share_bytes = _set_bytes(model) or budget_bytes // (_LONG_CONTEXT_SHARE * max(1, models))
    # With this many requests of full length, whatever else limits them.
    free = model.model_copy(update={"memory_bytes": None, "kv_cache_bytes": None})

    def takes_bytes(tokens: int) -> int:
        return _writer(
            free, files, draft, tokens, available_bytes, kv_bits, decoder_bytes
        ).total_bytes

    lengths = range(longest, native, _CONTEXT_STEP_TOKENS)
    if not lengths or takes_bytes(native) <= share_bytes:
        return with_context(native)
    return with_context(lengths[max(0, bisect_right(lengths, share_bytes, key=takes_bytes) - 1)])


def _within_own_context(model: ModelConfig, native: int | None) -> ModelConfig:
    configured = model.context_length
    if native is None or configured is None or configured <= native:
        return model
    if not (isinstance(model, AddedModelConfig) and model.context_at_most):
        return model
    return model.model_copy(update={"context_length": native})


def _writer(
    model: ModelConfig,
    files: ModelFiles,
    draft: ModelFiles | None,
    context_tokens: int,
    available_bytes: int,
    kv_bits: int | None,
    decoder_bytes: int,
) -> Estimate:
    memory = files.memory
    layers = memory.kv_layers_with(kv_bits)
    if draft is not None:
        # The draft model keeps its own keys and values of the same tokens.
        layers += tuple(
            replace(part, window_tokens=part.window_tokens + _DRAFT_WINDOW_TOKENS)
            if part.window_tokens is not None
            else part
            for part in draft.memory.kv_layers
        )
    own = memory.kv_layers
    if own and (model.speculation.method == "mtp" or files.own_heads):
        # The heads have a layer like the model's, which is never quantized. Their weights are among
        # the model's.
        widest = max(own, key=lambda layer: (layer.window_tokens is None, layer.token_bytes))
        layers += (replace(widest, layers=1),)
    row_bytes = kv_bytes(layers, context_tokens)
    ranks = model.ranks
    bare = Estimate(
        weights_bytes=ranks * memory.weights_bytes - (ranks - 1) * memory.divided_bytes,
        draft_bytes=0 if draft is None else draft.memory.weights_bytes,
        adapters_bytes=files.adapters_bytes,
        process_bytes=ranks * memory.process_bytes,
        kv_layers=layers,
        context_tokens=context_tokens,
        kv_cache_bytes=0,
        prefix_cache_bytes=_prefix_cache_bytes(model, row_bytes, available_bytes),
        activation_bytes=ranks
        * activation_bytes(memory.activations, context_tokens, model.kept_rows, layers)
        + _growth_bytes(model, layers, context_tokens),
        buffers_bytes=ranks * memory.buffers_bytes,
        kv_bits=kv_bits,
        media=memory.media,
        decoder_bytes=decoder_bytes,
        ranks=ranks,
    )
    full_bytes = model.kept_rows * row_bytes
    left_bytes = max(0, available_bytes - bare.total_bytes)
    floor_bytes = min(kv_bytes(layers, _LEAST_KV_TOKENS), left_bytes)
    kv_cache_bytes = max(full_bytes, floor_bytes)
    if model.memory_bytes is not None:
        # Fewer rows than configured may run at a time, to keep to the share that a person set.
        kv_cache_bytes = max(row_bytes, min(kv_cache_bytes, left_bytes))
    if model.kv_cache_bytes is not None:
        # A request that does not fit by itself is refused with these figures.
        kv_cache_bytes = min(kv_cache_bytes, int(model.kv_cache_bytes))
    return replace(bare, kv_cache_bytes=kv_cache_bytes)


def _growth_bytes(model: ModelConfig, layers: tuple[KvLayers, ...], context_tokens: int) -> int:
    """Return what rows take in the KV cache beyond their tokens.

    A batch's cache is as long as its rows were when the last one joined, and grows from there by
    whole steps, up to one more for each row. Measured: 16 rows of 256 tokens held 472 each.
    """
    rows = max(model.kept_rows, 2, _LEAST_KV_TOKENS // context_tokens)
    growing = [part for part in layers if part.window_tokens is None]
    return rows * sum(part.layers * part.token_bytes * part.step_tokens for part in growing)


def _encoder(
    model: ModelConfig, files: ModelFiles, context_tokens: int, decoder_bytes: int
) -> Estimate:
    memory = files.memory
    return Estimate(
        weights_bytes=memory.weights_bytes,
        draft_bytes=0,
        adapters_bytes=0,
        process_bytes=memory.process_bytes,
        kv_layers=(),
        context_tokens=model.context_length,
        kv_cache_bytes=0,
        prefix_cache_bytes=0,
        activation_bytes=activation_bytes(memory.activations, context_tokens, 0, ()),
        buffers_bytes=memory.buffers_bytes,
        decoder_bytes=decoder_bytes,
    )


def _set_bytes(model: ModelConfig) -> int | None:
    return None if model.memory_bytes is None else int(model.memory_bytes)


def _prefix_cache_bytes(model: ModelConfig, row_bytes: int, available_bytes: int) -> int:
    cache = model.prefix_cache
    if not cache.enabled:
        return 0
    if cache.memory_bytes is not None:
        return int(cache.memory_bytes)
    wanted_bytes = min(max(row_bytes, _LEAST_PREFIX_BYTES), _MOST_PREFIX_BYTES)
    return min(wanted_bytes, available_bytes // _PREFIX_SHARE)
