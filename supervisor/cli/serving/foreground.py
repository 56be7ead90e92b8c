"""``lmx serve``: runs the service in this process, and shows on the terminal what happens.

:func:`advice` says what would make this machine serve better, for the person who starts lmx.
"""

import asyncio
import contextlib
import ctypes.util
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from io import TextIOWrapper
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Final

from lmx.protocol.host.lasting import begin
from lmx.protocol.host.limits import raise_file_limit, report_shortage_rarely
from lmx.protocol.host.log_files import append_to
from lmx.protocol.host.log_limit import LogLimit, keep_forever, keep_to
from lmx.protocol.host.logs import LogFile, configure_logs
from lmx.protocol.host.quarantine_file import clear_for_file
from lmx.protocol.host.stacks import write_stacks_on_signal
from lmx.protocol.states import ModelState
from lmx.supervisor.cli.command import config_path
from lmx.supervisor.cli.views.words import SETTLED
from lmx.supervisor.config.load import config_notices
from lmx.supervisor.config.schema import LogConfig
from lmx.supervisor.processes.handover import Handover, Invocation
from lmx.supervisor.service.service import Service
from lmx.supervisor.state.home import Home


def advice() -> str | None:
    """Return a line of advice, or None. It starts processes to look for libraries, which takes
    tenths of a second, so that the event loop must not call it."""
    if sys.platform == "linux" and ctypes.util.find_library("openblas") is None:
        return (
            "tip: prompts are read several times faster with OpenBLAS "
            "(Debian: apt-get install libopenblas0-pthread, then restart the models)"
        )
    return None


_POLL_S: Final = 0.1
_SEEN_S: Final = 0.01
"""How long the event loop needs to see a signal that came just before."""

_PAUSED: Final = frozenset({ModelState.BACKOFF, ModelState.QUEUED})
"""States in which a load waits for something else. They often last for a moment only."""

_PAUSE_S: Final = 3.0
"""How long loads may wait before lmx says that it serves."""

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_foreground(
    invocation: Invocation, home: Home, version: str, more: Sequence[str] = ()
) -> None:
    """Run until SIGINT or SIGTERM. ``more`` is printed when lmx serves, with the address of the
    console in the place of ``{page}``. Raises :class:`OperationError` when it can't start, or when
    the configuration is not valid."""
    config = invocation.read_config()
    prepared = home.prepare()
    write_stacks_on_signal()
    raise_file_limit()
    aside = clear_for_file(home.supervisor_log)
    logs = _Logs(home, config.logs, detached=invocation.detached)
    service = Service(config, home, version, invocation, logs.follow)
    if aside is not None:
        service.notify(f"{home.supervisor_log} was no file: it was set aside as {aside.name}")
    for notice in (*prepared, *config_notices(config_path(invocation.config), os.environ)):
        service.notify(notice)
    handover = asyncio.run(_serve(service, more, narrate=not invocation.detached))
    if handover is not None:
        invocation.replace_program(handover)
    if not invocation.detached:
        _print_line("stopped")
    try:
        sys.stdout.flush()
    except OSError:
        # Python would try once more at the exit, and fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), sys.stdout.fileno())


def _print_line(text: str) -> None:
    """Print a line for the person at the terminal. That it can't be printed, as on a full disk, is
    no failure of lmx."""
    from lmx.supervisor.cli.views.progress import make_line_console

    with contextlib.suppress(OSError):
        make_line_console().print(text)


class _PrivateLog(WatchedFileHandler):
    """Only its owner can read the file."""

    def _open(self) -> TextIOWrapper:
        return open(append_to(Path(self.baseFilename)), "a", encoding="utf-8")  # noqa: PTH123


class _Logs:
    """The supervisor's own log: only in its file (detached), or on the terminal with a copy in the
    file. It also keeps all log files to their limit, because a process that hangs, or was forked,
    does not do that itself."""

    def __init__(self, home: Home, config: LogConfig, *, detached: bool) -> None:
        self._folder = home.logs
        self._limit = LogLimit(int(config.max_bytes), config.keep)
        self._copy: WatchedFileHandler | None = None
        if detached:
            LogFile(home.supervisor_log, self._limit.max_bytes, self._limit.keep).attach()
        else:
            self._copy = _PrivateLog(home.supervisor_log)
        self.follow(config)
        keep_forever(self._keep_once, "log limits")

    def follow(self, config: LogConfig) -> None:
        """Keep to a configuration from here on."""
        self._limit.max_bytes, self._limit.keep = int(config.max_bytes), config.keep
        configure_logs("supervisor", config.level, copy_to=self._copy, changeable=True)

    def _keep_once(self) -> bool:
        """Keep each log file to its limit, and return that it is to be done again soon: any process
        may begin to write. A failure with one file does not stop the others. Raises
        the first ``OSError``."""
        failed: OSError | None = None
        try:
            paths = [path for path in self._folder.iterdir() if path.name.endswith(".log")]
        except FileNotFoundError:
            return True
        for path in paths:
            try:
                keep_to(path, self._limit)
            except OSError as error:
                failed = failed or error
        if failed is not None:
            raise failed
        return True


async def _serve(service: Service, more: Sequence[str], *, narrate: bool) -> Handover | None:
    loop = asyncio.get_running_loop()
    report_shortage_rarely(loop)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _stop, service, number, narrate)
    if sys.stdin is not None and sys.stdin.isatty():
        # The terminal was closed. Nothing may be left running behind it.
        loop.add_signal_handler(signal.SIGHUP, _stop, service, signal.SIGHUP, True)
    else:
        loop.add_signal_handler(signal.SIGHUP, service.reload, "SIGHUP")
    # The program that was here before may have left them blocked.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    side = begin(_narrate(service, more), "the account of the loads") if narrate else None
    try:
        handover = await service.run()
    finally:
        if side is not None:
            side.cancel()
            await asyncio.wait({side})
    if handover is not None:
        await _keep_signals(service)
    return handover


async def _keep_signals(service: Service) -> None:
    """Block signals until the next program runs, because without a handler they would end this
    process. A signal that came too late for this program is sent to the next one."""
    # Blocked in this thread alone: another one would take them.
    await asyncio.get_running_loop().shutdown_default_executor()
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    await asyncio.sleep(_SEEN_S)
    if service.stop_asked:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


def _stop(service: Service, number: signal.Signals, announce: bool) -> None:
    again = service.stop_asked
    service.stop(number.name)
    if announce:
        _print_line(
            "\nstopping at once" if again else f"\nstopping ({number.name}); again to stop at once"
        )


async def _narrate(service: Service, more: Sequence[str]) -> None:
    """Show the loads until every model has settled, then how to talk to lmx."""
    # Nobody sees it of a supervisor in the background.
    from lmx.supervisor.cli.views.progress import LoadProgress, make_line_console, print_welcome

    console = make_line_console()
    paused_since_s: float | None = None
    with LoadProgress(console) as progress:
        while True:
            await asyncio.sleep(_POLL_S)
            if service.stop_asked:
                return
            if not service.serving:
                continue
            now_s = time.monotonic()
            status = service.status(now_s)
            for model in status.workers:
                progress.show(model)
            states = {model.state for model in status.workers}
            if states <= SETTLED:
                break
            if not states <= SETTLED | _PAUSED:
                paused_since_s = None
            elif paused_since_s is None:
                paused_since_s = now_s
            elif now_s - paused_since_s >= _PAUSE_S:
                break
    print_welcome(console, status)
    if status.router.url is not None:
        for line in more:
            page = status.router.url.removesuffix("v1")
            console.print(line.replace("{page}", page), markup=False)
    tip = await asyncio.to_thread(advice)
    if tip is not None:
        console.print(tip, markup=False)
