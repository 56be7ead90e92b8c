"""A long day with the memory of five models for seven: questions of all families come without end,
some of whose clients leave or read slowly, while an operator loads, unloads, kills, pins and
restarts. What was answered is asked again alone afterwards."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from itertools import groupby
from typing import Any, Final

import aiohttp

from tests.support.clients.api_families import FAMILIES, Answer, Question, ask
from tests.support.faults.kill_rounds import LIMIT_S, OWN
from tests.support.models.tiny_zoo import ADAPTED, EMBEDS, HEARS, SEES, TEXT
from tests.support.rigs.rig import Rig

BUDGET_MIB: Final = 1600
_SHARE_MIB: Final = 320
_DECODE_MIB: Final = 256
KV_KIB: Final = 2048
"""For some 2,700 tokens: one answer of LONG_TOKENS, or the beginnings of two."""

_CLIENTS: Final = 24
_SEEDS: Final = 4
_SHORT_TOKENS: Final = (20, 120, 400)
_LONG_TOKENS: Final = 2200
"""More than the 1,024 that are counted of an answer when it begins: two of them outgrow the KV
cache, and one has to come back later."""
_EXACT: Final = 200
"""OpenBLAS adds up to some 320 numbers in one go, and more in parts, whose bounds follow from the
length of the longest row of a batch. Prompts have less than 100 tokens, and a token is a character:
until here an answer's bits are those alone."""
_OTHER_SHARE: Final = 0.25
"""One token that rounding changes is a key of all that follow: 300 tokens into an answer of 2,200
it changed 73 and 104 others of two models, and at 1,500 none and 12. Of a row that is mixed up more
than half are others."""
_ROUNDED_ONE_IN: Final = 50
"""Of the long answers not more than one in so many is rounded in another way: 3 of some 1,000 were
in an hour."""
_BURST: Final = 3
_LEAVES: Final = 0.12
_READS_SLOWLY: Final = 0.10
_COMMAND_EVERY_S: Final = 10.0
_LAST_ROUTER_SHARE: Final = 0.5
_PINNED_S: Final = 20.0

CODES: Final = {
    "model_unloaded", "worker_killed", "shutting_down", "insufficient_memory", "model_drained",
    # By the Responses API, which has one word for all of them.
    "server_error",
}  # fmt: skip
"""What a question may be told on this day: all of it is the operator's doing."""


def day_config(models: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what lmx runs with on this day."""
    for model in models:
        model |= {"memory_bytes": f"{_SHARE_MIB}MiB", "preload": model["id"] == TEXT[0]}
        if model["id"] in TEXT:
            model["kv_cache_bytes"] = f"{KV_KIB}KiB"
    return {
        "models": models,
        "memory": {"budget_bytes": f"{BUDGET_MIB}MiB"},
        "media": {"decode_memory_bytes": f"{_DECODE_MIB}MiB"},
    }


@dataclass
class Day:
    """What came of it: the answers that have ended, and the commands that were given."""

    answers: list[Answer] = field(default_factory=list)
    commands: Counter[str] = field(default_factory=Counter)
    refused_commands: list[str] = field(default_factory=list)


async def live(lmx: Rig, client: aiohttp.ClientSession, url: str, seed: int, lasts_s: float) -> Day:
    """Have the day happen; returns when its last answer has ended."""
    day, end_s = Day(), time.monotonic() + lasts_s

    async def go_on(what: Callable[[random.Random], Awaitable[None]], number: int) -> None:
        draw = random.Random(seed * 1000 + number)
        while time.monotonic() < end_s:
            await what(draw)

    async def one(draw: random.Random) -> None:
        await _send(day, client, url, _draw_question(draw), draw)

    async def burst(draw: random.Random) -> None:
        model = draw.choice(TEXT[:2])
        await asyncio.gather(
            *(
                _send(day, client, url, Question("chat", model, number, _LONG_TOKENS), None)
                for number in range(_BURST)
            )
        )
        await asyncio.sleep(draw.uniform(0, 2 * _COMMAND_EVERY_S))

    async def command(draw: random.Random) -> None:
        await asyncio.sleep(draw.uniform(0, 2 * _COMMAND_EVERY_S))
        # The last router lives for long enough to show whether its memory grows.
        replaces_router = time.monotonic() < end_s - _LAST_ROUTER_SHARE * lasts_s
        await asyncio.to_thread(_command, lmx, day, draw, replaces_router=replaces_router)

    async with asyncio.TaskGroup() as group:
        for number, what in enumerate((*([one] * _CLIENTS), burst, command, command)):
            group.create_task(go_on(what, number))
    return day


def _draw_question(draw: random.Random) -> Question:
    family = draw.choice(FAMILIES)
    model = OWN.get(family) or draw.choice((*TEXT, ADAPTED))
    return Question(
        family,
        model,
        draw.randrange(_SEEDS),
        90 if family == "transcription" else draw.choice(_SHORT_TOKENS),
        priority=draw.choice((-5, 0, 0, 5)),
        stream=draw.random() < 0.85,
    )


async def _send(
    day: Day,
    client: aiohttp.ClientSession,
    url: str,
    question: Question,
    draw: random.Random | None,
) -> None:
    answer, limit_s, pause_s = Answer(question), LIMIT_S, 0.0
    leaves = draw is not None and draw.random() < _LEAVES
    if draw is not None:
        if leaves:
            limit_s = draw.uniform(0, 5)
        elif draw.random() < _READS_SLOWLY:
            pause_s = draw.uniform(0.01, 0.1)
    await ask(client, url, answer, limit_s=limit_s, leaves=leaves, pause_s=pause_s)
    day.answers.append(answer)
    if draw is not None:
        await asyncio.sleep(draw.expovariate(1))


def _command(lmx: Rig, day: Day, draw: random.Random, *, replaces_router: bool) -> None:
    """Give one; it may be refused, since others want the same memory."""
    model = draw.choice((*TEXT, SEES, HEARS, EMBEDS))
    words = draw.choice(
        (
            ("load", model), ("unload", model), ("kill", model), ("pin", model), ("restart", model),
            ("reload",), ("restart", "--router"),
        )[: None if replaces_router else -1]
    )  # fmt: skip
    name = words[0] if len(words) < 2 or words[1] == model else " ".join(words)
    day.commands[name] += 1
    done = lmx.cli(*words, timeout_s=LIMIT_S)
    if done.returncode:
        day.refused_commands.append(f"{name}: {done.stderr.strip()}")
    if name == "pin":
        time.sleep(_PINNED_S)
        lmx.run("unpin", model)


@dataclass
class Comparison:
    """What came of asking everything again alone."""

    asked: int = 0
    long_answers: int = 0
    rounded: list[str] = field(default_factory=list)
    """Those that differ as rounding may make them."""
    wrong: list[str] = field(default_factory=list)

    @property
    def too_many_rounded(self) -> bool:
        """Whether there are more than rounding explains: a cache that is a little wrong looks like
        rounding in one answer, but not in many."""
        return len(self.rounded) > 1 + self.long_answers // _ROUNDED_ONE_IN


async def compare(client: aiohttp.ClientSession, url: str, answers: list[Answer]) -> Comparison:
    """Ask alone what was answered. Of an answer without an end the beginning that came is
    compared."""

    def order(answer: Answer) -> tuple[str, ...]:
        """By the model, so that each is loaded once."""
        asked = answer.question
        base = TEXT[0] if asked.model == ADAPTED else asked.model
        return base, asked.model, asked.family, f"{asked.seed} {asked.tokens}"

    found = Comparison()
    for question, group in groupby(sorted(answers, key=order), key=lambda one: one.question):
        given = list(group)
        if not any(answer.text for answer in given):
            continue
        alone = Answer(replace(question, salt="alone"))
        await ask(client, url, alone, limit_s=LIMIT_S)
        found.asked += 1
        found.wrong += [f"alone: {alone}"] if alone.kind != "answer" else []
        for one in given:
            expected = alone.text if one.kind == "answer" else alone.text[: len(one.text)]
            found.long_answers += len(expected) > _EXACT
            if one.text != expected:
                kind = found.rounded if may_be_rounded(one.text, expected) else found.wrong
                kind.append(f"{one}: {_first_difference(one.text, expected)}")
    return found


def _first_difference(text: str, alone: str) -> str:
    pairs = enumerate(zip(text, alone, strict=False))
    at = next((n for n, (here, there) in pairs if here != there), min(len(text), len(alone)))
    return f"at {at}, {text[at : at + 20]!r} and {alone[at : at + 20]!r}"


def may_be_rounded(text: str, alone: str) -> bool:
    """Return whether a text differs from the one alone only from ``_EXACT`` characters on, and from
    there in no more than ``_OTHER_SHARE`` of them. The models draw from tokens that are nearly
    equally likely, so that a row that is mixed up changes far more."""
    places = [
        (here, max(here_end - here, there_end - there))
        for kind, here, here_end, there, there_end in SequenceMatcher(
            None, text, alone, autojunk=False
        ).get_opcodes()
        if kind != "equal"
    ]
    first, count = places[0][0], sum(length for _, length in places)
    return first >= _EXACT and count <= max(4, _OTHER_SHARE * (len(alone) - first))
