"""What is measured of each server: a function for each row of the page.

A row returns figures of which less is better, by their names. Traffic is that of `lmx bench`.
"""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

import aiohttp
import psutil

from lmx.supervisor.cli.bench.figures import Run, Sample, figures_of
from lmx.supervisor.cli.bench.rounds import run_once
from lmx.supervisor.cli.bench.scenarios import Client, Phase, text_of
from lmx.supervisor.cli.bench.traffic import Answer, Request, Target, ask
from lmx.supervisor.sockets.http_client import Remote
from tests.bench.peers.servers import Models, Peer, Started

_POLL_S: Final = 0.1
_ONE: Final = Client(prompt_tokens=20, answer_tokens=1)
_SERVED_AGAIN_S: Final = 60.0
_ASKED_AGAIN_S: Final = 5.0


class NotPossibleError(Exception):
    """A server can't do what a row is about; the message says why."""


@dataclass
class Server:
    """A server under measurement."""

    peer: Peer
    running: Started
    http: aiohttp.ClientSession
    models: Models
    long_tokens: int
    seed: str
    limit_s: float
    """The deadline of one request."""
    started_s: float = 0.0
    started_cpu_s: float = 0.0
    tokens_per_word: float = field(default=1.1)
    has_usage: bool = True

    def target(self, model: str | None = None) -> Target:
        """Return the first model, or another one, to be asked."""
        name = model or next(iter(self.models))
        found = Target(self.peer.name, Remote.parse(self.running.url, None),
                       self.peer.named(name, self.models[name]))  # fmt: skip
        found.tokens_per_word, found.has_usage = self.tokens_per_word, self.has_usage
        return found

    async def phase(self, *clients: Client, name: str = "row") -> Run:
        """Have clients send their requests at once. Raises :class:`NotPossibleError` if one of
        them fails."""
        phase = Phase("peers", name, clients, seconds=3600)
        runs: list[Run] = []
        await run_once(self.http, self.target(), phase, f"{self.seed} {name}", self.limit_s,
                       self.running.processes, runs)  # fmt: skip
        failed = [sample.error for sample in runs[0].samples if sample.error]
        if failed:
            raise NotPossibleError(f"{len(failed)} of {len(runs[0].samples)} requests: {failed[0]}")
        return runs[0]

    async def ask(
        self, tokens: int, answer_tokens: int, seed: str, *, model: str | None = None,
        limit_s: float | None = None,
    ) -> Answer:  # fmt: skip
        """Send one request."""
        target = self.target(model)
        said = text_of(f"{self.seed} {seed}", tokens, target.tokens_per_word)
        request = Request([{"role": "user", "content": said}], answer_tokens)
        limit_s = self.limit_s if limit_s is None else limit_s
        return await ask(self.http, target, request, _ONE, time.monotonic(), limit_s)


async def wait_for_first_answer(server: Server, deadline_s: float) -> None:
    """Ask until there is an answer, and note how long it took since the process was started. Raises
    :class:`NotPossibleError` if there is none in time."""
    began_s = psutil.Process(server.running.process.pid).create_time()
    error = ""
    while time.time() - began_s < deadline_s:
        answer = await server.ask(20, 1, f"start {time.time()}", limit_s=deadline_s)
        if not answer.sample.error:
            server.started_s = time.time() - began_s
            server.started_cpu_s = server.running.processes.cpu_s()
            return
        error = answer.sample.error
        if server.running.process.poll() is not None:
            break
        await asyncio.sleep(_POLL_S)
    lines = server.running.log.read_text(errors="replace").strip().splitlines() or [""]
    raise NotPossibleError(f"it did not start ({error}): {lines[-1][:160]}")


async def start(server: Server) -> dict[str, float]:
    """From the first process to the first answer."""
    return {"start, s": server.started_s, "start, processor, s": server.started_cpu_s}


async def idle(server: Server) -> dict[str, float]:
    """Nobody asks for ten seconds."""
    processes = server.running.processes
    await asyncio.sleep(2)
    before_s = processes.cpu_s()
    await asyncio.sleep(10)
    used_s = processes.cpu_s() - before_s
    # The kernel counts in hundredths of a second: less than one of them is none.
    return {
        "idle, processor, ms/s": max(used_s, 0.005) * 100,
        "memory, idle, MiB": processes.memory_bytes() / 2**20,
    }


def _throughput(clients: int) -> Callable[[Server], Awaitable[dict[str, float]]]:
    async def measured(server: Server) -> dict[str, float]:
        """Clients that decode at once."""
        await server.phase(*[Client(100, 8)] * clients, name=f"warm-up {clients}")
        run = await server.phase(*[Client(100, 128)] * clients, name=f"{clients} clients")
        (figures,) = figures_of([run])
        if figures.tokens_per_s is None or figures.cpu_ms_per_token is None:
            raise NotPossibleError("no token came")
        what = f"{clients} client{'s' if clients > 1 else ''}"
        found = {
            f"{what}, ms a token": 1000 / figures.tokens_per_s.median,
            f"{what}, processor, ms a token": figures.cpu_ms_per_token.median,
        }
        if clients >= 32:
            found[f"memory after {what}, MiB"] = (figures.memory_bytes or 0) / 2**20
        return found

    return measured


async def prompt(server: Server) -> dict[str, float]:
    """A prompt of 2000 tokens alone, to the first token."""
    run = await server.phase(Client(2000, 1), name="prompt")
    return {
        "prompt of 2000 tokens, first token, s": _first_s(run.samples[0]),
        "prompt of 2000 tokens, processor, s": run.cpu_s or 0.0,
    }


async def _agent(server: Server, name: str, *, marker: bool) -> dict[str, float]:
    """A conversation of 40 turns that begins with 1000 tokens."""
    agent = Client(1000, 4, "later", "first", grows_tokens=40, marker=marker, most_requests=40)
    run = await server.phase(agent, name=name)
    later = [_first_s(sample) for sample in run.samples if sample.kind == "later"]
    return {
        f"{name}, later turns' first token, s": statistics.median(later),
        f"{name}, processor, s": run.cpu_s or 0.0,
    }


async def agent(server: Server) -> dict[str, float]:
    """Its system prompt stays."""
    return await _agent(server, "agent of 40 turns", marker=False)


async def agent_with_marker(server: Server) -> dict[str, float]:
    """Its system prompt ends with another number in each turn."""
    return await _agent(server, "agent, changing system prompt", marker=True)


async def stall(server: Server) -> dict[str, float]:
    """A stream decodes while a long prompt arrives."""
    stream = asyncio.create_task(server.ask(50, 3000, "stream"))
    await asyncio.sleep(0.5)
    long = asyncio.create_task(server.ask(server.long_tokens, 1, "during a stream"))
    began_s = time.monotonic()
    live = await stream
    long_s = time.monotonic() - began_s
    _refuse((await long).sample, live.sample)
    if long_s < 1 or not live.sample.gaps_s:
        raise NotPossibleError("its stream was over, or came as one piece")
    return {"longest wait of a stream during a long prompt, s": max(live.sample.gaps_s)}


async def behind(server: Server) -> dict[str, float]:
    """A short request that comes while a long prompt is read."""
    long = asyncio.create_task(server.ask(server.long_tokens, 1, "before a short one"))
    await asyncio.sleep(0.5)
    short = await server.ask(40, 4, "short")
    whole = await long
    _refuse(short.sample, whole.sample)
    return {
        "short request behind a long prompt, first token, s": _first_s(short.sample),
        "the long prompt, first token, s": _first_s(whole.sample),
    }


async def two_long(server: Server) -> dict[str, float]:
    """Two long prompts at once."""
    run = await server.phase(*[Client(server.long_tokens, 1)] * 2, name="two long")
    return {
        "two long prompts at once, both answered, s": max(one.ended_s for one in run.samples),
        "two long prompts at once, processor, s": run.cpu_s or 0.0,
    }


async def cancelled(server: Server) -> dict[str, float]:
    """Processor time that is spent on a long prompt after its client has left."""
    leaves = replace(_ONE, prompt_tokens=server.long_tokens, hangs_up_after=0)
    await server.phase(leaves, name="leaves")
    processes = server.running.processes
    before_s = processes.cpu_s()
    await asyncio.sleep(10)
    used_s = processes.cpu_s() - before_s
    return {"a client leaves in a long prompt, processor in 10 s after that, s": max(used_s, 0.005)}


async def swaps(server: Server) -> dict[str, float]:
    """Two models are asked in turns, A, B, A, B: 20 loads and unloads."""
    if len(server.models) < 2:
        raise NotPossibleError("it serves one model for its life, as it is started here")
    names = list(server.models)
    times_s, memory = [], []
    for number in range(20):
        answer = await server.ask(20, 1, f"swap {number}", model=names[number % 2])
        _refuse(answer.sample)
        times_s.append(_first_s(answer.sample))
        memory.append(server.running.processes.memory_bytes() / 2**20)
    return {
        "swap A, B, A, B, first token, s": statistics.median(times_s[1:]),
        "memory after 20 swaps, MiB": memory[-1],
    }


async def _served_again(server: Server, hurt: Callable[[psutil.Process], None]) -> float:
    """Hurt the process that computes in mid-stream, and return the time to the next answer."""
    stream = asyncio.create_task(server.ask(50, 2000, "victim"))
    await asyncio.sleep(2)
    hurt(server.running.computing())
    began_s = time.monotonic()
    try:
        while time.monotonic() - began_s < _SERVED_AGAIN_S:
            answer = await server.ask(20, 1, f"again {time.time()}", limit_s=_ASKED_AGAIN_S)
            if not answer.sample.error:
                return time.monotonic() - began_s
            if server.running.process.poll() is not None:
                raise NotPossibleError("never: the server is gone")
            await asyncio.sleep(_POLL_S)
    finally:
        stream.cancel()
        with suppress(asyncio.CancelledError):
            await stream
    raise NotPossibleError(f"not within {_SERVED_AGAIN_S:g} s")


async def killed(server: Server) -> dict[str, float]:
    """The process that computes is killed."""
    return {"served again after SIGKILL, s": await _served_again(server, psutil.Process.kill)}


async def stopped(server: Server) -> dict[str, float]:
    """The process that computes stands still."""
    return {"served again after SIGSTOP, s": await _served_again(server, psutil.Process.suspend)}


def _first_s(sample: Sample) -> float:
    # A token that is no whole letter has no text: the end of the answer is what can be seen.
    return sample.first_s if sample.first_s is not None else sample.ended_s - sample.sent_s


def _refuse(*samples: Sample) -> None:
    for sample in samples:
        if sample.error:
            raise NotPossibleError(f"a request failed: {sample.error}")


@dataclass(frozen=True)
class Row:
    """A row, and how it is run."""

    measure: Callable[[Server], Awaitable[dict[str, float]]]
    deadline_s: float = 200.0
    is_fresh: bool = False
    """It has a server of its own: nothing is measured of one that was hurt."""
    models: int = 1


ROWS: Final[Mapping[str, Row]] = {
    "start": Row(start),
    "idle": Row(idle),
    "1 client": Row(_throughput(1)),
    "8 clients": Row(_throughput(8)),
    "32 clients": Row(_throughput(32)),
    "64 clients": Row(_throughput(64)),
    "128 clients": Row(_throughput(128)),
    "256 clients": Row(_throughput(256)),
    "prompt": Row(prompt),
    "agent": Row(agent),
    "agent with marker": Row(agent_with_marker),
    "stall": Row(stall),
    "behind": Row(behind),
    "two long": Row(two_long),
    "cancelled": Row(cancelled),
    "swaps": Row(swaps, is_fresh=True, models=2),
    "killed": Row(killed, is_fresh=True),
    "stopped": Row(stopped, is_fresh=True),
}
