"""When a Mac is kept awake, with a program that only says that it runs."""

import os
from collections.abc import Sequence

import pytest

from lmx.supervisor.config.schema import Config, PreventSleep
from lmx.supervisor.config.settings import Settings
from lmx.supervisor.processes.sleep import LINGER_S, SleepPrevention, wants_awake

ACTIVE: PreventSleep = "active"
ALWAYS: PreventSleep = "always"
NEVER: PreventSleep = "never"


class Caffeine:
    """A program that runs until it is ended."""

    def __init__(self, command: Sequence[str]) -> None:
        self.command = command
        self.status: int | None = None

    def poll(self) -> int | None:
        return self.status

    def terminate(self) -> None:
        self.status = -15

    def wait(self, timeout: float | None = None) -> int:
        assert self.status is not None
        return self.status


class Mac:
    def __init__(self, prevent: PreventSleep = ACTIVE, *, needed: bool = True) -> None:
        self.works = False
        self.started: list[Caffeine] = []
        self.missing = False
        config = Config.model_validate({"server": {"prevent_sleep": prevent}})
        self.prevention = SleepPrevention(
            Settings(config), lambda: self.works, self.start, needed=needed
        )

    def start(self, command: Sequence[str]) -> Caffeine:
        if self.missing:
            raise FileNotFoundError(command[0])
        self.started.append(Caffeine(command))
        return self.started[-1]

    @property
    def awake(self) -> int:
        return sum(one.status is None for one in self.started)


@pytest.mark.parametrize(
    ("prevent", "worked_at_s", "awake"),
    [
        (ACTIVE, None, False),
        (ACTIVE, 100.0, True),
        (ACTIVE, 100.0 - LINGER_S, False),
        (ALWAYS, None, True),
        (NEVER, 100.0, False),
    ],
)
def test_when_it_stays_awake(prevent: PreventSleep, worked_at_s: float | None, awake: bool) -> None:
    assert wants_awake(prevent, worked_at_s, 100.0) is awake


def test_it_sleeps_a_while_after_the_last_request_and_not_between_two() -> None:
    mac = Mac()
    mac.prevention.tick(0.0)
    assert mac.awake == 0
    for second in range(10):
        mac.works = second % 5 == 0
        mac.prevention.tick(float(second))
    assert (mac.awake, len(mac.started)) == (1, 1)
    assert mac.started[0].command == ["/usr/bin/caffeinate", "-i", "-w", str(os.getpid())]
    mac.prevention.tick(5.0 + LINGER_S)
    assert mac.awake == 0


def test_a_program_that_ends_is_started_again_later() -> None:
    mac = Mac(ALWAYS)
    mac.prevention.tick(0.0)
    mac.started[0].status = 1
    for second in range(1, 60):
        mac.prevention.tick(float(second))
    assert len(mac.started) == 1
    mac.prevention.tick(61.0)
    assert mac.awake == 1
    mac.prevention.close()
    assert mac.awake == 0


def test_without_the_program_it_continues() -> None:
    mac = Mac(ALWAYS)
    mac.missing = True
    for second in range(100):
        mac.prevention.tick(float(second))
    mac.missing = False
    mac.prevention.tick(200.0)
    assert mac.awake == 1


def test_other_machines_do_not_fall_asleep() -> None:
    mac = Mac(ALWAYS, needed=False)
    mac.works = True
    mac.prevention.tick(0.0)
    assert mac.started == []
