"""`lmx batch` against a router, as of another machine: it is plain HTTP with the key."""

import asyncio
import json
import os
import stat
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.messages.keys import ApiKey
from lmx.supervisor.cli import batch
from tests.support.fakes.fake_peers import FakeStream, until
from tests.support.rigs.router_rig import MODEL, TEXTS, Rig, router_rig

KEY = "sk-lmx-one-of-this-test"
COUNTS = {"completed": 0, "failed": 0, "total": 0}


def line(custom_id: str, **fields: Any) -> str:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], **fields}
    return json.dumps(
        {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}
    )


async def lmx(rig: Rig, *arguments: str, key: str = KEY) -> tuple[int, str, str]:
    """Exit code, output and messages of a command."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "lmx.supervisor.cli.main", "--url", rig.url, "--key", key,
        "batch", *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, messages = await asyncio.wait_for(process.communicate(), 90)
    assert process.returncode is not None
    return process.returncode, out.decode(), messages.decode()


async def test_a_batch_from_the_command_line(tmp_path: Path) -> None:
    async with router_rig(api_keys=(ApiKey.of_secret(KEY, "one"),)) as rig:
        assert (await lmx(rig, "list"))[1].startswith("there are no batches")
        file = tmp_path / 'a "b".jsonl'
        file.write_text("\n".join([line("a"), line("b")]))
        code, out, messages = await lmx(rig, "run", str(file))
        assert (code, out) == (0, ""), messages
        assert "completed, 2 of 2 lines" in messages
        found = [
            json.loads(one) for one in (tmp_path / 'a "b".results.jsonl').read_text().splitlines()
        ]
        assert [one["custom_id"] for one in found] == ["a", "b"]
        texts = {one["response"]["body"]["choices"][0]["message"]["content"] for one in found}
        assert texts == {"".join(TEXTS)}
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            'a "b".jsonl', 'a "b".results.jsonl',
        ]  # fmt: skip

        # Lines that fail are in the results, and in the exit code.
        file.write_text("\n".join([line("a"), line("bad", temperature=99)]))
        code, _, messages = await lmx(rig, "run", str(file), "-o", str(tmp_path / "out"))
        assert code == 1 and "completed, 2 of 2 lines, 1 failed" in messages
        assert len((tmp_path / "out").read_text().splitlines()) == 2

        file.write_text(line("a") + "\nno json\n")
        code, _, messages = await lmx(rig, "run", str(file))
        assert code == 1
        assert "line 2: This line is not parseable as valid JSON. (invalid_json_line)" in messages
        missing = str(tmp_path / "missing" / "out")
        code, _, messages = await lmx(rig, "run", str(file), "-o", missing)
        assert code == 2 and f"there is no folder {tmp_path}/missing" in messages
        assert len((await lmx(rig, "list"))[1].splitlines()) == 3, "it was not sent"
        file.write_text("{}")
        code, _, messages = await lmx(rig, "run", str(file))
        assert code == 1 and "is no request of a batch" in messages
        code, _, messages = await lmx(rig, "list", key="sk-lmx-wrong-one-of-this-test")
        assert code == 1 and "LMX_API_KEY" in messages


def test_all_batches_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [f"batch_{number}" for number in range(250)]
    asked: list[str | None] = []

    class Api:
        def call(self, _method: str, _path: str, *, query: dict[str, Any]) -> Any:
            after, limit = query["after"], query["limit"]
            asked.append(after)
            begin = 0 if after is None else ids.index(after) + 1
            page = ids[begin : begin + limit]
            data = [{"id": one, "status": "completed", "request_counts": COUNTS} for one in page]
            return {"data": data, "has_more": begin + limit < len(ids)}

    monkeypatch.setattr(batch, "_api", Api)
    done = CliRunner().invoke(batch.list_batches)
    assert [line.split()[0] for line in done.output.splitlines()] == ids
    assert asked == [None, "batch_99", "batch_199"]
    done = CliRunner().invoke(batch.list_batches, ["--json"])
    assert [one["id"] for one in json.loads(done.output)] == ids


def test_results_that_nobody_waits_for_are_written_nowhere(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text(line("a"))
    done = CliRunner().invoke(batch.run, [str(file), "--detach", "-o", str(tmp_path / "out")])
    assert (done.exit_code, "leave one of them out" in " ".join(done.output.split())) == (2, True)


class Restarting:
    """A client whose lmx gives these answers, and then that the batch has ended."""

    def __init__(self, *codes: ErrorCode) -> None:
        self.codes = list(codes)

    def call(self, _method: str, path: str, *, limit_s: float) -> Any:
        assert (path, limit_s) == ("/v1/batches/batch_1", 30.0)
        if self.codes:
            raise OperationError(self.codes.pop(0), "no answer")
        return {"id": "batch_1", "status": "completed", "request_counts": COUNTS}


RUNS = {"id": "batch_1", "status": "in_progress", "request_counts": COUNTS}


@pytest.mark.parametrize(
    ("first", "codes"),
    [
        (ErrorCode.INVALID_AUTHENTICATION, ()),  # the key of this machine ends with a supervisor
        (ErrorCode.NOT_RUNNING, (ErrorCode.NOT_RUNNING, ErrorCode.SUPERVISOR_UNAVAILABLE)),
    ],
)
def test_an_lmx_that_is_restarted_is_waited_for(
    first: ErrorCode, codes: tuple[ErrorCode, ...], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    rest = list(codes)

    def found_again() -> Restarting:
        if rest:
            raise OperationError(rest.pop(0), "no answer")
        return Restarting()

    monkeypatch.setattr(batch, "_POLL_S", 0.0)
    monkeypatch.setattr(batch, "_api", found_again)
    client: Any = Restarting(first)
    assert batch._wait(client, RUNS)["status"] == "completed"
    assert not rest
    assert capsys.readouterr().err == "waiting for lmx: no answer\n"


@pytest.mark.parametrize(
    ("codes", "patience_s"),
    [
        ([ErrorCode.NOT_FOUND], 600.0),
        ([ErrorCode.INVALID_AUTHENTICATION] * 2, 600.0),  # the key that was found anew is not valid
        ([ErrorCode.NOT_RUNNING] * 2, -1.0),
    ],
)
def test_what_no_restart_explains_ends_the_wait(
    codes: list[ErrorCode], patience_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "_POLL_S", 0.0)
    monkeypatch.setattr(batch, "_PATIENCE_S", patience_s)
    client: Any = Restarting(*codes)
    monkeypatch.setattr(batch, "_api", lambda: client)
    with pytest.raises(OperationError) as caught:
        batch._wait(client, RUNS)
    assert caught.value.code is codes[0]


def test_results_take_the_place_of_a_file_and_of_nothing_else(tmp_path: Path) -> None:
    file, link, pipe = tmp_path / "file", tmp_path / "link", tmp_path / "pipe"
    file.write_bytes(b"before")
    file.chmod(0o644)
    link.symlink_to(file)
    with batch._written(file) as written:
        written.write(b"new")
        assert file.read_bytes() == b"before"
    assert (file.read_bytes(), stat.S_IMODE(file.stat().st_mode)) == (b"new", 0o644)
    with batch._written(link) as written:
        written.write(b"through it")
    assert link.is_symlink() and file.read_bytes() == b"through it"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    with batch._written(pipe) as written:
        written.write(b"to a reader")
    reader.join(90)
    assert pipe.is_fifo() and read == [b"to a reader"]
    with batch._written(tmp_path / "new") as written:
        written.write(b"new")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link", "new", "pipe"]


def test_where_nothing_can_be_written_no_batch_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text(line("a"))
    monkeypatch.setattr(batch, "_api", lambda: pytest.fail("it was sent"))
    monkeypatch.setattr(os, "access", lambda where, _: Path(where) != tmp_path)
    done = CliRunner().invoke(batch.run, [str(file), "-o", str(tmp_path / "out")])
    assert done.exit_code == 2
    assert "can't be written" in " ".join(done.output.split())


def test_a_pipe_has_no_length_and_is_refused() -> None:
    done = CliRunner().invoke(batch.run, ["/dev/null", "--detach"])
    assert done.exit_code == 2
    assert "/dev/null is no regular file" in " ".join(done.output.split())


async def test_a_batch_that_is_left_alone(tmp_path: Path) -> None:
    waiting: list[FakeStream] = []

    async def script(stream: FakeStream) -> None:
        await stream.accept()
        waiting.append(stream)
        await until(lambda: stream.cancelled)

    async with router_rig(script) as rig:
        file = tmp_path / "in.jsonl"
        file.write_text(line("a"))
        code, out, _ = await lmx(rig, "run", str(file), "--detach")
        batch_id = out.strip()
        assert code == 0 and batch_id.startswith("batch_")
        await until(lambda: bool(waiting))
        code, out, messages = await lmx(rig, "results", batch_id)
        assert (code, out) == (1, "") and "has not ended" in messages
        assert json.loads((await lmx(rig, "list", "--json"))[1])[0]["id"] == batch_id
        code, out, _ = await lmx(rig, "cancel", batch_id)
        assert (code, out) == (0, f"{batch_id}  cancelled, 1 of 1 lines, 1 failed\n")
        code, out, _ = await lmx(rig, "results", batch_id)
        assert json.loads(out)["error"]["code"] == "batch_cancelled"
        code, _, messages = await lmx(rig, "cancel", batch_id)
        assert code == 1 and "Cannot cancel a batch with status 'cancelled'" in messages
