"""Sends the requests of a phase over HTTP, and takes the time of what comes."""

import asyncio
import contextlib
import json
import re
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
import orjson
from aiohttp.http_exceptions import HttpProcessingError

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.supervisor.cli.bench.figures import Sample
from lmx.supervisor.cli.bench.scenarios import Client, Phase, text_of
from lmx.supervisor.sockets.http_client import UNREADABLE, Remote

_CONNECT_S: Final = 10.0
_LIST_S: Final = 30.0
_WARM_UP_S: Final = 600.0
"""A server may load the model for the first request."""
_AFTER_ERROR_S: Final = 0.5
_PATIENCE_BEFORE_FIRST_S: Final = 0.2
"""How long a client waits that hangs up before the first piece of the answer."""
_LONGEST_LINE_BYTES: Final = 1024**2
_MOST_LETTERS_PER_TOKEN: Final = 256
"""A longer answer is not what was requested: it is not read to its end."""
_MOST_MODELS_SHOWN: Final = 5
_WARM_UP_WORDS: Final = (20, 120)
_TOKENS_PER_WORD: Final = 1.1
"""For a server that does not count the tokens of prompts."""
_REFUSED: Final = ("HTTP 400", "HTTP 422")
"""How a server refuses a field that it does not know."""
_CODE: Final = re.compile(r"[a-z0-9_]{1,40}")


@dataclass
class Target:
    """A server that is measured."""

    label: str
    remote: Remote
    model: str
    software: str = ""
    """What the server calls itself."""
    has_usage: bool = True
    """Whether it takes ``stream_options``: without it no server counts tokens of a stream."""
    tokens_per_word: float = _TOKENS_PER_WORD

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of each request."""
        return {} if self.remote.key is None else {"Authorization": f"Bearer {self.remote.key}"}


def session() -> aiohttp.ClientSession:
    """Return a session without a limit of connections, so that requests wait in the server and not
    here. No proxy, no redirect: the traffic goes where it was meant to."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        read_bufsize=_LONGEST_LINE_BYTES,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
    )


async def find_target(
    http: aiohttp.ClientSession, label: str, remote: Remote, model: str | None
) -> Target:
    """Return a server with the model to request. Raises :class:`OperationError` if it
    does not list its models, or lists several and none is chosen."""
    if model is not None:
        return Target(label, remote, model)
    target = Target(label, remote, "")
    try:
        async with (
            asyncio.timeout(_LIST_S),
            http.get(
                f"{remote.url}/v1/models", headers=target.headers, allow_redirects=False
            ) as answer,
        ):
            if answer.status != 200:
                raise _not_ready(target, f"GET /v1/models was answered {answer.status}")
            listed = await answer.json(loads=orjson.loads, content_type=None)
            names = [str(one["id"]) for one in listed["data"]]
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise _not_ready(target, _words_of(error), ErrorCode.NOT_RUNNING) from error
    except UNREADABLE as error:
        raise _not_ready(target, "GET /v1/models was not answered with a list") from error
    if len(names) != 1:
        shown = ", ".join(names[:_MOST_MODELS_SHOWN]) or "none"
        more = ", and more" if len(names) > _MOST_MODELS_SHOWN else ""
        raise OperationError(
            ErrorCode.MISSING_PARAMETER,
            f"choose the model of {remote.url} by --model; it has: {shown}{more}",
        )
    target.model = names[0]
    return target


def _not_ready(
    target: Target, reason: str, code: ErrorCode = ErrorCode.PROTOCOL_ERROR
) -> OperationError:
    return OperationError(code, f"{target.remote.url} can't be measured: {reason}")


async def warm_up(http: aiohttp.ClientSession, target: Target, seed: str, at_once: int = 1) -> None:
    """Have a server load its model, and learn how it counts tokens: two short requests, and as many
    at once as the largest phase has. Raises :class:`OperationError` if one of the two fails."""
    counted = []
    for words in _WARM_UP_WORDS:
        client = Client(prompt_tokens=words, answer_tokens=8)
        sample = await _warm(http, target, client, f"{seed} {words}")
        if sample.error:
            target.has_usage = target.has_usage and not sample.error.startswith(_REFUSED)
            sample = await _warm(http, target, client, f"{seed} {words} again")
        if sample.error:
            raise _not_ready(target, f"the first request failed: {sample.error}")
        counted.append(sample.prompt_tokens)
    per_word = (counted[1] - counted[0]) / (_WARM_UP_WORDS[1] - _WARM_UP_WORDS[0])
    target.tokens_per_word = min(10.0, per_word) if per_word > 0.5 else _TOKENS_PER_WORD
    if at_once > 1:
        small = Client(prompt_tokens=40, answer_tokens=8)
        seeds = (f"{seed} {number}" for number in range(at_once))
        await asyncio.gather(*(_warm(http, target, small, one) for one in seeds))


async def _warm(http: aiohttp.ClientSession, target: Target, client: Client, seed: str) -> Sample:
    request = Request([{"role": "user", "content": text_of(seed, client.prompt_tokens, 1.0)}],
                      client.answer_tokens)  # fmt: skip
    return (await ask(http, target, request, client, time.monotonic(), _WARM_UP_S)).sample


async def run_phase(
    http: aiohttp.ClientSession,
    target: Target,
    phase: Phase,
    seed: str,
    limit_s: float,
    samples: list[Sample],
) -> None:
    """Have all clients of a phase send their requests, and append a sample for each that has ended,
    also if this is cancelled. ``limit_s`` is the deadline of a request."""
    began_s = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for number, client in enumerate(phase.clients):
            one = _Client(http, target, client, seed, number, began_s, limit_s, samples)
            group.create_task(one.run(began_s + phase.seconds))


@dataclass
class Request:
    """What is sent."""

    messages: list[dict[str, str]]
    answer_tokens: int


@dataclass
class Answer:
    """What came of a request."""

    sample: Sample
    text: str
    """Without the thoughts before it: a client does not send these again."""


@dataclass
class _Client:
    http: aiohttp.ClientSession
    target: Target
    client: Client
    seed: str
    number: int
    began_s: float
    limit_s: float
    samples: list[Sample]
    _history: list[dict[str, str]] = field(default_factory=list)
    _is_first: bool = True
    """Whether no request of it has been answered yet."""

    async def run(self, end_s: float) -> None:
        wait_s = self.client.delay_s
        for turn in range(self.client.most_requests):
            await asyncio.sleep(wait_s)
            if turn >= self.client.least_requests and time.monotonic() > end_s:
                return
            sample = await self._ask(turn)
            self.samples.append(sample)
            wait_s = _AFTER_ERROR_S if sample.error else self.client.pause_s

    async def _ask(self, turn: int) -> Sample:
        request = self._request(turn)
        answer = await ask(
            self.http, self.target, request, self.client, self.began_s, self.limit_s,
            self.client.first_kind if self._is_first and self.client.first_kind
            else self.client.kind,
        )  # fmt: skip
        self._is_first = self._is_first and bool(answer.sample.error)
        if self.client.grows_tokens is not None and not answer.sample.error:
            said = {"role": "assistant", "content": answer.text or "..."}
            self._history = [*request.messages[-1 - len(self._history) :], said]
        return answer.sample

    def _request(self, turn: int) -> Request:
        client = self.client
        own = f"{self.seed} {self.number} {turn}"
        if client.grows_tokens is not None and self._history:
            said = self._text(own, client.grows_tokens)
        else:
            shared = self._text(self.seed, client.shared_tokens) if client.shared_tokens else ""
            said = f"{shared} {self._text(own, client.prompt_tokens - client.shared_tokens)}"
        messages = [*self._history, {"role": "user", "content": said.strip()}]
        if client.marker:
            left = 200_000 - 1_000 * turn
            system = f"You are an agent.\n<total_tokens>{left} tokens left</total_tokens>"
            messages.insert(0, {"role": "system", "content": system})
        return Request(messages, client.answer_tokens)

    def _text(self, seed: str, tokens: int) -> str:
        return text_of(seed, tokens, self.target.tokens_per_word)


async def ask(
    http: aiohttp.ClientSession,
    target: Target,
    request: Request,
    client: Client,
    began_s: float,
    limit_s: float,
    kind: str | None = None,
) -> Answer:
    """Send a request, and return what came of it. It never raises for what the server does: that is
    the sample's ``error``. ``began_s`` is when the phase began, by ``time.monotonic``."""
    reader = _Reader(client.hangs_up_after)
    sent_s = time.monotonic()
    error = ""
    patience_s = _PATIENCE_BEFORE_FIRST_S if client.hangs_up_after == 0 else limit_s
    try:
        async with asyncio.timeout(patience_s):
            await reader.read(http, target, request)
    except TimeoutError:
        reader.hung_up = client.hangs_up_after == 0
        error = "" if reader.hung_up else "timeout"
    except _AnswerError as failed:
        error = str(failed)
    except (aiohttp.ClientError, OSError) as failed:
        error = _words_of(failed)
    except (HttpProcessingError, *UNREADABLE):  # a line is too long; it is not what it should be
        error = "unreadable answer"
    sample = Sample(
        kind=client.kind if kind is None else kind,
        sent_s=sent_s - began_s,
        ended_s=time.monotonic() - began_s,
        first_s=reader.times_s[0] - sent_s if reader.times_s else None,
        gaps_s=tuple(b - a for a, b in zip(reader.times_s, reader.times_s[1:], strict=False)),
        prompt_tokens=reader.prompt_tokens,
        cached_tokens=reader.cached_tokens,
        answer_tokens=reader.answer_tokens or len(reader.times_s),
        is_counted=bool(reader.answer_tokens),
        hung_up=reader.hung_up,
        error=error,
    )
    return Answer(sample, "".join(reader.texts))


class _AnswerError(Exception):
    """The server answered with an error, or with what is no answer."""


class _Reader:
    """Reads one answer."""

    def __init__(self, hangs_up_after: int | None) -> None:
        self._hangs_up_after = hangs_up_after
        self.times_s: list[float] = []
        """When each piece of text came."""
        self.texts: list[str] = []
        """The pieces of the answer itself, without its thoughts."""
        self.prompt_tokens = self.cached_tokens = self.answer_tokens = 0
        self.hung_up = False
        self._is_finished = False
        self._letters = 0

    async def read(self, http: aiohttp.ClientSession, target: Target, request: Request) -> None:
        """Raises :class:`_AnswerError`, what aiohttp raises, and one of ``UNREADABLE``."""
        body: dict[str, Any] = {
            "model": target.model, "messages": request.messages, "stream": True,
            "max_tokens": request.answer_tokens, "temperature": 0,
        }  # fmt: skip
        if target.has_usage:
            body["stream_options"] = {"include_usage": True}
        async with http.post(
            f"{target.remote.url}/v1/chat/completions", data=orjson.dumps(body),
            headers={**target.headers, "Content-Type": "application/json"}, allow_redirects=False,
        ) as answer:  # fmt: skip
            if answer.status != 200:
                raise _AnswerError(f"HTTP {answer.status}{await _code_of(answer)}")
            target.software = target.software or answer.headers.get("Server", "")
            async with contextlib.aclosing(_events(answer)) as events:
                async for event in events:
                    self._take(event)
                    if self._letters > _MOST_LETTERS_PER_TOKEN * request.answer_tokens:
                        raise _AnswerError("a longer answer than requested")
                    if self._hangs_up_after and len(self.times_s) >= self._hangs_up_after:
                        self.hung_up = True
                        answer.close()
                        return
        if not self._is_finished:
            raise _AnswerError("the answer ended early" if self.times_s else "no answer came")

    def _take(self, event: Any) -> None:
        if event.get("error"):
            raise _AnswerError(f"error in the answer{_code(event['error'])}")
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or {}
            parts = {name: part for name in ("reasoning_content", "reasoning", "content")
                     if isinstance(part := delta.get(name), str) and part}  # fmt: skip
            if parts:
                self._letters += sum(map(len, parts.values()))
                self.times_s.append(time.monotonic())
                self.texts.append(parts.get("content", ""))
            self._is_finished = self._is_finished or choice.get("finish_reason") is not None
        if usage := event.get("usage"):
            self.prompt_tokens = max(0, int(usage["prompt_tokens"]))
            self.answer_tokens = max(0, int(usage["completion_tokens"]))
            details = usage.get("prompt_tokens_details") or {}
            self.cached_tokens = int(details.get("cached_tokens") or 0)


async def _events(answer: aiohttp.ClientResponse) -> AsyncGenerator[Any]:
    async for line in answer.content:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        yield orjson.loads(data)


async def _code_of(answer: aiohttp.ClientResponse) -> str:
    try:
        text = await answer.content.read(_LONGEST_LINE_BYTES)
        return _code(json.loads(text)["error"])
    except (aiohttp.ClientError, OSError, *UNREADABLE):
        return ""


def _code(error: Any) -> str:
    """Return the code of an error, if it has one that is only a word: a message may hold names."""
    code = error.get("code") if isinstance(error, dict) else None
    return f" {code}" if isinstance(code, str) and _CODE.fullmatch(code) else ""


def _words_of(error: Exception) -> str:
    """Return what happened to a connection, without its address."""
    match error:
        case TimeoutError():
            return "timeout"
        case aiohttp.ClientConnectorCertificateError():
            return "certificate not trusted"
        case aiohttp.ClientConnectorError():
            return "no connection"
        case aiohttp.InvalidURL():
            return "not an address"
    return "connection lost"
