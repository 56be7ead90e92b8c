"""The folder of what lmx keeps for a user outside of any ``LMX_HOME``, and can get again."""

import os
from pathlib import Path


def cache_dir() -> Path:
    """LMX_CACHE_DIR, or lmx below XDG_CACHE_HOME, or ~/.cache/lmx. Not created here. Raises
    ``RuntimeError`` for a user without a home."""
    if explicit := os.environ.get("LMX_CACHE_DIR"):
        return Path(explicit).expanduser().absolute()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg).expanduser().absolute() / "lmx"
    return Path.home() / ".cache" / "lmx"
