"""What a model is for, as its files tell."""

import json
from pathlib import Path
from typing import Any

import pytest

from lmx.protocol.models.kind import read_kind
from lmx.protocol.states import ModelKind

CHAT, EMBEDDING, RERANK = ModelKind.CHAT, ModelKind.EMBEDDING, ModelKind.RERANK
QWEN3 = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
MODULES = [{"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({}, CHAT),
        ({"config.json": QWEN3}, CHAT),
        ({"config.json": {"model_type": "llama"}}, CHAT),
        ({"config.json": {"model_type": "bert", "architectures": ["BertModel"]}}, EMBEDDING),
        ({"config.json": {"model_type": "xlm-roberta"}}, EMBEDDING),
        (
            {"config.json": {"model_type": "gemma3_text", "use_bidirectional_attention": True}},
            EMBEDDING,
        ),
        ({"config.json": {"model_type": "gemma3_text"}}, CHAT),
        ({"config.json": QWEN3, "modules.json": MODULES}, EMBEDDING),
        ({"config.json": QWEN3, "1_Pooling/config.json": {}}, EMBEDDING),
        ({"config.json": QWEN3, "config_sentence_transformers.json": {"prompts": {}}}, EMBEDDING),
        (
            {
                "config.json": QWEN3,
                "config_sentence_transformers.json": {"model_type": "CrossEncoder"},
                "modules.json": MODULES,
            },
            RERANK,
        ),
        (
            {
                "config.json": {
                    "model_type": "bert",
                    "architectures": ["BertForSequenceClassification"],
                },
                "modules.json": MODULES,
            },
            RERANK,
        ),
        ({"config.json": QWEN3, "README.md": "---\npipeline_tag: text-ranking\n---\n"}, RERANK),
        (
            {"config.json": QWEN3, "README.md": '---\npipeline_tag: "feature-extraction"\n---\n'},
            EMBEDDING,
        ),
        ({"config.json": QWEN3, "README.md": "---\npipeline_tag: text-generation\n---\n"}, CHAT),
        ({"config.json": {"model_type": "pocket_tts"}}, ModelKind.SPEECH),
        # The published Kokoro names no type.
        ({"config.json": {"istftnet": {}, "plbert": {}, "vocab": {}}}, ModelKind.SPEECH),
        (
            {"config.json": QWEN3, "README.md": "---\npipeline_tag: text-to-speech\n---\n"},
            ModelKind.SPEECH,
        ),
        # Not the card's head: a page may quote anything.
        ({"config.json": QWEN3, "README.md": "---\na: b\n---\npipeline_tag: text-ranking"}, CHAT),
        ({"config.json": QWEN3, "README.md": "pipeline_tag: text-ranking"}, CHAT),
        ({"config.json": "no json", "modules.json": "[", "README.md": "---"}, EMBEDDING),
        ({"config.json": ["a"]}, CHAT),
        ({"config.json": {"architectures": [3, None]}}, CHAT),
    ],
)
def test_kind_of_a_folder(tmp_path: Path, files: dict[str, Any], kind: ModelKind) -> None:
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    assert read_kind(tmp_path) is kind


def test_no_folder_is_no_reason_to_fail(tmp_path: Path) -> None:
    assert read_kind(tmp_path / "none") is CHAT


def test_a_folder_that_can_not_be_read_says_nothing() -> None:
    # As one that belongs to another user: what is wrong with it is told when it is loaded.
    assert read_kind(Path("/" + "x" * 300)) is ModelKind.CHAT
