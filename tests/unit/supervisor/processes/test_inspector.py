"""Readers of model files that hang, end, or say what makes no sense; and what they may say."""

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import lmx.supervisor.processes.inspector as inspector_module
from lmx.protocol.errors import ProtocolError
from lmx.protocol.host.processor_wait import ProcessorWait
from lmx.protocol.models.memory import Activations, KvLayers, MemoryModel
from lmx.protocol.wire import codec
from lmx.supervisor.memory.inspection import (
    Inspection,
    ModelFacts,
    ModelFiles,
    Question,
    read_answer,
    shown,
)
from lmx.supervisor.processes.inspector import Inspections, Inspector
from lmx.supervisor.state.home import Home
from tests.support.fakes.fake_peers import until
from tests.support.models.model_folders import write_model


def script(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Have readers be a shell script."""
    program = folder / "program"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(program))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("exec sleep 600", "no answer within 0.3 s"),
        ("exit 1", "its reader"),
        ("read line; kill -9 $$", "was killed"),
        ("read line; kill -XCPU $$", "ended"),
        ("read line; echo nonsense; exec sleep 60", "nothing that makes sense"),
        ("read line; echo '[]'; exec sleep 60", "nothing that makes sense"),
        ("read line; echo '{}'; exec sleep 60", "expected a map"),
        ('read line; echo \'{"error": "it fell"}\'; exec sleep 60', "it fell"),
    ],
)
async def test_a_reader_that_fails_costs_one_answer(
    text: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_model(tmp_path / "m")
    inspector = Inspector(Home(tmp_path), 0.3 if "0.3" in why else 20.0)
    with monkeypatch.context() as patched:
        script(tmp_path, patched, text)
        found = await inspector.inspect(Question(str(folder), str(folder)))
    assert found.problem is not None
    assert found.problem.startswith(f"{folder} can't be read: ")
    assert why in found.problem
    assert found.by_host is (why in ("no answer within 0.3 s", "was killed"))
    again = Inspector(Home(tmp_path))
    assert (await again.inspect(Question(str(folder), str(folder)))).problem is None
    await inspector.wait_closed()
    await again.wait_closed()


async def test_a_file_is_there_with_all_of_its_parts(tmp_path: Path) -> None:
    first, second = (tmp_path / f"m-0000{number}-of-00002.gguf" for number in (1, 2))
    first.touch()
    inspector = Inspector(Home(tmp_path), 60.0)
    assert not await inspector.is_whole(first)
    second.touch()
    assert await inspector.is_whole(first)
    assert not await inspector.is_whole(tmp_path / ("a" * 5000))
    await inspector.wait_closed()


async def test_what_an_engine_prints_is_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import os\nprint('hello')\nos.write(1, b'more\\n')\n"
    code += "def estimate(*_): raise ValueError('it was asked')\n"
    (tmp_path / "chatty_engine.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{':'.join(sys.path)}")
    folder = str(write_model(tmp_path / "m"))
    inspector = Inspector(Home(tmp_path), 60.0)
    found = await inspector.inspect(Question(folder, folder, engine="chatty_engine:create"))
    assert "it was asked" in (found.problem or "")
    await inspector.wait_closed()


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL, signal.SIGSEGV])
async def test_a_reader_that_was_hit_from_outside_costs_no_answer(
    number: signal.Signals, tmp_path: Path
) -> None:
    folder = str(write_model(tmp_path / "m"))
    inspector = Inspector(Home(tmp_path), 2.0)
    question = Question(folder, folder)
    assert (await inspector.inspect(question)).problem is None
    (kept,) = inspector._idle
    kept.send_signal(signal.SIGSTOP)
    asking = asyncio.create_task(inspector.inspect(question))
    await until(lambda: kept in inspector._busy)
    kept.send_signal(number)
    if number is signal.SIGSEGV:
        kept.send_signal(signal.SIGCONT)  # One that is stopped takes no other signal.
    assert (await asking).problem is None
    await inspector.wait_closed()


async def test_a_reader_that_waits_for_a_processor_is_slow_and_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(write_model(tmp_path / "m"))
    inspector = Inspector(Home(tmp_path), 0.01)
    with monkeypatch.context() as patched:
        script(tmp_path, patched, "exec sleep 600")
        lost = await inspector.inspect(Question(folder, folder))
    assert "no answer within 0.01 s" in (lost.problem or "")
    monkeypatch.setattr(ProcessorWait, "more_s", lambda _: 60.0)
    assert (await inspector.inspect(Question(folder, folder))).problem is None
    await inspector.wait_closed()


async def test_one_that_hangs_keeps_no_other_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inspector = Inspector(Home(tmp_path), 60.0)
    folder = write_model(tmp_path / "m")
    with monkeypatch.context() as patched:
        script(tmp_path, patched, "exec sleep 60")
        hanging = [
            asyncio.create_task(inspector.inspect(Question(str(folder), str(folder))))
            for _ in range(9)
        ]
        await until(lambda: len(inspector._busy) == 9)
    found = await inspector.inspect(Question(str(folder), str(folder)))
    assert found.files is not None
    assert not any(task.done() for task in hanging)
    async with asyncio.timeout(90):
        await inspector.wait_closed()
        for task in hanging:
            assert "can't be read" in ((await task).problem or "")


async def test_a_disk_that_is_gone_takes_no_reader_from_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its readers end by nothing."""
    inspector = Inspector(Home(tmp_path), 0.01)
    gone, folder = str(write_model(tmp_path / "gone")), str(write_model(tmp_path / "m"))
    with monkeypatch.context() as patched:
        script(tmp_path, patched, "exec sleep 600")
        stuck: list[asyncio.subprocess.Process] = []
        patched.setattr(inspector_module, "_kill", stuck.append)
        for _ in range(3):
            found = await inspector.inspect(Question(gone, gone))
        assert "earlier reads of it still hang" in (found.problem or "") and found.by_host
        assert len(stuck) == 4
    monkeypatch.setattr(ProcessorWait, "more_s", lambda _: 60.0)
    assert (await inspector.inspect(Question(folder, folder))).problem is None
    for reader in stuck:
        reader.kill()
    await inspector.wait_closed()


async def test_who_waits_for_a_turn_waits_no_longer_than_a_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(write_model(tmp_path / "m"))
    inspector = Inspector(Home(tmp_path))
    question = Question(folder, folder)
    async with inspector._turn, asyncio.timeout(90):
        monkeypatch.setattr(inspector_module, "_LONGEST_SOON_S", inspector_module._SOON_S + 0.1)
        found = await inspector.inspect_soon(question)
    assert "reading the files of other models" in (found.problem or "") and found.by_host
    assert (await inspector.inspect(question)).problem is None
    await inspector.wait_closed()


async def test_one_reader_answers_all_who_ask_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspector_module, "_SLOW_S", 60.0)
    monkeypatch.setattr(inspector_module, "_LONGEST_SLOW_S", 60.0)
    inspector = Inspector(Home(tmp_path))
    folders = [str(write_model(tmp_path / name)) for name in "abcde"]
    found = await asyncio.gather(*(inspector.inspect(Question(one, one)) for one in folders))
    assert [one.path for one in found] == folders
    assert (len(inspector._idle), inspector._leaving) == (1, {})
    await inspector.wait_closed()


async def test_a_model_gets_the_answer_to_its_latest_question(tmp_path: Path) -> None:
    inspector = Inspector(Home(tmp_path))
    reported: list[tuple[str, str]] = []
    came = asyncio.Event()

    def take(model_id: str, found: Inspection) -> None:
        reported.append((model_id, found.question.source))
        came.set()

    inspections = Inspections(inspector, take)
    for name in ("x", "y", "z"):
        folder = str(write_model(tmp_path / name))
        inspections.ask("m", Question(folder, folder))
        await asyncio.sleep(0)
    await asyncio.wait_for(came.wait(), 90)
    assert reported == [("m", str(tmp_path / "z"))]
    await inspector.wait_closed()


QUESTION = Question("/m", "/m")
WHOLE = Inspection(
    QUESTION,
    "/m",
    facts=ModelFacts("qwen3", 4096, 5),
    files=ModelFiles(
        MemoryModel(10, 20, 30, (KvLayers(2, 4),), Activations(256, False, 1, 2, 3, 4)),
        4096,
        "a" * 64,
    ),
)


def test_an_answer_is_what_was_sent() -> None:
    assert read_answer(QUESTION, json.loads(json.dumps(codec.to_map(WHOLE)))) == WHOLE


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["question", "source"], "/another"),
        (["path"], 3),
        (["path"], "a" * 5000),
        (["path"], "a\0"),
        (["problem"], "a\ud800"),
        (["problem"], "a\x1b[31m"),
        (["missing"], "x" * 3000),
        (["kind"], "nonsense"),
        (["facts", "family"], "\ud800"),
        (["facts", "family"], ["x"]),
        (["facts", "context_tokens"], 2**70),
        (["facts", "context_tokens"], -1),
        (["facts", "created_s"], -5),
        (["files", "memory", "weights_bytes"], 2**64),
        (["files", "memory", "weights_bytes"], -1),
        (["files", "memory", "weights_bytes"], 1.5),
        (["files", "memory", "weights_bytes"], True),
        (["files", "memory", "process_bytes"], 2**51),
        (["files", "memory", "buffers_bytes"], -1),
        (["files", "memory", "activations", "chunk_tokens"], 0),
        (["files", "memory", "activations", "chunk_tokens"], 2**31),
        (["files", "memory", "activations", "whole_texts"], 1),
        (["files", "memory", "activations", "token_bytes"], 2**63),
        (["files", "memory", "activations", "pair_bytes"], -1),
        (["files", "memory", "activations", "depth_tokens"], 0),
        (["files", "memory", "activations", "row_bytes"], -1),
        (["files", "memory", "kv_layers"], [{"layers": 2**40, "token_bytes": 1}]),
        (["files", "memory", "kv_layers"], [{"layers": 1, "token_bytes": 2**60}]),
        (["files", "memory", "kv_layers"], [{"layers": 1, "token_bytes": -1}]),
        (["files", "memory", "kv_layers"], [{"layers": 1, "token_bytes": 1, "step_tokens": 0}]),
        (["files", "memory", "kv_layers"], [[]]),
        (["files", "context_tokens"], 2**40),
        (["files", "revision"], "short"),
    ],
)
def test_what_is_out_of_bounds_is_no_answer(path: list[str], value: Any) -> None:
    answer: Any = json.loads(json.dumps(codec.to_map(WHOLE)))
    inner = answer
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    with pytest.raises(ProtocolError):
        read_answer(QUESTION, answer)


def test_what_is_shown_can_be_sent_and_printed() -> None:
    assert shown("a\ud800b\x1b[0m\n") == "a\\ud800b\\x1b[0m\\n"
    assert len(shown("x" * 9999)) == 2000
