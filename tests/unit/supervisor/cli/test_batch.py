"""`lmx batch` against a router, as of another machine: it is plain HTTP with the key."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lmx.protocol.messages.keys import ApiKey
from lmx.supervisor.cli import batch
from tests.support.fakes.fake_peers import FakeStream, until
from tests.support.rigs.router_rig import MODEL, TEXTS, Rig, router_rig

KEY = "sk-lmx-one-of-this-test"


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
    counts = {"completed": 0, "failed": 0, "total": 0}
    ids = [f"batch_{number}" for number in range(250)]
    asked: list[str | None] = []

    class Api:
        def call(self, _method: str, _path: str, *, query: dict[str, Any]) -> Any:
            after, limit = query["after"], query["limit"]
            asked.append(after)
            begin = 0 if after is None else ids.index(after) + 1
            page = ids[begin : begin + limit]
            data = [{"id": one, "status": "completed", "request_counts": counts} for one in page]
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
