"""A model hub on the loopback interface: the routes that huggingface_hub 2.4 asks, with real files
and faults that a test switches on. It counts the bytes that it serves of each file.

`HF_ENDPOINT` points at :attr:`FakeHub.endpoint`; tests set `HF_HOME` to a folder of their own.
"""

import asyncio
import hashlib
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

_PIECE_BYTES = 16 * 1024
_LARGE_BYTES = 50_000
"""From here on a file is one of those that the hub keeps elsewhere and redirects to."""


@dataclass
class Fault:
    """What goes wrong with the answers that it is set for; ``times`` None is always.

    ``status`` answers with it. ``cut_after_bytes`` breaks the connection off so far into each
    answer, and ``reset`` does so with a TCP reset; ``wait_after_bytes`` goes no further until the
    fault is gone. ``bytes_per_s`` is slow. ``body`` is served in place of the file.
    """

    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    cut_after_bytes: int | None = None
    reset: bool = False
    wait_after_bytes: int | None = None
    bytes_per_s: float | None = None
    body: bytes | None = None
    times: int | None = None


@dataclass(frozen=True)
class _File:
    body: bytes

    @property
    def is_large(self) -> bool:
        return len(self.body) >= _LARGE_BYTES

    @property
    def sha1(self) -> str:
        return hashlib.sha1(b"blob %d\0" % len(self.body) + self.body).hexdigest()

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.body).hexdigest()

    @property
    def etag(self) -> str:
        return self.sha256 if self.is_large else self.sha1


class FakeHub:
    """Repositories by name; each revision is a commit of its own, main as well."""

    def __init__(self) -> None:
        self.served: Counter[str] = Counter()
        """Bytes of each file that were sent, by its path."""
        self.asked: Counter[str] = Counter()
        """Requests for each file's content, by its path, and for lists of files, as ``api``."""
        self.encodings: set[str | None] = set()
        """In what encodings files' content was asked for."""
        self.faults: dict[str, Fault] = {}
        """By a file's path, and ``api`` for what is asked about a repository."""
        self.searched: list[dict[str, str]] = []
        """The parameters of each search."""
        self.claimed_bytes: dict[str, int] = {}
        """Of a large file, by its path: the size that it is listed with in place of its own."""
        self.claimed: dict[str, str] = {}
        """What it says in place of a file's hash or of a commit."""
        self.port = 0
        self._repositories: dict[str, dict[str, dict[str, _File]]] = {}

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def add(self, repo_id: str, files: Mapping[str, bytes], revision: str = "main") -> str:
        """Have a repository hold these files; returns the commit."""
        made = {name: _File(body) for name, body in files.items()}
        self._repositories.setdefault(repo_id, {})[revision] = made
        return commit_of(repo_id, revision)

    def add_folder(self, repo_id: str, folder: Path) -> str:
        """Have a repository hold the files of a folder; returns the commit."""
        files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        return self.add(repo_id, files)

    # Within the server's thread.

    async def _list(self, request: web.Request) -> web.StreamResponse:
        """Answer a search: each word must be in the name."""
        self.asked["api"] += 1
        fault = self._fault("api")
        if fault is not None and fault.status is not None:
            raise _refusal(fault.status, fault.headers)
        self.searched.append(dict(request.query))
        words = request.query.get("search", "").lower().split()
        found = [
            {
                "id": repo_id,
                "downloads": 1000 - number,
                "gated": False,
                "safetensors": {"parameters": {"U32": 1000, "BF16": 500}, "total": 1500},
            }
            for number, repo_id in enumerate(self._repositories)
            if all(word in repo_id.lower() for word in words)
        ]
        return web.json_response(found)

    def _found(self, request: web.Request) -> tuple[str, dict[str, _File]]:
        repo_id = f"{request.match_info['org']}/{request.match_info['name']}"
        asked = request.match_info.get("revision", "main")
        repository = self._repositories.get(repo_id)
        if repository is None:
            raise _refusal(404, {"X-Error-Code": "RepoNotFound"})
        for revision, files in repository.items():
            if asked in (revision, commit_of(repo_id, revision)):
                return commit_of(repo_id, revision), files
        raise _refusal(404, {"X-Error-Code": "RevisionNotFound"})

    def _fault(self, name: str) -> Fault | None:
        fault = self.faults.get(name)
        if fault is None or fault.times == 0:
            return None
        if fault.times is not None:
            fault.times -= 1
        return fault

    def _api_fault(self) -> None:
        self.asked["api"] += 1
        fault = self._fault("api")
        if fault is not None and fault.status is not None:
            raise _refusal(fault.status, fault.headers)

    async def _info(self, request: web.Request) -> web.Response:
        self._api_fault()
        commit, files = self._found(request)
        siblings = [
            {
                "rfilename": path,
                "size": self.claimed_bytes.get(path, len(file.body)),
                "blobId": self.claimed.get(file.sha1, file.sha1),
                **(
                    {
                        "lfs": {
                            "sha256": self.claimed.get(file.sha256, file.sha256),
                            "size": self.claimed_bytes.get(path, len(file.body)),
                            "pointerSize": 134,
                        }
                    }
                    if file.is_large
                    else {}
                ),
            }
            for path, file in files.items()
        ]
        repo_id = f"{request.match_info['org']}/{request.match_info['name']}"
        reported = {"id": repo_id, "sha": self.claimed.get(commit, commit), "siblings": siblings}
        return web.json_response(reported)

    async def _tree(self, request: web.Request) -> web.Response:
        self._api_fault()
        _, files = self._found(request)
        listing = [
            {
                "type": "file",
                "path": path,
                "size": len(file.body),
                "oid": file.sha1,
                **(
                    {"lfs": {"oid": file.sha256, "size": len(file.body), "pointerSize": 134}}
                    if file.is_large
                    else {}
                ),
            }
            for path, file in files.items()
        ]
        return web.json_response(listing)

    async def _resolve(self, request: web.Request) -> web.StreamResponse:
        commit, files = self._found(request)
        path = request.match_info["path"]
        file = files.get(path)
        if file is None:
            raise _refusal(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
        headers = {"X-Repo-Commit": commit, "ETag": f'"{file.etag}"'}
        if file.is_large:
            headers |= {
                "X-Linked-Etag": f'"{file.sha256}"',
                "X-Linked-Size": str(len(file.body)),
                # Another host: the client asks this one alone for what it knows of a file.
                "Location": f"http://localhost:{self.port}/elsewhere/{file.sha256}/{path}",
            }
            return web.Response(status=302, headers=headers)
        return await self._send(request, path, file, headers)

    async def _elsewhere(self, request: web.Request) -> web.StreamResponse:
        for repository in self._repositories.values():
            for files in repository.values():
                for path, file in files.items():
                    if (file.sha256, path) == (
                        request.match_info["sha256"],
                        request.match_info["path"],
                    ):
                        return await self._send(request, path, file, {"ETag": f'"{file.sha256}"'})
        raise _refusal(404, {})

    async def _send(
        self, request: web.Request, path: str, file: _File, headers: dict[str, str]
    ) -> web.StreamResponse:
        if request.method == "HEAD":
            return web.Response(headers={**headers, "Content-Length": str(len(file.body))})
        self.asked[path] += 1
        self.encodings.add(request.headers.get("Accept-Encoding"))
        fault = self._fault(path) or Fault()
        if fault.status is not None:
            raise _refusal(fault.status, fault.headers)
        body = file.body if fault.body is None else fault.body
        start, stop = request.http_range.start or 0, request.http_range.stop
        whole_bytes, body = len(body), body[:stop]
        is_part = bool(start or stop)
        if is_part:
            headers |= {"Content-Range": f"bytes {start}-{len(body) - 1}/{whole_bytes}"}
        response = web.StreamResponse(status=206 if is_part else 200, headers=headers)
        response.content_length = len(body) - start
        await response.prepare(request)
        sent = 0
        for offset in range(start, len(body), _PIECE_BYTES):
            while fault.wait_after_bytes is not None and sent >= fault.wait_after_bytes:
                if self.faults.get(path) is not fault:
                    break
                await asyncio.sleep(0.01)
            if fault.cut_after_bytes is not None and sent >= fault.cut_after_bytes:
                assert request.transport is not None
                if fault.reset:
                    connection = request.transport.get_extra_info("socket")
                    linger = struct.pack("ii", 1, 0)
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    request.transport.abort()
                request.transport.close()
                return response
            piece = body[offset : offset + _PIECE_BYTES]
            try:
                await response.write(piece)
            except ConnectionError:
                return response  # whoever asked has left
            sent += len(piece)
            self.served[path] += len(piece)
            if fault.bytes_per_s is not None:
                await asyncio.sleep(len(piece) / fault.bytes_per_s)
        return response

    async def serve(self, stop: asyncio.Event, started: threading.Event) -> None:
        application = web.Application()
        repository = "/{org}/{name}"
        for route in ("", "/revision/{revision:.+}"):
            application.router.add_get(f"/api/models{repository}{route}", self._info)
        application.router.add_get("/api/models", self._list)
        application.router.add_get(f"/api/models{repository}/tree/{{revision}}", self._tree)
        application.router.add_get(f"{repository}/resolve/{{revision}}/{{path:.+}}", self._resolve)
        application.router.add_get("/elsewhere/{sha256}/{path:.+}", self._elsewhere)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.port = runner.addresses[0][1]
        started.set()
        await stop.wait()
        await runner.cleanup()


def commit_of(repo_id: str, revision: str) -> str:
    """Return the commit that a revision of a repository is."""
    return hashlib.sha1(f"{repo_id}@{revision}".encode()).hexdigest()


def _refusal(status: int, headers: Mapping[str, str]) -> web.HTTPException:
    made = web.HTTPException(headers=dict(headers), text='{"error": "as the test wants it"}')
    made.set_status(status)
    return made


@contextmanager
def fake_hub() -> Iterator[FakeHub]:
    """Run a hub in a thread."""
    hub = FakeHub()
    started = threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    def run() -> None:
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(hub.serve(stop, started))
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert started.wait(90), "the hub did not start"
        yield hub
    finally:
        hub.faults.clear()
        loop.call_soon_threadsafe(stop.set)
        thread.join(90)
