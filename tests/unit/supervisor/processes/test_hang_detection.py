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
from lmx.supervisor.config.secret_variables import without_keys, without_own_keys
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


ANSWERS, STOPPED = Look(answers=True), Look(answers=False, stopped=True)
WORKS = [Look(answers=False, cpu_s=0.5 * number) for number in range(200)]
STARVED = [Look(answers=False, cpu_s=0.05 * each, waited_s=0.95) for each in range(200)]
SPINS = [Look(answers=False, cpu_s=0.5 * each, waited_s=0.5) for each in range(200)]
WAIT, WAKE, END = Verdict.WAIT, Verdict.WAKE, Verdict.END
LIVES: dict[str, tuple[list[Look], list[Verdict]]] = {
    "it answers": ([DEAF, DEAF, ANSWERS], [WAIT, WAIT, Verdict.WELL]),
    "it does nothing": ([DEAF] * 20, [*[WAIT] * 5, END]),
    "it works": (WORKS, [*[WAIT] * int(BUSY_S), END]),
    "it waits for a disk": (
        [Look(answers=False, waits_on_disk=True)] * 200, [*[WAIT] * int(BUSY_S), END],
    ),
    "it works, and answers": ([*WORKS[:30], ANSWERS], [*[WAIT] * 30, Verdict.WELL]),
    "it waits for a processor": (STARVED, [WAIT] * 200),
    # It has as much of the processor as one that works all the time.
    "it gets half of a processor": (SPINS, [*[WAIT] * int(2 * BUSY_S + 1), END]),
    "it was stopped": ([STOPPED, DEAF, ANSWERS], [WAKE, WAIT, Verdict.WELL]),
    "it is stopped again and again": ([STOPPED] * 20, [WAKE, *[WAIT] * 4, END]),
    "a debugger has it": ([DEAF, Look(answers=False, traced=True)], [WAIT, Verdict.LEAVE]),
}  # fmt: skip


@pytest.mark.parametrize("case", LIVES)
def test_what_is_thought_of_one_that_is_silent(case: str) -> None:
    looks, expected = LIVES[case]
    assert verdicts(looks) == expected


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
    named = (
        *("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY", "ENCRYPTION_KEY", "GITHUB_PAT"),
        *("PGPASSWORD", "MYSQL_PWD", "SSHPASS", "DB_PASS", "SENTRY_DSN", "DATABASE_URL"),
    )
    secrets = {**keys, **dict.fromkeys(named, "s")}
    others = dict.fromkeys(
        (
            *("PATH", "PWD", "OLDPWD", "HF_HOME", "HF_ENDPOINT", "HF_TOKEN_PATH"),
            *("TOKENIZERS_PARALLELISM", "OTEL_EXPORTER_OTLP_CLIENT_KEY"),
        ),
        "o",
    )
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
