"""What ``doctor --bench`` tries of processes: their ends, their signals, their open files."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import psutil

from lmx.protocol.host.limits import open_files_limit
from lmx.protocol.host.stacks import STACKS
from lmx.supervisor.cli.doctor.lines import Line, Verdict
from lmx.supervisor.processes.exit_watch import ExitWatch

_LIMIT_S: Final = 20.0
_LOOK_S: Final = 0.02

_HANG: Final = """
import time
from lmx.protocol.host.stacks import write_stacks_on_signal
write_stacks_on_signal()
print("ready", flush=True)
while True:
    pass
"""

_EXEC: Final = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
os.kill(os.getpid(), signal.SIGTERM)
after = "import os, signal; print(os.getpid(), int(signal.SIGTERM in signal.sigpending()))"
os.execv(sys.executable, [sys.executable, "-P", "-c", after])
"""

_OPEN: Final = """
import os, sys
opened = 0
try:
    while opened < int(sys.argv[1]):
        os.dup(0)
        opened += 1
except OSError:
    pass
print(opened)
"""
_MOST_OPENED: Final = 200_000


def try_processes() -> list[Line]:
    """Return what was found."""
    return [check_exits(), check_stacks(), check_exec(), check_descriptors()]


def check_exits() -> Line:
    """See the ends of a child, of a process that is not a child, and of one that has ended
    already."""
    assumption = "the end of a process is seen at once"
    try:
        output = asyncio.run(_ends())
    except (OSError, TimeoutError, subprocess.SubprocessError, psutil.Error) as error:
        measured = f"it was not: {type(error).__name__}"
        fix = "lmx would not notice that a worker ended; please report it"
        return Line("exits", assumption, measured, Verdict.BAD, fix)
    measured = ", ".join(f"{name} after {took_s * 1000:.0f} ms" for name, took_s in output.items())
    return Line("exits", assumption, measured, Verdict.OK)


async def _ends() -> dict[str, float]:
    """Return how long each end took to be reported. Raises ``TimeoutError`` for one that was
    not."""
    watch = ExitWatch(asyncio.get_running_loop())
    output: dict[str, float] = {}

    async def ended(
        name: str, pid: int, child: subprocess.Popen[bytes] | None, end: Callable[[], None]
    ) -> None:
        seen: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        watch.watch(pid, child, seen.set_result)
        began_s = time.monotonic()
        end()
        await asyncio.wait_for(seen, _LIMIT_S)
        output[name] = time.monotonic() - began_s

    try:
        child = _sleeper("60")
        await ended("a child", child.pid, child, child.terminate)
        stranger = _stranger()
        await ended("a stranger", stranger, None, lambda: os.kill(stranger, signal.SIGTERM))
        zombie = _zombie()
        await ended("a zombie", zombie.pid, zombie, lambda: None)
    finally:
        watch.close()
    return output


def _stranger() -> int:
    """Start a process that is nobody's child here, as an adopted worker is; return its pid."""
    done = subprocess.run(
        ["/bin/sh", "-c", "/bin/sleep 60 >/dev/null 2>&1 & echo $!"],
        capture_output=True,
        text=True,
        check=True,
        timeout=_LIMIT_S,
    )
    return int(done.stdout)


def _sleeper(seconds: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(("/bin/sleep", seconds), start_new_session=True)


def _zombie() -> subprocess.Popen[bytes]:
    """Start a process, and return it when it has ended and nobody has asked for its status."""
    process, deadline_s = _sleeper("0"), time.monotonic() + _LIMIT_S
    while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() >= deadline_s:
            raise TimeoutError
        time.sleep(_LOOK_S)
    return process


def check_stacks() -> Line:
    """Have a process that hangs write its stacks, and end."""
    assumption = "a process that hangs writes its stacks and ends"
    with tempfile.TemporaryFile() as log:
        hung = subprocess.Popen(
            [sys.executable, "-P", "-c", _HANG], stdout=subprocess.PIPE, stderr=log
        )
        assert hung.stdout is not None
        try:
            hung.stdout.readline()
            began_s = time.monotonic()
            hung.send_signal(STACKS)
            while log.seek(0, os.SEEK_END) == 0 and hung.poll() is None:
                if time.monotonic() - began_s >= _LIMIT_S:
                    break
                time.sleep(_LOOK_S)
            written_s = time.monotonic() - began_s
            hung.terminate()
            with suppress(subprocess.TimeoutExpired):
                hung.wait(_LIMIT_S)
            ended_s = time.monotonic() - began_s
        finally:
            hung.kill()
            hung.wait()
            hung.stdout.close()
        log.seek(0)
        written = b"most recent call first" in log.read()
    fine = written and hung.returncode == -signal.SIGTERM
    return Line(
        "stacks",
        assumption,
        f"written after {written_s * 1000:.0f} ms, ended after {ended_s * 1000:.0f} ms"
        if fine
        else f"{'written' if written else 'not written'}, status {hung.returncode}",
        Verdict.OK if fine else Verdict.WARNING,
        "" if fine else "the reason of a hang will not be in the log; please report it",
    )


def check_exec() -> Line:
    """Replace a process's program while a SIGTERM waits, as an update of lmx does."""
    assumption = "another program in the same process gets the signal that waits"
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _EXEC], stdout=subprocess.PIPE, text=True
    )
    try:
        output, _ = process.communicate(timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
    fine = output.split() == [str(process.pid), "1"]
    return Line(
        "exec",
        assumption,
        "it does" if fine else f"it does not: {output.strip() or 'no answer'}",
        Verdict.OK if fine else Verdict.WARNING,
        "" if fine else "stop and start lmx instead of updating it while it runs; please report it",
    )


def check_descriptors() -> Line:
    """Open files until the system refuses."""
    limit = min(open_files_limit(), _MOST_OPENED)
    done = subprocess.run(
        [sys.executable, "-P", "-c", _OPEN, str(limit)],
        capture_output=True,
        text=True,
        check=False,
        timeout=_LIMIT_S,
    )
    opened = int(done.stdout) if done.stdout.strip().isdigit() else 0
    # Standard input, output and the like were open already.
    fine = opened >= limit - 16
    return Line(
        "descriptors",
        f"{limit} files can be opened",
        f"{opened} could",
        Verdict.OK if fine else Verdict.WARNING,
        "" if fine else "sudo launchctl limit maxfiles 65536, or ulimit -n 65536",
    )
