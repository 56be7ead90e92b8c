"""The engine of a model whose configuration names none."""

from typing import Final

MLX_ENGINE: Final = "lmx.worker.mlx.factory:create"
"""``module:function``, as :mod:`lmx.protocol.models.engine` reads it."""
