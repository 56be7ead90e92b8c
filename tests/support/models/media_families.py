"""What the folders of tiny models that see and hear have: their tokens, templates, sizes and the
settings of their processors, as published models have them but for their sizes.

mlx-vlm's processors need no PyTorch. Where one calls a processor of transformers (Gemma 3 and 3n,
Idefics 3: pictures; Gemma 3n, Qwen3-Omni: sounds), that one needs NumPy and Pillow alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tests.support.models.text_models import VOCABULARY, text_sizes

FIRST_MEDIA_TOKEN: Final = 260
"""The tokens of pictures and the like follow those of bytes and roles."""


@dataclass(frozen=True)
class Family:
    """What a family's folders have besides what they have as a model of text."""

    places: Mapping[str, str]
    """What the chat template writes for a picture, a sound or a video. It takes no other kinds."""
    tokens: tuple[str, ...]
    """Its media tokens. The first has the number FIRST_MEDIA_TOKEN."""
    ids: Mapping[str, str] = field(default_factory=dict)
    """Which of them the keys of config.json name."""
    names: Mapping[str, str] = field(default_factory=dict)
    """By which names the tokenizer knows them."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """What config.json has that the model of text has not. Objects in it are merged."""
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The settings of its processor, by file."""
    model_type: str = ""
    """The model of text alone that it is built from; empty: that of the family's name."""
    tied: bool = False
    """Whether it is saved with a head that is a copy of its embeddings."""
    same_text: str | None = None
    """As in :class:`vlm_models.Seeing`, for one that is not built from such a model."""


_QWEN_TOKENS = (
    "<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
)  # fmt: skip
_QWEN_IDS = {
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
    "vision_token_id": "<|vision_pad|>",
}
_QWEN_PLACES = {
    "image": "<|vision_start|><|image_pad|><|vision_end|>",
    "video": "<|vision_start|><|video_pad|><|vision_end|>",
}


def _qwen_files(
    processor: str, patch: int = 14, most: int = 8, sound: Mapping[str, Any] = {}
) -> dict[str, dict[str, Any]]:
    shared = {
        "processor_class": processor, "patch_size": patch, "temporal_patch_size": 2,
        "merge_size": 2, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
        "size": {"shortest_edge": (2 * patch) ** 2, "longest_edge": (8 * patch) ** 2},
    }  # fmt: skip
    return {
        "preprocessor_config.json": shared
        | {"image_processor_type": "Qwen2VLImageProcessorFast"} | dict(sound or {}),
        "video_preprocessor_config.json": shared
        | {"video_processor_type": "Qwen3VLVideoProcessor", "fps": 2, "min_frames": 2,
           "max_frames": 16, "size": {"shortest_edge": (2 * patch) ** 2,
                                      "longest_edge": 8 * (8 * patch) ** 2}},
    }  # fmt: skip


_MISTRAL_TOKENS = ("[IMG]", "[IMG_BREAK]", "[IMG_END]")
_GEMMA_NAMES = {
    "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>",
    "image_token": "<image_soft_token>",
    "boa_token": "<start_of_audio>", "eoa_token": "<end_of_audio>",
    "audio_token": "<audio_soft_token>",
}  # fmt: skip
_GEMMA4_NAMES = {
    "boi_token": "<|image>", "eoi_token": "<image|>", "image_token": "<|image|>",
    "boa_token": "<|audio>", "eoa_token": "<audio|>", "audio_token": "<|audio|>",
    "video_token": "<|video|>",
}  # fmt: skip
_OMNI_NAMES = {
    "image_token": "<|image_pad|>", "video_token": "<|video_pad|>",
    "audio_token": "<|audio_pad|>",
    "vision_bos_token": "<|vision_start|>", "vision_eos_token": "<|vision_end|>",
    "audio_bos_token": "<|audio_start|>", "audio_eos_token": "<|audio_end|>",
}  # fmt: skip
_LFM_NAMES = {
    "image_token": "<image>", "image_start_token": "<|image_start|>",
    "image_end_token": "<|image_end|>", "image_thumbnail": "<|img_thumbnail|>",
}  # fmt: skip
_GEMMA3N_TOKENS = (
    *("<start_of_image>", "<end_of_image>", "<start_of_audio>", "<end_of_audio>"),
    *(f"<unused{place}>" for place in range(264, 273)), "<image_soft_token>",
    *(f"<unused{place}>" for place in range(274, 281)), "<audio_soft_token>",
)  # fmt: skip
"""Its tokens of pictures begin at 272, and those of sounds at 280."""

_HALVES = [0.5, 0.5, 0.5]
_OMNI_TEXT = {
    "model_type": "qwen3_omni_moe_text", "num_hidden_layers": 4, "hidden_size": 64,
    "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "num_experts": 4, "num_experts_per_tok": 2, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "moe_intermediate_size": 32, "rms_norm_eps": 1e-6, "vocab_size": VOCABULARY,
    "rope_theta": 1e6, "max_position_embeddings": 512,
    "rope_scaling": {"rope_type": "default", "type": "default", "mrope_interleaved": True,
                     "mrope_section": [2, 3, 3]},
}  # fmt: skip

_IDEFICS_TOKENS = (
    *("<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>"),
    *("<row_1_col_1>", "<row_1_col_2>", "<row_2_col_1>", "<row_2_col_2>"),
)


def _idefics_files(name: str) -> dict[str, dict[str, Any]]:
    return {
        "preprocessor_config.json": {
            "image_processor_type": f"{name}ImageProcessor", "processor_class": f"{name}Processor",
            "do_convert_rgb": True, "do_image_splitting": True, "do_normalize": True,
            "do_pad": True, "do_rescale": True, "do_resize": True, "image_mean": _HALVES,
            "image_std": _HALVES, "max_image_size": {"longest_edge": 56}, "resample": 1,
            "rescale_factor": 1 / 255, "size": {"longest_edge": 112}},
        "processor_config.json": {"processor_class": f"{name}Processor", "image_seq_len": 4},
    }  # fmt: skip


def _clip_files(processor: str, images: str, **more: Any) -> dict[str, dict[str, Any]]:
    return {
        "preprocessor_config.json": {
            "image_processor_type": images, "processor_class": processor, "image_mean": _HALVES,
            "image_std": _HALVES, "size": {"height": 28, "width": 28},
            "crop_size": {"height": 28, "width": 28}} | more,
        "processor_config.json": {
            "processor_class": processor, "patch_size": 14, "image_token": "<image>",
            "num_additional_image_tokens": 1, "vision_feature_select_strategy": "default"},
    }  # fmt: skip


FAMILIES: dict[str, Family] = {
    "aya_vision": Family(
        {"image": "<image>"},
        ("<image>", "<|START_OF_IMG|>", "<|END_OF_IMG|>", "<|IMG_PATCH|>", "<|IMG_LINE_BREAK|>",
         "TILE_1", "TILE_2", "TILE_GLOBAL"),
        {"image_token_index": "<|IMG_PATCH|>", "image_token_id": "<|IMG_PATCH|>"},
        config={"downsample_factor": 2, "vision_config": {"image_size": 56}},
        files={
            "preprocessor_config.json": {
                "image_processor_type": "GotOcr2ImageProcessor", "crop_to_patches": True,
                "processor_class": "AyaVisionProcessor", "max_patches": 2, "min_patches": 1,
                "image_mean": _HALVES, "image_std": _HALVES, "size": {"height": 56, "width": 56}},
            "processor_config.json": {
                "processor_class": "AyaVisionProcessor", "patch_size": 14, "img_size": 56,
                "downsample_factor": 2}}),
    "gemma3": Family(
        {"image": "<start_of_image>"}, tuple(_GEMMA_NAMES.values())[:3],
        {"image_token_index": "<image_soft_token>", "boi_token_index": "<start_of_image>",
         "eoi_token_index": "<end_of_image>"},
        dict(list(_GEMMA_NAMES.items())[:3]),
        config={"mm_tokens_per_image": 4, "vision_config": {"image_size": 56}},
        files={
            "preprocessor_config.json": {
                "image_processor_type": "Gemma3ImageProcessor",
                "processor_class": "Gemma3Processor", "image_seq_length": 4,
                "do_resize": True, "do_rescale": True, "do_normalize": True,
                "do_pan_and_scan": None, "rescale_factor": 1 / 255, "resample": 2,
                "image_mean": _HALVES, "image_std": _HALVES, "size": {"height": 56, "width": 56}},
            "processor_config.json": {
                "processor_class": "Gemma3Processor", "image_seq_length": 4}},
        tied=True),
    "gemma3n": Family(
        {"image": "<image_soft_token>", "audio": "<audio_soft_token>"}, _GEMMA3N_TOKENS,
        {"image_token_id": "<image_soft_token>", "image_token_index": "<image_soft_token>",
         "audio_token_id": "<audio_soft_token>"},
        _GEMMA_NAMES,
        config={
            "model_type": "gemma3n", "eos_token_id": 256, "hidden_size": 64,
            "vocab_size": VOCABULARY, "vision_soft_tokens_per_image": 4,
            "audio_soft_tokens_per_image": 16,
            "text_config": text_sizes("gemma3n") | {"vocab_size_per_layer_input": 272},
            "vision_config": {
                "model_type": "gemma3n_vision", "hidden_size": 32, "vocab_size": 8,
                "vocab_offset": 272},
            "audio_config": {
                "hidden_size": 32, "conf_num_attention_heads": 2, "conf_num_hidden_layers": 2,
                "input_feat_size": 128, "sscp_conv_channel_size": [8, 4], "vocab_size": 8,
                "vocab_offset": 280}},
        files={
            "preprocessor_config.json": {
                "processor_class": "Gemma3nProcessor",
                "image_processor_type": "SiglipImageProcessorFast",
                "feature_extractor_type": "Gemma3nAudioFeatureExtractor",
                "do_resize": True, "do_rescale": True, "do_normalize": False,
                "rescale_factor": 1 / 255, "resample": 2, "size": {"height": 64, "width": 64},
                "feature_size": 128, "sampling_rate": 16000, "padding_value": 0.0,
                "frame_length_ms": 32.0, "hop_length": 160, "fft_length": 1024, "dither": 0.0,
                "return_attention_mask": True},
            "processor_config.json": {
                "processor_class": "Gemma3nProcessor", "image_seq_length": 4,
                "audio_seq_length": 16}},
        same_text="gemma3n"),
    "gemma4": Family(
        {"image": "<|image|>", "audio": "<|audio|>", "video": "<|video|>"},
        tuple(_GEMMA4_NAMES.values()),
        {f"{name}_id": token for name, token in _GEMMA4_NAMES.items()}, _GEMMA4_NAMES,
        config={
            "vision_config": {"position_embedding_size": 64, "patch_size": 16,
                              "default_output_length": 6},
            "audio_config": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
                             "subsampling_conv_channels": [8, 4], "output_proj_dims": 64},
            "text_config": {"use_bidirectional_attention": "vision"}},
        files={"processor_config.json": {
            "processor_class": "Gemma4Processor", "audio_seq_length": 750, "audio_ms_per_token": 40,
            "image_processor": {"image_processor_type": "Gemma4ImageProcessor", "patch_size": 16,
                                "max_soft_tokens": 6, "pooling_kernel_size": 3},
            "video_processor": {"video_processor_type": "Gemma4VideoProcessor", "patch_size": 16,
                                "max_soft_tokens": 4, "pooling_kernel_size": 3, "num_frames": 4},
            "feature_extractor": {"feature_extractor_type": "Gemma4AudioFeatureExtractor"}}}),
    "idefics3": Family(
        {"image": "<image>"}, _IDEFICS_TOKENS, {"image_token_id": "<image>"},
        config={"scale_factor": 2, "vision_config": {"image_size": 56}},
        files=_idefics_files("Idefics3")),
    "internvl": Family(
        {"image": "<IMG_CONTEXT>\n"}, ("<img>", "</img>", "<IMG_CONTEXT>"),
        {"image_token_id": "<IMG_CONTEXT>"},
        config={"downsample_ratio": 0.5, "max_dynamic_patch": 2,
                "vision_config": {"image_size": 56}},
        files={
            "preprocessor_config.json": {
                "image_processor_type": "GotOcr2ImageProcessorFast",
                "processor_class": "InternVLProcessor"},
            "processor_config.json": {
                "processor_class": "InternVLProcessor", "image_seq_length": 4}}),
    "internvl_chat": Family(
        {"image": "<image>"}, ("<img>", "</img>", "<IMG_CONTEXT>", "<image>"),
        {"image_token_index": "<IMG_CONTEXT>"},
        config={"downsample_ratio": 0.5, "max_dynamic_patch": 2,
                "vision_config": {"image_size": 56}},
        files={"preprocessor_config.json": {"size": 56}}),
    "kimi_vl": Family(
        {"image": "<|media_start|><|media_pad|><|media_end|>"},
        ("<|media_start|>", "<|media_pad|>", "<|media_end|>", "<|im_assistant|>"),
        {"media_placeholder_token_id": "<|media_pad|>", "image_token_index": "<|media_pad|>"},
        files={"preprocessor_config.json": {
            "image_processor_type": "KimiVLImageProcessor", "processor_class": "KimiVLProcessor",
            "patch_size": 14, "in_token_limit": 64, "merge_kernel_size": [2, 2],
            "image_mean": _HALVES, "image_std": _HALVES}}),
    "lfm2_vl": Family(
        {"image": "<image>"},
        (*_LFM_NAMES.values(), "<|img_row_1_col_1|>", "<|img_row_1_col_2|>", "<|img_row_2_col_1|>",
         "<|img_row_2_col_2|>"),
        {"image_token_id": "<image>"}, _LFM_NAMES,
        config={"model_type": "lfm2_vl",
                "downsample_factor": 2, "encoder_patch_size": 14, "tile_size": 56,
                "projector_hidden_size": 64, "max_image_tokens": 6, "min_image_tokens": 2},
        files={
            "preprocessor_config.json": {
                "image_processor_type": "Lfm2VlImageProcessorFast",
                "processor_class": "Lfm2VlProcessor", "encoder_patch_size": 14,
                "downsample_factor": 2, "max_image_tokens": 6, "min_image_tokens": 2,
                "tile_size": 56, "do_resize": False, "do_rescale": True, "do_normalize": True,
                "image_mean": _HALVES, "image_std": _HALVES, "resample": 2},
            "processor_config.json": {"processor_class": "Lfm2VlProcessor"}},
        model_type="lfm2-vl"),
    "mistral3": Family(
        {"image": "[IMG]"}, _MISTRAL_TOKENS, {"image_token_index": "[IMG]"},
        config={"spatial_merge_size": 2, "vision_config": {"image_size": 84}},
        files={
            "preprocessor_config.json": {
                "image_processor_type": "PixtralImageProcessorFast", "patch_size": 14,
                "processor_class": "PixtralProcessor", "size": {"longest_edge": 84}},
            "processor_config.json": {
                "processor_class": "PixtralProcessor", "patch_size": 14, "spatial_merge_size": 2,
                "image_token": "[IMG]", "image_break_token": "[IMG_BREAK]",
                "image_end_token": "[IMG_END]"}}),
    "pixtral": Family(
        {"image": "[IMG]"}, _MISTRAL_TOKENS, {"image_token_index": "[IMG]"},
        config={"vision_config": {"image_size": 56}},
        files={
            "preprocessor_config.json": {
                "image_processor_type": "PixtralImageProcessor",
                "processor_class": "PixtralProcessor", "patch_size": {"height": 14, "width": 14},
                "size": {"longest_edge": 56}},
            "processor_config.json": {
                "processor_class": "PixtralProcessor", "patch_size": 14, "image_token": "[IMG]",
                "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]"}}),
    "qwen2_5_vl": Family(
        _QWEN_PLACES, _QWEN_TOKENS, _QWEN_IDS,
        config={"vision_config": {"window_size": 56, "tokens_per_second": 2}},
        files=_qwen_files("Qwen2_5_VLProcessor")),
    "qwen2_vl": Family(
        _QWEN_PLACES, _QWEN_TOKENS, _QWEN_IDS, config={"vision_config": {"hidden_size": 64}},
        files=_qwen_files("Qwen2VLProcessor")),
    "qwen3_5": Family(
        _QWEN_PLACES, _QWEN_TOKENS, _QWEN_IDS,
        config={"vision_config": {"patch_size": 16, "spatial_patch_size": 16}},
        files=_qwen_files("Qwen3VLProcessor", 16)),
    "qwen3_5_moe": Family(
        _QWEN_PLACES, _QWEN_TOKENS, _QWEN_IDS,
        config={"vision_config": {"patch_size": 16, "spatial_patch_size": 16}},
        files=_qwen_files("Qwen3VLProcessor", 16)),
    "qwen3_omni_moe": Family(
        _QWEN_PLACES | {"audio": "<|audio_start|><|audio_pad|><|audio_end|>"},
        tuple(_OMNI_NAMES.values()),
        {f"thinker_config.{name}": token for name, token in {
            "image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>",
            "audio_token_id": "<|audio_pad|>", "vision_start_token_id": "<|vision_start|>",
            "vision_end_token_id": "<|vision_end|>", "audio_start_token_id": "<|audio_start|>",
            "audio_end_token_id": "<|audio_end|>"}.items()},
        _OMNI_NAMES,
        config={
            "model_type": "qwen3_omni_moe", "enable_audio_output": False, "eos_token_id": 256,
            "thinker_config": {
                "model_type": "qwen3_omni_moe_thinker", "text_config": _OMNI_TEXT,
                "vision_config": {
                    "depth": 2, "hidden_size": 32, "intermediate_size": 64, "out_hidden_size": 64,
                    "num_heads": 2, "image_size": 64, "patch_size": 16, "spatial_patch_size": 16,
                    "num_position_embeddings": 16, "deepstack_visual_indexes": [0, 1]},
                "audio_config": {
                    "d_model": 32, "encoder_layers": 2, "num_hidden_layers": 2,
                    "encoder_attention_heads": 2, "encoder_ffn_dim": 64, "num_mel_bins": 16,
                    "output_dim": 64, "downsample_hidden_size": 8, "max_source_positions": 1500}},
            "talker_config": {"text_config": _OMNI_TEXT, "code_predictor_config": {}},
            "code2wav_config": {}},
        files=_qwen_files("Qwen3OmniMoeProcessor", 16, sound={
            "feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 16,
            "sampling_rate": 16000, "hop_length": 160, "n_fft": 400, "chunk_length": 30,
            "padding_value": 0.0, "padding_side": "right", "return_attention_mask": True})),
    "qwen3_vl": Family(
        _QWEN_PLACES, _QWEN_TOKENS, _QWEN_IDS,
        config={"vision_config": {"patch_size": 16, "spatial_patch_size": 16}},
        files=_qwen_files("Qwen3VLProcessor", 16)),
    "qwen3_vl_moe": Family(
        _QWEN_PLACES, _QWEN_TOKENS, _QWEN_IDS,
        config={"vision_config": {"patch_size": 16, "spatial_patch_size": 16}},
        files=_qwen_files("Qwen3VLProcessor", 16)),
    "smolvlm": Family(
        {"image": "<image>"}, _IDEFICS_TOKENS, {"image_token_id": "<image>"},
        config={"scale_factor": 2, "vision_config": {"image_size": 56}},
        files=_idefics_files("SmolVLM")),
}  # fmt: skip
"""By name; lmx is right with all that they take."""

WRONG_ALONE: dict[str, Family] = {
    "glm4v": Family(
        {"image": "<|begin_of_image|><|image|><|end_of_image|>",
         "video": "<|begin_of_video|><|video|><|end_of_video|>"},
        ("<|image|>", "<|video|>", "<|begin_of_image|>", "<|end_of_image|>",
         "<|begin_of_video|>", "<|end_of_video|>"),
        {"image_token_id": "<|image|>", "video_token_id": "<|video|>",
         "image_start_token_id": "<|begin_of_image|>", "image_end_token_id": "<|end_of_image|>",
         "video_start_token_id": "<|begin_of_video|>", "video_end_token_id": "<|end_of_video|>"},
        files={"preprocessor_config.json": {
            "image_processor_type": "Glm4vImageProcessor", "processor_class": "Glm4vProcessor",
            "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2, "image_mean": _HALVES,
            "image_std": _HALVES, "size": {"shortest_edge": 784, "longest_edge": 12544}}}),
    "llava_next": Family(
        {"image": "<image>"}, ("<image>",), {"image_token_index": "<image>"},
        config={"vision_feature_layer": -2, "vision_feature_select_strategy": "default",
                "image_grid_pinpoints": [[28, 56], [56, 28], [56, 56]]},
        files=_clip_files("LlavaNextProcessor", "LlavaNextImageProcessor",
                          image_grid_pinpoints=[[28, 56], [56, 28], [56, 56]])),
}  # fmt: skip
"""Those of which mlx-vlm's own class makes something wrong."""
