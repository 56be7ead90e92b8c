"""The configuration: every key with its type, range, default, meaning, and what a change of it
needs (:class:`lmx.supervisor.config.needs.Needs`). Values only.

Reading files and variables is :mod:`lmx.supervisor.config.load`'s. ``docs/configuration.md`` and
``deploy/lmx.schema.json`` are made from here by ``make docs``.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import (
    AfterValidator,
    ByteSize,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from lmx.protocol.messages.specs import StablePrompts
from lmx.protocol.web_origins import is_loopback
from lmx.supervisor.config.cross_checks import MistakesError, Parts
from lmx.supervisor.config.media import MediaConfig
from lmx.supervisor.config.model import GroupConfig, ModelConfig
from lmx.supervisor.config.needs import Needs
from lmx.supervisor.config.peers import MachineName, PeerConfig
from lmx.supervisor.config.routing import RoutingConfig
from lmx.supervisor.config.security import RateLimitsConfig, SecurityConfig
from lmx.supervisor.config.values import (
    DURATION,
    AllowedHosts,
    CorsOrigins,
    KeepAlive,
    Seconds,
    SecondsFromZero,
    Section,
    Size,
    server_address,
)

__all__ = [
    "KEYS_KEPT",
    "Config",
    "FilesConfig",
    "GroupConfig",
    "JobsConfig",
    "LogConfig",
    "MediaConfig",
    "MemoryConfig",
    "ModelConfig",
    "PeerConfig",
    "RateLimitsConfig",
    "RestartConfig",
    "RoutingConfig",
    "SecurityConfig",
    "ServerConfig",
    "TimingConfig",
    "TracingConfig",
]


KEYS_KEPT: Final = "keys_kept"
"""The context of a validation that says that lmx's home has a file of keys."""

PreventSleep = Literal["active", "always", "never"]
"""When a Mac may not go to sleep."""


class ServerConfig(Section):
    """The HTTP side."""

    name: Annotated[MachineName | None, Needs.ROUTER] = Field(None, examples=["studio"])
    """The name of this machine among its peers. Without it its host name."""
    host: Annotated[str, Needs.ADDRESS] = Field("127.0.0.1", min_length=1)
    """The address that lmx listens on. One that others can reach needs a key: `lmx key add`, or
    `security.api_keys`. With the same port, `lmx stop` and `lmx start` change one address to all of
    them (`0.0.0.0`, `::`) and back, and a reload refuses that."""
    port: Annotated[int, Needs.ADDRESS] = Field(8000, ge=0, le=65_535, strict=True)
    """The port that lmx listens on. 0 is any free one."""
    advertise: Annotated[bool, Needs.ROUTER] = False
    """Whether lmx announces itself in the local network (mDNS, Bonjour): as `NAME.local` after
    `name`, without one as `HOST-lmx.local`. It needs the extra `mdns`
    (docs/start/install.md)."""
    allow_lan_without_key: Annotated[bool, Needs.NOTHING] = False
    """Whether others may reach lmx though no key protects the API."""
    allowed_hosts: Annotated[AllowedHosts, Needs.ROUTER] = ()
    """Names that lmx answers under besides localhost, addresses and the machine's own names:
    `lmx.example.com`, `"*.example.com"`, or `"*"` for any."""
    cors_origins: Annotated[CorsOrigins, Needs.ROUTER] = ()
    """Web pages and apps that may use lmx from a browser, besides its own:
    `https://app.example.com`, `http://localhost:*`, `app://*`, or `"*"` for all."""
    body_limit_bytes: Annotated[Size, Needs.ROUTER] = ByteSize(32 * 1024**2)
    """A larger body of a request is refused with a 413. An image, a sound or a video in a body
    takes four bytes for three of its own; one that is fetched from a URL is not counted here."""
    max_requests: Annotated[int, Needs.ROUTER] = Field(2048, ge=1, le=100_000)
    """How many requests are answered at the same time, for all models together. One more is refused
    with a 429."""
    load_wait_s: Annotated[Seconds, Needs.ROUTER] = 300.0
    """How long a request waits for its model to load."""
    sync_timeout_s: Annotated[Seconds, Needs.ROUTER] = 600.0
    """How long a request that does not stream waits for its answer. Then it gets a 504, and its job
    continues."""
    ping_interval_s: Annotated[Seconds, Needs.ROUTER] = 10.0
    """A quiet stream gets an SSE comment this often."""
    reader_stall_timeout_s: Annotated[Seconds, Needs.ROUTER] = 60.0
    """A client that reads nothing for this long is cut off."""
    worker_silence_s: Annotated[Seconds, Needs.ROUTER] = 15.0
    """A worker that is silent for this long is given up, and its streams end."""
    prevent_sleep: Annotated[PreventSleep, Needs.NOTHING] = "active"
    """When a Mac does not go to sleep by itself: `active` while there are requests, loads or
    downloads and for a minute after them, `always` or `never`. It still sleeps when its lid is
    closed, or its user puts it to sleep."""
    stable_prompts: Annotated[tuple[StablePrompts, ...], Needs.ROUTER] = (
        StablePrompts.BILLING_HEADER,
        StablePrompts.TOKENS_LEFT,
    )
    """What models are not shown, because it differs in each request of a session, and nothing that
    follows it would be found in the prefix cache. Of system prompts: `billing_header`, the line
    `x-anthropic-billing-header: ...` with which Claude Code begins; `tokens_left`, as in
    `<total_tokens>90000 left</total_tokens>`; `times`, times of day with seconds, of which the date
    stays. `tool_order` shows tools in the order of their names. An answer's header `X-Lmx-Ignored`
    names what was left out. `[]` shows everything."""
    capture_requests: Annotated[int, Needs.ROUTER] = Field(0, ge=0, le=500)
    """How many of the last requests are kept with what they asked, for whoever has the admin key.
    **It shows prompts.** It is kept in memory alone, at most 1 MiB of each and 64 MiB of all,
    without keys and the content of files. With 0 nothing is kept, and what was kept is deleted."""
    show_rereads: Annotated[bool, Needs.ROUTER] = False
    """Whether whoever has the admin key sees the text at which a prompt differs from an earlier
    one, where much of it was computed again for that (docs/operating.md). **It shows prompts**:
    some 60 characters before that place and behind it. They are kept in memory alone. The reason
    and the place are shown in any case."""


_RecordAge = Annotated[float, Field(gt=0, le=10 * 365 * 86_400, allow_inf_nan=False), DURATION]


class JobsConfig(Section):
    """Records of generations (`GET /v1/jobs`), in `$LMX_HOME/state`."""

    max_age_s: Annotated[_RecordAge, Needs.ROUTER] = 86_400.0
    """A record is deleted when it is older than this."""
    max_count: Annotated[int, Needs.ROUTER] = Field(10_000, ge=1, le=10_000_000)
    """How many records are kept. The oldest of the key that has most are deleted first."""
    max_bytes: Annotated[Size, Needs.ROUTER] = Field(ByteSize(512 * 1024**2), ge=1024**2)
    """When the file is larger than this, the oldest records of the key that takes most are
    deleted."""


class FilesConfig(Section):
    """Files of clients (`/v1/files`), in `$LMX_HOME/files`."""

    max_file_bytes: Annotated[Size, Needs.ROUTER] = Field(ByteSize(512 * 1024**2), ge=1024)
    """A larger file is refused with a 413."""
    max_key_bytes: Annotated[Size, Needs.ROUTER] = Field(ByteSize(10 * 1024**3), ge=1024)
    """How much the files of one key may take together; those of all clients where there are no
    keys."""
    max_bytes: Annotated[Size, Needs.ROUTER] = Field(ByteSize(20 * 1024**3), ge=1024)
    """How much all files may take."""


class MemoryConfig(Section):
    """The memory that all workers share, and which models are evicted."""

    budget_bytes: Annotated[Size | None, Needs.NOTHING] = Field(None, examples=["48GiB"])
    """All workers together may take this much, as far as `os_reserve_bytes` leaves it, and on a Mac
    never more than what the GPU may have, less 1 GiB. Without it they may take
    `budget_fraction`."""
    budget_fraction: Annotated[float | None, Needs.NOTHING] = Field(
        None, gt=0, le=1, allow_inf_nan=False, examples=[0.75]
    )
    """All workers together may take this share of the machine's memory (of the unified memory on a
    Mac), where `budget_bytes` does not say how much. Without it they may take 0.75, and on a Mac
    what the GPU may have, less 1 GiB, which is more on large ones and less on small ones. Neither
    key raises that."""
    os_reserve_bytes: Annotated[Size, Needs.NOTHING] = ByteSize(2 * 1024**3)
    """The budget never takes this part of the machine's memory."""
    soft_line: Annotated[float, Needs.NOTHING] = Field(0.92, gt=0, le=1, allow_inf_nan=False)
    """A share of the machine's memory in use, by whomever. Beyond it nothing is begun, caches
    shrink and idle models go."""
    hard_line: Annotated[float, Needs.NOTHING] = Field(0.97, gt=0, le=1, allow_inf_nan=False)
    """A share of the machine's memory in use, above `soft_line`. Beyond it requests are preempted,
    which resume later where they can; then the worker that grows is killed."""
    keep_alive: Annotated[KeepAlive, Needs.NOTHING] = -1.0
    """How long an idle model stays loaded: `300`, `90s`, `5m`, `1h30m`, `forever`, or `0` (it
    is unloaded after each answer). Models and requests may say another time."""
    kv_bits: Annotated[Literal[4, 8] | None, Needs.NEXT_WORKER] = Field(None, examples=[8])
    """The bits of each number in the KV caches of models that do not say it by their own key. With
    8 they take about half of the memory and hardly change answers, with 4 about a quarter, and
    change them more. Without it, caches have the numbers that the model computes with."""
    wire: Annotated[Literal["auto", "always", "never"], Needs.NEXT_WORKER] = "auto"
    """Whether a Mac may not compress or swap the weights: `auto` if they are larger than half of
    what the GPU may have, `always` or `never`. Caches are never wired."""
    spare_worker: Annotated[bool, Needs.NOTHING] = True
    """Whether one process is kept ready that has imported its libraries, while a model that is not
    loaded could use it: a load takes about a second less. It holds about 110 MB of what no model
    has of the budget, and is ended when memory is short."""
    min_residency_s: Annotated[SecondsFromZero, Needs.NOTHING] = 10.0
    """A model that was just loaded is not evicted before this time."""
    fair_wait_s: Annotated[SecondsFromZero, Needs.NOTHING] = 30.0
    """A model that waits for this long gets its turn though others are busy: one of them takes no
    new request until its streams end."""

    @model_validator(mode="after")
    def _lines_are_in_order(self) -> MemoryConfig:
        if self.soft_line >= self.hard_line:
            raise ValueError(
                f"soft_line ({self.soft_line:g}) must be below hard_line ({self.hard_line:g})"
            )
        return self


class TimingConfig(Section):
    """Deadlines. A hang is judged by missing progress, never by elapsed time alone: time in which a
    process waits for a processor does not count."""

    beat_interval_s: Annotated[Seconds, Needs.ROUTER_AND_NEXT_WORKER] = 1.0
    """Workers and the router say this often that they live."""
    beat_timeout_s: Annotated[Seconds, Needs.ROUTER_AND_NEXT_WORKER] = 15.0
    """A process that says nothing for this long is killed. It is at least twice
    `beat_interval_s`."""
    stall_timeout_s: Annotated[Seconds, Needs.NEXT_WORKER] = 120.0
    """A worker with requests, but without a token or a part of a prompt for this long, is
    killed."""
    start_timeout_s: Annotated[Seconds, Needs.NEXT_WORKER] = 60.0
    """A worker that says nothing for this long after its start is killed."""
    load_stall_timeout_s: Annotated[Seconds, Needs.NEXT_WORKER] = 180.0
    """A load that makes no progress for this long is ended."""
    render_timeout_s: Annotated[Seconds, Needs.NEXT_WORKER] = 10.0
    """A request whose chat template takes this long to render is refused. Good templates take
    milliseconds, also for a whole context."""
    drain_timeout_s: Annotated[Seconds, Needs.NEXT_WORKER] = 60.0
    """Streams may continue for this long when their model is unloaded."""
    term_grace_s: Annotated[Seconds | None, Needs.NEXT_WORKER] = Field(None, examples=[30])
    """The time from SIGTERM to SIGKILL. Without it 5 seconds, and 20 on a Mac, where a worker that
    is killed may leave its memory wired until the Mac is started again."""
    abort_grace_s: Annotated[Seconds, Needs.NEXT_WORKER] = 3.0
    """The time from SIGQUIT, at which a hung process writes its stacks, to SIGKILL."""
    shutdown_grace_s: Annotated[Seconds, Needs.ROUTER] = 10.0
    """Streams may continue for this long when lmx is stopped."""
    orphan_grace_s: Annotated[Seconds, Needs.ROUTER_AND_NEXT_WORKER] = 300.0
    """Workers and the router end when there was no supervisor for this long."""

    @model_validator(mode="after")
    def _beats_fit_timeout(self) -> TimingConfig:
        if self.beat_timeout_s < 2 * self.beat_interval_s:
            raise ValueError(
                f"beat_timeout_s ({self.beat_timeout_s:g}) must be at least twice "
                f"beat_interval_s ({self.beat_interval_s:g}), or one late beat kills a worker"
            )
        return self


class RestartConfig(Section):
    """What happens to a model whose worker failed."""

    backoff_base_s: Annotated[Seconds, Needs.NOTHING] = 0.5
    """A worker is started again after a random time, up to this times 2 to the power of the number
    of failures."""
    backoff_max_s: Annotated[Seconds, Needs.NOTHING] = 30.0
    """The longest time that is waited before a worker is started again."""
    stable_after_s: Annotated[Seconds, Needs.NOTHING] = 10.0
    """A worker that was ready for this long has the shortest time to wait again."""
    max_failures: Annotated[int, Needs.NOTHING] = Field(3, ge=0, le=1000)
    """How many failures within `window_s` are retried. One more puts the model in quarantine, until
    `lmx reset MODEL` or `restart MODEL`."""
    window_s: Annotated[Seconds, Needs.NOTHING] = 60.0
    """The time within which `max_failures` are counted."""


class LogConfig(Section):
    """Log files in `$LMX_HOME/logs`, one for each process and model, rotated by size."""

    level: Annotated[Literal["debug", "info", "warning", "error"], Needs.ROUTER_AND_NEXT_WORKER] = (
        "info"
    )
    """The least important events that are written."""
    max_bytes: Annotated[Size, Needs.ROUTER_AND_NEXT_WORKER] = ByteSize(10 * 1024**2)
    """The size of each file at most, whatever is printed. A burst is cut, and the file says so."""
    keep: Annotated[int, Needs.ROUTER_AND_NEXT_WORKER] = Field(3, ge=1, le=100)
    """How many older files of each process are kept."""


def _collector(text: str) -> str:
    return server_address(
        text,
        "a collector: http://127.0.0.1:4318",
        "has a password in it: put it into the variable OTEL_EXPORTER_OTLP_HEADERS, as "
        "authorization=Basic%20...",
    )


class TracingConfig(Section):
    """Traces of requests for an OpenTelemetry collector (docs/monitoring.md). It needs the extra
    `otel` (docs/start/install.md)."""

    endpoint: Annotated[Annotated[str, AfterValidator(_collector)] | None, Needs.ROUTER] = Field(
        None, examples=["http://127.0.0.1:4318"]
    )
    """The address of the collector, for OTLP over HTTP. Without it nothing is traced, whatever the
    variables `OTEL_*` say; with it they say how."""


class Config(Section):
    """All of it. Also checked: the names of models are unique, the default model exists."""

    server: ServerConfig = ServerConfig()
    memory: MemoryConfig = MemoryConfig()
    timing: TimingConfig = TimingConfig()
    restart: RestartConfig = RestartConfig()
    logs: LogConfig = LogConfig()
    security: SecurityConfig = SecurityConfig()
    rate_limits: RateLimitsConfig = RateLimitsConfig()
    jobs: JobsConfig = JobsConfig()
    files: FilesConfig = FilesConfig()
    media: MediaConfig = MediaConfig()
    tracing: TracingConfig = TracingConfig()
    routing: RoutingConfig = RoutingConfig()
    peers: Annotated[tuple[PeerConfig, ...], Needs.NOTHING] = Field(
        (), max_length=64, examples=[[{"name": "studio", "url": "http://studio:8000"}]]
    )
    """Other servers that answer requests of this machine's clients. Without any, every request is
    answered here."""
    default_model: Annotated[str | None, Needs.NOTHING] = Field(None, examples=["qwen"])
    """A name of the model that answers requests that name none, or an adapter's. Without it the
    first model does."""
    groups: Annotated[tuple[GroupConfig, ...], Needs.NOTHING] = ()
    """Rules about which models are loaded together."""
    models: tuple[ModelConfig, ...] = ()
    """The models that are served. Those that are new are loaded, those that are gone are unloaded
    after their streams; each key says what a change of it does."""

    @field_validator("peers")
    @classmethod
    def _peers_differ(cls, peers: tuple[PeerConfig, ...]) -> tuple[PeerConfig, ...]:
        names = [peer.name for peer in peers]
        if len(set(names)) < len(names):
            raise ValueError("has two peers of the same name")
        return peers

    @model_validator(mode="after")
    def _keys_fit_together(self, info: ValidationInfo) -> Config:
        parts = Parts(
            models=dict(enumerate(self.models)),
            groups=dict(enumerate(self.groups)),
            routes=self.routing.routes,
            default_model=self.default_model,
            host=self.server.host,
            advertised=self.server.advertise,
            open_lan_is_meant=self.server.allow_lan_without_key,
            has_keys=bool(self.security.api_keys) or info.context == KEYS_KEPT,
        )
        mistakes = list(parts.mistakes())
        if mistakes:
            raise MistakesError(mistakes)
        return self

    @property
    def closed_without_key(self) -> bool:
        """Whether requests to models need a key also while there is none for them."""
        return not (is_loopback(self.server.host) or self.server.allow_lan_without_key)

    def routing_gaps(self) -> tuple[str, ...]:
        """Say which names in ``routing`` are no model's, and which patterns never count."""
        known = {name for model in self.models for name in model.names}
        return self.routing.gaps(known)

    @property
    def default_model_id(self) -> str | None:
        """The model or the adapter that answers requests that name none: the default, else the
        first model."""
        for model in self.models:
            if self.default_model in model.adapters:
                return self.default_model
            if self.default_model in model.names:
                return model.id
        return self.models[0].id if self.models else None
