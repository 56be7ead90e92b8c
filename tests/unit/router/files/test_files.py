"""Files of clients, by the official library's own calls and by hand."""

import asyncio
import contextlib
import os
import signal
import stat
import subprocess
import sys
import time
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from openai.types import FileDeleted, FileObject

from lmx.protocol.errors import UnavailableError
from lmx.protocol.messages.keys import ApiKey
from lmx.protocol.messages.specs import FilesSpec
from lmx.router.files import blobs as blobs_module
from lmx.router.files import store as store_module
from lmx.router.files.blobs import BlobWriter, names_in
from lmx.router.files.store import FileStore
from lmx.router.files.tables import FileRow
from lmx.router.http.bodies import json_body
from tests.support.clients.sdk_types import checked
from tests.support.fakes.fake_peers import until
from tests.support.rigs.router_rig import Rig, router_rig

ONE, OTHER = "sk-lmx-one-of-this-test", "sk-lmx-other-of-this-test"
KEYS = (ApiKey.of_secret(ONE, "one"), ApiKey.of_secret(OTHER, "other"))
LINES = b'{"custom_id": "1"}\n' * 3


def sdk(rig: Rig, key: str = ONE) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{rig.url}/v1", api_key=key, max_retries=0, timeout=90)


def blobs(rig: Rig) -> set[str]:
    folder = Path(rig.spec.files.folder)
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


async def test_the_library_s_own_calls() -> None:
    async with router_rig(api_keys=KEYS) as rig, sdk(rig) as client, sdk(rig, OTHER) as stranger:
        before_s = int(time.time())
        raw = await client.files.with_raw_response.create(
            file=("../../etc/passwd.jsonl", LINES), purpose="batch"
        )
        made = checked(FileObject, raw.text)
        assert (made.bytes, made.purpose, made.status) == (len(LINES), "batch", "processed")
        # A name is data: it is shown, and no path.
        assert made.filename == "../../etc/passwd.jsonl"
        assert before_s <= made.created_at <= time.time()
        assert made.expires_at == made.created_at + 30 * 86_400
        folder = Path(rig.spec.files.folder)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE((folder / made.id).stat().st_mode) == 0o600
        assert blobs(rig) == {made.id}

        forever = await client.files.create(file=b"abc", purpose="user_data")
        assert forever.expires_at is None
        hour = await client.files.create(
            file=("a.png", b"png"), purpose="vision",
            expires_after={"anchor": "created_at", "seconds": 3600},
        )  # fmt: skip
        assert hour.expires_at == hour.created_at + 3600

        shown = await client.files.with_raw_response.retrieve(made.id)
        assert checked(FileObject, shown.text) == made
        assert (await client.files.content(made.id)).content == LINES
        async with rig.http.head(
            f"{rig.url}/v1/files/{made.id}/content", headers={"Authorization": f"Bearer {ONE}"}
        ) as head:
            assert head.headers["Content-Length"] == str(len(LINES))

        ids = [one.id async for one in client.files.list(limit=1)]
        assert ids == [hour.id, forever.id, made.id]
        ids = [one.id async for one in client.files.list(limit=2, order="asc")]
        assert ids == [made.id, forever.id, hour.id]
        ids = [one.id async for one in client.files.list(purpose="user_data")]
        assert ids == [forever.id]

        # Another key's files are not there.
        assert [one async for one in stranger.files.list()] == []
        for call in (stranger.files.retrieve, stranger.files.content, stranger.files.delete):
            with pytest.raises(openai.NotFoundError, match="No such File object"):
                await call(made.id)
        with pytest.raises(openai.BadRequestError):
            await stranger.files.list(after=made.id)

        gone = await client.files.with_raw_response.delete(made.id)
        assert checked(FileDeleted, gone.text).deleted
        with pytest.raises(openai.NotFoundError):
            await client.files.retrieve(made.id)
        assert blobs(rig) == {forever.id, hour.id}


@pytest.mark.parametrize(
    ("fields", "param", "status"),
    [
        ({"purpose": "batch"}, "file", 400),
        ({"file": b"x"}, "purpose", 400),
        ({"file": b"x", "purpose": "batch_output"}, "purpose", 400),
        ({"file": b"x", "purpose": "fine-tune"}, "purpose", 400),
        (
            {"file": b"x", "purpose": "batch", "expires_after[anchor]": "now",
             "expires_after[seconds]": "3600"},
            "expires_after.anchor", 400,
        ),
        (
            {"file": b"x", "purpose": "batch", "expires_after[anchor]": "created_at",
             "expires_after[seconds]": "60"},
            "expires_after.seconds", 400,
        ),
        ({"file": b"x" * 2000, "purpose": "batch"}, "file", 413),
    ],
)  # fmt: skip
async def test_a_form_that_is_refused_leaves_nothing(
    fields: dict[str, Any], param: str, status: int, tmp_path: Path
) -> None:
    spec = FilesSpec(str(tmp_path / "files"), max_file_bytes=1000)
    async with router_rig(files=spec) as rig:
        form = aiohttp.FormData(default_to_multipart=True)
        for name, value in fields.items():
            named = {"filename": "a"} if isinstance(value, bytes) else {}
            form.add_field(name, value, **named)
        async with rig.http.post(f"{rig.url}/v1/files", data=form) as response:
            answer = await response.json()
            assert (response.status, answer["error"]["param"]) == (status, param), answer
        assert blobs(rig) == set()


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        ("../../x", "../../x"),
        ("/etc/passwd", "etc/passwd"),
        (r"..\\..\\x", r"..\..\x"),
        ("a\0b", None),
        ("evil\u202egnp.exe", "evil_gnp.exe"),
        ("a\u2028b\x9bc", "a_b_c"),
        ("Grüße 🦊", "Grüße 🦊"),
        ("n" * 5_000, "n" * 255),
        ("", "file"),
    ],
)
async def test_a_name_is_data(sent: str, shown: str | None) -> None:
    async with router_rig() as rig:
        body = (
            b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n--b\r\n'
            b'Content-Disposition: form-data; name="file"; filename="%s"\r\n\r\nabc\r\n--b--\r\n'
        ) % sent.encode()
        headers = {"Content-Type": "multipart/form-data; boundary=b"}
        async with rig.http.post(f"{rig.url}/v1/files", data=body, headers=headers) as response:
            answer = await response.json()
        if shown is None:
            assert (response.status, answer["error"]["type"]) == (400, "invalid_request_error")
            assert blobs(rig) == set()
            return
        assert response.status == 200, answer
        assert answer["filename"] == shown
        assert blobs(rig) == {answer["id"]}


async def test_two_gigabytes_are_refused_before_they_are_sent() -> None:
    async with router_rig() as rig:
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.spec.port)
        writer.write(
            b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2147483648\r\n"
            b"Content-Type: multipart/form-data; boundary=b\r\n\r\n"
        )
        async with asyncio.timeout(90):
            assert (await reader.readline()).split()[1] == b"413"
        writer.close()
        assert blobs(rig) == set()


async def test_what_says_no_size_is_refused_at_the_limit_in_flat_memory(tmp_path: Path) -> None:
    limit_bytes = 48 * 2**20
    spec = FilesSpec(str(tmp_path / "files"), max_file_bytes=limit_bytes)
    piece, sent_bytes = bytes(2**20), 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal sent_bytes
        yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
        for _ in range(2048):
            yield piece
            sent_bytes += len(piece)

    async with router_rig(files=spec) as rig:
        headers = {"Content-Type": "multipart/form-data; boundary=b"}
        tracemalloc.start()
        try:
            async with rig.http.post(
                f"{rig.url}/v1/files", data=body(), headers=headers
            ) as refused:
                assert refused.status == 413
                assert (await refused.json())["error"]["param"] == "file"
                refused.close()
            peak_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak_bytes < 16 * 2**20
        assert limit_bytes <= sent_bytes < 2 * limit_bytes
        await until(lambda: blobs(rig) == set())


async def test_paths_are_no_ids() -> None:
    async with router_rig() as rig:
        Path(rig.spec.files.folder).mkdir(exist_ok=True)
        (Path(rig.spec.files.folder) / "secret").write_text("secret")
        for wanted in ("secret", "..%2Fjobs.sqlite", "file-" + "0" * 24, "%00", "file-" + "A" * 24):
            for rest in ("", "/content"):
                async with rig.http.get(f"{rig.url}/v1/files/{wanted}{rest}") as response:
                    assert response.status == 404, wanted


async def test_the_limits_of_a_key_and_of_all(tmp_path: Path) -> None:
    spec = FilesSpec(str(tmp_path / "files"), 10_000, 15_000, 18_000)
    async with router_rig(api_keys=KEYS, files=spec) as rig, sdk(rig) as client:
        kept = await client.files.create(file=b"x" * 10_000, purpose="user_data")
        with pytest.raises(openai.APIStatusError, match="max_key_bytes") as refused:
            await client.files.create(file=b"x" * 5001, purpose="user_data")
        assert refused.value.status_code == 413
        async with sdk(rig, OTHER) as other:
            with pytest.raises(openai.APIStatusError, match=r"\(files.max_bytes\)"):
                await other.files.create(file=b"x" * 8001, purpose="user_data")
            await other.files.create(file=b"x" * 8000, purpose="user_data")
        await client.files.delete(kept.id)
        await client.files.create(file=b"x" * 5000, purpose="user_data")
        async with sdk(rig, OTHER) as other:
            # The smallest one takes a block of the disk, and a record.
            with pytest.raises(openai.APIStatusError, match=r"\(files.max_bytes\)"):
                for _ in range(3):
                    await other.files.create(file=b"x", purpose="user_data")
            assert len(blobs(rig)) == 3


async def test_a_client_that_leaves_and_one_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_MOST_UPLOADS_OF_ONE", 1)
    async with router_rig() as rig, sdk(rig) as client:
        host, port = "127.0.0.1", rig.spec.port
        _, writer = await asyncio.open_connection(host, port)
        writer.write(
            b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500000\r\n"
            b"Content-Type: multipart/form-data; boundary=b\r\n\r\n--b\r\n"
            b'Content-Disposition: form-data; name="file"; filename="f"\r\n\r\n' + b"x" * 100_000
        )
        await until(lambda: any(name.endswith(".part") for name in blobs(rig)))
        with pytest.raises(openai.RateLimitError):
            await client.files.create(file=b"x", purpose="user_data")
        # What a writer holds is no remnant.
        await rig.router.files.sweep()
        assert len(blobs(rig)) == 1
        writer.close()
        await until(lambda: not blobs(rig))
        await client.files.create(file=b"x", purpose="user_data")


async def test_one_too_many_of_all_names_that_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "_MOST_UPLOADS", 3)
    files = FileStore(tmp_path / "files.sqlite", FilesSpec(str(tmp_path / "files")))
    async with files.receive("a"), files.receive("a"), files.receive("b"):
        with pytest.raises(UnavailableError, match=r"^3 files are being uploaded"):
            async with files.receive("b"):
                pass


async def test_a_form_of_which_nothing_comes_gives_its_place_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(json_body, "READ_DEADLINE_S", 0.2)
    async with router_rig() as rig:
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.spec.port)
        writer.write(
            b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500000\r\n"
            b"Content-Type: multipart/form-data; boundary=b\r\n\r\n"
        )
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 90)
        assert head.startswith(b"HTTP/1.1 408 ")
        writer.close()


async def test_who_has_no_key_sees_no_file_of_one(tmp_path: Path) -> None:
    """Also once the last key is revoked, when nobody needs one."""
    files = FileStore(tmp_path / "files.sqlite", FilesSpec(str(tmp_path / "files")))
    files.start()
    try:
        async with files.receive("") as (file_id, upload):
            await upload.write(b"abc")
            await files.add(FileRow(file_id, "key_a", "a", "batch", 3, 1, None), upload)
        assert await files.get(file_id, None) is None
        assert await files.get(file_id, "key_a") is not None
    finally:
        await asyncio.to_thread(files.close, 10.0)


async def test_the_time_of_a_file_is_over(tmp_path: Path) -> None:
    files = FileStore(tmp_path / "files.sqlite", FilesSpec(str(tmp_path / "files")))
    files.start()
    try:
        async with files.receive("") as (file_id, upload):
            await upload.write(b"abc")
            await files.add(FileRow(file_id, None, "a", "batch", 3, 1, 2), upload)
        assert await files.get(file_id, None) is None
        await files.sweep()
        assert not any((tmp_path / "files").iterdir())
    finally:
        await asyncio.to_thread(files.close, 10.0)


@contextlib.asynccontextmanager
async def started(home: Path) -> AsyncIterator[FileStore]:
    files = FileStore(home / "files.sqlite", FilesSpec(str(home / "files")))
    files.start()
    try:
        yield files
    finally:
        await asyncio.to_thread(files.close, 90.0)


async def test_bytes_outlast_the_records_that_were_set_aside(tmp_path: Path) -> None:
    async with started(tmp_path) as files, files.receive("") as (kept, upload):
        await upload.write(b"abc")
        await files.add(FileRow(kept, None, "a", "batch", 3, 1, None), upload)
    folder, records = tmp_path / "files", tmp_path / "files.sqlite"
    (folder / f"file-{'0' * 24}.part").write_bytes(b"half")
    records.write_bytes(b"no database")
    os.utime(folder / kept, (1, 1))
    async with started(tmp_path) as files:
        await files.sweep()
        assert names_in(folder) == [kept]
        # Files that come after that are removed as ever.
        async with files.receive("") as (file_id, upload):
            await upload.write(b"abc")
            await files.add(FileRow(file_id, None, "a", "batch", 3, 1, 2), upload)
        os.utime(folder / file_id, (time.time() + 60,) * 2)
        await files.sweep()
        assert names_in(folder) == [kept]
        (tmp_path / "files.sqlite.damaged").unlink()
        await files.sweep()
        assert names_in(folder) == []


async def test_a_file_beyond_the_room_is_refused_as_it_comes(tmp_path: Path) -> None:
    spec = FilesSpec(str(tmp_path / "files"), 2**30, 10_000, 18_000)
    async with router_rig(api_keys=KEYS, files=spec) as rig:
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.spec.port)
        writer.write(
            b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900000\r\n"
            b"Content-Type: multipart/form-data; boundary=b\r\n"
            + f"Authorization: Bearer {ONE}\r\n\r\n--b\r\n".encode()
            + b'Content-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
        )
        writer.write(b"x" * 600_000)
        # It is answered before the rest is sent.
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 90)
        assert head.startswith(b"HTTP/1.1 413 ")
        assert not blobs(rig)
        writer.close()


WRITE = """
import sys, time
from pathlib import Path
from lmx.router.files.blobs import BlobWriter, names_in
writer = BlobWriter(Path(sys.argv[1]), "file-" + "0" * 24)
writer.write(b"half")
def record():
    print("placed", flush=True)
    time.sleep(600)
if sys.argv[2] == "placed":
    writer.commit(record)
print("written", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("when", ["written", "placed"])
async def test_a_writer_that_is_killed_leaves_no_file(tmp_path: Path, when: str) -> None:
    folder = tmp_path / "files"
    command = [sys.executable, "-c", WRITE, str(folder), when]
    files = FileStore(tmp_path / "files.sqlite", FilesSpec(str(folder)))
    files.start()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert await asyncio.to_thread(process.stdout.readline) == when.encode() + b"\n"
            await files.sweep()
            assert len(names_in(folder)) == 1, "its writer lives"
        finally:
            process.send_signal(signal.SIGKILL)
    try:
        await files.sweep()
        assert not any(folder.iterdir())
    finally:
        await asyncio.to_thread(files.close, 10.0)


def test_each_byte_is_synced_once_before_the_file_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []

    def note(descriptor: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        synced.append("folder" if is_folder else f"{os.fstat(descriptor).st_size} bytes")

    monkeypatch.setattr(blobs_module, "sync", note)
    with BlobWriter(tmp_path, "file-" + "0" * 24) as writer:
        writer.write(b"one")
        writer.sync()
        writer.write(b"two")
        writer.sync()
        assert writer.commit(lambda: True)
    with BlobWriter(tmp_path, "file-" + "1" * 24) as writer:
        writer.write(b"one")
        assert writer.commit(lambda: True)
    assert synced == ["3 bytes", "6 bytes", "folder", "3 bytes", "folder"]


def test_a_thread_that_comes_late_writes_nothing(tmp_path: Path) -> None:
    writer = BlobWriter(tmp_path, "file-" + "0" * 24)
    writer.__exit__(None, None, None)
    with pytest.raises(OSError, match="given up"):
        writer.write(b"late")
    with pytest.raises(OSError, match="given up"):
        writer.commit(lambda: True)
    assert not any(tmp_path.iterdir())
