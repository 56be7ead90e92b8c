"""The engine thread, the only caller of the engine: it admits rows (owners take turns), runs steps,
and cancels requests.

The event loop puts requests and orders into the thread's inbox. The thread sends the outputs of its
steps back to the loop, with one wake-up for many steps.
"""

import asyncio
import gc
import queue
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

import structlog

from lmx.protocol.host.memory import trim_heap
from lmx.protocol.messages.tasks import TaskPart
from lmx.protocol.states import LoadPhase, MemoryPressure
from lmx.worker.engine.interfaces import Engine, Generator, LoadReporter, Resident
from lmx.worker.engine.values import PromptMedia, TaskPiece
from lmx.worker.scheduling.batch import Batch, BatchLimits
from lmx.worker.scheduling.engine_errors import is_device_failure
from lmx.worker.scheduling.fair_queue import FairQueue
from lmx.worker.scheduling.outbox import Outbox
from lmx.worker.scheduling.progress import ProgressClock
from lmx.worker.scheduling.requests import EngineRequest, RequestOutput

PieceResult = TaskPart | Exception | None
"""The result of a task's piece: its message, an exception if it failed, None if it was dropped."""


class EngineEvents(Protocol):
    """What the engine thread reports of itself. Every call arrives on the event loop."""

    def load_advanced(self, phase: LoadPhase, fraction: float | None, detail: str) -> None:
        """The load made progress."""

    def loaded(self, engine: Engine, load_s: float) -> None:
        """The engine accepts work; loading it took ``load_s`` seconds."""

    def load_failed(self, error: Exception) -> None:
        """The engine could not be loaded."""

    def engine_broke(self, error: Exception) -> None:
        """A step raised. No running row will end, and no new one will be accepted."""


Order = Callable[[Engine], None]
"""What the event loop wants of the engine thread, which calls it between two steps."""


class _Piece(NamedTuple):
    """A piece of a task that is to be computed when its owner has its turn."""

    task_id: int
    compute: TaskPiece
    background: bool


log = structlog.get_logger()

# Long enough that a client's next request doesn't meet emptied caches, short enough that an
# idle model gives its cache back before another one loads.
_REST_AFTER_S: Final = 2.0
_MEMORY_INTERVAL_S: Final = 0.5


class EngineThread:
    """Runs an engine on a thread of its own. Methods are called on the event loop.

    Every submitted request gets exactly one output that is its end, and every piece of a task
    exactly one result, unless the engine breaks. The caller limits how much is in flight, and so
    the length of the inbox: a request or a piece adds at most itself and one cancellation. If
    ``set_memory_pressure`` is called several times during a step, the last call counts.
    """

    def __init__(
        self,
        load: Callable[[LoadReporter], Engine],
        limits: BatchLimits,
        events: EngineEvents,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._load_engine = load
        self._events = events
        self._outbox = Outbox(loop)
        self._computed: Callable[[int, PieceResult], None] | None = None
        self._inbox: queue.SimpleQueue[Order] = queue.SimpleQueue()
        self._pressure_lock = threading.Lock()
        self._pressure: MemoryPressure | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.clock = ProgressClock()
        self.pieces = 0
        """How many pieces of tasks have no result yet."""
        # Only the engine thread writes these and the loop reads them: each write is a single store.
        self.rows = 0
        self.requests = 0
        self.steps = 0
        self.memory_bytes = 0
        self.peak_memory_bytes = 0
        self.speculation = ""
        self._speculation: Callable[[], str] | None = None
        self.kv_bytes = 0
        self.preempted_total = 0
        self._computed_s = 0.0
        self._computing_since_s: float | None = None
        # Only the engine thread uses these.
        self._batch = Batch(limits)
        self._pieces: FairQueue[_Piece] = FairQueue()
        self._begun: _Piece | None = None
        """The piece that is not done yet: no other one is computed before its end."""
        self._held = False
        """Whether no piece of the background begins."""
        self._memory_read_s = 0.0
        self._stopping = False
        self._closing = threading.Event()

    def computed_s(self, now: float) -> float:
        """Return for how long the engine has computed, the call that runs included."""
        since_s = self._computing_since_s
        return self._computed_s + (0.0 if since_s is None else max(0.0, now - since_s))

    def start(self) -> None:
        """Begin to load."""
        self._thread.start()

    def report_to(
        self,
        deliver: Callable[[list[RequestOutput]], None],
        computed: Callable[[int, PieceResult], None],
    ) -> None:
        """Call ``deliver`` on the loop with the outputs of one or more steps, and ``computed`` with
        the result of a task's piece. Before the first request."""
        self._outbox.deliver, self._computed = deliver, computed

    def submit(self, request: EngineRequest) -> None:
        """Queue a request; its end comes through ``deliver``."""
        self.clock.begin(time.monotonic())
        self._inbox.put(lambda _: self._batch.add(request))

    def cancel(self, run_id: int) -> None:
        """End a request before the next step; a request that has ended already is left alone."""
        step = self.steps

        def cancel(generator: Generator) -> None:
            self._batch.cancel(generator, run_id, step, self.steps)
            self._count()

        self._order(cancel)

    def restore_media(self, run_id: int, media: PromptMedia) -> None:
        """Give a request the media that it has asked for, encoded again."""
        self._order(lambda generator: self._batch.restore(generator, run_id, media))

    def submit_piece(
        self, task_id: int, piece: TaskPiece, owner: str, *, background: bool = False
    ) -> None:
        """Queue a piece of a task. One piece, or a part of one, is computed between two steps, and
        owners take turns; those of the ``background`` come last. Its result comes through
        ``computed``."""
        self.clock.begin(time.monotonic())
        self.pieces += 1
        queued = _Piece(task_id, piece, background)
        self._inbox.put(lambda _: self._pieces.add(owner, queued, int(background)))

    def hold_background(self, held: bool) -> None:
        """Begin no piece of the background while this is true: others' next ones may be on their
        way."""

        def hold(_: Engine) -> None:
            self._held = held

        self._inbox.put(hold)

    def drop_piece(self, task_id: int) -> None:
        """Forget the piece of a task that still waits, or that is not done; its result is None. A
        call that runs is left alone."""
        self._inbox.put(lambda _: self._drop_piece(task_id))

    def set_memory_pressure(self, level: MemoryPressure) -> None:
        """Set how short the machine is of memory; the thread reacts before the next step. SOFT: the
        engine shrinks, and no row begins while another one runs. HARD: in addition, one request
        gives its memory back and comes back later, or fails."""
        with self._pressure_lock:
            waits, self._pressure = self._pressure is not None, level
        if not waits:
            self._inbox.put(self._apply_pressure)

    def stop(self, timeout_s: float, close_timeout_s: float = 1.0) -> bool:
        """Ask the thread to end and wait; return False if it is stuck.

        The thread has ``timeout_s`` to leave its step, and then ``close_timeout_s`` more to close
        the engine.
        """
        self._inbox.put(lambda _: self._stop())
        if self._thread.is_alive() and self._closing.wait(timeout_s):
            self._thread.join(close_timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            engine = self._load()
        except BaseException as error:
            # Code of a model or a library may call sys.exit(), which would end this thread alone.
            log.exception("engine.load_failed")
            failure = _as_exception(error)
            self._outbox.call(lambda: self._events.load_failed(failure))
            return
        try:
            self._serve(engine)
            self._closing.set()
            engine.resident.close()
        except BaseException as error:
            log.exception("engine.broke", rows=self._batch.rows, steps=self.steps)
            failure = _as_exception(error)
            self._batch.fail_waiting()
            self._post()
            self._closing.set()
            self._outbox.call(lambda: self._events.engine_broke(failure))
        try:
            engine.resident.release()
        except Exception:
            # The process ends. On a device that has failed, this can fail too.
            log.exception("engine.release_failed")

    def _load(self) -> Engine:
        started_s = time.monotonic()

        def advanced(phase: LoadPhase, fraction: float | None, detail: str) -> None:
            self._outbox.call(lambda: self._events.load_advanced(phase, fraction, detail))

        engine = self._load_engine(advanced)
        # The objects of a load live as long as the process, so no garbage collection need visit
        # them.
        gc.collect()
        gc.freeze()
        self._speculation = engine.speculation
        self._measure(engine.resident)
        load_s = time.monotonic() - started_s
        self._outbox.call(lambda: self._events.loaded(engine, load_s))
        return engine

    def _serve(self, engine: Engine) -> None:
        while True:
            self._read_inbox(engine)
            if self._stopping:
                return
            if self._has_piece:
                self._compute(engine.resident, self._begun or self._pieces.pop())
            if engine.generator is not None:
                self._advance(engine.generator, engine.resident)

    def _advance(self, generator: Generator, resident: Resident) -> None:
        self._batch.admit(generator)
        self._batch.expire(time.monotonic())
        self._count()
        if self.rows:
            self._step(generator, resident)
        self._post()

    def _count(self) -> None:
        self.rows, self.requests = self._batch.rows, self._batch.requests
        self.kv_bytes = self._batch.kv_bytes
        self.preempted_total = self._batch.preempted_total

    def _post(self) -> None:
        if self._batch.outputs:
            self._outbox.post(self._batch.outputs, urgent=self._batch.urgent)
            self._batch.outputs, self._batch.urgent = [], False

    def _read_inbox(self, engine: Engine) -> None:
        rested = False
        while not self._stopping:
            busy = self._batch.busy or self._has_piece
            wants_media = self._batch.wants_media
            try:
                if busy:
                    order = self._inbox.get_nowait()
                else:
                    forever = rested and not wants_media
                    order = self._inbox.get(timeout=None if forever else _REST_AFTER_S)
            except queue.Empty:
                if wants_media and not busy:
                    # This thread does not hang: the decoding has a deadline of its own.
                    self.clock.advance(time.monotonic())
                if busy or wants_media:
                    return
                engine.resident.rest()
                trim_heap()
                self._measure(engine.resident)
                rested = True
                continue
            order(engine)

    @property
    def _has_piece(self) -> bool:
        """Whether there is a piece that may be computed now."""
        if self._begun is not None or not self._pieces:
            return self._begun is not None
        return not (self._held and self._pieces.peek().background)

    def _order(self, change: Callable[[Generator], None]) -> None:
        """Let the engine thread change the batch: an engine whose model does not write has none."""
        self._inbox.put(lambda engine: change(engine.generator) if engine.generator else None)

    def _stop(self) -> None:
        self._stopping = True

    def _apply_pressure(self, engine: Engine) -> None:
        with self._pressure_lock:
            level, self._pressure = self._pressure, None
        assert level is not None
        self._batch.paused = level is not MemoryPressure.NONE
        if level is MemoryPressure.NONE:
            engine.resident.regrow()
            return
        if level is MemoryPressure.HARD and engine.generator is not None:
            self._batch.preempt_largest(engine.generator, time.monotonic())
            self._count()
        engine.resident.shrink()
        trim_heap()
        self._measure(engine.resident)

    def _compute(self, resident: Resident, piece: _Piece) -> None:
        result: PieceResult
        self._computing_since_s = began_s = time.monotonic()
        try:
            result = piece.compute()
        except Exception as error:
            if is_device_failure(error):
                raise
            # The error fails the request, and not the engine: see TaskPiece.
            result = error
        now = time.monotonic()
        self._count_computed(began_s, now)
        self.clock.advance(now)
        self._read_memory(resident, now)
        self._begun = piece if result is None else None
        if result is not None:
            self._outbox.call(lambda: self._end_piece(piece.task_id, result))

    def _end_piece(self, task_id: int, result: PieceResult) -> None:
        self.clock.end()
        self.pieces -= 1
        assert self._computed is not None
        self._computed(task_id, result)

    def _drop_piece(self, task_id: int) -> None:
        begun = self._begun is not None and self._begun.task_id == task_id
        if begun:
            self._begun = None
        if begun or self._pieces.remove_if(lambda piece: piece.task_id == task_id):
            # Code that waits for the thread to be idle must learn of this end too.
            self._outbox.call(lambda: self._end_piece(task_id, None))

    def _step(self, generator: Generator, resident: Resident) -> None:
        self._computing_since_s = began_s = time.monotonic()
        result = self._batch.step(generator, lambda: not self._inbox.empty())
        now = time.monotonic()
        self._count_computed(began_s, now)
        self.steps += 1
        if (
            result.tokens
            or result.prefill_tokens
            or result.started
            or result.found
            or result.search_tokens
            or result.media_tokens
        ):
            self.clock.advance(now)
        self._count()
        self._read_memory(resident, now)

    def _count_computed(self, began_s: float, now: float) -> None:
        # In this order, so that a reader between the two finds too little, and never too much.
        self._computing_since_s = None
        self._computed_s += now - began_s

    def _read_memory(self, resident: Resident, now: float) -> None:
        if now - self._memory_read_s >= _MEMORY_INTERVAL_S:
            self._memory_read_s = now
            self._measure(resident)

    def _measure(self, resident: Resident) -> None:
        self.memory_bytes = resident.memory_bytes()
        peak_bytes = max(self.memory_bytes, resident.peak_memory_bytes())
        self.peak_memory_bytes = max(self.peak_memory_bytes, peak_bytes)
        self.speculation = "" if self._speculation is None else self._speculation()


def _as_exception(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else RuntimeError(f"its code ended: {error!r}")
