"""What a supervisor tells a process that it starts. Travels over the child's stdin, once.

A spec is the process's whole configuration: it reads no file and no ``LMX_*`` variable.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lmx.protocol.models.memory import KvLayers
from lmx.protocol.models.sampling import SamplingParameters
from lmx.protocol.states import ModelKind
from lmx.protocol.wire.codec import message


@dataclass(frozen=True, slots=True)
class LogSpec:
    """Where a process logs. It rotates the file itself, so it needs no supervisor to log."""

    path: str
    level: str = "info"
    max_bytes: int = 10 * 1024 * 1024
    keep: int = 3


@dataclass(frozen=True, slots=True)
class PrefixCacheSpec:
    """Where prompts that were computed before are kept. ``disk_path`` None: in memory alone."""

    memory_bytes: int
    disk_path: str | None = None
    disk_bytes: int = 0


@dataclass(frozen=True, slots=True)
class SpeculationSpec:
    """Tokens are guessed ahead and checked together. ``draft_path`` names the folder of a
    small model that guesses; None: by looking up in the prompt and the answer what came after
    the last tokens when they came before. At most ``max_rows`` rows are guessed for."""

    draft_path: str | None = None
    num_assistant_tokens: int = 4
    assistant_confidence_threshold: float | None = None
    max_ngram_size: int = 3
    max_rows: int = 2


@message
@dataclass(frozen=True, slots=True)
class WorkerSpec(SamplingParameters):
    """One worker: one model.

    ``engine`` is ``module:function``; the function loads the model
    (``lmx.worker.engine.EngineFactory``). ``memory_limit_bytes`` is the worker's share of the
    budget: its caches and its wired memory stay within it. The sampling parameters are defaults
    for requests that name none, and ``template_kwargs`` likewise. ``max_decode_stall_s``: for
    how long at most a prompt's prefill keeps running streams from their next token.
    ``prefix_cache`` and ``speculation`` None: off. ``kv_cache_bytes`` is what the KV caches of
    all rows may take, counted with ``kv_layers``; None: not counted. ``max_queue_s``: a request
    that has waited so long for a row is given up. ``render_timeout_s``: one whose chat template
    takes so long is refused.
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
    kind: ModelKind = ModelKind.CHAT
    template_kwargs: dict[str, Any] | None = None
    tool_parser: str | None = None
    max_decode_stall_s: float = 0.3
    prefix_cache: PrefixCacheSpec | None = None
    speculation: SpeculationSpec | None = None
    kv_cache_bytes: int | None = None
    kv_layers: tuple[KvLayers, ...] = ()
    max_queue_s: float = 300.0
    render_timeout_s: float = 10.0
    beat_interval_s: float = 1.0
    orphan_grace_s: float = 300.0


@dataclass(frozen=True, slots=True)
class RateLimits:
    """How much may be asked for. None: without a limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent_requests: int | None = None


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key for inference. ``name`` is for people, empty where it has none; ``limits`` None: those
    of every key."""

    key: str = field(repr=False)
    name: str = ""
    limits: RateLimits | None = None


@dataclass(frozen=True, slots=True)
class RescueSpec:
    """What a router runs, as a child of its own, when it has heard no supervisor for ``silence_s``:
    it wakes or ends one that hangs, and starts another where nobody else does. ``environment`` is
    what the router's own lacks."""

    command: tuple[str, ...]
    silence_s: float
    environment: dict[str, Any] = field(default_factory=dict, repr=False)


@message
@dataclass(frozen=True, slots=True)
class RouterSpec:
    """The HTTP front. ``listen_fd`` is an inherited, listening socket: while a router is being
    restarted, new connections wait in its backlog instead of being refused. ``max_requests``:
    so many are answered at a time, more get 429. ``admin_key`` opens the routes for operators;
    one of ``api_keys`` the others, any key or none where there are no ``api_keys``.
    ``metrics_key`` opens the metrics; empty: none does. ``sync_timeout_s``: how long a request
    that does not stream waits for its answer. ``jobs_path`` is the file of the job records,
    which go by age, number and size. ``logs_dir`` is where the processes log. ``allowed_hosts``:
    names that it answers under beside the machine's own. ``cors_origins``: the pages of other
    origins that may use it. Both as in :mod:`lmx.protocol.web_origins`. ``key_limits`` are
    those of each key, or of each client's address where there are no keys; ``total_limits``
    those of all together. ``rescue`` None: nobody looks after a supervisor that is silent."""

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
    max_requests: int
    admin_key: str = field(repr=False)
    sync_timeout_s: float
    jobs_path: str
    jobs_max_age_s: float
    jobs_max_count: int
    logs_dir: str
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    api_keys: tuple[ApiKey, ...] = ()
    jobs_max_bytes: int = 512 * 1024 * 1024
    metrics_key: str = field(default="", repr=False)
    key_limits: RateLimits = RateLimits()
    total_limits: RateLimits = RateLimits()
    rescue: RescueSpec | None = None
    beat_interval_s: float = 1.0
    orphan_grace_s: float = 300.0
