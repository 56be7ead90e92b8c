"""Tasks and threads that nobody waits for. Each has an owner here: what fails is logged, and what
is to last as long as the process is begun again.

Work whose end must end the process, or that is waited for by who began it, does not belong here.
"""

import asyncio
import contextvars
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

_FIRST_PAUSE_S: Final = 0.5
_MOST_PAUSE_S: Final = 30.0
_WELL_S: Final = 60.0
"""After this long without a failure the next pause is the first one again."""

log = logging.getLogger(__name__)

_T = TypeVar("_T")


class Pauses:
    """How long to wait before work that has failed is begun again. Pure."""

    def __init__(self, first_s: float = _FIRST_PAUSE_S) -> None:
        self._first_s = self._next_s = first_s

    def after(self, lasted_s: float) -> float:
        """Return the pause after work that has failed and lasted this long: each failure soon after
        another one doubles it."""
        if lasted_s >= _WELL_S:
            self._next_s = self._first_s
        pause_s, self._next_s = self._next_s, min(2 * self._next_s, _MOST_PAUSE_S)
        return pause_s


def begin(work: Coroutine[Any, Any, _T], name: str) -> asyncio.Task[_T]:
    """Begin work as a task. If it fails, that is logged, even if nobody looks at the task. The
    caller keeps the task as long as it is to run."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    task.add_done_callback(_ended)
    return task


def keep_up(work: Callable[[], Coroutine[Any, Any, None]], name: str) -> asyncio.Task[None]:
    """Run ``work`` as a task until it returns or is cancelled. Each failure is logged, and ``work``
    is begun again after a pause."""
    return begin(_kept_up(work, name), name)


def keep_up_in_thread(work: Callable[[], None], name: str) -> threading.Thread:
    """Do what :func:`keep_up` does, in a thread that ends with the process. The thread is not
    started yet."""
    return threading.Thread(target=_kept_up_here, args=(work, name), name=name, daemon=True)


async def in_daemon_thread(function: Callable[..., _T], *arguments: Any) -> _T:
    """Return what ``function`` returns, or raise what it raises, from a thread of its own that does
    not keep the program from ending. :func:`asyncio.to_thread` is for what takes moments: the loop
    waits for its threads at its end, so a machine that does not answer would keep it."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[_T] = loop.create_future()
    context = contextvars.copy_context()

    def settle(put: Callable[[Any], None], what: Any) -> None:
        # The caller may have been cancelled.
        if not ended.done():
            put(what)

    def run() -> None:
        found: tuple[Callable[[Any], None], Any]
        try:
            found = ended.set_result, context.run(function, *arguments)
        except Exception as error:
            found = ended.set_exception, error
        try:
            loop.call_soon_threadsafe(settle, *found)
        except RuntimeError:
            log.debug("nobody waits for %s any more: the loop is closed", function)

    threading.Thread(target=run, name=function.__name__, daemon=True).start()
    return await ended


async def _kept_up(work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
    pauses = Pauses()
    while True:
        began_s = time.monotonic()
        try:
            return await work()
        except Exception:
            pause_s = pauses.after(time.monotonic() - began_s)
            _report(name, pause_s)
        await asyncio.sleep(pause_s)


def _kept_up_here(work: Callable[[], None], name: str) -> None:
    pauses = Pauses()
    while True:
        began_s = time.monotonic()
        try:
            return work()
        # A library may end the thread that it is called in (SystemExit), which would be silent.
        except BaseException:
            pause_s = pauses.after(time.monotonic() - began_s)
            _report(name, pause_s)
        time.sleep(pause_s)


def _report(name: str, pause_s: float) -> None:
    log.exception("%s failed, and is begun again in %g s", name, pause_s)


def _ended(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("%s failed", task.get_name(), exc_info=error)
