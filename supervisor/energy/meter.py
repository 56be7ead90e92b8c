"""The one reader of the machine's energy: it knows the machine's joules, and those of each
model."""

from collections.abc import Callable, Sequence
from typing import Final

from lmx.supervisor.decisions.energy import Energy, computed_share, divided, watts_each
from lmx.supervisor.decisions.worker import Worker
from lmx.supervisor.energy.source import Source

_READ_S: Final = 1.0
_LONGEST_S: Final = 60.0
"""A longer interval counts for nothing: the machine slept, or nobody knows how often a counter has
begun again."""

_SILENT_S: Final = 5.0
"""What a worker said last counts for this long, and so does the power that was measured last."""

_POWER_S: Final = 60.0
"""How long the power that engines computed with stays good enough for an answer: a first answer
after a pause may end before the next reading."""

_WEIGHT: Final = 0.5
"""Of the latest second in the running mean of that power, where an engine computed all the time."""


class EnergyMeter:
    """Reads a source once a second. Without one it does nothing."""

    def __init__(
        self,
        source: Source | None,
        workers: Callable[[], Sequence[Worker]],
        is_model: Callable[[str], bool],
    ) -> None:
        """``workers`` returns those that run. What a model has taken is forgotten once it is no
        longer served (``is_model``)."""
        self._source = source
        self._workers = workers
        self._is_model = is_model
        self._due_s = 0.0
        self._read: tuple[float, float] | None = None
        self._beats: dict[str, tuple[float, float]] = {}
        self._shares: dict[str, float] = {}
        self._joules: float | None = None
        self._watts: tuple[float, float] | None = None
        self._power: tuple[float, float] | None = None
        self._by_model: dict[str, float] = {}

    def tick(self, now_s: float, paused_s: float) -> None:
        """Read, if a second has passed."""
        if self._source is None or now_s < self._due_s:
            return
        self._due_s = now_s + _READ_S
        workers = self._workers()
        self._take_beats(workers, now_s)
        wanted = any(worker.busy for worker in workers)
        before, self._read = self._read, self._source.read(now_s, wanted=wanted)
        if self._read is None:
            return
        if self._joules is None:
            self._joules = 0.0
        if before is None or paused_s:
            return
        # By the source's own clock: what it prints each second comes now and then twice.
        passed_s, joules = self._read[0] - before[0], self._read[1] - before[1]
        if not 0.0 < passed_s <= _LONGEST_S:
            return
        self._joules += joules
        self._watts = (now_s, joules / passed_s)
        self._divide(workers, joules, passed_s, now_s)

    def energy(self, now_s: float) -> Energy | None:
        """Return what was measured; None if nothing was."""
        if self._joules is None:
            return None
        watts = self._watts
        current = watts is not None and now_s - watts[0] < _SILENT_S
        return Energy(
            self._joules, watts[1] if watts is not None and current else None, self._by_model
        )

    def computing_watts(self, now_s: float) -> float | None:
        """Return how many joules an engine has taken for each second of computing, in the last
        minute; None if none has computed, or the machine does not say it."""
        power = self._power
        return None if power is None or now_s - power[0] >= _POWER_S else power[1]

    def close(self) -> None:
        """End the source."""
        if self._source is not None:
            self._source.close()

    def _take_beats(self, workers: Sequence[Worker], now_s: float) -> None:
        beats, shares = {}, {}
        for worker in workers:
            beat = (worker.beat_at_s, worker.figures.compute_s_total)
            before = self._beats.get(worker.instance, beat)
            if before == beat:
                # A worker that says nothing has the share that it had, for a moment.
                silent = now_s - worker.beat_at_s >= _SILENT_S
                share = 0.0 if silent else self._shares.get(worker.instance, 0.0)
            else:
                share = computed_share(before, beat)
            beats[worker.instance], shares[worker.instance] = beat, share
        self._beats, self._shares = beats, shares

    def _divide(
        self, workers: Sequence[Worker], joules: float, passed_s: float, now_s: float
    ) -> None:
        names = {worker.instance: worker.model_id for worker in workers}
        self._by_model = {
            model_id: sum_ for model_id, sum_ in self._by_model.items() if self._is_model(model_id)
        }
        for instance, part in divided(joules, self._shares).items():
            model_id = names[instance]
            self._by_model[model_id] = self._by_model.get(model_id, 0.0) + part
        if not (share := min(1.0, sum(self._shares.values()))):
            return
        watts, power = watts_each(joules / passed_s, self._shares), self.computing_watts(now_s)
        weight = 1.0 if power is None else _WEIGHT * share
        self._power = (now_s, watts if power is None else power + weight * (watts - power))
