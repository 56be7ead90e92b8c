"""One sample of every message on the wire, with no field at its default where that is possible.

The golden bytes in ``golden/`` are these samples encoded. They change only with the protocol:
a diff there is a change of the wire format, and says in review what PROTOCOL.md must say too.
Write them anew with::

    PYTHONPATH=build/ns python tests/wire/samples.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from lmx.protocol.codec import encode
from lmx.protocol.control import (
    Acquire,
    Acquired,
    BeatSeen,
    Denied,
    Done,
    Drain,
    Drained,
    DrainModel,
    DrainRefused,
    Event,
    EventList,
    GetEvents,
    GetSnapshot,
    GetStatus,
    Identify,
    KillModel,
    LoadAdvanced,
    Loaded,
    LoadFailed,
    LoadModel,
    ModelView,
    PinModel,
    Pressure,
    ReloadConfig,
    Reloaded,
    ResetModel,
    RestartModel,
    RestartRouter,
    RestartSupervisor,
    RouterBeat,
    RouterHello,
    Saved,
    Snapshot,
    Status,
    StopAll,
    UnloadModel,
    Welcome,
    Withdraw,
    WorkerBeat,
    WorkerExited,
    WorkerHello,
)
from lmx.protocol.data import (
    Accepted,
    Assist,
    Cancel,
    ChoiceEnded,
    Credit,
    Delta,
    Failed,
    Finished,
    Generate,
    Outputs,
    Pulse,
    Refused,
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
from lmx.protocol.errors import ErrorCode
from lmx.protocol.kv_shape import KvLayers
from lmx.protocol.specs import (
    LogSpec,
    PrefixCacheSpec,
    RouterSpec,
    SpeculationSpec,
    WorkerSpec,
)
from lmx.protocol.states import (
    DeltaKind,
    ExitCause,
    FinishReason,
    LoadPhase,
    MemoryPressure,
    ModelKind,
    SlotState,
    StructureKind,
    ToolChoice,
    WorkerState,
)
from lmx.protocol.tasks import (
    Detokenize,
    Detokenized,
    Embed,
    Rerank,
    Scores,
    TaskFinished,
    Tokenize,
    Tokenized,
    Vectors,
)

GOLDEN: Final = Path(__file__).parent / "golden"
CORRELATION: Final = 41
"""Of every golden message: a number that is not the default."""

_MODEL: Final = ModelView(
    model_id="org/tiny",
    aliases=("tiny", "auto"),
    source="org/tiny-4bit",
    slot=SlotState.OCCUPIED,
    worker=WorkerState.LOADING,
    instance="0badcafe",
    pid=4242,
    memory_bytes=123_456_789,
    context_length=8192,
    kind=ModelKind.CHAT,
    capabilities=("tools",),
    created_s=1_700_000_000,
    loaded_at_s=1_700_000_100.5,
    phase=LoadPhase.WEIGHTS,
    fraction=0.25,
    retry_after_s=1.5,
    problem="it crashed once",
    position=2,
    pinned=True,
    max_waiting=64,
)

_LOG: Final = LogSpec(path="/var/log/lmx/x.log", level="debug", max_bytes=1_000_000, keep=5)

SAMPLES: Final[tuple[Any, ...]] = (
    # Worker to supervisor.
    WorkerHello(
        "0badcafe",
        "org/tiny",
        4242,
        WorkerState.READY,
        123_456_789,
        8192,
        ("tools", "reasoning"),
        ModelKind.CHAT,
    ),
    LoadAdvanced("0badcafe", LoadPhase.WARMUP, 0.5, "first token"),
    Loaded("0badcafe", 123_456_789, 8192, 2.75, ("tools", "reasoning")),
    LoadFailed("0badcafe", ErrorCode.MODEL_LOAD_FAILED, "no such tensor", True),
    WorkerBeat(
        instance="0badcafe",
        state=WorkerState.READY,
        rows=2,
        queued=3,
        stalled_for_s=0.125,
        memory_bytes=123_456_789,
        requests_total=17,
        tokens_total=4711,
        saved=Saved(90, 40, 30, 20),
        peak_memory_bytes=234_567_890,
        kv_bytes=1_000_000,
        idle_for_s=2.5,
        keep_alive_s=-1.0,
    ),
    DrainRefused("0badcafe", 2),
    Drained("0badcafe"),
    # Supervisor to worker.
    Welcome("e90c4a11"),
    Identify("e90c4a11"),
    BeatSeen("e90c4a11", 12),
    Drain(if_idle=True),
    Pressure(MemoryPressure.HARD),
    # Router to supervisor, and back.
    RouterHello(4243, "0000cafe", 8000),
    RouterBeat(4243, 5, 99, 60_000_000, 3),
    GetSnapshot(),
    Acquire("org/tiny", 30.0, "req_1", 2.5),
    Withdraw("org/tiny"),
    Acquired("org/tiny", "0badcafe"),
    Denied(ErrorCode.QUEUE_FULL, "64 wait", "model", 4.5),
    # Supervisor to routers.
    Snapshot("e90c4a11", 12, "org/tiny", (_MODEL,), True),
    WorkerExited("0badcafe", "org/tiny", ExitCause.SIGNAL, "signal 9"),
    # CLI to supervisor.
    GetStatus(),
    Status({"supervisor": {"pid": 1, "uptime_s": 2.5}, "router": None, "workers": [{"rows": 2}]}),
    LoadModel("org/tiny"),
    UnloadModel("org/tiny"),
    KillModel("org/tiny"),
    RestartModel("org/tiny"),
    DrainModel("org/tiny"),
    ResetModel("org/tiny"),
    PinModel("org/tiny", True),
    ReloadConfig(),
    Reloaded(("models", "memory"), ("tiny was added",)),
    RestartRouter(),
    RestartSupervisor(),
    GetEvents(17, 100),
    EventList(
        "e90c4a11",
        18,
        (Event(18, 1_700_000_200.5, "worker.exited", "org/tiny", "by a signal", {"pid": 4242}),),
    ),
    StopAll(),
    Done("begun", 4242),
    # Router to worker, and back.
    Generate(
        stream_id=7,
        request_id="req_1",
        sampling=Sampling(
            temperature=0.5,
            top_p=0.9,
            top_k=40,
            min_p=0.05,
            typical_p=0.95,
            seed=-3,
            repetition_penalty=1.1,
            presence_penalty=0.25,
            frequency_penalty=-0.25,
            logit_bias=(TokenBias(17, -100.0), TokenBias(42, 1.5)),
            ignore_eos=True,
            min_tokens=3,
            stop_token_ids=(2, 5),
        ),
        credit_deltas=64,
        messages=({"role": "user", "content": "wie heißt du? 🌍"},),
        prompt="wie heißt du? 🌍",
        prompt_tokens=(1, 2, 3),
        max_tokens=128,
        stop=("\n\n", "END"),
        include_stop=True,
        search=Search(2, 4, True, 0.75),
        top_logprobs=5,
        echo=True,
        parse=False,
        template_kwargs={"enable_thinking": False},
        structure=Structure(StructureKind.REGEX, "[0-9]+", "structured_outputs.regex"),
        tool_use=ToolUse(
            ({"type": "function", "function": {"name": "now"}},), ToolChoice.REQUIRED, "now", False
        ),
        thinking=Thinking("high", True, 512),
        assist=Assist(5, 0.5, 3),
        cache_salt="tenant",
        keep_alive_s=60.0,
    ),
    Credit(7, 32),
    Cancel(7),
    Accepted(7, 21, 3),
    Refused(7, ErrorCode.CONTEXT_LENGTH_EXCEEDED, "9000 > 8192", "messages", 1.5),
    Outputs(
        deltas=(
            Delta(7, "ß🌍", 2),
            Delta(8, "", 1),
            Delta(7, "{", 1, 1, DeltaKind.TOOL_CALL, ToolCallPart(0, "call_1", "now")),
            Delta(
                7,
                "a",
                1,
                2,
                logprobs=(TokenLogprob(b"a", -0.5, 64, (TopLogprob(b"\xf0", -1.5, 128),)),),
            ),
        ),
        ended=(ChoiceEnded(7, 1, FinishReason.TOOL_CALLS, "END"),),
        finished=(Finished(7, Usage(21, 128, 16, 40), Timings(0.1, 0.2, 3.5, 30, 20)),),
        failed=(Failed(8, ErrorCode.ENGINE_ERROR, "no kernel"),),
    ),
    Pulse("0badcafe", 2),
    # Work that is no generation.
    Embed(9, "req_2", 600.0, ("a", "ß🌍"), ((1, 2), (3,)), 256, 60.0),
    Rerank(10, "req_3", 600.0, "who?", ("me", "you"), 60.0),
    Tokenize(
        stream_id=11,
        request_id="req_4",
        deadline_s=60.0,
        text="hi",
        messages=({"role": "user", "content": "hi"},),
        add_special_tokens=False,
        add_generation_prompt=False,
        template_kwargs={"enable_thinking": False},
        tool_use=ToolUse(({"type": "function", "function": {"name": "f"}},)),
        pieces=True,
    ),
    Detokenize(12, "req_5", 60.0, (1, 2, 3)),
    Vectors(9, (1, 0), 1, bytes(8)),
    Scores(10, (0, 1), (0.5, -1.25)),
    TaskFinished(9, 21),
    Tokenized(11, (5, 6), 8192, ("h", "i")),
    Detokenized(12, "hé"),
    # To a child on its stdin.
    WorkerSpec(
        instance="0badcafe",
        model_id="org/tiny",
        model_path="/models/tiny",
        run_dir="/run/lmx",
        log=_LOG,
        engine="lmx.worker.fake:make",
        engine_options={"seed": 1},
        memory_limit_bytes=2_000_000_000,
        max_rows=8,
        max_queue=32,
        context_length=8192,
        default_max_tokens=256,
        max_tokens_limit=4096,
        kind=ModelKind.RERANK,
        temperature=0.6,
        top_p=0.95,
        top_k=20,
        min_p=0.1,
        repetition_penalty=1.05,
        template_kwargs={"enable_thinking": True},
        tool_parser="mistral",
        max_decode_stall_s=0.5,
        prefix_cache=PrefixCacheSpec(1_000_000, "/cache/tiny", 2_000_000),
        speculation=SpeculationSpec("/models/draft", 5, 0.4, 4, 3),
        kv_cache_bytes=400_000_000,
        kv_layers=(KvLayers(30, 1536, 512, 64),),
        max_queue_s=120.0,
        beat_interval_s=0.5,
        orphan_grace_s=60.0,
    ),
    RouterSpec(
        router_id="0000cafe",
        run_dir="/run/lmx",
        log=_LOG,
        listen_fd=3,
        host="127.0.0.1",
        port=8000,
        version="1.2.3",
        body_limit_bytes=10_000_000,
        load_wait_s=300.0,
        stall_timeout_s=30.0,
        worker_silence_s=15.0,
        ping_interval_s=10.0,
        shutdown_grace_s=20.0,
        max_requests=512,
        admin_key="lmx-admin-0123",
        beat_interval_s=0.5,
        orphan_grace_s=60.0,
    ),
)


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
