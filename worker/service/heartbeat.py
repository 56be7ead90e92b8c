"""What a worker reports about itself: its Hello, its beats, its memory. Event loop only."""

import os
import sys
import time
from pathlib import Path
from typing import Final, Protocol

import psutil

from lmx.protocol.host.memory import mac_footprint
from lmx.protocol.messages.control import Loaded, RefusedAdapter, WorkerBeat, WorkerHello
from lmx.protocol.messages.specs import WorkerSpec
from lmx.protocol.messages.status import RankFigures, WorkerFigures
from lmx.protocol.states import MediaKind, WorkerState
from lmx.worker.engine.values import ModelFacts, capabilities
from lmx.worker.media.decoder import MediaDecoder
from lmx.worker.scheduling.progress import InFlight
from lmx.worker.scheduling.thread import EngineThread
from lmx.worker.service.admission import IdleClock, LifetimeCounts

_KIB: Final = 1024


def memory_bytes(engine_bytes: int) -> int:
    """Return how much memory the process has now, as the system counts it. ``engine_bytes`` is what
    the engine counts itself: on a Mac the process's footprint includes it; elsewhere it is added to
    the resident set."""
    if sys.platform == "darwin":
        found = mac_footprint(os.getpid())
        return found[0] if found else _resident_bytes() + engine_bytes
    return max(_resident_bytes(), engine_bytes)


def peak_memory_bytes(engine_peak_bytes: int) -> int:
    """Return the most memory that the process ever had. It never goes down. ``engine_peak_bytes``
    is used as in :func:`memory_bytes`."""
    if sys.platform == "darwin":
        found = mac_footprint(os.getpid())
        return found[1] if found else _resident_bytes() + engine_peak_bytes
    peak_bytes = _linux_peak_bytes() if sys.platform == "linux" else None
    return max(peak_bytes or _resident_bytes(), engine_peak_bytes)


def parse_status(text: str, name: str) -> int | None:
    """Return a size in bytes from the text of Linux's /proc/PID/status, None if it isn't there."""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key == name:
            words = value.split()
            return int(words[0]) * _KIB if len(words) == 2 and words[0].isdecimal() else None
    return None


def _linux_peak_bytes() -> int | None:
    try:
        return parse_status(Path("/proc/self/status").read_text(), "VmHWM")
    except OSError:
        return None  # A sandbox without /proc.


def _resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


class Followers(Protocol):
    """The further processes of a divided model."""

    @property
    def figures(self) -> tuple[RankFigures, ...]:
        """What they take."""


class Heartbeat:
    """Reads the figures of the worker's parts; changes nothing."""

    def __init__(
        self,
        spec: WorkerSpec,
        engine: EngineThread,
        in_flight: InFlight,
        counts: LifetimeCounts,
        idle_clock: IdleClock,
        decoder: MediaDecoder,
        ranks: Followers | None = None,
    ) -> None:
        self._spec = spec
        self._engine = engine
        self._in_flight = in_flight
        self._counts = counts
        self._idle_clock = idle_clock
        self._decoder = decoder
        self._ranks = ranks
        self._loaded: Loaded | None = None

    def loaded(self, facts: ModelFacts, load_s: float) -> Loaded:
        """Return the news that the model is loaded, and remember it for every later Hello."""
        adapters = facts.adapters.items()
        kinds = facts.media.kinds if facts.media else frozenset()
        self._loaded = Loaded(
            self._spec.instance,
            self._memory_bytes,
            facts.context_tokens,
            load_s,
            capabilities(facts),
            tuple(RefusedAdapter(its_id, why) for its_id, why in adapters if why is not None),
            tuple(kind for kind in MediaKind if kind in kinds),
            facts.template,
            facts.remarks,
        )
        return self._loaded

    def hello(self, state: WorkerState) -> WorkerHello:
        """Return the worker's identity and its state."""
        loaded = self._loaded or Loaded(self._spec.instance, 0, 0, 0.0)
        return WorkerHello(
            self._spec.instance,
            self._spec.model_id,
            os.getpid(),
            state,
            self._memory_bytes if self._loaded else 0,
            loaded.context_length,
            loaded.capabilities,
            self._spec.kind,
            loaded.refused_adapters,
            loaded.media,
            loaded.template,
            loaded.remarks,
        )

    def beat(self, state: WorkerState) -> WorkerBeat:
        """Return the worker's present figures."""
        now = time.monotonic()
        held = self._in_flight.count
        # Tasks take turns. A request of which all rows have ended may still be checked.
        worked_on = min(held, self._engine.requests + min(1, self._engine.pieces))
        return WorkerBeat(
            instance=self._spec.instance,
            state=state,
            rows=worked_on,
            queued=held - worked_on,
            stalled_for_s=self._in_flight.stalled_for_s(now),
            figures=self._figures(),
            idle_for_s=self._idle_clock.idle_for_s(held, now),
            keep_alive_s=self._idle_clock.keep_alive_s,
        )

    @property
    def _followers(self) -> tuple[RankFigures, ...]:
        return () if self._ranks is None else self._ranks.figures

    @property
    def _memory_bytes(self) -> int:
        """What all ranks take that are on this machine."""
        own_bytes = memory_bytes(self._engine.memory_bytes)
        return own_bytes + sum(each.memory_bytes for each in self._followers if not each.machine)

    def _figures(self) -> WorkerFigures:
        counts, ranks = self._counts, self._followers
        peak_bytes = peak_memory_bytes(self._engine.peak_memory_bytes)
        return WorkerFigures(
            memory_bytes=self._memory_bytes,
            peak_memory_bytes=peak_bytes
            + sum(each.peak_memory_bytes for each in ranks if not each.machine),
            decoder_bytes=self._decoder.memory_bytes,
            kv_bytes=self._engine.kv_bytes,
            requests_total=counts.requests,
            tokens_total=counts.tokens,
            prompt_tokens_total=counts.prompt_tokens,
            cached_tokens_total=counts.cached_tokens,
            drafted_tokens_total=counts.drafted_tokens,
            accepted_tokens_total=counts.accepted_tokens,
            preempted_total=self._engine.preempted_total,
            compute_s_total=round(self._engine.computed_s(time.monotonic()), 4),
            ranks=ranks,
            speculation=self._engine.speculation,
        )
