"""Which model a stored prefix belongs to: the same files, read by the same code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

# Files that decide what a model computes of its tokens, besides its weights.
_DECISIVE: Final = ("config.json", "adapter_config.json", "model.safetensors.index.json")


def prefix_namespace(folder: Path, versions: Sequence[str]) -> str:
    """Return a name for what a model's prefixes are kept under: letters and digits.

    Weights count by path, size and time of change: reading them takes as long as loading.
    ``versions``: of whatever else decides, such as the engine. Raises ``OSError``.
    """
    folder = folder.resolve()
    weights = [
        (path.name, path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted(folder.glob("*.safetensors"))
    ]
    decisive = [
        (name, hashlib.sha256((folder / name).read_bytes()).hexdigest())
        for name in _DECISIVE
        if (folder / name).exists()
    ]
    identity = json.dumps([str(folder), weights, decisive, list(versions)])
    return hashlib.sha256(identity.encode()).hexdigest()[:32]
