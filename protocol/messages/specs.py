"""The specs: what the supervisor passes to a process that it starts, once, over the child's stdin.

A spec is the whole configuration of the process, which reads no file and no ``LMX_*`` variable.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from lmx.protocol.free_text import FreeText
from lmx.protocol.messages.keys import Keyring, RateLimits
from lmx.protocol.messages.peers import PeerList
from lmx.protocol.models.decode_limits import DecodeLimits
from lmx.protocol.models.memory import KvLayers
from lmx.protocol.models.ranks import Parallel
from lmx.protocol.models.sampling import SamplingParameters
from lmx.protocol.states import MemoryWiring, ModelKind
from lmx.protocol.wire.codec import message


@dataclass(frozen=True, slots=True)
class LogSpec:
    """Where a process logs. The process rotates the file itself, so that it can log without a
    supervisor."""

    path: str
    level: str = "info"
    max_bytes: int = 10 * 1024 * 1024
    keep: int = 3


@dataclass(frozen=True, slots=True)
class PrefixCacheSpec:
    """Where the worker keeps prompts that it has computed."""

    memory_bytes: int
    disk_path: str | None = None
    """The folder on disk. None: prompts are kept in memory only."""
    disk_bytes: int = 0


@dataclass(frozen=True, slots=True)
class SpeculationSpec:
    """How tokens are guessed ahead, so that the model checks several at once."""

    draft_path: str | None = None
    """The folder of the small model, or of the drafter, that guesses. None: prompt lookup guesses,
    which looks for an earlier place of the last tokens in prompt and answer and takes what followed
    there."""
    num_assistant_tokens: int = 4
    assistant_confidence_threshold: float | None = None
    max_ngram_size: int = 3
    max_rows: int = 2
    """Nothing is guessed while more rows than this run."""
    own_heads: bool = False
    """Whether the model's own heads for further tokens guess, which are in its folder. Then there
    is no ``draft_path``."""
    auto: bool = False
    """Whether what guesses is found by the worker, which measures that it costs next to nothing
    where it does not pay. Then there is neither ``draft_path`` nor ``own_heads``."""


@dataclass(frozen=True, slots=True)
class AdapterSpec:
    """An adapter that the worker applies to its model for the requests that name it."""

    adapter_id: str
    """The model id that clients know it by."""
    path: str
    """Its folder."""
    problem: FreeText | None = None
    """Why it can't be used, for people. The worker does not look into its folder then."""


@dataclass(frozen=True, slots=True)
class RankHost:
    """Another machine that has one rank of a model."""

    name: str
    """Its name as a peer."""
    host: str
    """The name or the address of its URL."""


@dataclass(frozen=True, slots=True)
class RanksSpec:
    """A model that is divided among several processes: the worker is rank 0, and the others are its
    followers."""

    count: int
    """How many ranks there are, rank 0 among them."""
    parallel: Parallel = Parallel.AUTO
    silence_s: float = 30.0
    """A follower that says nothing for this long has stopped."""
    hosts: tuple[RankHost, ...] = ()
    """The machines of the followers, in the order of their ranks. Empty: the worker starts all of
    them on this one."""
    rdma_devices: tuple[tuple[str, ...], ...] = ()
    """As of :attr:`RankRing.rdma_devices`. Followers on other machines get it there."""


SPARE: Final = "--spare"
"""The first argument of a worker that imports its libraries before it reads its spec. The second is
the :class:`MemoryWiring` of all specs that it may get. No model has this name."""


@message
@dataclass(frozen=True, slots=True)
class WorkerSpec(SamplingParameters):
    """The configuration of one worker, which serves one model. The sampling parameters are the
    defaults of requests that do not set them."""

    instance: str
    model_id: str
    model_path: str
    run_dir: str
    log: LogSpec
    engine: str
    """``module:function``; the function loads the model (``EngineFactory`` of the worker)."""
    engine_options: dict[str, Any]
    memory_limit_bytes: int
    """The worker's share of the memory budget. Its weights and caches stay within it."""
    max_rows: int
    max_queue: int
    context_length: int | None = None
    default_max_tokens: int | None = None
    max_tokens_limit: int | None = None
    kind: ModelKind = ModelKind.CHAT
    template_kwargs: dict[str, Any] | None = None
    """The defaults of requests that do not set them."""
    tool_parser: str | None = None
    chat_template: str | None = None
    """A chat template in the place of the folder's own: its text, or its file."""
    tokenizer_config: dict[str, Any] | None = None
    """Values in the place of those in the folder's tokenizer_config.json."""
    allow_inexact: bool = False
    """Whether a model is loaded that the engine's library is known to compute wrongly."""
    calls_in_open_thought: bool = True
    """Whether whole calls at the end of a thought that was never closed are calls."""
    max_decode_stall_s: float = 0.3
    """The longest that the prefill of a prompt may keep running streams from their next token."""
    prefix_cache: PrefixCacheSpec | None = None
    """None: off."""
    speculation: SpeculationSpec | None = None
    """None: off."""
    kv_cache_bytes: int | None = None
    """What the KV caches of all rows may take together, counted with ``kv_layers``. None: they are
    not counted."""
    kv_layers: tuple[KvLayers, ...] = ()
    max_queue_s: float = 300.0
    """A request that has waited this long for its turn is given up: for the prompt thread, for the
    decoder, or for a row."""
    render_timeout_s: float = 10.0
    """A request whose chat template takes longer than this is refused."""
    beat_interval_s: float = 1.0
    orphan_grace_s: float = 300.0
    """For how long the worker continues without a supervisor."""
    allow_checkpoint_code: bool = False
    """Whether code that the model's folder, or its draft model's, brings along may run, in the
    worker."""
    adapters: tuple[AdapterSpec, ...] = ()
    kv_bits: int | None = None
    """The bits of each number in the KV caches, 4 or 8. None: they are not quantized."""
    decode: DecodeLimits = field(default_factory=DecodeLimits)
    """How much the images, sounds and videos of its requests may be and may take."""
    wiring: MemoryWiring = MemoryWiring.AUTO
    """Whether the weights are wired, on a Mac."""
    ranks: RanksSpec | None = None
    """None: the worker has the whole model. Else ``memory_limit_bytes`` and the memory of the
    prefix cache are those of each rank."""


@dataclass(frozen=True, slots=True)
class RescueSpec:
    """The command that a router runs as its child when it receives nothing from the supervisor. The
    command wakes or ends a supervisor that hangs, and starts another one if nobody else does."""

    command: tuple[str, ...]
    silence_s: float
    """The router runs the command after this long without a message from a supervisor."""
    environment: dict[Any, Any] = field(default_factory=dict, repr=False)
    """The variables that the router's own environment lacks; bytes where they are not UTF-8."""


@dataclass(frozen=True, slots=True)
class MediaLimits:
    """What the router takes and fetches of images, sounds and videos."""

    allowed_networks: tuple[str, ...] = ()
    """The networks that URLs may lead to though they are not public, as ``192.168.1.0/24``."""
    max_items: int = 32
    """How many images, sounds and videos a request may have."""
    max_item_bytes: int = 32 * 1024 * 1024
    max_held_bytes: int = 512 * 1024 * 1024
    """How much of them the router holds at a time, for all requests."""
    max_fetches: int = 16
    """How many are fetched at a time, for all requests."""
    connect_timeout_s: float = 5.0
    """For finding the address of a host, and for the connection to it."""
    read_timeout_s: float = 10.0
    """For each wait for more of an answer."""
    total_timeout_s: float = 30.0
    """For everything that one URL needs, redirects included."""


@dataclass(frozen=True, slots=True)
class FilesSpec:
    """Where the router keeps files of clients, and how much they may take."""

    folder: str
    max_file_bytes: int = 512 * 1024 * 1024
    max_key_bytes: int = 10 * 1024 * 1024 * 1024
    """Those of one key together, or of all clients without one."""
    max_bytes: int = 20 * 1024 * 1024 * 1024


class StablePrompts(StrEnum):
    """What of prompts differs in each request of a session and says nothing."""

    BILLING_HEADER = "billing_header"
    """The line with which Claude Code begins its system prompt."""
    TOKENS_LEFT = "tokens_left"
    """How much of the context is left, in the system prompt."""
    TIMES = "times"
    """Times of day with seconds, in the system prompt."""
    TOOL_ORDER = "tool_order"


@message
@dataclass(frozen=True, slots=True)
class RouterSpec:
    """The configuration of the router, the HTTP front."""

    router_id: str
    run_dir: str
    log: LogSpec
    listen_fd: int
    """An inherited, listening socket. While a router is being restarted, new connections wait in
    its backlog instead of being refused."""
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
    """The number of requests that are answered at a time. More get the status 429."""
    admin_key: str = field(repr=False)
    """The key to the routes for operators."""
    sync_timeout_s: float
    """How long a request that does not stream waits for its answer."""
    jobs_path: str
    """The file of the job records. They are removed by age, number and size."""
    jobs_max_age_s: float
    jobs_max_count: int
    files: FilesSpec
    logs_dir: str
    """The folder where all processes log."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names that the router answers to, besides the machine's own. Their form is that of
    :mod:`lmx.protocol.web_origins`."""
    cors_origins: tuple[str, ...] = ()
    """The other origins whose pages may use the router. Their form is that of
    :mod:`lmx.protocol.web_origins`."""
    keyring: Keyring = field(default_factory=Keyring)
    """The keys as they are when the router starts."""
    jobs_max_bytes: int = 512 * 1024 * 1024
    metrics_key: str = field(default="", repr=False)
    """The key to the metrics. Empty: there is no such key."""
    share_prefix_cache: bool = False
    """Whether a request may use what was computed for another key."""
    key_limits: RateLimits = field(default_factory=RateLimits)
    """The limits of each key, or of each client's address where there are no keys."""
    total_limits: RateLimits = field(default_factory=RateLimits)
    """The limits of all clients together."""
    rescue: RescueSpec | None = None
    """None: the router does nothing about a silent supervisor."""
    beat_interval_s: float = 1.0
    orphan_grace_s: float = 300.0
    """For how long the router continues without a supervisor."""
    stable_prompts: tuple[StablePrompts, ...] = (
        StablePrompts.BILLING_HEADER,
        StablePrompts.TOKENS_LEFT,
    )
    """What models are not shown."""
    media: MediaLimits = MediaLimits()
    capture_requests: int = 0
    """The bodies of how many requests are kept for the operator, in memory. 0: none."""
    show_rereads: bool = False
    """Whether the operator sees the text at which a prompt differs from an earlier one."""
    tracing_endpoint: str = ""
    """The address of the OpenTelemetry collector that gets the traces. Empty: none are made."""
    tracing_headers: str = field(default="", repr=False)
    """Headers for the collector, in the form of ``OTEL_EXPORTER_OTLP_HEADERS``."""
    machine: str = "lmx"
    """The name of this machine among its peers."""
    peers: PeerList = field(default_factory=PeerList)
    """The peers to begin with."""
