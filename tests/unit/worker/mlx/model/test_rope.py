"""Keys of rotary embeddings, as transformers 5 writes them and as the libraries read them."""

from typing import Any

import pytest

from lmx.worker.mlx.model.rope import factors_for, with_needed_scaling, with_rope

READS = frozenset({"rope_theta", "rope_scaling"})
FULL: dict[str, Any] = {"rope_theta": 1e6, "rope_type": "default"}
LOCAL: dict[str, Any] = {"rope_theta": 1e4, "rope_type": "default"}
YARN: dict[str, Any] = {"rope_theta": 1e6, "rope_type": "yarn", "factor": 4.0}


@pytest.mark.parametrize(
    ("section", "reads", "expected"),
    [
        ({"rope_parameters": FULL}, READS, {"rope_theta": 1e6}),
        (
            {"rope_parameters": YARN},
            READS,
            {"rope_theta": 1e6,
             "rope_scaling": {"factor": 4.0, "rope_type": "yarn", "type": "yarn"}},
        ),
        ({"rope_parameters": {**FULL, "partial_rotary_factor": 0.5}}, READS,
         {"rope_theta": 1e6, "partial_rotary_factor": 0.5}),
        # What the section says itself stays.
        ({"rope_parameters": FULL, "rope_theta": 5.0}, READS, {"rope_theta": 5.0}),
        ({"rope_scaling": None, "rope_parameters": FULL}, READS, {"rope_theta": 1e6}),
        # By type of layer.
        (
            {"rope_parameters": {"full_attention": FULL, "sliding_attention": LOCAL}},
            READS | {"rope_local_base_freq"},
            {"rope_theta": 1e6, "rope_local_base_freq": 1e4},
        ),
        ({"rope_parameters": {"full_attention": FULL, "sliding_attention": FULL}}, READS,
         {"rope_theta": 1e6}),
        # A class that reads the new form alone gets it as it is: it may refuse other keys.
        ({"rope_parameters": YARN}, {"rope_parameters"}, {}),
        ({"rope_parameters": {"full_attention": FULL, "other": LOCAL}}, {"rope_parameters"}, {}),
        ({"rope_parameters": {**FULL, "mrope_section": [1, 2]}}, READS,
         {"rope_theta": 1e6,
          "rope_scaling": {"mrope_section": [1, 2], "rope_type": "default", "type": "default"}}),
        # A class with a default of its own for layers with windows, and other classes' own ways.
        ({"rope_parameters": {"full_attention": FULL, "sliding_attention": FULL}},
         READS | {"rope_local_base_freq"}, {"rope_theta": 1e6, "rope_local_base_freq": 1e6}),
        ({"model_type": "olmo3", "rope_parameters": {"full_attention": YARN,
                                                     "sliding_attention": FULL}}, READS,
         {"rope_theta": 1e6,
          "rope_scaling": {"factor": 4.0, "rope_type": "yarn", "type": "yarn"}}),
        ({"rope_parameters": {**FULL, "partial_rotary_factor": 0.25}},
         {"rotary_emb_base", "rotary_pct"},
         {"rope_theta": 1e6, "rotary_emb_base": 1e6, "partial_rotary_factor": 0.25,
          "rotary_pct": 0.25}),
        ({"rope_parameters": {"full_attention": FULL, "sliding_attention": LOCAL}},
         READS | {"swa_rope_theta"}, {"rope_theta": 1e6, "swa_rope_theta": 1e4}),
        ({}, READS, {}),
        ({"rope_parameters": 5}, READS, {}),
    ],
)  # fmt: skip
def test_keys_are_those_that_the_class_reads(
    section: dict[str, Any], reads: frozenset[str], expected: dict[str, Any]
) -> None:
    made, ignored = with_rope(section, reads)
    assert ignored is None
    given = {"rope_parameters", "model_type"}
    added = {key: value for key, value in made.items() if key not in given}
    assert {key: value for key, value in added.items() if value is not None} == expected
    assert made.get("rope_parameters") == section.get("rope_parameters")


@pytest.mark.parametrize(
    ("section", "reads"),
    [
        ({"rope_parameters": {"full_attention": FULL, "sliding_attention": LOCAL}}, READS),
        ({"rope_parameters": {"full_attention": FULL, "chunked_attention": LOCAL}}, READS),
        ({"rope_parameters": {"full_attention": FULL, "sliding_attention": YARN}},
         READS | {"rope_local_base_freq"}),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, {"rope_theta"}),
        ({"rope_parameters": YARN}, {"rope_theta"}),
        # The class reads the key and does without it.
        ({"model_type": "qwen2_moe", "rope_parameters": YARN}, READS),
        ({"model_type": "deepseek_v2", "rope_scaling": {"type": "linear", "factor": 2.0}}, READS),
        ({"model_type": "glm", "partial_rotary_factor": 0.5}, {"rope_theta"}),
    ],
)  # fmt: skip
def test_what_the_class_has_no_keys_for_is_refused(
    section: dict[str, Any], reads: frozenset[str]
) -> None:
    assert with_rope(section, reads).ignored


LONGROPE: dict[str, Any] = {
    "rope_type": "longrope", "short_factor": [1.0], "long_factor": [4.0], "short_mscale": 1.1,
    "long_mscale": 1.2,
}  # fmt: skip
SHORT = {**LONGROPE, "long_factor": [1.0], "long_mscale": 1.1}


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_the_factors_are_those_of_the_longest_text(key: str) -> None:
    sections: tuple[dict[str, Any], ...] = (
        {key: LONGROPE, "original_max_position_embeddings": 32},
        {key: {**LONGROPE, "original_max_position_embeddings": 32}},
    )
    for section in sections:
        assert factors_for(section, 33) == (section, 32)
        made, differing = factors_for(section, 32)
        assert ({**made[key]}, differing) == ({**section[key], **SHORT}, 0)
    for same in ({key: SHORT, "original_max_position_embeddings": 32}, {key: YARN}, {}):
        assert factors_for(same, 33) == (same, 0)


def test_a_class_that_needs_a_scaling_gets_one_that_changes_nothing() -> None:
    sizes = {"max_position_embeddings": 512, "qk_rope_head_dim": 4}
    original = {"original_max_position_embeddings": 512}
    for kind, expected in (
        ("deepseek_v2", {"type": "yarn", "factor": 1.0}),
        ("minicpm3", {"type": "longrope", "short_factor": [1.0] * 2, "long_factor": [1.0] * 2}),
    ):
        made = with_needed_scaling({"model_type": kind, **sizes, "rope_scaling": None})
        assert made["rope_scaling"] == expected | original
    for kept in ({"model_type": "deepseek_v2", "rope_scaling": YARN}, {"model_type": "llama"}):
        assert with_needed_scaling(kept) == kept
