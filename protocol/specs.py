"""What a supervisor tells a process that it starts. Travels over the child's stdin, once.

A spec is the process's whole configuration: it reads no file and no ``LMX_*`` variable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lmx.protocol.codec import message


@dataclass(frozen=True, slots=True)
class LogSpec:
    """Where a process logs. It rotates the file itself, so it needs no supervisor to log."""

    path: str
    level: str = "info"
    max_bytes: int = 10 * 1024 * 1024
    keep: int = 3


@message
@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """One worker: one model.

    ``engine`` is ``module:function``; the function takes this spec and returns an engine
    (``lmx.worker.engine.Engine``). ``memory_limit_bytes`` is the worker's share of the
    budget: its caches and its wired memory stay within it.
    """

    instance: str
    model_id: str
    model_path: str
    run_dir: str
    log: LogSpec
    engine: str
    engine_options: dict[str, Any]
    memory_limit_bytes: int
    max_rows: int
    max_queue: int
    context_length: int | None = None
    default_max_tokens: int | None = None
    max_tokens_limit: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    beat_interval_s: float = 1.0
    orphan_grace_s: float = 300.0


@message
@dataclass(frozen=True, slots=True)
class RouterSpec:
    """The HTTP front. ``listen_fd`` is an inherited, listening socket: while a router is
    being restarted, new connections wait in its backlog instead of being refused."""

    router_id: str
    run_dir: str
    log: LogSpec
    listen_fd: int
    host: str
    port: int
    version: str
    body_limit_bytes: int
    load_wait_s: float
    stall_timeout_s: float
    worker_silence_s: float
    ping_interval_s: float
    shutdown_grace_s: float
    beat_interval_s: float = 1.0
    orphan_grace_s: float = 300.0
