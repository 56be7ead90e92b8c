"""A supervisor's status as it is told, for tests of what the router makes of it."""

from typing import Any

from lmx.protocol.messages.status import ModelStatus, SystemStatus
from lmx.protocol.wire.codec import from_map

GIB = 1024**3


def status_line(model: str, state: str = "ready", **values: Any) -> ModelStatus:
    """One model's part of it."""
    line = {
        "model": model, "aliases": ["short"], "source": f"owner/{model}", "kind": "chat",
        "family": "qwen3", "added": False, "parameters": {}, "state": state, "pid": 4711,
        "instance": "0000000a", "memory_bytes": 2 * GIB, "peak_memory_bytes": 3 * GIB,
        "kv_bytes": 0, "reserved_bytes": 4 * GIB, "needed_bytes": 4 * GIB,
        "weights_bytes": 1536 * 1024**2, "kv_capacity_bytes": 512 * 1024**2,
        "context_bytes": 128 * 1024**2 + 1,
        "pinned": False, "idle_s": 12.5, "expires_in_s": None, "position": None, "waiting": 0,
        "max_rows": 8, "context_length": 4096, "requests_active": 0, "requests_queued": 0,
        "stalled_s": 0.0, "requests_total": 42, "tokens_total": 1000, "phase": None,
        "fraction": None, "loaded_at_s": 1_708_012_345.0, "loads_total": 1, "load_s_total": 2.0,
        "exits": {}, "last_exit": None, "restarts": 0, "retry_in_s": None, "problem": None,
        **values,
    }  # fmt: skip
    return from_map(ModelStatus, line, "model")


def last_exit(pid: int = 4711, returned_bytes: int = 2 * GIB) -> dict[str, Any]:
    """How a worker ended whose memory has come back, for ``last_exit``."""
    memory = {
        "returned_bytes": returned_bytes, "missing_bytes": 0, "took_s": 0.4,
        "detail": f"{returned_bytes / GIB:.1f} GiB came back in 0.4 s",
    }  # fmt: skip
    return {"cause": "killed", "detail": "", "at_s": 1.0, "pid": pid, "memory": memory}


def cold_line(model: str, **values: Any) -> ModelStatus:
    """That of a model that is not loaded."""
    return status_line(
        model,
        **{
            "state": "cold",
            "pid": None, "instance": None, "memory_bytes": 0, "peak_memory_bytes": 0,
            "reserved_bytes": 0, "idle_s": None, "requests_total": 0, "loaded_at_s": None,
            **values,
        },
    )  # fmt: skip


def reported_status(
    *models: ModelStatus, router: dict[str, Any] | None = None, **supervisor: Any
) -> SystemStatus:
    """All of it: ``router`` and ``supervisor`` have what is not as usual."""
    reported = {
        "supervisor": {
            "state": "running", "epoch": "e1", "budget_bytes": 96 * GIB,
            "reserved_bytes": 8 * GIB, "missing_bytes": 0, "memory_soft_line": 0.9,
            "swaps_total": 0, "memory_pressure": "none", "machine_memory_bytes": 128 * GIB,
            "machine_used_bytes": 64 * GIB, "machine_available_bytes": 64 * GIB, "pid": 1,
            "version": "1.2.3", "uptime_s": 3600.5, "memory_bytes": 1, "home": "/h",
            "notices": [], **supervisor,
        },
        "router": {
            "state": "running", "pid": 2, "host": "127.0.0.1", "port": 8000, "adopted": False,
            "memory_bytes": 1, "streams": 3, "waiting": 0, "requests_total": 9, "restarts": 0,
            "retiring": 0, "url": "http://127.0.0.1:8000/v1",
            "urls": ["http://127.0.0.1:8000/v1"], **(router or {}),
        },
        "workers": [],
    }  # fmt: skip
    found = from_map(SystemStatus, reported, "status")
    return SystemStatus(supervisor=found.supervisor, router=found.router, workers=models)
