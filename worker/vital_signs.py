"""What a worker says of itself to a supervisor: its Hello and its beats. Event loop only."""

from __future__ import annotations

import os
import time

from lmx.protocol.control import Loaded, WorkerBeat, WorkerHello
from lmx.protocol.specs import WorkerSpec
from lmx.protocol.states import WorkerState
from lmx.worker.engine import ModelFacts, capabilities
from lmx.worker.engine_thread import EngineThread
from lmx.worker.footprint import memory_bytes, peak_memory_bytes
from lmx.worker.generations import Generations
from lmx.worker.tasks import Tasks


class VitalSigns:
    """Reads what the parts of a worker count; changes nothing."""

    def __init__(
        self, spec: WorkerSpec, engine: EngineThread, generations: Generations, work: Tasks
    ) -> None:
        self._spec = spec
        self._engine = engine
        self._generations = generations
        self._work = work
        self._facts: ModelFacts | None = None

    def loaded(self, facts: ModelFacts, load_s: float) -> Loaded:
        """Return the news that the model answers, and remember it for every Hello."""
        self._facts = facts
        return Loaded(
            self._spec.instance,
            memory_bytes(self._engine.memory_bytes),
            facts.context_tokens,
            load_s,
            capabilities(facts),
        )

    def hello(self, state: WorkerState) -> WorkerHello:
        """Return who this is, and how far it has come."""
        facts = self._facts
        return WorkerHello(
            self._spec.instance,
            self._spec.model_id,
            os.getpid(),
            state,
            memory_bytes(self._engine.memory_bytes) if facts else 0,
            facts.context_tokens if facts else 0,
            capabilities(facts) if facts else (),
            self._spec.kind,
        )

    def beat(self, state: WorkerState) -> WorkerBeat:
        """Return how it is now."""
        now = time.monotonic()
        rows, held = self._engine.rows, self._generations.held
        totals, last_use = self._generations.totals, self._generations.last_use
        return WorkerBeat(
            instance=self._spec.instance,
            state=state,
            rows=rows,
            queued=max(0, held - rows),
            stalled_for_s=self._generations.stalled_for_s(now),
            memory_bytes=memory_bytes(self._engine.memory_bytes),
            requests_total=totals.requests + self._work.requests_total,
            tokens_total=totals.tokens,
            saved=totals.saved,
            peak_memory_bytes=peak_memory_bytes(self._engine.peak_memory_bytes),
            kv_bytes=self._engine.kv_bytes,
            idle_for_s=last_use.idle_for_s(held, now),
            keep_alive_s=last_use.keep_alive_s,
        )
