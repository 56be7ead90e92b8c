"""Rounds in which requests of all families are under way when one process gets a blow: who was hurt
that should not be, and what is left."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
import psutil
from api_families import FAMILIES, Answer, Question, ask
from blows import Blow, deal
from rig import Rig, command_of, wait_until
from tiny_zoo import ADAPTED, EMBEDS, HEARS, SEES, TEXT

from lmx.protocol.errors import OperationError
from lmx.protocol.messages.control import LoadModel, UnloadModel

SPARE: Final = "spare"
"""A model that is loaded for its files to be read while their reader gets a blow."""

LIMIT_S: Final = 900.0
"""By then an answer is there, whatever befell it, on any machine."""

_TOKENS: Final = 500
_SOUND_S: Final = 25
_SEEDS: Final = 2
_OWN: Final = {"image": SEES, "transcription": HEARS, "embedding": EMBEDS}
_TOLD: Final = {
    "worker": {"worker_crashed", "worker_hung", "worker_lost", "server_error"},
    "router": {"router_hung", "job_interrupted", "server_error"},
    "decoder": {"media_timeout"},
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


def draw_questions(draw: random.Random) -> list[Question]:
    """One of each family, and one of an adapter."""
    families = [*FAMILIES, "chat"]
    models = [_OWN.get(family, draw.choice(TEXT)) for family in FAMILIES] + [ADAPTED]
    return [
        Question(
            family, model, draw.randrange(_SEEDS),
            _SOUND_S if family == "transcription" else _TOKENS,
        )
        for family, model in zip(families, models, strict=True)
    ]  # fmt: skip


@dataclass
class Round:
    """One blow, and what came of it. ``back_s``: until all models served again. ``wrongs`` are
    sentences about what may not be."""

    blow: Blow
    answers: list[Answer] = field(default_factory=list)
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
    played, url = Round(blow), server_url(lmx)
    questions = draw_questions(draw)
    await alone.learn(questions)
    seen = len(lmx.log_events("supervisor"))
    played.answers = [Answer(question) for question in questions]
    asking = [
        asyncio.ensure_future(ask(client, url, answer, limit_s=LIMIT_S))
        for answer in played.answers
    ]
    loading = asyncio.to_thread(_load_spare, lmx) if blow.target == "inspector" else None
    if blow.target in ("worker", "router", "supervisor"):
        await _come(blow.after, played.answers, asking, alone)
    # The others work only at the beginning, when files and prompts are read.
    dealing = asyncio.to_thread(deal, lmx, blow)
    await asyncio.gather(dealing, *([loading] if loading else []))
    dealt_s = time.monotonic()
    await asyncio.gather(*asking)
    if loading:
        # The next one that asks for it finds nothing wrong.
        await asyncio.to_thread(lmx.run, "load", SPARE)
        await asyncio.to_thread(lmx.ask, UnloadModel(SPARE))
    await asyncio.to_thread(wait_well, lmx)
    played.back_s = time.monotonic() - dealt_s
    for answer in played.answers:
        _judge(played, answer, alone[answer.question])
    played.wrongs += shots_but(blow, lmx.log_events("supervisor")[seen:])
    return played


def server_url(lmx: Rig) -> str:
    """Return the address without a path."""
    return lmx.url.removesuffix("/v1")


def _load_spare(lmx: Rig) -> None:
    with suppress(OperationError):
        lmx.ask(LoadModel(SPARE))


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
    told = answer.kind in ("refused", "error_event") and answer.code in _TOLD.get(blow.target, ())
    match blow.target:
        case "router":
            return blow.deadly and (told or answer.kind == "cut")
        case "worker":
            return blow.deadly and told and model == blow.model
        case _:
            return blow.how == "STOP" and told and answer.question.family == "image"


def shots_but(blow: Blow, events: Sequence[dict[str, Any]]) -> list[str]:
    """Return the ends of processes, among a supervisor's log events, that the blow does not
    account for: what was shot though it was only slow."""
    found = []
    for event in events:
        name = event["event"]
        if name not in _ENDS or event.get("cause") in _WANTED:
            continue
        own = blow.deadly and _ENDS[name] == blow.target
        if not own or event.get("model") not in (None, blow.model):
            found.append(f"an end that was nobody's blow: {event}")
    return found


_ENDS: Final = {
    "worker.exited": "worker",
    "router.hung": "router",
    "router.exited": "router",
    "supervisor.hung": "supervisor",
    "supervisor.started_again": "supervisor",
}
"""Whose end an event of the supervisor's log tells."""
_WANTED: Final = ("killed", "unloaded", "evicted", "expired", "shutdown")


def wait_well(lmx: Rig) -> None:
    """Wait until all preloaded models serve, nothing is open, and nothing is left over; fail with
    what is wrong when that takes longer than anything may."""
    found: list[str] = ["nobody has looked"]

    def well() -> bool:
        try:
            found[:] = ills(lmx)
        except (OperationError, psutil.Error) as error:
            found[:] = [repr(error)]
        return not found

    try:
        wait_until(well, "all is well", LIMIT_S)
    except AssertionError:
        raise AssertionError(f"not well within {LIMIT_S:g} s: {found}") from None


def ills(lmx: Rig) -> list[str]:
    """Return what is not as it is when all models serve and nobody asks."""
    status = lmx.status()
    router, workers = status["router"], status["workers"]
    found = [
        f"{line['model']} is {line['state']} with {line['requests_active']} requests"
        for line in workers
        if line["model"] != SPARE
        and (line["state"], line["requests_active"], line["requests_queued"]) != ("ready", 0, 0)
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
