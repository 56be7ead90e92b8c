"""Which layers see a window alone, of types whose classes in mlx-lm have none, or have their own
words for it. Pure.

Source: the configurations of transformers 5, of each of these types.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

_Rule = Callable[[int, int], bool]
"""Whether a layer has a window, by its number and ``max_window_layers``."""

_RULES: Final[Mapping[str, _Rule]] = {
    **dict.fromkeys(("mistral", "mixtral", "phi3", "qwen3_moe", "starcoder2"), lambda *_: True),
    **dict.fromkeys(("dots1", "qwen2", "qwen3"), lambda layer, most: layer >= most),
    "gemma2": lambda layer, _: layer % 2 == 0,
    "qwen2_moe": lambda layer, most: layer % 2 == 0 and layer < most,
}
_SWITCHED: Final = frozenset({"qwen2", "qwen2_moe", "qwen3", "qwen3_moe"})
"""Those that have windows only where ``use_sliding_window`` says so."""

_MOST_WINDOW_LAYERS: Final = {"dots1": 62}
_USUAL_WINDOW_LAYERS: Final = 28

_PATTERN: Final = "sliding_window_pattern"
_EXAONE4_EVERY: Final = 4
_KEYS: Final = ("layer_types", "max_window_layers", "sliding_window", "use_sliding_window")


def window_keys(model_type: str) -> Collection[str]:
    """Return the keys of config.json that say which layers of a type have windows."""
    return _KEYS if model_type in _RULES else ()


def window_layers(section: Mapping[str, Any], layers: int) -> Sequence[bool]:
    """Return of each layer whether it sees no more than ``sliding_window`` tokens; nothing where
    no layer has a window, or the type is none of these."""
    kind = str(section.get("model_type"))
    rule, window = _RULES.get(kind), section.get("sliding_window")
    if rule is None or not isinstance(window, int) or window <= 0:
        return ()
    if kind in _SWITCHED and not section.get("use_sliding_window"):
        return ()
    longest = section.get("max_position_embeddings")
    if isinstance(longest, int) and longest <= window:
        return ()
    names = section.get("layer_types")
    if isinstance(names, list) and len(names) == layers:
        slides = [name == "sliding_attention" for name in names]
    else:
        most = section.get("max_window_layers")
        if not isinstance(most, int):
            most = _MOST_WINDOW_LAYERS.get(kind, _USUAL_WINDOW_LAYERS)
        slides = [rule(layer, most) for layer in range(layers)]
    return slides if any(slides) else ()


def with_windows(section: Mapping[str, Any], context_tokens: int) -> tuple[dict[str, Any], str]:
    """Return a section in the words of its model's class, and what that can't compute: it continues
    "config.json". A window that no text of ``context_tokens`` is longer than is left out."""
    made, kind = dict(section), section.get("model_type")
    window, names = section.get("sliding_window"), section.get("layer_types")
    if kind in _RULES and isinstance(window, int) and 0 < context_tokens <= window:
        made["sliding_window"] = None
        if isinstance(names, list):
            # Some classes make windows of these names alone.
            made["layer_types"] = ["full_attention"] * len(names)
    if kind == "exaone4":
        # A window that is null, unlike one that is absent, says that no layer has one.
        without = "sliding_window" in section and window is None
        return (made | {_PATTERN: None}, "") if without else _exaone4(made)
    if not isinstance(names, list) or kind != "cohere2":
        return made, ""
    slides = [name == "sliding_attention" for name in names]
    for every in range(1, len(slides) + 1):
        if slides == [(layer + 1) % every != 0 for layer in range(len(slides))]:
            made[_PATTERN] = every
            return made, ""
    return made, "has its layers with windows in an order that is no pattern"


def _exaone4(section: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Return what :func:`with_windows` returns. The class reads a pattern of letters alone, and
    where it has none, no layer has a window and all have rotary embeddings."""
    names, pattern = section.get("layer_types"), section.get(_PATTERN, _EXAONE4_EVERY)
    if isinstance(names, list):
        pattern = "".join("L" if name == "sliding_attention" else "G" for name in names)
    elif isinstance(pattern, int) and pattern > 0:
        pattern = "L" * (pattern - 1) + "G"
    kinds = set(pattern or "G")
    if len(kinds) > 1:
        return section | {_PATTERN: pattern}, ""
    if "L" in kinds:
        return section, "lets all of its layers have windows"
    if section.get("sliding_window"):
        return section, "gives a window (sliding_window) to none of its layers"
    return section | {_PATTERN: None}, ""
