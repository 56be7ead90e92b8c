"""Keys of config.json that a class does not read, in configurations as transformers writes them."""

import json
from typing import Any

import pytest
from transformers import CONFIG_MAPPING

from lmx.worker.mlx.model.rope import with_rope
from lmx.worker.mlx.model.unread import unread_remarks

ROPE = ("rope_theta", "rope_scaling", "rope_local_base_freq")
LLAMA = "mlx_lm.models.llama"


def keys(config: dict[str, Any], module: str = LLAMA) -> list[str]:
    return [remark.split()[2] for remark in unread_remarks(config, module)]


@pytest.mark.parametrize(
    "module",
    [
        *("mlx_lm.models.cohere2", "mlx_lm.models.deepseek_v3", "mlx_lm.models.falcon_h1"),
        *("mlx_lm.models.gemma3_text", "mlx_lm.models.gemma4_text", "mlx_lm.models.glm4_moe"),
        *("mlx_lm.models.gpt2", "mlx_lm.models.gpt_oss", "mlx_lm.models.granite"),
        *("mlx_lm.models.lfm2", LLAMA, "mlx_lm.models.mixtral", "mlx_lm.models.olmo2"),
        *("mlx_lm.models.phi3", "mlx_lm.models.qwen2", "mlx_lm.models.qwen3"),
        *("mlx_lm.models.qwen3_moe", "mlx_lm.models.qwen3_next", "mlx_lm.models.seed_oss"),
        *("mlx_lm.models.smollm3", "mlx_lm.models.starcoder2", "mlx_vlm.models.gemma3"),
        *("mlx_vlm.models.mistral3", "mlx_vlm.models.qwen2_5_vl", "mlx_vlm.models.qwen3_5"),
        *("mlx_vlm.models.qwen3_5_moe", "mlx_vlm.models.qwen3_vl"),
    ],
)
def test_what_transformers_writes_of_a_common_model_has_no_remark(module: str) -> None:
    made = CONFIG_MAPPING[module.rpartition(".")[2]]().to_diff_dict()
    section, _ = with_rope(json.loads(json.dumps(made, default=str)), ROPE)
    assert keys(section, module) == []


@pytest.mark.parametrize(
    ("module", "config", "found"),
    [
        (LLAMA, {"attention_multiplier": 2.0, "logits_scaling": 8.0}, 2),
        (LLAMA, {"attention_multiplier": 1.0, "use_mup": False, "logit_cap": None, "x": []}, 0),
        (LLAMA, {"use_mup": True}, 1),
        (LLAMA, {"text_config": {"embedding_scale": 3.0}}, 1),
        (LLAMA, {"hidden_act": "silu", "torch_dtype": "bfloat16", "my_dropout": 0.5}, 0),
        (LLAMA, {"hidden_act": "relu2"}, 1),
        ("mlx_lm.models.glm", {"partial_rotary_factor": 0.5}, 1),
        ("mlx_lm.models.gemma2", {"sliding_window": 4096, "max_position_embeddings": 8192}, 1),
        ("mlx_lm.models.gemma2", {"sliding_window": 4096, "max_position_embeddings": 4096}, 0),
        ("mlx_lm.models.qwen2", {"sliding_window": 4096, "use_sliding_window": False}, 0),
        ("mlx_lm.models.gpt_oss", {"swiglu_limit": 7.0, "swiglu_alpha": 1.702}, 0),
        ("mlx_lm.models.gpt_oss", {"swiglu_alpha": 1.5}, 1),
        ("mlx_lm.models.olmo", {"layer_types": 5, "no_rope_layers": 7, "sliding_window": "x y"}, 3),
        ("mlx_lm.models.llama4", {"no_rope_layers": [1, 1, 1, 0]}, 0),
        ("mlx_lm.models.llama4", {"no_rope_layers": [1, 0, 1, 0]}, 1),
        ("mlx_lm.models.minimax",
         {"attn_type_list": [1, 1], "use_mtp": True, "num_mtp_modules": 3, "qk_norm_type": "x",
          "layernorm_mlp_beta": 1.0}, 0),
        ("mlx_lm.models.nemotron_h",
         {"attention_head_dim": 128, "norm_eps": 1e-5, "layer_norm_epsilon": 1e-5,
          "mlp_hidden_act": "relu2", "mamba_hidden_act": "silu", "time_step_rank": 256}, 0),
        ("mlx_lm.models.qwen3_moe", {"num_experts_per_tok": 4, "active_experts": 4}, 0),
        ("mlx_lm.models.qwen3_moe", {"num_experts_per_tok": 4, "active_experts": 8}, 1),
        ("no.such.class", {"attention_multiplier": 2.0}, 0),
        (LLAMA, {f"new_{number}": 2 for number in range(9)}, 5),
    ],
)  # fmt: skip
def test_a_key_that_may_change_the_answers_is_remarked(
    module: str, config: dict[str, Any], found: int
) -> None:
    assert len(keys(config, module)) == found
