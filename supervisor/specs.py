"""Builds the specs of child processes from the configuration. Pure."""

from __future__ import annotations

import socket
from pathlib import Path

from lmx.protocol.specs import LogSpec, RouterSpec, WorkerSpec
from lmx.supervisor.config import Config, ModelConfig
from lmx.supervisor.home import Home


def worker_spec(
    config: Config, home: Home, model: ModelConfig, instance: str, path: Path, reserved_bytes: int
) -> WorkerSpec:
    """Return the spec of a model's worker; its share of memory is what was reserved."""
    return WorkerSpec(
        instance=instance,
        model_id=model.id,
        model_path=str(path),
        run_dir=str(home.run.path),
        log=_log_spec(config, home.worker_log(model.id)),
        engine=model.engine,
        engine_options=dict(model.engine_options),
        memory_limit_bytes=reserved_bytes,
        max_rows=model.max_rows,
        max_queue=model.max_queue,
        context_length=model.context_length,
        default_max_tokens=model.default_max_tokens,
        max_tokens_limit=model.max_tokens_limit,
        temperature=model.temperature,
        top_p=model.top_p,
        beat_interval_s=config.timing.beat_interval_s,
        orphan_grace_s=config.timing.orphan_grace_s,
    )


def router_spec(
    config: Config, home: Home, router_id: str, listener: socket.socket, version: str
) -> RouterSpec:
    """Return the router's spec; the socket's descriptor must be inherited under its number."""
    server, timing = config.server, config.timing
    return RouterSpec(
        router_id=router_id,
        run_dir=str(home.run.path),
        log=_log_spec(config, home.router_log),
        listen_fd=listener.fileno(),
        host=server.host,
        port=listener.getsockname()[1],
        version=version,
        body_limit_bytes=int(server.body_limit_bytes),
        load_wait_s=server.load_wait_s,
        stall_timeout_s=server.reader_stall_timeout_s,
        worker_silence_s=server.worker_silence_s,
        ping_interval_s=server.ping_interval_s,
        shutdown_grace_s=timing.shutdown_grace_s,
        beat_interval_s=timing.beat_interval_s,
        orphan_grace_s=timing.orphan_grace_s,
    )


def _log_spec(config: Config, path: Path) -> LogSpec:
    logs = config.logs
    return LogSpec(str(path), logs.level, int(logs.max_bytes), logs.keep)
