"""A load takes over a process that has imported its libraries already."""

import signal
from collections.abc import Iterator

import psutil
import pytest

from lmx.protocol.messages.specs import SPARE
from lmx.supervisor.state.process_records import is_running
from tests.support.models.tiny_models import make_tiny_model
from tests.support.rigs.rig import PATIENT, Rig, command_of, rig, wait_until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600), pytest.mark.long]


@pytest.fixture(scope="module")
def lmx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    model = make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", "llama")
    config = {
        "memory": {"spare_worker": True},
        "models": [{"id": "a", "source": str(model), "preload": False}],
        "timing": PATIENT,
    }
    with rig(config) as made:
        yield made


def spare_of(lmx: Rig) -> psutil.Process:
    """Return the spare worker, once there is one that no model has."""

    def found() -> psutil.Process | None:
        taken = lmx.worker("a")["pid"]
        waiting = [one for one in lmx.running("lmx.worker") if SPARE in command_of(one)]
        return next((one for one in waiting if one.pid != taken), None)

    spare: psutil.Process = wait_until(found, "a spare worker")
    return spare


def load(lmx: Rig) -> int:
    """Load the model, and return the pid of its worker."""
    lmx.run("load", "a")
    pid: int = lmx.wait_state("a", "ready")["pid"]
    return pid


def unload(lmx: Rig) -> None:
    lmx.run("unload", "a")
    lmx.wait_state("a", "cold")


def test_it_ends_with_its_supervisor(lmx: Rig) -> None:
    spare = spare_of(lmx)
    assert lmx.supervisor is not None
    lmx.supervisor.kill()
    lmx.supervisor.wait()
    wait_until(lambda: not is_running(spare), "the spare worker has ended")
    lmx.up()


def test_another_program_in_the_supervisors_place_has_one_of_its_own(lmx: Rig) -> None:
    spare = spare_of(lmx)
    lmx.run("restart", "--supervisor")
    wait_until(lambda: not is_running(spare), "the first one has ended")


def test_a_load_takes_it(lmx: Rig) -> None:
    spare = spare_of(lmx)
    assert load(lmx) == spare.pid
    pids = {line["pid"] for line in lmx.log_events("worker-a")}
    assert spare.pid in pids, "its log is that of the model"
    unload(lmx)
    wait_until(lambda: not is_running(spare), "its process ends with the model")


def test_a_load_does_not_need_it(lmx: Rig) -> None:
    spare = spare_of(lmx)
    spare.send_signal(signal.SIGKILL)
    wait_until(lambda: not is_running(spare), "it has ended")
    assert load(lmx) != spare.pid
    assert lmx.worker("a")["restarts"] == 0
    unload(lmx)
