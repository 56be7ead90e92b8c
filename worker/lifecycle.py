"""A worker's lifecycle: its state, what a change means for its parts, and its engine's load."""

import asyncio
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, cast

import structlog
import zmq.asyncio

from lmx.protocol.errors import ErrorCode, LmxError
from lmx.protocol.host.stacks import STACKS, write_stacks_on_signal
from lmx.protocol.messages.control import Drained, DrainRefused, LoadAdvanced, LoadFailed
from lmx.protocol.messages.data import Generate
from lmx.protocol.messages.ranks import FollowersRefused, FollowersStarted, WantFollowers
from lmx.protocol.messages.specs import WorkerSpec
from lmx.protocol.messages.tasks import Task
from lmx.protocol.models.engine import engine_function
from lmx.protocol.states import LoadPhase, MemoryPressure, WorkerExit, WorkerState
from lmx.protocol.wire.endpoints import RunDirectory
from lmx.worker.engine.interfaces import Engine, EngineFactory, LoadReporter
from lmx.worker.media.decoder import MediaDecoder
from lmx.worker.ranks.leader import Leader
from lmx.worker.scheduling.batch import BatchLimits
from lmx.worker.scheduling.engine_errors import is_out_of_memory
from lmx.worker.scheduling.progress import InFlight
from lmx.worker.scheduling.thread import EngineThread
from lmx.worker.service.admission import IdleClock, LifetimeCounts, Power, Refusal
from lmx.worker.service.control import ControlLink
from lmx.worker.service.data import DataService
from lmx.worker.service.failures import load_failure
from lmx.worker.service.fair_thread import FairThread
from lmx.worker.service.heartbeat import Heartbeat
from lmx.worker.service.serving import RouterMessage, Serving

log = structlog.get_logger()

_HELLO_RETRY_S: Final = 0.02
_EXIT_DELAY_S: Final = 2.0
_RANK_FOUND_S: Final = 1.5
_RANKS_LEAVE_S: Final = 0.5
"""How long followers that were asked to leave may take. By then rank 0 has closed its engine."""

_TERMINATED: Final = (ErrorCode.MODEL_UNLOADED, "The model's worker was terminated.")
_HUNG: Final = (
    ErrorCode.WORKER_HUNG,
    "The model's worker made no progress and was ended. It is started again; this request may be "
    "the cause.",
)

_LOADING = Refusal(ErrorCode.MODEL_LOADING, "The model is still being loaded.", 1.0)
_DRAINING = Refusal(ErrorCode.MODEL_UNLOADED, "The model is being unloaded.", 1.0)
_REFUSALS: Final[Mapping[WorkerState, Refusal]] = {
    WorkerState.STARTING: _LOADING,
    WorkerState.LOADING: _LOADING,
    WorkerState.DRAINING: _DRAINING,
}
"""The refusal of requests in each state in which none is accepted."""


def close_bounds_s(platform: str = sys.platform) -> tuple[float, float]:
    """Return how long the engine has to leave its step, and then to write what it keeps on disk and
    to give memory of the GPU back. Both together are within ``timing.term_grace_s``.

    On a Mac a step is waited for: wired memory of a process that ends without giving it back may
    stay wired for good. A chunk of a prompt takes up to 2 s there, and to give back 373 GB took 4 s
    on a Mac of 512 GB.
    """
    return (4.0, 14.0) if platform == "darwin" else (0.3, 3.5)


class WorkerLifecycle:
    """One worker. It owns the worker's state; everything here runs on the event loop."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self._loop = asyncio.get_running_loop()
        self._end: asyncio.Future[int] = self._loop.create_future()
        self._state = WorkerState.STARTING
        self._exit_status = 0
        self._end_error = _TERMINATED
        self._context = zmq.asyncio.Context()
        directory = RunDirectory(Path(spec.run_dir))
        self._data = DataService(self._context, directory, spec.instance)
        self._prompts, self._media = FairThread("prompt"), FairThread("media")
        self._checks = FairThread("check")
        # Its process begins with the first image, sound or video.
        self._decoder = MediaDecoder(spec.decode)
        limits = BatchLimits(spec.max_rows, spec.max_queue_s, spec.kv_cache_bytes, spec.kv_layers)
        # None: the worker has the whole model.
        self._ranks: Leader | None = None
        if spec.ranks is not None:
            self._ranks = Leader(spec, self._note_lost, self._want_followers)
        self._engine = EngineThread(
            lambda advanced: load_engine(spec, advanced, self._ranks), limits, self, self._loop
        )
        self._in_flight = InFlight(
            self._prompts.clock, self._engine.clock, limited=(self._media.clock, self._checks.clock)
        )
        self._counts, self._idle_clock = LifetimeCounts(), IdleClock()
        self._power = Power()
        # This is None until the model is loaded.
        self._serving: Serving | None = None
        self._heartbeat = Heartbeat(
            spec,
            self._engine,
            self._in_flight,
            self._counts,
            self._idle_clock,
            self._decoder,
            self._ranks,
        )
        self._control = ControlLink(self._context, directory, spec.instance, self)

    async def run(self) -> int:
        """Serve until the end; return the exit status."""
        self._loop.add_signal_handler(signal.SIGTERM, self._terminate)
        self._loop.add_signal_handler(STACKS, self._hang_found)
        write_stacks_on_signal(chain=True)
        tasks = [
            self._loop.create_task(self._beat_forever()),
            self._loop.create_task(self._control.listen()),
            self._loop.create_task(self._data.listen(self._receive)),
        ]
        for task in tasks:
            task.add_done_callback(self._task_ended)
        try:
            return await self._end
        finally:
            for task in tasks:
                task.cancel()

    def close(self) -> None:
        """End everything that can be ended within about a second, and let the engine close, which
        may take longer. An engine that stays in its step is left alone."""
        self._fail_all(*self._end_error)
        self._data.close()
        self._control.close()
        until_s = time.monotonic() + sum(close_bounds_s())
        if not self._engine.stop(*close_bounds_s()):
            log.warning("engine.stuck_at_exit")
        if self._ranks is not None:
            self._ranks.close(max(_RANKS_LEAVE_S, until_s - time.monotonic()))
        self._context.term()

    # --- Orders from the supervisor

    def welcome(self) -> None:
        """Start to load. A second Welcome comes from a new supervisor."""
        if self._state is WorkerState.STARTING:
            self._state = WorkerState.LOADING
            self._engine.start()

    def identify(self) -> None:
        """Send Hello with the present state. The last supervisor's memory pressure no longer
        counts: the new one reports it again."""
        self._engine.set_memory_pressure(MemoryPressure.NONE)
        self._control.send(self._heartbeat.hello(self._state))

    def drain(self, if_idle: bool) -> None:
        """Refuse new streams, and send Drained when the last one has ended."""
        held = self._in_flight.count
        if if_idle and held:
            self._control.send(DrainRefused(self._spec.instance, held))
            return
        self._state = WorkerState.DRAINING
        log.info("worker.draining", streams=held)
        if held == 0:
            self._became_idle()

    def pressure(self, level: MemoryPressure) -> None:
        """Relay the memory pressure to the engine thread, which reacts before its next step."""
        log.info("worker.pressure", level=level.value, streams=self._in_flight.count)
        self._engine.set_memory_pressure(level)

    def seen(self, computing_watts: float | None) -> None:
        """Take the power that the machine computes with, for the energy of the next answers."""
        self._power.computing_watts = computing_watts

    def followers(self, answer: FollowersStarted | FollowersRefused) -> None:
        """Let the engine thread, which waits for it, continue with the load."""
        if self._ranks is not None:
            self._ranks.answered(answer)

    # --- Reports from the engine thread

    def load_advanced(self, phase: LoadPhase, fraction: float | None, detail: str) -> None:
        """Relay the load's progress to the supervisor."""
        self._control.send(LoadAdvanced(self._spec.instance, phase, fraction, detail))

    def loaded(self, engine: Engine, load_s: float) -> None:
        """Accept streams, unless the worker is to drain meanwhile."""
        if self._state is WorkerState.LOADING:
            self._state = WorkerState.READY
            self._serving = Serving(
                self._spec,
                engine,
                self._prompts,
                self._media,
                self._checks,
                self._decoder,
                self._engine,
                self._in_flight,
                self._counts,
                self._idle_clock,
                self._power,
                self._data.send,
                self._became_idle,
            )
        loaded = self._heartbeat.loaded(engine.facts, load_s)
        # Whoever sees that it is ready finds this in its log.
        log.info("worker.loaded", load_s=round(load_s, 3), memory_bytes=loaded.memory_bytes)
        self._control.send(loaded)

    def load_failed(self, error: Exception) -> None:
        """Report the reason to the supervisor, and wait until it ends this process."""
        if self._ranks is None or isinstance(error, LmxError):
            self._report_failed_load(error)
        else:
            # The end of another rank fails this one's load too, and the watch says which.
            self._loop.call_later(_RANK_FOUND_S, self._report_failed_load, error)

    def _report_failed_load(self, error: Exception) -> None:
        if self._exit_status:
            return  # The reason is known.
        code, message, permanent = load_failure(error, self._spec.kind)
        self._control.send(LoadFailed(self._spec.instance, code, message, permanent))
        out_of_memory = code is ErrorCode.INSUFFICIENT_MEMORY
        self._exit_status = WorkerExit.OUT_OF_MEMORY if out_of_memory else WorkerExit.LOAD_FAILED
        # SIGTERM is the answer. If the exit was seen before the message is read, it would look like
        # a crash without a reason.
        self._loop.call_later(_EXIT_DELAY_S, self._exit, self._exit_status)

    def engine_broke(self, error: Exception) -> None:
        """Fail every stream, and end the worker: the supervisor starts the model again."""
        if self._ranks is None:
            self._broke(error)
        else:
            # The end of another rank breaks this one's engine too, and the watch says which.
            self._loop.call_later(_RANK_FOUND_S, self._broke, error)

    def _broke(self, error: Exception) -> None:
        code = ErrorCode.ENGINE_ERROR
        message = f"The engine broke ({type(error).__name__}); see its log."
        status = WorkerExit.ENGINE_BROKE
        if is_out_of_memory(error):
            code, status = ErrorCode.WORKER_OUT_OF_MEMORY, WorkerExit.OUT_OF_MEMORY
            message = "The model's worker ran out of memory; it is being started again."
        try:
            self._fail_all(code, message)
        finally:
            self._exit(status)

    def _want_followers(self, wish: WantFollowers) -> None:
        self._loop.call_soon_threadsafe(self._control.send, wish)

    def _note_lost(self, why: LmxError) -> None:
        self._loop.call_soon_threadsafe(self._rank_lost, why)

    def _rank_lost(self, why: LmxError) -> None:
        """Fail every stream, and end the worker, with what is left of its ranks."""
        if self._state in (WorkerState.STARTING, WorkerState.LOADING):
            self._report_failed_load(why)
            return
        self._end_error = why.code, why.message
        out_of_memory = why.code is ErrorCode.WORKER_OUT_OF_MEMORY
        self._exit(WorkerExit.OUT_OF_MEMORY if out_of_memory else WorkerExit.RANK_LOST)

    def _became_idle(self) -> None:
        if self._state is WorkerState.DRAINING and not self._end.done():
            self._control.send(Drained(self._spec.instance))
        if self._idle_clock.keep_alive_s == 0:
            # The model is to be unloaded right after the answer, not a beat later.
            self._control.send(self._heartbeat.beat(self._state))

    def _hang_found(self) -> None:
        """Note that the supervisor ends this worker next because it makes no progress."""
        log.error("worker.unresponsive", streams=self._in_flight.count)
        self._end_error = _HUNG

    def _terminate(self) -> None:
        log.info("worker.terminated", streams=self._in_flight.count)
        self._exit(self._exit_status)

    def _exit(self, status: int) -> None:
        if not self._end.done():
            self._end.set_result(status)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        # A worker that receives nothing, or sends no beats, had better be restarted.
        if not task.cancelled() and (error := task.exception()) and not self._end.done():
            self._end.set_exception(error)

    def _receive(self, router: bytes, message: RouterMessage, blobs: Sequence[bytes]) -> None:
        """Refuse requests that would begin something new in a state in which none is accepted."""
        refusal = _REFUSALS.get(self._state)
        if refusal is not None and isinstance(message, Generate | Task):
            self._data.send(router, refusal.message_for(message.stream_id))
        elif self._serving is not None:
            self._serving.receive(router, message, blobs)

    def _fail_all(self, code: ErrorCode, message: str) -> None:
        if self._serving is not None:
            self._serving.open.fail_all(code, message)

    async def _beat_forever(self) -> None:
        while not self._control.send(self._heartbeat.hello(self._state)):
            await asyncio.sleep(_HELLO_RETRY_S)
            self._check_orphaned()
        while True:
            self._control.send(self._heartbeat.beat(self._state))
            if self._serving is not None:
                self._serving.open.pulse()
            self._check_orphaned()
            await asyncio.sleep(self._spec.beat_interval_s)

    def _check_orphaned(self) -> None:
        """Drain, and then end, once no supervisor has sent anything for the grace period.

        Without a supervisor nobody would end a stream that never ends by itself. So a drain that
        takes as long again is cut short.
        """
        silent_s = time.monotonic() - self._control.last_received_s
        if silent_s < self._spec.orphan_grace_s:
            return
        if self._state is not WorkerState.DRAINING:
            log.warning("worker.orphaned", silent_s=round(silent_s, 1))
            self.drain(if_idle=False)
        if self._in_flight.count == 0 or silent_s >= 2 * self._spec.orphan_grace_s:
            self._exit(0)


def load_engine(spec: WorkerSpec, advanced: LoadReporter, ranks: Leader | None = None) -> Engine:
    """Import the factory that the spec names, and let it load the model. Runs on the engine thread
    and takes seconds to minutes. ``ranks``: those among which the model is divided; the others are
    started.

    Raises :class:`lmx.protocol.errors.OperationError` if there is no such factory, and everything
    that the factory raises.
    """
    factory = cast("EngineFactory", engine_function(spec.engine))
    if ranks is None:
        return factory(spec, advanced)
    ranks.start()
    return factory(spec, advanced, ranks)
