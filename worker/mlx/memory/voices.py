"""What a model that reads texts aloud takes when it computes, by its config.json. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from lmx.protocol.models.checkpoint import CheckpointConfig, count
from lmx.protocol.models.kind import speech_family
from lmx.protocol.models.memory import Activations

_CHUNK_TOKENS: Final = 1 << 15
"""More than any context: what a model takes does not depend on that."""

_UTTERANCE_S: Final = 16
"""How long Kokoro's longest utterance sounds."""

_COPIES: Final = 32
"""How many numbers exist at once for each channel and time of a vocoder's last stage. Measured with
Kokoro-82M on a CPU: 950 MiB for 12.7 s."""

_FRAMES_BYTES: Final = 256 * 1024**2
"""What a model takes that speaks in frames of 80 ms, with the encoded voice."""


def voice_activations(config: CheckpointConfig) -> Activations:
    """Return what intermediate results take: those of one utterance."""
    total_bytes = _FRAMES_BYTES
    vocoder = config.whole.get("istftnet")
    if speech_family(config) == "kokoro" and isinstance(vocoder, Mapping):
        total_bytes = _vocoder_bytes(vocoder)
    return Activations(
        chunk_tokens=_CHUNK_TOKENS,
        whole_texts=True,
        token_bytes=total_bytes // _CHUNK_TOKENS,
        pair_bytes=0,
        depth_tokens=_CHUNK_TOKENS,
        row_bytes=0,
    )


def _vocoder_bytes(vocoder: Mapping[str, Any]) -> int:
    rates = vocoder.get("upsample_rates")
    stages = len(rates) if isinstance(rates, list) else 1
    channels = count(vocoder, "upsample_initial_channel") >> min(stages, 16)
    frames = _UTTERANCE_S * 24_000 // max(1, count(vocoder, "gen_istft_hop_size"))
    return max(_FRAMES_BYTES, 4 * _COPIES * channels * frames)
