"""The keys of one model in the configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import ByteSize, Field, field_validator, model_validator

from lmx.protocol.models.sampling import PARAMETERS
from lmx.protocol.states import ModelKind
from lmx.supervisor.config.sources import (
    FolderSource,
    GgufSource,
    HubSource,
    Source,
    SourceError,
    parse_source,
)
from lmx.supervisor.config.values import KeepAlive, Name, Seconds, Section, Size

_MLX_ENGINE = "lmx.worker.mlx.factory:create"


def _check_home(path: str) -> None:
    """Raises ``ValueError`` for ``~name/...`` where nobody has that name."""
    try:
        Path(path).expanduser()
    except RuntimeError as error:
        raise ValueError(f"{path}: this machine has no user of that name") from error


def _parameter(name: str) -> Any:
    """Return the key of a sampling parameter's default, with its range and its meaning."""
    known = PARAMETERS[name]
    return Field(
        None,
        ge=None if known.above_least else known.least,
        gt=known.least if known.above_least else None,
        le=known.most,
        description=f"{known.meaning} For requests that name none; else the model's own, else "
        f"{known.default:g}.",
    )


class PrefixCacheConfig(Section):
    """Prompts that were computed before. ``memory_bytes`` None: what one full context takes,
    within bounds (:mod:`lmx.supervisor.memory.plan`)."""

    enabled: bool = True
    memory_bytes: Size | None = None
    disk: bool = True
    disk_bytes: Size = ByteSize(4 * 1024**3)


class SpeculationConfig(Section):
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
        if value is None:
            return None
        try:
            source: Source | None = parse_source(value)
        except SourceError:
            source = None
        match source:
            case FolderSource():
                _check_home(value)
                return value
            case GgufSource():
                what = "a draft model can't be a .gguf file"
            case HubSource():
                what = "a draft model is not downloaded"
            case None:
                what = "this is no path"
        raise ValueError(
            f"{what}: name a folder in MLX form, with an absolute path or one that starts with "
            "./, ../ or ~"
        )


class ModelConfig(Section):
    """One model. ``engine`` is for tests and for engines of one's own. ``kind`` None: as the
    model's files tell. ``concurrency``: for so many requests of full length at a time memory is
    kept; of shorter ones there are more, up to ``max_rows``. It is 2 because a batch takes what
    its longest row takes, times its rows: with 1 a long conversation would keep all others
    waiting."""

    id: Name
    source: str = Field(min_length=1)
    aliases: tuple[Name, ...] = ()
    preload: bool = True
    pinned: bool = False
    keep_alive: KeepAlive | None = None
    context_length: int | None = Field(None, ge=16)
    concurrency: int = Field(2, ge=1, le=1024)
    max_rows: int = Field(32, ge=1, le=1024)
    max_queue: int = Field(256, ge=0, le=100_000)
    max_queue_s: Seconds = 300.0
    default_max_tokens: int | None = Field(None, ge=1)
    max_tokens_limit: int | None = Field(None, ge=1)
    temperature: float | None = _parameter("temperature")
    top_p: float | None = _parameter("top_p")
    top_k: int | None = _parameter("top_k")
    min_p: float | None = _parameter("min_p")
    typical_p: float | None = _parameter("typical_p")
    repetition_penalty: float | None = _parameter("repetition_penalty")
    presence_penalty: float | None = _parameter("presence_penalty")
    frequency_penalty: float | None = _parameter("frequency_penalty")
    kind: ModelKind | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    tool_parser: str | None = Field(None, pattern=r"^[a-z0-9_]+$")
    max_decode_stall_s: Seconds = 1.0
    prefix_cache: PrefixCacheConfig = PrefixCacheConfig()
    speculation: SpeculationConfig | None = None
    memory_bytes: Size | None = None
    stall_timeout_s: Seconds | None = None
    load_stall_timeout_s: Seconds | None = None
    engine: str = Field(_MLX_ENGINE, pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
    engine_options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _default_is_within_limit(self) -> ModelConfig:
        default, limit = self.default_max_tokens, self.max_tokens_limit
        if default is not None and limit is not None and default > limit:
            raise ValueError(
                f"default_max_tokens ({default}) is more than max_tokens_limit ({limit})"
            )
        return self

    @property
    def kept_rows(self) -> int:
        """For so many requests of full length memory is kept."""
        return min(self.concurrency, self.max_rows)

    @model_validator(mode="after")
    def _concurrency_is_within_rows(self) -> ModelConfig:
        if "concurrency" in self.model_fields_set and self.concurrency > self.max_rows:
            raise ValueError(
                f"concurrency ({self.concurrency}) is more than max_rows ({self.max_rows}): "
                "memory would be kept for requests that never run"
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
        if not isinstance(parse_source(value), HubSource):
            _check_home(value)
        return value


class AddedModelConfig(ModelConfig):
    """A model that was added while lmx ran. ``parameters`` are kept for people to see, and mean
    nothing to lmx. ``context_at_most``: where the model's own context is shorter than
    ``context_length`` it has its own, instead of failing to load."""

    preload: bool = False
    context_at_most: bool = False
    parameters: dict[str, Any] = Field(default_factory=dict)
