"""A server that can answer every example of the documents, and what an example needs before it.

The documents' model names are aliases here, so their requests go out as they are.
"""

import contextlib
import json
from dataclasses import dataclass, field, replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final

import yaml

from tests.support.clients.document_requests import Asked
from tests.support.fakes.fake_hub import FakeHub, Fault
from tests.support.rigs.rig import Rig, scripted

ADMIN_KEY: Final = "the-admin-key-of-the-tests"
ADMIN: Final = {"X-Admin-Key": ADMIN_KEY, "Content-Type": "application/json"}
REPO: Final = "mlx-community/Llama-3.2-8B-Instruct-4bit"
ENGINE: Final = "llama-7b"
GGUF_PATH: Final = "/models/llama-7b-q4.gguf"

MAX_TOKENS: Final = 8
"""The examples ask for up to 2048."""


def config(chat: Path, minilm: Path) -> dict[str, Any]:
    """Return the configuration: a chat model, an embedding model, and one to unload."""
    chat_names = (
        "my-model", "llama-3.2-8b", "llama3", "llava", "qwen3-omni", "qwen3.6-27b",
        "kimi-k2-0905-preview",
    )  # fmt: skip
    return {
        "security": {"admin_key": ADMIN_KEY},
        "models": [
            {
                "id": "small",
                "source": str(chat),
                "aliases": list(chat_names),
                "default_max_tokens": MAX_TOKENS,
                "max_tokens_limit": MAX_TOKENS,
                # Where a request names none: the same answer each time.
                "temperature": 0,
            },
            {"id": "minilm", "source": str(minilm), "aliases": ["embedding-model"]},
            scripted("stub", aliases=["qwen3-vl-2b"]),
        ],
        "timing": {
            "beat_timeout_s": 6.0,
            "stall_timeout_s": 60.0,
            "load_stall_timeout_s": 120.0,
            "start_timeout_s": 60.0,
        },
    }


@dataclass(frozen=True)
class Reply:
    """What came back. ``text`` is the whole body."""

    status: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> Any:
        """The body's value."""
        return json.loads(self.text)

    @property
    def events(self) -> list[Any]:
        """The data of a stream's events; the end mark as its text."""
        assert self.headers["content-type"].startswith("text/event-stream"), self
        lines = [line[6:] for line in self.text.split("\n") if line.startswith("data: ")]
        return [line if line == "[DONE]" else json.loads(line) for line in lines]


@dataclass
class Live:
    """The server, and what the examples have made on it.

    ``tiny`` is the folder that engines are added from, but for one that is a GGUF file.
    """

    lmx: Rig
    hub: FakeHub
    gguf: Path
    tiny: Path
    _replies: dict[tuple[str, str | None], Reply] = field(default_factory=dict)

    @property
    def root(self) -> str:
        """The server's URL, without a path."""
        return self.lmx.url.removesuffix("/v1")

    def ask(self, asked: Asked) -> Reply:
        """Send an example's request, with what it needs before it.

        What generates or embeds is sent once: several examples are about the same answer.
        """
        inference = asked.path.startswith(("/v1/", "/v3/")) and asked.method == "POST"
        if not inference:
            return self.send(self._prepared(asked))
        key = (asked.path, asked.body)
        if key not in self._replies:
            self._replies[key] = self.send(asked)
        return self._replies[key]

    def send(self, asked: Asked) -> Reply:
        """Send a request as it is."""
        data = None if asked.body is None else asked.body.encode()
        headers = asked.headers
        if data is not None:
            headers = {"Content-Type": "application/json", **headers}
        connection = HTTPConnection(self.root.removeprefix("http://"), timeout=300)
        with contextlib.closing(connection):
            connection.request(asked.method, asked.path, data, headers)
            response = connection.getresponse()
            lower = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, lower, response.read().decode())

    def admin(self, method: str, path: str, body: Any = None) -> Reply:
        """Send a request with the admin key."""
        return self.send(Asked(method, path, ADMIN, None if body is None else json.dumps(body)))

    def _prepared(self, asked: Asked) -> Asked:
        """Return the request with this machine's paths and ids, once what it is about is there."""
        path, headers, body = asked.path, asked.headers, asked.body
        if path.startswith("/engines"):
            # API.md asks for the admin key here; Kolosal has no keys.
            headers = {**headers, **ADMIN}
            path = path.replace("{engine_id}", ENGINE)
        if path.startswith("/admin/") and path != "/admin/health":
            headers = {**headers, **ADMIN}
        if asked.method == "POST" and path == "/engines":
            assert body is not None
            settings = json.loads(body)
            self._no_engine(settings["engine_id"])
            # One GGUF file is enough: its import takes seconds.
            path_here = self.gguf if settings["model_path"] == GGUF_PATH else self.tiny
            body = json.dumps(settings | {"model_path": str(path_here)})
        elif path.startswith(f"/engines/{ENGINE}"):
            self._engine(ENGINE)
        if "dl_abc123xyz" in path:
            path = path.replace("dl_abc123xyz", self._download())
        if "{download_id}" in path:
            path = path.replace("{download_id}", self._slow_download())
        if asked.method == "DELETE" and path.startswith("/admin/models/"):
            path = f"/admin/models/{self.downloaded()}"
        if path == "/admin/models/unload":
            assert body is not None
            self.admin("POST", "/admin/models/load", {"model_id": json.loads(body)["model_id"]})
        if path == "/admin/models/available":
            self.downloaded()
        if path == "/admin/config/reload":
            changed = yaml.safe_load(self.lmx.config_path.read_text())
            self.lmx.config_path.write_text(yaml.safe_dump(changed | {"logs": {"level": "debug"}}))
        return replace(asked, path=path, headers=headers, body=body)

    def _engine(self, engine_id: str) -> None:
        if self._engine_is_there(engine_id):
            return
        body = {"engine_id": engine_id, "model_path": str(self.tiny)}
        added = self.admin("POST", "/engines", body)
        assert added.status == 201, added

    def _no_engine(self, engine_id: str) -> None:
        if self._engine_is_there(engine_id):
            gone = self.admin("DELETE", f"/engines/{engine_id}")
            assert gone.status == 200, gone

    def _engine_is_there(self, engine_id: str) -> bool:
        listed = self.admin("GET", "/engines").json["engines"]
        return any(engine["engine_id"] == engine_id for engine in listed)

    def _download(self) -> str:
        started = self.admin("POST", "/admin/models/download", {"repo_id": REPO})
        assert started.status == 200, started
        download_id: str = started.json["download_id"]
        return download_id

    def _slow_download(self) -> str:
        """Start a download that takes long enough to be seen on its way."""
        self.admin("DELETE", f"/admin/models/{self.downloaded()}")
        weights = self.tiny / "model.safetensors"
        self.hub.faults[weights.name] = Fault(bytes_per_s=weights.stat().st_size / 1.2, times=1)
        return self._download()

    def downloaded(self) -> str:
        """Return the id of the example's model, after downloading it if it is not there."""
        path = f"/admin/models/download/{self._download()}/progress"
        last = self.admin("GET", path).events[-1]
        assert last["status"] == "completed", last
        model_id: str = last["model_id"]
        return model_id
