"""A whole lmx in a folder of its own: real supervisor, router and workers, started and ended
as a user would, with a check that nothing is left behind.

HOME, TMPDIR and the working directory are folders of the rig too, so that a file written
anywhere but below LMX_HOME is seen.
"""

import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import aiohttp
import certifi
import psutil
import yaml
from click.testing import CliRunner

from lmx.protocol.errors import OperationError
from lmx.protocol.host.cache_folder import cache_dir
from lmx.protocol.messages.control import Event, EventList, GetEvents
from lmx.protocol.messages.status import GetStatus, Status
from lmx.protocol.wire.codec import to_map
from lmx.supervisor.config.schema import TimingConfig
from lmx.supervisor.sockets.client import ControlClient
from lmx.supervisor.state.home import Home

ROOT = Path(__file__).resolve().parents[3]
"""Where processes find ``tests``, which has engines."""
QUICK = {
    "beat_interval_s": 0.2,
    "beat_timeout_s": 4.0,
    "stall_timeout_s": 4.0,
    "start_timeout_s": 90.0,
    "load_stall_timeout_s": 5.0,
    "term_grace_s": 3.0,
    "abort_grace_s": 1.0,
    "shutdown_grace_s": 3.0,
}
"""Short deadlines, because tests wait for them to pass; long enough that a healthy process keeps
them on a busy machine."""
PATIENT = {
    "beat_timeout_s": 10.0,
    "stall_timeout_s": 60.0,
    "load_stall_timeout_s": 120.0,
    "start_timeout_s": 60.0,
}
"""For real weights on a busy machine: patience, except for the beats of a stopped process."""
DEFAULTS = {name: getattr(TimingConfig(), name) for name in QUICK}
"""The deadlines that users have, where the question is whether they tell slow from hung."""


POLL_S, RARELY_S = 0.05, 0.2
"""A look at the status costs the supervisor and its asker some milliseconds of the processor, which
what is waited for needs: who has waited for a second looks less often, and after two rarely."""


ASKING = frozenset({
    "status", "ps", "events", "logs", "load", "unload", "pin", "unpin", "drain", "reset", "restart",
    "kill", "reload", "config", "key", "peers",
})  # fmt: skip
"""The commands that ask the supervisor and print. What the hub's client reads of the environment it
reads once in a process, so that commands with the hub have processes of their own."""
RUNS_A_LOOP = "config"
"""The one of them that can't be called where a loop runs."""


ANSWER_S = 90.0
"""How long a supervisor on a busy machine has to answer."""


def wait_until(condition: Callable[[], Any], what: str, deadline_s: float = 90.0) -> Any:
    """Return the first true value of ``condition``; fail after ``deadline_s``."""
    began_s = time.monotonic()
    while True:
        value = condition()
        if value:
            return value
        waited_s = time.monotonic() - began_s
        if waited_s > deadline_s:
            raise AssertionError(f"not within {deadline_s:g} s: {what}")
        time.sleep(min(RARELY_S, max(POLL_S, waited_s / 10)))


def unused_port() -> int:
    """Return a port for a process that binds it later. The system gives out none below 32768 by
    itself, so that no other test gets it meanwhile."""
    for port in random.SystemRandom().sample(range(20_000, 32_000), 100):
        with contextlib.suppress(OSError), socket.socket() as one:
            one.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


def scripted(model_id: str, **settings: Any) -> dict[str, Any]:
    """Return a model served by the scripted engine; ``options`` are the engine's."""
    options = settings.pop("options", {})
    return {
        "id": model_id,
        "source": "./stub",
        "engine": "tests.support.fakes.scripted_engine:create",
        "engine_options": options,
        "memory_bytes": "10 MiB",
        **settings,
    }


def _may_call(command: str) -> bool:
    """Return whether a command of ``lmx`` may run in this process and thread: it sets signal
    handlers."""
    if command not in ASKING or threading.current_thread() is not threading.main_thread():
        return False
    if command != RUNS_A_LOOP:
        return True
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return True
    return False


def called(
    arguments: Sequence[str], environment: Mapping[str, str], folder: Path
) -> subprocess.CompletedProcess[str]:
    """Run ``lmx`` in this process, with an environment and in a folder."""
    interrupt = signal.getsignal(signal.SIGINT)
    try:
        with contextlib.chdir(folder), mock.patch.dict(os.environ, environment, clear=True):
            from lmx.supervisor.cli.main import main

            done = CliRunner().invoke(main, arguments, prog_name="lmx")
    finally:
        signal.signal(signal.SIGINT, interrupt)
    if done.exc_info is not None and not isinstance(done.exception, SystemExit | None):
        raise done.exception
    return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)


class Rig:
    """One LMX_HOME and what runs in it."""

    def __init__(self, config: dict[str, Any], variables: Mapping[str, str] | None = None) -> None:
        """``variables`` are further ones of the environment; a ``PYTHONPATH`` goes before the
        rig's."""
        self._variables = dict(variables or {})
        self.root = Path(tempfile.mkdtemp(prefix="lmx-"))
        self.home = self.root / "home"
        self._elsewhere = [self.root / name for name in ("user", "tmp", "cwd")]
        for folder in (self.home, *self._elsewhere):
            folder.mkdir()
        self._certificate = self.root / "one.pem"
        first, end, _ = Path(certifi.where()).read_text().partition("-----END CERTIFICATE-----\n")
        self._certificate.write_text(first + end)
        stub = self.root / "stub"
        stub.mkdir()
        (stub / "config.json").write_text("{}")
        self.config_path = self.root / "lmx.yaml"
        self.configure(config)
        self.supervisor: subprocess.Popen[bytes] | None = None
        self.output = self.root / "up.out"

    def configure(self, config: dict[str, Any]) -> None:
        """Write the configuration; folders are given from the rig's root."""
        config = json.loads(json.dumps(config))
        config.setdefault("server", {}).setdefault("port", 0)
        # A process that begins by itself is for the tests that ask for it.
        config.setdefault("memory", {}).setdefault("spare_worker", False)
        config["timing"] = {**QUICK, **config.get("timing", {})}
        for model in config["models"]:
            if model["source"].startswith("./"):
                model["source"] = str(self.root / model["source"])
        self.config_path.write_text(yaml.safe_dump(config))

    @property
    def environment(self) -> dict[str, str]:
        """The environment of everything that runs here."""
        user, temporary, _ = self._elsewhere
        kept = {k: v for k, v in os.environ.items() if not k.startswith("LMX_")}
        before = self._variables.get("PYTHONPATH")
        return {
            **kept,
            **self._variables,
            "LMX_HOME": str(self.home),
            "HOME": str(user),
            "TMPDIR": str(temporary),
            # Beside what else is looked at when the rig ends: downloads go where they are put.
            "HF_HOME": str(self.home / "hub"),
            # Shared by all rigs, as by all homes of a user: compiled kernels above all.
            "LMX_CACHE_DIR": str(cache_dir()),
            "PYTHONPATH": os.pathsep.join([*([before] if before else []), str(ROOT)]),
            "PYTHONDONTWRITEBYTECODE": "1",
            # Nobody speaks TLS here, and each router would parse all certificates of the machine.
            "SSL_CERT_FILE": str(self._certificate),
        }

    def up(self, *, wait: bool = True) -> None:
        """Start a supervisor in the foreground and wait until it serves."""
        with self.output.open("ab") as output:
            self.supervisor = subprocess.Popen(
                [sys.executable, "-m", "lmx.supervisor", "up", "--config", str(self.config_path)],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                env=self.environment, cwd=self._elsewhere[2], start_new_session=True,
            )  # fmt: skip
        if wait:
            self.wait_serving()

    def wait_serving(self) -> None:
        """Wait until the supervisor answers and its router too."""

        def serving() -> bool:
            if self.supervisor is not None and self.supervisor.poll() is not None:
                raise AssertionError(f"the supervisor ended:\n{self.output.read_text()}")
            try:
                return bool(self.status()["router"]["memory_bytes"] > 0)
            except OperationError:
                return False

        wait_until(serving, "lmx serves", 90)

    def cli(self, *arguments: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        """Run ``lmx`` with arguments. A command that only asks the supervisor runs in this process,
        where nothing stands in the way: a process of its own costs a quarter of a second of the
        processor, most of it imports."""
        # Without a supervisor a command with keys has the home to itself until its process ends.
        alone = arguments[:1] == ("key",) and self.supervisor is None
        if arguments and _may_call(arguments[0]) and "-f" not in arguments and not alone:
            return called(arguments, self.environment, self._elsewhere[2])
        return subprocess.run(
            [sys.executable, "-m", "lmx.supervisor", *arguments],
            env=self.environment, cwd=self._elsewhere[2], stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=timeout_s, check=False,
        )  # fmt: skip

    def run(self, *arguments: str, timeout_s: float = 600) -> None:
        """Run ``lmx`` with arguments, which must succeed."""
        done = self.cli(*arguments, timeout_s=timeout_s)
        assert done.returncode == 0, f"lmx {' '.join(arguments)}: {done.stdout}{done.stderr}"

    def status(self) -> dict[str, Any]:
        """Return what ``status --json`` prints, without the CLI: a process for each look costs
        a second, and tests look all the time. Raises :class:`OperationError`."""
        found: Status = self.ask(GetStatus())
        printed: dict[str, Any] = json.loads(json.dumps(to_map(found.status)))
        return printed

    def worker(self, model: str) -> dict[str, Any]:
        """Return one model's line of the status."""
        line: dict[str, Any] = next(w for w in self.status()["workers"] if w["model"] == model)
        return line

    def wait_state(self, model: str, *states: str, deadline_s: float = 90.0) -> dict[str, Any]:
        """Wait until a model is in one of the states; returns its line."""

        def there() -> dict[str, Any] | None:
            line = self.worker(model)
            return line if line["state"] in states else None

        found: dict[str, Any] = wait_until(there, f"{model} is {' or '.join(states)}", deadline_s)
        return found

    def ask(self, question: Any) -> Any:
        """Put a question of :mod:`lmx.protocol.messages.control` to the supervisor; returns the
        reply. Raises :class:`OperationError` with what it says when it denies."""
        with ControlClient(Home(self.home), ANSWER_S) as client:
            return client.ask(question)

    def events(self, *names: str) -> list[Event]:
        """Return what happened of these names, oldest first."""
        listed: EventList = self.ask(GetEvents(0, 2000))
        return [event for event in listed.events if event.name in names]

    @property
    def url(self) -> str:
        """The base URL, as a client of the OpenAI SDK would be given it."""
        url: str = self.status()["router"]["url"]
        return url

    def log_events(self, name: str, event: str | None = None) -> list[dict[str, Any]]:
        """Return the events of one kind, or all, from a log file of this home."""
        path = self.home / "logs" / f"{name}.log"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        # The last line may be half written.
        events = [json.loads(line) for line in lines if line.startswith("{") and line[-1] == "\n"]
        return [found for found in events if event in (None, found["event"])]

    @contextmanager
    def held_load(self, model: str) -> Iterator[None]:
        """Within the block no load of a scripted model ends."""
        hold = self.root / "stub" / f"hold-{model}"
        hold.touch()
        try:
            yield
        finally:
            hold.unlink()

    def processes(self) -> list[psutil.Process]:
        """Return every living process of this home, whoever its parent is."""
        found = []
        for process in psutil.process_iter():
            try:
                if (
                    process.environ().get("LMX_HOME") == str(self.home)
                    and process.status() != psutil.STATUS_ZOMBIE
                ):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def lasting(self) -> list[psutil.Process]:
        """Return the processes but for those that come and go: what reads model files, and what
        sees to a silent supervisor."""
        passing = {"lmx.supervisor.memory.inspect_main", "rescue"}
        return [each for each in self.processes() if passing.isdisjoint(command_of(each))]

    def running(self, module: str) -> list[psutil.Process]:
        """Return the processes that run a module. One that ends meanwhile is not among them."""
        return [each for each in self.processes() if module in command_of(each)]

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        """End the supervisor with a signal and return its exit status."""
        assert self.supervisor is not None
        self.supervisor.send_signal(number)
        status = self.supervisor.wait(180)
        self.supervisor = None
        return status

    def close(self) -> None:
        """End what still runs, and fail if anything is left that should not be."""
        try:
            if self.supervisor is not None and self.supervisor.poll() is None:
                assert self.stop() == 0, self.output.read_text()
            # A reader of model files ends by itself when its supervisor is killed.
            wait_until(lambda: len(self.lasting()) == len(self.processes()), "readers are gone")
            left = [f"{p.pid} {' '.join(command_of(p))}" for p in self.processes()]
            assert left == [], f"processes are left: {left}"
            for folder in self._elsewhere:
                files = [str(path) for path in folder.rglob("*")]
                assert files == [], f"files outside LMX_HOME: {files}"
            sockets = list((self.home / "run").glob("w-*"))
            assert sockets == [], f"sockets are left: {sockets}"
        finally:
            for process in self.processes():
                process.kill()
            shutil.rmtree(self.root)


def command_of(process: psutil.Process) -> list[str]:
    """Return the command line of a process; none if it has ended."""
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


@contextmanager
def rig(
    config: dict[str, Any], variables: Mapping[str, str] | None = None, *, background: bool = False
) -> Iterator[Rig]:
    """Run an lmx with a configuration; on a failure, show what it logged. ``variables`` as of
    :class:`Rig`. A supervisor in the ``background`` is replaced when it dies."""
    made = Rig(config, variables)
    try:
        if background:
            made.run("start", "--config", str(made.config_path))
            made.wait_serving()
        else:
            made.up()
        yield made
    except BaseException:
        for path in sorted((made.home / "logs").glob("*.log")):
            print(f"--- {path.name}\n{path.read_text()[-4000:]}")
        raise
    finally:
        try:
            if background:
                stopped = made.cli("stop")
                # A test may have stopped it.
                assert stopped.returncode in (0, 3), stopped.stderr
        finally:
            made.close()


@contextmanager
def serving_too(lmx: Rig, *models: dict[str, Any]) -> Iterator[Rig]:
    """Have an lmx that several files share serve more models, for as long as the block lasts."""
    before = lmx.config_path.read_text()
    config = yaml.safe_load(before)
    lmx.config_path.write_text(yaml.safe_dump(config | {"models": [*config["models"], *models]}))
    try:
        _reload(lmx)
        yield lmx
    finally:
        lmx.config_path.write_text(before)
        _reload(lmx)


def _reload(lmx: Rig) -> None:
    done = lmx.cli("reload", timeout_s=120)
    assert done.returncode == 0, done.stderr


@asynccontextmanager
async def http(silence_s: float = 90.0) -> AsyncIterator[aiohttp.ClientSession]:
    """A client without a total time-out but with one between bytes."""
    timeout = aiohttp.ClientTimeout(total=None, sock_read=silence_s)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        yield session


def ask(model: str, content: Any, **settings: Any) -> dict[str, Any]:
    """Return a streaming request; ``content`` may be a scripted engine's directive."""
    text = content if isinstance(content, str) else json.dumps(content)
    return {
        "model": model,
        "stream": True,
        "messages": [{"role": "user", "content": text}],
        **settings,
    }


async def whole(
    session: aiohttp.ClientSession, url: str, model: str, content: Any, **settings: Any
) -> tuple[int, dict[str, Any]]:
    """Return status and answer, or error object, of a request that does not stream."""
    body = ask(model, content, **{**settings, "stream": False})
    async with session.post(f"{url}/chat/completions", json=body) as response:
        answer: dict[str, Any] = await response.json()
        if "error" in answer:
            return response.status, {**answer["error"], "headers": dict(response.headers)}
        return response.status, answer


class Stream:
    """A streamed answer, read in a task of its own: text, errors, and how it ended.

    ``broken``: the connection was lost, or closed before the answer's end. ``comments``: the
    lines that are no events, with the time at which they came.
    """

    def __init__(self, session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> None:
        self.status: int | None = None
        self.text = ""
        self.errors: list[dict[str, Any]] = []
        self.comments: list[tuple[float, str]] = []
        self.finish_reason: str | None = None
        self.done = False
        self.after_error = 0
        self.broken = False
        self._task = asyncio.ensure_future(self._run(session, f"{url}/chat/completions", body))

    async def _run(self, session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> None:
        try:
            await self._read(session, url, body)
        except aiohttp.ClientError:
            self.broken = True

    async def _read(self, session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> None:
        async with session.post(url, json=body) as response:
            self.status = response.status
            async for line in response.content:
                if line.startswith(b":"):
                    self.comments.append((time.monotonic(), line.decode().strip()))
                if not line.startswith(b"data: "):
                    continue
                self.after_error += len(self.errors)
                data = line[6:].strip()
                if data == b"[DONE]":
                    self.done = True
                    continue
                event = json.loads(data)
                if "error" in event:
                    self.errors.append(event["error"])
                    continue
                for choice in event["choices"]:
                    self.text += choice["delta"].get("content") or ""
                    self.finish_reason = choice["finish_reason"] or self.finish_reason

    async def has_text(self, length: int, deadline_s: float = 90.0) -> None:
        """Wait until at least so many characters have come."""
        end_s = time.monotonic() + deadline_s
        while len(self.text) < length:
            assert time.monotonic() < end_s, f"only {self.text!r} came"
            assert not self._task.done(), f"ended with {self.text!r}, {self.errors}"
            await asyncio.sleep(0.02)

    async def ended(self, deadline_s: float = 90.0) -> None:
        """Wait for the end of the connection."""
        await asyncio.wait_for(asyncio.shield(self._task), deadline_s)

    async def hang_up(self) -> None:
        """Leave, as a client does that closes its connection."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
