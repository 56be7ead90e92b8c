"""A real worker process, driven over its own sockets, with the time of everything that it sends.

For benchmarks: no router and no supervisor, so that what is measured is the worker.
"""

import dataclasses
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zmq

import lmx.protocol
from lmx.protocol.messages.control import (
    BeatSeen,
    Loaded,
    LoadFailed,
    Welcome,
    WorkerBeat,
    WorkerHello,
)
from lmx.protocol.messages.data import Finished, Generate, Outputs, Refused, Sampling
from lmx.protocol.messages.specs import LogSpec, WorkerSpec
from lmx.protocol.messages.tasks import Embed, TaskFinished
from lmx.protocol.wire.codec import decode, encode
from lmx.protocol.wire.endpoints import RunDirectory
from lmx.protocol.wire.sockets import Role, open_socket

INSTANCE = "0000bead"
DEADLINE_S = 900.0
LMX_PARENT = Path(lmx.protocol.__path__[0]).parent.parent


@dataclass
class Trace:
    """One stream: when its pieces came (seconds, one clock), and how it ended."""

    sent_s: float
    pieces: list[tuple[float, int]] = field(default_factory=list)
    text: str = ""
    ended_s: float = 0.0
    finished: Finished | None = None

    @property
    def ttft_s(self) -> float:
        """From sending the request to its first text."""
        return self.pieces[0][0] - self.sent_s

    @property
    def worst_gap_s(self) -> float:
        """The longest wait between two pieces."""
        times = [at for at, _ in self.pieces]
        return max(later - earlier for earlier, later in itertools.pairwise(times))


class BenchWorker:
    """A loaded worker. Not for several threads."""

    def __init__(self, home: Path, model: Path, **spec: Any) -> None:
        directory = RunDirectory(home / "r")
        directory.prepare()
        self._context: zmq.Context[Any] = zmq.Context()
        self._control = open_socket(self._context, Role.DATA_SERVER)
        self._control.bind(directory.control)
        self._router = open_socket(self._context, Role.DATA_CLIENT)
        self._router.connect(directory.worker(INSTANCE))
        self._traces: dict[int, Trace] = {}
        self._tasks_ended: set[int] = set()
        self._next_id = 0
        self.log = home / "worker.log"
        values: dict[str, Any] = {
            "instance": INSTANCE,
            "model_id": "bench",
            "model_path": str(model),
            "run_dir": str(home / "r"),
            "log": LogSpec(str(self.log)),
            "engine": "lmx.worker.mlx.factory:create",
            "engine_options": {},
            "memory_limit_bytes": 8 << 30,
            "max_rows": 32,
            "max_queue": 64,
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lmx.worker"],
            stdin=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(LMX_PARENT)},
        )
        assert self.process.stdin
        self.process.stdin.write(encode(WorkerSpec(**(values | spec))))
        self.process.stdin.close()
        self._loaded = False
        self._until(lambda: self._loaded)

    def start(self, prompt: str, max_tokens: int, **fields: Any) -> Trace:
        """Send one chat request of one message; it runs to ``max_tokens`` unless told not to."""
        self._next_id += 1
        fields.setdefault("messages", ({"role": "user", "content": prompt},))
        fields.setdefault("sampling", Sampling(temperature=0.0, ignore_eos=True))
        request = Generate(
            stream_id=self._next_id,
            request_id=f"bench-{self._next_id}",
            credit_deltas=1_000_000,
            max_tokens=max_tokens,
            **fields,
        )
        assert self._router.poll(int(DEADLINE_S * 1000), zmq.POLLOUT)
        trace = self._traces[self._next_id] = Trace(time.perf_counter())
        self._router.send(encode(request))
        return trace

    def embed(self, tokens: Sequence[Sequence[int]]) -> None:
        """Have the vectors of some inputs made, and wait for them."""
        self._next_id += 1
        stream_id, inputs = self._next_id, tuple(map(tuple, tokens))
        task = Embed(stream_id, f"bench-{stream_id}", DEADLINE_S, tokens=inputs)
        self._router.send(encode(task))
        self._until(lambda: stream_id in self._tasks_ended)

    def wait(self, traces: Sequence[Trace]) -> None:
        """Wait for the streams' ends; raises when one was lost."""
        self._until(lambda: all(trace.ended_s for trace in traces))

    def wait_pieces(self, trace: Trace, pieces: int) -> None:
        """Wait until a stream has come so far."""
        self._until(lambda: len(trace.pieces) >= pieces)

    def close(self) -> None:
        """End the process in good order."""
        self.process.terminate()
        self.process.wait(30)
        self._context.destroy(linger=0)

    def _until(self, condition: Any) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        poller = zmq.Poller()
        poller.register(self._control, zmq.POLLIN)
        poller.register(self._router, zmq.POLLIN)
        while not condition():
            assert time.monotonic() < deadline_s, f"see {self.log}"
            assert self.process.poll() is None, f"the worker ended: see {self.log}"
            for socket, _ in poller.poll(200):
                frames = socket.recv_multipart()
                message = decode(frames[-1]).message
                if socket is self._control:
                    self._take_fact(frames[0], message)
                else:
                    self._take_output(message)

    def _take_fact(self, worker: bytes, message: Any) -> None:
        match message:
            case WorkerHello():
                self._control.send_multipart([worker, encode(Welcome("bench"))])
            case WorkerBeat():
                self._control.send_multipart([worker, encode(BeatSeen("bench", 1))])
            case Loaded():
                self._loaded = True
            case LoadFailed():
                raise RuntimeError(message.message)

    def _take_output(self, message: Any) -> None:
        now = time.perf_counter()
        if isinstance(message, Refused):
            raise RuntimeError(message.message)
        if isinstance(message, TaskFinished):
            self._tasks_ended.add(message.stream_id)
        if not isinstance(message, Outputs):
            return
        for delta in message.deltas:
            trace = self._traces[delta.stream_id]
            trace.pieces.append((now, delta.tokens))
            trace.text += delta.text
        for failed in message.failed:
            raise RuntimeError(failed.message)
        for finished in message.finished:
            trace = self._traces[finished.stream_id]
            trace.ended_s, trace.finished = now, finished


@contextmanager
def bench_worker(model: Path, **spec: Any) -> Iterator[BenchWorker]:
    """Start a worker in a folder of its own, and leave nothing behind."""
    home = Path(tempfile.mkdtemp(prefix="lmx-b-"))
    worker = None
    try:
        worker = BenchWorker(home, model, **spec)
        yield worker
    finally:
        if worker is not None:
            worker.close()
        shutil.rmtree(home)


def decode_rate(traces: Sequence[Trace]) -> float:
    """Return tokens per second while all streams decode: from the last first token to the
    first end."""
    begin_s = max(trace.pieces[0][0] for trace in traces)
    end_s = min(trace.pieces[-1][0] for trace in traces)
    tokens = sum(count for trace in traces for at, count in trace.pieces if begin_s < at <= end_s)
    return tokens / (end_s - begin_s)


def sampling(**fields: Any) -> Sampling:
    """Return sampling that never ends by itself: every row makes all its tokens."""
    return dataclasses.replace(Sampling(temperature=0.0, ignore_eos=True), **fields)


def rows_rate(
    worker: BenchWorker,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    samplings: Sequence[Sampling],
) -> float:
    """Return decode tokens per second of rows that go on with ``prompts``, each sampled in its
    own way."""
    traces = [
        worker.start(
            "", max_tokens, messages=None, prompt_tokens=tuple(prompt), parse=False, sampling=way
        )
        for prompt, way in zip(prompts, samplings, strict=True)
    ]
    worker.wait(traces)
    return decode_rate(traces)
