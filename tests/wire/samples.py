"""One sample of every message on the wire, with no field at its default where that is possible.

The golden bytes in ``golden/`` are these samples encoded. They change only with the protocol:
a diff there is a change of the wire format, and says in review what PROTOCOL.md must say too.
Write them anew with::

    python -m tests.wire.samples
"""

from pathlib import Path
from typing import Any, Final

from lmx.protocol.errors import ErrorCode
from lmx.protocol.messages.control import (
    Acquire,
    Acquired,
    BatchChanged,
    BeatSeen,
    Denied,
    Done,
    Drain,
    Drained,
    DrainMachine,
    DrainModel,
    DrainRefused,
    EarlierEvents,
    Event,
    EventList,
    GetEvents,
    Identify,
    KillModel,
    LoadAdvanced,
    Loaded,
    LoadFailed,
    LoadModel,
    LoadPlan,
    PinModel,
    PlanLine,
    PlanLoad,
    Pressure,
    RefusedAdapter,
    ReloadConfig,
    Reloaded,
    ResetModel,
    RestartModel,
    RestartRouter,
    RestartSupervisor,
    RouterBeat,
    RouterHello,
    StopAll,
    UnloadModel,
    Welcome,
    Withdraw,
    WorkerBeat,
    WorkerExited,
    WorkerHello,
)
from lmx.protocol.messages.counts import CountsKept, KeyUsage, ReportCounts, Tally
from lmx.protocol.messages.data import (
    Accepted,
    Assist,
    Cancel,
    ChoiceEnded,
    Credit,
    Delta,
    Failed,
    Finished,
    Generate,
    Infill,
    InfillFile,
    Outputs,
    Preparing,
    Pulse,
    Refused,
    Reread,
    Sampling,
    Search,
    Structure,
    Thinking,
    Timings,
    TokenBias,
    TokenLogprob,
    ToolCallPart,
    ToolUse,
    TopLogprob,
    Usage,
)
from lmx.protocol.messages.inventory import (
    AddModel,
    Available,
    AvailableModel,
    CancelDownload,
    Deleted,
    DeleteModel,
    Downloads,
    DownloadView,
    GetAvailable,
    GetDownloads,
    RemoveModel,
    StartDownload,
)
from lmx.protocol.messages.keys import (
    AddKey,
    ApiKey,
    DayBudget,
    DayUse,
    FormerSecret,
    GetKeyring,
    GetLocalKey,
    KeyFamily,
    KeyList,
    KeyMade,
    Keyring,
    KeyScope,
    KeyView,
    ListKeys,
    LocalKey,
    RateLimits,
    RevokeKey,
    RotateKey,
)
from lmx.protocol.messages.media import MediaItem
from lmx.protocol.messages.pairing import (
    ForgetPeer,
    GetMachine,
    GetOffer,
    IssuePeerKey,
    Machine,
    OfferPairing,
    OfferState,
    OfferView,
    PairAccepted,
    PairHello,
    PairingOffer,
    PairProof,
    PairWelcome,
    WithdrawOffer,
)
from lmx.protocol.messages.peers import GetPeers, Peer, PeerKind, PeerList, PutPeer, RemovePeer
from lmx.protocol.messages.ranks import (
    EndRanks,
    FollowerLink,
    FollowerSpec,
    FollowersRefused,
    FollowersStarted,
    Meeting,
    RankAdmit,
    RankBeat,
    RankFailed,
    RankOrder,
    RankRing,
    RankSettled,
    RankStarted,
    RemoteFollower,
    StartRank,
    WantFollowers,
)
from lmx.protocol.messages.snapshot import GetSnapshot, ModelView, NamePattern, Route, Snapshot
from lmx.protocol.messages.specs import (
    AdapterSpec,
    FilesSpec,
    LogSpec,
    MediaLimits,
    PrefixCacheSpec,
    RankHost,
    RanksSpec,
    RescueSpec,
    RouterSpec,
    SpeculationSpec,
    StablePrompts,
    WorkerSpec,
)
from lmx.protocol.messages.speech import (
    SoundFormat,
    Speak,
    Spoken,
    SpokenSegment,
    SpokenWord,
    Transcribe,
    Transcript,
)
from lmx.protocol.messages.status import (
    AdapterStatus,
    GetStatus,
    LastExit,
    LentRank,
    ModelStatus,
    RankFigures,
    ReturnedMemory,
    RouterStatus,
    Status,
    SupervisorStatus,
    SystemStatus,
    WorkerFigures,
)
from lmx.protocol.messages.tasks import (
    DescribeTokenizer,
    Detokenize,
    Detokenized,
    Embed,
    Rerank,
    Scores,
    TaskFinished,
    Tokenize,
    Tokenized,
    TokenizerDescribed,
    Vectors,
)
from lmx.protocol.messages.template import TemplateFacts
from lmx.protocol.models.decode_limits import DecodeLimits
from lmx.protocol.models.memory import KvLayers
from lmx.protocol.models.ranks import Parallel
from lmx.protocol.states import (
    DeltaKind,
    DownloadStatus,
    ExitCause,
    FinishReason,
    LoadOutcome,
    LoadPhase,
    MediaForm,
    MediaKind,
    MemoryPressure,
    MemoryWiring,
    ModelKind,
    ModelState,
    QuantizedBits,
    RankCall,
    RereadReason,
    RouterState,
    SlotState,
    StructureKind,
    SupervisorState,
    ToolChoice,
    WorkerState,
)
from lmx.protocol.wire.codec import encode

GOLDEN: Final = Path(__file__).parent / "golden"
CORRELATION: Final = 41
"""Of every golden message: a number that is not the default."""

_TEMPLATE: Final = TemplateFacts(("low", "high"), ("later_system",), ("calls",))
_SCOPES: Final = (KeyScope.INFERENCE, KeyScope.OPERATOR)
_SETTINGS: Final[dict[str, Any]] = {
    "scopes": _SCOPES, "models": ("qwen3-*",), "families": (KeyFamily.OLLAMA,),
    "limits": RateLimits(60, 1000, 2), "budget": DayBudget(500, 100_000), "priority": 3,
    "expires_at_s": 1_800_000_000.0,
}  # fmt: skip
_KEY: Final = ApiKey(
    digest="ab" * 32, owner="key_0123456789ab", name="ci", created_at_s=1_700_000_000.5,
    former=(FormerSecret("cd" * 32, 1_700_003_600.0),), **_SETTINGS,
)  # fmt: skip
_KEYRING: Final = Keyring((_KEY,), True, "0123456789abcdef")
_PEER: Final = Peer("studio", "http://studio:8000", PeerKind.OPENAI, "k" * 16, "ab" * 32)
_PEERS: Final = PeerList((_PEER,), "0123456789abcdef")
_KEY_VIEW: Final = KeyView(
    name="ci", configured=True, created_at_s=1_700_000_000.5, former_until_s=1_700_003_600.0,
    key_id="key_0", used_today=DayUse(3, 120), **_SETTINGS,
)  # fmt: skip
# fmt: off
_MODEL: Final = ModelView(
    model_id="org/tiny", aliases=("tiny", "auto"), source="org/tiny-4bit", slot=SlotState.OCCUPIED,
    worker=WorkerState.LOADING, instance="0badcafe", pid=4242, memory_bytes=123_456_789,
    context_length=8192, kind=ModelKind.CHAT, capabilities=("tools",), template=_TEMPLATE,
    created_s=1_700_000_000, disk_bytes=88_000_000, loaded_at_s=1_700_000_100.5,
    phase=LoadPhase.WEIGHTS, fraction=0.25, retry_after_s=1.5, problem="it crashed once",
    position=2, pinned=True, max_waiting=64, max_queue_s=600.0, max_rows=8, family="qwen3",
    media=(MediaKind.IMAGE, MediaKind.VIDEO), needed_bytes=99_000_000, added=True, base="org/base")

_FIGURES: Final = WorkerFigures(
    memory_bytes=123_456_789, peak_memory_bytes=234_567_890, kv_bytes=1_000_000, requests_total=17,
    tokens_total=4711, prompt_tokens_total=90, cached_tokens_total=40, drafted_tokens_total=30,
    accepted_tokens_total=20, preempted_total=5, compute_s_total=60.25,
    speculation="prompt lookup: on",
    ranks=(RankFigures(
        rank=1, pid=4243, memory_bytes=1_000_000, peak_memory_bytes=2_000_000, machine="studio",
        calls=900),))

_MODEL_STATUS: Final = ModelStatus(
    model="org/tiny", aliases=("tiny", "auto"), source="org/tiny-4bit", kind=ModelKind.CHAT,
    family="qwen3", media=(MediaKind.AUDIO,), added=True, pid=4242, instance="0badcafe",
    context_length=8192, phase=LoadPhase.WEIGHTS, fraction=0.25, loaded_at_s=1_700_000_100.5,
    position=2, pinned=True, needed_bytes=99_000_000, problem="it crashed once",
    state=ModelState.LOADING, parameters={"n_gpu_layers": 7}, figures=_FIGURES,
    reserved_bytes=345_678_901, weights_bytes=80_000_000, kv_capacity_bytes=50_000_000,
    context_bytes=20_000_000, idle_s=2.5, expires_in_s=297.5, waiting=4, max_rows=8,
    requests_active=2, requests_queued=3, stalled_s=0.125, loads_total=6, load_s_total=12.5,
    exits={"crash": 2, "evicted": 4},
    last_exit=LastExit(
        cause=ExitCause.CRASH, detail="signal 11", at_s=1_700_000_050.5, pid=4241,
        memory=ReturnedMemory(
            returned_bytes=100_000_000, missing_bytes=1_000_000, took_s=0.5,
            detail="95.4 MiB came back in 0.5 s, 1.0 MiB did not")), restarts=2, retry_in_s=1.5,
    allow_checkpoint_code=True,
    adapters=(
        AdapterStatus(id="tiny-sql", source="/models/sql", problem="it is of another model"),),
    quantized="quantized to 4 bits by lmx, from org/whole",
    remarks=("it is computed wrongly",), energy_joules=1889.0)

_SUPERVISOR: Final = SupervisorStatus(
    state=SupervisorState.RUNNING, pid=4240, version="1.2.3", epoch="e90c4a11",
    home="/home/somebody/.lmx", uptime_s=3600.5, memory_bytes=50_000_000,
    budget_bytes=8_000_000_000, reserved_bytes=345_678_901, missing_bytes=1_000_000,
    memory_pressure=MemoryPressure.SOFT, memory_soft_line=0.9, machine_memory_bytes=16_000_000_000,
    machine_used_bytes=15_000_000_000, machine_available_bytes=1_000_000_000, swaps_total=4,
    notices=("lmx.yaml can be read by others",), machine_watts=31.5, drained=True,
    machine_energy_joules=4711.0,
    lent=(
        LentRank(
            model="tiny", owner="peer-desk", rank=1, count=2, pid=4250,
            reserved_bytes=99_000_000),))

_MEETING: Final = Meeting("tcp://192.168.1.20:51234", 40 * "k", "192.168.1.21")
_VERSIONS: Final = {"lmx": "0.1.0", "mlx": "0.32.4"}

_ROUTER: Final = RouterStatus(
    state=RouterState.RUNNING, pid=4243, host="127.0.0.1", port=8000, adopted=True,
    memory_bytes=60_000_000, streams=5, waiting=3, requests_total=99, restarts=1, retiring=2,
    batches=2, batch_lines=70_000,
    url="http://127.0.0.1:8000/v1", urls=("http://127.0.0.1:8000/v1",),
    announced_url="http://studio.local:8000/v1")

_LOG: Final = LogSpec(path="/var/log/lmx/x.log", level="debug", max_bytes=1_000_000, keep=5)

_DOWNLOAD: Final = DownloadView(
    download_id="dl_0badcafe", repo_id="org/tiny", revision="main", filename="tiny.gguf",
    status=DownloadStatus.FAILED, total_bytes=1_000_000, downloaded_bytes=250_000,
    speed_bytes_per_s=1024.5, started_s=1_700_000_000.5, ended_s=1_700_000_100.5, model_id="tiny",
    error_code=ErrorCode.DOWNLOAD_FAILED, error="the connection was lost", param="filename",
    retry_after_s=300.0, bits=QuantizedBits.FOUR, note="quantizing (42 %)")

_MACHINE: Final = Machine("studio", "192.168.1.20", 8000, "ab" * 32)

SAMPLES: Final[tuple[Any, ...]] = (
    # Keys.
    _KEYRING, GetKeyring(), ListKeys(), KeyList((_KEY_VIEW,)), RotateKey("ci", 60.0),
    RevokeKey("ci"), AddKey(name="ci", **_SETTINGS), KeyMade(_KEY_VIEW, "sk-lmx-0123", "later"),
    GetLocalKey(), LocalKey("sk-lmx-0123"),
    # Peers.
    _PEERS, GetPeers(), PutPeer(_PEER), RemovePeer("studio"),
    # Worker to supervisor.
    WorkerHello(
        "0badcafe", "org/tiny", 4242, WorkerState.READY, 123_456_789, 8192, ("tools", "reasoning"),
        ModelKind.CHAT, (RefusedAdapter("tiny-sql", "it is of another model"),), (MediaKind.IMAGE,),
        _TEMPLATE, ("it is computed wrongly",)),
    LoadAdvanced("0badcafe", LoadPhase.WARMUP, 0.5, "first token"),
    Loaded(
        "0badcafe", 123_456_789, 8192, 2.75, ("tools", "reasoning"),
        (RefusedAdapter("tiny-sql", "it is of another model"),), (MediaKind.IMAGE,), _TEMPLATE,
        ("it is computed wrongly",)),
    LoadFailed("0badcafe", ErrorCode.MODEL_LOAD_FAILED, "no such tensor", True),
    WorkerBeat(
        instance="0badcafe", state=WorkerState.READY, rows=2, queued=3, stalled_for_s=0.125,
        figures=_FIGURES, idle_for_s=2.5, keep_alive_s=-1.0),
    DrainRefused("0badcafe", 2),
    Drained("0badcafe"),
    # Supervisor to worker.
    Welcome("e90c4a11"),
    Identify("e90c4a11"),
    BeatSeen("e90c4a11", 12, "0123456789abcdef", "fedcba9876543210", 31.5),
    Drain(if_idle=True),
    Pressure(MemoryPressure.HARD),
    # Router to supervisor, and back.
    RouterHello(4243, "0000cafe", 8000),
    RouterBeat(
        4243, 5, 99, 60_000_000, 3, True, "0123456789abcdef", "e90c4a11", 12, "5d1f", batches=2,
        batch_lines=70_000,
    ),
    BatchChanged("batch_0123", "completed", "org/tiny", 50_000, 49_000, 1_000),
    GetSnapshot(),
    Acquire("org/tiny", 30.0, "req_1", 2.5),
    Withdraw("org/tiny"),
    Acquired("org/tiny", "0badcafe"),
    Denied(ErrorCode.QUEUE_FULL, "64 wait", "model", 4.5, True),
    # Supervisor to routers.
    Snapshot(
        "e90c4a11", 12, "org/tiny", (_MODEL,), True, (Route("auto", ("org/tiny", "big")),),
        77_000_000, "memory is short", (NamePattern("claude-*", "auto"),), True, 88_000_000),
    WorkerExited("0badcafe", "org/tiny", ExitCause.SIGNAL, "signal 9"),
    # CLI to supervisor.
    GetStatus(),
    Status(SystemStatus(supervisor=_SUPERVISOR, router=_ROUTER, workers=(_MODEL_STATUS,))),
    LoadModel("org/tiny", 4096),
    UnloadModel("org/tiny"),
    KillModel("org/tiny"),
    RestartModel("org/tiny"),
    DrainModel("org/tiny"),
    DrainMachine(True),
    ResetModel("org/tiny"),
    PinModel("org/tiny", True),
    PlanLoad("org/tiny", 4096, "/tmp/heads/model", 800),
    LoadPlan(
        "org/tiny", (PlanLine("weights", 900, "headers"),), 1000, LoadOutcome.EVICTS,
        "other would be evicted", 2000, 500, ("other",), 800, 4096, 8192, 2048),
    ReloadConfig(),
    Reloaded(("models", "memory"), ("tiny was added",)),
    RestartRouter(),
    RestartSupervisor(),
    GetEvents(17, 100, earlier=True),
    EventList(
        "e90c4a11", 18,
        (Event(18, 1_700_000_200.5, "worker.exited", "org/tiny", "by a signal", {"pid": 4242}),),
        (EarlierEvents("d01a", (Event(9, 1_700_000_100.5, "router.ready", None, "", {}),)),)),
    StopAll(),
    Done("begun", 4242, "org/tiny"),
    # Inventory.
    AddModel("tiny-2", "org/tiny-2", 4096, {"n_gpu_layers": 100}, context_at_most=True),
    RemoveModel("tiny-2"),
    StartDownload("org/tiny", "main", "tiny.gguf", QuantizedBits.FOUR),
    CancelDownload("dl_0badcafe"),
    GetDownloads("dl_0badcafe"),
    _DOWNLOAD,
    Downloads((_DOWNLOAD,)),
    GetAvailable(),
    Available((AvailableModel("org/tiny", "/cache/tiny", 1_000_000, 1_700_000_000.5, "tiny"),)),
    DeleteModel("org/tiny", True),
    Deleted("org/tiny", 1_000_000),
    ReportCounts(
        4711,
        (Tally("org/tiny", ("prompt_tokens", "le:x:0.5"), (21.0, 2.0), 1_700_000_000.5, 40.5),),
        (KeyUsage("key_0", 2.5, 100.0, 1, 0.5),), fresh=True, seen=3,
        ended=(Tally("", ("requests",), (7.0,)),), since_s=1_700_000_000.5),
    CountsKept(
        3, 1_700_000_000.5, (Tally("", ("requests",), (7.0,)),),
        (Tally("", ("requests",), (1.0,)),), (KeyUsage("key_0", running=1),),
        (KeyUsage("key_0", 2.5, 100.0, age_s=0.5),), others_run=True),
    # Router to worker, and back.
    Generate(
        stream_id=7, request_id="req_1",
        infill=Infill("after", "beg", (InfillFile("a.py", "text"),), "input_suffix"),
        sampling=Sampling(
            temperature=0.5, top_p=0.9, top_k=40, min_p=0.05, typical_p=0.95, seed=-3,
            repetition_penalty=1.1, presence_penalty=0.25, frequency_penalty=-0.25,
            logit_bias=(TokenBias(17, -100.0), TokenBias(42, 1.5)), ignore_eos=True, min_tokens=3,
            stop_token_ids=(2, 5), allowed_token_ids=(2, 5, 17), bad_words=("no",)),
        credit_deltas=64, messages=({"role": "user", "content": "wie heißt du? 🌍"},),
        prompt="wie heißt du? 🌍", prompt_tokens=(1, 2, 3), max_tokens=128, stop=("\n\n", "END"),
        include_stop=True, search=Search(2, 4, True, 0.75), top_logprobs=5, echo=True,
        prompt_logprobs=2, parse=False, template_kwargs={"enable_thinking": False},
        structure=Structure(StructureKind.REGEX, "[0-9]+", "structured_outputs.regex", " ?"),
        tool_use=ToolUse(
            ({"type": "function", "function": {"name": "now"}},), ToolChoice.REQUIRED, "now", False,
            ("now",)), thinking=Thinking("high", True, 512, "think"), assist=Assist(5, 0.5, 3),
        cache_salt="tenant", priority=-7, keep_alive_s=60.0, owner="key_0123456789ab",
        memory_wait_s=12.5, whole=True, token_ids=True, add_generation_prompt=False,
        continue_final_message=True, truncate_prompt_tokens=-1, adapter="tiny-sql",
        show_reread=True,
        media=(
            MediaItem(
                MediaKind.VIDEO, MediaForm.WEBM, "messages[0].content[1].video_url", 70_000,
                bytes(range(32)), "high", 1.0, 3136, 1_003_520, 64, False),)),
    Credit(7, 32),
    Cancel(7),
    Accepted(7, 21, 3, ("as anyOf",), (5, 6), ("think",)),
    Refused(7, ErrorCode.CONTEXT_LENGTH_EXCEEDED, "9000 > 8192", "messages", 1.5),
    Outputs(
        deltas=(
            Delta(7, "ß🌍", 2), Delta(8, "", 1),
            Delta(7, "{", 1, 1, DeltaKind.TOOL_CALL, ToolCallPart(0, "call_1", "now")),
            Delta(
                7, "a", 1, 2,
                logprobs=(TokenLogprob(b"a", -0.5, 64, (TopLogprob(b"\xf0", -1.5, 128),), 2),))),
        ended=(ChoiceEnded(7, 1, FinishReason.TOOL_CALLS, "END"),),
        finished=(
            Finished(
                7, Usage(21, 128, 16, 40, 9, 4, 2), Timings(0.1, 0.2, 3.5, 30, 20, 120.5),
                ("not checked",), Reread(RereadReason.ANSWER, 17, 20, "it is ", "ten", "two")),),
        failed=(Failed(8, ErrorCode.ENGINE_ERROR, "no kernel"),)),
    Pulse("0badcafe", 2),
    Preparing(7),
    # Work that is no generation.
    Embed(9, "req_2", 600.0, ("a", "ß🌍"), ((1, 2), (3,)), 256, 60.0, "key_0", True, True),
    Rerank(10, "req_3", 600.0, "who?", ("me", "you"), 60.0, "key_0", ("who?", "who else?")),
    Tokenize(
        stream_id=11, request_id="req_4", deadline_s=60.0, text="hi",
        messages=({"role": "user", "content": "hi"},), add_special_tokens=False,
        add_generation_prompt=False, template_kwargs={"enable_thinking": False},
        tool_use=ToolUse(({"type": "function", "function": {"name": "f"}},)), pieces=True,
        owner="key_0", thinking=Thinking("high", True, 64, "think"), continue_final_message=True,
        media=(MediaItem(MediaKind.IMAGE, MediaForm.PNG, "image_url", 4711, bytes(range(32))),)),
    Detokenize(12, "req_5", 60.0, (1, 2, 3), "key_0"),
    DescribeTokenizer(13, "req_6", 60.0, "key_0"),
    Vectors(9, (1, 0), 1, bytes(8)),
    Scores(10, (0, 1), (0.5, -1.25)),
    Transcribe(
        13, "req_6", 3600.0,
        (
            MediaItem(
                MediaKind.AUDIO, MediaForm.MP3, "file", 4711, bytes(range(32)), "low", 2.0, 1, 2, 3,
                False),), True, "de", "Names: Ångström.", 0.4, True, 60.0, "key_0"),
    Transcript(
        13, "german", 61.5, 30.0, 41,
        (
            SpokenSegment(
                0.5, 2.5, " Guten Tag.", (50364, 1, 50489), 0, 0.2, -0.25, 1.5, 0.125,
                (SpokenWord(" Guten", 0.5, 1.0), SpokenWord(" Tag.", 1.0, 2.5))),)),
    Speak(14, "req_7", 1800.0, "Guten Tag.", "af_heart", SoundFormat.FLAC, 1.5, 60.0, "key_0"),
    Spoken(14, b"\xff\xfb", 1.25),
    TaskFinished(9, 21),
    Tokenized(11, (5, 6), 8192, b'["h","i"]'),
    Detokenized(12, "hé"),
    TokenizerDescribed(13, "{}"),
    # To a child on its stdin.
    WorkerSpec(
        instance="0badcafe", model_id="org/tiny", model_path="/models/tiny", run_dir="/run/lmx",
        log=_LOG, engine="lmx.worker.fake:make", engine_options={"seed": 1},
        memory_limit_bytes=2_000_000_000, max_rows=8, max_queue=32, context_length=8192,
        default_max_tokens=256, max_tokens_limit=4096, kind=ModelKind.RERANK, temperature=0.6,
        top_p=0.95, top_k=20, min_p=0.1, typical_p=0.9, repetition_penalty=1.05,
        presence_penalty=0.5, frequency_penalty=0.4, template_kwargs={"enable_thinking": True},
        chat_template="{{ messages }}", tokenizer_config={"eos_token": "</s>"}, allow_inexact=True,
        calls_in_open_thought=False, tool_parser="mistral", max_decode_stall_s=0.5,
        prefix_cache=PrefixCacheSpec(1_000_000, "/cache/tiny", 2_000_000),
        speculation=SpeculationSpec("/models/draft", 5, 0.4, 4, 3), kv_cache_bytes=400_000_000,
        kv_layers=(KvLayers(30, 1536, 512, 64, 256, 3072),), max_queue_s=120.0,
        render_timeout_s=5.0, beat_interval_s=0.5, orphan_grace_s=60.0, allow_checkpoint_code=True,
        adapters=(AdapterSpec("tiny-sql", "/models/sql"),), kv_bits=8,
        decode=DecodeLimits(
            1_000_000, 100, 2_000_000, 64, 3_000_000, 60.0, 1000, 90.0, 4_000_000, 5_000_000, 7.0,
            8.0), wiring=MemoryWiring.ALWAYS, ranks=RanksSpec(
            4, Parallel.TENSOR, 7.5, (RankHost("studio", "192.168.1.21"),),
            (("", "rdma_en5"), ("rdma_en4", "")))),
    FollowerSpec(
        WorkerSpec(
            instance="0badcafe", model_id="org/tiny", model_path="/models/tiny",
            run_dir="/run/lmx", log=_LOG, engine="lmx.worker.fake:make", engine_options={},
            memory_limit_bytes=2_000_000_000, max_rows=8, max_queue=32,
            ranks=RanksSpec(4, Parallel.TENSOR, 7.5)),
        3, FollowerLink("tcp://192.168.1.20:51234", 40 * "k", "192.168.1.21", 7)),
    RankAdmit(
        7, (1, 2, 300), 40, constrained=True, prompt_logprobs=2, cache_salt="salt",
        generated_tokens=1, priority=5),
    RankOrder(RankCall.PREEMPT, 7),
    RankSettled("chunk", (512,)),
    RankRing(("192.168.1.20:51235", "192.168.1.21:51236"), (("", "rdma_en5"), ("rdma_en4", ""))),
    WantFollowers("0badcafe", 64 * "d", _VERSIONS, (_MEETING,)),
    FollowersStarted((RemoteFollower(40 * "k", 4250),)),
    FollowersRefused(ErrorCode.INSUFFICIENT_MEMORY, "studio: nothing is free"),
    StartRank(
        "peer-desk", "0badcafe", "org/tiny", 1, 2, Parallel.TENSOR, _MEETING, 64 * "d", _VERSIONS,
        100_000_000, 90_000_000, 1_000_000, 8192, 8, 0.5, 1.5, 20.0),
    RankStarted(40 * "k", 4250),
    EndRanks("peer-desk", "0badcafe"),
    RankBeat("192.168.1.21:51236", 1234, 2_000_000_000, 2_100_000_000),
    RankFailed(ErrorCode.MODEL_LOAD_FAILED, "ValueError: no weights"),
    RouterSpec(
        router_id="0000cafe", run_dir="/run/lmx", log=_LOG, listen_fd=3, host="127.0.0.1",
        port=8000, version="1.2.3", body_limit_bytes=10_000_000, load_wait_s=300.0,
        stall_timeout_s=30.0, worker_silence_s=15.0, ping_interval_s=10.0, shutdown_grace_s=20.0,
        max_requests=512, admin_key="lmx-admin-0123", sync_timeout_s=90.0,
        jobs_path="/state/jobs.sqlite", jobs_max_age_s=3600.0, jobs_max_count=500,
        files=FilesSpec("/files", 1_000, 2_000, 3_000), logs_dir="/logs",
        jobs_max_bytes=1_000_000, allowed_hosts=("*.example.com",),
        cors_origins=("http://localhost:*",),
        keyring=_KEYRING,
        metrics_key="lmx-metrics-0123", share_prefix_cache=True,
        key_limits=RateLimits(600, 100_000, 8), total_limits=RateLimits(6000, 1_000_000, 64),
        rescue=RescueSpec(("lmx-supervisor", "rescue"), 15.0, {"LMX_SECURITY_API_KEYS": "k"}),
        beat_interval_s=0.5, orphan_grace_s=60.0, stable_prompts=(StablePrompts.TIMES,),
        media=MediaLimits(("10.0.0.0/8",), 4, 1000, 8000, 2, 1.5, 2.5, 7.5), capture_requests=7,
        show_rereads=True, tracing_endpoint="http://collector:4318", tracing_headers="api-key=k",
        machine="desk", peers=_PEERS),
    # Pairing.
    GetMachine(),
    _MACHINE,
    OfferPairing(),
    PairingOffer("0badcafe", "K7QZM4XH2P", _MACHINE, 300.0),
    GetOffer("0badcafe"),
    OfferView(OfferState.PAIRED, "paired with laptop"),
    WithdrawOffer("0badcafe"),
    PairHello(b"p" * 32, b"n" * 16),
    PairWelcome("00ff", "studio", b"q" * 32, b"m" * 16),
    PairProof("00ff", b"r" * 32, b"sealed", "192.168.1.7"),
    PairAccepted(b"s" * 32, b"sealed too"),
    IssuePeerKey("laptop", "sk-lmx-0123"),
    ForgetPeer("peer-laptop"),
)
# fmt: on


def write_golden() -> None:
    """Write ``golden/<Kind>.bin`` for every sample, and remove what has no sample."""
    GOLDEN.mkdir(exist_ok=True)
    for stale in GOLDEN.glob("*.bin"):
        stale.unlink()
    for sample in SAMPLES:
        path = GOLDEN / f"{type(sample).__name__}.bin"
        path.write_bytes(encode(sample, CORRELATION))


if __name__ == "__main__":
    write_golden()
