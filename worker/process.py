"""The worker process: its spec, its log, its signals and its exit."""

import asyncio
import faulthandler
import os
import signal
import sys
from pathlib import Path
from typing import Final

import structlog
import zmq

from lmx.protocol.errors import ProtocolError
from lmx.protocol.host.logs import LogFile, configure_logs
from lmx.protocol.host.memory import map_large_blocks
from lmx.protocol.messages.specs import SPARE, WorkerSpec
from lmx.protocol.models.default_engine import MLX_ENGINE
from lmx.protocol.models.engine import prepare_function
from lmx.protocol.states import MemoryWiring, WorkerExit
from lmx.protocol.wire.codec import decode
from lmx.worker.lifecycle import WorkerLifecycle

log = structlog.get_logger()

_SWITCH_INTERVAL_S: Final = 0.0002
"""How long a thread that computes in Python keeps the engine thread waiting. With Python's default
of 5 ms, decode steps of a tiny model took up to five times as long while a prompt was tokenized."""


async def _serve(spec: WorkerSpec) -> int:
    try:
        worker = WorkerLifecycle(spec)
    except (zmq.ZMQError, OSError):
        log.exception("worker.bind_failed", run_dir=spec.run_dir)
        return WorkerExit.HOST
    try:
        return await worker.run()
    finally:
        worker.close()


def main() -> None:
    """Run the worker that stdin describes; never returns. A spare worker imports its libraries
    first: its spec comes when a model needs it, and the end of stdin when nobody can send one any
    more."""
    map_large_blocks()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    # A Ctrl-C in the terminal reaches the whole group; the supervisor decides what ends.
    # A habitual SIGHUP (reload, rotate) has no use here, and must not cost anybody a stream.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    is_spare = sys.argv[1:2] == [SPARE]
    if is_spare:
        prepare_function(MLX_ENGINE)(MemoryWiring(sys.argv[2]))
    try:
        content = sys.stdin.buffer.read()
        if is_spare and not content:
            sys.exit(0)  # Its supervisor has ended, and it has no model.
        spec = decode(content).message
        if not isinstance(spec, WorkerSpec):
            raise ProtocolError(f"expected a WorkerSpec, got {type(spec).__name__}")
    except ProtocolError as error:
        sys.exit(f"lmx.worker reads a WorkerSpec from stdin: {error}")
    log_file = LogFile(Path(spec.log.path), spec.log.max_bytes, spec.log.keep)
    log_file.attach()
    log_file.keep()
    faulthandler.enable()
    configure_logs("worker", spec.log.level, model=spec.model_id, instance=spec.instance)
    status = 1
    try:
        status = asyncio.run(_serve(spec))
    except Exception as error:
        if isinstance(error, MemoryError):
            status = WorkerExit.OUT_OF_MEMORY
        log.exception("worker.failed")
    finally:
        log.info("worker.exited", status=int(status))
        sys.stderr.flush()
        # The engine thread may be inside a step for as long as it likes. A normal exit would
        # wait for it, or tear the interpreter down under it.
        os._exit(status)
