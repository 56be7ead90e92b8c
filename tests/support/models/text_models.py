"""Tiny random models of every type that mlx-lm has, in folders as ``mlx_lm.convert`` saves them."""

import dataclasses
import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import MODEL_REMAPPING, quantize_model

from tests.support.models.tiny_models import make_tokenizer

VOCABULARY = 288

# fmt: off
_SHARED: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-5,
    "layer_norm_eps": 1e-5, "layer_norm_epsilon": 1e-5, "layernorm_epsilon": 1e-5, "norm_eps": 1e-5,
    "rope_theta": 10_000.0, "max_position_embeddings": 512, "attention_bias": False,
    "mlp_bias": False, "use_bias": False, "tie_word_embeddings": False, "sliding_window": 16,
    "partial_rotary_factor": 0.5, "use_qk_norm": True}
"""What most types ask for, by the names that most of them have. A type takes what it knows."""

_EXPERTS: dict[str, Any] = {
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "moe_num_experts": 4,
    "num_experts_per_tok": 2, "moe_topk": 2, "moe_k": 2, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32, "num_shared_experts": 1, "num_shared_expert": 1,
    "n_shared_experts": 1, "moe_layer_freq": 1, "norm_topk_prob": True,
    "routed_scaling_factor": 1.5, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1,
    "topk_method": "noaux_tc", "scoring_func": "sigmoid", "score_function": "sigmoid",
    "decoder_sparse_step": 1, "mlp_only_layers": []}
_LATENT: dict[str, Any] = {
    "num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16, "v_head_dim": 16}
_GPT: dict[str, Any] = {
    "n_ctx": 512, "n_positions": 512, "n_embd": 64, "n_head": 4, "n_layer": 3, "n_inner": 128,
    "num_key_value_heads": 4, "rotary_dim": 16}
_LINEAR: dict[str, Any] = {
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 16,
    "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4, "full_attention_interval": 2}
_MAMBA: dict[str, Any] = {
    "num_heads": 8, "state_size": 16, "conv_kernel": 4, "n_groups": 1, "use_conv_bias": True,
    "time_step_rank": 4, "time_step_limit": [0.01, 10.0], "residual_in_fp32": False}
_WINDOWS = ["sliding_attention"] * 3 + ["full_attention"]
_SLIDING = {"layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2}
_GEMMA3 = {
    "model_type": "gemma3_text", "sliding_window_pattern": 3, "query_pre_attn_scalar": 16,
    "rope_local_base_freq": 10_000.0, "rope_theta": 1e6, "tie_word_embeddings": True}
_GEMMA3N: dict[str, Any] = {
    "model_type": "gemma3n_text", "num_hidden_layers": 6, "intermediate_size": [128] * 6,
    "vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 16,
    "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    "activation_sparsity_pattern": [0.95, 0.0, 0.0, 0.0, 0.0, 0.0], "altup_num_inputs": 4,
    "altup_active_idx": 0, "altup_correct_scale": True, "altup_coef_clip": 120.0,
    "altup_lr_multiplier": 1.0, "laurel_rank": 8, "rope_local_base_freq": 10_000.0,
    "final_logit_softcapping": 30.0}
_ROPE = {"rope_theta": 10_000.0, "rope_type": "default"}
YARN = {
    "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 128, "type": "yarn"}
KIMI_K3: dict[str, Any] = {
    "model_type": "kimi_linear", "activation_situ_beta": 4.0, "activation_situ_linear_beta": 25.0,
    "attn_res_block_size": 2, "mla_use_output_gate": True, "num_shared_experts": 1,
    "routed_expert_hidden_size": 32, "latent_moe_use_norm": True, "num_expert_group": 1,
    "topk_group": 1, "num_experts_per_token": 2,
    "linear_attn_config": {
        "full_attn_layers": [2, 4], "kda_layers": [1, 3], "num_heads": 4, "head_dim": 16,
        "short_conv_kernel_size": 4, "gate_lower_bound": -5.0}}
MINIMAX_M3: dict[str, Any] = {
    "intermediate_size": 32, "dense_intermediate_size": 128, "shared_intermediate_size": 32,
    "num_local_experts": 4, "num_experts_per_tok": 2, "rotary_dim": 8,
    "moe_layer_freq": [0, 1, 1, 1],
    "sparse_attention_config": {
        "use_sparse_attention": True, "sparse_num_index_heads": 2, "sparse_index_dim": 16,
        "sparse_block_size": 4, "sparse_topk_blocks": 3, "sparse_local_block": 1,
        "sparse_attention_freq": [0, 1, 1, 1]}}
_QWEN3_5 = (
    _SHARED
    | _LINEAR
    | {
        "model_type": "qwen3_5_text",
        "rope_parameters": {
            "rope_theta": 1e6, "partial_rotary_factor": 0.5, "rope_type": "default",
            "type": "default", "mrope_section": [1, 1, 2], "mrope_interleaved": True}}
)
_LLAMA4 = (
    _SHARED
    | _EXPERTS
    | {
        "model_type": "llama4_text", "attention_chunk_size": 16, "interleave_moe_layer_step": 1,
        "intermediate_size_mlp": 128, "no_rope_layers": [1, 1, 1, 0], "rope_scaling": None,
        "num_experts_per_tok": 1}
)
# fmt: on

CONFIGS: dict[str, dict[str, Any]] = {
    "Klear": _EXPERTS,
    "afm7": {"hidden_dim": 64, "num_layers": 4, "num_kv_reuse_layers": 2, "num_heads": 4,
             "num_kv_heads": 2, "hidden_dim_scale_factor": 2.0},
    "afmoe": _EXPERTS | {"layer_types": ["sliding_attention", "full_attention"] * 2},
    "apertus": {"post_norm": False, "qk_norm": True},
    "baichuan_m1": {"sliding_window_layers": [1], "conv_window": 2},
    "bailing_hybrid": _EXPERTS | _LATENT | {"layer_group_size": 2, "group_norm_size": 1},
    "bailing_moe": _EXPERTS,
    "bailing_moe_linear": _EXPERTS | {"layer_group_size": 2, "group_norm_size": 1},
    "bailing_moe_v3": _EXPERTS | _LATENT | {"layer_group_size": 2, "group_norm_size": 1},
    "cohere": {"logit_scale": 0.0625, "use_qk_norm": False},
    "cohere2": {"logit_scale": 0.0625, "sliding_window_pattern": 2},
    "dbrx": {"d_model": 64, "n_layers": 3, "n_heads": 4,
             "ffn_config": {"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2},
             "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 1e4}},
    "deepseek": _EXPERTS,
    "deepseek_v2": _EXPERTS | _LATENT | {"topk_method": "greedy", "rope_scaling": YARN},
    "deepseek_v3": _EXPERTS | _LATENT | {"rope_scaling": YARN},
    "deepseek_v32": _EXPERTS | _LATENT | {"rope_scaling": YARN, "index_head_dim": 16,
                                          "index_n_heads": 2, "index_topk": 8},
    "dots1": _EXPERTS,
    "ernie4_5": {},
    "ernie4_5_moe": _EXPERTS | {"moe_layer_start_index": 0},
    "exaone": {"num_layers": 3},
    "exaone4": {"sliding_window_pattern": "LLLG", "rope_scaling": None, "layer_types": _WINDOWS},
    "exaone_moe": _EXPERTS | {"is_moe_layer": [False, True, True, True], "layer_types": _WINDOWS},
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16,
                  "mamba_n_groups": 1, "mamba_d_conv": 4, "mamba_expand": 1},
    "gear": _EXPERTS | _LINEAR | {"layer_types": ["sliding_attention", "full_attention"] * 2},
    "gemma": {"tie_word_embeddings": True},
    "gemma2": {"query_pre_attn_scalar": 16},
    "gemma3": {"text_config": _SHARED | _GEMMA3},
    "gemma3_text": _GEMMA3,
    "gemma3n": {"text_config": _SHARED | _GEMMA3N},
    "gemma4": {"text_config": _SHARED | _SLIDING | {
        "model_type": "gemma4_text", "num_hidden_layers": 6, "hidden_size_per_layer_input": 16,
        "vocab_size_per_layer_input": VOCABULARY, "global_head_dim": 16,
        "num_kv_shared_layers": 0, "tie_word_embeddings": True}},
    "gemma4_text": _SLIDING | {
        "num_hidden_layers": 6, "hidden_size_per_layer_input": 16,
        "vocab_size_per_layer_input": VOCABULARY, "global_head_dim": 16,
        "num_kv_shared_layers": 0, "tie_word_embeddings": True},
    "glm": {},
    "glm4": {},
    "glm4_moe": _EXPERTS | {"rope_scaling": None},
    "glm4_moe_lite": _EXPERTS | _LATENT,
    "glm_moe_dsa": _EXPERTS | _LATENT | {
        "rope_parameters": {"rope_theta": 1e4, "rope_type": "default"},
        "index_head_dim": 16, "index_n_heads": 2, "index_topk": 8},
    "gpt2": _GPT,
    "gpt_bigcode": _GPT,
    "gpt_neox": {"rotary_emb_base": 10_000, "rotary_pct": 0.25, "num_key_value_heads": 4},
    "gpt_oss": _EXPERTS | {"layer_types": ["sliding_attention", "full_attention"] * 2},
    "gptj": _GPT,
    "granite": {"logits_scaling": 6.0, "attention_multiplier": 0.0625,
                "embedding_multiplier": 12.0, "residual_multiplier": 0.22},
    "granitemoe": _EXPERTS | {
        "logits_scaling": 6.0, "attention_multiplier": 0.0625,
        "embedding_multiplier": 12.0, "residual_multiplier": 0.22},
    "granitemoehybrid": _EXPERTS | {
        "logits_scaling": 6.0, "attention_multiplier": 0.0625, "embedding_multiplier": 12.0,
        "residual_multiplier": 0.22, "shared_intermediate_size": 64, "mamba_n_heads": 8,
        "mamba_d_head": 16, "mamba_proj_bias": False, "mamba_d_state": 16, "mamba_d_conv": 4,
        "mamba_n_groups": 1, "mamba_conv_bias": True, "mamba_expand": 2,
        "position_embedding_type": "nope", "layer_types": ["mamba", "attention", "mamba", "mamba"]},
    "helium": {},
    "hunyuan": _EXPERTS | {
        "num_experts": 2, "use_mixed_mlp_moe": True, "use_cla": True, "cla_share_factor": 2,
        "rope_scaling": {"alpha": 1000.0, "factor": 1.0, "type": "dynamic"}},
    "hunyuan_v1_dense": {
        "rope_scaling": {"alpha": 1000.0, "factor": 1.0, "type": "dynamic", "beta_fast": 32,
                         "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 0.0}},
    "internlm2": {"bias": False},
    "internlm3": {"bias": False, "qkv_bias": False,
                  "rope_scaling": {"factor": 6.0, "rope_type": "dynamic"}},
    "iquestloopcoder": {"loop_num": 2, "loop_window_size": 16},
    "jamba": _EXPERTS | {
        "attn_layer_offset": 1, "attn_layer_period": 2, "expert_layer_offset": 1,
        "expert_layer_period": 2, "mamba_d_conv": 4, "mamba_d_state": 16, "mamba_expand": 2},
    "kimi_k25": {"text_config": _SHARED | _EXPERTS | _LATENT | {
        "model_type": "deepseek_v3", "rope_scaling": YARN}},
    "kimi_k3": {"text_config": _SHARED | _EXPERTS | _LATENT | KIMI_K3},
    "kimi_linear": _EXPERTS | _LATENT | {
        "moe_router_activation_func": "sigmoid", "moe_renormalize": True,
        "num_expert_group": 1, "topk_group": 1, "num_experts_per_token": 2, "q_lora_rank": None,
        "linear_attn_config": {"full_attn_layers": [2, 4], "kda_layers": [1, 3], "num_heads": 4,
                               "head_dim": 16, "short_conv_kernel_size": 4},
        "model_max_length": 512},
    "kimi_vl": {"text_config": _SHARED | _EXPERTS | _LATENT | {
        "model_type": "deepseek_v3", "n_group": 1, "q_lora_rank": None}},
    "laguna": _EXPERTS | {"layer_types": ["sliding_attention", "full_attention"] * 2,
                          "num_attention_heads_per_layer": [4, 4, 4, 4]},
    "lfm2": {"conv_bias": False, "conv_L_cache": 3, "block_dim": 64, "block_ff_dim": 128,
             "block_multiple_of": 32, "block_ffn_dim_multiplier": 1.0,
             "block_auto_adjust_ff_dim": False, "full_attn_idxs": [1, 3],
             "tie_embedding": True, "tie_word_embeddings": True},
    "lfm2-vl": {"text_config": _SHARED | {
        "model_type": "lfm2", "conv_bias": False, "conv_L_cache": 3, "block_dim": 64,
        "block_ff_dim": 128, "block_multiple_of": 32, "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False, "full_attn_idxs": [1, 3], "tie_embedding": True,
        "tie_word_embeddings": True}},
    "lfm2_moe": _EXPERTS | {
        "conv_bias": False, "conv_L_cache": 3, "full_attn_idxs": [1, 3], "num_dense_layers": 1,
        "use_expert_bias": True, "tie_word_embeddings": True,
        "layer_types": ["conv", "full_attention", "conv", "full_attention"]},
    "lille-130m": {"block_size": 512, "n_head": 4, "n_kv_heads": 2, "n_layer": 3, "n_embd": 64},
    "llama": {},
    "llama4": {"text_config": _LLAMA4},
    "llama4_text": _LLAMA4 | {"tie_word_embeddings": False},
    "longcat_flash": _EXPERTS | _LATENT | {
        "attention_method": "MLA", "zero_expert_type": "identity", "zero_expert_num": 2,
        "num_layers": 2, "ffn_hidden_size": 128, "expert_ffn_hidden_size": 32,
        "mla_scale_q_lora": True, "mla_scale_kv_lora": True},
    "longcat_flash_ngram": _EXPERTS | _LATENT | {
        "attention_method": "MLA", "zero_expert_type": "identity", "zero_expert_num": 2,
        "num_layers": 2, "ffn_hidden_size": 128, "expert_ffn_hidden_size": 32,
        "mla_scale_q_lora": True, "mla_scale_kv_lora": True, "ngram_vocab_size_ratio": 2,
        "emb_neighbor_num": 2, "emb_split_num": 2},
    "mamba": _MAMBA | {"use_bcdt_rms": False, "intermediate_size": 128},
    "mamba2": _MAMBA | {"head_dim": 16, "expand": 2, "time_step_rank": "auto"},
    "mellum": _EXPERTS | {
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "rope_parameters": {"sliding_attention": _ROPE, "full_attention": _ROPE}},
    "mimo": {},
    "mimo_v2_flash": _EXPERTS | {
        "hybrid_layer_pattern": [1, 0, 1, 0], "sliding_window_size": 16,
        "add_swa_attention_sink_bias": True, "add_full_attention_sink_bias": False,
        "swa_rope_theta": 1e4, "swa_num_attention_heads": 4, "swa_num_key_value_heads": 2,
        "swa_head_dim": 16, "swa_v_head_dim": 16, "v_head_dim": 16, "moe_layer_freq": [0, 1, 1, 1]},
    "minicpm": {"dim_model_base": 32, "scale_depth": 1.4, "scale_emb": 12},
    "minicpm3": _LATENT | {
        "dim_model_base": 32, "scale_depth": 1.4, "scale_emb": 12, "v_head_dim": None,
        "rope_scaling": {"short_factor": [1.0] * 4, "long_factor": [1.0] * 4,
                         "original_max_position_embeddings": 512, "type": "longrope"}},
    "minimax": _EXPERTS | {"shared_intermediate_size": 32, "rotary_dim": 8},
    "minimax_m2": _EXPERTS | {"shared_intermediate_size": 32, "rotary_dim": 8},
    "minimax_m3_vl": {"text_config": _SHARED | MINIMAX_M3},
    "ministral3": {"layer_types": ["sliding_attention", "full_attention"] * 2,
                   "rope_parameters": {"rope_theta": 1e6, "rope_type": "yarn", "type": "yarn",
                                       "factor": 16.0, "original_max_position_embeddings": 128,
                                       "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0,
                                       "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}},
    "mistral": {"sliding_window": None},
    "mistral3": {"text_config": _SHARED | {"model_type": "mistral", "sliding_window": None}},
    "mistral4": _EXPERTS | _LATENT | {
        "n_group": 1, "head_dim": None, "rope_parameters": YARN | {
            "rope_theta": 1e6, "rope_type": "yarn", "factor": 16.0,
            "llama_4_scaling_beta": 0.1}},
    "mixtral": _EXPERTS,
    "muse_glimmer": {"final_logit_softcapping": 20.0, "output_multiplier": 1.0,
                     "layer_types": _WINDOWS},
    "nanbeige": {},
    "nanochat": {},
    "nemotron": {"hidden_act": "relu2"},
    "nemotron-nas": {"block_configs": [
        {"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 2.0}},
        {"attention": {"no_op": True}, "ffn": {"ffn_mult": 2.0}},
        {"attention": {"n_heads_in_group": 2}, "ffn": {"no_op": True}},
        {"attention": {"n_heads_in_group": 1}, "ffn": {"ffn_mult": 2.0}}]},
    "nemotron_h": _MAMBA | _EXPERTS | {
        "hybrid_override_pattern": ["M", "*", "M", "-"], "mamba_num_heads": 8,
        "mamba_head_dim": 16, "mamba_proj_bias": False, "ssm_state_size": 16},
    "olmo2": {},
    "olmo3": {"layer_types": _WINDOWS},
    "olmo_hybrid": _LINEAR | {
        "linear_num_key_heads": 4, "linear_allow_neg_eigval": True,
        "layer_types": ["linear_attention"] * 3 + ["full_attention"]},
    "olmoe": _EXPERTS,
    "openelm": {"num_transformer_layers": 3, "model_dim": 64, "ffn_dim_divisor": 16,
                "num_query_heads": [4, 4, 4], "num_kv_heads": [2, 2, 2],
                "ffn_multipliers": [1.0, 2.0, 3.0], "normalize_qk_projections": True},
    "phi": {},
    "phi3": {},
    "phi3small": {
        # Its class forbids tokens by their numbers.
        "vocab_size": 100_352, "num_hidden_layers": 2, "dense_attention_every_n_layers": 2,
        "ff_intermediate_size": 128, "gegelu_limit": 20.0, "blocksparse_block_size": 32,
        "blocksparse_num_local_blocks": 1, "blocksparse_vert_stride": 2},
    "phimoe": _EXPERTS | {
        "rope_scaling": {"long_factor": [1.0] * 8, "long_mscale": 1.2, "short_mscale": 1.2,
                         "original_max_position_embeddings": 128, "short_factor": [1.0] * 8,
                         "type": "longrope"}},
    "phixtral": {"num_vocab": VOCABULARY, "model_dim": 64, "num_heads": 4, "num_layers": 3,
                 "rotary_dim": 16, "num_local_experts": 4},
    "pixtral": {"text_config": _SHARED | {"model_type": "mistral", "sliding_window": None}},
    "plamo": {"n_shared_head": 2},
    "plamo2": {"mamba_d_state": 16, "mamba_d_conv": 4, "mamba_num_heads": 4, "mamba_step": 2,
               "hidden_size_per_head": 16, "time_step_rank": 4, "attention_window_size": 16},
    "plamo3": {"window_size": 16, "sliding_window_pattern": 2},
    "qwen": {"num_attention_heads": 4, "kv_channels": 16},
    "qwen2": {},
    "qwen2_moe": _EXPERTS,
    "qwen2_vl": {"text_config": _SHARED | {"model_type": "qwen2_vl_text",
                 "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}},
    "qwen3": {},
    "qwen3_moe": _EXPERTS,
    "qwen3_next": _EXPERTS | _LINEAR,
    "qwen3_vl": {"text_config": _SHARED | {"model_type": "qwen3_vl_text",
                 "rope_scaling": {"mrope_section": [2, 3, 3], "rope_type": "default"}}},
    "qwen3_vl_moe": {"text_config": _SHARED | _EXPERTS | {"model_type": "qwen3_vl_moe_text",
                     "rope_scaling": {"mrope_section": [2, 3, 3], "rope_type": "default"}}},
    "qwen3_5": {"text_config": _QWEN3_5},
    "qwen3_5_moe": {"text_config": _QWEN3_5 | _EXPERTS | {"model_type": "qwen3_5_moe_text"}},
    "recurrent_gemma": {"conv1d_width": 3, "logits_soft_cap": 30.0, "attention_window_size": 16,
                        "num_key_value_heads": 1,
                        "block_types": ["recurrent", "recurrent", "attention"]},
    "rwkv7": {"norm_eps": 1e-5, "a_low_rank_dim": 8, "v_low_rank_dim": 8,
              "gate_low_rank_dim": 8, "decay_low_rank_dim": 8},
    "seed_oss": {},
    "smollm3": {},
    "solar_open": _EXPERTS,
    "spark2_5": _EXPERTS | {
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "rope_parameters": {"sliding_attention": _ROPE, "full_attention": _ROPE}},
    "stablelm": {"use_qkv_bias": True},
    "starcoder2": {"norm_epsilon": 1e-5},
    "step3p5": _EXPERTS | {
        "num_attention_groups": 2, "moe_num_experts": 4, "moe_top_k": 2, "share_expert_dim": 32,
        "layer_types": ["sliding_attention", "full_attention"] * 2},
    "talkie": {},
    "telechat3": {},
    "youtu_llm": _LATENT,
}  # fmt: skip
"""By model_type, what is not as in most; fields of no such type are left out of the file."""


def text_sizes(model_type: str) -> dict[str, Any]:
    """Return the ``text_config`` of a model of several parts."""
    found: dict[str, Any] = CONFIGS[model_type]["text_config"]
    return found


# fmt: off
_FEWER: frozenset[str] = frozenset(
    {
        *("kv_n_heads", "n_head", "n_heads", "n_kv_heads", "num_attention_groups"),
        *("num_attention_heads", "num_attention_heads_per_layer", "num_key_value_heads"),
        *("num_kv_heads", "swa_num_attention_heads", "swa_num_key_value_heads")})
_WIDER: frozenset[str] = frozenset(
    {
        *("global_head_dim", "head_dim", "index_head_dim", "kv_channels", "kv_lora_rank"),
        *("mrope_section", "qk_nope_head_dim", "qk_rope_head_dim", "rotary_dim", "swa_head_dim"),
        *("swa_v_head_dim", "v_head_dim", "xdrope_section")})
# fmt: on


def widened(config: dict[str, Any]) -> dict[str, Any]:
    """Return the config.json of a text with half as many heads that are twice as wide, so that
    their keys and values can be quantized. It has as many weights."""
    return {name: _widened(name, value) for name, value in config.items()}


def _widened(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        return widened(value)
    if name in _FEWER | _WIDER and isinstance(value, list):
        return [_widened(name, each) for each in value]
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    if name in _FEWER:
        return max(1, value // 2)
    # Those that are turned in latent attention are 8.
    return value * (4 if name == "qk_rope_head_dim" else 2) if name in _WIDER else value


_GROUP = 32
"""Numbers that are quantized together."""

_LATENT_WIDTHS = frozenset(
    {
        *("hidden_size_per_layer_input", "kv_lora_rank", "q_lora_rank", "qk_nope_head_dim"),
        "v_head_dim"})  # fmt: skip


def _grouped(config: dict[str, Any]) -> dict[str, Any]:
    """Return the config.json with latent widths of which whole groups can be quantized."""
    return {
        name: _grouped(value)
        if isinstance(value, dict)
        else max(value, _GROUP)
        if name in _LATENT_WIDTHS and isinstance(value, int)
        else value
        for name, value in config.items()
    }


def make_text_model(
    folder: Path,
    model_type: str,
    *,
    bits: int | None = None,
    tied: bool = False,
    wide: bool = False,
) -> Path:
    """Write a model into ``folder``, and return that. ``bits``: quantized as ``mlx_lm.convert``
    does it, in groups of 32, with latent widths that allow it. ``tied``: its head is its
    embeddings. ``wide``: see :func:`widened`."""
    config, model = _build(model_type, wide=wide, grouped=bits is not None, tied=tied)
    if tied:
        for part in (model, getattr(model, "language_model", None)):
            if part is not None and "lm_head" in part:
                part.pop("lm_head")
    mx.random.seed(0)
    model.update(tree_unflatten([(name, random_weight(name, v)) for name, v in _parameters(model)]))
    if bits is not None:
        model, config = quantize_model(model, config, _GROUP, bits)
    folder.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(
        str(folder / "model.safetensors"), dict(_parameters(model)), {"format": "mlx"}
    )
    (folder / "config.json").write_text(json.dumps(config))
    make_tokenizer().save_pretrained(folder)
    return folder


def save_with_8_bit_floats(file: Path, weights: dict[str, mx.array]) -> None:
    """Save weights of which those in bytes are the codes of 8-bit floats."""
    mx.save_safetensors(str(file), weights, {"format": "pt"})
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + length].replace(b'"U8"', b'"F8_E4M3"')
    file.write_bytes(len(header).to_bytes(8, "little") + header + content[8 + length :])


RIGHT_ONE_BY_ONE = frozenset({"phi3small"})
RIGHT_AT_ONCE = frozenset({"plamo3"})
"""Types whose class in mlx-lm is wrong of a chunk, or of tokens that come after one."""


def reference_logits(folder: Path, prompt: Sequence[int], following: Sequence[int]) -> Any:
    """Return mlx-lm's logits after a whole prompt, and after each of the tokens that follow."""
    from mlx_lm.utils import load_model

    model, _ = load_model(folder)
    if model.model_type in RIGHT_AT_ONCE:
        whole = model(mx.array([[*prompt, *following]]))[0, len(prompt) - 1 :]
        return np.array(whole.astype(mx.float32))
    cache = make_prompt_cache(model)
    if model.model_type in RIGHT_ONE_BY_ONE:
        for token in prompt[:-1]:
            mx.eval(model(mx.array([[token]]), cache=cache))
        prompt = prompt[-1:]
    logits = [model(mx.array([prompt]), cache=cache)[0, -1]]
    logits += [model(mx.array([[token]]), cache=cache)[0, -1] for token in following]
    return np.array(mx.stack(logits).astype(mx.float32))


def _build(model_type: str, *, wide: bool, grouped: bool, tied: bool) -> tuple[dict[str, Any], Any]:
    module = importlib.import_module(f"mlx_lm.models.{MODEL_REMAPPING.get(model_type, model_type)}")
    known = {field.name for field in dataclasses.fields(module.ModelArgs)}
    own = CONFIGS[model_type]
    config = {name: value for name, value in _SHARED.items() if name in known} | own
    config |= {"model_type": model_type, "eos_token_id": 256}
    config.setdefault("max_position_embeddings", 512)
    config.setdefault("vocab_size", VOCABULARY)
    if wide:
        config = widened(config)
    if grouped:
        config = _grouped(config)
    if tied and "tie_word_embeddings" in known:
        config["tie_word_embeddings"] = True
    model = module.Model(module.ModelArgs.from_dict(json.loads(json.dumps(config))))
    model.eval()
    return config, model


def _parameters(model: Any) -> list[tuple[str, mx.array]]:
    found: list[tuple[str, mx.array]] = tree_flatten(model.parameters())
    return found


def random_weight(name: str, array: mx.array) -> mx.array:
    """Weights whose logits are uneven enough that a fault shows, and finite."""
    if not mx.issubdtype(array.dtype, mx.floating):
        return array
    if array.ndim < 2:
        return (array + 0.02 * mx.random.normal(array.shape)).astype(mx.float32)
    scale = 0.05 if "embed" in name else 0.7 / array.shape[-1] ** 0.5
    return scale * mx.random.normal(array.shape)
