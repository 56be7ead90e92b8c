"""The fetch program against a small hub on the loopback interface.

The program runs as the process that it is: the hub client reads its settings when imported.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": b"weights" * 50_000,
    "tokenizer.json": b"{}",
    "modeling_evil.py": b"raise SystemExit",
    "pytorch_model.bin": b"pickle",
    "model.gguf": b"GGUF",
}


class Hub(ThreadingHTTPServer):
    """Knows `org/tiny` (FILES), `org/gated` (403), `org/private` (401), `org/bare` (no weights)."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.fetched: list[str] = []
        self.let_weights_go = threading.Event()
        self.let_weights_go.set()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        match urlsplit(self.path).path.strip("/").split("/"):
            case ["api", "models", "org", "gated", *_]:
                self.answer(403, b"{}", {"X-Error-Code": "GatedRepo"})
            case ["api", "models", "org", "private", *_]:
                self.answer(401, b'{"error": "Invalid username or password."}')
            case ["api", "models", "org", ("tiny" | "bare") as name, "revision", "main"]:
                self.answer(200, json.dumps({"id": f"org/{name}", "sha": COMMIT}).encode())
            case ["api", "models", "org", "tiny", "revision", _]:
                self.answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            case ["api", "models", "org", ("tiny" | "bare") as name, "tree", _]:
                listing = [
                    {"type": "file", "path": path, "size": len(data), "oid": f"{len(data):040x}"}
                    for path, data in FILES.items()
                    if name == "tiny" or path == "config.json"
                ]
                self.answer(200, json.dumps(listing).encode())
            case ["org", "tiny" | "bare", "resolve", _, path] if path in FILES:
                if self.command == "GET":
                    self.server.fetched.append(path)
                    if path == "model.safetensors":
                        self.server.let_weights_go.wait(30)
                etag = f'"{len(FILES[path]):040x}"'
                self.answer(200, FILES[path], {"ETag": etag, "X-Repo-Commit": COMMIT})
            case _:
                self.answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_args: Any) -> None: ...


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.let_weights_go.set()
        server.shutdown()
        thread.join()


@dataclass
class Fetch:
    """Starts the fetch program with a cache of its own."""

    folder: Path
    endpoint: str
    extra: dict[str, str] = field(default_factory=dict)

    def command(self, source: str) -> list[str]:
        models = str(self.folder / "models")
        return [
            *(sys.executable, "-m", "lmx.supervisor.fetch_main"),
            *("--source", source, "--models-dir", models),
        ]

    def environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        hub = {"HF_HOME": str(self.folder / "hf"), "HF_ENDPOINT": self.endpoint}
        return {**kept, **hub, **self.extra}

    def start(self, command: list[str]) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, env=self.environment(), stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )

    def __call__(self, source: str) -> tuple[int, list[dict[str, Any]]]:
        process = self.start(self.command(source))
        out, err = process.communicate(timeout=60)
        assert process.returncode in (0, 1), err
        return process.returncode, [json.loads(line) for line in out.splitlines()]

    def error(self, source: str) -> tuple[str, str]:
        status, lines = self(source)
        assert status == 1
        return lines[-1]["error"]["code"], lines[-1]["error"]["message"]


@pytest.fixture
def fetch(tmp_path: Path, hub: Hub) -> Fetch:
    return Fetch(tmp_path, hub.endpoint)


pytestmark = pytest.mark.process


def test_download_then_cache_then_offline(fetch: Fetch, hub: Hub) -> None:
    status, lines = fetch("org/tiny")
    assert status == 0, lines
    folder = Path(lines[-1]["path"])
    wanted = {"config.json", "model.safetensors", "tokenizer.json"}
    assert {path.name for path in folder.iterdir()} == wanted
    assert (folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert set(hub.fetched) == wanted
    fractions = [line["fraction"] for line in lines if line.get("phase") == "download"]
    assert fractions[-1] == 1.0

    hub.fetched.clear()
    assert fetch("org/tiny@main")[1][-1] == {"path": str(folder)}
    fetch.extra = {"HF_HUB_OFFLINE": "1"}
    assert fetch("org/tiny")[1][-1] == {"path": str(folder)}
    # Nobody listens on port 9 of the loopback interface: as good as no network.
    fetch.extra = {"HF_ENDPOINT": "http://127.0.0.1:9"}
    assert fetch("org/tiny")[1][-1] == {"path": str(folder)}
    assert hub.fetched == []


def test_what_the_hub_refuses(fetch: Fetch) -> None:
    code, message = fetch.error("org/gone")
    assert (code, "no repository org/gone" in message) == ("model_source_invalid", True), message
    code, message = fetch.error("org/private")
    assert (code, "set HF_TOKEN" in message) == ("download_failed", True), message
    code, message = fetch.error("org/gated")
    assert (code, "accept its terms" in message) == ("download_failed", True), message
    code, message = fetch.error("org/tiny@v9")
    assert (code, "'v9'" in message) == ("model_source_invalid", True), message
    code, message = fetch.error("org/bare")
    assert (code, "no *.safetensors" in message) == ("model_source_invalid", True), message


def test_no_network_and_nothing_in_the_cache(fetch: Fetch) -> None:
    fetch.extra = {"HF_HUB_OFFLINE": "1"}
    code, message = fetch.error("org/tiny")
    assert (code, "HF_HUB_OFFLINE is set" in message) == ("download_failed", True), message
    fetch.extra = {"HF_ENDPOINT": "http://127.0.0.1:9"}
    code, message = fetch.error("org/tiny")
    assert (code, "check the network" in message) == ("download_failed", True), message


def test_sources_that_are_wrong(fetch: Fetch, tmp_path: Path) -> None:
    assert "neither a path nor" in fetch.error("tiny")[1]
    assert "has no config.json" in fetch.error(str(tmp_path))[1]
    assert "is not a folder" in fetch.error(str(tmp_path / "gone"))[1]
    (tmp_path / "config.json").write_text("{}")
    assert fetch(str(tmp_path)) == (0, [{"path": str(tmp_path)}])


def test_what_libraries_print_does_not_reach_stdout() -> None:
    code = (
        "import os; from lmx.supervisor.fetch_main import Outlet; outlet = Outlet();"
        "print('chatter', flush=True); os.write(1, b'more'); outlet.line({'path': '/x'})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == '{"path": "/x"}\n'
    assert done.stderr == "chatter\nmore"


def wait_until_stuck(hub: Hub) -> None:
    deadline = time.monotonic() + 30
    while "model.safetensors" not in hub.fetched:
        assert time.monotonic() < deadline, "the download did not begin"
        time.sleep(0.01)


def test_sigterm_stops_a_download(fetch: Fetch, hub: Hub) -> None:
    hub.let_weights_go.clear()
    process = fetch.start(fetch.command("org/tiny"))
    wait_until_stuck(hub)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=10)
    assert process.returncode == 128 + signal.SIGTERM
    assert "path" not in out
    hub.let_weights_go.set()
    assert fetch("org/tiny")[0] == 0


def test_it_stops_with_its_parent(fetch: Fetch, hub: Hub) -> None:
    hub.let_weights_go.clear()
    # A parent that starts the program, tells its pid, and ends when its stdin does.
    code = (
        "import subprocess, sys;"
        "print(subprocess.Popen(sys.argv[1:], stdout=2, stdin=0).pid, flush=True);"
        "sys.stdin.read()"
    )
    parent = fetch.start([sys.executable, "-c", code, *fetch.command("org/tiny")])
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    wait_until_stuck(hub)
    parent.kill()
    child.wait(timeout=20)
