"""The keys of one model in the configuration, and of a group of models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import ByteSize, Field, field_validator, model_validator

from lmx.protocol.models.default_engine import MLX_ENGINE
from lmx.protocol.models.ranks import MOST_RANKS
from lmx.protocol.models.sampling import MAX_ASSISTANT_TOKENS, MAX_NGRAM, PARAMETERS
from lmx.protocol.states import ModelKind
from lmx.supervisor.config.known_models import repository_of
from lmx.supervisor.config.media import ModelMediaConfig
from lmx.supervisor.config.needs import Needs
from lmx.supervisor.config.sources import (
    FolderSource,
    GgufSource,
    HubSource,
    Source,
    SourceError,
    parse_source,
)
from lmx.supervisor.config.values import (
    FreeValues,
    KeepAlive,
    Name,
    RdmaDevices,
    Seconds,
    Section,
    Size,
    given_text,
)

_MOST_TOKENS: Final = 10**15
"""More than any context has. Processes send each other numbers of at most 64 bits."""


def _check_home(path: str) -> None:
    """Raises ``ValueError`` for ``~name/...`` where nobody has that name."""
    try:
        Path(path).expanduser()
    except RuntimeError as error:
        raise ValueError(f"{path}: this machine has no user of that name") from error


def _check_folder(value: str, what: str) -> str:
    """Return the path of a folder that must be on this machine. ``what`` begins the error's
    sentence. Raises ``ValueError`` for anything else."""
    try:
        source: Source | None = parse_source(value)
    except SourceError:
        source = None
    match source:
        case FolderSource():
            _check_home(value)
            return value
        case GgufSource():
            problem = f"{what} can't be a .gguf file"
        case HubSource():
            problem = f"{what} is not downloaded"
        case None:
            problem = "this is no path"
    raise ValueError(
        f"{problem}: name a folder, with an absolute path or one that starts with ./, ../ or ~"
    )


def _parameter(name: str) -> Any:
    """Return the key of a sampling parameter's default, with its range and its meaning."""
    known = PARAMETERS[name]
    return Field(
        None,
        **known.bounds,
        examples=[known.default],
        description=f"{known.meaning} For requests that name none; else the model's own, else "
        f"{known.default:g}.",
    )


class PrefixCacheConfig(Section):
    """Prompts that were computed before are not computed again."""

    enabled: bool = True
    """Whether prompts are kept at all."""
    memory_bytes: Size | None = Field(None, examples=["1GiB"])
    """The memory that they may take. Without it: what one full context takes, from 256 MiB to 2
    GiB."""
    disk: bool = True
    """Whether they are kept over unloading and restarts, in `$LMX_HOME/cache/prefix`."""
    disk_bytes: Size = ByteSize(4 * 1024**3)
    """The space on the disk that they may take."""


class ToolsConfig(Section):
    """How its tool calls are read."""

    calls_in_open_thought: bool = True
    """Whether whole calls of known tools at the end of a thought that the model never closed are
    calls. Otherwise they are a part of the thought."""


class SpeculationConfig(Section):
    """Tokens are guessed ahead and checked together; the answers stay the same."""

    method: Literal["auto", "draft_model", "mtp", "prompt_lookup", "none"] = Field(
        "auto", examples=["none"]
    )
    """Who guesses: a small model (one with the same tokenizer, or a drafter that was made for this
    model), the model's own heads for further tokens if they are in its folder, or what came after
    the last tokens when they came before. `auto`: the first of these that is there (a small model
    or a drafter is in the folder `drafter` of the model's folder), as long as it is measured to
    cost at most 2 %. `none`: nothing is guessed."""
    draft: str | None = Field(None, examples=["/models/draft"])
    """The folder of the model that guesses, in MLX form. The method `draft_model` needs it. Whether
    it is a model that writes or a drafter (MTP, EAGLE-3, DFlash), its config.json says."""
    num_assistant_tokens: int = Field(4, ge=1, le=MAX_ASSISTANT_TOKENS)
    """How many tokens are guessed at a time, where a request does not say."""
    assistant_confidence_threshold: float | None = Field(
        None, ge=0, le=1, allow_inf_nan=False, examples=[0.4]
    )
    """For `draft_model` and `mtp`: the model stops guessing when it is less sure than this. Without
    it, it guesses as many as it may."""
    max_ngram_size: int = Field(3, ge=1, le=MAX_NGRAM)
    """For `prompt_lookup`: the longest run of tokens that is looked up in the prompt. Values above
    8 act as 8."""
    max_rows: int = Field(2, ge=1, le=1024)
    """With more requests at the same time nothing is guessed: it does not pay."""

    @property
    def is_chosen(self) -> bool:
        """Whether a method was chosen that is to be used in any case."""
        return self.method not in ("auto", "none")

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
        return None if value is None else _check_folder(value, "a draft model")


class ModelConfig(Section):
    """One model."""

    id: Name = Field(examples=["qwen3-8b"])
    """The name that the model is served under. It says which model the other keys are about."""
    source: Annotated[str, Needs.WORKER] = Field(
        min_length=1, examples=["mlx-community/Qwen3-8B-4bit"]
    )
    """A folder in MLX form, a .gguf file, or `org/name[@revision]` on the hub, for which a short
    name may stand (`lmx pull -h`). A path that is not absolute is taken from the folder of this
    file."""
    aliases: Annotated[tuple[Name, ...], Needs.NOTHING] = Field((), examples=[["qwen"]])
    """Other names that requests may use."""
    adapters: Annotated[dict[Name, str], Needs.WORKER] = Field(
        default_factory=dict, examples=[{"qwen-sql": "/models/qwen-sql-lora"}]
    )
    """LoRA and DoRA adapters of this model by the names that requests use: folders that
    `mlx_lm.lora` or PEFT wrote, or `org/name[@revision]` on the hub. For clients each is a model of
    its own; the worker of this model answers for all of them, so its weights are in memory once.
    One that can't be fetched or doesn't fit is left out, and is tried again at the next load."""
    preload: Annotated[bool, Needs.NOTHING] = True
    """Whether the model is loaded at the start. Otherwise its first request loads it, or
    `lmx load`."""
    pinned: Annotated[bool, Needs.NOTHING] = False
    """Whether it is never evicted, nor unloaded because it is idle."""
    keep_alive: Annotated[KeepAlive | None, Needs.NOTHING] = Field(None, examples=["30m"])
    """How long it stays loaded when it is idle, instead of `memory.keep_alive`."""
    context_length: Annotated[int | None, Needs.WORKER] = Field(
        None, ge=16, le=_MOST_TOKENS, examples=[8192]
    )
    """The tokens that its context may have. Fewer than the model's own save memory. Without it, the
    model's own up to 32,768, or as much more of it as the model's part of half of the budget has
    room for, with `concurrency` requests of full length: all models have equal parts. Where memory
    is short, less. A model that makes embeddings or ranks computes a text whole: it takes its own
    context, or what half of the budget has room for if all of it has none for that. `lmx estimate`
    and `status` show it."""
    concurrency: Annotated[int, Needs.WORKER] = Field(2, ge=1, le=1024)
    """For how many requests of full length at a time memory is kept; of shorter ones there are
    more, up to `max_rows`. 2 leaves room for others next to one full-length conversation."""
    max_rows: Annotated[int, Needs.WORKER] = Field(32, ge=1, le=1024)
    """How many requests generate at the same time at most, as far as memory allows."""
    max_queue: Annotated[int, Needs.WORKER] = Field(256, ge=0, le=100_000)
    """How many requests may wait for a row. One more gets a 429."""
    max_queue_s: Annotated[Seconds, Needs.WORKER] = 300.0
    """A request that has waited this long for its turn gets a 503: for the prompt before it to be
    read, for the turn of its images and sounds to be decoded, or for a row."""
    default_max_tokens: Annotated[int | None, Needs.WORKER] = Field(
        None, ge=1, le=_MOST_TOKENS, examples=[1024]
    )
    """The limit of an answer where a request names none. Without it, up to the context."""
    max_tokens_limit: Annotated[int | None, Needs.WORKER] = Field(
        None, ge=1, le=_MOST_TOKENS, examples=[4096]
    )
    """A request for a longer answer is capped to this."""
    temperature: Annotated[float | None, Needs.WORKER] = _parameter("temperature")
    top_p: Annotated[float | None, Needs.WORKER] = _parameter("top_p")
    top_k: Annotated[int | None, Needs.WORKER] = _parameter("top_k")
    min_p: Annotated[float | None, Needs.WORKER] = _parameter("min_p")
    typical_p: Annotated[float | None, Needs.WORKER] = _parameter("typical_p")
    repetition_penalty: Annotated[float | None, Needs.WORKER] = _parameter("repetition_penalty")
    presence_penalty: Annotated[float | None, Needs.WORKER] = _parameter("presence_penalty")
    frequency_penalty: Annotated[float | None, Needs.WORKER] = _parameter("frequency_penalty")
    kind: Annotated[ModelKind | None, Needs.WORKER] = Field(None, examples=["chat"])
    """What the model is for. Without it, what its files say."""
    chat_template_kwargs: Annotated[FreeValues, Needs.WORKER] = Field(default_factory=dict)
    """Values for its chat template, where a request does not name them."""
    tool_parser: Annotated[str | None, Needs.WORKER] = Field(
        None, pattern=r"^[a-z0-9_]+$", examples=["json_tools"]
    )
    """The form in which it calls tools, where its template does not say. An unknown name makes
    loading fail with a list of them."""
    chat_template: Annotated[str | None, Needs.WORKER] = Field(
        None, min_length=1, examples=["/models/templates/qwen.jinja"]
    )
    """A chat template in the place of its own: a file, or the template's text."""
    tokenizer_config: Annotated[FreeValues, Needs.WORKER] = Field(
        default_factory=dict, examples=[{"eos_token": "<|im_end|>"}]
    )
    """Values in the place of those in its tokenizer_config.json."""
    allow_inexact: Annotated[bool, Needs.WORKER] = False
    """Whether it is loaded although the engine's library is known to compute models of its type
    wrongly ([models.md](models.md) lists them). Its answers are then worse than the model is."""
    tools: Annotated[ToolsConfig, Needs.WORKER] = ToolsConfig()
    """How its tool calls are read."""
    allow_checkpoint_code: Annotated[bool, Needs.WORKER] = False
    """Whether Python code in the model's folder may run, with all that the user of lmx may do: that
    of its tokenizer, say. So may code in the folder of its draft model. It runs in the worker's
    process alone. Only for makers that you trust."""
    max_decode_stall_s: Annotated[Seconds, Needs.WORKER] = 0.3
    """A long prompt keeps running streams waiting no longer than this."""
    prefix_cache: Annotated[PrefixCacheConfig, Needs.WORKER] = PrefixCacheConfig()
    """Prompts that were computed before are not computed again."""
    speculation: Annotated[SpeculationConfig, Needs.WORKER] = SpeculationConfig()
    """Tokens are guessed ahead and checked together. `null` is as the method `none`."""
    memory_bytes: Annotated[Size | None, Needs.WORKER] = Field(None, examples=["2GiB"])
    """The memory to reserve for it, instead of what is estimated."""
    kv_bits: Annotated[Literal[4, 8, "none"] | None, Needs.WORKER] = Field(None, examples=[8])
    """The bits of each number in its KV cache, instead of `memory.kv_bits`: `4`, `8`, or `none` for
    the numbers that it computes with. Loading fails if the model can't read such a cache."""
    kv_cache_bytes: Annotated[Size | None, Needs.WORKER] = Field(None, examples=["1GiB"])
    """The KV cache takes at most this much memory, if `concurrency` requests of full length would
    take more. A request that needs more by itself is refused."""
    media: Annotated[ModelMediaConfig, Needs.NEXT_WORKER] = ModelMediaConfig()
    """How much the images, sounds and videos of its requests may be, where it differs from what
    `media` says for all."""
    stall_timeout_s: Annotated[Seconds | None, Needs.NEXT_WORKER] = Field(None, examples=[300])
    """Its own, instead of `timing.stall_timeout_s`."""
    load_stall_timeout_s: Annotated[Seconds | None, Needs.NEXT_WORKER] = Field(None, examples=[600])
    """Its own, instead of `timing.load_stall_timeout_s`."""
    ranks: Annotated[int, Needs.WORKER] = Field(1, ge=1, le=MOST_RANKS)
    """Among how many processes the model is divided. They are started, watched and ended as one
    ([scaling.md](scaling.md)). They are on this machine, unless `hosts` says otherwise."""
    hosts: Annotated[tuple[str, ...], Needs.WORKER] = Field((), max_length=MOST_RANKS - 1)
    """The paired machines that have one rank each, besides this one, which has the first. Each must
    have the model in its own `lmx.yaml`, under the same id. `ranks` is one more than there are, and
    is left out."""
    parallel: Annotated[Literal["auto", "tensor", "pipeline"], Needs.WORKER] = "auto"
    """How it is divided: `tensor` (each of `ranks` has a part of every layer), `pipeline` (each has
    some of the layers), or `auto`, which is `tensor` where the model can be divided so."""
    backend: Annotated[Literal["ring", "jaccl"], Needs.WORKER] = "ring"
    """What its `hosts` compute over: `ring` (TCP), or `jaccl`, which is RDMA over Thunderbolt 5 and
    needs `rdma_devices`."""
    rdma_devices: Annotated[tuple[RdmaDevices, ...], Needs.WORKER] = Field(
        (), max_length=MOST_RANKS
    )
    """With `backend: jaccl`: for this machine and each of `hosts` a list of its RDMA devices, as
    `ibv_devices` shows them there: the one to this machine, then to each of `hosts`, and `null` for
    itself."""
    engine: Annotated[str, Needs.WORKER] = Field(
        MLX_ENGINE, pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"
    )
    """`module:function` of the engine: for tests, and for an engine of your own. The module also
    has `estimate`, which says what a model takes of the memory."""
    engine_options: Annotated[FreeValues, Needs.WORKER] = Field(default_factory=dict)
    """Values that are handed to the engine."""

    @model_validator(mode="after")
    def _default_is_within_limit(self) -> ModelConfig:
        default, limit = self.default_max_tokens, self.max_tokens_limit
        if default is not None and limit is not None and default > limit:
            raise ValueError(
                f"default_max_tokens ({default}) is more than max_tokens_limit ({limit})"
            )
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """All names that its worker answers for: its id, its aliases and its adapters'."""
        return (self.id, *self.aliases, *self.adapters)

    @property
    def hub_adapters(self) -> tuple[str, ...]:
        """The sources of its adapters that come from the hub."""
        return tuple(
            source
            for source in self.adapters.values()
            if isinstance(parse_source(source), HubSource)
        )

    @property
    def kept_rows(self) -> int:
        """For how many requests of full length memory is kept."""
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

    @property
    def ranks_here(self) -> int:
        """How many of its ranks are on this machine."""
        return 1 if self.hosts else self.ranks

    @model_validator(mode="before")
    @classmethod
    def _hosts_say_how_many_ranks(cls, given: Any) -> Any:
        hosts = given.get("hosts") if isinstance(given, dict) else None
        if not isinstance(hosts, list | tuple) or not hosts or "ranks" in given:
            return given
        return {**given, "ranks": 1 + len(hosts)}

    @model_validator(mode="after")
    def _hosts_have_a_rank_each(self) -> ModelConfig:
        if not self.hosts:
            return self
        if len(set(self.hosts)) < len(self.hosts):
            raise ValueError("hosts: each machine has one rank, and is named once")
        ranks = 1 + len(self.hosts)
        if self.ranks != ranks:
            raise ValueError(
                f"ranks is {self.ranks}, and with hosts there are {ranks}: this machine has one, "
                "and each of them another. Leave ranks out"
            )
        return self

    @model_validator(mode="after")
    def _rdma_joins_all_hosts(self) -> ModelConfig:
        devices = self.rdma_devices
        if self.backend == "ring":
            if devices:
                raise ValueError("rdma_devices are for backend: jaccl: leave one of them out")
            return self
        if not self.hosts:
            raise ValueError("backend: jaccl joins machines: name them in hosts")
        ranks = range(self.ranks)
        nulls = [[name is None for name in row] for row in devices]
        if nulls != [[one == other for other in ranks] for one in ranks]:
            raise ValueError(
                f"rdma_devices must be {self.ranks} lists of {self.ranks}: for each machine its "
                "devices to all of them, with null for itself"
            )
        return self

    @model_validator(mode="after")
    def _ranks_divide_a_plain_model(self) -> ModelConfig:
        if self.ranks == 1:
            return self
        refused = {
            "adapters": bool(self.adapters),
            "speculation": self.speculation.is_chosen,
            "engine": self.engine != MLX_ENGINE,
            "prefix_cache.disk": self.prefix_cache.disk
            and "disk" in self.prefix_cache.model_fields_set,
            "kind": self.kind not in (None, ModelKind.CHAT),
        }
        for name, is_set in refused.items():
            if is_set:
                raise ValueError(
                    f"a model that is divided among ranks ({self.ranks}) can't have {name}: leave "
                    "one of them out"
                )
        return self

    @field_validator("speculation", mode="before", json_schema_input_type=SpeculationConfig | None)
    @classmethod
    def _null_guesses_nothing(cls, given: Any) -> Any:
        return {"method": "none"} if given is None else given

    @field_validator("adapters")
    @classmethod
    def _adapters_have_sources(cls, value: dict[str, str]) -> dict[str, str]:
        for name, source in value.items():
            try:
                if not isinstance(parse_source(source), HubSource):
                    _check_folder(source, "an adapter")
            except ValueError as error:
                raise ValueError(f"{name}: {error} (given: {given_text(source)})") from None
        return value

    @model_validator(mode="after")
    def _adapters_belong_to_a_writer(self) -> ModelConfig:
        if self.adapters and self.kind not in (None, ModelKind.CHAT):
            raise ValueError(
                f"adapters are for models that write, and kind is {self.kind}: leave one out"
            )
        return self

    @field_validator("source")
    @classmethod
    def _known_source(cls, value: str) -> str:
        value = repository_of(value)
        if not isinstance(parse_source(value), HubSource):
            _check_home(value)
        return value


class AddedModelConfig(ModelConfig):
    """A model that was added while lmx ran."""

    preload: Annotated[bool, Needs.NOTHING] = False
    """Whether it is loaded when lmx starts."""
    context_at_most: bool = False
    """Whether a model whose own context is shorter than ``context_length`` has its own, instead of
    failing to load."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    """They are kept for people to see, and mean nothing to lmx."""


class GroupConfig(Section):
    """Models with a rule about what may be loaded together with them. A model is in one group at
    most; models without a group are a group of their own, without a rule."""

    name: Name = Field(examples=["coders"])
    """The name of the group."""
    models: tuple[Name, ...] = Field(min_length=1, examples=[["qwen-coder", "devstral"]])
    """The ids of its models."""
    swap: bool = False
    """Whether one of its models is loaded at a time."""
    exclusive: bool = False
    """Whether no model of another group is loaded while one of these is."""
    persistent: bool = False
    """Whether an exclusive group lets these models stay."""
