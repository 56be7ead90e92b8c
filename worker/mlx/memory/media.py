"""What pictures take: tokens of the context, and memory. This module is pure.

It counts for one picture of 1024 x 768 pixels, from config.json alone. The processor, which has the
last word, is not known before the model is loaded.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from lmx.protocol.models.checkpoint import CheckpointConfig, Section, count
from lmx.protocol.models.memory import MediaMemory

WIDTH: Final = 1024
HEIGHT: Final = 768

HIDDEN_COPIES: Final = 4
INNER_COPIES: Final = 3
SCORE_COPIES: Final = 2
"""How many of a layer's intermediate results exist at once: of the hidden size, of the inner size,
and, if attention isn't one kernel as on Metal, scores before and after their softmax. It is the
same in what encodes media as in the language model."""

_LEAST_RATIO: Final = 1 / 64

_TILED: Final = frozenset({"idefics3", "smolvlm"})
_TILES_A_SIDE: Final = 4
"""Idefics 3 and SmolVLM make a picture so large that its longer side is this many tiles."""

_INTERNVL_TILES: Final = 12
_LFM_TILES: Final = 10
_LFM_TILE_PIXELS: Final = 512


class _View(NamedTuple):
    """What the vision encoder is given of a picture: pieces of one size."""

    pieces: int
    patches: int
    """Of each piece."""
    tokens: int
    """What each piece becomes for the language model."""


def media_memory(
    config: CheckpointConfig, weights_bytes: int, element_bytes: int, *, fused_attention: bool
) -> MediaMemory | None:
    """Return what a model's vision and audio encoders take. ``weights_bytes``: those of them; 0: it
    has none. ``fused_attention``: attention keeps no scores, because it is one kernel."""
    if not weights_bytes:
        return None
    vision = _vision(config.whole)
    if not vision:
        return MediaMemory(weights_bytes, 0, 0)
    view = _view(config, vision)
    return MediaMemory(
        weights_bytes,
        image_tokens=view.pieces * view.tokens,
        image_bytes=_encoding_bytes(vision, view, element_bytes, fused_attention=fused_attention)
        + view.pieces * view.tokens * config.hidden_size * element_bytes,
    )


def _vision(whole: Section) -> Section:
    for section in (whole, whole.get("thinker_config")):
        vision = section.get("vision_config") if isinstance(section, Mapping) else None
        if isinstance(vision, Mapping) and vision:
            return vision
    return {}


def _view(config: CheckpointConfig, vision: Section) -> _View:
    patch = count(vision, "patch_size", "spatial_patch_size") or 16
    image = count(vision, "image_size") or 448
    merge = _merge(config.whole, vision)
    fixed = _fixed_tokens(config)
    if fixed:
        return _View(1, fixed * merge * merge if merge > 1 else (image // patch) ** 2, fixed)
    if config.model_type in _TILED:
        rows = math.ceil(_TILES_A_SIDE * HEIGHT / WIDTH)
        return _piece(_TILES_A_SIDE * rows + 1, image, image, patch, merge)
    if config.model_type.startswith("internvl"):
        tiles = _tiles(1, count(config.whole, "max_dynamic_patch") or _INTERNVL_TILES)
        return _piece(tiles + (tiles > 1), image, image, patch, merge)
    if config.model_type.startswith("lfm2"):
        tile = count(config.whole, "tile_size") or _LFM_TILE_PIXELS
        patch = count(config.whole, "encoder_patch_size") or patch
        tiles = _tiles(2, count(config.whole, "max_tiles") or _LFM_TILES)
        return _piece(tiles + 1, tile, tile, patch, merge)
    if merge > 1 or config.model_type == "pixtral":
        return _piece(1, WIDTH, HEIGHT, patch, merge)
    return _piece(1, image, image, patch, merge)


def _piece(pieces: int, width: int, height: int, patch: int, merge: int) -> _View:
    side = patch * merge
    tokens = max(1, round(width / side)) * max(1, round(height / side))
    return _View(pieces, tokens * merge * merge, tokens)


def _merge(whole: Section, vision: Section) -> int:
    """Return how many patches a side become one token."""
    merge = (
        count(vision, "spatial_merge_size")
        or count(whole, "spatial_merge_size", "scale_factor", "downsample_factor")
        or count(vision, "pooling_kernel_size")
    )
    ratio = whole.get("downsample_ratio")
    if not merge and isinstance(ratio, float) and _LEAST_RATIO <= ratio < 1:
        merge = round(1 / ratio)
    return max(1, merge)


def _fixed_tokens(config: CheckpointConfig) -> int:
    names = ("mm_tokens_per_image", "vision_soft_tokens_per_image")
    return count(config.whole, *names) or count(config.text, *names)


def _tiles(least: int, most: int) -> int:
    """Return how many tiles come nearest to the form of the picture; of several, the most."""
    wanted = WIDTH / HEIGHT
    grids = _grids(least, min(most, 64))
    _, tiles = min(
        ((abs(wide / high - wanted), -wide * high) for wide, high in grids),
        default=(0.0, -1),
    )
    return -tiles


def _grids(least: int, most: int) -> Iterator[tuple[int, int]]:
    for wide in range(1, most + 1):
        for high in range(1, most // wide + 1):
            if wide * high >= least:
                yield wide, high


def _encoding_bytes(
    vision: Section, view: _View, element_bytes: int, *, fused_attention: bool
) -> int:
    hidden = count(vision, "hidden_size", "embed_dim", "width")
    inner = count(vision, "intermediate_size") or 4 * hidden
    heads = count(vision, "num_heads", "num_attention_heads", "heads")
    numbers = HIDDEN_COPIES * hidden + INNER_COPIES * inner
    scores = 0 if fused_attention else SCORE_COPIES * heads * view.patches
    return view.pieces * view.patches * (numbers + scores) * element_bytes
