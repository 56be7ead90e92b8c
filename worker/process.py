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
from lmx.protocol.messages.specs import WorkerSpec
from lmx.protocol.states import WorkerExit
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
    """Run the worker that stdin describes; never returns."""
    map_large_blocks()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    # A Ctrl-C in the terminal reaches the whole group; the supervisor decides what ends.
    # A habitual SIGHUP (reload, rotate) has no use here, and must not cost anybody a stream.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        spec = decode(sys.stdin.buffer.read()).message
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
