"""What is quantized after a download, how large it gets, and that it is made whole or not at all.
The worker's program is replaced."""

import errno
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
from collections import namedtuple
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.models.checkpoint import parse_checkpoint_config
from lmx.protocol.models.safetensors import Tensor
from lmx.protocol.states import ModelKind, QuantizedBits
from lmx.supervisor.config.sources import names_quantisation, parse_source, quantized_name
from lmx.supervisor.decisions.memory_reading import MemoryReading
from lmx.supervisor.fetch import made_folder, quantize
from lmx.supervisor.fetch import main as fetch_main
from lmx.supervisor.fetch.conversion_form import Platform
from lmx.supervisor.fetch.made_folder import check_room, locked
from lmx.supervisor.fetch.main import main
from lmx.supervisor.fetch.progress import Phase
from lmx.supervisor.fetch.quantized_form import quantized_bytes, refuse_unfit
from lmx.supervisor.memory.files import whole_conversion
from lmx.supervisor.memory.inspect_main import inspect
from lmx.supervisor.memory.inspection import Question
from lmx.supervisor.memory.quantized import quantized_words
from lmx.supervisor.processes import preview
from lmx.supervisor.state.home import Home
from tests.support.models.model_folders import write_model
from tests.support.rigs.rig import wait_until

MIB, GIB = 1024**2, 1024**3
RESULT = {
    "bits": "4", "bits_a_weight": 4.5, "perplexity_before": 10.0, "perplexity_after": 10.5,
    "tokens": 1700,
}  # fmt: skip
WORDS = (
    "quantized to 4 bits by lmx, from org/m (4.50 bits a weight); perplexity on 1700 tokens of "
    "text: 10.00 before, 10.50 after (+5.0 %)"
)
PROGRAM = """
import json, sys, os
from pathlib import Path
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
source, target = Path(given["--source"]), Path(given["--target"])
target.mkdir()
assert "HF_TOKEN" not in os.environ
for name in ("config.json", "model.safetensors"):
    (target / name).write_bytes((source / name).read_bytes())
print(json.dumps({"phase": "convert", "fraction": 0.5, "detail": "quantizing"}))
"""


def ending(words: str) -> tuple[str, ...]:
    return (sys.executable, "-c", PROGRAM + words)


GOOD = ending(f"print(json.dumps({{'result': {RESULT}}}))")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(quantize, "PROGRAM", GOOD)
    monkeypatch.setenv("HF_TOKEN", "only the hub gets it")
    return write_model(tmp_path / "model", model_type="llama")


def run(folder: Path, models: Path, said: list[str] | None = None) -> Path:
    def report(phase: Phase, fraction: float | None, detail: str, **_bytes: int | None) -> None:
        if said is not None:
            said.append(detail)

    return quantize.fetch_quantized(
        folder, "org/m", QuantizedBits.FOUR, models, platform="linux", report=report
    )


def left(models: Path) -> list[str]:
    return [path.name for path in models.glob("*") if not path.name.endswith(".lock")]


def test_it_is_made_once_and_says_what_came_of_it(folder: Path, tmp_path: Path) -> None:
    models, said = tmp_path / "models", list[str]()
    made = run(folder, models, said)
    assert made.name.startswith("m-4bit-")
    assert said[1:] == ["quantizing (50 %)", WORDS]
    stamp = whole_conversion(made)
    assert stamp is not None and stamp["result"] == RESULT
    assert inspect(Question(str(made), str(made)), Home(tmp_path)).facts.quantized == WORDS
    said.clear()
    assert run(folder, models, said) == made
    assert said[1:] == [WORDS], "it was there"
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes() + bytes(64))
    run(folder, models, said)
    assert "quantizing (50 %)" in said, "the weights have changed"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("os.kill(os.getpid(), 9)", ErrorCode.CONVERSION_FAILED, "ended with status -9"),
        ("", ErrorCode.CONVERSION_FAILED, "ended with status 0 and no word"),
        (
            "print(json.dumps({'error': {'code': 'model_source_invalid', 'message': 'odd'}}))",
            ErrorCode.MODEL_SOURCE_INVALID,
            "org/m can't be quantized: odd",
        ),
    ],
)
def test_a_program_that_fails_leaves_nothing(
    words: str,
    code: ErrorCode,
    message: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quantize, "PROGRAM", ending(words))
    with pytest.raises(OperationError, match=message) as caught:
        run(folder, tmp_path / "models")
    assert caught.value.code is code
    assert left(tmp_path / "models") == []


def test_what_a_killed_process_left_is_no_model_and_goes(folder: Path, tmp_path: Path) -> None:
    models = tmp_path / "models"
    made = run(folder, models)
    scratch = models / f".{made.name}.part"
    made.rename(tmp_path / "half")
    (scratch / "model").mkdir(parents=True)
    shutil.copytree(tmp_path / "half", scratch / "model", dirs_exist_ok=True)
    assert [whole_conversion(each) for each in models.glob("[!.]*")] == []
    assert run(folder, models) == made
    assert left(models) == [made.name]


WAITS = """
import os, signal, sys, threading
from pathlib import Path
from lmx.worker.mlx.quantizing.main import end_with_stdin
threading.Thread(target=end_with_stdin, daemon=True).start()
target = Path(sys.argv[4])
target.mkdir()
(target / "config.json").write_text("{}")
(target.parents[1] / "child.new").write_text(str(os.getpid()))
(target.parents[1] / "child.new").rename(target.parents[1] / "child")
while True:
    signal.pause()
"""
FETCH = """
import sys
from lmx.supervisor.fetch import quantize
from lmx.supervisor.fetch.main import main
quantize.PROGRAM = (sys.executable, "-c", sys.argv[1])
main(sys.argv[2:])
"""


def has_ended(process: psutil.Process) -> bool:
    """Whether it has, though nobody may have waited for it."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def others_of(pid: int) -> list[int]:
    """Return its threads but the main one, as signals are sent to them; on a Mac it can't be said
    which one is meant."""
    if sys.platform != "linux":
        return [pid]
    return sorted({one.id for one in psutil.Process(pid).threads()} - {pid})


@pytest.mark.parametrize(
    ("number", "thread"), [(signal.SIGKILL, 0), (signal.SIGTERM, 0), (signal.SIGTERM, 1)]
)
def test_what_quantizes_ends_with_the_fetch(
    number: signal.Signals, thread: int, folder: Path, tmp_path: Path
) -> None:
    """Whichever of its threads the system gives the signal to: of a process that stood still it may
    be any."""
    models = tmp_path / "models"
    options = ("--source", str(folder), "--models-dir", str(models), "--bits", "4")
    with subprocess.Popen(
        [sys.executable, "-c", FETCH, WAITS, *options], stdout=subprocess.DEVNULL
    ) as fetch:
        wait_until((models / "child").exists, "it is quantized")
        child = psutil.Process(int((models / "child").read_text()))
        os.kill(fetch.pid if thread == 0 else others_of(fetch.pid)[thread - 1], number)
        fetch.wait(90)
    wait_until(lambda: has_ended(child), "the program that quantizes has ended")
    assert [whole_conversion(each) for each in models.glob("[!.]*")] == [None]
    (models / "child").unlink()
    assert main(list(options)) == 0
    assert [name.startswith("model-4bit-") for name in left(models)] == [True]


def test_too_little_room_is_said_before_the_work(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    little = MemoryReading(MIB, MIB, 0, 0.5)
    monkeypatch.setattr(quantize, "read_memory", lambda: little)
    with pytest.raises(OperationError, match=r"of memory, and .* free: unload a model") as caught:
        run(folder, tmp_path / "models")
    assert caught.value.code is ErrorCode.INSUFFICIENT_MEMORY
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage(MIB, 0, MIB))
    with pytest.raises(OperationError, match="free some space there") as caught:
        run(folder, tmp_path / "models")
    assert caught.value.code is ErrorCode.INSUFFICIENT_DISK
    assert left(tmp_path / "models") == []


def test_a_models_folder_on_a_disk_that_is_not_mounted_is_no_fault_of_the_model(
    folder: Path, tmp_path: Path
) -> None:
    models = tmp_path / "models"
    models.symlink_to(tmp_path / "disk")
    makers: list[Callable[[], object]] = [
        lambda: run(folder, models),
        lambda: check_room(models, "org/m", 0),
    ]
    for make in makers:
        with pytest.raises(OperationError, match=r"is a link to .*/disk, .* mount it") as caught:
            make()
        assert caught.value.code is ErrorCode.INSUFFICIENT_DISK


@pytest.mark.parametrize(("missing_bytes", "fits"), [(GIB, True), (3 * GIB, False)])
def test_the_original_and_the_result_must_fit_on_one_disk(
    missing_bytes: int, fits: bool, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them alone would fit."""
    models, downloaded = tmp_path / "models", list[str]()

    def look_up(*_args: Any, heads: Callable[[str, list[Any]], None], **_more: Any) -> Any:
        heads("0" * 40, [])
        found = {"problem": None, "problem_code": None, "folder": str(tmp_path)}
        return {**found, "missing_bytes": missing_bytes}

    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage(0, 0, 4 * GIB))
    monkeypatch.setattr(fetch_main, "look_up", look_up)
    monkeypatch.setattr(fetch_main, "fetch_model_heads", lambda *_args: None)
    monkeypatch.setattr(fetch_main, "fit_to_quantize", lambda *_args: (None, []))
    monkeypatch.setattr(fetch_main, "quantized_bytes", lambda *_args: 2 * GIB)

    def fetch_hub(repo_id: str, *_args: Any, **_options: Any) -> Path:
        downloaded.append(repo_id)
        return folder

    monkeypatch.setattr(fetch_main, "fetch_hub", fetch_hub)
    status = main(["--source", "org/m", "--models-dir", str(models), "--bits", "4"])
    assert (status == 0, downloaded) == ((True, ["org/m"]) if fits else (False, []))


def test_what_is_made_already_needs_no_room(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command again makes nothing, and finds the folder on a full disk too."""
    models = tmp_path / "models"
    made = run(folder, models)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage(0, 0, 0))

    def look_up(*_args: Any, heads: Callable[[str, list[Any]], None], **_more: Any) -> Any:
        heads("0" * 40, [])
        found = {"problem": None, "problem_code": None, "folder": str(tmp_path)}
        return {**found, "missing_bytes": 0}

    replaced: dict[str, Callable[..., Any]] = {
        "look_up": look_up,
        "fetch_model_heads": lambda *_args: None,
        "fit_to_quantize": lambda *_args: (None, []),
        "quantized_bytes": lambda *_args: GIB,
        "fetch_hub": lambda *_args, **_options: folder,
        "snapshot_folder": lambda *_args: folder,
    }
    for name, value in replaced.items():
        monkeypatch.setattr(fetch_main, name, value)
    source, bits, outlet = parse_source("org/m"), QuantizedBits.FOUR, _Silent()
    looking = fetch_main.Looking(models, tmp_path, GIB, "linux", bits)
    quantizing = fetch_main.Quantizing(bits, models, GIB, "linux", outlet)
    assert looking.at(source, None, adapter=False)["made_bytes"] == 0
    assert quantizing.fetch(source, None, 0.0) == made
    (folder / "lost.safetensors").symlink_to(tmp_path / "blob")
    assert looking.at(source, None, adapter=False)["made_bytes"] == GIB
    (folder / "lost.safetensors").unlink()
    shutil.rmtree(made)
    assert looking.at(source, None, adapter=False)["made_bytes"] == GIB
    with pytest.raises(OperationError, match="free some space there"):
        quantizing.fetch(source, None, 0.0)


class _Silent(fetch_main.Outlet):
    def __init__(self) -> None:
        """Leave stdout alone."""

    def progress(self, *_report: Any, **_bytes: Any) -> None:
        """Report nothing."""


def test_each_disk_must_have_room_for_what_goes_to_it() -> None:
    one = preview.Look(9 * GIB, GIB, 3 * GIB, "/cache", spare_bytes=GIB, made_bytes=2 * GIB)
    assert one.lacking_bytes == {"/cache": GIB}
    two = replace(one, made_folder="/models", made_free_bytes=3 * GIB)
    assert two.lacking_bytes == {}
    assert replace(two, made_free_bytes=0).lacking_bytes == {"/models": 3 * GIB}
    assert replace(two, free_bytes=0).lacking_bytes == {"/cache": 2 * GIB}
    nothing = replace(one, missing_bytes=0, made_bytes=0, free_bytes=0)
    assert nothing.lacking_bytes == {}, "nothing is written"


def test_what_the_system_refuses_of_a_look_is_a_failed_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_args: Any, **_options: Any) -> Any:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(fetch_main, "look_up", refuse)
    assert main(["--source", "org/m", "--models-dir", str(tmp_path), "--look"]) == 1
    (line,) = capfd.readouterr().out.splitlines()
    assert json.loads(line)["error"]["code"] == "download_failed"
    answered = subprocess.CompletedProcess([], 1, stdout=line.encode())
    monkeypatch.setattr(subprocess, "run", lambda *_args, **_options: answered)
    with pytest.raises(OperationError, match=os.strerror(errno.EROFS)) as caught:
        preview.look_now(Home(tmp_path), "org/m", ())
    assert (caught.value.code, caught.value.retry_after_s) == (ErrorCode.DOWNLOAD_FAILED, None)


@pytest.mark.parametrize(
    ("number", "code"),
    [(errno.ENOSPC, "insufficient_disk"), (errno.EROFS, "conversion_failed")],
)
def test_what_the_system_refuses_is_reported(
    number: int,
    code: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def refuse(*_args: Any) -> Any:
        raise OSError(number, os.strerror(number), "models")

    monkeypatch.setattr(quantize, "fit_to_quantize", refuse)
    assert main(["--source", str(folder), "--models-dir", str(tmp_path), "--bits", "4"]) == 1
    (line,) = [json.loads(each) for each in capfd.readouterr().out.splitlines()]
    assert line["error"]["code"] == code
    assert os.strerror(number) in line["error"]["message"]


def test_the_program_quantizes_a_folder(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--source", str(folder), "--models-dir", str(tmp_path / "m"), "--bits", "8"]
    assert main(arguments) == 0
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert Path(lines[-1]["path"]).name.startswith("model-8bit-")
    assert all(line["total_bytes"] > 0 for line in lines[:-1])


def config(**values: Any) -> dict[str, Any]:
    return {"model_type": "llama", **values}


@pytest.mark.parametrize(
    ("values", "kind", "dtype", "message"),
    [
        (config(), ModelKind.CHAT, "BF16", None),
        (config(), ModelKind.CHAT, "F32", None),
        (config(quantization={"bits": 4}), ModelKind.CHAT, "BF16", "is quantized already"),
        (
            config(text_config={"quantization_config": {"quant_method": "awq"}}),
            ModelKind.CHAT,
            "BF16",
            "is quantized already",
        ),
        (config(), ModelKind.CHAT, "U32", "is quantized already"),
        (config(), ModelKind.CHAT, "F8_E4M3", "is quantized already"),
        (config(model_file="m.py"), ModelKind.CHAT, "BF16", "needs code of its own"),
        (config(), ModelKind.EMBEDDING, "BF16", "a model for embedding, and lmx quantizes only"),
        (config(), ModelKind.TRANSCRIPTION, "F32", "a model for transcription"),
    ],
)
def test_what_is_quantized(
    values: Mapping[str, Any], kind: ModelKind, dtype: str, message: str | None
) -> None:
    tensors = [Tensor("model.layers.0.w.weight", dtype, MIB), Tensor("mask", "I64", 800)]
    if message is None:
        refuse_unfit("org/m", parse_checkpoint_config(values), kind, tensors)
        return
    with pytest.raises(OperationError, match=message) as caught:
        refuse_unfit("org/m", parse_checkpoint_config(values), kind, tensors)
    assert caught.value.param == "bits"


@pytest.mark.parametrize(
    ("bits", "platform", "made_bytes"),
    [
        (QuantizedBits.FOUR, "darwin", (4.5 / 8 + 2) * MIB + 2000),
        (QuantizedBits.FOUR, "linux", (5 / 8 + 4) * MIB + 4000),
        (QuantizedBits.EIGHT, "darwin", (8.5 / 8 + 2) * MIB + 2000),
    ],
)
def test_how_large_it_gets(bits: QuantizedBits, platform: Platform, made_bytes: float) -> None:
    """A weight in 16 bits, one of the eyes, which stays, and a norm, which stays."""
    tensors = [
        Tensor("model.layers.0.w.weight", "BF16", 2 * MIB),
        Tensor("vision_tower.0.w.weight", "BF16", 2 * MIB),
        Tensor("model.norm.weight", "BF16", 2000),
    ]
    assert quantized_bytes(tensors, bits, platform) == int(made_bytes)


@pytest.mark.parametrize(
    ("change", "end"),
    [
        ({}, "10.00 before, 10.50 after (+5.0 %)"),
        ({"perplexity_after": 9.9}, "(-1.0 %)"),
        ({"perplexity_after": 11.5}, "a little less"),
        ({"perplexity_after": 11.5, "bits": "8"}, "much worse than the original"),
        ({"perplexity_before": None}, "the original computes nonsense"),
    ],
)
def test_what_is_said_of_it(change: dict[str, Any], end: str) -> None:
    words = quantized_words("org/m", {**RESULT, **change})
    assert words is not None and words.endswith(end)
    assert ("WARNING" in words) is (change.get("perplexity_after") == 11.5)


@pytest.mark.parametrize(
    "result",
    [{}, [], None, {**RESULT, "tokens": "x"}, {**RESULT, "perplexity_before": 0}, "4"],
)
def test_nothing_is_said_of_what_is_no_result(result: Any) -> None:
    assert quantized_words("org/m", result) is None


@pytest.mark.parametrize(
    ("source", "bits", "name"),
    [
        ("Qwen/Qwen3-8B", QuantizedBits.FOUR, "Qwen3-8B-4bit"),
        ("Qwen/Qwen3-8B@v2", QuantizedBits.EIGHT, "Qwen3-8B-8bit"),
        ("/models/My Model", QuantizedBits.MIXED, "my-model-mixed"),
        ("org/repo/Small-1B-F16.gguf", QuantizedBits.FOUR, "small-1b-4bit"),
        ("org/Repo/f16/千问.gguf", QuantizedBits.FOUR, "Repo-4bit"),
    ],
)
def test_its_name(source: str, bits: QuantizedBits, name: str) -> None:
    assert quantized_name(source, bits) == name


@pytest.mark.parametrize(
    ("name", "quantized"),
    [
        ("Small-1B-Q4_K_M.gguf", True),
        ("Small-1B-UD-IQ2_XXS-00001-of-00002.gguf", True),
        ("Small-1B-F16.gguf", False),
        ("Small-1B.bf16.gguf", False),
        ("Small-1B.gguf", False),
    ],
)
def test_names_that_say_it(name: str, quantized: bool) -> None:
    assert names_quantisation(name) is quantized


def test_models_are_quantized_one_at_a_time(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models, said = tmp_path / "models", list[str]()
    models.mkdir()
    monkeypatch.setattr(made_folder, "_POLL_S", 0.01)
    with locked(models / ".quantizing.lock", lambda: None):
        thread = threading.Thread(target=run, args=(folder, models, said))
        thread.start()
        wait_until(lambda: "another model is being quantized" in said, "it waits")
        assert "quantizing (50 %)" not in said
    thread.join(90)
    assert said[-2:] == ["quantizing (50 %)", WORDS]


def test_a_gguf_file_that_is_quantized_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.Q8_0.gguf"
    name, block = b"blk.0.ffn_up.weight", bytes(34 * 8)
    head = struct.pack("<IIQQ", 0x46554747, 3, 1, 0)
    head += struct.pack(f"<Q{len(name)}sIQQIQ", len(name), name, 2, 64, 4, 8, 0)
    path.write_bytes(head.ljust(-(-len(head) // 32) * 32, b"\0") + block)
    assert main(["--source", str(path), "--models-dir", str(tmp_path), "--bits", "4"]) == 1
    (line,) = [json.loads(each) for each in capfd.readouterr().out.splitlines() if "error" in each]
    assert "is quantized already" in line["error"]["message"]
