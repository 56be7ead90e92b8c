"""The way from the engine thread to the event loop, without either."""

from collections.abc import Callable
from typing import Any

import pytest

from lmx.protocol.messages.data import Delta
from lmx.worker.scheduling.outbox import COALESCE_S, Outbox
from lmx.worker.scheduling.requests import RequestOutput


class _Timer:
    def __init__(self, at_s: float, function: Callable[[], None]) -> None:
        self.at_s = at_s
        self.function = function
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class _Loop:
    """An event loop whose clock stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.wakes = 0
        self._soon: list[Callable[[], None]] = []
        self._timers: list[_Timer] = []

    def time(self) -> float:
        return self.now_s

    def is_closed(self) -> bool:
        return False

    def call_soon_threadsafe(self, function: Callable[[], None]) -> None:
        self.wakes += 1
        self._soon.append(function)

    def call_later(self, delay_s: float, function: Callable[[], None]) -> _Timer:
        timer = _Timer(self.now_s + delay_s, function)
        self._timers.append(timer)
        return timer

    def run(self, seconds: float = 0.0) -> None:
        """Run what is due, and then what becomes due in ``seconds``."""
        end_s = self.now_s + seconds
        while True:
            while self._soon:
                self._soon.pop(0)()
            due = [one for one in self._timers if one.at_s <= end_s and not one.is_cancelled]
            if not due:
                break
            timer = min(due, key=lambda one: one.at_s)
            self._timers.remove(timer)
            self.now_s = timer.at_s
            timer.function()
        self.now_s = end_s

    @property
    def waits(self) -> bool:
        return any(not one.is_cancelled for one in self._timers)


class _Rig:
    def __init__(self) -> None:
        self.loop = _Loop()
        self.delivered: list[tuple[float, str]] = []
        """When, in milliseconds, and the text."""
        loop: Any = self.loop
        self.outbox = Outbox(loop)
        self.outbox.deliver = self._deliver

    def _deliver(self, outputs: list[RequestOutput]) -> None:
        text = "".join(output.text for output in outputs if isinstance(output, Delta))
        self.delivered.append((round(1000 * (self.loop.now_s - 100)), text))

    def step(self, text: str, took_s: float = 0.0, *, urgent: bool = False) -> None:
        """Make a step that takes so long, and post its text."""
        self.loop.run(took_s)
        self.outbox.post([Delta(1, text, 1)], urgent=urgent)
        self.loop.run()


@pytest.fixture
def rig() -> _Rig:
    return _Rig()


def test_slow_steps_are_delivered_at_once(rig: _Rig) -> None:
    for text in "abcdef":
        rig.step(text, 0.006)
    assert rig.delivered == [(6, "a"), (12, "b"), (18, "c"), (24, "d"), (30, "e"), (36, "f")]
    assert not rig.loop.waits


def test_quick_steps_are_delivered_together(rig: _Rig) -> None:
    for text in "abcdefghijkl":
        rig.step(text, 0.0014)
    rig.loop.run(1)
    assert rig.delivered == [(1, "a"), (3, "b"), (13, "cdefghi"), (23, "jkl")]
    assert rig.loop.wakes == 2
    assert not rig.loop.waits, "an outbox at rest wakes nobody"


def test_no_step_waits_longer_than_it_may(rig: _Rig) -> None:
    made_ms = {}
    for place, took_ms in enumerate([0, 2, 1, 18, 2, 3, 1, 2, 2, 8, 9, 2, 1, 1, 60, 3]):
        text = chr(ord("a") + place)
        rig.loop.run(took_ms / 1000)
        made_ms[text] = round(1000 * (rig.loop.now_s - 100))
        rig.step(text)
    rig.loop.run(1)
    assert "".join(text for _, text in rig.delivered) == "".join(made_ms)
    waits_ms = [at_ms - made_ms[one] for at_ms, text in rig.delivered for one in text]
    assert min(waits_ms) == 0
    assert max(waits_ms) <= 1000 * COALESCE_S


def test_what_is_urgent_takes_along_what_waits(rig: _Rig) -> None:
    for text in "abc":
        rig.step(text, 0.001)
    assert rig.delivered[-1] == (2, "b")
    rig.step("d", 0.001, urgent=True)
    assert rig.delivered[-1] == (4, "cd")
    rig.step("e", 0.001)
    rig.loop.run(1)
    assert rig.delivered[-1] == (14, "e")


def test_a_call_comes_after_all_that_was_posted(rig: _Rig) -> None:
    for text in "abc":
        rig.step(text, 0.001)
    rig.outbox.call(lambda: rig.delivered.append((0, "call")))
    rig.loop.run()
    assert [text for _, text in rig.delivered] == ["a", "b", "c", "call"]


def test_after_a_pause_steps_are_delivered_at_once(rig: _Rig) -> None:
    for text in "abcd":
        rig.step(text, 0.001)
    rig.step("e", 0.1)
    assert rig.delivered[-1] == (104, "e")
