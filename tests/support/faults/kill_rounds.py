"""Rounds in which requests of all families are under way when one process gets a blow: who was hurt
that should not be, and what is left."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
import psutil

from lmx.protocol.errors import OperationError
from tests.support.clients.api_families import FAMILIES, Answer, Question, ask
from tests.support.faults.blows import Blow, deal, hold
from tests.support.models.tiny_zoo import ADAPTED, EMBEDS, HEARS, SEES, TEXT
from tests.support.rigs.rig import Rig, command_of, wait_until

SPARE: Final = "spare"
"""A model that is loaded for its files to be read while their reader gets a blow."""

LIMIT_S: Final = 900.0
"""By then an answer is there, whatever befell it, on any machine."""

_HOLD_S: Final = 3.0
_TOKENS: Final = 500
_SOUND_S: Final = 240
_SEEDS: Final = 2
OWN: Final = {"image": SEES, "transcription": HEARS, "embedding": EMBEDS}
_TOLD: Final = {
    "worker": {"worker_crashed", "worker_hung", "worker_lost", "server_error"},
    "router": {"router_hung", "job_interrupted", "server_error"},
}
"""What may be said of a process's end; ``server_error`` by the Responses API, which has one word
for all."""


class Alone:
    """The right answers: those that are given when nothing else happens, asked once each."""

    def __init__(self, client: aiohttp.ClientSession, url: str) -> None:
        self._client = client
        self._url = url
        self._texts: dict[Question, str] = {}

    def __getitem__(self, question: Question) -> str:
        return self._texts[question]

    async def learn(self, questions: Sequence[Question]) -> None:
        """Ask those that were not asked before, one after the other."""
        for question in questions:
            if question not in self._texts:
                answer = await ask(self._client, self._url, Answer(question), limit_s=LIMIT_S)
                assert answer.kind == "answer" and answer.text, f"alone: {answer}"
                self._texts[question] = answer.text


def draw_questions(draw: random.Random, model: str) -> list[Question]:
    """One of each family, one of an adapter, and one to the model if it writes."""
    families = [*FAMILIES, "chat", "chat"]
    models = [OWN.get(family, draw.choice(TEXT)) for family in FAMILIES]
    models += [ADAPTED, model if model in TEXT else draw.choice(TEXT)]
    return [
        Question(
            family, model, draw.randrange(_SEEDS),
            _SOUND_S if family == "transcription" else _TOKENS,
        )
        for family, model in zip(families, models, strict=True)
    ]  # fmt: skip


@dataclass
class Round:
    """One blow, and what came of it. ``back_s``: until all was well again. ``wrongs`` are
    sentences about what may not be."""

    blow: Blow
    answers: list[Answer]
    equal: int = 0
    hurt_others: int = 0
    wrongs: list[str] = field(default_factory=list)
    back_s: float = 0.0

    def __str__(self) -> str:
        endings = dict(Counter(answer.ending for answer in self.answers).most_common())
        return f"{self.blow}: back after {self.back_s:.1f} s, {endings} {self.wrongs or ''}"


async def play_round(
    lmx: Rig, client: aiohttp.ClientSession, alone: Alone, blow: Blow, draw: random.Random
) -> Round:
    """Ask one of each, deal the blow in their middle, and wait until all is well again."""
    questions = draw_questions(draw, blow.model)
    await alone.learn(questions)
    played, url = Round(blow, [Answer(question) for question in questions]), server_url(lmx)
    seen = len(lmx.log_events("supervisor"))
    loading = asyncio.ensure_future(_load_spare(lmx, wanted=blow.target == "inspector"))
    holding = asyncio.ensure_future(asyncio.to_thread(hold, lmx, blow))
    # One that is not there is started by what is asked now.
    await asyncio.wait([holding], timeout=_HOLD_S)
    asking = [
        asyncio.ensure_future(ask(client, url, answer, limit_s=LIMIT_S))
        for answer in played.answers
    ]
    if blow.target in ("worker", "router", "supervisor"):
        await _come(blow.after, played.answers, asking, alone)
    victims = await holding
    await asyncio.to_thread(deal, blow, victims)
    dealt_s = time.monotonic()
    await asyncio.gather(loading, *asking)
    if blow.how == "STOP" and blow.target in ("worker", "router", "supervisor"):
        # All may be answered before anybody knows that it is stopped.
        await asyncio.to_thread(wait_until, lambda: not _stopped(victims), "its end", LIMIT_S)
    await asyncio.to_thread(wait_well, lmx)
    played.back_s = time.monotonic() - dealt_s
    for answer in played.answers:
        _judge(played, answer, alone[answer.question])
    played.wrongs += shots(lmx.log_events("supervisor")[seen:], blow)
    return played


def _stopped(victims: Sequence[psutil.Process]) -> bool:
    """Whether one is stopped still: it was neither ended nor, as a supervisor, woken."""
    try:
        return any(one.is_running() and one.status() == psutil.STATUS_STOPPED for one in victims)
    except psutil.NoSuchProcess:
        return False  # The last one, just now.


def server_url(lmx: Rig) -> str:
    """Return the address without a path."""
    return lmx.url.removesuffix("/v1")


async def _load_spare(lmx: Rig, *, wanted: bool) -> None:
    """Have the files of a model read. That may fail, and the next time it does not."""
    if wanted:
        await asyncio.to_thread(lmx.cli, "load", SPARE, timeout_s=LIMIT_S)
        await asyncio.to_thread(lmx.run, "load", SPARE)
        await asyncio.to_thread(lmx.run, "unload", SPARE)


async def _come(
    part: float, answers: Sequence[Answer], asking: Sequence[asyncio.Future[Answer]], alone: Alone
) -> None:
    """Wait until a part of all that is to come has come."""
    whole = sum(len(alone[answer.question]) for answer in answers)
    while sum(len(answer.text) for answer in answers) < part * whole:
        if all(one.done() for one in asking):
            return
        await asyncio.sleep(0.02)


def _judge(played: Round, answer: Answer, right: str) -> None:
    if (answer.kind, answer.text) == ("answer", right):
        played.equal += 1
        return
    if not right.startswith(answer.text) or answer.kind == "answer":
        played.wrongs.append(f"not the text that is given alone: {answer}")
    if not _may_suffer(played.blow, answer):
        played.hurt_others += 1
        played.wrongs.append(f"hurt though the blow was another's: {answer}")


def _may_suffer(blow: Blow, answer: Answer) -> bool:
    """Whether an answer could be lost to a blow, and says so in a way that is allowed."""
    model = {ADAPTED: "llama"}.get(answer.question.model, answer.question.model)
    reported = answer.kind in ("refused", "error_event") and answer.code in _TOLD.get(
        blow.target, ()
    )
    match blow.target:
        case "router":
            return blow.deadly and (reported or answer.kind == "cut")
        case "worker":
            return blow.deadly and reported and model == blow.model
        case _:
            return False


def shots(events: Sequence[dict[str, Any]], blow: Blow | None = None) -> list[str]:
    """Return the ends of processes, among a supervisor's log events, that the blow does not
    account for: what was shot though it was only slow."""
    found = []
    for event in events:
        name = event["event"]
        if name not in _ENDS or event.get("cause") in _WANTED:
            continue
        own = blow is not None and blow.deadly and blow.target == _ENDS[name]
        if not own or (blow and event.get("model") not in (None, blow.model)):
            found.append(f"an end that was nobody's blow: {event}")
    return found


_ENDS: Final = {
    "worker.exited": "worker",
    "router.unresponsive": "router",
    "router.exited": "router",
    "supervisor.unresponsive": "supervisor",
    "supervisor.started_again": "supervisor",
}
"""Whose end an event of the supervisor's log tells."""
_WANTED: Final = ("killed", "unloaded", "evicted", "expired", "shutdown")


def wait_well(lmx: Rig, *states: str) -> None:
    """Wait until all models are in one of these states, by default ``ready``, nothing is open, and
    nothing is left over; fail with what is wrong when that takes longer than anything may."""
    found: list[str] = ["nobody has looked"]

    def well() -> bool:
        try:
            found[:] = ills(lmx, states or ("ready",))
        except (OperationError, psutil.Error) as error:
            found[:] = [repr(error)]
        return not found

    try:
        wait_until(well, "all is well", LIMIT_S)
    except AssertionError:
        raise AssertionError(f"not well within {LIMIT_S:g} s: {found}") from None


def ills(lmx: Rig, states: Container[str]) -> list[str]:
    """Return what is not as it is when nobody asks anything."""
    status = lmx.status()
    router, workers = status["router"], status["workers"]
    found = [
        f"{line['model']} is {line['state']} with {line['requests_active']} requests"
        for line in workers
        if (line["state"] not in states and line["model"] != SPARE)
        or line["requests_active"] + line["requests_queued"]
    ]
    open_requests = (router["state"], router["streams"], router["waiting"], router["retiring"])
    if open_requests != ("running", 0, 0, 0):
        found.append(f"the router: {open_requests}")
    held = sum(line["reserved_bytes"] for line in workers)
    if held != status["supervisor"]["reserved_bytes"]:
        found.append(f"the ledger: workers hold {held} of {status['supervisor']['reserved_bytes']}")
    pids = [status["supervisor"]["pid"], router["pid"], *(line["pid"] for line in workers)]
    return found + [
        f"left over: {process.pid} {' '.join(command_of(process))}"
        for process in lmx.lasting()
        if process.pid not in pids and process.ppid() not in pids
    ]


@dataclass(frozen=True)
class Weight:
    """Descriptors and memory of router and supervisor."""

    descriptors: dict[str, int]
    memory_mib: dict[str, int]


def weigh(lmx: Rig) -> Weight:
    """Measure both processes."""
    status = lmx.status()
    processes = {name: psutil.Process(status[name]["pid"]) for name in ("router", "supervisor")}
    return Weight(
        {name: each.num_fds() for name, each in processes.items()},
        {name: each.memory_info().rss >> 20 for name, each in processes.items()},
    )
