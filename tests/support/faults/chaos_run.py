"""Carries out a :class:`chaos.Day`: sends its requests, deals its blows, notes every ending."""

import asyncio
import json
import os
import signal
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import aiohttp

from tests.support.faults.chaos import Asked, Blow, Day
from tests.support.rigs.rig import Rig, ask, http

DEADLINE_S = 75.0
"""A request must have ended by then, whatever befell it: it waits ``load_wait_s`` at the most, and
its answer takes seconds."""

CLIENTS = 64
"""How many requests are under way at a time. The next one is sent when one of them has ended. So a
slow machine makes the day longer, and not worse: a crash ends at most so many."""

OWN_CODES = {
    "crash_at": "worker_crashed", "abort_at": "worker_crashed", "step_raise_at": "engine_error",
    "memory_error_at": "worker_out_of_memory", "hang_at": "worker_hung",
}  # fmt: skip
"""What a request that takes its worker down is told, by the directive that does it."""

TRIES = 3
"""How often such a request is sent. Another one may have taken its worker down before."""


@dataclass
class Ending:
    """How a request ended, as its client saw it.

    ``kind``: ``answer`` (complete, and the right one), ``refused`` (an HTTP status with an error
    object), ``error_event`` (a stream that ended with one), ``left`` (its own doing), or what may
    never be: ``cut`` (the connection ended without a word), ``late`` (nothing within the
    deadline) and ``odd`` (anything else). ``characters``: of the answer, that came.
    """

    asked: Asked
    kind: str = "odd"
    code: str | None = None
    detail: str = ""
    characters: int = 0
    took_s: float = 0.0


async def run_day(lmx: Rig, day: Day) -> list[Ending]:
    """Have a day happen; returns when its last request has ended, and no later than it must."""
    url, began_s = lmx.url, time.monotonic()
    places = asyncio.Semaphore(CLIENTS)

    async def send(asked: Asked) -> Ending:
        await asyncio.sleep(began_s + asked.at_s - time.monotonic())
        async with places:
            return await _request(session, url, asked)

    async with http(silence_s=DEADLINE_S) as session, asyncio.TaskGroup() as group:
        requests = [group.create_task(send(asked)) for asked in day.requests]
        for blow in day.blows:
            group.create_task(_deal(lmx, blow, began_s))
    return [request.result() for request in requests]


def tally(endings: list[Ending]) -> Counter[str]:
    """Count endings by kind and code."""
    return Counter(f"{e.kind} {e.code}" if e.code else e.kind for e in endings)


async def _request(session: aiohttp.ClientSession, url: str, asked: Asked) -> Ending:
    own = {code for directive, code in OWN_CODES.items() if directive in asked.content}
    for _ in range(TRIES):
        ending = await _once(session, url, asked)
        if not own or ending.code in own:
            break
    return ending


async def _once(session: aiohttp.ClientSession, url: str, asked: Asked) -> Ending:
    ending, sent_s = Ending(asked), time.monotonic()
    limit_s = DEADLINE_S if asked.leaves_after_s is None else asked.leaves_after_s
    try:
        async with asyncio.timeout(limit_s):
            await converse(session, url, ending)
    except TimeoutError:
        ending.kind = "late" if asked.leaves_after_s is None else "left"
    except (aiohttp.ClientError, ConnectionError) as error:
        ending.kind, ending.detail = "cut", repr(error)
    ending.took_s = time.monotonic() - sent_s
    return ending


async def converse(session: aiohttp.ClientSession, url: str, ending: Ending) -> None:
    """Send an ending's request, and note how it ends."""
    asked = ending.asked
    settings = {} if asked.keep_alive is None else {"keep_alive": asked.keep_alive}
    body = ask(asked.model, asked.content, **{**settings, "stream": asked.stream})
    async with session.post(f"{url}/chat/completions", json=body) as response:
        if response.status != 200:
            said = await response.json()
            ending.kind, ending.code = "refused", said["error"]["code"]
            ending.detail = f"{response.status} {said['error']['message']}"
            assert ending.code, said
        elif asked.stream:
            await _read_stream(response, ending)
        else:
            (choice,) = (await response.json())["choices"]
            _judge(ending, choice["message"]["content"], choice["finish_reason"])


async def _read_stream(response: aiohttp.ClientResponse, ending: Ending) -> None:
    text, finish, last = "", None, b""
    async for line in response.content:
        if not line.startswith(b"data: "):
            continue
        if last == b"[DONE]" or ending.code:
            ending.kind, ending.detail = "odd", f"{line!r} came after the end"
            return
        last = line[6:].strip()
        if last == b"[DONE]":
            continue
        event = json.loads(last)
        if "error" in event:
            ending.code, ending.detail = event["error"]["code"], event["error"]["message"]
            continue
        for choice in event["choices"]:
            text += choice["delta"].get("content") or ""
            finish = choice["finish_reason"] or finish
        ending.characters = len(text)
    if ending.code:
        ending.kind = "error_event"
    elif last == b"[DONE]":
        _judge(ending, text, finish)
    else:
        ending.kind, ending.detail = "cut", f"a stream without an end, after {text!r}"


def _judge(ending: Ending, text: str, finish: str | None) -> None:
    ending.characters = len(text)
    if (text, finish) == (ending.asked.text, "stop"):
        ending.kind = "answer"
    else:
        ending.kind, ending.detail = "odd", f"the answer is {text!r}, ended by {finish}"


async def _deal(lmx: Rig, blow: Blow, began_s: float) -> None:
    await asyncio.sleep(began_s + blow.at_s - time.monotonic())
    if blow.kind == "sigkill":
        line: dict[str, Any] = await asyncio.to_thread(lmx.worker, blow.model)
        if line["pid"] is not None:
            _kill(line["pid"])
    else:
        await asyncio.to_thread(lmx.cli, blow.kind, blow.model)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # it was faster
