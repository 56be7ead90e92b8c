"""Which layers of a model see a window alone, by its config.json."""

from typing import Any

import pytest

from lmx.worker.mlx.memory.windows import window_layers, with_windows

WINDOW = {"sliding_window": 16, "max_position_embeddings": 512}
ORDER = ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({"model_type": "mixtral", **WINDOW}, "LLLL"),
        ({"model_type": "gemma2", **WINDOW}, "LGLG"),
        ({"model_type": "gemma2", **WINDOW, "layer_types": ORDER}, "LGGL"),
        ({"model_type": "qwen2", **WINDOW, "use_sliding_window": True, "max_window_layers": 3},
         "GGGL"),
        ({"model_type": "qwen2_moe", **WINDOW, "use_sliding_window": True, "max_window_layers": 2},
         "LGGG"),
        # None is on.
        ({"model_type": "qwen2", **WINDOW, "max_window_layers": 0}, ""),
        ({"model_type": "qwen2", **WINDOW, "use_sliding_window": True}, ""),
        ({"model_type": "mixtral", "sliding_window": None}, ""),
        ({"model_type": "mixtral", "sliding_window": 16, "max_position_embeddings": 16}, ""),
        # Not one of these types.
        ({"model_type": "llama", **WINDOW}, ""),
    ],
)  # fmt: skip
def test_the_layers_with_windows(section: dict[str, Any], expected: str) -> None:
    found = window_layers(section, 4)
    assert "".join("L" if one else "G" for one in found) == expected


@pytest.mark.parametrize(
    ("section", "context_tokens", "added"),
    [
        ({"model_type": "phi3", **WINDOW}, 16, {"sliding_window": None}),
        ({"model_type": "phi3", **WINDOW}, 17, {}),
        ({"model_type": "mistral", **WINDOW, "layer_types": ORDER}, 16,
         {"sliding_window": None, "layer_types": ["full_attention"] * 4}),
        ({"model_type": "llama", **WINDOW}, 16, {}),
        ({"model_type": "cohere2", "layer_types": ORDER[:2] * 2}, 16,
         {"sliding_window_pattern": 2}),
        ({"model_type": "exaone4", "layer_types": ORDER}, 16, {"sliding_window_pattern": "LGGL"}),
        ({"model_type": "exaone4", "layer_types": ORDER[1:3] * 2}, 16,
         {"sliding_window_pattern": None}),
        ({"model_type": "exaone4"}, 16, {"sliding_window_pattern": "LLLG"}),
        ({"model_type": "exaone4", "sliding_window_pattern": 2}, 16,
         {"sliding_window_pattern": "LG"}),
        ({"model_type": "exaone4", "sliding_window_pattern": "LLG"}, 16, {}),
        ({"model_type": "exaone4", "sliding_window_pattern": None}, 16, {}),
        ({"model_type": "exaone4", "sliding_window": None}, 16, {"sliding_window_pattern": None}),
    ],
)  # fmt: skip
def test_a_section_is_in_the_words_of_its_class(
    section: dict[str, Any], context_tokens: int, added: dict[str, Any]
) -> None:
    assert with_windows(section, context_tokens) == (section | added, "")


def test_an_order_that_a_class_cannot_have_is_named() -> None:
    _, problem = with_windows({"model_type": "cohere2", "layer_types": ORDER}, 16)
    assert problem == "has its layers with windows in an order that is no pattern"
    exaone4 = {"model_type": "exaone4", "sliding_window": 16}
    _, problem = with_windows(exaone4 | {"layer_types": ORDER[:1] * 4}, 16)
    assert problem == "lets all of its layers have windows"
    _, problem = with_windows(exaone4 | {"layer_types": ORDER[1:2] * 4}, 16)
    assert problem == "gives a window (sliding_window) to none of its layers"
