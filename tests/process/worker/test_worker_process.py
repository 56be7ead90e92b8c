"""A worker as a process: the test is its supervisor and its router, over real sockets."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

import lmx.protocol
from lmx.protocol.errors import ErrorCode
from lmx.protocol.messages.control import (
    BeatSeen,
    Drain,
    Drained,
    DrainRefused,
    Identify,
    LoadAdvanced,
    Loaded,
    LoadFailed,
    Pressure,
    Welcome,
    WorkerBeat,
    WorkerHello,
)
from lmx.protocol.messages.data import (
    Accepted,
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
)
from lmx.protocol.messages.specs import LogSpec, WorkerSpec
from lmx.protocol.models.memory import KvLayers
from lmx.protocol.states import FinishReason, LoadPhase, MemoryPressure, WorkerState
from lmx.protocol.wire.codec import decode, encode
from lmx.protocol.wire.endpoints import RunDirectory
from lmx.protocol.wire.sockets import Role, open_socket
from tests.support.rigs.rig import ROOT

# Where `lmx` is found: the installed package, or the namespace link of a checkout.
LMX_PARENT = Path(lmx.protocol.__path__[0]).parent.parent
DEADLINE_S = 120.0
BEAT_S = 0.1
INSTANCE = "0000abcd"


class Peer:
    """The supervisor's and the router's ends, and everything that came to them."""

    def __init__(self, run_dir: Path) -> None:
        self.directory = RunDirectory(run_dir)
        self.context: zmq.Context[Any] = zmq.Context()
        self.control = self.bind_control()
        self.router = self.connect_router()
        self.facts: list[Any] = []
        self.outputs: list[Any] = []
        self.worker_id = b""
        self.answer_beats = True
        self.computing_watts: float | None = None

    def bind_control(self) -> Any:
        socket = open_socket(self.context, Role.DATA_SERVER)
        socket.bind(self.directory.control)
        return socket

    def connect_router(self) -> Any:
        socket = open_socket(self.context, Role.DATA_CLIENT)
        socket.connect(self.directory.worker(INSTANCE))
        return socket

    def pump(self, wait_s: float = 0.02) -> None:
        """Take what has come, answering beats."""
        poller = zmq.Poller()
        sockets = [socket for socket in (self.control, self.router) if not socket.closed]
        for socket in sockets:
            poller.register(socket, zmq.POLLIN)
        for socket, _ in poller.poll(int(wait_s * 1000)):
            frames = socket.recv_multipart()
            message = decode(frames[-1]).message
            if socket is self.router:
                self.outputs.append(message)
                continue
            self.worker_id = frames[0]
            self.facts.append(message)
            if isinstance(message, WorkerBeat) and self.answer_beats:
                try:
                    self.order(BeatSeen("epoch", 1, computing_watts=self.computing_watts))
                except zmq.ZMQError as error:
                    if error.errno != zmq.EHOSTUNREACH:  # It has ended since.
                        raise

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Pump until the condition holds; fails at the deadline."""
        deadline = time.monotonic() + DEADLINE_S
        while not (found := condition()):
            assert time.monotonic() < deadline, f"no {what}: {self.facts[-5:]} {self.outputs[-5:]}"
            self.pump()
        return found

    def fact(self, kind: type, where: Callable[[Any], bool] = lambda _: True) -> Any:
        """Wait for a message of the worker to its supervisor, and take it out."""

        def find() -> Any:
            return next((f for f in self.facts if isinstance(f, kind) and where(f)), None)

        found = self.until(find, kind.__name__)
        self.facts.remove(found)
        return found

    def order(self, message: Any) -> None:
        self.control.send_multipart([self.worker_id, encode(message)])

    def say(self, message: Any) -> None:
        """Send as the router, waiting for the connection."""
        assert self.router.poll(DEADLINE_S * 1000, zmq.POLLOUT)
        self.router.send(encode(message))

    def answers(self, kind: type[Any], stream_id: int) -> list[Any]:
        """Everything of this kind that a stream got."""
        items: list[Any] = []
        for message in self.outputs:
            items.append(message)
            if isinstance(message, Outputs):
                items += (*message.deltas, *message.ended, *message.finished, *message.failed)
        return [item for item in items if isinstance(item, kind) and item.stream_id == stream_id]

    def answer(self, kind: type, stream_id: int) -> Any:
        """Wait for a message to a stream."""
        return self.until(lambda: self.answers(kind, stream_id), kind.__name__)[0]

    def text(self, stream_id: int) -> str:
        return "".join(delta.text for delta in self.answers(Delta, stream_id))

    def close(self) -> None:
        self.context.destroy(linger=0)


class Worker:
    """The process, its log, and the peer that it talks to."""

    def __init__(self, home: Path, **overrides: Any) -> None:
        run_dir = home / "r"
        RunDirectory(run_dir).prepare()
        self.log = home / "worker.log"
        self.socket_file = RunDirectory(run_dir).worker_socket(INSTANCE)
        values: dict[str, Any] = {
            "instance": INSTANCE,
            "model_id": "scripted",
            "model_path": "/nowhere",
            "run_dir": str(run_dir),
            "log": LogSpec(str(self.log)),
            "engine": "tests.support.fakes.scripted_engine:create",
            "engine_options": {},
            "memory_limit_bytes": 1 << 30,
            "max_rows": 2,
            "max_queue": 2,
            "beat_interval_s": BEAT_S,
        }
        self.spec = WorkerSpec(**(values | overrides))
        self.peer = Peer(run_dir)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lmx.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": f"{LMX_PARENT}{os.pathsep}{ROOT}"},
        )
        assert self.process.stdin
        self.process.stdin.write(encode(self.spec))
        self.process.stdin.close()

    def loaded(self) -> Peer:
        """Lead the worker to READY."""
        self.peer.fact(WorkerHello)
        self.peer.order(Welcome("epoch"))
        self.peer.fact(Loaded)
        return self.peer

    def exit_status(self) -> int:
        """Wait for the process's end, taking what it sends meanwhile."""
        deadline = time.monotonic() + DEADLINE_S
        while (status := self.process.poll()) is None:
            assert time.monotonic() < deadline, "the worker did not exit"
            self.peer.pump()
        return status

    def events(self, name: str) -> list[dict[str, Any]]:
        """The log's events of this name."""
        lines = self.log.read_text().splitlines(keepends=True)
        # The last line may be half written.
        entries = [json.loads(line) for line in lines if line.startswith("{") and line[-1] == "\n"]
        return [entry for entry in entries if entry["event"] == name]

    def event(self, name: str) -> dict[str, Any]:
        """Wait for an event in the log."""
        found: list[dict[str, Any]] = self.peer.until(lambda: self.events(name), name)
        return found[0]

    def close(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE_S)
        assert self.process.stderr
        self.process.stderr.close()
        self.peer.close()


Start = Callable[..., Worker]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start workers; whatever they are in, they are gone afterwards."""
    home = Path(tempfile.mkdtemp(prefix="lmx-w-"))
    workers: list[Worker] = []

    def begin(**overrides: Any) -> Worker:
        workers.append(Worker(home, **overrides))
        return workers[-1]

    yield begin
    for worker in workers:
        worker.close()
    shutil.rmtree(home)


ENDLESS: dict[str, Any] = {"tokens": 3900, "step_s": 0.02}
"""An answer that takes longer than any test waits for something, unless its file ends it."""


def ask(stream_id: int = 1, credit: int = 1000, stop: tuple[str, ...] = (), **script: Any) -> Any:
    content = json.dumps(script) if script else "Say something."
    message = {"role": "user", "content": content}
    return Generate(
        stream_id, f"req-{stream_id}", Sampling(), credit, messages=(message,), stop=stop
    )


def test_life_from_hello_to_sigterm(start: Start) -> None:
    worker = start(engine_options={"load_s": 0.2, "memory_bytes": 7 << 30})
    peer = worker.peer
    hello = peer.fact(WorkerHello)
    assert (hello.instance, hello.model_id) == (INSTANCE, "scripted")
    assert hello.pid == worker.process.pid
    assert (hello.state, hello.memory_bytes) == (WorkerState.STARTING, 0)
    assert peer.fact(WorkerBeat).state is WorkerState.STARTING
    peer.order(Welcome("epoch"))
    fractions = [
        peer.fact(LoadAdvanced, lambda f: f.phase is LoadPhase.WEIGHTS).fraction for _ in range(3)
    ]
    assert fractions == pytest.approx([0.1, 0.2, 0.3])
    peer.fact(WorkerBeat, lambda beat: beat.state is WorkerState.LOADING)
    peer.fact(LoadAdvanced, lambda fact: fact.phase is LoadPhase.WARMUP)
    loaded = peer.fact(Loaded)
    assert loaded.memory_bytes == 7 << 30
    assert loaded.context_length == 4096
    assert 0.2 <= loaded.load_s < DEADLINE_S
    peer.fact(WorkerBeat, lambda beat: beat.state is WorkerState.READY)
    worker.process.send_signal(signal.SIGINT)
    peer.facts.clear()
    peer.fact(WorkerBeat)
    worker.process.terminate()
    assert worker.exit_status() == 0
    assert not worker.socket_file.exists()


def test_refuses_streams_while_loading(start: Start) -> None:
    worker = start(engine_options={"load_hang": True})
    worker.peer.fact(WorkerHello)
    worker.peer.order(Welcome("epoch"))
    worker.peer.say(ask())
    refused = worker.peer.answer(Refused, 1)
    assert refused.code is ErrorCode.MODEL_LOADING
    assert refused.retry_after_s
    worker.process.terminate()
    assert worker.exit_status() == 0, "a hung load must not hold up the end"


def test_answers_a_stream(start: Start) -> None:
    peer = start().loaded()
    peer.say(ask())
    finished = peer.answer(Finished, 1)
    assert peer.text(1) == "The quick brown fox jumps over the lazy dog."
    assert peer.answer(ChoiceEnded, 1).reason is FinishReason.STOP
    accepted = peer.answer(Accepted, 1)
    assert (accepted.prompt_tokens, accepted.queued) == (len("Say something."), 0)
    assert finished.usage.prompt_tokens == accepted.prompt_tokens
    assert finished.usage.completion_tokens == 9
    assert sum(delta.tokens for delta in peer.answers(Delta, 1)) == 9
    # What a request has used is counted at its end, after the last token.
    beat = peer.fact(WorkerBeat, lambda beat: beat.figures.prompt_tokens_total > 0)
    figures = (beat.figures.prompt_tokens_total, beat.figures.tokens_total)
    assert figures == (accepted.prompt_tokens, 9)
    assert (beat.figures.requests_total, beat.rows, beat.queued, beat.stalled_for_s) == (1, 0, 0, 0)
    assert finished.timings.energy_joules is None, "nobody measures it"


def test_the_energy_of_answers_is_that_of_their_parts_of_the_engine_s_time(start: Start) -> None:
    peer = start().loaded()
    peer.computing_watts = 40.0
    for _ in range(3):  # The second of them was sent after an answer to one before.
        peer.facts.clear()
        peer.fact(WorkerBeat)
    for stream_id in (1, 2):
        peer.say(ask(stream_id, tokens=40, step_s=0.01))
    ends = [peer.answer(Finished, stream_id) for stream_id in (1, 2)]
    energy = [end.timings.energy_joules for end in ends]
    beat = peer.fact(WorkerBeat, lambda beat: beat.figures.tokens_total == 80 and not beat.rows)
    assert beat.figures.compute_s_total >= 0.4
    assert min(energy) >= 40 * 0.01 * 39 / 2
    assert sum(energy) <= 40 * beat.figures.compute_s_total + 0.01


def test_credit_releases_what_waits(start: Start) -> None:
    peer = start().loaded()
    peer.say(ask(credit=1, tokens=500, step_s=0.01))
    peer.answer(Delta, 1)
    peer.fact(WorkerBeat, lambda beat: beat.figures.tokens_total >= 3)
    assert len(peer.answers(Delta, 1)) == 1
    peer.say(Credit(1, 1))
    peer.until(lambda: len(peer.answers(Delta, 1)) == 2, "second delta")
    assert peer.answers(Delta, 1)[1].tokens >= 2
    peer.say(Cancel(1))


def test_queue_is_served_in_order_and_has_a_limit(start: Start, tmp_path: Path) -> None:
    worker = start(max_rows=1, max_queue=2)
    peer = worker.loaded()
    looked = tmp_path / "looked"
    for stream_id in range(1, 5):
        peer.say(ask(stream_id, **ENDLESS, until=str(looked)))
    refused = peer.answer(Refused, 4)
    assert refused.code is ErrorCode.QUEUE_FULL
    assert refused.retry_after_s >= 1
    assert [peer.answer(Accepted, stream_id).queued for stream_id in (1, 2, 3)] == [0, 1, 2]
    peer.say(Cancel(2))
    assert worker.event("stream.cancelled")["where"] == "queued"
    looked.touch()
    peer.answer(Finished, 3)
    assert peer.answers(Finished, 1)
    assert peer.answers(Finished, 2) == []


def test_a_broken_engine_fails_all_and_ends_the_process(start: Start) -> None:
    worker = start()
    peer = worker.loaded()
    peer.say(ask(1, **ENDLESS))
    peer.answer(Delta, 1)
    peer.say(ask(2, step_raise_at=2))
    assert {peer.answer(Failed, n).code for n in (1, 2)} == {ErrorCode.ENGINE_ERROR}
    assert worker.exit_status() == 3
    assert "the script says so" in worker.log.read_text()
    assert not worker.socket_file.exists()


def test_a_step_without_memory_ends_the_process_with_a_status_of_its_own(start: Start) -> None:
    worker = start()
    peer = worker.loaded()
    peer.say(ask(1, **ENDLESS))
    peer.answer(Delta, 1)
    peer.say(ask(2, memory_error_at=2))
    assert {peer.answer(Failed, n).code for n in (1, 2)} == {ErrorCode.WORKER_OUT_OF_MEMORY}
    assert worker.exit_status() == 4


def test_pressure_shrinks_stops_and_fails_also_while_a_prompt_is_made(
    start: Start, tmp_path: Path
) -> None:
    options = {"memory_bytes": 1 << 40, "grow_bytes_per_token": 1 << 40}
    layers = (KvLayers(1, 1, step_tokens=256),)
    worker = start(engine_options=options, kv_layers=layers, kv_cache_bytes=1 << 20)
    peer = worker.loaded()
    peer.say(ask(1, **ENDLESS))
    peer.fact(WorkerBeat, lambda beat: beat.figures.memory_bytes > 10 << 40)
    beat = peer.fact(WorkerBeat, lambda beat: beat.rows == 1)
    assert beat.figures.kv_bytes == 1280, (
        "its prompt and what is counted of its answer, by steps of 256"
    )
    assert beat.figures.peak_memory_bytes >= beat.figures.memory_bytes
    made = tmp_path / "made"
    peer.say(ask(2, encode_until=str(made)))
    peer.fact(WorkerBeat, lambda beat: beat.queued == 1)
    peer.order(Pressure(MemoryPressure.HARD))
    failed = peer.answer(Failed, 1)
    assert failed.code is ErrorCode.INSUFFICIENT_MEMORY
    assert peer.answers(Accepted, 2) == []
    made.touch()
    peer.order(Pressure(MemoryPressure.NONE))
    peer.answer(Finished, 2)
    beat = peer.fact(WorkerBeat, lambda beat: beat.figures.requests_total == 2 and beat.rows == 0)
    assert beat.figures.kv_bytes == 0


def test_the_pressure_of_a_supervisor_ends_with_it(start: Start) -> None:
    peer = start().loaded()
    for stream_id in (1, 2):
        peer.say(ask(stream_id, **ENDLESS))
        peer.answer(Delta, stream_id)
    peer.order(Pressure(MemoryPressure.HARD))
    # A beat reads one figure after the other, while the engine's thread changes them.
    peer.fact(
        WorkerBeat,
        lambda beat: beat.figures.preempted_total == 1 and (beat.rows, beat.queued) == (1, 1),
    )
    peer.order(Identify("another"))
    peer.fact(WorkerHello)
    peer.fact(WorkerBeat, lambda beat: (beat.rows, beat.queued) == (2, 0))


def test_beats_say_for_how_long_nothing_was_asked_and_how_long_to_stay(
    start: Start, tmp_path: Path
) -> None:
    looked = tmp_path / "looked"
    peer = start().loaded()
    beat = peer.fact(WorkerBeat, lambda beat: beat.idle_for_s > 0.15)
    assert beat.keep_alive_s is None
    peer.say(dataclasses.replace(ask(1, **ENDLESS, until=str(looked)), keep_alive_s=90.0))
    peer.answer(Delta, 1)
    began_s = time.monotonic()
    assert peer.fact(WorkerBeat, lambda beat: beat.rows == 1).idle_for_s == 0
    looked.touch()
    peer.answer(Finished, 1)
    beat = peer.fact(WorkerBeat, lambda beat: beat.keep_alive_s is not None)
    assert beat.keep_alive_s == 90.0
    assert beat.idle_for_s < time.monotonic() - began_s, "it is counted from its end"
    # One that is refused has no say.
    peer.say(dataclasses.replace(ask(2, x="x" * 5000), keep_alive_s=7.0))
    peer.answer(Refused, 2)
    peer.facts.clear()
    beat = peer.fact(WorkerBeat, lambda beat: beat.idle_for_s > 0.2)
    assert beat.keep_alive_s == 90.0
    # Cancelled ones do.
    peer.say(dataclasses.replace(ask(3, **ENDLESS), keep_alive_s=-1.0))
    peer.answer(Delta, 3)
    began_s = time.monotonic()
    peer.say(Cancel(3))
    beat = peer.fact(WorkerBeat, lambda beat: beat.keep_alive_s == -1)
    assert beat.idle_for_s < time.monotonic() - began_s, "it is counted from its end"


def test_a_worker_that_is_to_go_right_after_the_answer_says_so_at_once(start: Start) -> None:
    worker = start(beat_interval_s=60.0)
    peer = worker.loaded()
    peer.say(dataclasses.replace(ask(1, tokens=3), keep_alive_s=0.0))
    peer.answer(Finished, 1)
    beat = peer.fact(WorkerBeat, lambda beat: beat.figures.requests_total == 1)
    assert (beat.keep_alive_s, beat.rows, beat.queued) == (0, 0, 0)


def test_drain_if_idle_is_refused_while_busy(start: Start) -> None:
    peer = start().loaded()
    peer.say(ask(**ENDLESS))
    peer.answer(Delta, 1)
    peer.order(Drain(if_idle=True))
    assert peer.fact(DrainRefused).rows == 1
    peer.say(ask(2, tokens=1))
    peer.answer(Finished, 2)


def test_drain_lets_streams_end_and_takes_no_more(start: Start, tmp_path: Path) -> None:
    peer = start().loaded()
    refused = tmp_path / "refused"
    peer.say(ask(**ENDLESS, until=str(refused)))
    peer.answer(Delta, 1)
    peer.order(Drain(if_idle=False))
    peer.fact(WorkerBeat, lambda beat: beat.state is WorkerState.DRAINING)
    peer.say(ask(2))
    assert peer.answer(Refused, 2).code is ErrorCode.MODEL_UNLOADED
    assert not any(isinstance(fact, Drained) for fact in peer.facts)
    refused.touch()
    peer.fact(Drained)
    finished = peer.answer(Finished, 1)
    assert peer.text(1) == "word " * finished.usage.completion_tokens


def test_drain_of_an_idle_worker_is_done_at_once(start: Start) -> None:
    peer = start().loaded()
    peer.order(Drain(if_idle=True))
    peer.fact(Drained)


def test_a_new_supervisor_finds_the_worker_again(start: Start) -> None:
    peer = start().loaded()
    peer.say(ask(tokens=3000, step_s=0.01))
    peer.answer(Delta, 1)
    peer.control.close(linger=0)
    before = len(peer.answers(Delta, 1))
    peer.until(lambda: len(peer.answers(Delta, 1)) > before + 5, "deltas without supervisor")
    peer.facts.clear()
    peer.control = peer.bind_control()
    peer.fact(WorkerBeat)
    peer.order(Identify("other"))
    hello = peer.fact(WorkerHello)
    assert (hello.state, hello.context_length) == (WorkerState.READY, 4096)
    assert hello.memory_bytes > 0
    peer.order(Welcome("other"))
    peer.facts.clear()
    assert peer.fact(WorkerBeat).state is WorkerState.READY


def test_an_orphan_drains_and_ends(start: Start, tmp_path: Path) -> None:
    # Long enough that a test on a busy machine answers in time for as long as it means to, and ends
    # the stream before it is cut short, after as long again.
    worker = start(orphan_grace_s=6.0)
    peer = worker.loaded()
    orphaned = tmp_path / "orphaned"
    peer.say(ask(**ENDLESS, until=str(orphaned)))
    peer.answer(Delta, 1)
    peer.answer_beats = False
    worker.event("worker.orphaned")
    orphaned.touch()
    assert worker.exit_status() == 0
    peer.answer(Finished, 1)  # It may be read after the process's end.
    assert not worker.socket_file.exists()


def test_bad_frames_are_dropped(start: Start) -> None:
    worker = start()
    peer = worker.loaded()
    for payload in (b"", b"\xc1", b"lmx", encode(Welcome("epoch")), os.urandom(100)):
        assert peer.router.poll(DEADLINE_S * 1000, zmq.POLLOUT)
        peer.router.send(payload)
        peer.control.send_multipart([peer.worker_id, payload])
    peer.control.send_multipart([peer.worker_id, encode(Cancel(1))])
    peer.say(Credit(99, 5))
    peer.say(Cancel(99))
    peer.say(ask())
    peer.answer(Finished, 1)
    assert len(worker.events("data.bad_frame")) == 4
    assert worker.events("data.unexpected")
    # It came on another socket than the answer.
    assert worker.event("control.unexpected")


def test_a_router_that_vanishes_loses_its_streams(start: Start) -> None:
    worker = start()
    peer = worker.loaded()
    peer.say(ask(1, prefill_s=60))
    peer.say(ask(2, tokens=5000, step_s=0.01))
    peer.answer(Accepted, 1)
    peer.answer(Accepted, 2)
    peer.router.close(linger=0)
    peer.until(lambda: len(worker.events("stream.cancelled")) == 2, "both cancelled")
    peer.fact(
        WorkerBeat, lambda beat: beat.figures.requests_total == 2 and beat.rows == beat.queued == 0
    )


def test_pulses_while_no_token_is_due(start: Start) -> None:
    peer = start().loaded()
    peer.say(ask(prefill_s=60))
    pulses = peer.until(lambda: [m for m in peer.outputs if isinstance(m, Pulse)], "Pulse")
    assert pulses[0] == Pulse(INSTANCE, 1)


def test_a_hang_shows_its_stacks_are_written_and_its_streams_get_an_error(start: Start) -> None:
    worker = start()
    peer = worker.loaded()
    peer.say(ask(hang_at=2))
    peer.fact(WorkerBeat, lambda beat: beat.stalled_for_s > 0.5)
    peer.until(lambda: peer.text(1) == "word " * 2, "the text before it")
    worker.process.send_signal(signal.SIGQUIT)
    assert worker.event("worker.unresponsive")
    log = worker.log.read_text()
    assert "scripted_engine.py" in log
    assert "_hang" in log
    assert log.count("Thread 0x") >= 2
    assert worker.process.poll() is None, "it goes on"
    worker.process.terminate()
    assert peer.answer(Failed, 1).code is ErrorCode.WORKER_HUNG
    assert worker.exit_status() == 0


def test_sigterm_ends_a_hung_worker_and_its_streams(start: Start) -> None:
    worker = start()
    peer = worker.loaded()
    peer.say(ask(1, hang_at=2))
    peer.fact(WorkerBeat, lambda beat: beat.stalled_for_s > 0.2)
    peer.say(ask(2))
    peer.answer(Accepted, 2)
    worker.process.terminate()
    assert worker.exit_status() == 0
    assert {peer.answer(Failed, n).code for n in (1, 2)} == {ErrorCode.MODEL_UNLOADED}
    assert not worker.socket_file.exists()


def test_a_prompt_that_takes_too_long_shows_and_holds_up_nothing(start: Start) -> None:
    worker = start()
    peer = worker.loaded()
    peer.say(ask(1, **ENDLESS))
    peer.answer(Delta, 1)
    peer.say(ask(2, encode_s=600))
    peer.say(ask(3, tokens=1))
    peer.say(Cancel(3))
    peer.fact(WorkerBeat, lambda beat: beat.stalled_for_s > 0.5 and beat.queued == 2)
    before = len(peer.answers(Delta, 1))
    peer.until(lambda: len(peer.answers(Delta, 1)) > before, "deltas meanwhile")
    worker.process.terminate()
    assert worker.exit_status() == 0
    assert peer.answer(Refused, 2).code is ErrorCode.MODEL_UNLOADED
    assert peer.answer(Failed, 1).code is ErrorCode.MODEL_UNLOADED
    assert peer.answers(Accepted, 2) == peer.answers(Accepted, 3) == []


def test_cancel_while_the_prompt_is_made(start: Start, tmp_path: Path) -> None:
    worker = start()
    peer = worker.loaded()
    cancelled = tmp_path / "cancelled"
    peer.say(ask(1, encode_until=str(cancelled)))
    peer.fact(WorkerBeat, lambda beat: beat.queued == 1)
    peer.say(Cancel(1))
    peer.router.send(b"no message")
    worker.event("data.bad_frame")  # So it has had the cancellation, which came before.
    cancelled.touch()
    event = worker.event("stream.cancelled")
    assert (event["request_id"], event["where"]) == ("req-1", "queued")
    peer.say(ask(2))
    peer.answer(Finished, 2)
    assert peer.answers(Accepted, 1) == []


def test_a_crash_is_a_crash(start: Start) -> None:
    worker = start()
    peer = worker.loaded()
    peer.say(ask(abort_at=1))
    assert worker.exit_status() == -signal.SIGABRT
    assert "_next" in worker.log.read_text()


@pytest.mark.parametrize(
    ("engine", "options", "code", "words", "permanent", "status"),
    [
        (
            "tests.support.fakes.scripted_engine:create",
            {"load_error": "x"},
            ErrorCode.MODEL_LOAD_FAILED,
            "x",
            False,
            1,
        ),
        (
            "tests.support.fakes.scripted_engine:create",
            {"load_permanent": "x"},
            ErrorCode.CONFIG_INVALID,
            "x",
            True,
            1,
        ),
        (
            "tests.support.fakes.scripted_engine:create",
            {"load_memory": True},
            ErrorCode.INSUFFICIENT_MEMORY,
            "fit",
            False,
            4,
        ),
        ("no_such_module:create", {}, ErrorCode.CONFIG_INVALID, "no_such_module", True, 1),
        (
            "tests.support.fakes.scripted_engine:no_such",
            {},
            ErrorCode.CONFIG_INVALID,
            "no_such",
            True,
            1,
        ),
    ],
)
def test_a_load_that_fails_says_why_and_ends(
    start: Start,
    engine: str,
    options: dict[str, Any],
    code: ErrorCode,
    words: str,
    permanent: bool,
    status: int,
) -> None:
    worker = start(engine=engine, engine_options=options)
    worker.peer.fact(WorkerHello)
    worker.peer.order(Welcome("epoch"))
    failed = worker.peer.fact(LoadFailed)
    assert failed.code is code
    assert words in failed.message
    assert failed.permanent is permanent
    assert worker.exit_status() == status
    assert not worker.socket_file.exists()


def test_starts_without_an_engine_loaded() -> None:
    check = (
        "import sys, lmx.worker.process\n"
        "heavy = {'mlx', 'mlx_vlm', 'transformers', 'numpy', 'tokenizers'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    env = os.environ | {"PYTHONPATH": str(LMX_PARENT)}
    subprocess.run([sys.executable, "-c", check], check=True, env=env, timeout=DEADLINE_S)


@pytest.mark.parametrize("given", [b"", b"garbage", encode(Welcome("epoch"))])
def test_a_bad_spec_is_reported_on_stderr(given: bytes) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lmx.worker"],
        input=given,
        capture_output=True,
        env=os.environ | {"PYTHONPATH": str(LMX_PARENT)},
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 1
    assert b"WorkerSpec" in done.stderr


TRAP = (
    "{% if messages[0].content == 'loop' %}"
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    "{% endif %}"
    "<|user|>{{ messages[0].content }}<|end|><|assistant|>"
)


@pytest.mark.engine
def test_a_template_that_loops_fails_its_request_alone(start: Start, tmp_path: Path) -> None:
    from tests.support.models.tiny_models import make_tiny_model

    folder = make_tiny_model(tmp_path / "m", "llama")
    (folder / "chat_template.jinja").write_text(TRAP)
    worker = start(
        engine="lmx.worker.mlx.factory:create",
        model_path=str(folder),
        max_rows=4,
        render_timeout_s=4.0,
    )
    peer = worker.loaded()

    def generate(stream_id: int, content: str, tokens: int) -> None:
        message = {"role": "user", "content": content}
        sampling = Sampling(temperature=0.0, ignore_eos=True)
        request = Generate(
            stream_id, f"r{stream_id}", sampling, 1000, messages=(message,), max_tokens=tokens
        )
        peer.say(request)

    generate(1, "a long one", 300)
    peer.answer(Accepted, 1)
    generate(2, "loop", 3)
    generate(3, "behind it", 3)
    refused = peer.answer(Refused, 2)
    assert (refused.code, refused.param) == (ErrorCode.CHAT_TEMPLATE_FAILED, "messages")
    assert "after 4 s" in refused.message and "chat template" in refused.message
    peer.answer(Finished, 3)
    peer.answer(Finished, 1)
    worker.process.terminate()
    assert worker.exit_status() == 0


def test_a_thread_that_computes_hardly_keeps_the_engine_waiting() -> None:
    """Python lets a thread compute for 5 ms before another one has its turn."""
    code = """import sys
from lmx.worker import process
try:
    process.main()
except SystemExit:
    print(sys.getswitchinterval())"""
    ran = subprocess.run(
        [sys.executable, "-c", code], input=b"", capture_output=True, timeout=300, check=True
    )
    assert float(ran.stdout) < 0.001
