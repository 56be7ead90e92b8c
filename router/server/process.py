"""The router process: it wires its parts together, handles signals, and ends gracefully."""

import asyncio
import contextlib
import os
import signal
import socket
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil
import structlog
import zmq.asyncio
from aiohttp import web

from lmx.protocol.errors import ErrorCode, GenerationError, LmxError
from lmx.protocol.host.lasting import begin, keep_up
from lmx.protocol.host.limits import open_files_limit, raise_file_limit, report_shortage_rarely
from lmx.protocol.host.memory import trim_heap
from lmx.protocol.messages.control import RouterBeat, RouterHello
from lmx.protocol.messages.keys import Keyring
from lmx.protocol.messages.specs import RouterSpec
from lmx.protocol.wire.endpoints import RunDirectory
from lmx.router.event_loop import collect_between_steps
from lmx.router.files.store import FileStore
from lmx.router.http.keys import Keys
from lmx.router.http.rate_limits import RateLimiter
from lmx.router.http.traffic import Traffic
from lmx.router.inference.batches.runner import BatchRunner
from lmx.router.inference.file_contents import give_contents
from lmx.router.jobs.event_logs import EventLogs
from lmx.router.jobs.hang_notice import HangNotice, hung_error, watch_in_thread
from lmx.router.jobs.live import LiveRequests
from lmx.router.jobs.store import JobStore
from lmx.router.media.fetch import Fetcher
from lmx.router.media.reader import MediaReader
from lmx.router.metrics.requests import RequestMetrics
from lmx.router.metrics.shared_counts import SharedCounts
from lmx.router.peers.peers import Peers
from lmx.router.server.app import make_app
from lmx.router.server.connections import (
    ConnectionLimit,
    answer_malformed_requests,
    has_request_coming,
    most_connections,
)
from lmx.router.server.lines import answer_line
from lmx.router.server.tls import OwnCertificate
from lmx.router.server.trim_policy import TrimPolicy
from lmx.router.services import Services
from lmx.router.supervisor.event_feed import EventFeed
from lmx.router.supervisor.link import SupervisorLink
from lmx.router.supervisor.model_queues import ModelQueues
from lmx.router.supervisor.watch import SupervisorWatch
from lmx.router.usage.sampling import sample
from lmx.router.usage.store import UsageStore
from lmx.router.workers.dispatch import Dispatcher, TaskDispatcher
from lmx.router.workers.links import WorkerLinks

if TYPE_CHECKING:
    from lmx.router.tracing.tracer import Tracer

_KEEPALIVE_S: Final = 75.0
"""Idle connections are kept a little longer than the minute for which proxies and SDKs keep them:
the side that closes first risks a request in flight, and that should not be the server."""

_BACKLOG: Final = 1024
"""Connections that the kernel holds until they are accepted: clients come in bursts."""

_ACCEPTED_AT_ONCE: Final = 32
"""The most connections that are accepted in one turn of the event loop. Those of one turn are only
counted in the next one, and refused ones are closed some turns later."""

_LINGER_S: Final = 1.0
"""The time that connections have for one more request."""

_FIRST_REQUEST_S: Final = 3.0
"""The time after that which a connection has for its first request: its client, or this process,
may only be slow. A connection that is closed on a client's first request is an error that it sees;
on a later one it connects again."""

_LOOK_AGAIN_S: Final = 0.05

_TRIM_INTERVAL_S: Final = 2.0
"""The time between two checks whether there is freed memory to give back."""

_SWEEP_INTERVAL_S: Final = 60.0
"""The time between two searches for job records and files that are too old."""

_WRITTEN_S: Final = 3.0
"""The time that the last job records, and the last usage, have to reach the disk, and the last
spans their collector."""

_LAST_EVENTS_S: Final = 3.0
"""The time that requests have to send their error when they are cut off at the end of the grace,
and once more to end."""

_log = structlog.get_logger()


class Router:
    """One router's parts, from :meth:`start` to :meth:`stop`. It owns all of them.

    It knows no signals and no process: several routers can live in one process, as in the tests.
    """

    def __init__(self, spec: RouterSpec, listener: socket.socket) -> None:
        run_dir = RunDirectory(Path(spec.run_dir))
        self._spec = spec
        self._listener = listener
        self._context = zmq.asyncio.Context()
        self.traffic = Traffic()
        self.keys = Keys(spec, self._keys_changed)
        self.workers = WorkerLinks(self._context, run_dir, spec.worker_silence_s)
        self.supervisor = SupervisorLink(
            self._context,
            run_dir,
            self.workers,
            hello=RouterHello(os.getpid(), spec.router_id, spec.port),
            beat_interval_s=spec.beat_interval_s,
            keys=self.keys,
            peers=lambda found: self.peers.put(found),
            peers_digest=lambda: self.peers.digest,
        )
        self.queues = ModelQueues(self.supervisor, spec.load_wait_s)
        self.live = LiveRequests(self.queues.position, lambda: self.supervisor.latest)
        self.jobs = JobStore(
            Path(spec.jobs_path), spec.jobs_max_age_s, spec.jobs_max_count, spec.jobs_max_bytes
        )
        self.usage = UsageStore(
            Path(spec.jobs_path).with_name("usage.sqlite"), lambda: self.keys.ring.keys
        )
        self.files = FileStore(Path(spec.jobs_path).with_name("files.sqlite"), spec.files)
        self.metrics = RequestMetrics(self._model_ids, self.usage.add, lambda: self.keys.ring.keys)
        self.limiter = RateLimiter(
            spec.key_limits, spec.keyring.keys, spec.total_limits, self.metrics.rate_limited
        )
        self.counts = SharedCounts(self.supervisor, self.metrics, self.limiter)
        self.peers = Peers(spec, self.supervisor, self.live, self.metrics, give_contents)
        self.hang_notice = HangNotice()
        self._fetcher = Fetcher(spec.media, f"lmx/{spec.version}")
        services = Services(
            spec,
            self.supervisor,
            self.queues,
            self.traffic,
            Dispatcher(self.queues, self.workers),
            TaskDispatcher(self.queues, self.workers),
            self.metrics,
            self.live,
            self.jobs,
            EventLogs(),
            EventFeed(self.supervisor),
            self.limiter,
            self.counts,
            self.hang_notice,
            MediaReader(spec.media, self._fetcher),
            self.usage,
            self.files,
            self.keys,
            self.peers,
        )
        answer_malformed_requests()
        self._retiring = self._retired = self._stopped = False
        self._last_answers: set[asyncio.Task[None]] = set()
        self._tracer = _tracer(spec)
        app = make_app(services, self._tracer)
        app.on_response_prepare.append(self._close_after_answer)
        self.batches = BatchRunner(
            services,
            partial(answer_line, app),
            Path(spec.jobs_path).with_name("batches.lock"),
        )
        self._batches_task: asyncio.Task[None] | None = None
        self._runner = web.AppRunner(
            app,
            # `router/http/bodies/encoding.py` does it, in small steps.
            auto_decompress=False,
            # A client that leaves cancels its handler, and so its generation.
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=_KEEPALIVE_S,
            shutdown_timeout=_LAST_EVENTS_S,
        )
        self._process = psutil.Process()
        self._memory_bytes = 0
        self._link_task: asyncio.Task[None] | None = None
        self._lasting: tuple[asyncio.Task[None], ...] = ()
        self._watch = SupervisorWatch(self.supervisor, spec.rescue, spec.beat_interval_s)
        self._sample_task: asyncio.Task[None] | None = None
        self._watch_task: asyncio.Task[None] | None = None
        self._server: asyncio.Server | None = None

    async def start(self) -> asyncio.Task[None]:
        """Serve HTTP and talk to the supervisor. The returned task ends only because of a bug."""
        self.jobs.start()
        self.usage.start()
        self.files.start()
        self.peers.put(self._spec.peers)
        self._lasting = (
            keep_up(self._sweep, "the sweep of the job records and the files"),
            keep_up(self.counts.run, "the report of the counts"),
            keep_up(_give_back, "the return of freed memory"),
        )
        self._batches_task = keep_up(self.batches.run, "the work on batches")
        self._sample_task = keep_up(self._sample, "the samples of the figures")
        self._watch_task = keep_up(self._watch.run, "the watch over the supervisor")
        await self._runner.setup()
        assert self._runner.server is not None
        limit = ConnectionLimit(
            self._runner.server,
            most_connections(open_files_limit()),
            OwnCertificate(Path(self._spec.jobs_path).with_name("certificate.pem")),
            self.traffic.used_connections,
        )
        self._server = await asyncio.get_running_loop().create_server(
            limit, sock=self._listener, backlog=_ACCEPTED_AT_ONCE
        )
        self._listener.listen(_BACKLOG)  # asyncio has one number for both.
        self._link_task = asyncio.create_task(self.supervisor.run(self._measure))
        return self._link_task

    async def retire(self) -> None:
        """Leave new connections to another router that has the socket, and return when no request
        is under way. Connections that are kept alive are closed after a moment, in which each gets
        at most one more answer: later requests are for the other router, and its settings. One on
        which no request has come is given longer for its first."""
        self._retiring = self.traffic.retiring = True
        # The router that has taken over takes them: tokens are counted once.
        await _ended(self._sample_task)
        await _ended(self._watch_task)
        await _ended(self._batches_task)
        self._close_server()
        await asyncio.sleep(_LINGER_S)
        await self._close_connections()
        self._retired = True
        self.supervisor.notify(self._measure())
        await self.traffic.idle(None)

    async def stop(self, grace_s: float, error: GenerationError | None = None) -> None:
        """Refuse new requests, let those under way end within ``grace_s``, and end the rest.

        Streams that are left get ``error`` as an event, by default ``shutting_down``. New
        connections are accepted until the end: the supervisor has the socket too, so otherwise
        clients would wait in its backlog and be cut off, instead of getting a 503. A second call
        does nothing.
        """
        if self._stopped:
            return
        self._stopped = True
        self.traffic.close()
        await _ended(self._watch_task)
        await _ended(self._batches_task)
        if not await self.traffic.idle(grace_s):
            _log.warning("router.requests_aborted", requests=self.traffic.under_way)
        error = error or GenerationError(
            ErrorCode.SHUTTING_DOWN, "lmx is shutting down: try again later."
        )
        self.workers.give_up_all(error)
        for live in self.live.all:
            if live.machine is not None:  # A peer computes it: it waits for none of the others.
                live.cancel(error)
        self.queues.close(error)
        self.supervisor.fail_questions(error)
        await self.traffic.idle(_LAST_EVENTS_S)
        self._close_server()
        await self._runner.cleanup()
        await self._fetcher.close()
        await self.peers.close()
        await self.counts.report_last()
        for task in (self._link_task, self._sample_task, *self._lasting):
            await _ended(task)
        await asyncio.gather(
            asyncio.to_thread(self.jobs.close, _WRITTEN_S),
            asyncio.to_thread(self.usage.close, _WRITTEN_S),
            asyncio.to_thread(self.files.close, _WRITTEN_S),
            *(() if self._tracer is None else (asyncio.to_thread(self._tracer.close, _WRITTEN_S),)),
        )
        self.workers.close()
        self.supervisor.close()
        self._context.term()

    async def _close_connections(self) -> None:
        server, deadline_s = self._runner.server, time.monotonic() + _FIRST_REQUEST_S
        assert server is not None
        left = set(server.connections)
        while left:
            in_time = time.monotonic() < deadline_s
            asking = {
                one
                for one in left
                if in_time and has_request_coming(one, self.traffic.used_connections)
            }
            under_way = self.hang_notice.connections
            # One with a request under way would lose the rest of its body, or of its WebSocket.
            # It is closed with its answer; one whose answer began before may get another one.
            for connection in {one for one in left - asking if one.transport not in under_way}:
                # This alone would leave one that waits for a request open and unread.
                connection.close()
                self._last_answers.add(begin(connection.shutdown(None), "the end of a connection"))
            left = asking
            if left:
                await asyncio.sleep(_LOOK_AGAIN_S)

    def _close_server(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _close_after_answer(self, _: web.Request, response: web.StreamResponse) -> None:
        if self._retiring:
            response.force_close()
            response.headers["Connection"] = "close"

    def _model_ids(self) -> tuple[str, ...] | None:
        known = self.supervisor.latest
        if known is None:
            return None
        return (*(model.model_id for model in known.models), *self.peers.model_ids)

    async def _sweep(self) -> None:
        while True:
            try:
                await self.jobs.sweep(lambda: self.live.ids)
            except LmxError as error:
                _log.warning("jobs.sweep_failed", error=error.message)
            try:
                await self.files.sweep()
            except (LmxError, OSError) as error:
                _log.warning("files.sweep_failed", error=str(error))
            await asyncio.sleep(_SWEEP_INTERVAL_S)

    async def _sample(self) -> None:
        await sample(self.supervisor, self.usage)

    def _measure(self) -> RouterBeat:
        # A beat shows above all that this router is alive, whatever can be measured.
        with contextlib.suppress(psutil.Error, OSError):
            self._memory_bytes = self._process.memory_info().rss
        known = self.supervisor.latest
        return RouterBeat(
            pid=os.getpid(),
            streams=self.workers.open_streams,
            requests_total=self.traffic.requests_total - self.traffic.under_way,
            memory_bytes=self._memory_bytes,
            waiting=self.queues.all_waiting,
            batches=self.batches.unfinished,
            batch_lines=self.batches.lines_left,
            retired=self._retired,
            keyring=self.keys.ring.digest,
            epoch="" if known is None else known.snapshot.epoch,
            revision=0 if known is None else known.snapshot.revision,
            peers=self.peers.digest,
        )

    def _keys_changed(self, ring: Keyring) -> None:
        """Follow other keys, and let the supervisor know at once: somebody waits until a key that
        was revoked opens nothing any more."""
        self.limiter.set_keys(ring.keys)
        self.supervisor.notify(self._measure())


def _tracer(spec: RouterSpec) -> "Tracer | None":
    """Return what traces requests. OpenTelemetry is imported only if that is wanted."""
    if not spec.tracing_endpoint:
        return None
    try:
        from lmx.router.tracing.tracer import Tracer

        return Tracer(spec.tracing_endpoint, spec.tracing_headers, spec.version)
    except ImportError as error:
        _log.warning("tracing.not_installed", error=str(error), install="lmx[otel]")
    except ValueError as error:
        # The library refuses values of OTEL_* variables. Requests are answered without traces.
        _log.warning("tracing.not_started", error=str(error))
    return None


async def _ended(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def serve(spec: RouterSpec) -> None:
    """Run a router until SIGTERM, or until no supervisor has answered for ``orphan_grace_s``.

    SIGUSR1 means that another router takes over; this one ends with its last request. SIGUSR2 means
    that the supervisor gets no beats; clients get an error (:mod:`lmx.router.jobs.hang_notice`) and
    the router ends. SIGINT is ignored: a terminal's Ctrl-C reaches the whole process group, and the
    supervisor decides what it means. SIGHUP is ignored too, because there is nothing to reload.
    Raises if a part of the router fails.
    """
    raise_file_limit()
    stop_requested, retire_requested, unresponsive = (
        asyncio.Event(),
        asyncio.Event(),
        asyncio.Event(),
    )
    loop = asyncio.get_running_loop()
    report_shortage_rarely(loop)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    loop.add_signal_handler(signal.SIGTERM, stop_requested.set)
    loop.add_signal_handler(signal.SIGUSR1, retire_requested.set)
    router = Router(spec, socket.socket(fileno=spec.listen_fd))
    watch_in_thread(router.hang_notice, loop, unresponsive.set)
    # It is the whole process's, of which a test's router has only a part.
    collecting = keep_up(collect_between_steps, "the collection of garbage")
    link = await router.start()
    _log.info("router.serving", host=spec.host, port=spec.port)
    waiting = [
        asyncio.create_task(stop_requested.wait()),
        asyncio.create_task(unresponsive.wait()),
        asyncio.create_task(_orphaned(router.supervisor, spec.orphan_grace_s)),
        asyncio.create_task(_retired(router, retire_requested)),
        link,
    ]
    done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting[:-1]:
        task.cancel()
    for task in done:
        # Raises when a part failed, above all the link, without which the router receives nothing:
        # the process ends, and the supervisor starts another.
        task.result()
    _log.info("router.stopping", requests=router.traffic.under_way)
    if unresponsive.is_set():
        await router.stop(0.0, hung_error())
    else:
        await router.stop(spec.shutdown_grace_s)
    await _ended(collecting)
    _log.info("router.stopped")


async def _give_back() -> None:
    """Return freed memory to the system for as long as the process lives. This runs in a thread,
    because the allocator needs some hundredths of a second for each 100 MiB."""
    process = psutil.Process()
    pace = TrimPolicy(process.memory_info().rss)
    while True:
        await asyncio.sleep(_TRIM_INTERVAL_S)
        before_bytes, began_s = process.memory_info().rss, time.monotonic()
        if pace.is_due(before_bytes, began_s):
            await asyncio.to_thread(trim_heap)
            now_s = time.monotonic()
            given_bytes = before_bytes - process.memory_info().rss
            pace.trimmed(given_bytes, now_s)
            _log.debug(
                "router.trimmed", given_back_bytes=given_bytes, took_s=round(now_s - began_s, 3)
            )


async def _orphaned(supervisor: SupervisorLink, grace_s: float) -> None:
    while True:
        left_s = grace_s - supervisor.silent_for_s
        if left_s <= 0:
            _log.error("router.orphaned", silent_s=round(supervisor.silent_for_s, 1))
            return
        await asyncio.sleep(left_s)


async def _retired(router: Router, retire_requested: asyncio.Event) -> None:
    await retire_requested.wait()
    _log.info("router.retiring", requests=router.traffic.under_way)
    await router.retire()
