"""Whether two machines would compute the same: by the files of a model, and by the versions of what
computes it."""

import hashlib
from importlib import metadata
from pathlib import Path
from typing import Final

COMPUTES: Final = ("lmx", "mlx", "mlx-lm")
"""The packages that must be of one version on all machines of a divided model."""

_BLOCKS: Final = 64
_BLOCK_BYTES: Final = 16 * 1024


def versions() -> dict[str, str]:
    """Return the versions of what computes models."""
    return {name: metadata.version(name) for name in COMPUTES}


def digest(folder: Path) -> str:
    """Return a hash of a model's config.json and of samples of its weights: the sizes of all files,
    and 64 blocks of each, with the first and the last. So another revision, another quantization
    and another fine-tune differ, and a model of 400 GB takes a second. It is no proof against
    somebody who makes files that have the same one.

    Raises ``OSError``.
    """
    found = hashlib.sha256((folder / "config.json").read_bytes())
    for path in sorted(folder.glob("*.safetensors")):
        size_bytes = path.stat().st_size
        found.update(f"{path.name}:{size_bytes}:".encode())
        last = max(0, size_bytes - _BLOCK_BYTES)
        with path.open("rb") as file:
            for number in range(_BLOCKS):
                file.seek(last * number // (_BLOCKS - 1))
                found.update(file.read(_BLOCK_BYTES))
    return found.hexdigest()
