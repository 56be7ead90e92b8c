"""A model of real size that is evicted and loaded again: the machine has its memory back."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from lmx.protocol.messages.control import LoadModel, UnloadModel
from tests.support.models.tiny_models import make_tiny_model
from tests.support.rigs.rig import Rig, rig, wait_until

pytestmark = [pytest.mark.process, pytest.mark.timeout(600), pytest.mark.long]

MIB = 1024**2
WEIGHTS_BYTES = 511 * MIB
TOLERANCE_BYTES = WEIGHTS_BYTES // 4
"""Less than a worker that stayed, or half of its weights; more than other programs of a machine
that tests run on come and go with."""

STEADY_BYTES = 16 * MIB
STEADY_S = 5.0
"""For how long a look is wanted during which other programs changed by no more than that."""

SUPERVISOR_GROWTH_BYTES = 8 * MIB
LOAD_S = 150
PATIENT = {
    "beat_timeout_s": 60, "stall_timeout_s": 60, "start_timeout_s": 60,
    "load_stall_timeout_s": 120,
}  # fmt: skip


@pytest.fixture
def large_dir() -> Iterator[Path]:
    """A model that is large in memory, and soon loaded. Its half gigabyte is not kept."""
    with tempfile.TemporaryDirectory() as folder:
        yield make_tiny_model(Path(folder), "experts")


def used_bytes(lmx: Rig) -> int:
    """Return the machine's used memory without what programs that are not this lmx's own have
    to themselves: tests don't run alone. Of several looks that in which those changed the least."""
    end_s = time.monotonic() + STEADY_S
    looks: list[tuple[int, int]] = []
    while not looks or (min(looks)[0] > STEADY_BYTES and time.monotonic() < end_s):
        before_bytes = foreign_bytes(lmx)
        memory = psutil.virtual_memory()
        after_bytes = foreign_bytes(lmx)
        mean_bytes = (before_bytes + after_bytes) // 2
        used = memory.total - memory.available - mean_bytes
        looks.append((abs(after_bytes - before_bytes), used))
    return min(looks)[1]


def foreign_bytes(lmx: Rig) -> int:
    """Return what programs that are not this lmx's own have to themselves."""
    ours = {process.pid for process in lmx.processes()}
    found = 0
    for process in psutil.process_iter():
        try:
            if process.pid not in ours:
                found += process.memory_full_info().uss
        except psutil.Error:
            continue
    return found


def load(lmx: Rig, model: str) -> None:
    lmx.ask(LoadModel(model))
    lmx.wait_state(model, "ready", deadline_s=LOAD_S)


# A worker that stays is four times the tolerance, after one round too; what grows slowly is not.
@pytest.mark.parametrize("rounds", [1, pytest.param(6, marks=pytest.mark.soak)])
def test_evicted_and_loaded_again(rounds: int, large_dir: Path, minilm_dir: Path) -> None:
    common = {"preload": False, "prefix_cache": {"enabled": False}}
    config = {
        # Room for either, not for both.
        "memory": {"budget_bytes": "850 MiB", "min_residency_s": 0},
        "timing": PATIENT,
        "models": [
            {"id": "large", "source": str(large_dir), "context_length": 512, **common},
            {"id": "small", "source": str(minilm_dir), **common},
        ],
    }
    with rig(config) as lmx:
        assert lmx.supervisor is not None
        supervisor = psutil.Process(lmx.supervisor.pid)
        idle_bytes = used_bytes(lmx)
        small_bytes: list[int] = []
        supervisor_bytes: list[int] = []
        for _ in range(rounds):
            load(lmx, "large")
            large_pid = lmx.worker("large")["pid"]
            load(lmx, "small")
            assert not psutil.pid_exists(large_pid), "it was evicted"
            lmx.wait_state("large", "cold")
            small_bytes.append(used_bytes(lmx))
            supervisor_bytes.append(supervisor.memory_info().rss)
            # What others share comes and goes; a worker that stays, or what it leaves, does not go.
            wait_until(lambda: used_bytes(lmx) <= small_bytes[0] + TOLERANCE_BYTES, "it is back")
        assert supervisor_bytes[-1] <= supervisor_bytes[0] + SUPERVISOR_GROWTH_BYTES
        lmx.ask(UnloadModel("small"))
        lmx.wait_state("small", "cold")
        wait_until(
            # Pages of a process that has ended may come back a moment later.
            lambda: used_bytes(lmx) <= idle_bytes + TOLERANCE_BYTES, "memory is back",
        )  # fmt: skip
        print(
            f"idle {idle_bytes // MIB} MiB, beside the small model "
            f"{[each // MIB for each in small_bytes]} MiB, at last {used_bytes(lmx) // MIB} MiB; "
            f"supervisor {[each // MIB for each in supervisor_bytes]} MiB"
        )
