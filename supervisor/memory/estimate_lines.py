"""What makes up an estimate of a model's memory, line by line for people. Pure."""

from typing import Final

from lmx.protocol.messages.control import PlanLine
from lmx.protocol.models.decode_limits import AT_REST_BYTES
from lmx.protocol.models.memory import kv_bytes
from lmx.supervisor.config.schema import ModelConfig
from lmx.supervisor.decisions.ledger import format_bytes
from lmx.supervisor.memory.plan import Estimate

_DECODER_WORDS: Final = (
    f"a process that decodes images, sounds and videos: {format_bytes(AT_REST_BYTES)} at rest, and "
    "media.decode_memory_bytes at most"
)


def lines_of(model: ModelConfig, estimate: Estimate) -> list[PlanLine]:
    """Return what makes up an estimate, without what is nothing."""
    context = estimate.context_tokens
    row_bytes = kv_bytes(estimate.kv_layers, context) if context else 0
    asked = f"{context} tokens x {model.kept_rows}" if context else ""
    if row_bytes and estimate.kv_cache_bytes > model.kept_rows * row_bytes:
        asked += ", and room for more that are shorter"
    elif row_bytes and estimate.kv_cache_bytes < model.kept_rows * row_bytes:
        limit = "memory_bytes" if model.kv_cache_bytes is None else "kv_cache_bytes"
        asked += f", as far as {limit} allows"
    if estimate.kv_bits is not None:
        asked += f", {estimate.kv_bits} bits a number"
    found = [
        PlanLine("weights", estimate.weights_bytes, _weights_words(estimate)),
        PlanLine("draft model", estimate.draft_bytes),
        PlanLine("adapters", estimate.adapters_bytes, "all are in memory at once"),
        PlanLine("process", estimate.process_bytes, "Python, mlx and the tokenizer"),
        PlanLine("KV cache", estimate.kv_cache_bytes, asked),
        PlanLine("prefix cache", estimate.prefix_cache_bytes, "prompts computed before"),
        PlanLine("activations", estimate.activation_bytes, "intermediate results"),
        PlanLine("media", estimate.media_bytes, _media_words(estimate)),
        PlanLine("decoder", estimate.decoder_bytes, _DECODER_WORDS),
        PlanLine("buffers", estimate.buffers_bytes, "freed ones that are used again"),
    ]
    return [line for line in found if line.size_bytes]


def _weights_words(estimate: Estimate) -> str:
    media_bytes = estimate.media.weights_bytes if estimate.media else 0
    for_media = f"; {format_bytes(media_bytes)} of them see and hear" if media_bytes else ""
    once = "; ranks divide those of the layers, and have the others each" * (estimate.ranks > 1)
    return f"headers of *.safetensors{for_media}{once}"


def _media_words(estimate: Estimate) -> str:
    tokens = estimate.media.image_tokens if estimate.media else 0
    return f"a picture of 1024 x 768 pixels, which is about {tokens} tokens of the context"
