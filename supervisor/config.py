"""The configuration: every key, its type, range, default and reason. Values only.

Reading files and variables is :mod:`lmx.supervisor.config_load`'s; ``deploy/lmx.example.yaml``
documents the same keys for people.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from lmx.protocol.keep_alive import parse_keep_alive
from lmx.protocol.states import ModelKind
from lmx.supervisor.sources import FolderSource, parse_source

Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
Size = Annotated[ByteSize, Field(gt=0)]
KeepAlive = Annotated[float, BeforeValidator(parse_keep_alive)]
"""Seconds; negative: forever."""

Name = Annotated[
    str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]*$")
]

_LOOPBACK = {"127.0.0.1", "::1", "localhost"}
MLX_ENGINE = "lmx.worker.mlx_engine:create"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class ServerConfig(_Section):
    """The HTTP side."""

    host: str = Field("127.0.0.1", min_length=1)
    port: int = Field(8000, ge=0, le=65_535, strict=True)
    allow_lan_without_key: bool = False
    body_limit_bytes: Size = ByteSize(16 * 1024**2)
    max_requests: int = Field(2048, ge=1, le=100_000)
    load_wait_s: Seconds = 300.0
    ping_interval_s: Seconds = 10.0
    reader_stall_timeout_s: Seconds = 60.0
    worker_silence_s: Seconds = 15.0

    @model_validator(mode="after")
    def _refuse_open_lan(self) -> ServerConfig:
        if self.host not in _LOOPBACK and not self.allow_lan_without_key:
            raise ValueError(
                f"host {self.host} can be reached by others and no key protects the API: use "
                "127.0.0.1, or set server.allow_lan_without_key to true if that is meant"
            )
        return self


class MemoryConfig(_Section):
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


class GroupConfig(_Section):
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


class TimingConfig(_Section):
    """Deadlines. A hang is judged by missing progress, never by elapsed time alone."""

    beat_interval_s: Seconds = 1.0
    beat_timeout_s: Seconds = 15.0
    stall_timeout_s: Seconds = 120.0
    start_timeout_s: Seconds = 60.0
    load_stall_timeout_s: Seconds = 180.0
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


class RestartConfig(_Section):
    """What happens to a model whose worker failed."""

    backoff_base_s: Seconds = 0.5
    backoff_max_s: Seconds = 30.0
    stable_after_s: Seconds = 10.0
    max_failures: int = Field(3, ge=0, le=1000)
    window_s: Seconds = 60.0


class LogConfig(_Section):
    """Log files, one for each process, rotated by size."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    max_bytes: Size = ByteSize(10 * 1024**2)
    keep: int = Field(3, ge=1, le=100)


class PrefixCacheConfig(_Section):
    """Prompts that were computed before. ``memory_bytes`` None: what one full context takes,
    within bounds (:mod:`lmx.supervisor.memory_plan`)."""

    enabled: bool = True
    memory_bytes: Size | None = None
    disk: bool = True
    disk_bytes: Size = ByteSize(4 * 1024**3)


class SpeculationConfig(_Section):
    """Tokens guessed ahead: by a small model with the same tokenizer, or by looking them up."""

    method: Literal["draft_model", "prompt_lookup"]
    draft: str | None = None
    num_assistant_tokens: int = Field(4, ge=1, le=32)
    assistant_confidence_threshold: float | None = Field(None, ge=0, le=1, allow_inf_nan=False)
    max_ngram_size: int = Field(3, ge=1, le=32)
    max_rows: int = Field(2, ge=1, le=1024)

    @model_validator(mode="after")
    def _draft_belongs_to_method(self) -> SpeculationConfig:
        if (self.method == "draft_model") != (self.draft is not None):
            raise ValueError(
                "draft is the model that guesses: it must be given with method draft_model, "
                "and with no other"
            )
        return self

    @field_validator("draft")
    @classmethod
    def _draft_is_a_folder(cls, value: str | None) -> str | None:
        if value is not None and not isinstance(parse_source(value), FolderSource):
            raise ValueError(
                "a draft model must be a folder in MLX form, as an absolute path or one that "
                "starts with ./, ../ or ~"
            )
        return value


class ModelConfig(_Section):
    """One model. ``engine`` is for tests and for engines of one's own. ``kind`` None: as the
    model's files tell. ``concurrency``: for so many requests of full length at a time memory is
    kept; of shorter ones there are more, up to ``max_rows``."""

    id: Name
    source: str = Field(min_length=1)
    aliases: tuple[Name, ...] = ()
    preload: bool = True
    pinned: bool = False
    keep_alive: KeepAlive | None = None
    context_length: int | None = Field(None, ge=16)
    concurrency: int = Field(1, ge=1, le=1024)
    max_rows: int = Field(32, ge=1, le=1024)
    max_queue: int = Field(256, ge=0, le=100_000)
    max_queue_s: Seconds = 300.0
    default_max_tokens: int | None = Field(None, ge=1)
    max_tokens_limit: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2, allow_inf_nan=False)
    top_p: float | None = Field(None, gt=0, le=1, allow_inf_nan=False)
    top_k: int | None = Field(None, ge=0)
    min_p: float | None = Field(None, ge=0, le=1, allow_inf_nan=False)
    repetition_penalty: float | None = Field(None, gt=0, le=2, allow_inf_nan=False)
    kind: ModelKind | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    tool_parser: str | None = Field(None, pattern=r"^[a-z0-9_]+$")
    max_decode_stall_s: Seconds = 1.0
    prefix_cache: PrefixCacheConfig = PrefixCacheConfig()
    speculation: SpeculationConfig | None = None
    memory_bytes: Size | None = None
    stall_timeout_s: Seconds | None = None
    load_stall_timeout_s: Seconds | None = None
    engine: str = Field(MLX_ENGINE, pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
    engine_options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _default_is_within_limit(self) -> ModelConfig:
        default, limit = self.default_max_tokens, self.max_tokens_limit
        if default is not None and limit is not None and default > limit:
            raise ValueError(
                f"default_max_tokens ({default}) is more than max_tokens_limit ({limit})"
            )
        return self

    @model_validator(mode="after")
    def _prefix_cache_is_within_share(self) -> ModelConfig:
        cache = self.prefix_cache
        share, part = self.memory_bytes, cache.memory_bytes if cache.enabled else None
        if share is not None and part is not None and part >= share:
            raise ValueError(
                f"prefix_cache.memory_bytes ({part}) is a part of memory_bytes ({share}): it "
                "must be less"
            )
        return self

    @field_validator("source")
    @classmethod
    def _known_source(cls, value: str) -> str:
        parse_source(value)
        return value


class Config(_Section):
    """All of it. Also checked: ids and aliases are unique, the default model exists."""

    server: ServerConfig = ServerConfig()
    memory: MemoryConfig = MemoryConfig()
    timing: TimingConfig = TimingConfig()
    restart: RestartConfig = RestartConfig()
    logs: LogConfig = LogConfig()
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
    def _groups_name_models(self) -> Config:
        group_of: dict[str, str] = {}
        ids = {model.id for model in self.models}
        for group in self.groups:
            for model_id in group.models:
                if model_id not in ids:
                    raise ValueError(
                        f"groups.{group.name} names {model_id!r}, which is no model's id "
                        f"(known: {', '.join(sorted(ids)) or 'none'})"
                    )
                if model_id in group_of:
                    raise ValueError(
                        f"{model_id!r} is in groups {group_of[model_id]} and {group.name}: a "
                        "model can be in one group"
                    )
                group_of[model_id] = group.name
        return self

    @property
    def default_model_id(self) -> str | None:
        """The model that answers requests that name none: the default, else the first."""
        for model in self.models:
            if self.default_model in (model.id, *model.aliases):
                return model.id
        return self.models[0].id if self.models else None
