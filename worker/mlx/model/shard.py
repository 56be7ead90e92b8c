"""Dividing a model among ranks, by mlx-lm's own functions, before its weights are read."""

import os
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import structlog

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.models.checkpoint import CheckpointConfig
from lmx.protocol.models.ranks import Parallel, parallel_of
from lmx.protocol.states import ModelKind
from lmx.worker.engine.interfaces import Ranks
from lmx.worker.mlx.model.text_model import TextModel

log = structlog.get_logger()

_BACKENDS: Final = {"MLX_HOSTFILE": "ring", "MLX_IBV_DEVICES": "jaccl"}
"""mlx's backends, by the variable that names the file of each."""


def divide(model: Any, config: CheckpointConfig, ranks: Ranks) -> mx.distributed.Group:
    """Keep this rank's part of a model alone, and return the group of all ranks. Waits for the
    others.

    Raises :class:`OperationError` for a model that can't be divided, and where there is no RDMA for
    ranks that are to use it.
    """
    spec = ranks.spec
    parallel = parallel_of(config, ModelKind.CHAT, spec.count, spec.parallel)
    if not isinstance(model, TextModel):
        raise OperationError(
            ErrorCode.CONFIG_INVALID,
            "ranks: only a model that mlx-lm's own class computes can be divided, and this one has "
            "another form or takes more than text: leave `ranks` out, or serve what mlx_lm.convert "
            "makes of it.",
            param="ranks",
        )
    group = join_group(ranks)
    inner = model.language_model.inner
    if parallel is Parallel.TENSOR:
        inner.shard(group)
    else:
        inner.model.pipeline(group)
    log.info("model.divided", rank=ranks.rank, ranks=spec.count, parallel=parallel.value)
    return group


def join_group(ranks: Ranks) -> mx.distributed.Group:
    """Return the group. mlx reads the variables when it is made, and knows no other way."""
    environment = ranks.meet()
    (file,) = _BACKENDS.keys() & environment.keys()
    backend = _BACKENDS[file]
    os.environ.update(environment)
    try:
        if not mx.distributed.is_available(backend):
            raise OperationError(
                ErrorCode.MODEL_LOAD_FAILED,
                f"backend: this machine's mlx has no {backend}, which needs a Mac with RDMA over "
                "Thunderbolt (`lmx doctor`): set backend to ring",
                param="backend",
            )
        return mx.distributed.init(strict=True, backend=backend)
    finally:
        for name in environment:
            del os.environ[name]
        # All have read theirs by now.
        Path(environment[file]).unlink()
