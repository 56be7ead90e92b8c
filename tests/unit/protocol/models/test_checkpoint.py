"""What a config.json says, wherever it describes the language model, and whatever is in it."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.models.checkpoint import parse_checkpoint_config, read_checkpoint_config
from tests.support.rigs.budgets import examples

TEXT = {
    "model_type": "Qwen3", "num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 4,
    "vocab_size": 100, "max_position_embeddings": 4096,
}  # fmt: skip


def test_all_that_processes_need_is_read_at_once() -> None:
    found = parse_checkpoint_config({**TEXT, "architectures": ["Qwen3ForCausalLM", 3]})
    assert (found.model_type, found.text_model_type, found.family) == ("qwen3", "qwen3", "Qwen3")
    assert found.architectures == ("Qwen3ForCausalLM",)
    assert (found.layers, found.hidden_size, found.attention_heads) == (3, 64, 4)
    assert (found.vocabulary_tokens, found.context_tokens) == (100, 4096)
    assert not found.names_code
    assert parse_checkpoint_config({"model_file": "evil.py"}).names_code


@pytest.mark.parametrize(
    "nested",
    [
        {"text_config": TEXT},
        {"language_config": TEXT},
        {"llm_config": TEXT},
        {"thinker_config": TEXT},
        {"thinker_config": {"text_config": TEXT}, "text_config": {"hidden_size": 1}},
    ],
)
def test_a_nested_language_model_is_found(nested: dict[str, Any]) -> None:
    found = parse_checkpoint_config({"model_type": "omni", **nested})
    assert (found.model_type, found.text_model_type, found.family) == ("omni", "qwen3", "Qwen3")
    assert (found.layers, found.vocabulary_tokens, found.context_tokens) == (3, 100, 4096)


@pytest.mark.parametrize(
    ("config", "tokens"),
    [
        ({"text_config": {"max_position_embeddings": 5}, "max_position_embeddings": 9}, 5),
        ({"text_config": {"hidden_size": 5}, "max_position_embeddings": 9}, 9),
        ({"n_positions": 7, "text_config": None}, 7),
        ({"seq_length": 8, "text_config": {}}, 8),
        ({"max_position_embeddings": True}, None),
        ({"max_position_embeddings": -4}, None),
        ({"max_position_embeddings": 2**40, "max_seq_len": 3}, 3),
        ({}, None),
    ],
)
def test_context(config: dict[str, Any], tokens: int | None) -> None:
    assert parse_checkpoint_config(config).context_tokens == tokens


@pytest.mark.parametrize(
    ("declared", "shown"),
    [(2**40, "1.09951e+12"), (10**400, "over 1e308"), (-(10**400), "under -1e308")],
    ids=["a float", "above all", "below all"],
)
def test_a_context_that_is_impossible(declared: int, shown: str) -> None:
    found = parse_checkpoint_config({"max_position_embeddings": declared})
    assert (found.context_tokens, found.impossible_context) == (None, shown)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[]", "is no object"),
        ('"x"', "is no object"),
        ("null", "is no object"),
        ("{", "is not JSON"),
        ("[" * 100_000, "nested too deeply"),
        (" " * (16 * 1024**2 + 1), "more than 16777216 bytes"),
        ('{"hidden_size": -64}', "hidden_size is -64"),
        ('{"text_config": {"vocab_size": 1180591620717411303424}}', "vocab_size is beyond 64 bits"),
        ('{"model_type": "\\ud800"}', "model_type is no name"),
        ('{"model_type": ["llama"]}', "model_type is no name"),
        (None, "has no config.json"),
    ],
    ids=range(11),
)
def test_what_no_models_file_says_is_an_error(
    tmp_path: Path, content: str | None, words: str
) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(OperationError, match=words) as refused:
        read_checkpoint_config(tmp_path)
    assert refused.value.code is ErrorCode.MODEL_SOURCE_INVALID


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from([*TEXT, "text_config", "architectures"]), inner)
    ),
    max_leaves=10,
)


@settings(max_examples=examples(300))
@given(VALUES)
def test_nonsense_is_an_error_or_a_configuration(content: Any) -> None:
    try:
        found = parse_checkpoint_config(content)
    except ValueError:
        return
    numbers = (found.layers, found.hidden_size, found.attention_heads, found.vocabulary_tokens)
    assert all(0 <= number < 2**31 for number in numbers)
    assert 0 < (found.context_tokens or 1) < 2**31
    assert all(isinstance(name, str) for name in found.architectures)
