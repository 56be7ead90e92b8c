"""The keys of config.json that a model's class does not read although they may change what it
computes.

The classes of mlx-lm and mlx-vlm take the keys that they know from config.json, and say nothing of
the others. Most of those are harmless; one that is not makes a model answer wrongly, and nothing
fails.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from lmx.protocol.models.checkpoint import TEXT_SECTIONS

_HARMLESS: Final = (
    # Names, versions, and options of other runtimes.
    *("_*", "model_type", "architectures", "auto_map", "*dtype", "*_version"),
    *("is_*", "*_hidden_states", "output_*", "return_*", "use_return_dict", "problem_type"),
    *("label2id", "id2label", "num_labels", "task_specific_params", "finetuning_task", "name"),
    *("*cache*", "attn_implementation", "use_flash*", "*_kernel", "*_kernels", "*fused*"),
    *("use_parallel*", "*parallel_size", "pretraining_tp", "torchscript", "tf_legacy_loss"),
    *("chunk_size_feed_forward", "pruned_heads", "cross_attention_hidden_size", "use_bfloat16"),
    *("quantization", "quantization_config", "compression_config", "unsloth_*", "transformers*"),
    # Training.
    *("*dropout*", "*_pdrop", "*drop_rate", "initializer*", "init_*", "*_init", "*_init_*"),
    *("*aux_loss*", "*_loss_*", "*_loss", "gradient_checkpointing", "*jitter*", "*z_loss*"),
    *("*_std", "*_init_std", "seq_aux", "ep_size", "num_nextn_predict_layers", "*mtp*"),
    *("summary_*", "expert_capacity*", "*rescale_prenorm_residual", "tokens_per_*"),
    *("num_media_embeds", "time_step_m*", "time_step_floor", "use_associative_scan"),
    # How it is computed, and not what.
    *("*_in_fp32", "*chunk_size", "num_logits_to_keep", "scale_attn_weights", "*overlap"),
    # What lmx and the generation read, or the tokenizer.
    *("*_id", "*_ids", "*_token_index", "*_token", "tokenizer*", "chat_template*"),
    *("max_position_embeddings", "max_length", "min_length", "do_sample", "temperature", "top_k"),
    *("top_p", "typical_p", "num_beams", "*num_beam*", "*_penalty", "*no_repeat_ngram*"),
    *("num_return_sequences", "*early_stopping", "suppress_tokens", "prefix", "add_special_tokens"),
    *("*max_seq*len*", "seq_length", "n_positions", "n_ctx", "*model_max_length", "max_new_tokens"),
    # What the shapes and the names of the weights show: a load with other ones fails.
    *("*_bias", "*vocab_size*", "*hidden_size", "*intermediate_size", "tie_*", "*head_dim"),
    *("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "n_inner", "*lora_rank"),
    *("*norm_type", "qk_norm", "use_rmsnorm", "mlp_type", "moe_gate", "time_step_rank", "bias"),
    *("*expand", "attn_output_gate", "block_*", "conv_*", "*num_local_experts"),
    *("per_layer_config", "rope_interleave"),
    # What other keys say as well.
    *("initial_context_length", "no_rope_layer_interval", "moe_layers", "use_pos_enc"),
    *("cla_share_factor", "dense_list", "full_attn_mod", "use_rotary_pos_emb"),
    # Rotary embeddings: lmx.worker.mlx.model.rope lifts or refuses these.
    *("rope_parameters", "rope_scaling"),
    # Encoders and heads of other media, which are read by themselves.
    *("*vision*", "*audio*", "*image*", "*video*", "*speech*", "mm_*", "*talker*", "*wav*"),
    *("spatial_merge_size", "patch_size", "num_channels", "projection_layer*", "*projector*"),
    *("*_tower*", "text_config", "language_config", "llm_config", "*thinker*"),
)
"""Patterns of keys that say nothing of what the language model computes, or of which something
else shows."""

_BOUND: Final = re.compile(r"limit|softcap")
"""Round numbers that count as the class's own where its source has them. Other round numbers are
in too many sources."""

_ACTIVATIONS: Final = {
    "gelu": ("gelu",),
    "relu": ("relu",),
    "silu": ("silu", "swiglu"),
    "swi": ("silu", "swiglu"),
}
"""Words of a class's source, by the activation that they mean."""

_LAYERS: Final = (
    *("sliding_window_pattern", "full_attention_interval", "full_attn", "attn_layer"),
    *("first_k_dense_replace", "layer_group_size", "global_attn_every_n_layers", "index_topk"),
)
"""Other words for which layer is of which type."""

_IMPORT: Final = re.compile(r"^ *from (\.+)(\w[\w.]*)? import (\([^)]*\)|.*)$", re.MULTILINE)
_NAME: Final = re.compile(r"\w+")

_MOST: Final = 5
_LONGEST_VALUE: Final = 60


def unread_remarks(
    config: Mapping[str, Any], module: str, read: Collection[str] = ()
) -> tuple[str, ...]:
    """Return a remark for each of the first keys that the class in ``module`` (by its full name)
    does not read, of the whole model's config.json and of its language model's part. ``read`` are
    those that lmx reads in its place."""
    source = _source(module)
    if not source:
        return ()
    sections = [config, *_inner(config)]
    found = dict.fromkeys(
        name for each in sections for name in _unread(each, source) if name not in read
    )
    values = {key: value for each in sections for key, value in each.items()}
    library = module.partition(".")[0].replace("_", "-")
    return tuple(
        f"config.json sets {key} to {_shown(values[key])}, which {library}'s class of this type of "
        "model does not read: its answers may differ from what the model was made for."
        for key in list(found)[:_MOST]
    )


def _inner(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for name in TEXT_SECTIONS:
        section = config.get(name)
        if isinstance(section, Mapping):
            yield section
            yield from _inner(section)


def _unread(section: Mapping[str, Any], source: str) -> Iterator[str]:
    words = set(re.findall(r"\w+", source))
    read = {key: value for key, value in section.items() if key in words}
    for key, value in section.items():
        if (
            key in read
            or _neutral(key, value, section, source)
            or _given_elsewhere(key, value, read)
        ):
            continue
        if not any(fnmatchcase(key, pattern) for pattern in _HARMLESS):
            yield key


def _given_elsewhere(key: str, value: Any, read: Mapping[str, Any]) -> bool:
    """Return whether a key that is read has the same number, and a word of the key in its name."""
    words = set(key.split("_"))
    return type(value) in (int, float) and any(
        value == other and words & set(name.split("_")) for name, other in read.items()
    )


def _neutral(key: str, value: Any, section: Mapping[str, Any], source: str) -> bool:
    """Return whether a value says that nothing is to be done, or what the class does anyway."""
    ones = value if isinstance(value, list) else [value]
    if not value or all(each == 1 and each is not True for each in ones):
        return True
    if isinstance(value, str):
        words = next((words for part, words in _ACTIVATIONS.items() if part in value.lower()), ())
        return any(word.lower() in source.lower() for word in words or (value,))
    if key in ("sliding_window", "max_window_layers"):
        window = section.get("sliding_window")
        longest = section.get("max_position_embeddings")
        return (
            section.get("use_sliding_window") is False
            or not window
            or (isinstance(window, int) and isinstance(longest, int) and window >= longest)
        )
    if key == "rope_theta" and value == 10_000:
        return True
    if key in ("rope_theta", "partial_rotary_factor", "rope_local_base_freq"):
        return "rope_parameters" in section and "rope_parameters" in source
    if key == "no_rope_layers" and isinstance(value, list):
        # Llama 4's classes leave out the rope of each fourth layer.
        every_fourth = [int(place % 4 != 0) for place in range(1, 257)]
        return "% 4 != 0" in source and value == every_fourth[: len(value)]
    if key.endswith("layer_types"):
        of_one_type = isinstance(value, list) and all(each == "full_attention" for each in value)
        return of_one_type or any(word in source for word in _LAYERS)
    constant = isinstance(value, float) and (value % 1 != 0 or bool(_BOUND.search(key)))
    return constant and value in _numbers(source)


def _numbers(source: str) -> set[float]:
    return {float(number) for number in re.findall(r"\b\d+\.?\d*(?:e-?\d+)?", source)}


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]} ..."


@cache
def _source(module: str) -> str:
    """Return the source of a module of a library, and of those of its package that it imports."""
    package = module.rpartition(".models.")[0] + ".models"
    read: dict[str, str] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in read or not name.startswith(package + "."):
            continue
        try:
            spec = find_spec(name)
        except ModuleNotFoundError:
            continue
        if spec is None or spec.origin is None:
            continue
        read[name] = source = Path(spec.origin).read_text(encoding="utf-8")
        within = name.split(".")
        if not spec.submodule_search_locations:
            within.pop()
        for dots, target, names in _IMPORT.findall(source):
            base = ".".join(within[: len(within) + 1 - len(dots)])
            found = f"{base}.{target}" if target else base
            waiting += [found] if target else [f"{base}.{each}" for each in _NAME.findall(names)]
    return "\n".join(read.values())
