"""Bringing a folder with a Whisper into memory."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn
from mlx_audio.stt.models.whisper.whisper import Model, ModelDimensions
from transformers import AutoTokenizer

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.host.regular_file import parse_json, read_regular
from lmx.protocol.models.checkpoint import CONFIG_LIMIT_BYTES, weight_files
from lmx.protocol.states import ModelKind
from lmx.worker.engine.interfaces import LoadReporter
from lmx.worker.mlx.memory.speech import computing_bytes
from lmx.worker.mlx.model.folder import read_folder
from lmx.worker.mlx.model.guard import forbid_checkpoint_code
from lmx.worker.mlx.model.load import read_weights
from lmx.worker.mlx.speech.decoder import SpeechNetwork
from lmx.worker.mlx.speech.vocabulary import SpeechVocabulary

_WINDOW_POSITIONS: Final = 1500


def load_network(folder: Path, advanced: LoadReporter) -> tuple[SpeechNetwork, Any]:
    """Return a folder's network and its tokenizer. Engine thread; takes as long as the disk needs.

    The folder has the form of Hugging Face or of mlx-audio. Raises :class:`OperationError` for one
    that holds no Whisper or lacks a file.
    """
    read = read_folder(folder).checkpoint
    config = read.whole
    if config.get("model_type") != "whisper":
        raise OperationError(
            ErrorCode.MODEL_SOURCE_INVALID,
            f"The type of this model is {config.get('model_type')!r}, and lmx transcribes with "
            "Whisper: take a folder of the type 'whisper'.",
        )
    forbid_checkpoint_code()
    tokenizer = _tokenizer(folder)
    model = _model(folder, dict(config))
    read_weights(model, advanced, folder, read, ModelKind.TRANSCRIPTION)
    settings = _generation_settings(folder)
    declared = settings.get("is_multilingual")
    vocabulary = SpeechVocabulary(
        tokenizer,
        model.dims.n_vocab,
        multilingual=declared if isinstance(declared, bool) else bool(model.is_multilingual),
    )
    return SpeechNetwork(model, vocabulary, _alignment_heads(settings, model)), tokenizer


def _tokenizer(folder: Path) -> Any:
    if not (folder / "tokenizer.json").is_file():
        raise OperationError(
            ErrorCode.MODEL_SOURCE_INVALID,
            f"{folder} has no tokenizer.json: take a Whisper in Hugging Face's form, which brings "
            "its tokenizer along.",
        )
    return AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)


def _model(folder: Path, config: dict[str, Any]) -> Any:
    try:
        dimensions = ModelDimensions.from_dict(config)
        if dimensions.n_audio_ctx != _WINDOW_POSITIONS:
            raise ValueError(f"a window has {dimensions.n_audio_ctx} positions")
        model = Model(dimensions, mx.float16 if computing_bytes() == 2 else mx.float32)
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise OperationError(
            ErrorCode.MODEL_SOURCE_INVALID,
            f"{folder / 'config.json'} describes no Whisper ({error}): fetch the model again.",
        ) from error
    files = weight_files(folder, ModelKind.TRANSCRIPTION)
    weights: dict[str, Any] = {}
    for file in files:
        content: Any = mx.load(str(file))
        weights |= content
    weights = model.sanitize(weights)
    if isinstance(quantization := config.get("quantization"), dict):
        nn.quantize(
            model,
            group_size=quantization.get("group_size", 64),
            bits=quantization.get("bits", 4),
            class_predicate=lambda path, _: f"{path}.scales" in weights,
        )
    try:
        model.load_weights(list(weights.items()))
    except ValueError as error:
        raise OperationError(
            ErrorCode.MODEL_SOURCE_INVALID,
            f"The weights in {folder} are not those of the Whisper in its config.json: {error}",
        ) from error
    model.eval()
    return model


def _alignment_heads(settings: Mapping[str, Any], model: Any) -> Sequence[Sequence[int]]:
    """Return, for each of the decoder's layers, the heads that show when a token is said: those
    that generation_config.json names, else all in the second half of the layers."""
    layers, heads = model.dims.n_text_layer, model.dims.n_text_head
    chosen: list[list[int]] = [[] for _ in range(layers)]
    for layer, head in _named_heads(settings):
        if 0 <= layer < layers and 0 <= head < heads:
            chosen[layer].append(head)
    if not any(chosen):
        return [list(range(heads)) if layer >= layers // 2 else [] for layer in range(layers)]
    return chosen


def _named_heads(settings: Mapping[str, Any]) -> list[tuple[int, int]]:
    try:
        return [(int(layer), int(head)) for layer, head in settings["alignment_heads"]]
    except (ValueError, TypeError, KeyError):
        return []


def _generation_settings(folder: Path) -> Mapping[str, Any]:
    try:
        settings = parse_json(read_regular(folder / "generation_config.json", CONFIG_LIMIT_BYTES))
    except (OSError, ValueError):
        return {}
    return settings if isinstance(settings, dict) else {}
