"""The types of the two libraries that no conformance test tries, each with the reason."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Final

import mlx_lm.models
import mlx_vlm.models
from mlx_lm.utils import MODEL_REMAPPING as LM_REMAPPING
from mlx_vlm.utils import MODEL_REMAPPING as VLM_REMAPPING

from lmx.protocol.host.python_source import python_tree
from tests.support.models.media_models import HEARING
from tests.support.models.text_models import CONFIGS
from tests.support.models.vlm_models import SEEING, TEXT_ALONE

_DECIDES: Final = "it classifies or marks what it reads, and writes no text"
_DIFFUSES: Final = "it fills in what is masked, and does not write from left to right"
_EMBEDS: Final = "it makes embeddings and no text"
_FIXED_EYES: Final = "its eyes have a fixed size of hundreds of megabytes"
_LOOKS: Final = "it finds or measures what is in pictures, and writes no text"
_METAL: Final = "it has kernels of its own, which need Metal"
_PACKED: Final = "its weights are packs of 2 bits with a manifest, which only their publisher makes"
_TWO_PARTS: Final = (
    "its encoder and its decoder are joined by cross attention: lmx has no form of it"
)

NOT_EXAMINED: Final[Mapping[str, Mapping[str, str]]] = {
    "mlx-lm": {
        "bitnet": _METAL,
        "deepseek_v41": "its caches are of a kind that mlx-vlm doesn't have; lmx refuses what "
        "mlx-lm saved of it",
        "muse_spark": _METAL,
        "olmo": "its module ends the process where the package ai2-olmo isn't installed",
        "prism_hadamard_qwen35": _PACKED,
    },
    "mlx-vlm": {
        "bert": _EMBEDS,
        "bitnet": _METAL,
        "clef": _DECIDES,
        "colidefics3": _EMBEDS,
        "colqwen2_5": _EMBEDS,
        "d1": _DECIDES,
        "d1_omni": _DECIDES,
        "decider2": _DECIDES,
        "deepseekocr": _FIXED_EYES,
        "deepseekocr_2": _FIXED_EYES,
        "diffusion_gemma": _DIFFUSES,
        "dinov2": _EMBEDS,
        "embedding_gemma2": _EMBEDS,
        "falcon_perception": _LOOKS,
        "fastvlm": _FIXED_EYES,
        "florence2": _TWO_PARTS,
        "gemma3_embedding": _EMBEDS,
        "gliner2_5": _DECIDES,
        "laya": _DECIDES,
        "lfm2_colbert": _EMBEDS,
        "lfm2_embedding": _EMBEDS,
        "lfm2_encoder": _DECIDES,
        "limite": "random weights of it give no finite numbers",
        "llada2_moe": _DIFFUSES,
        "llama_bidirec": _EMBEDS,
        "llama_nemotron_vl_embedding": _EMBEDS,
        "locateanything": _DIFFUSES,
        "minicpmo": "in mlx-vlm 0.7.10 its class asks its eyes for a spatial_merge_size, which "
        "they don't have: it doesn't load",
        "ministral3_embedding": _EMBEDS,
        "modernbert": _EMBEDS,
        "moge3": _LOOKS,
        "muse_spark": _METAL,
        "nemotron_labs_diffusion": _DIFFUSES,
        "nemotron_parse": _TWO_PARTS,
        "nemotron_voicechat": "it speaks, and its module asks for the package scipy",
        "olmo": "a folder of it is given to mlx-lm's module first",
        "openai_privacy_filter": _DECIDES,
        "phi3_v": _FIXED_EYES,
        "phi4mm": "its eyes and ears have a fixed size of gigabytes",
        "pp_doclayout_v3": _LOOKS,
        "prism_hadamard_qwen35": _PACKED,
        "qwen3_embedding": _EMBEDS,
        "qwen3_vl_embedding": _EMBEDS,
        "rfdetr": _LOOKS,
        "rt_detr_v2": _LOOKS,
        "sam3": _LOOKS,
        "sam3_1": _LOOKS,
        "sam3d_body": _LOOKS,
        "sam3d_objects": _LOOKS,
        "sapiens2": _LOOKS,
        "siglip": _EMBEDS,
        "unlimited_ocr": _FIXED_EYES,
        "video_depth_anything": _LOOKS,
        "xlm_roberta": _EMBEDS,
    },
}
"""By library and name of a module of its models, why it isn't examined."""


def not_examined() -> dict[str, set[str]]:
    """Return by library the modules with a model that is examined nowhere."""
    texts = {LM_REMAPPING.get(name, name) for name in CONFIGS}
    seeing = {VLM_REMAPPING.get(name, name) for name in SEEING.keys() | HEARING.keys()}
    # mlx-lm's class serves what both have, where the model has no eyes.
    shared = {VLM_REMAPPING.get(name, name).lower() for name in CONFIGS}
    alone = {VLM_REMAPPING.get(name, name) for name in TEXT_ALONE}
    missing: dict[str, set[str]] = {"mlx-lm": set(), "mlx-vlm": set()}
    for name, _ in _models(mlx_lm.models):
        if name not in texts:
            missing["mlx-lm"].add(name)
    for name, names in _models(mlx_vlm.models):
        examined = seeing | alone if "VisionConfig" in names else shared | alone
        if name not in examined:
            missing["mlx-vlm"].add(name)
    return missing


def lines() -> list[str]:
    """Return the lines of the table of the page: those of one reason share a line."""
    found = []
    for library, types in NOT_EXAMINED.items():
        for reason in sorted(set(types.values())):
            names = ", ".join(f"`{name}`" for name, why in types.items() if why == reason)
            found.append(f"| {library} | {names} | {reason} |")
    return found


def _models(package: ModuleType) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield the modules that have a model, and all names that each defines or imports. They are
    read and not imported: some change other libraries, and one ends the process."""
    folder = Path(package.__path__[0])
    if package is mlx_vlm.models:
        files = {file.parent.name: file for file in folder.glob("*/__init__.py")}
    else:
        files = {file.stem: file for file in folder.glob("*.py")}
    for name, file in sorted(files.items()):
        names = frozenset(_names(python_tree(file.read_text())))
        if "Model" in names:
            yield name, names


def _names(module: ast.Module) -> Iterator[str]:
    for each in module.body:
        match each:
            case ast.ClassDef():
                yield each.name
            case ast.ImportFrom():
                yield from (alias.asname or alias.name for alias in each.names)
            case ast.Assign():
                yield from (target.id for target in each.targets if isinstance(target, ast.Name))
