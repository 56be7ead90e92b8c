"""Traces of requests: what a collector sees of them, and that none is needed."""

import asyncio
import itertools
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from lmx.protocol.errors import ErrorCode
from lmx.protocol.messages.control import Acquired
from lmx.protocol.messages.data import Preparing, Timings
from lmx.router.server import process
from tests.support.fakes.fake_peers import FakeStream, cold, until
from tests.support.rigs.router_rig import INSTANCE, MODEL, listening_socket, router_rig

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SECRET = "the secret of the prompt"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans are sent soon; what this machine's user has set is not read."""
    for name in ("OTEL_TRACES_SAMPLER", "OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")


@dataclass
class Collector:
    """What an OpenTelemetry collector was sent."""

    url: str = ""
    spans: list[Span] = field(default_factory=list)
    resources: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    raw: bytes = b""

    async def take(self, request: web.Request) -> web.Response:
        body = await request.read()
        assert request.content_type == "application/x-protobuf"
        self.raw += body
        self.headers.append(dict(request.headers))
        for each in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resources.append(values(each.resource))
            for scope in each.scope_spans:
                self.spans += scope.spans
        return web.Response(content_type="application/x-protobuf")

    def of(self, parent: Span) -> list[Span]:
        """The children of a span, the earliest first."""
        found = [span for span in self.spans if span.parent_span_id == parent.span_id]
        return sorted(found, key=lambda span: span.start_time_unix_nano)

    async def root(self, number: int = 0) -> Span:
        """The span of the request of this number, once it is there."""

        def roots() -> list[Span]:
            return [span for span in self.spans if span.kind == Span.SPAN_KIND_SERVER]

        await until(lambda: len(roots()) > number)
        return roots()[number]


def values(of: Any) -> dict[str, Any]:
    """The attributes of a span or a resource."""
    found: dict[str, Any] = {}
    for one in of.attributes:
        kind = one.value.WhichOneof("value")
        value = getattr(one.value, kind)
        found[one.key] = (
            [each.string_value for each in value.values] if kind == "array_value" else value
        )
    return found


@asynccontextmanager
async def collector(answer: Callable[[web.Request], Any] | None = None) -> AsyncIterator[Collector]:
    made, app = Collector(), web.Application(client_max_size=2**24)
    app.router.add_post("/v1/traces", answer or made.take)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    listener = listening_socket()
    await web.SockSite(runner, listener).start()
    made.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        yield made
    finally:
        await runner.cleanup()


async def slowly(stream: FakeStream) -> None:
    await asyncio.sleep(0.01)
    await stream.send(Preparing(stream.request.stream_id))
    await asyncio.sleep(0.01)
    await stream.accept(prompt_tokens=7)
    for text in ("a", "b"):
        await asyncio.sleep(0.03)
        await stream.say(text)
    timings = Timings(queue_s=0.025, prefill_s=0.01, decode_s=0.03)
    await stream.finish("c", tokens=3, timings=timings)


async def test_a_collector_sees_a_request_with_its_phases() -> None:
    async with (
        collector() as seen,
        router_rig(slowly, tracing_endpoint=seen.url, tracing_headers="api-key=abc%20d") as rig,
    ):
        began_ns = time.time_ns()
        body = {"messages": [{"role": "user", "content": SECRET}], "user": SECRET}
        await rig.post_events("/v1/chat/completions", model=MODEL, **body)
        root = await seen.root()
        assert root.name == f"chat {MODEL}"
        assert root.parent_span_id == b""
        known = values(root)
        assert known.pop("gen_ai.response.time_to_first_chunk") > 0.03
        assert known.pop("gen_ai.response.id").startswith("chatcmpl-")
        assert known.pop("lmx.request_id").startswith("req_")
        assert known == {
            "http.request.method": "POST",
            "http.route": "/v1/chat/completions",
            "http.response.status_code": 200,
            "gen_ai.provider.name": "lmx",
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": MODEL,
            "gen_ai.request.stream": True,
            "gen_ai.response.model": MODEL,
            "gen_ai.response.finish_reasons": ["stop"],
            "gen_ai.usage.input_tokens": 7,
            "gen_ai.usage.output_tokens": 3,
            "gen_ai.usage.cache_read.input_tokens": 4,
        }
        children = seen.of(root)
        assert [one.name for one in children] == ["queue", "render", "queue", "prefill", "decode"]
        assert began_ns <= root.start_time_unix_nano
        for one in children:
            assert root.start_time_unix_nano <= one.start_time_unix_nano <= one.end_time_unix_nano
            assert one.end_time_unix_nano <= root.end_time_unix_nano
        for before, after in itertools.pairwise(children):
            assert before.end_time_unix_nano <= after.start_time_unix_nano + 1000
        (resource,) = seen.resources[:1]
        assert (resource["service.name"], resource["service.version"]) == ("lmx", "1.2.3")
        assert seen.headers[0]["api-key"] == "abc d"
        assert SECRET.encode() not in seen.raw


async def test_the_client_s_trace_is_continued_and_its_decision_is_kept(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with collector() as seen, router_rig(tracing_endpoint=seen.url) as rig:
        for sampled, name in (("00", "left-out"), ("01", "traced")):
            headers = {"traceparent": f"00-{TRACE}-{PARENT}-{sampled}", "X-Request-Id": name}
            body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
            url = f"{rig.url}/v1/chat/completions"
            async with rig.http.post(url, json=body, headers=headers) as response:
                assert response.status == 200
        root = await seen.root()
        assert values(root)["lmx.request_id"] == "traced"
        assert (root.trace_id.hex(), root.parent_span_id.hex()) == (TRACE, PARENT)
        assert {span.trace_id.hex() for span in seen.spans} == {TRACE}
        # The log has the same id, of what is not traced too.
        assert sum(TRACE in line for line in capsys.readouterr().out.splitlines()) >= 2
        # What is no traceparent begins a trace of its own, and no route for operators has one.
        await rig.admin("GET", "/admin/requests")
        async with rig.http.post(url, json=body, headers={"traceparent": "nonsense"}) as response:
            assert response.status == 200
        assert (await seen.root(1)).trace_id.hex() != TRACE
        assert {span.name for span in seen.spans if not span.parent_span_id} == {f"chat {MODEL}"}


async def test_a_failure_a_refusal_and_a_client_that_leaves_are_distinguished() -> None:
    async def script(stream: FakeStream) -> None:
        await stream.accept()
        if len(rig.worker.streams) == 1:
            await stream.fail(ErrorCode.ENGINE_ERROR, "broken")

    async with collector() as seen, router_rig(script, tracing_endpoint=seen.url) as rig:
        await rig.chat_json()
        failed = await seen.root(0)
        assert values(failed)["error.type"] == "engine_error"
        assert failed.status.code == Status.STATUS_CODE_ERROR
        await rig.chat_json(messages=[])
        refused = await seen.root(1)
        assert refused.name == "POST /v1/chat/completions"
        assert refused.status.code == Status.STATUS_CODE_UNSET
        assert values(refused)["http.response.status_code"] == 400
        leaving = asyncio.create_task(rig.chat_json())
        await rig.worker.stream(1)
        leaving.cancel()
        left = await seen.root(2)
        assert values(left)["error.type"] == "client_disconnected"
        assert left.status.code == Status.STATUS_CODE_UNSET


async def test_the_wait_for_a_model_is_a_span() -> None:
    async with collector() as seen, router_rig(tracing_endpoint=seen.url) as rig:
        await rig.publish(cold(MODEL))
        asked = asyncio.create_task(rig.chat_json())
        await until(lambda: rig.router.queues.waiting(MODEL) == 1)
        await rig.supervisor.reply(0, Acquired(MODEL, INSTANCE))
        assert (await asked)[0] == 200
        names = [one.name for one in seen.of(await seen.root())]
        assert names[0] == "load"
        assert "prefill" in names


async def test_a_dead_or_silent_collector_harms_nothing() -> None:
    async def silent(_: web.Request) -> web.Response:
        await asyncio.sleep(3600)
        return web.Response()

    with listening_socket() as closed:
        nobody = f"http://127.0.0.1:{closed.getsockname()[1]}"
    async with collector(silent) as seen:
        for url in (nobody, seen.url):
            async with router_rig(tracing_endpoint=url) as rig:
                for _ in range(30):
                    assert (await rig.chat_json())[0] == 200
                began_s = time.monotonic()
            # The router's end waits for it no longer than for its records.
            assert time.monotonic() - began_s < process._WRITTEN_S + 60


def test_nothing_of_it_is_loaded_where_it_is_off() -> None:
    code = (
        "import sys; import lmx.router.server.process as process; "
        "from lmx.router.server.process import _tracer; "
        "print([name for name in sys.modules if name.startswith('opentelemetry.sdk')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def test_without_the_extra_requests_are_answered_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "lmx.router.tracing.tracer", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    async with router_rig(tracing_endpoint="http://127.0.0.1:9") as rig:
        assert rig.router._tracer is None
        assert (await rig.chat_json())[0] == 200
    assert "lmx[otel]" in capsys.readouterr().out


async def test_a_variable_that_the_library_refuses_keeps_no_router_from_serving(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "0")
    async with router_rig(tracing_endpoint="http://127.0.0.1:9") as rig:
        assert (await rig.chat_json())[0] == 200
    assert "tracing.not_started" in capsys.readouterr().out
