"""Reads what a model is for from a few small files in its folder. It loads nothing."""

import re
from pathlib import Path
from typing import Any, Final

from lmx.protocol.errors import OperationError
from lmx.protocol.host.regular_file import open_regular, parse_json, read_regular
from lmx.protocol.models.checkpoint import (
    CONFIG_LIMIT_BYTES,
    CheckpointConfig,
    read_checkpoint_config,
)
from lmx.protocol.states import ModelKind

_ENCODERS: Final = frozenset(
    {
        *("albert", "bert", "camembert", "deberta", "deberta_v2", "distilbert", "electra"),
        *("embedding_gemma2", "jina_bert", "lfm2_encoder", "llama_bidirec", "modernbert"),
        *("mpnet", "new", "nomic_bert", "roberta", "xlm_roberta"),
    }
)
"""Model types that see a text from both sides, so that they can't generate one."""

_TRANSCRIBERS: Final = frozenset({"whisper"})
"""Model types that write down what they hear."""

_SPEAKERS: Final = frozenset({"kokoro", "pocket_tts"})
"""Model types that read texts aloud."""

_CARDS: Final = {
    "automatic-speech-recognition": ModelKind.TRANSCRIPTION,
    "feature-extraction": ModelKind.EMBEDDING,
    "sentence-similarity": ModelKind.EMBEDDING,
    "text-ranking": ModelKind.RERANK,
    "text-to-speech": ModelKind.SPEECH,
}
"""The kinds of models by the tags of model cards."""

_CARD_LIMIT_BYTES: Final = 64 * 1024
_PIPELINE: Final = re.compile(r"^pipeline_tag:\s*[\"']?([a-z-]+)", re.MULTILINE)


def read_kind(folder: Path) -> ModelKind:
    """Return the kind of a model folder; CHAT if nothing says otherwise.

    These decide, in this order: the model type of Whisper, that of a voice, the architecture of a
    classifier, the files of sentence-transformers, the model type of an encoder, the model card.
    Qwen3-Embedding and Qwen3-Reranker have the config.json of a chat model, so that only the files
    next to it show what they are. Files that are missing or broken are ignored here; loading the
    model reports what is wrong with them.
    """
    try:
        config = read_checkpoint_config(folder)
    except OperationError:
        config = None
    if config is not None and config.model_type in _TRANSCRIBERS:
        return ModelKind.TRANSCRIPTION
    if config is not None and speech_family(config):
        return ModelKind.SPEECH
    if config is not None and is_classifier(config):
        return ModelKind.RERANK
    if (kind := _sentence_transformers_kind(folder)) is not None:
        return kind
    if config is not None and _is_encoder(config):
        return ModelKind.EMBEDDING
    return _card_kind(folder / "README.md") or ModelKind.CHAT


def speech_family(config: CheckpointConfig) -> str | None:
    """Return the type of a model that reads texts aloud; None for one that lmx can't serve as that.
    The published Kokoro names no type."""
    if {"istftnet", "plbert", "vocab"} <= config.whole.keys():
        return "kokoro"
    return config.model_type if config.model_type in _SPEAKERS else None


def is_classifier(config: CheckpointConfig) -> bool:
    """Return whether a model's architecture gives scores in place of text."""
    return any(name.endswith("ForSequenceClassification") for name in config.architectures)


def _sentence_transformers_kind(folder: Path) -> ModelKind | None:
    settings = _read_object(folder / "config_sentence_transformers.json")
    if settings.get("model_type") == "CrossEncoder":
        return ModelKind.RERANK
    try:
        embeds = (folder / "modules.json").is_file() or (folder / "1_Pooling").is_dir()
    except OSError:  # A folder of another user's.
        embeds = False
    return ModelKind.EMBEDDING if settings or embeds else None


def _is_encoder(config: CheckpointConfig) -> bool:
    model_type = config.model_type.replace("-", "_")
    # EmbeddingGemma is a gemma3_text whose attention looks both ways.
    return model_type in _ENCODERS or config.whole.get("use_bidirectional_attention") is True


def _card_kind(path: Path) -> ModelKind | None:
    try:
        with open_regular(path) as file:
            text = file.read(_CARD_LIMIT_BYTES).decode("utf-8", "replace").replace("\r\n", "\n")
    except OSError:
        return None
    if not text.startswith("---"):
        return None
    found = _PIPELINE.search(text.split("\n---", 1)[0])
    return _CARDS.get(found.group(1)) if found else None


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = parse_json(read_regular(path, CONFIG_LIMIT_BYTES))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
