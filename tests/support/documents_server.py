"""A server that can answer every example of the documents, and what an example needs before it.

The documents' model names are aliases here, so their requests go out as they are.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from document_requests import Asked
from rig import Rig, scripted, wait_until

ADMIN_KEY: Final = "the-admin-key-of-the-tests"
ADMIN: Final = {"X-Admin-Key": ADMIN_KEY, "Content-Type": "application/json"}
REPO: Final = "mlx-community/Llama-3.2-8B-Instruct-4bit"
ENGINE: Final = "llama-7b"

MAX_TOKENS: Final = 40
"""Enough for a tool call; the examples ask for up to 2048."""


def config(smollm2: Path, minilm: Path) -> dict[str, Any]:
    """Return the configuration: a chat model, an embedding model, and one to unload."""
    chat_names = (
        "my-model", "llama-3.2-8b", "llama3", "llava", "qwen3-omni", "qwen3.6-27b",
        "kimi-k2-0905-preview",
    )  # fmt: skip
    return {
        "security": {"admin_key": ADMIN_KEY},
        "models": [
            {
                "id": "smollm2",
                "source": str(smollm2),
                "aliases": list(chat_names),
                "default_max_tokens": 12,
                "max_tokens_limit": MAX_TOKENS,
                # The example loads a model that is there.
                "pinned": True,
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
    """The server, and what the examples have made on it."""

    lmx: Rig
    root: str
    gguf: Path
    _replies: dict[tuple[str, str | None], Reply] = field(default_factory=dict)
    _download_id: str | None = None

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
        request = urllib.request.Request(
            self.root + asked.path, data, headers, method=asked.method
        )  # fmt: skip
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                return _reply(response.status, response)
        except urllib.error.HTTPError as error:
            with error:
                return _reply(error.code, error)

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
            body = json.dumps(settings | {"model_path": str(self.gguf)})
        elif path.startswith(f"/engines/{ENGINE}"):
            self._engine(ENGINE)
        for known in ("dl_abc123xyz", "{download_id}"):
            if known in path:
                path = path.replace(known, self._download())
        if asked.method == "DELETE" and path.startswith("/admin/models/"):
            path = f"/admin/models/{self.downloaded()}"
        if path == "/admin/models/unload":
            assert body is not None
            self.admin("POST", "/admin/models/load", {"model_id": json.loads(body)["model_id"]})
        if path == "/admin/models/available":
            self.downloaded()
        reply_path = path
        return replace(asked, path=reply_path, headers=headers, body=body)

    def _engine(self, engine_id: str) -> None:
        if self._engine_is_there(engine_id):
            return
        body = {"engine_id": engine_id, "model_path": str(self.gguf), "n_ctx": 1024}
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
        self._download_id = started.json["download_id"]
        assert self._download_id is not None
        return self._download_id

    def downloaded(self) -> str:
        """Return the id of the example's model, after downloading it if it is not there."""
        path = f"/admin/models/download/{self._download()}/progress"
        last = self.admin("GET", path).events[-1]
        assert last["status"] == "completed", last
        model_id: str = last["model_id"]
        return model_id


def _reply(status: int, response: Any) -> Reply:
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Reply(status, headers, response.read().decode())


def settled(condition: Callable[[], Any], what: str) -> Any:
    """Wait as the rig does."""
    return wait_until(condition, what, 60)
