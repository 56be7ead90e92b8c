"""Tiny random models of mlx-vlm's classes, in folders as ``mlx_vlm.convert`` saves them: those with
eyes, some of them with ears, of which the text is tested; and those of text alone that mlx-lm
doesn't have. The former have no processor."""

import dataclasses
import importlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache
from mlx_vlm.utils import get_model_and_args, update_module_configs

from tests.support.models.text_models import (
    KIMI_K3,
    MINIMAX_M3,
    VOCABULARY,
    YARN,
    random_weight,
    widened,
)
from tests.support.models.tiny_models import make_tokenizer

_PICTURE = VOCABULARY - 8
"""Tokens from here on stand for pictures and the like. The texts have none of them."""

# fmt: off
_TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY, "vocab_size_per_layer_input": VOCABULARY, "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-5, "norm_eps": 1e-5,
    "layer_norm_eps": 1e-5, "rope_theta": 10_000.0, "max_position_embeddings": 512,
    "tie_word_embeddings": False, "sliding_window": 16, "sliding_window_pattern": 2}
_EXPERTS: dict[str, Any] = {
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "moe_num_experts": 4,
    "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1,
    "moe_num_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
    "norm_topk_prob": True, "routed_scaling_factor": 1.5, "decoder_sparse_step": 1,
    "mlp_only_layers": []}
_LATENT: dict[str, Any] = {
    "num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": None, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16, "v_head_dim": 16}
_VISION: dict[str, Any] = {
    "depth": 2, "layers": 2, "num_hidden_layers": 2, "hidden_size": 32, "embed_dim": 32,
    "width": 32, "intermediate_size": 64, "out_hidden_size": 64, "projection_dim": 32,
    "num_heads": 2, "heads": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16,
    "image_size": 28, "patch_size": 14, "spatial_patch_size": 14, "num_position_embeddings": 16,
    "num_channels": 3, "layer_norm_eps": 1e-5}
_WHOLE: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "mm_hidden_size": 32,
    "max_position_embeddings": 512}
_GRANITE = {
    "logits_scaling": 8.0, "attention_multiplier": 0.0625, "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22, "attention_bias": False, "mlp_bias": False}
_MROPE = {"rope_scaling": {"type": "mrope", "rope_type": "mrope", "mrope_section": [2, 3, 3]}}
_LINEAR = {
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 32,
    "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4, "full_attention_interval": 2,
    "rope_parameters": {
        "type": "default", "rope_type": "default", "mrope_section": [1, 1, 2],
        "mrope_interleaved": True, "rope_theta": 10_000.0, "partial_rotary_factor": 0.5}}

_DEEPSEEK_V4: dict[str, Any] = {
    "num_key_value_heads": 1, "head_dim": 32, "q_lora_rank": 32, "qk_rope_head_dim": 8,
    "o_groups": 2, "o_lora_rank": 32, "index_n_heads": 2, "index_head_dim": 32, "hc_mult": 2}
# fmt: on


@dataclass(frozen=True)
class Seeing:
    """What is not as in most."""

    text: Mapping[str, Any] = field(default_factory=dict)
    vision: Mapping[str, Any] = field(default_factory=dict)
    whole: Mapping[str, Any] = field(default_factory=dict)
    flat: bool = False
    """Whether its config.json has the text's values at the top."""
    tied: bool = False
    """Whether it is saved with a head that is a copy of its embeddings."""
    same_text: str | None = None
    """The type of mlx-lm's that computes the same text from the same weights."""


SEEING: dict[str, Seeing] = {
    "aya_vision": Seeing({"model_type": "cohere2"}, {"model_type": "siglip_vision_model"},
                         same_text="cohere2"),
    "cohere_compass": Seeing(),
    "deepseek_vl_v2": Seeing(
        _EXPERTS | _LATENT | {"rope_scaling": YARN}, {"model_type": "vision"},
        {"projector_config": {"input_dim": 32, "n_embed": 64}}, same_text="deepseek_v2"),
    "dots_ocr": Seeing(same_text="qwen2"),
    "ernie4_5_moe_vl": Seeing(
        {"moe_num_experts": [4, 4], "moe_k": 2, "moe_intermediate_size": [32, 32],
         "moe_layer_start_index": [1, 1], "moe_layer_end_index": [3, 3],
         "mrope_section": [2, 2, 4], "freq_allocation": 4},
        whole={"pixel_hidden_size": 32, "freq_allocation": 4}, flat=True),
    "falcon_ocr": Seeing(flat=True),
    "gemma3": Seeing(
        {"model_type": "gemma3_text", "sliding_window_pattern": 2, "query_pre_attn_scalar": 16,
         "rope_theta": 1e6, "rope_local_base_freq": 10_000.0, "mm_tokens_per_image": 4},
        {"model_type": "siglip_vision_model"}, same_text="gemma3_text", tied=True),
    "gemma4": Seeing(
        {"num_hidden_layers": 6, "num_kv_shared_layers": 0, "global_head_dim": 16,
         "hidden_size_per_layer_input": 16,
         "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
         "rope_parameters": {
             "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1e6,
                                "rope_type": "proportional"},
             "sliding_attention": {"rope_theta": 10_000.0, "rope_type": "default"}},
         "tie_word_embeddings": True},
        {"global_head_dim": 16}, same_text="gemma4_text"),
    "gemma4_unified": Seeing(
        {"num_global_key_value_heads": 1, "global_head_dim": 16,
         "layer_types": ["sliding_attention", "full_attention"] * 2,
         "rope_parameters": {
             "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1e6,
                                "rope_type": "proportional"},
             "sliding_attention": {"rope_theta": 10_000.0, "rope_type": "default"}},
         "tie_word_embeddings": True},
        {"mm_embed_dim": 64, "output_proj_dims": 64, "mm_posemb_size": 16, "model_patch_size": 28,
         "pooling_kernel_size": 2}, {"audio_config": None}),
    "glm4v": Seeing(
        {"rope_scaling": {"rope_type": "default", "mrope_section": [1, 1, 2]}, "head_dim": 16,
         "attention_bias": True, "partial_rotary_factor": 0.5}, same_text="glm4"),
    "glm4v_moe": Seeing(
        _EXPERTS | {"use_qk_norm": False, "attention_bias": False, "partial_rotary_factor": 0.5,
                    "rope_scaling": {"rope_type": "default", "mrope_section": [1, 1, 2]}},
        same_text="glm4_moe"),
    "glm5_next": Seeing(
        _EXPERTS | _LATENT | {
            "q_lora_rank": 16, "qk_rope_head_dim": 0, "qk_head_dim": 16, "index_topk": 8,
            "index_head_dim": 16, "index_n_heads": 2, "index_kpool": 4, "linear_head_dim": 16,
            "linear_num_heads": 4, "hc_mult": 2, "linear_attn_config": {
                "full_attn_layers": [2, 4], "kda_layers": [1, 3], "num_heads": 4, "head_dim": 16,
                "short_conv_kernel_size": 4}},
        {"projection_intermediate_size": 64}),
    "glm_ocr": Seeing({"rope_parameters": {
        "rope_type": "default", "mrope_section": [1, 1, 2], "partial_rotary_factor": 0.5,
        "rope_theta": 10_000.0}}),
    "got": Seeing(
        {"model_type": "got"},
        {"img_size": 64, "out_chans": 16, "out_dim": 32, "window_size": 2,
         "global_attn_indexes": [1]}, flat=True),
    "granite4_vision": Seeing(_GRANITE, {"hidden_size": 64, "num_attention_heads": 1},
                              same_text="granite"),
    "granite_vision": Seeing(_GRANITE, same_text="granite"),
    "hunyuan_vl": Seeing({"rope_scaling": {
        "alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0,
        "mscale_all_dim": 1.0, "type": "xdrope", "xdrope_section": [2, 2, 2, 2]}}),
    "idefics2": Seeing(
        {"model_type": "mistral"}, whole={"perceiver_config": {
            "model_type": "idefics2Perceiver", "resampler_depth": 1, "resampler_head_dim": 16,
            "resampler_n_heads": 4, "num_key_value_heads": 2, "resampler_n_latents": 4}},
        same_text="llama"),
    "idefics3": Seeing({"model_type": "llama"}, same_text="llama"),
    "indic_ocr": Seeing(_LINEAR | {"model_type": "qwen3_5_text"}, same_text="qwen3_5"),
    "inkling": Seeing(
        {"swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "swa_head_dim": 16,
         "sliding_window_size": 16, "d_rel": 4, "rel_extent": 16, "n_routed_experts": 4,
         "num_experts_per_tok": 2, "n_shared_experts": 1,
         "layer_types": ["hybrid_sliding", "hybrid"] * 2, "intermediate_size": 32,
         "dense_intermediate_size": 128},
        {"n_layers": 2, "text_hidden_size": 64, "patch_size": 8}),
    "internvl": Seeing({"model_type": "qwen3"}, same_text="qwen3"),
    "internvl_chat": Seeing({"model_type": "qwen2"}, {"model_type": "intern_vit_6b"},
                            same_text="qwen2"),
    "jina_vlm": Seeing(),
    "kimi_k25": Seeing(
        _EXPERTS | _LATENT | {"q_lora_rank": 16, "rope_scaling": YARN},
        {"init_pos_emb_height": 4, "init_pos_emb_width": 4}, same_text="deepseek_v3"),
    "kimi_k3": Seeing(
        _EXPERTS | _LATENT | KIMI_K3 | {"q_lora_rank": 16},
        {"vt_hidden_size": 32, "vt_num_attention_heads": 2, "vt_num_hidden_layers": 2,
         "vt_intermediate_size": 64, "qkv_hidden_size": 32, "mm_hidden_size": 32,
         "text_hidden_size": 64, "init_pos_emb_height": 4, "init_pos_emb_width": 4}),
    "kimi_vl": Seeing(_EXPERTS | _LATENT, same_text="deepseek_v3"),
    "lfm2-vl": Seeing(
        {"model_type": "lfm2", "block_dim": 64, "block_ff_dim": 128, "block_multiple_of": 32,
         "block_auto_adjust_ff_dim": False, "conv_dim": 64, "conv_dim_out": 64,
         "layer_types": ["conv", "full_attention"] * 2, "full_attn_idxs": [1, 3],
         "tie_word_embeddings": True, "conv_L_cache": 3, "conv_bias": False,
         "block_ffn_dim_multiplier": 1.0},
        {"num_patches": 4}, same_text="lfm2"),
    "llama4": Seeing(
        _EXPERTS | {"model_type": "llama4_text", "attention_chunk_size": 16,
                    "interleave_moe_layer_step": 1, "intermediate_size_mlp": 128,
                    "num_experts_per_tok": 1,
                    "attention_bias": False, "rope_scaling": None, "use_qk_norm": True},
        {"vision_output_dim": 32, "projector_input_dim": 32, "projector_output_dim": 32,
         "pixel_shuffle_ratio": 0.5, "initializer_range": 0.02, "norm_eps": 1e-5,
         "projector_dropout": 0.0, "rope_theta": 10_000, "vision_feature_layer": -1,
         "vision_feature_select_strategy": "default"}, same_text="llama4"),
    "llava": Seeing({"model_type": "llama"}, {"model_type": "clip_vision_model"},
                    same_text="llama"),
    "llava-qwen2": Seeing({"model_type": "qwen2"}, {"model_type": "siglip_vision_model"},
                          {"auto_map": {}, "mm_hidden_size": 32}, same_text="qwen2"),
    "llava_next": Seeing({"model_type": "llama", "tie_word_embeddings": False},
                         {"model_type": "clip_vision_model"}, same_text="llama"),
    "llava_onevision": Seeing(same_text="qwen2"),
    "llmjpvl": Seeing(),
    "mage_vl": Seeing(
        {"num_key_value_heads": 4},
        {"hidden_size": 64, "out_hidden_size": 64, "text_hidden_size": 64}, same_text="qwen3"),
    "mimo_v2": Seeing(
        _EXPERTS | {
            "hybrid_layer_pattern": [1, 0, 1, 0], "moe_layer_freq": [0, 1, 1, 1],
            "sliding_window_size": 16, "swa_num_attention_heads": 4, "swa_num_key_value_heads": 2,
            "swa_head_dim": 16, "swa_v_head_dim": 16, "v_head_dim": 16,
            "attention_chunk_size": 16, "partial_rotary_factor": 0.5, "layernorm_epsilon": 1e-5},
        {"num_query_groups": 1, "qk_channels": 16, "fullatt_block_indexes": [1]},
        {"audio_config": {
            "out_hidden_size": 64, "audio_channels": 2, "input_local_attn_heads": 2,
            "input_local_dim": 32, "input_local_head_dim": 16,
            "input_local_intermediate_size": 64, "input_local_layers": 1,
            "speech_vocab_size": 32, "speech_zeroemb_idx": 16}}),
    "minicpmv4_6": Seeing(_LINEAR | {"model_type": "qwen3_5_text"}),
    "minicpmv4_7": Seeing(_LINEAR | {"model_type": "qwen3_5_text"}),
    "minimax_m3_vl": Seeing(
        MINIMAX_M3, {"projection_dim": 64, "img_token_compression_config": {
            "spatial_merge_size": 2, "temporal_patch_size": 2}}, {"projector_hidden_size": 64}),
    "mistral3": Seeing({"model_type": "mistral", "sliding_window": None},
                       {"model_type": "pixtral"}, same_text="llama"),
    "mistral_large3": Seeing(
        _EXPERTS | _LATENT | {"q_lora_rank": 16, "rope_scaling": YARN},
        {"model_type": "pixtral"}, same_text="deepseek_v3"),
    "mllama": Seeing(
        {"cross_attention_layers": [1]},
        {"max_num_tiles": 2, "vision_output_dim": 64, "intermediate_layers_indices": [0],
         "num_global_layers": 1}, same_text="llama"),
    "molmo": Seeing(
        {"d_model": 64, "n_heads": 4, "n_kv_heads": 2, "n_layers": 4, "mlp_hidden_size": 128,
         "embedding_size": VOCABULARY, "additional_vocab_size": 8, "num_hidden_layers": 4},
        {"image_emb_dim": 32, "image_num_heads": 2, "image_num_key_value_heads": 2,
         "image_num_layers": 2, "image_head_dim": 16, "image_mlp_dim": 64, "image_num_pos": 5,
         "d_model": 64, "vit_layers": [-1, -2]}),
    "molmo2": Seeing({}, {"vit_config": {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16},
        "adapter_config": {
            "hidden_size": 32, "intermediate_size": 64, "text_hidden_size": 64,
            "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16,
            "vit_layers": [-1, -2]}}),
    "molmo_point": Seeing(
        {"additional_vocab_size": 8}, whole={"patch_embed_dim": 32, "adapter_config": {
            "hidden_size": 32, "intermediate_size": 64, "text_hidden_size": 64,
            "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16,
            "vit_layers": [-1, -2]}}),
    "moondream2": Seeing({"num_key_value_heads": 4},
                         {"crop_size": 28, "proj_inner_dim": 64, "proj_out_dim": 64}),
    "moondream3": Seeing(
        {"num_key_value_heads": 4, "num_experts": 4, "num_experts_per_tok": 2,
         "moe_intermediate_size": 32, "moe_start_layer": 1, "rope_dim": 8, "prefix_attn": 5},
        {"crop_size": 28, "proj_inner_dim": 64, "proj_out_dim": 64}),
    "multi_modality": Seeing(
        {"model_type": "llama", "tie_word_embeddings": False},
        {"model_type": "vision", "params": {}},
        {"projector_config": {"cls": "MlpProjector", "model_type": "projector", "params": {
            "depth": 2, "input_dim": 32, "n_embed": 64, "projector_type": "mlp_gelu"}}},
        same_text="llama"),
    "muse_glimmer": Seeing(
        {"layer_types": ["sliding_attention"] * 3 + ["full_attention"]},
        {"pos_emb_height": 4, "pos_emb_width": 4},
        {"out_hidden_size": 128, "projector_hidden_size": 64}),
    "nemotron_h_nano_omni": Seeing(
        {"model_type": "nemotron_h", "attention_bias": False, "mamba_num_heads": 8,
         "mamba_head_dim": 16, "mamba_proj_bias": False, "ssm_state_size": 16, "conv_kernel": 4,
         "n_groups": 1, "mlp_bias": False, "layer_norm_epsilon": 1e-5, "use_bias": False,
         "use_conv_bias": True, "hybrid_override_pattern": "M*M-",
         "time_step_limit": [0.01, 10.0]},
        {"image_size": 32, "patch_size": 16, "max_resolution": 32},
        {"projector_hidden_size": 64, "vit_hidden_size": 32}),
    "paddleocr_vl": Seeing(_MROPE | {"head_dim": 16, "use_bias": False}, flat=True),
    "paligemma": Seeing({"model_type": "gemma"}, {"model_type": "siglip_vision_model"},
                        {"projection_dim": 64}),
    "phi4-siglip": Seeing(same_text="phi3"),
    "pixtral": Seeing({"model_type": "mistral", "tie_word_embeddings": False},
                      {"model_type": "pixtral"}, same_text="llama"),
    "plamo2vl": Seeing(
        {"hidden_size_per_head": 16, "mamba_d_state": 16, "mamba_num_heads": 4, "mamba_step": 2,
         "attention_window_size": 16},
        {"image_feature_size": 32, "image_proj_hidden_size": 64}),
    "qwen2_vl": Seeing(_MROPE, same_text="qwen2", flat=True),
    "qwen2_5_vl": Seeing(_MROPE, {"fullatt_block_indexes": [1]}, same_text="qwen2", flat=True),
    "qwen3_5": Seeing(_LINEAR | {"model_type": "qwen3_5_text"}, same_text="qwen3_5"),
    "qwen3_5_moe": Seeing(
        _LINEAR | _EXPERTS | {"model_type": "qwen3_5_moe_text",
                              "shared_expert_intermediate_size": 32}, same_text="qwen3_5_moe"),
    "qwen3_vl": Seeing(_MROPE | {"model_type": "qwen3_vl_text"},
                       {"deepstack_visual_indexes": [0, 1]}, same_text="qwen3"),
    "qwen3_vl_moe": Seeing(_MROPE | _EXPERTS | {"model_type": "qwen3_vl_moe_text"},
                           {"deepstack_visual_indexes": [0, 1]}, same_text="qwen3_moe"),
    "qwen4_exp": Seeing(
        _LINEAR | _EXPERTS | {
            "model_type": "qwen4_exp_text", "shared_expert_intermediate_size": 32, "hc_count": 2,
            "hc_lowrank": 8, "ple_layer_ids": [], "indexer_n_heads": 2, "indexer_head_dim": 16,
            "indexer_budget": 16, "indexer_compress_ratio": 4, "mtp_num_hidden_layers": 0}),
    "smolvlm": Seeing(same_text="llama"),
    "step3p7": Seeing(_EXPERTS | {
        "num_attention_groups": 2, "moe_top_k": 2, "share_expert_dim": 32,
        "layer_types": ["sliding_attention", "full_attention"] * 2}),
    "youtu_vl": Seeing(_LATENT | {"q_lora_rank": 16}, flat=True),
    "zaya1_vl": Seeing(
        {"ffn_hidden_size": 64, "zaya_mlp_expansion": 16, "num_query_groups": 2, "num_experts": 4},
        flat=True),
}  # fmt: skip
"""By model_type."""

TEXT_ALONE: dict[str, dict[str, Any]] = {
    "cohere2_moe": _EXPERTS | {
        "logit_scale": 0.0625, "max_position_embeddings": 512, "first_k_dense_replace": 0,
        "layer_types": ["sliding_attention", "full_attention"] * 2},
    "deepseek_v4": _EXPERTS | _DEEPSEEK_V4 | {
        "compress_ratios": [0, 4, 128, 4], "index_topk": 4, "num_hash_layers": 1,
        "num_nextn_predict_layers": 0},
    "deepseek_v41": _EXPERTS | _DEEPSEEK_V4 | {
        "compress_ratios": [0, 2, 1, 1], "kv_source_layer_ids": [1, 2],
        "index_source_layer_ids": [1, 2], "index_topk": 8, "candidate_source_layer_id": 2,
        "candidate_topk_blocks": 4, "candidate_block_size": 2, "engram_layer_ids": [],
        "engram_num_embeddings": [], "vision_num_layers": 2, "vision_hidden_size": 32,
        "vision_num_heads": 2, "vision_intermediate_size": 64},
    "flint": _EXPERTS | {
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "shared_expert_intermediate_size": 32},
    "hrm_text": {"num_key_value_heads": 4, "H_cycles": 2, "L_cycles": 3, "num_hidden_layers": 2},
    "hy_v4": _EXPERTS | _LATENT | {
        "num_key_value_heads": 1, "q_lora_rank": 16, "index_head_dim": 16, "index_n_heads": 2,
        "index_topk": 8, "hc_mult": 2}, "k2_horizon": {},
    "kolibri1": _EXPERTS | {
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "shared_expert_intermediate_size": 32},
    "longcat_flash_sparse": _EXPERTS | _LATENT | {
        "q_lora_rank": 16, "zero_expert_num": 2, "num_layers": 2, "ffn_hidden_size": 128,
        "expert_ffn_hidden_size": 32, "moe_topk": 2, "index_n_heads": 2, "index_head_dim": 16,
        "index_topk": 8}, "minimax_m3": MINIMAX_M3,
    "qwen3_5_moe_text": _LINEAR | _EXPERTS | {"shared_expert_intermediate_size": 32},
    "qwen3_5_text": _LINEAR, "xing4_0": _EXPERTS | _LATENT | {"q_lora_rank": 16, "hc_mult": 2},
    "z1t": {}}  # fmt: skip
"""By model_type, those that have no eyes."""


def make_vlm_model(folder: Path, model_type: str, *, wide: bool = False) -> Path:
    """Write a model into ``folder``, and return that. ``wide``: its text has heads whose keys and
    values can be quantized."""
    config = _text_config(model_type) if model_type in TEXT_ALONE else seeing_config(model_type)
    if wide:
        others = {name: part for name, part in config.items() if _is_other_part(name)}
        config = widened(config) | others
    tied = model_type in SEEING and SEEING[model_type].tied
    save_random_model(folder, config, tied=tied)
    make_tokenizer().save_pretrained(folder)
    return folder


def save_random_model(folder: Path, config: Mapping[str, Any], *, tied: bool = False) -> None:
    """Write config.json and random weights. ``tied``: with a head that is a copy of the
    embeddings."""
    module, _ = get_model_and_args(json.loads(json.dumps(config)))
    copy = json.loads(json.dumps(config))
    parsed = module.ModelConfig.from_dict(copy)
    parts = ["text", "vision", "perceiver", "projector", "audio"]
    model = module.Model(update_module_configs(parsed, module, copy, parts))
    mx.random.seed(0)
    weights = {name: random_weight(name, v) for name, v in tree_flatten(model.parameters())}
    if tied:
        embeddings = weights["language_model.model.embed_tokens.weight"]
        weights["language_model.lm_head.weight"] = embeddings
    folder.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config))


def text_logits(
    folder: Path, same_text: str, prompt: Sequence[int], following: Sequence[int]
) -> Any:
    """Return what a model of mlx-lm's makes of the same text: the logits after a whole prompt, and
    after each of the tokens that follow."""
    module = importlib.import_module(f"mlx_lm.models.{same_text}")
    config = json.loads((folder / "config.json").read_text())
    text = config.get("text_config", config) | {"model_type": same_text}
    whole = any(each.name == "text_config" for each in dataclasses.fields(module.ModelArgs))
    model = module.Model(module.ModelArgs.from_dict(config if whole else text))
    weights = mx.load(str(folder / "model.safetensors"))
    assert isinstance(weights, dict)
    mark = "" if whole else "language_model."
    inner = {name.removeprefix(mark): w for name, w in weights.items() if name.startswith(mark)}
    if same_text == "gemma3n":
        # Its class has another part around the language model.
        mark = "language_model.model."
        inner = {
            f"model.language_model.{name.removeprefix(mark)}": weight
            for name, weight in inner.items()
            if name.startswith(mark)
        }
    if crossing := text.get("cross_attention_layers"):
        inner = _without_layers(inner, crossing)
        text["num_hidden_layers"] -= len(crossing)
        model = module.Model(module.ModelArgs.from_dict(text))
        embeddings = inner["model.embed_tokens.weight"]
        inner["model.embed_tokens.weight"] = embeddings[: text["vocab_size"]]
    if not whole and not any(name.startswith("model.") for name in inner):
        inner = {f"model.{name}": weight for name, weight in inner.items()}
    inner = {re.sub(r"^model\.lm_head", "lm_head", name): w for name, w in inner.items()}
    if hasattr(model, "sanitize"):
        inner = model.sanitize(inner)
    model.load_weights(list(inner.items()))
    model.eval()
    cache = make_prompt_cache(model)
    logits = [model(mx.array([prompt]), cache=cache)[0, -1]]
    logits += [model(mx.array([[token]]), cache=cache)[0, -1] for token in following]
    return np.array(mx.stack(logits).astype(mx.float32))


def _without_layers(
    weights: Mapping[str, mx.array], left_out: Sequence[int]
) -> dict[str, mx.array]:
    """Return the weights of the other layers, counted from the first of them on."""
    made = {}
    for name, weight in weights.items():
        layer = re.match(r"model\.layers\.(\d+)\.", name)
        if layer is None:
            made[name] = weight
        elif (number := int(layer[1])) not in left_out:
            place = number - sum(each < number for each in left_out)
            made[f"model.layers.{place}.{name[layer.end() :]}"] = weight
    return made


def _text_config(model_type: str) -> dict[str, Any]:
    module, _ = get_model_and_args({"model_type": model_type})
    return {
        **_known(module.ModelConfig, _TEXT),
        **TEXT_ALONE[model_type],
        "model_type": model_type,
        "eos_token_id": 256,
    }


def seeing_config(model_type: str) -> dict[str, Any]:
    """Return the config.json of a model with eyes."""
    own = SEEING[model_type]
    module, name = get_model_and_args({"model_type": model_type})
    text = _part(module.TextConfig, name, _TEXT, own.text)
    config: dict[str, Any] = {
        **_known(module.ModelConfig, _WHOLE),
        **(_known(module.ModelConfig, _TEXT) | text if own.flat else {"text_config": text}),
        "vision_config": _part(module.VisionConfig, name, _VISION, own.vision),
        **own.whole,
        "model_type": model_type,
        "eos_token_id": 256,
    }
    for place, each in enumerate(
        each.name
        for each in dataclasses.fields(module.ModelConfig)
        if each.name.endswith(("_token_id", "_token_index")) and each.name not in config
    ):
        config[each] = _PICTURE + place % 8
    return config


def _is_other_part(name: str) -> bool:
    return name.endswith("_config") and name != "text_config"


def _part(cls: Any, name: str, values: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    types = [each for each in dataclasses.fields(cls) if each.name == "model_type"]
    # What has no default names the model's own.
    named = {"model_type": name} if types and types[0].default is dataclasses.MISSING else {}
    return named | _known(cls, values) | dict(own)


def _known(cls: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    names = {each.name for each in dataclasses.fields(cls)}
    return {name: value for name, value in values.items() if name in names}
