"""Nothing that lasts as long as a process ends in silence."""

import ast
import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lmx.protocol.host import lasting
from lmx.protocol.host.lasting import Pauses, begin, in_daemon_thread, keep_up, keep_up_in_thread
from lmx.protocol.host.python_source import python_tree
from lmx.protocol.messages.control import Event, EventList
from lmx.router.supervisor import event_feed
from lmx.router.supervisor.event_feed import EventFeed
from lmx.supervisor.processes import descendants
from lmx.supervisor.processes.descendants import Descendants
from lmx.supervisor.state.home import Home

ROOT = Path(__file__).resolve().parents[4]
DEADLINE_S = 90.0

OWNED = {
    "protocol/host/lasting.py begin": "the owner itself",
    "protocol/host/lasting.py in_daemon_thread": "who called it gets its end",
    "protocol/host/lasting.py keep_up_in_thread": "the owner itself",
    "router/inference/batches/runner.py _begin": "it logs its failure, and is done again",
    "router/inference/batches/runner.py _start": "its end is noted with its line",
    "router/inference/responses/background.py begin_answer": "its end is a job's end",
    "router/server/process.py start": "its end ends the process",
    "router/supervisor/model_queues.py acquire": "it logs its failure, and fails who waits",
    "router/tracing/tracer.py close": "what it sends is lost when the time is over",
    "router/workers/link.py __init__": "their failure is logged, and another link is made",
    "supervisor/fetch/main.py _stop": "it is the last resort of a process that ends",
    "supervisor/service/shutdown.py run": "each is awaited at its end, and its failure is logged",
    "worker/lifecycle.py run": "their failure ends the process",
    "worker/mlx/quantizing/main.py main": "it only ends the process",
    "worker/ranks/follower.py follow": "its end ends the process",
    "worker/ranks/link.py __init__": "its end closes the ranks' streams, which ends the group",
    "worker/ranks/link.py join": "its end closes the rank's stream, which ends the rank",
    "worker/ranks/leader.py __init__": "its failure counts as that of a follower",
    "worker/scheduling/thread.py __init__": "it reports its own end, which ends the process",
}
"""Who sees the end of the tasks and threads that lasting.py does not begin, and that the function
which begins them does not wait for."""


def _begun(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the function and the line of each task and thread that is begun in it, and that it does
    not wait for."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        inside = list(ast.walk(function))
        awaited = [one for each in inside if isinstance(each, ast.Await) for one in ast.walk(each)]
        names = {one.id for one in awaited if isinstance(one, ast.Name)}
        seen = set(awaited)
        for each in inside:
            if isinstance(each, ast.AsyncWith):
                items = [one for item in each.items for one in ast.walk(item.context_expr)]
                if any(isinstance(one, ast.Attribute) and one.attr == "TaskGroup" for one in items):
                    seen.update(ast.walk(each))
            if isinstance(each, ast.Assign) and any(
                isinstance(target, ast.Name) and target.id in names for target in each.targets
            ):
                seen.update(ast.walk(each.value))
        for each in inside:
            if (
                isinstance(each, ast.Call)
                and isinstance(each.func, ast.Attribute)
                and each.func.attr in ("create_task", "ensure_future", "Thread", "Timer")
                and each not in seen
            ):
                yield function.name, each.lineno


def test_each_task_and_thread_has_an_owner() -> None:
    found: dict[str, int] = {}
    for part in ("protocol", "router", "supervisor", "worker"):
        for path in sorted((ROOT / part).rglob("*.py")):
            for name, line in _begun(python_tree(path.read_text(encoding="utf-8"))):
                found[f"{path.relative_to(ROOT)} {name}"] = line
    unknown = {place: line for place, line in found.items() if place not in OWNED}
    assert not unknown, "begin it with lmx.protocol.host.lasting, or say here who sees its end"
    assert not OWNED.keys() - found.keys(), "these are no more"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lasting, "Pauses", lambda: Pauses(0.0))


def _failing(times: int, then: Callable[[], None]) -> Callable[[], None]:
    left = [times]

    def work() -> None:
        if left[0]:
            left[0] -= 1
            raise RuntimeError("a bug")
        then()

    return work


def test_pauses_grow_and_are_short_again_after_work_that_lasted() -> None:
    pauses = Pauses()
    assert [pauses.after(0.0) for _ in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert [pauses.after(100.0), pauses.after(1.0)] == [0.5, 1]


@pytest.mark.usefixtures("quick")
def test_a_task_that_fails_is_begun_again(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        done = asyncio.Event()
        step = _failing(3, done.set)

        async def work() -> None:
            step()

        await asyncio.wait_for(keep_up(work, "the work"), DEADLINE_S)
        assert done.is_set()

    asyncio.run(run())
    said = [record.getMessage() for record in caplog.records if "the work" in record.getMessage()]
    assert len(said) == 3


def test_the_error_of_a_task_that_nobody_waits_for_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work() -> None:
        raise RuntimeError("a bug")

    async def run() -> None:
        await asyncio.wait({begin(work(), "the work")})
        await asyncio.sleep(0)

    asyncio.run(run())
    assert [(one.levelno, one.getMessage()) for one in caplog.records] == [
        (logging.ERROR, "the work failed")
    ]


@pytest.mark.usefixtures("quick")
def test_a_thread_that_fails_is_begun_again(caplog: pytest.LogCaptureFixture) -> None:
    done = threading.Event()
    thread = keep_up_in_thread(_failing(2, done.set), "the work")
    thread.start()
    assert done.wait(DEADLINE_S)
    thread.join(DEADLINE_S)
    assert len([one for one in caplog.records if "the work failed" in one.getMessage()]) == 2


@pytest.mark.usefixtures("quick")
def test_router_listeners_keep_listening_after_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([0, None, 1])

    async def ask(*_args: Any) -> EventList:
        seq = next(answers)
        if seq is None:
            raise RuntimeError("a bug")
        events = tuple(Event(one, 0.0, "it.happened", None, "", {}) for one in range(1, seq + 1))
        return EventList("e1", seq, events)

    async def run() -> None:
        monkeypatch.setattr(event_feed, "ask", ask)
        monkeypatch.setattr(event_feed, "_POLL_S", 0.0)
        feed = EventFeed(SimpleNamespace())  # type: ignore[arg-type]
        async with feed.listen() as listener:
            assert [one.event.seq for one in await listener.next_batch(DEADLINE_S)] == [1]

    asyncio.run(run())


def test_supervisor_shows_what_it_could_not_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def end_marked(_home: Home, instance: str | None) -> list[int]:
        if instance is not None:
            raise RuntimeError("a bug")
        return []

    async def run() -> None:
        monkeypatch.setattr(descendants, "end_marked", end_marked)
        found = Descendants(Home(tmp_path))
        found.end("0a", "worker of a")
        await found.end_all()

    asyncio.run(run())
    assert "the end of what a worker of a left failed" in caplog.text


def test_a_thread_that_lasts_keeps_no_loop_from_ending() -> None:
    class OddError(Exception):
        pass

    release, left = threading.Event(), threading.Event()

    def fails() -> None:
        raise OddError

    def lasts() -> None:
        assert release.wait(DEADLINE_S)
        left.set()

    async def main() -> None:
        assert await in_daemon_thread(divmod, 7, 2) == (3, 1)
        with pytest.raises(OddError):
            await in_daemon_thread(fails)
        lasting = asyncio.ensure_future(in_daemon_thread(lasts))
        await asyncio.sleep(0)
        await asyncio.get_running_loop().shutdown_default_executor()
        lasting.cancel()

    asyncio.run(main())
    assert not left.is_set()
    release.set()
    assert left.wait(DEADLINE_S)
