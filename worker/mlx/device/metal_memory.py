"""Wires the weights on a Mac, limits what mlx takes, and gives all of it back at the end. On other
machines these functions do nothing. Engine thread, while nothing is computed.
"""

import gc
from collections.abc import Iterable
from typing import Any

import mlx.core as mx
import structlog

from lmx.protocol.states import MemoryWiring
from lmx.worker.mlx.device.wired import wired_bytes

log = structlog.get_logger()


def wire_weights(wiring: MemoryWiring, limit_bytes: int) -> None:
    """Wire the weights as ``wiring`` says. Called when they are in memory, and nothing else is.

    From now on mlx waits for what it computes before it takes more than ``limit_bytes``, the
    worker's share of the memory, or than the weights if they are larger.
    """
    if not mx.metal.is_available():
        return
    gc.collect()
    # mlx forbids another limit of wired memory while something is computed.
    mx.synchronize()
    mx.clear_cache()
    weights_bytes = int(mx.get_active_memory())
    most_bytes = int(mx.device_info()["max_recommended_working_set_size"])
    mx.set_memory_limit(max(limit_bytes, weights_bytes))
    wired = wired_bytes(wiring, weights_bytes, most_bytes)
    if wired:
        mx.set_wired_limit(wired)
    log.info(
        "memory.wired",
        wired_bytes=wired,
        weights_bytes=weights_bytes,
        working_set_bytes=most_bytes,
        wiring=wiring.value,
    )


def release_memory(models: Iterable[Any]) -> None:
    """Free the parameters of these models, whoever still refers to them, and unwire all memory. The
    models can't be used any more.

    A process that ends with wired memory may leave it wired, for good: of 424 GiB of a killed
    process 414 GiB stayed until the Mac was started again, and 5 GiB of one that had freed it.
    """
    if not mx.metal.is_available():
        return
    for model in models:
        for module in model.modules():
            module.clear()  # An nn.Module is the dict of its parameters and parts.
    # The objects of the load were put out of the garbage collector's sight.
    gc.unfreeze()
    gc.collect()
    try:
        mx.synchronize()
    finally:
        # A device that has failed says so here, and what is wired must be unwired all the same.
        unwire()


def unwire() -> None:
    """Unwire all memory, and free what is kept for reuse. What the process still refers to stays in
    memory."""
    if not mx.metal.is_available():
        return
    mx.set_wired_limit(0)
    mx.clear_cache()
