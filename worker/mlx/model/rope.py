"""Rotary embeddings as transformers 5 describes them (``rope_parameters``), in the keys that the
libraries' classes read. Pure.

transformers 5 writes theta and scaling into ``rope_parameters`` alone, for all layers or by type of
layer. Many classes of mlx-lm and mlx-vlm read ``rope_theta`` and ``rope_scaling`` only, and compute
with a default where these are missing. Source: transformers' ``modeling_rope_utils``.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

_KEY: Final = "rope_parameters"
_LOCAL_THETAS: Final = ("rope_local_base_freq", "swa_rope_theta")
"""What Gemma 3's and MiMo's classes read the theta of their layers with windows from."""
_LONG: Final = ("longrope", "su")
_ORIGINAL: Final = "original_max_position_embeddings"
_GLOBAL_LAYERS: Final = "full_attention"
_LOCAL_LAYERS: Final = "sliding_attention"
_OTHER_NAMES: Final = {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}
"""What GPT-NeoX's class calls the same."""
_SCALINGS: Final[Mapping[str, Collection[str]]] = {
    "deepseek": ("linear",),
    "deepseek_v2": ("yarn",),
    "mellum": ("dynamic", "llama3", "longrope", "yarn"),
    "minicpm3": ("longrope", "su"),
    "phi3": ("linear", "longrope", "su"),
    "qwen2_moe": (),
}
"""The scalings that a class computes, of those that read ``rope_scaling`` and leave other ones out
silently. `make reference` finds such classes."""
_SCALES_GLOBAL_LAYERS: Final = ("olmo3",)
"""Types whose class scales those layers alone; all layers have one theta."""
_WHOLE_HEADS: Final = ("glm",)
"""Types whose class rotates the whole of each head, whatever the section says."""


_UNSCALED: Final[Mapping[str, Mapping[str, Any]]] = {
    "deepseek_v2": {"type": "yarn", "factor": 1.0},
    "minicpm3": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]},
}
"""What makes no difference, for classes that must be given a scaling."""


class Rope(NamedTuple):
    """A section of config.json with the keys that its model's class reads."""

    section: dict[str, Any]
    ignored: str | None = None
    """What the class has no keys for: it would compute with a default. It continues a sentence that
    begins with "config.json"."""


def with_rope(section: Mapping[str, Any], reads: Collection[str]) -> Rope:
    """Return a language model's section of config.json with the keys that its class reads.

    ``reads`` are those keys. What the section says itself stays.
    """
    made = dict(section)
    return Rope(made, _describe(made, section, reads))


def _describe(
    made: dict[str, Any], section: Mapping[str, Any], reads: Collection[str]
) -> str | None:
    """Add the keys, and return what is ignored."""
    kind = str(section.get("model_type"))
    described = section.get(_KEY)
    scalings: list[Any] = []
    if isinstance(described, Mapping) and described:
        if not all(isinstance(value, Mapping) for value in described.values()):
            # A class that reads the new form alone may refuse the other keys.
            if _KEY not in reads or {"rope_theta", "rope_scaling"}.intersection(reads):
                _set(made, described)
        elif _KEY not in reads:
            if remark := _set_by_layer(made, described, reads):
                return remark
        else:
            scalings += described.values()
        for key, name in _OTHER_NAMES.items():
            if name in reads and key in made:
                made.setdefault(name, made[key])
    if "rope_scaling" in reads and described:
        # Some classes can't do without the key.
        made.setdefault("rope_scaling", None)
    ignored = bool(reads) and not {"rope_scaling", _KEY}.intersection(reads)
    for scaling in (*scalings, made.get("rope_scaling")):
        if not isinstance(scaling, Mapping) or not _is_scaled(scaling):
            continue
        if ignored or _kind(scaling) not in _SCALINGS.get(kind, (_kind(scaling),)):
            return f"scales its rotary embeddings ({_kind(scaling)})"
    if kind in _WHOLE_HEADS and made.get("partial_rotary_factor", 1.0) != 1.0:
        return f"rotates {made['partial_rotary_factor']} of each head"
    return None


def with_needed_scaling(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config.json with a scaling that makes no difference, if its model's class can't do
    without one."""
    kind = str(whole.get("model_type"))
    if whole.get("rope_scaling") or kind not in _UNSCALED:
        return dict(whole)
    half = whole.get("qk_rope_head_dim", 64) // 2
    scaling = {
        key: value * half if isinstance(value, list) else value
        for key, value in _UNSCALED[kind].items()
    }
    length = whole.get("max_position_embeddings", 4096)
    return {**whole, "rope_scaling": scaling | {_ORIGINAL: length}}


def factors_for(section: Mapping[str, Any], context_tokens: int) -> tuple[dict[str, Any], int]:
    """Return a section with the factors of a "longrope" that are for texts of ``context_tokens``,
    and up to how many tokens its model has others; 0: for no text.

    The libraries' classes take ``long_factor`` for all texts. transformers takes ``short_factor``
    up to the context before the scaling.
    """
    made, differing = dict(section), 0
    for key in ("rope_scaling", _KEY):
        scaling = section.get(key)
        if not isinstance(scaling, Mapping) or _kind(scaling) not in _LONG:
            continue
        original = scaling.get(_ORIGINAL) or section.get(_ORIGINAL)
        short = {
            f"long_{name}": scaling[f"short_{name}"]
            for name in ("factor", "mscale")
            if scaling.get(f"short_{name}") is not None
        }
        if not isinstance(original, int) or short.items() <= scaling.items():
            continue
        if context_tokens <= original:
            made[key] = {**scaling, **short}
        else:
            differing = original
    return made, differing


def _set_by_layer(
    made: dict[str, Any], described: Mapping[str, Any], reads: Collection[str]
) -> str | None:
    whole = described.get(_GLOBAL_LAYERS) or described.get(_LOCAL_LAYERS)
    if whole is None or not described.keys() <= {_GLOBAL_LAYERS, _LOCAL_LAYERS}:
        return f"has {_KEY} for {', '.join(sorted(described))}"
    _set(made, whole)
    local = described.get(_LOCAL_LAYERS, whole)
    own_key = next((key for key in _LOCAL_THETAS if key in reads), None)
    if own_key and not _is_scaled(local):
        # The class has a default of its own for these layers.
        if "rope_theta" in local:
            made.setdefault(own_key, local["rope_theta"])
        return None
    plain_ones = made.get("model_type") in _SCALES_GLOBAL_LAYERS and not _is_scaled(local)
    if local != whole and not (plain_ones and local.get("rope_theta") == whole.get("rope_theta")):
        return f"has other {_KEY} for {_LOCAL_LAYERS} than for {_GLOBAL_LAYERS}"
    return None


def _set(made: dict[str, Any], described: Mapping[str, Any]) -> None:
    kind = _kind(described)
    rest = {
        key: value
        for key, value in described.items()
        if key not in ("rope_theta", "partial_rotary_factor", "rope_type", "type")
    }
    for key in ("rope_theta", "partial_rotary_factor"):
        if described.get(key) is not None:
            made.setdefault(key, described[key])
    # Sections of a multimodal rope belong to its scaling, whatever the type is called.
    if kind != "default" or rest:
        scaling = {**rest, "rope_type": kind, "type": kind}
        if made.get("rope_scaling") is None:
            made["rope_scaling"] = scaling


def _kind(described: Mapping[str, Any]) -> str:
    return str(described.get("rope_type", described.get("type", "default")))


def _is_scaled(described: Mapping[str, Any]) -> bool:
    # "mrope" is a matter of places, and of theta alone.
    return _kind(described) not in ("default", "mrope", "None")
