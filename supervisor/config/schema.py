"""The configuration: every key, its type, range, default and reason. Values only.

Reading files and variables is :mod:`lmx.supervisor.config.load`'s; ``deploy/lmx.example.yaml``
documents the same keys for people.
"""

from __future__ import annotations

from typing import Literal

from pydantic import ByteSize, Field, model_validator

from lmx.supervisor.config.limits import RateLimitsConfig
from lmx.supervisor.config.model import ModelConfig
from lmx.supervisor.config.security import SecurityConfig
from lmx.supervisor.config.values import KeepAlive, Name, Names, Seconds, Section, Size
from lmx.supervisor.config.web import AllowedHosts, CorsOrigins

__all__ = [
    "Config",
    "GroupConfig",
    "JobsConfig",
    "LogConfig",
    "MemoryConfig",
    "ModelConfig",
    "RateLimitsConfig",
    "RestartConfig",
    "SecurityConfig",
    "ServerConfig",
    "TimingConfig",
]

_LOOPBACK = {"127.0.0.1", "::1", "localhost"}


class ServerConfig(Section):
    """The HTTP side."""

    host: str = Field("127.0.0.1", min_length=1)
    port: int = Field(8000, ge=0, le=65_535, strict=True)
    allow_lan_without_key: bool = False
    allowed_hosts: AllowedHosts = ()
    cors_origins: CorsOrigins = ()
    body_limit_bytes: Size = ByteSize(16 * 1024**2)
    max_requests: int = Field(2048, ge=1, le=100_000)
    load_wait_s: Seconds = 300.0
    sync_timeout_s: Seconds = 600.0
    ping_interval_s: Seconds = 10.0
    reader_stall_timeout_s: Seconds = 60.0
    worker_silence_s: Seconds = 15.0


class JobsConfig(Section):
    """Records of generations: they go when they are so old, more than so many, or take more of the
    disk than this."""

    max_age_s: float = Field(86_400.0, gt=0, le=10 * 365 * 86_400, allow_inf_nan=False)
    max_count: int = Field(10_000, ge=1, le=10_000_000)
    max_bytes: ByteSize = Field(ByteSize(512 * 1024**2), ge=1024**2)


class MemoryConfig(Section):
    """The memory that all workers share, and who gives way to whom.

    The budget is ``budget_bytes``, else ``budget_fraction`` of the machine's memory, and in any
    case leaves ``os_reserve_bytes``. Beyond ``soft_line`` of the machine's memory in use nothing
    is begun and idle models go; beyond ``hard_line`` requests are given up, then workers.
    """

    budget_bytes: Size | None = None
    budget_fraction: float = Field(0.75, gt=0, le=1, allow_inf_nan=False)
    os_reserve_bytes: Size = ByteSize(2 * 1024**3)
    soft_line: float = Field(0.92, gt=0, le=1, allow_inf_nan=False)
    hard_line: float = Field(0.97, gt=0, le=1, allow_inf_nan=False)
    keep_alive: KeepAlive = -1.0
    min_residency_s: float = Field(10.0, ge=0, le=86_400, allow_inf_nan=False)
    fair_wait_s: float = Field(30.0, ge=0, le=86_400, allow_inf_nan=False)

    @model_validator(mode="after")
    def _lines_are_in_order(self) -> MemoryConfig:
        if self.soft_line >= self.hard_line:
            raise ValueError(
                f"soft_line ({self.soft_line:g}) must be below hard_line ({self.hard_line:g})"
            )
        return self


class GroupConfig(Section):
    """Models with a rule about what may be loaded beside them.

    ``swap``: one of its models at a time. ``exclusive``: none of other groups while one of its
    models is loaded. ``persistent``: an exclusive group lets it stay. Models without a group
    are a group of their own, without a rule.
    """

    name: Name
    models: tuple[Name, ...] = Field(min_length=1)
    swap: bool = False
    exclusive: bool = False
    persistent: bool = False


class TimingConfig(Section):
    """Deadlines. A hang is judged by missing progress, never by elapsed time alone."""

    beat_interval_s: Seconds = 1.0
    beat_timeout_s: Seconds = 15.0
    stall_timeout_s: Seconds = 120.0
    start_timeout_s: Seconds = 60.0
    load_stall_timeout_s: Seconds = 180.0
    render_timeout_s: Seconds = 10.0
    drain_timeout_s: Seconds = 60.0
    term_grace_s: Seconds = 5.0
    abort_grace_s: Seconds = 3.0
    shutdown_grace_s: Seconds = 10.0
    orphan_grace_s: Seconds = 300.0

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

    backoff_base_s: Seconds = 0.5
    backoff_max_s: Seconds = 30.0
    stable_after_s: Seconds = 10.0
    max_failures: int = Field(3, ge=0, le=1000)
    window_s: Seconds = 60.0


class LogConfig(Section):
    """Log files, one for each process, rotated by size."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    max_bytes: Size = ByteSize(10 * 1024**2)
    keep: int = Field(3, ge=1, le=100)


class Config(Section):
    """All of it. Also checked: ids and aliases are unique, the default model exists."""

    server: ServerConfig = ServerConfig()
    memory: MemoryConfig = MemoryConfig()
    timing: TimingConfig = TimingConfig()
    restart: RestartConfig = RestartConfig()
    logs: LogConfig = LogConfig()
    security: SecurityConfig = SecurityConfig()
    rate_limits: RateLimitsConfig = RateLimitsConfig()
    jobs: JobsConfig = JobsConfig()
    routing: dict[Name, Names] = Field(default_factory=dict)
    default_model: str | None = None
    groups: tuple[GroupConfig, ...] = ()
    models: tuple[ModelConfig, ...] = ()

    @model_validator(mode="after")
    def _names_are_unique(self) -> Config:
        seen: dict[str, str] = {}
        for model in self.models:
            for name in (model.id, *model.aliases):
                if name in seen:
                    raise ValueError(
                        f"the name {name!r} belongs to both models.{seen[name]} and "
                        f"models.{model.id}: ids and aliases must be unique"
                    )
                seen[name] = model.id
        if self.default_model is not None and self.default_model not in seen:
            known = ", ".join(seen) or "none"
            raise ValueError(
                f"default_model is {self.default_model!r}, which no model has as id or alias "
                f"(known: {known})"
            )
        return self

    @model_validator(mode="after")
    def _routes_have_names_of_their_own(self) -> Config:
        known = {name: model.id for model in self.models for name in (model.id, *model.aliases)}
        for name, models in self.routing.items():
            if name in known:
                raise ValueError(
                    f"routing.{name} has the name of models.{known[name]}: give one of them another"
                )
            if not models:
                raise ValueError(f"routing.{name} names no model: name some, or leave it out")
        return self

    @model_validator(mode="after")
    def _refuse_open_lan(self) -> Config:
        server = self.server
        if (
            server.host not in _LOOPBACK
            and not self.security.api_keys
            and not server.allow_lan_without_key
        ):
            raise ValueError(
                f"server.host {server.host} can be reached by others and no key protects the API: "
                "set security.api_keys, use 127.0.0.1, or set server.allow_lan_without_key to true "
                "if that is meant"
            )
        return self

    @model_validator(mode="after")
    def _groups_name_models(self) -> Config:
        group_of: dict[str, str] = {}
        models = {model.id: model for model in self.models}
        id_of = {alias: model.id for model in self.models for alias in model.aliases}
        for group in self.groups:
            for model_id in group.models:
                if model_id not in models:
                    hint = (
                        f"an alias: write the model's id, {id_of[model_id]!r}"
                        if model_id in id_of
                        else f"which is no model's id (known: {', '.join(models) or 'none'})"
                    )
                    raise ValueError(f"groups.{group.name} names {model_id!r}, {hint}")
                if model_id in group_of:
                    raise ValueError(
                        f"{model_id!r} is in groups {group_of[model_id]} and {group.name}: a "
                        "model can be in one group, once"
                    )
                group_of[model_id] = group.name
            pinned = [model_id for model_id in group.models if models[model_id].pinned]
            if group.swap and len(pinned) > 1:
                raise ValueError(
                    f"groups.{group.name} has one of its models loaded at a time (swap), but "
                    f"{' and '.join(pinned)} are pinned: one would keep the other out for good"
                )
        if len({group.name for group in self.groups}) < len(self.groups):
            raise ValueError("two groups have the same name")
        return self

    def routing_gaps(self) -> tuple[str, ...]:
        """Say which names in ``routing`` are no model's: routes leave them out, until a model of
        that name is added."""
        known = {name for model in self.models for name in (model.id, *model.aliases)}
        return tuple(
            f"routing.{name} names {model!r}, which is no configured model: it is left out until "
            "one is added"
            for name, models in self.routing.items()
            for model in models
            if model not in known
        )

    @property
    def default_model_id(self) -> str | None:
        """The model that answers requests that name none: the default, else the first."""
        for model in self.models:
            if self.default_model in (model.id, *model.aliases):
                return model.id
        return self.models[0].id if self.models else None
