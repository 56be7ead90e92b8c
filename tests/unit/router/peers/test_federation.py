"""Requests that one machine answers for another, with real routers on loopback."""

import asyncio
import json
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import aiohttp
import pytest

from lmx.protocol.errors import ErrorCode
from lmx.protocol.messages.control import Done, DrainMachine
from lmx.protocol.messages.keys import ApiKey, KeyFamily, Keyring, KeyScope
from lmx.protocol.messages.peers import Peer, PeerKind, PeerList
from lmx.protocol.messages.snapshot import Route
from lmx.protocol.messages.tasks import TaskFinished, Vectors
from lmx.protocol.states import MediaKind, ModelKind
from lmx.protocol.wire.codec import to_map
from lmx.router.authorities import Authorities
from lmx.router.http.bodies import json_body
from lmx.router.http.outcome import RequestContext
from lmx.router.metrics.requests import RequestMetrics
from lmx.router.peers import federation as federation_module
from lmx.router.peers import link as peer_link
from lmx.router.peers import relay
from lmx.router.peers.forwarded import client_tag, read_record
from lmx.router.peers.link import PeerLink
from lmx.router.peers.machine import MachineState, OfferedModel
from lmx.router.supervisor import queries
from lmx.router.supervisor.link import SupervisorLink
from tests.support.fakes.fake_peers import (
    FakeStream,
    Script,
    cold,
    fails,
    plays,
    ready,
    refuses,
    until,
    until_cancelled,
)
from tests.support.rigs.federation_rig import (
    CLIENT_KEY,
    asked,
    federation,
    know_each_other,
    peer_key,
)
from tests.support.rigs.router_rig import INSTANCE, MODEL, TEXTS, Rig, answer, joined_text

REMOTE = "org/remote-model"
MESSAGE = [{"role": "user", "content": "hi"}]


async def with_remote(rig: Rig, *asking: Rig, **fields: Any) -> None:
    """Have a machine offer ``REMOTE`` alone, and the others know."""
    fields.setdefault("max_rows", 4)
    await rig.publish(ready(REMOTE, INSTANCE, created_s=1, aliases=("far",), **fields))
    for one in asking:
        await asked(one)


FAMILIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGE},
    "/v1/completions": {"prompt": "hi"},
    "/v1/messages": {"messages": MESSAGE, "max_tokens": 9},
    "/v1/responses": {"input": "hi"},
    "/api/chat": {"messages": MESSAGE, "stream": False},
    "/api/generate": {"prompt": "hi", "stream": False},
    "/infill": {"input_prefix": "hi", "input_suffix": ""},
    "/api/v0/chat/completions": {"messages": MESSAGE},
}


async def test_a_machine_answers_for_its_peer_by_every_family() -> None:
    async with federation("ab") as (a, b):
        await with_remote(b, a)
        for path, body in FAMILIES.items():
            for name in (REMOTE, "far", f"{REMOTE}@b"):
                url = f"{a.url}{path}"
                async with a.http.post(url, json={"model": name, **body}) as response:
                    text = await response.text()
                    assert response.status == 200, (path, name, text)
                    assert response.headers["X-Lmx-Machine"] == "b"
                    assert "X-Job-Id" not in response.headers
                    assert json.dumps("".join(TEXTS), ensure_ascii=False)[1:-1] in text
                    ignored = response.headers.get("X-Lmx-Ignored", "")
                    assert ignored == ("store" if "responses" in path else "")
        assert not a.worker.streams
        # It is counted where the client came in, and there as the peer's.
        reading = a.router.metrics.read().models[REMOTE]
        assert (reading.requests, reading.reasons) == (24, {"stop": 24})
        assert reading.completion_tokens == 24 * len(TEXTS)
        assert reading.cached_tokens == 24 * 4
        assert a.router.peers.links[0].running == 0
        _, listed = await a.admin("GET", "/admin/requests?ended=100")
        shown = listed["ended"]
        assert len(shown) == 24
        assert {(one["machine"], one["model"], one["state"]) for one in shown} == {
            ("b", REMOTE, "completed")
        }
        assert {one["tokens"] for one in shown} == {len(TEXTS)}
        _, listed = await b.admin("GET", "/admin/requests?ended=100")
        assert {one["machine"] for one in listed["ended"]} == {None}


async def test_a_peer_answers_on_v3_by_the_rules_of_v3() -> None:
    async with federation("ab") as (a, b):
        await with_remote(b, a)
        for path in ("/v3/chat/completions", "/v1/chat/completions"):
            body = {"model": REMOTE, "messages": MESSAGE, "stop": "x", "stream": True}
            async with a.http.post(f"{a.url}{path}", json=body) as response:
                assert response.status == 200
                await response.read()
            assert b.worker.streams[-1].request.include_stop is ("v3" in path), path
            for rig in (a, b):
                await counts(rig, path)
        status, found = await a.post_json(
            "/v3/chat/completions", model=REMOTE, messages=MESSAGE, stream=True,
            include_stop_str_in_output=False,
        )  # fmt: skip
        assert (status, found["error"]["param"]) == (400, "include_stop_str_in_output")


async def counts(rig: Rig, path: str) -> None:
    """Wait until a router has counted an answer under a route: it does so after its last byte."""
    await until(lambda: ("POST", path, "2xx") in rig.router.metrics.read().http)


async def test_a_request_that_a_peer_computes_is_listed_and_can_be_cancelled() -> None:
    async def speaks(stream: FakeStream) -> None:
        await stream.accept()
        await stream.say("one ")
        await until_cancelled(stream)

    async with federation("ab", {"b": speaks}) as (a, b):
        await a.publish()
        await asked(a)

        async def live() -> list[Any]:
            _, listed = await a.admin("GET", "/admin/requests")
            return [one for one in listed["data"] if one["machine"] == "b"]

        for stream in (True, False):
            call = asyncio.create_task(ended(a.chat(stream=stream)))
            async with asyncio.timeout(180):
                while not (found := await live()) or (stream and found[0]["ttft_s"] is None):
                    await asyncio.sleep(0.02)
            (one,) = found
            assert (one["state"], one["stream"], one["waits_for"]) == ("running", stream, None)
            # It is none of this machine's own.
            assert not list(a.router.live.in_foreground)
            status, _ = await a.admin("POST", f"/admin/requests/{one['id']}/cancel")
            assert status == 200
            assert '"request_cancelled"' in await call
            assert not await live()
        await until(lambda: not b.router.workers.open_streams)
        assert a.router.peers.links[0].running == 0


async def ended(call: Any) -> str:
    """The whole answer of a request."""
    async with call as response:
        return str(await response.text())


@pytest.mark.parametrize("path", [path for path in FAMILIES if path != "/api/v0/chat/completions"])
async def test_a_stream_comes_through_as_a_machine_of_its_own_sends_it(path: str) -> None:
    async with federation("ab") as (a, b):
        await with_remote(b, a)
        seen = []
        for rig in (a, b):
            body = {"model": REMOTE, "store": False, **FAMILIES[path], "stream": True}
            async with rig.http.post(f"{rig.url}{path}", json=body) as response:
                assert response.status == 200
                seen.append((response.content_type, await response.text()))
        (kind, text), (own_kind, own_text) = seen
        assert kind == own_kind
        assert "\x1e" not in text
        assert text.count("\n\n" if "api" not in path else "\n") == own_text.count(
            "\n\n" if "api" not in path else "\n"
        )
        assert text[-30:].split('"')[-1] == own_text[-30:].split('"')[-1]
        assert a.router.metrics.read().models[REMOTE].completion_tokens == len(TEXTS)


async def test_the_first_machine_that_can_is_taken_and_the_next_one_if_it_fails() -> None:
    """It has sent nothing: another one answers, whatever the family and the code."""
    for code in (ErrorCode.QUEUE_FULL, ErrorCode.INSUFFICIENT_MEMORY, ErrorCode.SHUTTING_DOWN):
        scripts = {"b": refuses(code, "not now"), "c": answer}
        async with federation("abc", scripts) as (a, b, _):
            await a.publish()
            await asked(a)
            for stream in (False, True):
                async with a.chat(stream=stream) as response:
                    assert response.status == 200
                    assert response.headers["X-Lmx-Machine"] == "c"
                    assert "quoted" in await response.text()
            assert len(b.worker.streams) == 2


async def test_a_machine_that_is_drained_leaves_all_requests_to_the_others() -> None:
    async with federation("ab") as (a, b):
        loaded = ready(MODEL, INSTANCE, created_s=1)
        await a.publish(loaded, default=MODEL, drained=True)
        # Its own clients are answered by the other one, by every name, and also what would be kept.
        for name in (MODEL, "auto", None):
            async with a.chat(model=name) as response:
                assert (response.status, response.headers["X-Lmx-Machine"]) == (200, "b"), name
        status, found = await a.post_json("/v1/responses", model=MODEL, input="hi")
        assert (status, found["status"]) == (200, "completed")
        assert not a.worker.streams
        # It says so to its peers, to load balancers, and in lists.
        await asked(b)
        assert [link.state.drained for link in b.router.peers.links if link.state] == [True]
        async with a.http.get(f"{a.url}/healthz") as response:
            assert (response.status, response.headers["Retry-After"]) == (503, "5")
            assert "drained" in (await response.json())["reason"]
        for name in (MODEL, f"{MODEL}@a"):
            async with b.chat(model=name) as response:
                assert response.status == (200 if name == MODEL else 503)
        # What only it can answer is refused: also what a peer sends that does not know yet.
        for path, body in (
            ("/v1/chat/completions", {"model": f"{MODEL}@a", "messages": MESSAGE}),
            ("/v1/responses", {"model": MODEL, "input": "hi", "background": True}),
        ):
            status, found = await a.post_json(path, **body)
            assert (status, found["error"]["code"]) == (503, "model_drained"), path
        headers = {"Authorization": f"Bearer {peer_key('a')}", "X-Lmx-Forwarded": "b"}
        body = {"model": MODEL, "messages": MESSAGE}
        url = f"{a.url}/v1/chat/completions"
        async with a.http.post(url, json=body, headers=headers) as response:
            assert (await response.json())["error"]["code"] == "model_drained"
        # Both: nobody answers. A machine without peers refuses likewise.
        await b.publish(loaded, default=MODEL, drained=True)
        await asked(a)
        status, found = await a.chat_json()
        assert (status, found["error"]["code"]) == (503, "model_drained")
        a.router.peers.put(PeerList.of(()))
        assert (await a.chat_json())[0] == 503
        assert not a.worker.streams
        await a.publish(loaded, default=MODEL)
        assert (await a.chat_json())[0] == 200


async def test_a_machine_is_drained_once_the_answer_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queries, "_SNAPSHOT_S", 3600.0)
    async with federation("a") as (a,):
        a.supervisor.replies[DrainMachine] = Done("it is drained")
        loaded = ready(MODEL, INSTANCE, created_s=1)
        for count, drained in enumerate((True, False), 1):
            answer = asyncio.create_task(a.admin("POST", "/admin/drain", drained=drained))
            await until(lambda count=count: len(a.asked(DrainMachine)) == count)  # type: ignore[misc]
            assert not (await asyncio.wait({answer}, timeout=0.3))[0]
            await a.supervisor.publish(loaded, default=MODEL, drained=drained)
            assert (await answer)[0] == 200
            assert (await a.chat_json())[0] == (503 if drained else 200)


async def test_what_every_machine_would_refuse_is_refused_at_once() -> None:
    scripts = {"b": refuses(ErrorCode.CONTEXT_LENGTH_EXCEEDED, "too long", param="messages")}
    async with federation("abc", scripts) as (a, _, c):
        await a.publish()
        await asked(a)
        status, found = await a.chat_json()
        assert (status, found["error"]["code"]) == (400, "context_length_exceeded")
        assert found["error"]["param"] == "messages"
        assert not c.worker.streams
        assert a.router.metrics.forwarded_to("b") == {"refused": 1}
        assert not a.router.metrics.read().models[MODEL].prompt_tokens


async def test_a_machine_that_dies_before_the_first_token_loses_no_request() -> None:
    async def accepts_and_waits(stream: FakeStream) -> None:
        await stream.accept()

    async with federation("abc", {"b": accepts_and_waits}, ping_interval_s=0.2) as (a, b, c):
        await a.publish()
        await c.publish()
        await b.publish(ready(MODEL, INSTANCE, created_s=1, max_rows=8))
        await asked(a)
        tasks: list[asyncio.Task[Any]] = [
            asyncio.create_task(work)
            for work in (a.chat_json(), a.chat_events(), a.chat_json(), a.chat_events())
        ]
        await until(lambda: len(b.worker.streams) == 4)
        await c.publish(ready(MODEL, INSTANCE, created_s=1, max_rows=8))
        await asked(a)
        # As a process that was killed: its connections are reset, and nothing listens any more.
        b.router._close_server()
        for connection in list(b.router._runner.server.connections):  # type: ignore[union-attr]
            connection.transport.abort()
        whole, events, *_ = [await task for task in tasks]
        assert whole[1]["choices"][0]["message"]["content"] == "".join(TEXTS)
        assert joined_text(events) == "".join(TEXTS)
        assert len(c.worker.streams) == 4
        assert not a.router.peers.links[0].running


async def test_a_machine_that_stops_answering_loses_its_part_in_two_seconds() -> None:
    """It accepts connections and says nothing, as one that was stopped; so does a request there."""
    async with federation("ab", answer_s=0.9) as (a, b):

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if stopped.is_set() or b"POST" in await reader.read(4):
                await asyncio.sleep(3600)
            state = {**to_map(b.router.peers.own_state(None)), "machine": "mute"}
            payload = json.dumps(state).encode()
            head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(payload)}\r\nConnection: close\r\n\r\n"
            writer.write(head.encode() + payload)
            await writer.drain()
            writer.close()

        stopped = asyncio.Event()
        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        mute = Peer("mute", f"http://127.0.0.1:{port}")
        a.router.peers.put(PeerList.of((mute,)))
        await until(lambda: a.router.peers.links[0].answers)
        request = asyncio.create_task(a.chat_json(model=f"{MODEL}@mute"))
        await until(lambda: a.router.peers.links[0].running)
        began_s = asyncio.get_running_loop().time()
        stopped.set()
        await until(lambda: not a.router.peers.links[0].answers)
        assert asyncio.get_running_loop().time() - began_s < 60
        status, found = await request
        assert (status, found["error"]["code"]) == (503, "peer_unavailable")
        status, _ = await a.chat_json(model=f"{MODEL}@mute")
        assert status == 503
        server.close()


async def test_a_stream_that_breaks_off_ends_with_a_coded_error() -> None:
    hold = asyncio.Event()
    scripts = {"b": plays("Hello", hold)}
    async with federation("abc", scripts) as (a, b, c):
        await a.publish()
        await asked(a)
        body = {"model": f"{MODEL}@b", "messages": MESSAGE, "stream": True}
        for path in ("/v1/chat/completions", "/v1/messages", "/api/chat"):
            limit = {"max_tokens": 9} if path == "/v1/messages" else {}
            url = f"{a.url}{path}"
            async with a.http.post(url, json=body | limit) as response:
                text = b""
                async for piece in response.content.iter_any():
                    text += piece
                    if b"Hello" in text:
                        for one in list(b.router._runner.server.connections):  # type: ignore[union-attr]
                            one.transport.abort()
                assert b"peer_lost" in text.splitlines()[-1 if path == "/api/chat" else -2], text
            await until(lambda: a.router.peers.links[0].answers)
        assert not c.worker.streams
        assert a.router.metrics.read().models[MODEL].errors == {"peer_lost": 3}


async def test_a_peers_error_in_a_stream_is_listed_as_what_it_is() -> None:
    scripts = {"b": plays("Hello", fails(ErrorCode.WORKER_OUT_OF_MEMORY, "no room"))}
    async with federation("ab", scripts) as (a, _):
        assert '"worker_out_of_memory"' in await ended(a.chat(model=f"{MODEL}@b", stream=True))
        _, listed = await a.admin("GET", "/admin/requests?ended=1")
        (one,) = listed["ended"]
        assert (one["error"], one["error_message"]) == (
            "worker_out_of_memory", "The machine b reported worker_out_of_memory.",
        )  # fmt: skip


async def test_the_end_of_the_router_is_said_to_whom_a_peer_answers() -> None:
    async def speaks(stream: FakeStream) -> None:
        await stream.accept()
        await stream.say("Hello")
        await until_cancelled(stream)

    async with federation("ab", {"b": speaks}) as (a, b):
        whole = asyncio.create_task(a.chat_json(model=f"{MODEL}@b"))
        async with a.chat(model=f"{MODEL}@b", stream=True) as response:
            seen = await response.content.readany()
            await until(lambda: len(b.worker.streams) == 2)
            ending = asyncio.create_task(a.router.stop(grace_s=0.0))
            seen += await response.content.read()
        assert b'"shutting_down"' in seen
        status, found = await whole
        assert (status, found["error"]["code"]) == (503, "shutting_down")
        await ending


async def test_pings_go_to_a_client_while_machines_are_asked_and_the_last_may_be_its_own() -> None:
    go = asyncio.Event()
    scripts = {"b": refuses(ErrorCode.QUEUE_FULL, "not now", go)}
    async with federation("ab", scripts, quiet_s=0.1, ping_interval_s=0.1) as (a, b):
        # The peer has it loaded, this machine has it loaded too, and is busy.
        await a.publish(ready(MODEL, INSTANCE, created_s=1, max_rows=1))
        await with_model_running(a)
        await asked(a)
        url = f"{a.url}/v1/chat/completions"
        async with a.http.post(
            url, json={"model": MODEL, "messages": MESSAGE, "stream": True}
        ) as response:
            seen = b""
            async for piece in response.content.iter_any():
                seen += piece
                if seen.count(b": ping") > 2:
                    go.set()
        assert joined_text([one[6:] for one in seen.decode().split("\n\n") if one[:5] == "data:"])
        assert len(b.worker.streams) == 1


async def test_a_machine_that_begins_no_stream_is_given_up_in_the_end() -> None:
    async def says_nothing(_: FakeStream) -> None:
        await asyncio.Event().wait()

    async with federation(
        "ab", {"b": says_nothing}, quiet_s=0.1, ping_interval_s=0.1, sync_timeout_s=0.5
    ) as (a, b):
        await a.publish(ready(MODEL, INSTANCE, created_s=1, max_rows=1))
        await with_model_running(a)
        await asked(a)
        async with asyncio.timeout(90), a.chat(stream=True) as response:
            text = await response.text()
        assert "data: [DONE]" in text
        assert len(b.worker.streams) == 1


async def with_model_running(rig: Rig) -> None:
    """Have one request under way that never ends, and later ones answered."""

    async def waits(stream: FakeStream) -> None:
        await stream.accept()

    before = len(rig.worker.streams)
    rig.worker.script = waits
    task = asyncio.create_task(rig.chat_json(model=f"{MODEL}@{rig.spec.machine}"))
    await until(lambda: len(rig.worker.streams) > before)
    rig.worker.script = answer
    rig.tasks = [task]  # type: ignore[attr-defined]


async def test_no_request_crosses_two_hops() -> None:
    """Each offers the other what it has not any more."""
    async with federation("ab") as (a, b):
        await a.publish()
        await with_remote(b, a)
        await b.publish()
        status, found = await a.chat_json(model=REMOTE)
        assert (status, found["error"]["code"]) == (404, "model_not_found")
        # Whoever says that it was forwarded is believed in this alone.
        await with_remote(b, a)
        headers = {"X-Lmx-Forwarded": "anybody"}
        url, body = f"{a.url}/v1/chat/completions", {"model": REMOTE, "messages": MESSAGE}
        async with a.http.post(url, json=body, headers=headers) as response:
            assert response.status == 404
            assert "X-Lmx-Outcome" not in response.headers
        # A peer's key does not open the peers of its machine, though nothing is said of a hop.
        headers = {"Authorization": f"Bearer {peer_key('a')}"}
        async with a.http.post(url, json=body, headers=headers) as response:
            assert response.status == 404
        async with a.http.post(url, json=body) as response:
            assert response.status == 200
            assert "X-Lmx-Outcome" not in response.headers


async def test_a_clients_key_is_checked_here_and_is_not_sent_on() -> None:
    async with federation("ab") as (a, b):
        await with_remote(b, a)
        url, body = f"{a.url}/v1/chat/completions", {"model": REMOTE, "messages": MESSAGE}
        async with a.http.post(url, json=body) as response:
            assert response.status == 200
        (stream,) = b.worker.streams
        owner = ApiKey.of_secret(peer_key("b")).owner
        assert stream.request.owner is not None
        assert stream.request.owner.startswith(f"{owner}/"), "each client has its turn"
        assert ApiKey.of_secret(CLIENT_KEY).owner not in repr(stream.request)
        async with a.http.post(url, json=body, headers={"Authorization": "Bearer x"}) as response:
            assert response.status == 401
        limited = replace(
            ApiKey.of_secret("sk-lmx-limited-of-this-test", "few"), models=("org/tiny-*",)
        )
        a.router.keys.put(Keyring.of((limited,)))
        headers = {"Authorization": "Bearer sk-lmx-limited-of-this-test"}
        for name in (REMOTE, "far", f"{REMOTE}@b", "far@b"):
            async with a.http.post(url, json=body | {"model": name}, headers=headers) as response:
                text = await response.text()
                assert response.status == 403, text
                assert f"not for the model '{REMOTE}'" in text
        assert len(b.worker.streams) == 1
        async with a.http.get(f"{a.url}/v1/models", headers=headers) as response:
            assert REMOTE not in await response.text()


async def test_a_peer_key_that_was_revoked_is_no_fault_of_the_client() -> None:
    async with federation("ab") as (a, b):
        await with_remote(b, a)
        b.router.keys.put(Keyring.of((), required=True))
        for _ in range(2):
            status, found = await a.chat_json(model=REMOTE)
            assert (status, found["error"]["code"]) == (503, "peer_unavailable")
        await until(lambda: "refuses" in (a.router.peers.links[0].problem or ""))
        assert not b.worker.streams


async def test_clients_of_a_peer_share_prefixes_as_they_do_there() -> None:
    keys = [ApiKey.of_secret(f"sk-lmx-number-{n}-of-this-test", f"k{n}") for n in range(2)]
    async with federation("ab") as (a, b):
        await with_remote(b, a)
        a.router.keys.put(Keyring.of((keys[0], replace(keys[1], priority=7))))
        for number in (0, 1, 0):
            headers = {"Authorization": f"Bearer sk-lmx-number-{number}-of-this-test"}
            url, body = f"{a.url}/v1/chat/completions", {"model": REMOTE, "messages": MESSAGE}
            async with a.http.post(url, json=body, headers=headers) as response:
                assert response.status == 200
        salts = [stream.request.cache_salt for stream in b.worker.streams]
        assert salts[0] == salts[2]
        assert salts[0] != salts[1]
        assert [stream.request.priority for stream in b.worker.streams] == [0, 7, 0]


def test_a_clients_address_is_not_found_by_trying_all() -> None:
    context = RequestContext("req_1", 0.0, requester="192.168.1.20")
    plain = blake2b(context.requester.encode(), digest_size=8).hexdigest()
    assert client_tag(context) == client_tag(context) != plain


async def test_others_have_their_turn_between_the_steps_with_a_large_body(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps: list[str] = []

    async def turn() -> None:
        steps.append("turn")

    def noted(name: str) -> None:
        really = getattr(federation_module, name)

        def step(*given: Any, **options: Any) -> Any:
            steps.append(name)
            return really(*given, **options)

        monkeypatch.setattr(federation_module, name, step)

    async with federation("ab") as (a, b):
        await with_remote(b, a)
        monkeypatch.setattr(json_body, "yield_to_loop", turn)
        for name in ("movable", "named_parts", "beginning", "_dumped"):
            noted(name)
        message = [{"role": "user", "content": "word " * 100_000}]
        assert (await a.chat_json(model=REMOTE, messages=message))[0] == 200
    first = steps.index("movable")
    assert steps[first - 1 : first + 7] == [
        "turn", "movable", "turn", "named_parts", "turn", "beginning", "turn", "_dumped",
    ]  # fmt: skip


async def test_a_message_of_a_websocket_is_answered_by_a_peer() -> None:
    """What it has not stored is continued on the connection, whichever machine answers."""
    async with federation("ab") as (a, b):
        await with_remote(b, a)
        async with a.http.ws_connect(f"{a.url}/v1/responses") as socket:
            previous = None
            for said in ("one", "two"):
                fields = {"input": said, "store": False, "previous_response_id": previous}
                await socket.send_json({"type": "response.create", "model": REMOTE, **fields})
                while (event := await socket.receive_json(timeout=180))["type"] != (
                    "response.completed"
                ):
                    assert event["type"] != "error", event
                previous = event["response"]["id"]
        sent = b.worker.streams[-1].request.messages or ()
        assert [one["content"] for one in sent] == ["one", "".join(TEXTS), "two"]


async def test_kept_responses_stay_where_they_can_be_fetched() -> None:
    async with federation("ab") as (a, b):
        for rig in (a, b):
            await rig.publish(ready(MODEL, INSTANCE, created_s=1, max_rows=4))
        await asked(a)
        await with_model_running(a)
        status, _ = await a.post_json("/v1/responses", model=MODEL, input="hi", store=False)
        assert (status, len(b.worker.streams)) == (200, 1), "the idle machine has it"
        status, kept = await a.post_json("/v1/responses", model=MODEL, input="hi")
        assert (status, len(b.worker.streams)) == (200, 1), "this machine keeps it"
        status, _ = await a.post_json(
            "/v1/responses", model=MODEL, input="on", previous_response_id=kept["id"]
        )
        assert (status, len(b.worker.streams)) == (200, 1)
        status, made = await a.post_json("/v1/responses/compact", model=MODEL, input="hi")
        assert (status, len(b.worker.streams)) == (200, 1), "this machine alone can read it"
        status, _ = await a.post_json(
            "/v1/responses", model=MODEL, input=made["output"], store=False
        )
        assert (status, len(b.worker.streams)) == (200, 1)
        await with_remote(b, a)
        status, found = await a.post_json(
            "/v1/responses", model=REMOTE, input="on", previous_response_id=kept["id"]
        )
        assert (status, found["error"]["param"]) == (400, "previous_response_id"), found
        assert f"{REMOTE!r} is on the machine b" in found["error"]["message"]
        # A file is on this machine too.
        form = aiohttp.FormData()
        form.add_field("purpose", "user_data")
        form.add_field("file", b"a note", filename="a.txt")
        async with a.http.post(f"{a.url}/v1/files", data=form) as response:
            file = await response.json()
        parts = [{"type": "file", "file": {"file_id": file["id"]}}]
        named = {"messages": [{"role": "user", "content": parts}]}
        status, found = await a.chat_json(model=MODEL, **named)
        assert (status, len(b.worker.streams)) == (200, 1), found
        # What only this machine can read is refused, with the name of the machine that has it.
        for path, body in (
            ("/v1/responses/compact", {"input": "hi"}),
            ("/v1/responses", {"input": made["output"], "store": False}),
            ("/v1/responses", {"input": "hi", "context_management": [{"type": "compaction"}]}),
        ):
            status, found = await a.post_json(path, model=REMOTE, **body)
            assert (status, found["error"]["code"]) == (400, "invalid_value"), found
            assert f"{REMOTE!r} is on the machine b" in found["error"]["message"]
        assert len(b.worker.streams) == 1


async def test_a_conversation_stays_where_its_prefix_is() -> None:
    """20 turns over three machines that are all idle: each but the first finds all of the turn
    before."""
    async with federation("abc") as rigs:
        a = rigs[0]
        for rig in rigs:
            await rig.publish(ready(MODEL, INSTANCE, created_s=1, max_rows=2))
        await asked(a)
        # Two conversations by turns, each begun while this machine was busy otherwise.
        talks: list[list[dict[str, str]]] = [[], []]
        machines: list[list[str]] = [[], []]
        await with_model_running(a)
        await with_model_running(a)
        for turn in range(20):
            for number, talk in enumerate(talks):
                talk.append({"role": "user", "content": f"{number} {turn} " + "word " * 300})
                body = {"model": MODEL, "messages": talk}
                async with a.http.post(f"{a.url}/v1/chat/completions", json=body) as response:
                    assert response.status == 200
                    machines[number].append(response.headers["X-Lmx-Machine"])
                    await response.read()
                talk.append({"role": "assistant", "content": "".join(TEXTS)})
        for visited in machines:
            assert len(set(visited)) == 1, visited


async def test_a_busy_machine_sends_new_conversations_to_an_idle_one() -> None:
    async with federation("ab") as (a, b):
        for rig in (a, b):
            await rig.publish(ready(MODEL, INSTANCE, created_s=1, max_rows=1))
        await asked(a)
        async with a.chat() as response:
            assert response.headers["X-Lmx-Machine"] == "a"
        await with_model_running(a)
        async with a.chat() as response:
            assert response.headers["X-Lmx-Machine"] == "b"
        assert len(b.worker.streams) == 1
        # What can't be loaded here is answered where it is loaded.
        await a.publish(cold(MODEL), no_loads="the machine's memory runs out")
        async with a.chat() as response:
            assert response.headers["X-Lmx-Machine"] == "b"


async def test_the_machine_with_less_to_do_for_its_speed_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fast: list[RequestMetrics] = []
    monkeypatch.setattr(
        RequestMetrics, "last_tokens_per_s", lambda one, _: 80.0 if one in fast else 20.0
    )
    async with federation("ab") as (a, b):
        fast.append(a.router.metrics)
        for rig in (a, b):
            await rig.publish(ready(MODEL, INSTANCE, created_s=1, max_rows=4))
        for rig in (a, a, b):
            await with_model_running(rig)
        await asked(a)
        async with a.chat() as response:
            assert response.headers["X-Lmx-Machine"] == "a"
        await with_model_running(b)
        # Without a supervisor nothing can be loaded: not even a machine that is full is behind.
        await a.publish(cold(MODEL))
        await b.publish(ready(MODEL, INSTANCE, created_s=1, max_rows=1))
        await asked(a)
        monkeypatch.setattr(SupervisorLink, "alive", property(lambda _: False))
        async with a.chat() as response:
            assert response.headers["X-Lmx-Machine"] == "b"


async def test_the_lists_of_models_are_one() -> None:
    async with federation("ab") as (a, b):
        await b.publish(
            ready(MODEL, INSTANCE, created_s=1),
            ready(REMOTE, INSTANCE, created_s=1, aliases=("far",), kind=ModelKind.CHAT),
        )
        await asked(a)
        for path in ("/v1/models", "/v1/chat/models", "/api/v0/models", "/api/tags"):
            async with a.http.get(f"{a.url}{path}") as response:
                text = await response.text()
                assert text.count(f'"{REMOTE}') >= 1, path
                assert REMOTE in text
            async with a.http.get(f"{a.url}{path}", headers={"X-Lmx-Forwarded": "b"}) as response:
                assert REMOTE not in await response.text(), "a peer gets what is here"
        owners = {}
        for name in (REMOTE, "far", f"{MODEL}@b", f"{MODEL}@a", MODEL):
            status, body = await a.json("GET", f"/v1/models/{name}")
            assert status == 200, name
            owners[name] = body["owned_by"]
        assert owners == {
            REMOTE: "b", "far": "b", f"{MODEL}@b": "b", f"{MODEL}@a": "lmx", MODEL: "lmx",
        }  # fmt: skip


async def test_a_route_is_listed_as_requests_for_it_are_answered() -> None:
    async with federation("ab") as (a, b):
        chats: dict[str, Any] = {"kind": ModelKind.CHAT}
        far = ready(REMOTE, INSTANCE, created_s=1, context_length=2048, **chats)
        await b.publish(far)
        own = cold(MODEL, context_length=131072, **chats)
        for models, name, context in (((own,), MODEL, 131072), ((), REMOTE, 2048)):
            await a.publish(*models, default=MODEL if models else None)
            await asked(a)
            status, auto = await a.json("GET", "/v1/models/auto")
            assert (status, auto["id"]) == (200, name)
            _, listed = await a.json("GET", "/v1/models")
            windows = {one["slug"]: one["context_window"] for one in listed["models"]}
            assert (windows["auto"], windows[REMOTE]) == (context, 2048)
        # What the configuration lists for a route of its own are this machine's models.
        routes = (Route("both", (REMOTE, MODEL)), Route("far-away", (REMOTE,)))
        await a.publish(ready(MODEL, INSTANCE, created_s=1, **chats), routes=routes)
        await asked(a)
        for name, found in (("both", MODEL), ("far-away", None)):
            status, listed = await a.json("GET", f"/v1/models/{name}")
            assert (status, listed.get("id")) == (200 if found else 404, found)
            status, answered = await a.chat_json(model=name)
            assert (status, answered.get("model")) == (200 if found else 404, found)
        # A key for none of this machine's models leads to those of peers, in both.
        far_key = replace(ApiKey.of_secret(CLIENT_KEY, "far"), models=(REMOTE,))
        a.router.keys.put(Keyring.of((far_key,)))
        await a.publish(own, default=MODEL)
        assert (await a.chat_json(model="auto"))[0] == 200
        status, auto = await a.json("GET", "/v1/models/auto")
        assert (status, auto.get("id")) == (200, REMOTE), auto


async def test_models_of_another_server_are_listed_where_they_can_be_asked() -> None:
    other = http_answer(json.dumps({"data": [{"id": REMOTE}]}).encode())
    async with federation("a") as (a,), StrangePeer(other, b"", PeerKind.OPENAI) as strange:
        a.router.peers.put(PeerList.of((strange.peer,)))
        await until(lambda: a.router.peers.links[0].answers)
        for path, headers, is_listed in (
            ("/v1/models", {}, True),
            ("/api/v0/models", {}, True),
            ("/api/tags", {}, False),
            ("/v1/models", {"Anthropic-Version": "2023-06-01"}, False),
        ):
            async with a.http.get(f"{a.url}{path}", headers=headers) as response:
                listed = await response.json()
            assert (REMOTE in json.dumps(listed)) is is_listed, path
        _, listed = await a.json("GET", "/v1/models")
        assert REMOTE not in [one["slug"] for one in listed["models"]], "Codex asks for responses"
        # As without peers, a model that the key is not for is no unknown one.
        few = replace(ApiKey.of_secret(CLIENT_KEY, "few"), models=("other-*",))
        a.router.keys.put(Keyring.of((few,)))
        for name in (MODEL, REMOTE):
            assert (await a.json("GET", f"/v1/models/{name}"))[0] == 403, name


async def test_ollamas_older_name_of_a_model_means_that_model() -> None:
    async with federation("ab") as (a, b):
        await a.publish(cold(MODEL), default=MODEL)
        await b.publish(
            ready(MODEL, INSTANCE, created_s=1), ready(REMOTE, INSTANCE, created_s=1), default=MODEL
        )
        await asked(a)
        for field in ("name", "model"):
            status, shown = await a.post_json("/api/show", **{field: REMOTE})
            assert (status, shown["model_info"]["general.basename"]) == (200, REMOTE), field
            body = {field: REMOTE, "stream": False}
            assert await a.post_json("/api/pull", **body) == (200, {"status": "success"})
            assert (await a.post_json("/api/pull", **{field: "no-such"}))[0] == 404
        for path in ("/api/show", "/api/pull", "/api/chat"):
            assert (await a.post_json(path))[0] == 400, "none is named"


async def test_a_request_without_a_name_is_sent_to_a_model_of_its_kind() -> None:
    embeds, loaded = cold("bge", kind=ModelKind.EMBEDDING), "0000000b"
    async with federation("ab") as (a, b):
        chats = ready(MODEL, INSTANCE, created_s=1, kind=ModelKind.CHAT)
        await a.publish(cold(MODEL, kind=ModelKind.CHAT), embeds, default=MODEL)
        other = b.add_worker(loaded, answer)
        other.task_script = lambda task: [
            Vectors(task.stream_id, (0,), 1, bytes(4)), TaskFinished(task.stream_id, 1)
        ]  # fmt: skip
        there = ready("bge", loaded, created_s=1, kind=ModelKind.EMBEDDING)
        await b.publish(chats, there, default=MODEL)
        await asked(a)
        status, found = await a.post_json("/v1/embeddings", input="hi")
        assert (status, found["model"]) == (200, "bge"), found
        assert len(other.tasks) == 1


async def test_an_image_is_sent_to_the_model_of_a_route_that_takes_it() -> None:
    async with federation("ab") as (a, b):
        blind: dict[str, Any] = {"kind": ModelKind.CHAT, "media": ()}
        sees: dict[str, Any] = {"kind": ModelKind.CHAT, "media": (MediaKind.IMAGE,)}
        loaded = "0000000b"
        route = Route("home", (MODEL, "sees"))
        await a.publish(cold(MODEL, **blind), cold("sees", **sees), default=MODEL, routes=(route,))
        b.add_worker(loaded, answer)
        await b.publish(
            ready(MODEL, INSTANCE, created_s=1, **blind), ready("sees", loaded, created_s=1, **sees)
        )
        await asked(a)
        part = {"type": "image_url", "image_url": "data:image/png;base64,iVBORw0KGgo="}
        messages = [{"role": "user", "content": [part]}]
        status, found = await a.chat_json(model="home", messages=messages)
        assert (status, found["model"]) == (200, "sees"), found
        status, found = await a.chat_json(model="home")
        assert (status, found["model"]) == (200, MODEL), found


async def test_a_client_that_leaves_ends_its_request_there() -> None:
    async def waits(stream: FakeStream) -> None:
        await stream.accept()
        await stream.say("Hello")

    async with federation("ab", {"b": waits}) as (a, b):
        await with_remote(b, a)
        url, body = f"{a.url}/v1/chat/completions", {"model": REMOTE, "messages": MESSAGE}
        async with a.http.post(url, json=body | {"stream": True}) as response:
            await response.content.readany()
        await until(lambda: b.worker.streams[0].cancelled)
        b.worker.script = plays()
        leaving = asyncio.create_task(a.chat_json(model=REMOTE))
        await until(lambda: len(b.worker.streams) == 2)
        leaving.cancel()
        await until(lambda: b.worker.streams[1].cancelled)
        await until(lambda: not a.router.peers.links[0].running)
        # The prompt was read there.
        await until(lambda: a.router.metrics.read().models[REMOTE].requests == 2)
        assert a.router.metrics.read().models[REMOTE].prompt_tokens > 10
        assert a.router.metrics.forwarded_to("b") == {"idle": 1, "left": 1}


async def test_what_a_client_got_is_counted_though_it_leaves_in_the_middle() -> None:
    async def talks(stream: FakeStream) -> None:
        await stream.accept()
        await stream.say("Hello")

    async with federation("ab", {"b": talks}) as (a, b):
        await with_remote(b, a)
        message = [{"role": "user", "content": "word " * 4000}]
        url, body = f"{a.url}/v1/chat/completions", {"model": REMOTE, "messages": message}
        async with a.http.post(url, json=body | {"stream": True}) as response:
            await response.content.readany()
        await until(lambda: a.router.metrics.read().models[REMOTE].requests)
        tally = a.router.metrics.read().models[REMOTE]
        assert 4000 < tally.prompt_tokens < 6000
        assert tally.completion_tokens >= 1
        assert tally.reasons == {"abort": 1}


async def test_a_peer_key_for_other_models_leaves_the_peer_where_it_is() -> None:
    async with federation("abc") as (a, b, _):
        await a.publish()
        few = ApiKey.of_secret(peer_key("b"), "few", scopes=(KeyScope.PEER,))
        b.router.keys.put(Keyring.of((replace(few, models=("other-*",)),)))
        await asked(a)
        async with a.chat() as response:
            assert (response.status, response.headers["X-Lmx-Machine"]) == (200, "c")
        assert all(link.answers for link in a.router.peers.links)
        status, found = await a.chat_json(model=f"{MODEL}@b")
        assert (status, found["error"]["code"]) == (404, "model_not_found"), "it is in no list"
        others = replace(few, families=(KeyFamily.ANTHROPIC,))
        b.router.keys.put(Keyring.of((others,), required=True))
        await asked(a)
        status, found = await a.chat_json(model=f"{MODEL}@b")
        assert (status, found["error"]["code"]) == (503, "peer_unavailable")
        assert all(link.answers for link in a.router.peers.links), "others may use it"


@pytest.mark.parametrize(
    "said",
    [
        {"error": []}, {"error": {}}, {"finish_reason": ["stop"]}, {"prompt_tokens": "1"},
        {"finish_reason": "stop," * 36 + "length," * 2 + "length" + "x" * 5000},
        {"finish_reason": "stop," * 5000 + "stop"},
    ],
)  # fmt: skip
def test_figures_of_a_peer_that_can_not_be_are_left_out(said: dict[str, Any]) -> None:
    assert read_record(json.dumps({**said, "completion_tokens": 1}).encode()) == {
        "completion_tokens": 1
    }


async def test_a_peer_that_is_removed_has_its_requests_answered_elsewhere() -> None:
    async def accepts_and_waits(stream: FakeStream) -> None:
        await stream.accept()

    async with federation("abc", {"b": accepts_and_waits}) as (a, b, c):
        await a.publish()
        await c.publish()
        await asked(a)
        request = asyncio.create_task(a.chat_json())
        await until(lambda: b.worker.streams)
        await c.publish(ready(MODEL, INSTANCE, created_s=1))
        await asked(a)
        left = [link.peer for link in a.router.peers.links if link.name == "c"]
        a.router.peers.put(PeerList.of(tuple(left)))
        assert (await request)[0] == 200
        assert len(c.worker.streams) == 1


async def test_the_models_of_a_peer_with_another_key_stay_known_until_it_answers() -> None:
    async with federation("ab") as (a, b):
        await with_remote(b, a)
        (before,) = a.router.peers.links
        a.router.peers.put(PeerList.of((replace(before.peer, key="sk-lmx-another"),)))
        (link,) = a.router.peers.links
        assert not link.answers
        assert a.router.peers.model_ids == (REMOTE,), "what was counted of it stays"


async def test_what_a_peer_computes_is_answered_though_its_key_changes() -> None:
    go = asyncio.Event()
    async with federation("ab", {"b": answers_after(go)}) as (a, b):
        await with_remote(b, a)
        calls = [asyncio.create_task(a.chat_json(model=REMOTE)) for _ in range(2)]
        await until(lambda: len(b.worker.streams) == 2)
        (before,) = a.router.peers.links
        for key in ("sk-lmx-another", before.peer.key):
            a.router.peers.put(PeerList.of((replace(before.peer, key=key),)))
        await know_each_other(a, 1)
        go.set()
        assert [(await call)[0] for call in calls] == [200, 200]
        assert len(b.worker.streams) == 2


async def test_a_peer_that_ends_answers_what_it_has_begun_and_gets_nothing_more() -> None:
    go = asyncio.Event()
    async with federation("ab", {"b": answers_after(go)}) as (a, b):
        await with_remote(b, a)
        calls = (
            asyncio.create_task(a.chat_json(model=REMOTE)),
            asyncio.create_task(a.chat_events(model=REMOTE)),
        )
        await until(lambda: len(b.worker.streams) == 2)
        ending = asyncio.create_task(b.router.stop(grace_s=180.0))
        (link,) = a.router.peers.links
        await until(lambda: link.state is not None and link.state.drained)
        await asked(a)
        assert link.answers
        status, found = await a.chat_json(model=REMOTE)
        assert (status, found["error"]["code"]) == (503, "peer_unavailable")
        go.set()
        assert (await calls[0])[0] == 200
        assert joined_text(await calls[1]) == "".join(TEXTS)
        assert len(b.worker.streams) == 2
        await ending


def answers_after(go: asyncio.Event) -> Script:
    """A script that answers once the event is set."""

    async def script(stream: FakeStream) -> None:
        await go.wait()
        await answer(stream)

    return script


async def test_a_route_goes_on_with_the_other_models_of_a_peer() -> None:
    no_room = refuses(ErrorCode.INSUFFICIENT_MEMORY, "no room")
    async with federation("ab", {"b": no_room}) as (a, b):
        await a.publish()
        second = b.add_worker("0000000b", answer)
        first = ready("org/first", INSTANCE, created_s=1)
        await b.publish(first, ready("org/second", "0000000b", created_s=1))
        await asked(a)
        status, found = await a.chat_json(model="auto")
        assert (status, found["model"]) == (200, "org/second"), found
        # What is wrong with the machine, and not with the model, is wrong with all of them.
        b.worker.script = refuses(ErrorCode.QUEUE_FULL, "not now")
        status, found = await a.chat_json(model="auto")
        assert (status, found["error"]["code"]) == (429, "queue_full"), found
        assert len(second.streams) == 1


async def test_without_peers_nothing_runs_and_the_last_one_gone_nothing_is_asked() -> None:
    async with federation("ab") as (a, b):
        await with_remote(b, a)
        a.router.peers.put(PeerList.of(()))
        assert not a.router.peers.links
        status, found = await a.chat_json(model=REMOTE)
        assert (status, found["error"]["code"]) == (404, "model_not_found")


async def test_a_request_waits_for_what_a_peer_has_until_it_was_asked_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As it is when this router has just begun."""
    monkeypatch.setattr(peer_link, "FIRST_ANSWER_S", 3600.0)
    go, really = asyncio.Event(), PeerLink._asked

    async def slow(link: PeerLink) -> MachineState:
        await go.wait()
        return await really(link)

    async with federation("ab") as (a, b):
        await with_remote(b, a)
        peers = PeerList.of(tuple(link.peer for link in a.router.peers.links))
        monkeypatch.setattr(PeerLink, "_asked", slow)
        a.router.peers.put(PeerList.of(()))
        a.router.peers.put(peers)
        # What this machine has does not wait.
        assert (await a.chat_json())[0] == 200
        calls = [asyncio.create_task(a.chat_json(model=name)) for name in (REMOTE, f"{REMOTE}@b")]
        listing = asyncio.create_task(ended(a.http.get(f"{a.url}/v1/models")))
        await until(lambda: a.router.traffic.under_way == 3)
        go.set()
        assert [(await call)[0] for call in calls] == [200, 200]
        assert REMOTE in await listing
        # Nor does anybody once it is known that a peer does not answer.
        async with StrangePeer(STATES["refused"][0]) as strange:
            a.router.peers.put(PeerList.of((strange.peer,)))
            status, found = await a.chat_json(model=REMOTE)
            assert (status, found["error"]["code"]) == (404, "model_not_found")


async def test_a_request_waits_for_a_peer_that_was_there_a_moment_ago(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It alone has the model, and stands still for longer than it may take to answer."""
    monkeypatch.setattr(federation_module, "_RETURN_S", 3600.0)
    go, really = asyncio.Event(), PeerLink._asked

    async def slow(link: PeerLink) -> MachineState:
        await go.wait()
        return await really(link)

    async with federation("ab", answer_s=2.0) as (a, b):
        await with_remote(b, a)
        monkeypatch.setattr(PeerLink, "_asked", slow)
        (link,) = a.router.peers.links
        await until(lambda: not link.answers)
        calls = [asyncio.create_task(a.chat_json(model=name)) for name in (REMOTE, f"{REMOTE}@b")]
        await until(lambda: a.router.traffic.under_way == 2)
        go.set()
        assert [(await call)[0] for call in calls] == [200, 200]
        # One that has been away for longer is not waited for.
        monkeypatch.setattr(federation_module, "_RETURN_S", 0.0)
        go.clear()
        await until(lambda: not link.answers)
        status, found = await a.chat_json(model=REMOTE)
        assert (status, found["error"]["code"]) == (503, "peer_unavailable")


async def test_a_peer_that_stood_still_for_a_moment_keeps_what_it_alone_can_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(federation_module, "_RETURN_S", 3600.0)
    go, back, really = asyncio.Event(), asyncio.Event(), PeerLink._asked
    asking: list[PeerLink] = []

    async def slow(link: PeerLink) -> MachineState:
        if link.name != "b":
            return await really(link)
        await back.wait()
        asking.append(link)
        try:
            return await really(link)
        finally:
            asking.remove(link)

    async def waits(stream: FakeStream) -> None:
        await go.wait()
        await answer(stream)

    async with federation("abc", {"b": waits}) as (a, b, c):
        await with_remote(b, a)
        link = next(one for one in a.router.peers.links if one.name == "b")
        monkeypatch.setattr(PeerLink, "_asked", slow)
        back.set()
        await asked(a)

        async def not_begun(streams: int) -> tuple[asyncio.Task[Any], asyncio.Task[Any]]:
            """Two requests that the peer has not begun to answer."""
            go.clear()
            await until(lambda: link.answers)
            found = (
                asyncio.create_task(a.chat_json(model=REMOTE)),
                asyncio.create_task(a.chat_events(model=REMOTE)),
            )
            await until(lambda: len(b.worker.streams) == streams)
            return found

        async def lose() -> None:
            back.clear()
            await until(lambda: not asking)
            link.lose("it stood still")

        async def whole(calls: tuple[asyncio.Task[Any], asyncio.Task[Any]]) -> None:
            assert (await calls[0])[1]["choices"][0]["message"]["content"] == "".join(TEXTS)
            assert joined_text(await calls[1]) == "".join(TEXTS)

        calls = await not_begun(2)
        await lose()
        assert not (await asyncio.wait(calls, timeout=0.3))[0]
        back.set()
        await until(lambda: link.answers)
        go.set()
        await whole(calls)
        # What it answers though it still counts as lost is taken.
        calls = await not_begun(4)
        await lose()
        go.set()
        await whole(calls)
        assert not link.answers
        back.set()
        # Another machine that can answer is asked at once, also one that can only later.
        calls = await not_begun(6)
        await lose()
        assert not (await asyncio.wait(calls, timeout=0.3))[0]
        await c.publish(ready(REMOTE, INSTANCE, created_s=1))
        await whole(calls)
        assert (len(b.worker.streams), len(c.worker.streams)) == (6, 2)
        back.set()


async def test_nobody_waits_for_a_peer_whose_certificate_cannot_be_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fails(_: Authorities) -> None:
        raise OSError("no such file")

    monkeypatch.setattr(Authorities, "load", fails)
    async with federation("a") as (a,):
        a.router.peers.put(PeerList.of((Peer("far", "https://far.example:8000"),)))
        (link,) = a.router.peers.links
        await until(link.asked.is_set)
        assert "whom it trusts" in str(link.problem)
        status, found = await a.chat_json(model=REMOTE)
        assert (status, found["error"]["code"]) == (404, "model_not_found")


OWN = MachineState(
    machine="m", version="1", free_bytes=0, loads=True, drained=False, digest="d",
    models=(OfferedModel(model_id=REMOTE, loaded=True),),
)  # fmt: skip


def http_answer(payload: bytes, status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(payload)}", "Connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + payload


GOOD = http_answer(json.dumps(to_map(OWN)).encode())
ENDLESS = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    + b"10000\r\n%b\r\n" % (b"x" * 65536) * 400
)
STATES: dict[str, tuple[bytes, str]] = {
    # What a peer says of itself, and what is said of that.
    "endless": (ENDLESS, "too long"),
    "not json": (http_answer(b"<html>"), "can't be read"),
    "a list": (http_answer(b"[]"), "can't be read"),
    "wrong types": (http_answer(b'{"machine": 1}'), "can't be read"),
    "not base64": (
        http_answer(json.dumps(to_map(OWN) | {"models": [{"model_id": "m", "prefixes": "\\u00e4"}]})
            .encode()), "can't be read",
    ),
    "elsewhere": (http_answer(b"", "302 Found", "Location: http://127.0.0.1:1/"), "elsewhere"),
    "refused": (http_answer(b"{}", "401 Unauthorized"), "refuses"),
    "slow": (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", "in time"),
    "no http": (b"\x00\xff\r\n\r\n", "broke off"),
    "long header": (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n", "broke off"),
}  # fmt: skip
ANSWERS: dict[str, bytes] = {
    # What a peer answers to a request that does not stream, or does.
    "endless": ENDLESS,
    "empty": http_answer(b""),
    "elsewhere": http_answer(b"", "307 Temporary Redirect", "Location: http://127.0.0.1:1/"),
    "refused": http_answer(b'{"error": "no"}', "403 Forbidden"),
    "broken": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
    "compressed": http_answer(b"\x1f\x8b", "200 OK", "Content-Encoding: gzip"),
    "no http": b"\x00\xff\r\n\r\n",
    "nothing": b"",
    "an odd error": http_answer(b'{"error": {"code": ["x"], "message": {}}}', "500 Oops"),
}


class StrangePeer:
    """A peer that sends what it is told to."""

    def __init__(self, state: bytes, answered: bytes = b"", kind: PeerKind = PeerKind.LMX) -> None:
        self.state, self.answered, self.kind = state, answered, kind
        self.heads: list[bytes] = []
        self._slow = state == STATES["slow"][0]

    async def __aenter__(self) -> "StrangePeer":
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self.server.sockets[0].getsockname()[1]
        self.peer = Peer("strange", f"http://127.0.0.1:{port}", self.kind, peer_key("strange"))
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        with pytest.MonkeyPatch.context():
            try:
                writer.write(self.answered if head.startswith(b"POST") else self.state)
                await writer.drain()
                if self._slow:
                    await asyncio.sleep(3600)
                writer.close()
            except (ConnectionError, asyncio.CancelledError):
                writer.close()


@pytest.mark.parametrize("name", STATES)
async def test_what_a_strange_peer_says_of_itself_is_refused_in_words(name: str) -> None:
    said, words = STATES[name]
    async with federation("a", answer_s=0.9) as (a,), StrangePeer(said) as strange:
        a.router.peers.put(PeerList.of((strange.peer,)))
        await until(lambda: words in (a.router.peers.links[0].problem or ""))
        assert not a.router.peers.links[0].answers
        assert await a.chat_json() is not None
        status, shown = await a.admin("GET", "/admin/peers")
        assert (status, shown["peers"][0]["answers"]) == (200, False)
        assert peer_key("strange") not in json.dumps(shown)
        assert all(b"GET /admin/peer" in head for head in strange.heads)


@pytest.mark.parametrize("name", ANSWERS)
async def test_what_a_strange_peer_answers_ends_with_a_coded_error(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "_MOST_ANSWER_BYTES", 1_000_000)
    monkeypatch.setattr(relay, "_MOST_EVENT_BYTES", 1_000_000)
    async with federation("a") as (a,), StrangePeer(GOOD, ANSWERS[name]) as strange:
        a.router.peers.put(PeerList.of((strange.peer,)))
        for stream in (False, True):
            await until(lambda: a.router.peers.links[0].answers)
            async with a.chat(model=REMOTE, stream=stream) as response:
                text = await response.text()
                known = '"peer_lost"' in text or '"peer_unavailable"' in text
                assert known, (name, response.status, text[:200])
                assert response.status == (200 if stream and "data:" in text else 503)
        for head in strange.heads:
            assert CLIENT_KEY.encode() not in head
            assert head.count(b"Authorization") == 1


@pytest.mark.parametrize(
    ("stream", "said", "media_type"),
    [(True, b'{"choices": []}', "application/json"), (True, b"<p>", "text/html; charset=utf-8"),
     (False, b"<p>Log in", "text/html")],
)  # fmt: skip
async def test_what_is_no_answer_is_not_passed_on(
    stream: bool, said: bytes, media_type: str
) -> None:
    """It is of a server that ignores `stream`, or a page of a proxy."""
    listed = http_answer(json.dumps({"data": [{"id": REMOTE}]}).encode())
    said = http_answer(said, "200 OK", f"Content-Type: {media_type}")
    async with federation("a") as (a,), StrangePeer(listed, said, PeerKind.OPENAI) as strange:
        a.router.peers.put(PeerList.of((strange.peer,)))
        await until(lambda: a.router.peers.links[0].answers)
        status, found = await a.chat_json(model=REMOTE, stream=stream)
        assert (status, found["error"]["code"]) == (503, "peer_lost")
        assert "answer that is invalid" in found["error"]["message"]


async def test_a_server_that_computes_one_request_at_a_time_is_not_lost_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It answers nobody while it computes."""
    monkeypatch.setattr(peer_link, "_OPENAI_POLL_S", 0.05)
    monkeypatch.setattr(peer_link, "_OPENAI_ANSWER_S", 1.5)
    monkeypatch.setattr(federation_module, "_RETURN_S", 0.0)
    go, computing, unanswered = asyncio.Event(), asyncio.Event(), 0
    listed = http_answer(json.dumps({"data": [{"id": REMOTE}]}).encode())

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal unanswered
        posted = (await reader.readuntil(b"\r\n\r\n")).startswith(b"POST")
        if posted:
            computing.set()
        elif computing.is_set():
            unanswered += 1
        if computing.is_set():
            await go.wait()
        writer.write(http_answer(b"{}", "400 Bad Request") if posted else listed)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with federation("a") as (a,), server:
        port = server.sockets[0].getsockname()[1]
        a.router.peers.put(
            PeerList.of((Peer("slow", f"http://127.0.0.1:{port}", PeerKind.OPENAI),))
        )
        (link,) = a.router.peers.links
        await until(lambda: link.answers)
        call = asyncio.create_task(a.chat_json(model=REMOTE))
        await until(lambda: unanswered > 1)
        assert link.answers
        go.set()
        assert (await call)[0] == 400, "what it said"
        # It has nothing to do, and does not answer.
        go.clear()
        await until(lambda: not link.answers)
        go.set()


async def test_models_with_odd_names_are_left_out() -> None:
    names = ["../x", "a b", "<script>", "", "x" * 300, "\n", "good/one", 'q"uote']
    models = [{"model_id": name, "loaded": True} for name in names]
    said = http_answer(json.dumps(to_map(OWN) | {"models": models}).encode())
    async with federation("a") as (a,), StrangePeer(said) as strange:
        a.router.peers.put(PeerList.of((strange.peer,)))
        await until(lambda: a.router.peers.links[0].answers)
        _, shown = await a.admin("GET", "/admin/peers")
        assert [one["id"] for one in shown["peers"][0]["models"]] == ["good/one"]
    # Servers of others have paths too.
    names += (paths := ["/data/My models/m", "~/m.gguf", "./m"])
    other = http_answer(json.dumps({"data": [{"id": name} for name in names]}).encode())
    async with federation("a") as (a,), StrangePeer(other, b"", PeerKind.OPENAI) as strange:
        a.router.peers.put(PeerList.of((strange.peer,)))
        await until(lambda: a.router.peers.links[0].answers)
        assert a.router.peers.model_ids == ("../x", "a b", "good/one", *paths)
        status, found = await a.chat_json(model=paths[0])
        assert (status, found["error"]["code"]) == (503, "peer_unavailable")
        assert any(head.startswith(b"POST /v1/chat/completions") for head in strange.heads)
