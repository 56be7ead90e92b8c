"""Which models can be divided among ranks, and what is said of the others."""

from typing import Any

import pytest

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.models.checkpoint import parse_checkpoint_config
from lmx.protocol.models.ranks import DIVISIBLE, Parallel, parallel_of
from lmx.protocol.states import ModelKind

QWEN2 = {
    "model_type": "qwen2", "hidden_size": 896, "num_attention_heads": 14,
    "num_key_value_heads": 2, "intermediate_size": 4864, "num_hidden_layers": 24,
}  # fmt: skip
AUTO, TENSOR, PIPELINE = Parallel.AUTO, Parallel.TENSOR, Parallel.PIPELINE


@pytest.mark.parametrize(
    ("change", "ranks", "wanted", "expected"),
    [
        ({}, 2, AUTO, TENSOR),
        ({}, 2, PIPELINE, PIPELINE),
        # Its heads don't divide, and its layers do.
        ({}, 3, AUTO, PIPELINE),
        ({}, 3, TENSOR, "its 14 attention heads don't divide by 3"),
        ({"num_attention_heads": 16}, 4, TENSOR, "its 2 key-value heads don't divide by 4"),
        ({"num_hidden_layers": 25}, 2, PIPELINE, "its 25 layers don't divide by 2"),
        ({"intermediate_size": 4863}, 2, TENSOR, "intermediate_size of 4863 doesn't divide by 2"),
        ({"quantization": {"group_size": 64, "bits": 4}}, 2, TENSOR, TENSOR),
        (
            {"quantization": {"group_size": 64, "bits": 4}, "intermediate_size": 4800},
            2,
            TENSOR,
            "its intermediate_size of 4800 doesn't divide by 2 into groups of 64",
        ),
        (
            {"quantization": {"group_size": 128, "bits": 4}},
            2,
            TENSOR,
            "its attention of 896 doesn't divide by 2 into groups of 128",
        ),
        ({"num_hidden_layers": 25, "num_attention_heads": 15}, 2, AUTO, "parallel: pipeline, its"),
        ({"model_type": "qwen3"}, 2, PIPELINE, "set `parallel` to tensor"),
        ({"model_type": "mamba2"}, 2, AUTO, "a model of the type 'mamba2' among 2 ranks"),
    ],
)
def test_what_divides(
    change: dict[str, Any], ranks: int, wanted: Parallel, expected: Parallel | str
) -> None:
    config = parse_checkpoint_config(QWEN2 | change)
    if isinstance(expected, Parallel):
        assert parallel_of(config, ModelKind.CHAT, ranks, wanted) is expected
        return
    with pytest.raises(OperationError) as refused:
        parallel_of(config, ModelKind.CHAT, ranks, wanted)
    assert refused.value.code is ErrorCode.CONFIG_INVALID
    assert expected in refused.value.message


def test_only_a_model_that_writes_divides() -> None:
    with pytest.raises(OperationError, match="for models that write"):
        parallel_of(parse_checkpoint_config(QWEN2), ModelKind.EMBEDDING, 2)


def test_the_table_has_no_way_called_auto() -> None:
    assert all(ways and AUTO not in ways for ways in DIVISIBLE.values())
