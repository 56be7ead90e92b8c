"""The HTTP surface apart from answers: bodies, errors, ids, models, health."""

import asyncio
import gzip
import json
import socket
import zlib
from dataclasses import replace
from typing import Any

import pytest
from yarl import URL

from lmx.protocol.states import SlotState, WorkerState
from lmx.router.inference import chat
from lmx.router.operators.health import unhealthy_reason
from lmx.router.operators.pairing import PairingPace
from lmx.router.server.routes import ROUTES
from tests.support.fakes.fake_peers import cold, ready, until
from tests.support.rigs.router_rig import INSTANCE, MODEL, Rig, chat_body, data_lines, router_rig

JSON = {"Content-Type": "application/json"}


async def post_raw(rig: Rig, data: Any, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    async with rig.http.post(
        f"{rig.url}/v1/chat/completions", data=data, headers=headers or JSON
    ) as response:
        return response.status, await response.json()


async def test_bad_bodies(rig: Rig) -> None:
    for data, code, words in [
        (b"", "invalid_json", "empty"),
        (b'{"a": nope}', "invalid_json", "line 1 column 8"),
        (b"[1]", "invalid_type", "an array"),
        (b"\xff{}", "invalid_json", "UTF-8"),
        (b'{"temperature": NaN}', "invalid_json", "line 1 column 17"),
        (b'{"a":' + b"[" * 20_000 + b"]" * 20_000 + b"}", "invalid_json", "nested deeper"),
    ]:
        status, body = await post_raw(rig, data)
        assert (status, body["error"]["code"]) == (400, code), data[:30]
        assert words in body["error"]["message"]
        assert set(body["error"]) == {"message", "type", "param", "code"}
    assert not rig.worker.streams


FORMS = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None)
"""What a page may send anywhere without asking."""


async def sent_as(
    rig: Rig, path: str, content_type: str | None, headers: dict[str, str]
) -> tuple[int, str]:
    """Post a model's name that there is none of; return the status and the text."""
    data = b'{"model": "none-such"}'
    named = {} if content_type is None else {"Content-Type": content_type}
    async with rig.http.post(
        f"{rig.url}{path}", data=data, headers={**headers, **named},
        skip_auto_headers=("Content-Type",),
    ) as response:  # fmt: skip
        return response.status, await response.text()


async def test_who_is_no_browser_need_not_say_that_a_body_is_json(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ollama's own examples with curl say that it is a form, LiteLLM an octet-stream or nothing. On
    every route that takes JSON the answer is the same as with the right type."""
    routes = [one for one in ROUTES if one.request is not None and "{" not in one.path]
    assert len(routes) > 20
    monkeypatch.setattr(PairingPace, "take", lambda *_: None)
    async with router_rig() as rig:
        for route in routes:
            key = {"X-Admin-Key": rig.spec.admin_key}
            expected, _ = await sent_as(rig, route.path, "application/json; charset=utf-8", key)
            for given in (*FORMS, "application/octet-stream", "application/vnd.x+json"):
                for site in ({}, {"Sec-Fetch-Site": "none"}, {"Sec-Fetch-Site": "same-origin"}):
                    found, text = await sent_as(rig, route.path, given, {**key, **site})
                    is_form = given == "multipart/form-data"
                    assert found == (415 if is_form else expected), (route.path, given, text)


async def test_a_page_sends_json_or_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PairingPace, "take", lambda *_: None)
    async with router_rig(cors_origins=("https://app.example",)) as rig:
        own, app = {"Origin": rig.url}, {"Origin": "https://app.example"}
        other = {"Origin": "https://other.example"}
        sites = [{"Sec-Fetch-Site": site} for site in ("cross-site", "same-site", "none, none")]
        for route in ROUTES:
            if route.request is None or "{" in route.path:
                continue
            key = {"X-Admin-Key": rig.spec.admin_key}
            for given in FORMS:
                for page in (own, app, *sites):
                    found, text = await sent_as(rig, route.path, given, {**key, **page})
                    assert (found, "unsupported_media_type" in text) == (415, True), route.path
                found, text = await sent_as(rig, route.path, given, {**key, **other})
                assert (found, "origin_not_allowed" in text) == (403, True), route.path
        assert not rig.worker.streams


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_20_mb_body_is_413_and_the_client_sees_it(chunked: bool) -> None:
    size_bytes = 20_000_000

    async def pieces() -> Any:
        for _ in range(200):
            yield b" " * (size_bytes // 200)

    async with router_rig() as rig:
        status, body = await post_raw(rig, pieces() if chunked else b" " * size_bytes)
        assert (status, body["error"]["code"]) == (413, "request_too_large")
        assert str(rig.spec.body_limit_bytes) in body["error"]["message"]


async def test_a_body_announced_as_too_large_is_refused_before_any_of_it_came(rig: Rig) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.spec.port)
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\n"
        b"Content-Length: 20000000\r\n\r\n"
    )
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 90)
    assert head.startswith(b"HTTP/1.1 413 ")
    writer.close()


def compressed(payload: bytes, form: int) -> bytes:
    made = zlib.compressobj(wbits=form)
    return made.compress(payload) + made.flush()


async def test_compressed_bodies() -> None:
    whole = json.dumps(chat_body()).encode()
    zipped = gzip.compress(whole[:20]) + gzip.compress(b"") + gzip.compress(whole[20:])
    async with router_rig() as rig:
        for encoding, payload in (
            ("gzip", gzip.compress(whole)), ("gzip", zipped), ("GZIP", gzip.compress(whole)),
            ("identity", whole), ("deflate", compressed(whole, 15)),
            ("deflate", compressed(whole, -15)),
            ("gzip", gzip.compress(b" " * 900_000 + whole)),
        ):  # fmt: skip
            status, body = await post_raw(rig, payload, JSON | {"Content-Encoding": encoding})
            assert status == 200, (encoding, body)
        for encoding in ("br", "zstd", "gzip, gzip", "x" * 200):
            status, body = await post_raw(rig, whole, JSON | {"Content-Encoding": encoding})
            assert (status, body["error"]["code"]) == (415, "unsupported_media_type")
            assert "deflate, gzip" in body["error"]["message"]
            assert "install" not in body["error"]["message"]
        for cut in (gzip.compress(whole)[:-9], gzip.compress(whole) + b"?"):
            status, body = await post_raw(rig, cut, JSON | {"Content-Encoding": "gzip"})
            assert (status, body["error"]["code"]) == (400, "invalid_json")


async def test_a_compressed_body_is_limited_by_what_it_expands_to(rig: Rig) -> None:
    headers = JSON | {"Content-Encoding": "gzip"}
    status, _ = await post_raw(rig, gzip.compress(b" " * 20_000_000), headers)
    assert status == 413
    status, body = await post_raw(rig, b"not gzip at all", headers)
    assert (status, body["error"]["code"]) == (400, "invalid_json")


async def test_a_compressed_body_of_very_many_members_is_refused(rig: Rig) -> None:
    body = gzip.compress(json.dumps(chat_body()).encode()) + gzip.compress(b"") * 20_000
    status, answered = await post_raw(rig, body, JSON | {"Content-Encoding": "gzip"})
    assert (status, answered["error"]["code"]) == (400, "invalid_json")


async def test_a_trickling_body_holds_only_its_own_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lmx.router.http.bodies.json_body.READ_DEADLINE_S", 0.2)
    async with router_rig() as rig:
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.spec.port)
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\n"
            b"Content-Length: 100\r\n\r\n{"
        )
        assert (await rig.chat_json())[0] == 200
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 90)
        assert head.startswith(b"HTTP/1.1 408 ")
        writer.close()


async def test_what_a_client_expects(rig: Rig) -> None:
    url = f"{rig.url}/v1/chat/completions"
    async with rig.http.post(url, json=chat_body(), expect100=True) as response:
        assert response.status == 200
    # Anything else is ignored: the request goes the way of all others.
    async with rig.http.post(url, json=chat_body(), headers={"Expect": "a miracle"}) as response:
        assert response.status == 200
    headers = {"Expect": "a miracle", "Host": "stranger.example"}
    async with rig.http.post(url, json=chat_body(), headers=headers) as response:
        body = await response.json()
        assert (response.status, body["error"]["code"]) == (403, "host_not_allowed")


async def test_unknown_paths_and_methods(rig: Rig) -> None:
    for path in ("/nope", "/v2/chat/completions"):
        status, body = await rig.json("GET", path)
        assert (status, body["error"]["code"]) == (404, "not_found_error")
        assert body["error"]["type"] == "not_found_error"
        assert "/docs" in body["error"]["message"]
    async with rig.http.get(f"{rig.url}/v1/chat/completions") as response:
        body = await response.json()
        assert (response.status, body["error"]["code"]) == (405, "method_not_allowed")
        assert response.headers["Allow"] == "POST"
        assert response.headers["X-Request-Id"]


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("HEAD", "/v1/models", 200, None),
        ("HEAD", "/health", 200, None),
        ("HEAD", "/nope", 404, None),
        ("HEAD", "/v1/chat/completions", 405, "POST"),
        ("OPTIONS", "/v1/chat/completions", 405, "POST"),
        ("OPTIONS", "/v1/models", 405, "GET,HEAD"),
        ("PUT", "/v3/models/org/x", 405, "GET,HEAD"),
        ("POST", "/v1/models", 405, "GET,HEAD"),
        ("GET", "/tokenize", 405, "POST"),
        ("PATCH", "/v1/rerank", 405, "POST"),
        ("HEAD", "/", 200, None),
        ("HEAD", "//v1/models", 200, None),
        ("HEAD", "/v1//models", 200, None),
        ("HEAD", "/v1/models/", 200, None),
        ("HEAD", "/models", 200, None),
        ("HEAD", "//models/", 200, None),
        ("HEAD", "/healthz", 200, None),
        ("HEAD", "/ping", 200, None),
        ("POST", "/v1/chat/completions/", 400, None),
        ("POST", "//v1/chat/completions", 400, None),
        ("POST", "/v1//chat/completions", 400, None),
        ("POST", "/chat/completions", 400, None),
        ("POST", "/completions", 400, None),
        ("POST", "/embeddings", 400, None),
        ("GET", "/admin/status/", 404, None),
        ("GET", "//admin/status", 404, None),
        ("GET", "/v2/models", 404, None),
        ("GET", "/v1/%2e%2e/etc/passwd", 404, None),
    ],
)
async def test_methods_and_paths(
    rig: Rig, method: str, path: str, status: int, allow: str | None
) -> None:
    async with rig.http.request(method, URL(f"{rig.url}{path}", encoded=True)) as response:
        assert (response.status, response.headers.get("Allow")) == (status, allow)
        assert "Access-Control-Allow-Origin" not in response.headers
        text = await response.text()
        assert bool(text) is (method != "HEAD")
        if text:
            assert set(json.loads(text)["error"]) == {"message", "type", "param", "code"}


async def test_request_id_round_trip(rig: Rig) -> None:
    own = {"X-Request-Id": "my-id-1"}
    url = f"{rig.url}/v1/chat/completions"
    async with rig.http.post(url, json=chat_body(), headers=own) as response:
        assert response.headers["X-Request-Id"] == "my-id-1"
    async with rig.http.post(url, json=chat_body(stream=True), headers=own) as response:
        assert response.headers["X-Request-Id"] == "my-id-1"
        await response.read()
    assert [s.request.request_id for s in rig.worker.streams] == ["my-id-1", "my-id-1"]
    for path, status in [("/nope", 404), ("/v1/chat/completions", 405)]:
        async with rig.http.get(f"{rig.url}{path}", headers=own) as response:
            assert (response.status, response.headers["X-Request-Id"]) == (status, "my-id-1")
    unfit = {"X-Request-Id": "has a space"}
    async with rig.http.get(f"{rig.url}/v1/models", headers=unfit) as response:
        assert response.headers["X-Request-Id"].startswith("req_")
    big = JSON | own
    async with rig.http.post(url, data=b" " * 2_000_000, headers=big) as response:
        assert (response.status, response.headers["X-Request-Id"]) == (413, "my-id-1")


async def test_an_unexpected_exception_is_a_500_that_leaks_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def explode(_: object) -> None:
        raise RuntimeError("secret detail")

    async with router_rig() as rig:
        monkeypatch.setattr(chat, "parse_chat", explode)
        async with rig.chat() as response:
            body = await response.json()
            request_id = response.headers["X-Request-Id"]
        assert (response.status, body["error"]["code"]) == (500, "internal_server_error")
        assert request_id in body["error"]["message"]
        assert "secret" not in str(body)


async def test_an_unexpected_exception_in_a_stream_is_an_error_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def explode(*_: object) -> bytes:
        raise RuntimeError("secret detail")

    async with router_rig() as rig:
        monkeypatch.setattr("lmx.router.rendering.openai.ChunkWriter.last", explode)
        async with rig.chat(stream=True) as response:
            lines = data_lines(await response.read())
        assert "internal_server_error" in lines[-1]
        assert "secret" not in lines[-1]


async def test_an_unknown_model_is_404_with_the_known_ones(rig: Rig) -> None:
    status, body = await rig.chat_json(model="gpt-9")
    got, same = await rig.json("GET", "/v1/models/gpt-9")
    assert got == 404
    assert status == 404
    assert body["error"]["type"] == "invalid_request_error"
    assert (body["error"]["param"], body["error"]["code"]) == ("model", "model_not_found")
    assert MODEL in body["error"]["message"]
    assert same == body


async def test_models(rig: Rig) -> None:
    await rig.publish(
        ready(
            MODEL,
            INSTANCE,
            context_length=4096,
            created_s=5,
            aliases=("tiny", "auto"),
            source="owner/tiny",
        ),
        cold("big", SlotState.FETCHING, source="/private/models/big"),
    )
    for prefix in ("/v1", "/v3"):
        _, listed = await rig.json("GET", f"{prefix}/models")
        assert listed["object"] == "list"
        first, second = listed["data"]
        assert (first["id"], first["object"], first["created"]) == (MODEL, "model", 5)
        assert (first["state"], first["context_length"]) == ("ready", 4096)
        assert first["modalities"] == ["text"]
        assert second["state"] == "fetching"
        assert (first["owned_by"], second["owned_by"]) == ("owner", "lmx")
        assert "/private" not in str(listed)
        for name in (MODEL, MODEL.replace("/", "%2F"), "tiny"):
            status, body = await rig.json("GET", f"{prefix}/models/{name}")
            assert (status, body) == (200, first)


async def get_health(rig: Rig, path: str = "/health") -> tuple[int, Any]:
    return await rig.json("GET", path)


async def test_health_when_all_is_well(rig: Rig) -> None:
    for path in ("/health", "/v1/health", "/status"):
        status, body = await get_health(rig, path)
        assert (status, body["status"], body["reason"]) == (200, "healthy", None)
        assert body["version"] == "1.2.3"
        assert body["engines"] == {"loaded": 1, "unloaded": 0, "total": 1}
        assert set(body["system"]) == {"uptime_seconds", "memory_usage_mb", "cpu_usage_percent"}
        assert body["engines_summary"] == [
            {"engine_id": MODEL, "status": "loaded", "state": "ready"}
        ]
        assert isinstance(body["timestamp"], int)


async def test_health_names_no_models_to_who_has_no_key() -> None:
    key = "an-api-key-for-tests"
    keys = ({"X-Api-Key": key}, {"Authorization": f"Bearer {key}"})
    async with router_rig(api_keys=(key,), beat_interval_s=5.0) as rig:
        for problem in (None, "/secret place/model is gone"):
            if problem is not None:
                lost = cold(MODEL, SlotState.COLD, failed=True, problem=problem)
                await rig.publish(replace(lost, source="/secret place/model"))
            for path in ("/health", "/healthz", "/v1/health", "/status", "/"):
                for headers in ({}, *keys, {"X-Admin-Key": rig.spec.admin_key}):
                    async with rig.http.get(f"{rig.url}{path}", headers=headers) as response:
                        text = await response.text()
                    assert (MODEL in text) is bool(headers), (path, headers, text)
                    assert "secret" not in text
                    assert ("no model can serve" in text) is (problem is not None)


async def test_health_when_the_only_model_can_never_be_loaded() -> None:
    async with router_rig(beat_interval_s=5.0) as rig:
        lost = cold(MODEL, SlotState.COLD, failed=True, problem="there is no folder /nowhere")
        await rig.publish(lost)
        status, body = await get_health(rig)
        assert (status, body["status"]) == (503, "unhealthy")
        assert "there is no folder [path]" in body["reason"]
        # Another one has a chance, as the same one has that is loaded all the same.
        for models in ((lost, cold("b", SlotState.COLD)), (ready(MODEL, INSTANCE, failed=True),)):
            await rig.publish(*models)
            assert (await get_health(rig))[0] == 200


@pytest.mark.parametrize(
    ("slot", "status"),
    [
        (SlotState.COLD, 200),
        (SlotState.QUEUED, 200),
        (SlotState.FETCHING, 200),
        (SlotState.BACKOFF, 200),
        (SlotState.OCCUPIED, 200),
        (SlotState.QUARANTINED, 503),
        (SlotState.HELD, 503),
    ],
)
async def test_health_follows_what_can_be_served(slot: SlotState, status: int) -> None:
    # A supervisor counts as silent after five beats, which a busy machine may be late by.
    async with router_rig(beat_interval_s=5.0) as rig:
        loading = {"worker": WorkerState.LOADING} if slot is SlotState.OCCUPIED else {}
        await rig.publish(cold("m", slot, problem="crashed 4 times", **loading))
        got, body = await get_health(rig)
        assert got == status
        assert body["engines"] == {"loaded": 0, "unloaded": 1, "total": 1}
        if status == 503:
            assert "crashed 4 times" in body["reason"]


async def test_health_without_supervisor_or_models_is_503(rig: Rig) -> None:
    await rig.publish()
    status, body = await get_health(rig)
    assert (status, body["reason"]) == (503, "no model is configured")
    rig.supervisor.answers_beats = False
    await until(lambda: not rig.router.supervisor.alive)
    status, body = await get_health(rig)
    assert status == 503
    assert "supervisor" in body["reason"]


def test_a_router_that_has_just_begun_says_so() -> None:
    assert unhealthy_reason(None, silent=False) == "lmx is starting"
    assert "supervisor" in (unhealthy_reason(None, silent=True) or "")


async def test_health_is_degraded_while_nothing_can_be_loaded(rig: Rig) -> None:
    why = "the machine is short of memory"
    await rig.publish(ready(MODEL, INSTANCE), cold("m"), no_loads=why)
    status, body = await get_health(rig)
    assert (status, body["status"], body["reason"]) == (200, "degraded", why)
    await rig.publish(cold("m"), no_loads=why)
    status, body = await get_health(rig)
    assert (status, body["status"], why in body["reason"]) == (503, "unhealthy", True)
    await rig.publish(ready(MODEL, INSTANCE))
    rig.supervisor.answers_beats = False
    await until(lambda: not rig.router.supervisor.alive)
    status, body = await get_health(rig)
    assert (status, body["status"]) == (503, "degraded"), "what is loaded answers on"


async def test_a_worker_knows_how_long_a_request_may_wait_for_memory() -> None:
    async with router_rig(load_wait_s=7.0) as rig:
        await rig.chat_json()
        (stream,) = rig.worker.streams
        assert 0.0 < (stream.request.memory_wait_s or 0.0) <= 7.0


async def test_requests_on_kept_connections_are_refused_while_ending(rig: Rig) -> None:
    await rig.chat_json()
    rig.router.traffic.close()
    async with rig.chat() as response:
        assert response.status == 503
        assert (await response.json())["error"]["code"] == "shutting_down"
        assert int(response.headers["Retry-After"]) >= 1
        assert response.headers["Connection"] == "close"


async def test_a_hundred_idle_and_half_sent_connections_hold_nothing(rig: Rig) -> None:
    idle = [socket.create_connection(("127.0.0.1", rig.spec.port)) for _ in range(100)]
    for connection in idle[:50]:
        connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost:")
    assert (await asyncio.wait_for(rig.chat_json(), 90))[0] == 200
    for connection in idle:
        connection.close()
