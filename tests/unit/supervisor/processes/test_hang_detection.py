"""When a silent supervisor counts as hung, and what a router has to do with it."""

import asyncio
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from lmx.protocol.messages.specs import RescueSpec
from lmx.router.supervisor import watch
from lmx.router.supervisor.watch import SupervisorWatch
from lmx.supervisor.config.schema import Config
from lmx.supervisor.processes.child import without_keys, without_own_keys
from lmx.supervisor.processes.handover import Invocation
from lmx.supervisor.processes.hang_detection import BUSY_S, Look, Patience, Verdict, judge
from tests.support.fakes.fake_peers import until

DEAF = Look(answers=False)


def verdicts(looks: list[Look], step_s: float = 1.0, hung_s: float = 5.0) -> list[Verdict]:
    """What follows of looks that are ``step_s`` apart; ends with the first that settles it."""
    found: list[Verdict] = []
    patience = Patience(hung_s)
    for number, look in enumerate(looks, 1):
        patience, verdict = judge(patience, look, number * step_s)
        found.append(verdict)
        if verdict not in (Verdict.WAIT, Verdict.WAKE):
            break
    return found


def test_one_that_answers_is_left_in_peace() -> None:
    assert verdicts([DEAF, DEAF, Look(answers=True)])[-1] is Verdict.WELL


def test_one_that_does_nothing_hangs() -> None:
    assert verdicts([DEAF] * 20) == [*[Verdict.WAIT] * 5, Verdict.END]


def test_one_that_works_has_longer() -> None:
    busy = [Look(answers=False, cpu_s=0.5 * number) for number in range(200)]
    assert len(verdicts(busy)) == BUSY_S + 1
    disk = [Look(answers=False, waits_on_disk=True)] * 200
    assert len(verdicts(disk)) == BUSY_S + 1
    assert verdicts([*busy[:30], Look(answers=True)])[-1] is Verdict.WELL


def test_one_that_waits_for_a_processor_is_waited_for() -> None:
    starved = [Look(answers=False, cpu_s=0.05 * each, waited_s=0.95) for each in range(200)]
    assert set(verdicts(starved)) == {Verdict.WAIT}
    # It has as much of the processor as one that works all the time.
    spins = [Look(answers=False, cpu_s=0.5 * each, waited_s=0.5) for each in range(200)]
    assert len(verdicts(spins)) == 2 * BUSY_S + 2


def test_one_that_was_stopped_is_woken_once() -> None:
    stopped = Look(answers=False, stopped=True)
    assert verdicts([stopped, DEAF, Look(answers=True)]) == [
        Verdict.WAKE,
        Verdict.WAIT,
        Verdict.WELL,
    ]
    again = verdicts([stopped] * 20)
    assert (again[0], again[-1], len(again)) == (Verdict.WAKE, Verdict.END, 6)


def test_a_debuggers_is_left_alone() -> None:
    assert verdicts([DEAF, Look(answers=False, traced=True)])[-1] is Verdict.LEAVE


def test_who_was_held_up_itself_judges_nothing() -> None:
    """The machine slept, or is overloaded: every look comes late."""
    assert set(verdicts([DEAF] * 50, step_s=10.0)) == {Verdict.WAIT}


@dataclass
class _Beats:
    answering: bool = True
    answers: int = 0

    @property
    def answers_total(self) -> int:
        self.answers += self.answering
        return self.answers


async def test_a_router_counts_beats_and_runs_it_with_what_its_environment_lacks(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    script = f"import os; open({str(out)!r}, 'a').write(os.environ['LMX_SECURITY_X'])"
    spec = RescueSpec((sys.executable, "-c", script), 1.0, {"LMX_SECURITY_X": "secret"})
    assert "secret" not in repr(spec)
    beats = _Beats()
    task = asyncio.create_task(SupervisorWatch(beats, spec, 0.01).run())
    await asyncio.sleep(1.5)
    assert not out.exists()
    beats.answering = False
    await until(lambda: out.exists() and out.read_text())
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert out.read_text() == "secret"


async def test_a_rescue_that_is_stopped_makes_room_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_LOOK_S", 0.05)
    monkeypatch.setattr(watch, "_PAUSE_S", 0.05)
    out = tmp_path / "out"
    script = f"import os; open({str(out)!r}, 'a').write('x'); os.kill(os.getpid(), 19)"
    spec = RescueSpec((sys.executable, "-c", script.replace("19", str(int(signal.SIGSTOP)))), 0.1)
    task = asyncio.create_task(SupervisorWatch(_Beats(answering=False), spec, 0.01).run())
    await until(lambda: out.exists() and len(out.read_text()) >= 2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    ("detached", "background", "guarded"),
    [(False, False, "foreground"), (True, True, "background"), (True, False, "service")],
)
def test_what_routers_run(detached: bool, background: bool, guarded: str) -> None:
    invocation = Invocation(Path("a.yaml"), detached, Config, background=background)
    keys = {"LMX_SECURITY_API_KEYS": "[k]", "LMX_SECURITY_ADMIN_KEY": "k"}
    secrets = {**keys, "HF_TOKEN": "t", "AWS_SECRET_ACCESS_KEY": "s"}
    others = {"PATH": "/bin", "HF_HOME": "/h", "HF_TOKEN_PATH": "/t", "TOKENIZERS_PARALLELISM": "1"}
    assert without_keys(secrets | others) == others
    assert "HF_TOKEN" in without_own_keys(secrets)
    assert without_own_keys(secrets).keys().isdisjoint(keys)
    spec = invocation.rescue(15.0, secrets | others)
    # The supervisor that it starts fetches from the hub.
    assert spec.environment == secrets
    assert spec.command[4:] == (
        "rescue", "--config", str(Path("a.yaml").absolute()), "--guarded", guarded,
        "--silence", "15",
    )  # fmt: skip
