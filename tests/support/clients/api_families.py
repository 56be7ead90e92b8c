"""A client of every family of the API: it asks, reads the answer as it comes, and says in the same
words for all of them how it ended. It holds each family to its own form of errors."""

import asyncio
import base64
import io
import json
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from PIL import Image

from tests.support.fakes.media_files import sine, wav_file

_POLL_S = 0.3
_RATE_HZ = 16_000
_LINE_BYTES = 1 << 22
"""The last event of a response has all of its text."""


@dataclass(frozen=True)
class Question:
    """A request: the same one gets the same answer whenever it is asked.

    ``tokens`` is the length of its answer; for a transcription, the seconds of its sound. The
    families without a seed are asked at temperature 0.
    """

    family: str
    model: str
    seed: int
    tokens: int
    priority: int = field(default=0, compare=False)
    stream: bool = field(default=True, compare=False)
    salt: str = field(default="", compare=False)
    """Nothing that was cached under another one is used, in the families that know it."""

    @property
    def prompt(self) -> str:
        """The text that it sends."""
        return f"story number {self.seed}: " + "tell me about it. " * (self.seed % 7)


@dataclass
class Answer:
    """How a question ended, as its client saw it.

    ``kind``: ``answer`` (complete), ``refused`` (an HTTP status with an error in the family's
    form), ``error_event`` (a stream that ended with one), ``left`` (its client's doing), ``cut``
    (the connection ended without a word), ``late`` (nothing within the deadline), and ``odd``
    (anything else, which ``detail`` tells). ``text`` grows while the answer comes.
    """

    question: Question
    kind: str = "odd"
    code: str | None = None
    detail: str = ""
    text: str = ""
    took_s: float = 0.0

    @property
    def ending(self) -> str:
        """Kind and code in one word or two."""
        return f"{self.kind} {self.code}" if self.code else self.kind

    def __str__(self) -> str:
        asked = self.question
        return (
            f"{asked.family} {asked.model} seed {asked.seed}: {self.ending} after "
            f"{len(self.text)} characters and {self.took_s:.1f} s {self.detail[:200]}"
        )


class OddError(Exception):
    """What came is not in the form of its family."""


@dataclass(frozen=True)
class _Part:
    """What one event says."""

    text: str = ""
    done: bool = False
    code: str | None = None


def session() -> aiohttp.ClientSession:
    """Return a client for many requests at a time, without deadlines of its own."""
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=None),
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        read_bufsize=_LINE_BYTES,
    )


async def ask(
    client: aiohttp.ClientSession,
    url: str,
    answer: Answer,
    *,
    limit_s: float,
    leaves: bool = False,
    pause_s: float = 0.0,
) -> Answer:
    """Ask an answer's question, and note in it how it ends. ``url`` is that of the server, without
    a path. After ``limit_s`` the client is gone: a ``late`` answer, or if it ``leaves``, its own
    doing. It waits ``pause_s`` after each event that it reads."""
    began_s = time.monotonic()
    try:
        async with asyncio.timeout(limit_s):
            await _converse(client, url, answer, pause_s)
    except TimeoutError:
        answer.kind = "left" if leaves else "late"
    except (aiohttp.ClientError, ConnectionError) as error:
        answer.kind, answer.detail = "cut", repr(error)
    except (OddError, KeyError, TypeError, ValueError) as error:
        answer.kind, answer.detail = "odd", repr(error)
    answer.took_s = time.monotonic() - began_s
    return answer


async def _converse(
    client: aiohttp.ClientSession, url: str, answer: Answer, pause_s: float
) -> None:
    asked = answer.question
    path, body = _ROUTES[asked.family](asked)
    content = {"data": body} if isinstance(body, aiohttp.FormData) else {"json": body}
    async with client.post(url + path, **content) as response:
        if response.status != 200:
            answer.code, answer.detail = _error_of(asked.family, await response.json())
            answer.kind = "refused"
        elif asked.family == "background":
            await _poll(client, f"{url}{path}/{(await response.json())['id']}", answer)
        elif asked.stream and asked.family != "embedding":
            await _read_stream(response, answer, pause_s)
        else:
            answer.text = _WHOLE[asked.family](await response.json())
            answer.kind = "answer"


async def _poll(client: aiohttp.ClientSession, url: str, answer: Answer) -> None:
    """A router that is being replaced answers nothing for a moment, and the next one the rest."""
    while True:
        await asyncio.sleep(_POLL_S)
        try:
            async with client.get(url) as response:
                status, found = response.status, await response.json()
        except aiohttp.ClientError:
            continue
        if status == 503:
            continue
        if status != 200:
            answer.code, answer.detail = _error_of("background", found)
            answer.kind = "refused"
            return
        if found["status"] in ("queued", "in_progress"):
            continue
        answer.text = _output_text(found)
        answer.kind = "answer"
        if found["status"] not in ("completed", "incomplete"):
            answer.kind, answer.code = "error_event", found["error"]["code"]
            answer.detail = found["error"]["message"]
        return


async def _read_stream(response: aiohttp.ClientResponse, answer: Answer, pause_s: float) -> None:
    read, done = _EVENTS[answer.question.family], False
    async for event in _events(response):
        if done or answer.code:
            raise OddError(f"{event} came after the end")
        part = _Part(done=True) if event is None else read(event)
        answer.text += part.text
        done = part.done
        if part.code:
            answer.code, answer.detail = part.code, json.dumps(event)
        await asyncio.sleep(pause_s)
    answer.kind = "error_event" if answer.code else "answer" if done else "cut"


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any] | None]:
    """Yield the events of a stream; None for OpenAI's ``[DONE]``."""
    lines = response.content_type == "application/x-ndjson"
    async for line in response.content:
        data = line.strip() if lines else line.removeprefix(b"data:").strip()
        if not data or (not lines and not line.startswith(b"data:")):
            continue
        yield None if data == b"[DONE]" else json.loads(data)


# What is asked.


def _messages(asked: Question) -> list[dict[str, Any]]:
    return [{"role": "user", "content": asked.prompt}]


def _common(asked: Question, **more: Any) -> dict[str, Any]:
    own = {"model": asked.model, "stream": asked.stream, "priority": asked.priority}
    return own | ({"cache_salt": asked.salt} if asked.salt else {}) | more


def _drawn(asked: Question, **more: Any) -> dict[str, Any]:
    """Of the families that have a seed."""
    sampling = {"max_tokens": asked.tokens, "seed": asked.seed, "temperature": 0.9}
    return _common(asked, **sampling, ignore_eos=True, **more)


def _response(asked: Question, **more: Any) -> dict[str, Any]:
    limits = {"max_output_tokens": asked.tokens, "temperature": 0}
    return _common(asked, input=asked.prompt, **limits, **more)


def _picture(seed: int) -> str:
    """A data URL of noise, which no other seed has."""
    noise = random.Random(seed).randbytes(64 * 64 * 3)
    file = io.BytesIO()
    Image.frombytes("RGB", (64, 64), noise).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def _image(asked: Question) -> list[dict[str, Any]]:
    picture = {"type": "image_url", "image_url": {"url": _picture(asked.seed)}}
    content = [picture, {"type": "text", "text": asked.prompt}]
    return [{"role": "user", "content": content}]


def _transcription(asked: Question) -> aiohttp.FormData:
    sound = sine(200.0 + 37 * asked.seed, float(asked.tokens), _RATE_HZ)
    form = aiohttp.FormData()
    form.add_field("file", wav_file(sound, _RATE_HZ), filename="sound.wav")
    fields = {"model": asked.model, "stream": str(asked.stream).lower(), "temperature": "0"}
    for name, value in fields.items():
        form.add_field(name, value)
    return form


_ROUTES: Mapping[str, Callable[[Question], tuple[str, Any]]] = {
    "chat": lambda q: ("/v1/chat/completions", _drawn(q, messages=_messages(q))),
    "image": lambda q: ("/v1/chat/completions", _drawn(q, messages=_image(q))),
    "completion": lambda q: ("/v1/completions", _drawn(q, prompt=q.prompt)),
    "message": lambda q: (
        "/v1/messages",
        {
            "model": q.model, "stream": q.stream, "messages": _messages(q),
            "max_tokens": q.tokens, "temperature": 0,
        },
    ),
    "response": lambda q: ("/v1/responses", _response(q)),
    "background": lambda q: ("/v1/responses", _response(q, background=True, stream=False)),
    "ollama": lambda q: (
        "/api/chat",
        {
            "model": q.model, "stream": q.stream, "messages": _messages(q),
            "options": {"num_predict": q.tokens, "seed": q.seed, "temperature": 0.9},
        },
    ),
    "transcription": lambda q: ("/v1/audio/transcriptions", _transcription(q)),
    "embedding": lambda q: ("/v1/embeddings", {"model": q.model, "input": q.prompt[:50]}),
}  # fmt: skip
FAMILIES = tuple(_ROUTES)


# What is answered.


def _error_of(family: str, said: dict[str, Any]) -> tuple[str, str]:
    """Return code and message of an error in its family's form. Raises :class:`OddError`."""
    error = said["error"]
    match family:
        case "ollama":
            right, error = isinstance(error, str), {"message": error, "code": said.get("code")}
        case "message":
            right = said["type"] == "error" and {"type", "message", "code"} <= error.keys()
        case _:
            right = error.keys() == {"message", "type", "param", "code"}
    if not right or not error["code"]:
        raise OddError(f"no error of its family: {said}")
    return error["code"], error["message"]


def _failed(family: str, event: dict[str, Any]) -> _Part:
    return _Part(code=_error_of(family, event)[0])


def _chat_event(event: dict[str, Any]) -> _Part:
    if "error" in event:
        return _failed("chat", event)
    return _Part("".join(c["delta"].get("content") or "" for c in event["choices"]))


def _completion_event(event: dict[str, Any]) -> _Part:
    if "error" in event:
        return _failed("completion", event)
    return _Part("".join(c["text"] for c in event["choices"]))


def _message_event(event: dict[str, Any]) -> _Part:
    match event["type"]:
        case "error":
            return _failed("message", event)
        case "content_block_delta":
            return _Part(event["delta"]["text"])
        case kind:
            return _Part(done=kind == "message_stop")


def _response_event(event: dict[str, Any]) -> _Part:
    match event["type"]:
        case "response.failed":
            return _Part(code=event["response"]["error"]["code"])
        case "error":
            return _Part(code=event["code"])
        case "response.output_text.delta":
            return _Part(event["delta"])
        case kind:
            return _Part(done=kind in ("response.completed", "response.incomplete"))


def _ollama_event(event: dict[str, Any]) -> _Part:
    if "error" in event:
        return _failed("ollama", event)
    return _Part(event["message"]["content"], event["done"])


def _transcription_event(event: dict[str, Any]) -> _Part:
    if "error" in event:
        return _failed("transcription", event)
    return _Part(event.get("delta", ""), event["type"] == "transcript.text.done")


_EVENTS: Mapping[str, Callable[[dict[str, Any]], _Part]] = {
    "chat": _chat_event,
    "image": _chat_event,
    "completion": _completion_event,
    "message": _message_event,
    "response": _response_event,
    "ollama": _ollama_event,
    "transcription": _transcription_event,
}


def _output_text(response: dict[str, Any]) -> str:
    items = response["output"]
    return "".join(part.get("text", "") for item in items for part in item.get("content", ()))


_WHOLE: Mapping[str, Callable[[dict[str, Any]], str]] = {
    "chat": lambda whole: str(whole["choices"][0]["message"]["content"]),
    "image": lambda whole: str(whole["choices"][0]["message"]["content"]),
    "completion": lambda whole: str(whole["choices"][0]["text"]),
    "message": lambda whole: "".join(part["text"] for part in whole["content"]),
    "response": _output_text,
    "ollama": lambda whole: str(whole["message"]["content"]),
    "transcription": lambda whole: str(whole["text"]),
    "embedding": lambda whole: json.dumps(whole["data"][0]["embedding"]),
}
