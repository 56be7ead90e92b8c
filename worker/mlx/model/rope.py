"""Rotary embeddings as transformers 5 describes them (``rope_parameters``), in the keys that the
libraries' classes read. Pure.

transformers 5 writes theta and scaling into ``rope_parameters`` alone, for all layers or by type of
layer. Many classes of mlx-lm and mlx-vlm read ``rope_theta`` and ``rope_scaling`` only, and compute
with a default where these are missing. Source: transformers' ``modeling_rope_utils``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

_KEY: Final = "rope_parameters"
_LOCAL_THETA: Final = "rope_local_base_freq"
"""What Gemma 3's classes read the theta of their layers with windows from."""
_GLOBAL_LAYERS: Final = "full_attention"
_LOCAL_LAYERS: Final = "sliding_attention"


class RopeError(ValueError):
    """The rotary embeddings are described in a way that the model's class can't compute. The
    message continues a sentence that begins with "config.json"."""


def with_rope(section: Mapping[str, Any], reads: Collection[str]) -> dict[str, Any]:
    """Return a language model's section of config.json with the keys that its class reads.

    ``reads`` are those keys. What the section says itself stays. Raises :class:`RopeError` for what
    the class has no keys for: it would compute with a default.
    """
    made = dict(section)
    described = section.get(_KEY)
    if isinstance(described, Mapping) and described:
        if not all(isinstance(value, Mapping) for value in described.values()):
            _set(made, described)
        elif _KEY not in reads:
            _set_by_layer(made, described, reads)
    scaling = made.get("rope_scaling")
    ignored = bool(reads) and not {"rope_scaling", _KEY}.intersection(reads)
    if ignored and isinstance(scaling, Mapping) and _is_scaled(scaling):
        raise RopeError(f"scales its rotary embeddings ({_kind(scaling)})")
    return made


def _set_by_layer(
    made: dict[str, Any], described: Mapping[str, Any], reads: Collection[str]
) -> None:
    whole = described.get(_GLOBAL_LAYERS) or described.get(_LOCAL_LAYERS)
    if whole is None or not described.keys() <= {_GLOBAL_LAYERS, _LOCAL_LAYERS}:
        raise RopeError(f"has {_KEY} for {', '.join(sorted(described))}")
    _set(made, whole)
    local = described.get(_LOCAL_LAYERS, whole)
    if local == whole:
        return
    if _LOCAL_THETA not in reads or _is_scaled(local):
        raise RopeError(f"has other {_KEY} for {_LOCAL_LAYERS} than for {_GLOBAL_LAYERS}")
    if "rope_theta" in local:
        made.setdefault(_LOCAL_THETA, local["rope_theta"])


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
