"""The process that renders chat templates: its limits, and its end."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import cast

import psutil
import pytest

from lmx.protocol.errors import ErrorCode, UnavailableError
from lmx.worker.isolation.child import ChildEndedError, ChildTimeoutError, Exchange
from lmx.worker.templates.renderer import (
    Renderer,
    RenderingEndedError,
    TemplateRefusedError,
    TextTooLongError,
)
from tests.support.faults.killed_children import kill_at_work
from tests.support.rigs.rig import wait_until

AMPLE_BYTES = 1 << 30
DEADLINE_S = 60.0
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
LARGE = "{{ 'x' * 4000000000 }}"
GROWING = (
    "{% set n = namespace(s='x' * 1000000) %}"
    "{% for a in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}"
)


@pytest.fixture
def renderer() -> Iterator[Renderer]:
    made = Renderer(DEADLINE_S)
    yield made
    made.close()


def test_what_loops_is_ended_and_the_next_is_rendered(renderer: Renderer) -> None:
    assert renderer.render("{{ a }}", {"a": 1}, AMPLE_BYTES) == "1"
    first = renderer.pid
    with closing(Renderer(0.5)) as impatient:
        with pytest.raises(RenderingEndedError, match=r"after 0\.5 s"):
            impatient.render(ENDLESS, {}, AMPLE_BYTES)
        assert impatient.pid is None
    assert renderer.render("{{ a }}", {"a": 2}, AMPLE_BYTES) == "2"
    assert renderer.pid == first


def test_an_alarm_that_comes_first_says_that_it_took_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The process ends itself where the worker has no turn in time."""
    monkeypatch.setattr("lmx.worker.templates.renderer._ALARM_GRACE_S", 0.5 - 2 * DEADLINE_S)
    with (
        closing(Renderer(DEADLINE_S)) as held_up,
        pytest.raises(RenderingEndedError, match="had not come to an end"),
    ):
        held_up.render(ENDLESS, {}, AMPLE_BYTES)


@pytest.mark.parametrize("template", [LARGE, GROWING])
def test_what_eats_memory_is_ended(renderer: Renderer, template: str) -> None:
    renderer.render("x", {}, AMPLE_BYTES)
    pid = renderer.pid
    with pytest.raises(RenderingEndedError, match="1024 MiB of memory"):
        renderer.render(template, {}, AMPLE_BYTES)
    assert renderer.render("x", {}, AMPLE_BYTES) == "x"
    assert renderer.pid != pid


def test_the_worker_looks_after_the_memory_where_the_system_does_not() -> None:
    """On a Mac no limit holds: then the growth is seen from here."""
    with closing(Renderer(DEADLINE_S, 4 << 30)) as small:
        small.render("x", {}, AMPLE_BYTES)
        # The process keeps the limit that it was started with.
        small._max_memory_bytes = 60 << 20
        with pytest.raises(RenderingEndedError, match="60 MiB of memory"):
            small.render(GROWING, {}, AMPLE_BYTES)


def test_too_much_text_is_counted_and_not_sent(renderer: Renderer) -> None:
    with pytest.raises(TextTooLongError) as caught:
        renderer.render("{{ 'é' * 1000000 }}", {}, 1_999_999)
    assert caught.value.text_bytes == 2_000_000
    assert len(renderer.render("{{ 'é' * 1000000 }}", {}, 2_000_000)) == 1_000_000


def test_what_a_template_raises_is_reported_in_its_words(renderer: Renderer) -> None:
    with pytest.raises(TemplateRefusedError, match=r"^roles must alternate$"):
        renderer.render("{{ raise_exception('roles must alternate') }}", {}, AMPLE_BYTES)
    with pytest.raises(TemplateRefusedError) as caught:
        renderer.render("{{ raise_exception('x' * 100000) }}", {}, AMPLE_BYTES)
    assert len(str(caught.value)) == 2000
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(TemplateRefusedError, match="nested"):
        renderer.render("x", {"deep": deep}, AMPLE_BYTES)
    pid = renderer.pid
    assert renderer.render("x", {}, AMPLE_BYTES) == "x" and renderer.pid == pid


def test_a_whole_context_goes_through(renderer: Renderer) -> None:
    text = "wörd " * 200_000
    assert renderer.render("{{ text }}!", {"text": text}, AMPLE_BYTES) == text + "!"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT])
def test_one_that_died_is_replaced(renderer: Renderer, number: signal.Signals) -> None:
    renderer.render("x", {}, AMPLE_BYTES)
    pid = renderer.pid
    assert pid is not None
    os.kill(pid, number)
    psutil.Process(pid).wait(DEADLINE_S) if psutil.pid_exists(pid) else None
    assert renderer.render("x", {}, AMPLE_BYTES) == "x"
    assert renderer.pid != pid


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_the_request_of_one_that_dies_at_work_is_rendered_by_another(
    renderer: Renderer, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """Whoever killed it: the request had no part in that."""
    killed = kill_at_work(monkeypatch, number, times=1)
    assert renderer.render("{{ a }}", {"a": 1}, AMPLE_BYTES) == "1"
    assert len(killed) == 1 and renderer.pid not in killed


def test_the_second_process_has_the_rest_of_the_time(
    renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_at_work(monkeypatch, signal.SIGKILL, times=1)
    send, spent_s = Exchange.send, list[float]()

    def sending(exchange: Exchange, data: object) -> None:
        spent_s.append(exchange.spent_s)
        if len(spent_s) == 1:  # It has worked for so long when it is killed.
            exchange._began_s -= DEADLINE_S
        send(exchange, data)

    monkeypatch.setattr(Exchange, "send", sending)
    with pytest.raises(RenderingEndedError, match="after 60 s"):
        renderer.render(ENDLESS, {}, AMPLE_BYTES)
    assert spent_s[0] < DEADLINE_S <= spent_s[1]


def test_a_process_that_stands_still_in_its_end_is_replaced_too(
    renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its socket is closed, and what has ended it is known only later."""
    killed: list[int] = []
    send = Exchange.send

    def sending(exchange: Exchange, data: object) -> None:
        if not killed:
            killed.append(exchange._pid)
            threading.Timer(1.0, os.kill, (exchange._pid, signal.SIGKILL)).start()
            raise ChildEndedError
        send(exchange, data)

    monkeypatch.setattr(Exchange, "send", sending)
    assert renderer.render("{{ a }}", {"a": 1}, AMPLE_BYTES) == "1"
    assert killed and renderer.pid not in killed


class Dripping:
    """A socket on which there is always another byte."""

    def __init__(self) -> None:
        self.until_s = time.monotonic() + DEADLINE_S

    def settimeout(self, _: float) -> None: ...

    def recv_into(self, rest: memoryview) -> int:
        assert time.monotonic() < self.until_s, "it has been read for ever"
        return 1

    def send(self, data: memoryview) -> int:
        return self.recv_into(data)


def test_a_process_that_sends_byte_after_byte_has_the_same_time() -> None:
    for transfer in (Exchange.read_into, Exchange.send):
        exchange = Exchange(0.1, AMPLE_BYTES << 10)
        exchange.connect(cast(socket.socket, Dripping()), os.getpid())
        with pytest.raises(ChildTimeoutError):
            transfer(exchange, memoryview(bytearray(1 << 30)))


def test_a_request_whose_processes_break_is_refused_and_no_other(
    renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = kill_at_work(monkeypatch, signal.SIGSEGV, times=2)
    with pytest.raises(RenderingEndedError, match="broke the process"):
        renderer.render("x", {}, AMPLE_BYTES)
    assert len(killed) == 2
    assert renderer.render("x", {}, AMPLE_BYTES) == "x"


def test_a_request_whose_processes_are_killed_may_come_again(
    renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the system, which is out of memory: no template sends such a signal."""
    kill_at_work(monkeypatch, signal.SIGKILL, times=2)
    with pytest.raises(UnavailableError) as caught:
        renderer.render("x", {}, AMPLE_BYTES)
    assert caught.value.code is ErrorCode.INSUFFICIENT_MEMORY and caught.value.retry_after_s
    assert renderer.render("x", {}, AMPLE_BYTES) == "x"


def test_another_thread_can_end_it(renderer: Renderer) -> None:
    renderer.render("x", {}, AMPLE_BYTES)
    threading.Timer(0.2, renderer.kill).start()
    with pytest.raises(RenderingEndedError):
        renderer.render(ENDLESS, {}, AMPLE_BYTES)


def test_one_that_is_stopped_from_outside_is_woken(renderer: Renderer) -> None:
    """It reads nothing: also the sending of a long text waits for it."""
    renderer.render("x", {}, AMPLE_BYTES)
    pid = renderer.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    text = "x" * 10_000_000
    assert renderer.render("{{ text }}", {"text": text}, AMPLE_BYTES) == text
    assert renderer.pid == pid


PARENT = """
import sys
from lmx.worker.templates import renderer as module
from lmx.worker.templates.renderer import Renderer
# The alarm comes in two seconds, and this program would end the process in a minute only.
module._ALARM_GRACE_S = 2.0 - module.MAX_SLOWDOWN * 60.0
renderer = Renderer(60.0)
renderer.render("x", {}, 100)
print(renderer.pid, flush=True)
renderer.render(sys.argv[1], {}, 100)
"""


@pytest.mark.parametrize("template", ["{{ 1 }}", ENDLESS])
def test_it_ends_with_its_worker(template: str) -> None:
    """Also while it renders without end, and nobody is left to stop it."""
    code = PARENT + ("import time; time.sleep(60)" if template != ENDLESS else "")
    with subprocess.Popen(
        [sys.executable, "-c", code, template], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        if template == ENDLESS:
            time.sleep(0.3)  # It is to be at it; a moment less makes the other case of it.
        parent.kill()
    wait_until(lambda: not psutil.pid_exists(pid), "its end", DEADLINE_S)


def test_it_imports_little(renderer: Renderer) -> None:
    """It stands beside every model: 20 MiB and no more."""
    renderer.render("x", {}, AMPLE_BYTES)
    assert renderer.pid is not None
    assert psutil.Process(renderer.pid).memory_info().rss < 48 << 20


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_a_reply_that_was_not_read_answers_nobody_else(
    renderer: Renderer, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def broken(*_: object) -> None:
        raise error

    renderer.start()
    with monkeypatch.context() as patch:
        patch.setattr(Exchange, "read", broken)
        with pytest.raises(error):
            renderer.render("first", {}, AMPLE_BYTES)
    assert renderer.render("second", {}, AMPLE_BYTES) == "second"
