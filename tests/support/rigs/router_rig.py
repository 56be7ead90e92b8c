"""A real router on a real loopback socket, with a fake supervisor and fake workers."""

import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import yarl
import zmq.asyncio

from lmx.protocol.messages.keys import ApiKey, Keyring
from lmx.protocol.messages.snapshot import ModelView
from lmx.protocol.messages.specs import FilesSpec, LogSpec, RouterSpec
from lmx.protocol.wire.endpoints import RunDirectory
from lmx.router.server.process import Router
from tests.support.clients.answer_check import AnswerCheck
from tests.support.fakes.fake_peers import (
    FakeStream,
    FakeSupervisor,
    FakeWorker,
    fake_peers,
    ready,
    until,
)

MODEL = "org/tiny-model"
INSTANCE = "0000000a"
TEXTS = ("Hel", "lo wö", "rld ", "🌍\n", '"quoted"')


async def answer(stream: FakeStream) -> None:
    """The script of a worker that simply answers with ``TEXTS``."""
    await stream.accept()
    for text in TEXTS[:-1]:
        await stream.say(text)
    await stream.finish(TEXTS[-1], tokens=len(TEXTS))


@dataclass
class Rig:
    """What a test has in hand."""

    url: str
    spec: RouterSpec
    router: Router
    context: zmq.asyncio.Context
    run_dir: RunDirectory
    supervisor: FakeSupervisor
    worker: FakeWorker
    http: aiohttp.ClientSession
    others: list[FakeWorker] = field(default_factory=list)

    def add_worker(self, instance: str, script: Callable[[FakeStream], Any]) -> FakeWorker:
        """Start one more worker; the rig stops it."""
        worker = FakeWorker(self.context, self.run_dir, instance, script)
        self.others.append(worker)
        return worker

    async def publish(self, *models: ModelView, **fields: Any) -> None:
        """Have the supervisor publish these models, and wait until the router knows them."""
        await self.supervisor.publish(*models, **fields)
        await until(lambda: knows(self.router, self.supervisor.revision))

    def asked(self, kind: type) -> list[Any]:
        """The questions of a kind that the supervisor was asked."""
        return [message for message in self.supervisor.seen if type(message) is kind]

    def chat(self, **fields: Any) -> Any:
        """POST a chat request (a context manager, as aiohttp's)."""
        return self.http.post(f"{self.url}/v1/chat/completions", json=chat_body(**fields))

    async def json(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: Any = None,
    ) -> tuple[int, Any]:
        """Send a request; return status and parsed answer."""
        url = f"{self.url}{path}"
        async with self.http.request(method, url, headers=headers, json=body) as response:
            return response.status, await response.json()

    async def post_json(self, path: str, **body: Any) -> tuple[int, Any]:
        """POST a body; return status and parsed answer."""
        return await self.json("POST", path, body=body)

    async def admin(self, method: str, path: str, **body: Any) -> tuple[int, Any]:
        """Ask with the admin key, with a body where there are fields; return status and parsed
        answer."""
        headers = {"X-Admin-Key": self.spec.admin_key}
        url = yarl.URL(f"{self.url}{path}", encoded=True)
        json_body = body or None
        async with self.http.request(method, url, headers=headers, json=json_body) as response:
            return response.status, await response.json()

    async def post_events(self, path: str, **body: Any) -> list[str]:
        """POST a body that streams; return the payloads of its ``data:`` lines."""
        async with self.http.post(f"{self.url}{path}", json={"stream": True, **body}) as response:
            assert response.status == 200, await response.text()
            return data_lines(await response.read())

    async def chat_json(self, **fields: Any) -> tuple[int, Any]:
        """POST a chat request; return status and parsed body."""
        async with self.chat(**fields) as response:
            return response.status, await response.json()

    async def chat_events(self, **fields: Any) -> list[str]:
        """POST a streaming chat request; return the payloads of its ``data:`` lines."""
        async with self.chat(stream=True, **fields) as response:
            assert response.status == 200, await response.text()
            return data_lines(await response.read())


def chat_body(**fields: Any) -> dict[str, Any]:
    """A valid chat request, with fields added or replaced."""
    return {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], **fields}


def data_lines(raw: bytes) -> list[str]:
    """The payloads of a stream's events; every event must be one ``data:`` line."""
    events = raw.decode().split("\n\n")
    assert events.pop() == "", "the stream must end with a whole event"
    kept = [event for event in events if not event.startswith(":")]
    assert all(event.startswith("data: ") and "\n" not in event for event in kept), kept
    return [event.removeprefix("data: ") for event in kept]


def joined_text(lines: list[str]) -> str:
    """The text of a stream: all its content deltas."""
    chunks = [json.loads(line) for line in lines if line != "[DONE]"]
    return "".join(
        choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"]
    )


def router_spec(run_dir: RunDirectory, port: int, **fields: Any) -> RouterSpec:
    """A spec with short times."""
    values: dict[str, Any] = {
        "run_dir": str(run_dir.path),
        "log": LogSpec(str(run_dir.path / "router.log"), level="debug"),
        "router_id": "0000cafe",
        "listen_fd": -1,
        "host": "127.0.0.1",
        "port": port,
        "version": "1.2.3",
        "body_limit_bytes": 1_000_000,
        "load_wait_s": 30.0,
        "stall_timeout_s": 30.0,
        "worker_silence_s": 30.0,
        "ping_interval_s": 30.0,
        "shutdown_grace_s": 30.0,
        "max_requests": 2048,
        "admin_key": "test-admin-key",
        "sync_timeout_s": 30.0,
        "jobs_path": str(run_dir.path / "jobs.sqlite"),
        "jobs_max_age_s": 3600.0,
        "jobs_max_count": 1000,
        "files": FilesSpec(str(run_dir.path / "files")),
        "logs_dir": str(run_dir.path),
        "beat_interval_s": 0.1,
        "orphan_grace_s": 60.0,
    }
    values |= fields
    keys = values.pop("api_keys", ())
    made = tuple(ApiKey.of_secret(key) if isinstance(key, str) else key for key in keys)
    values.setdefault("keyring", Keyring.of(made))
    return RouterSpec(**values)


def listening_socket() -> socket.socket:
    """A socket that listens on a free port of loopback."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", 0))
    listener.listen(256)
    return listener


@contextlib.asynccontextmanager
async def router_rig(
    script: Callable[[FakeStream], Any] = answer, **spec_fields: Any
) -> AsyncIterator[Rig]:
    """A router that serves ``MODEL`` from one fake worker with ``script``, already settled. Every
    answer must be as its route describes it."""
    async with fake_peers() as (context, run_dir):
        listener = listening_socket()
        port = listener.getsockname()[1]
        spec = router_spec(run_dir, port, **spec_fields)
        supervisor = FakeSupervisor(context, run_dir)
        worker = FakeWorker(context, run_dir, INSTANCE, script)
        await supervisor.publish(ready(MODEL, INSTANCE, created_s=1700000000), default=MODEL)
        router = Router(spec, listener)
        check = AnswerCheck()
        router._runner.app.on_response_prepare.append(check)
        rig = None
        # By default a connection has 30 s, of which a busy machine may need more for a hundred.
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as http:
            try:
                await router.start()
                rig = Rig(
                    f"http://127.0.0.1:{port}",
                    spec, router, context, run_dir, supervisor, worker, http,
                )  # fmt: skip
                await until(lambda: knows(router, supervisor.revision))
                yield rig
            finally:
                await router.stop(grace_s=0.0)
                for peer in (worker, supervisor, *(rig.others if rig else ())):
                    await peer.stop()
        assert not check.faults, check.faults


def knows(router: Router, revision: int) -> bool:
    """Whether the router has that revision, and counts the supervisor as alive."""
    known = router.supervisor.latest
    return known is not None and known.snapshot.revision >= revision and router.supervisor.alive
