"""The errors of a model's worker and of the router, on each API that generates text: the same
status and code, in the family's form, before an answer begins and in the middle of a stream."""

import asyncio
import json
import re
from typing import Any

import pytest

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages.snapshot import NamePattern
from lmx.protocol.states import ModelKind
from lmx.router.http.api_family import ANTHROPIC, ERROR_BODIES, OLLAMA, OPENAI, RESPONSES, ApiFamily
from lmx.router.http.endpoint import Access
from lmx.router.http.errors import http_status
from lmx.router.server.routes import ROUTES
from tests.support.clients.answer_check import check_shape
from tests.support.fakes.fake_peers import plays, ready, refuses, until
from tests.support.rigs.router_rig import INSTANCE, MODEL, router_rig

HI = {"role": "user", "content": "hi"}
WAYS: dict[str, tuple[dict[str, Any], ApiFamily]] = {
    "/v1/chat/completions": ({"messages": [HI]}, OPENAI),
    "/v1/messages": ({"messages": [HI], "max_tokens": 50}, ANTHROPIC),
    "/v1/responses": ({"input": "hi", "store": False}, OPENAI),
    "/api/chat": ({"messages": [HI]}, OLLAMA),
    "/api/generate": ({"prompt": "hi"}, OLLAMA),
}
REFUSALS = (
    ErrorCode.INVALID_VALUE, ErrorCode.UNSUPPORTED_VALUE, ErrorCode.CONTEXT_LENGTH_EXCEEDED,
    ErrorCode.CHAT_TEMPLATE_FAILED, ErrorCode.STRUCTURE_NOT_ENFORCEABLE, ErrorCode.INVALID_MEDIA,
    ErrorCode.MODEL_NOT_FOUND, ErrorCode.QUEUE_FULL, ErrorCode.QUEUE_TIMEOUT,
    ErrorCode.DEADLINE_EXCEEDED, ErrorCode.MODEL_SOURCE_INVALID, ErrorCode.INTERNAL,
)  # fmt: skip
"""What a worker may answer instead of accepting a request."""
FAILURES = (
    ErrorCode.ENGINE_ERROR,
    ErrorCode.SCHEMA_NOT_MET,
    ErrorCode.WORKER_OUT_OF_MEMORY,
    ErrorCode.DEADLINE_EXCEEDED,
    ErrorCode.REQUEST_CANCELLED,
)
"""What may end an answer that has begun."""

BAD: dict[str, tuple[bytes, dict[str, str], int, str]] = {
    "no JSON": (b"{", {}, 400, "invalid_json"),
    "no object": (b"[1]", {}, 400, "invalid_type"),
    "twice the same key": (b'{"model": "a", "model": "b"}', {}, 400, "invalid_json"),
    "no model of that name": (b'"model": "gpt-9"', {}, 404, "model_not_found"),
    "a model that is a number": (b'"model": 5', {}, 400, "invalid_type"),
    "another type of body": (
        b"",
        {"Content-Type": "multipart/form-data"},
        415,
        "unsupported_media_type",
    ),
    "no key": (b"", {"Authorization": ""}, 401, "invalid_authentication"),
    "too large": (b" " * 20_000_000, {}, 413, "request_too_large"),
}


def code_of(body: dict[str, Any], family: ApiFamily) -> str:
    """The code in an error of the family, which must have the family's form."""
    check_shape(ERROR_BODIES[family], body)
    error = body if family is OLLAMA else body["error"]
    return str(error["code"])


OTHER_WAYS: dict[str, tuple[dict[str, Any], ApiFamily]] = {
    "/v1/completions": ({"prompt": "hi"}, OPENAI),
    "/api/show": ({}, OLLAMA),
    "/api/v0/chat/completions": ({"messages": [HI]}, OPENAI),
}


async def test_a_pattern_of_names_answers_on_each_api() -> None:
    """As the names that clients of clouds insist on; without the pattern it is a 404."""
    name = "claude-haiku-4-5"
    async with router_rig() as rig:
        for patterns, status in (((), 404), ((NamePattern("claude-*", MODEL),), 200)):
            await rig.publish(ready(MODEL, INSTANCE, kind=ModelKind.CHAT), patterns=patterns)
            for path, (fields, family) in (WAYS | OTHER_WAYS).items():
                for one in (name, f"{name}:latest") if family is OLLAMA else (name,):
                    asked = {"model": one, "stream": False, **fields}
                    got, body = await rig.post_json(path, **asked)
                    assert got == status, (path, body)
            async with rig.http.get(f"{rig.url}/v1/models/{name}") as response:
                assert response.status == status
            # It is no model of its own.
            async with rig.http.get(f"{rig.url}/v1/models") as response:
                assert name not in await response.text()


@pytest.mark.parametrize("path", WAYS)
async def test_refusals(path: str) -> None:
    fields, family = WAYS[path]
    wanted = ErrorCode.INTERNAL

    async with router_rig(lambda stream: stream.refuse(wanted, "No.")) as rig:
        for wanted in REFUSALS:
            for stream in (True, False):
                status, body = await rig.post_json(path, model=MODEL, stream=stream, **fields)
                said = (wanted, stream, body)
                assert (status, code_of(body, family)) == (http_status(wanted), wanted.value), said


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (
            "The messages are 9000 tokens long, and the model's context of 8192 tokens has to hold "
            "them and the answer: shorten them.",
            ": 9000 tokens > 8192 maximum. The messages",
        ),
        (
            "The messages are 9000 tokens long, and the memory that this model has for its KV "
            "cache (512 MiB) holds 700 tokens, the answer's included: shorten them.",
            ": 9000 tokens > 700 maximum. The messages",
        ),
        (
            "The prompt has at least 9000 tokens, and the model's context is 8192: shorten it.",
            ": 9000 tokens > 8192 maximum. The prompt",
        ),
        ("It is too long.", ". It is too long."),
    ],
)
async def test_anthropic_s_clients_see_that_a_prompt_is_too_long(message: str, shown: str) -> None:
    refuse = refuses(ErrorCode.CONTEXT_LENGTH_EXCEEDED, message, param="messages")
    async with router_rig(refuse) as rig:
        for path in ("/v1/messages", "/v1/chat/completions"):
            _, body = await rig.post_json(path, model=MODEL, **WAYS[path][0])
            said = body["error"]["message"]
            assert said.endswith(message)
            begins = said.startswith(f"prompt is too long{shown}")
            assert begins is (path == "/v1/messages"), said


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_s_error_names_its_own_field(stream: bool) -> None:
    refuse = refuses(ErrorCode.CONTEXT_LENGTH_EXCEEDED, "too long", param="messages")
    async with router_rig(refuse) as rig:
        fields, _ = WAYS["/v1/responses"]
        status, body = await rig.post_json("/v1/responses", model=MODEL, stream=stream, **fields)
        assert (status, body["error"]["param"]) == (400, "input")


def test_an_event_of_a_response_s_error_names_its_own_field() -> None:
    error = RequestError(ErrorCode.CONTEXT_LENGTH_EXCEEDED, "too long", param="messages")
    event = json.loads(RESPONSES.error_event(error, None).partition(b"data: ")[2])
    assert event == {
        "type": "error", "code": "context_length_exceeded", "message": "too long",
        "param": "input", "sequence_number": 0,
    }  # fmt: skip


@pytest.mark.parametrize("path", WAYS)
async def test_a_full_queue_says_when_to_come_back(path: str) -> None:
    fields, family = WAYS[path]
    refuse = refuses(ErrorCode.QUEUE_FULL, "32 wait", retry_after_s=2.2)
    body = {"model": MODEL, **fields}
    async with router_rig(refuse) as rig, rig.http.post(f"{rig.url}{path}", json=body) as response:
        assert (response.status, response.headers["Retry-After"]) == (429, "3")
        assert code_of(await response.json(), family) == "queue_full"


@pytest.mark.parametrize("path", WAYS)
async def test_failures_in_the_middle(path: str) -> None:
    fields, family = WAYS[path]
    wanted = ErrorCode.INTERNAL

    async with router_rig(plays("a", lambda stream: stream.fail(wanted, "It broke."))) as rig:
        for wanted in FAILURES:
            status, body = await rig.post_json(path, model=MODEL, stream=False, **fields)
            assert (status, code_of(body, family)) == (http_status(wanted), wanted.value)
            body = {"model": MODEL, "stream": True, **fields}
            async with rig.http.post(f"{rig.url}{path}", json=body) as response:
                assert response.status == 200
                text = await response.text()
            last = text.strip().splitlines()[-1].removeprefix("data: ")
            assert wanted.value in last and "It broke." in last, last
            if path != "/v1/responses":  # Its stream ends with a response that has failed.
                assert code_of(json.loads(last), family) == wanted.value
            if family is ANTHROPIC:
                assert json.loads(last)["request_id"] == response.headers["Request-Id"]
                assert "message_stop" not in text


async def test_pings_and_the_notice_of_a_hang_have_the_family_s_form_within_an_answer() -> None:
    goes_on = asyncio.Event()
    body = {"model": MODEL, "stream": True, **WAYS["/v1/messages"][0]}
    async with (
        router_rig(plays("hel", goes_on, "lo"), ping_interval_s=0.05) as rig,
        rig.http.post(f"{rig.url}/v1/messages", json=body) as response,
        asyncio.timeout(90),
    ):
        await response.content.readuntil(b'"hel"')
        await response.content.readuntil(b"event: ping\n")
        goes_on.set()
        await response.content.readuntil(b'"lo"')
        await until(lambda: rig.router.hang_notice.send() == 1)
        raw = await response.content.readuntil(b"router_hung")
    assert b"event: error\n" in raw


@pytest.mark.parametrize("path", WAYS)
@pytest.mark.parametrize("name", BAD)
async def test_bad_requests(path: str, name: str) -> None:
    fields, family = WAYS[path]
    data, headers, status, code = BAD[name]
    whole = json.dumps({"model": MODEL, **fields}).encode()
    if data.startswith(b'"'):
        data = whole.replace(json.dumps(MODEL).join(('"model": ', "")).encode(), data)
    key = "an-api-key-for-tests"
    sent = {"Content-Type": "application/json", "Authorization": f"Bearer {key}", **headers}
    async with (
        router_rig(api_keys=(key,)) as rig,
        rig.http.post(f"{rig.url}{path}", data=data or whole, headers=sent) as response,
    ):
        body = await response.json()
        assert (response.status, code_of(body, family)) == (status, code), body
        assert not rig.worker.streams


async def test_anthropic_s_clients_get_its_errors_on_every_route() -> None:
    sent = {"anthropic-version": "2023-06-01"}
    stranger = {**sent, "Origin": "https://a.example"}
    asked = [
        ("GET", "/v1/models/none", sent, 404, "not_found_error"),
        ("GET", "/v1/models?limit=0", sent, 400, "invalid_request_error"),
        ("GET", "/v1/messages", sent, 405, "invalid_request_error"),
        ("POST", "/v1/complete", sent, 404, "not_found_error"),
        ("GET", "/v1/files/none", sent, 404, "not_found_error"),
        ("POST", "/v1/messages", {**stranger}, 403, "permission_error"),
    ]
    asked += [
        (route.method, re.sub(r"\{.*?\}", "x", route.path), sent, 401, "authentication_error")
        for route in ROUTES
        if route.access in (Access.INFERENCE, Access.ADMIN)
    ]
    async with router_rig(api_keys=("an-api-key-for-tests",)) as rig:
        key = {"X-Api-Key": "an-api-key-for-tests"}
        for method, path, headers, status, kind in asked:
            keyed = headers if status == 401 else {**headers, **key}
            async with rig.http.request(method, f"{rig.url}{path}", headers=keyed) as response:
                body = await response.json()
                where = (method, path, body)
                code_of(body, ANTHROPIC)
                assert (response.status, body["error"]["type"]) == (status, kind), where
                ids = {body["request_id"], response.headers["Request-Id"]}
                assert ids == {response.headers["X-Request-Id"]}, where
                assert "Anthropic-Version" in response.headers["Vary"], where
        # Nobody else does.
        async with rig.http.get(f"{rig.url}/v1/models/none", headers=key) as response:
            assert code_of(await response.json(), OPENAI) == "model_not_found"
            assert "Request-Id" not in response.headers
