"""What a Whisper's computing takes, by its config.json. Pure."""

import sys
from typing import Final

from lmx.protocol.models.checkpoint import CheckpointConfig, count
from lmx.protocol.models.memory import Activations

_POSITIONS: Final = 1500
"""A window of 30 s; it is always computed whole."""

_HIDDEN_COPIES: Final = 16
"""How many numbers for each hidden one exist at once in a layer, its inner size of four times the
hidden one included. Measured with tiny.en and base in float32: 106 and 141 MiB in all."""

_SOUND_BYTES: Final = 64 * 1024**2
"""Sounds that are being transcribed, or wait for it: 17 minutes of them."""


def computing_bytes(platform: str = sys.platform) -> int:
    """Return how many bytes a number has: on a CPU, 16 bits are fifty times slower."""
    return 2 if platform == "darwin" else 4


def speech_activations(config: CheckpointConfig, platform: str = sys.platform) -> Activations:
    """Return what intermediate results take: those of one window, with the keys and values that
    the decoder's layers keep of it, and the sounds."""
    hidden = count(config.whole, "d_model", "n_audio_state")
    heads = count(config.whole, "encoder_attention_heads", "n_audio_head")
    layers = count(config.whole, "decoder_layers", "n_text_layer")
    numbers = (_HIDDEN_COPIES + 2 * layers) * hidden + heads * _POSITIONS
    return Activations(
        chunk_tokens=_POSITIONS,
        whole_texts=True,
        token_bytes=numbers * computing_bytes(platform) + _SOUND_BYTES // _POSITIONS,
        pair_bytes=0,
        depth_tokens=_POSITIONS,
        row_bytes=0,
    )


def speech_weights_bytes(
    config: CheckpointConfig, total_bytes: int, element_bytes: int, platform: str = sys.platform
) -> int:
    """Return what the weights take in memory, where they have the type that is computed with."""
    if "quantization" in config.whole:
        return total_bytes
    return total_bytes // element_bytes * computing_bytes(platform)
