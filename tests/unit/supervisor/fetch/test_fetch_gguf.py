"""The import of GGUF files, with the conversion itself replaced."""

import errno
import json
import os
import shutil
import struct
import threading
from collections import namedtuple
from pathlib import Path

import gguf
import numpy as np
import pytest

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.supervisor.config.model import ModelConfig
from lmx.supervisor.config.schema import Config
from lmx.supervisor.fetch.conversion_form import Form, GgufFacts, Platform, conversion_form
from lmx.supervisor.fetch.gguf import Report, fetch_gguf, header_is_whole, is_converted, read_facts
from lmx.supervisor.inventory import without_supervisor
from lmx.supervisor.memory.fetched import fetched_folder
from lmx.supervisor.memory.files import STAMP_NAME, part_names, whole_conversion
from lmx.supervisor.memory.inspect_main import inspect
from lmx.supervisor.memory.inspection import Question
from lmx.supervisor.state.home import Home

GB = 1_000_000_000
Progress = list[tuple[str, float | None, str]]


def write_all(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_gguf(path: Path, *, quantised: bool = True) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    weights = np.ones((4, 64), dtype=np.float32)
    if quantised:
        kind = gguf.GGMLQuantizationType.Q8_0
        packed = gguf.quants.quantize(weights, kind)
        writer.add_tensor("blk.0.ffn_up.weight", packed, raw_dtype=kind)
    else:
        writer.add_tensor("blk.0.ffn_up.weight", weights)
    writer.add_tensor("output_norm.weight", np.ones(64, dtype=np.float32))
    write_all(writer)
    return path


class FakeConverter:
    """Writes a folder of two files, and counts."""

    def __init__(self) -> None:
        self.forms: list[Form] = []
        self.error: BaseException | None = None

    def __call__(self, source: Path, target: Path, form: Form, report: Report) -> None:
        self.forms.append(form)
        target.mkdir()
        (target / "config.json").write_text("{}")
        if self.error:
            raise self.error
        report("convert", 1.0, source.name)
        (target / "model.safetensors").write_bytes(b"weights")


def run(
    source: Path, models: Path, convert: FakeConverter, progress: Progress | None = None
) -> Path:
    return fetch_gguf(
        source,
        models,
        platform="linux",
        memory_bytes=GB,
        report=lambda *report: progress.append(report) if progress is not None else None,
        convert=convert,
    )


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "Tiny.Q8_0.gguf")


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return tmp_path / "models"


@pytest.mark.parametrize(
    ("platform", "source_gb", "weights_g", "quantised", "memory_gb", "form"),
    [
        ("linux", 0.1, 0.135, True, 24, "float32"),
        ("linux", 2.0, 3.0, True, 24, "float32"),
        ("linux", 2.1, 3.1, True, 24, "int4-float32"),
        ("linux", 5.0, 2.5, False, 24, "float32"),
        ("linux", 11.0, 5.5, False, 24, "float32"),
        ("darwin", 0.1, 0.135, True, 16, "bfloat16"),
        ("darwin", 1.0, 1.7, True, 16, "bfloat16"),
        ("darwin", 5.0, 8.0, True, 16, "int4-bfloat16"),
        ("darwin", 5.0, 2.5, False, 16, "bfloat16"),
    ],
)
def test_form(
    platform: Platform,
    source_gb: float,
    weights_g: float,
    quantised: bool,
    memory_gb: int,
    form: Form,
) -> None:
    facts = GgufFacts(int(source_gb * GB), int(weights_g * GB), quantised)
    assert conversion_form(platform, facts, memory_gb * GB) == form


def test_no_form_for_an_unquantised_file_larger_than_memory() -> None:
    with pytest.raises(OperationError, match=r"takes 28\.00 GB .* has 24\.00 GB") as caught:
        conversion_form("linux", GgufFacts(14 * GB, 7 * GB, False), 24 * GB)
    assert caught.value.code is ErrorCode.CONVERSION_FAILED


def test_facts(tmp_path: Path, source: Path) -> None:
    assert read_facts(source) == GgufFacts(source.stat().st_size, 5 * 64, is_quantised=True)
    assert not read_facts(write_gguf(tmp_path / "f.gguf", quantised=False)).is_quantised


def test_what_is_not_a_gguf_file(tmp_path: Path, source: Path) -> None:
    whole = source.read_bytes()
    (tmp_path / "text.gguf").write_bytes(b"version https://example.invalid")
    (tmp_path / "empty.gguf").write_bytes(b"")
    (tmp_path / "short.gguf").write_bytes(whole[:-100])
    (tmp_path / "header.gguf").write_bytes(whole[:40])
    (tmp_path / "folder.gguf").mkdir()
    for name, hint in {
        "missing": "can't be read: No such file",
        "folder": "can't be read: Is a directory",
        "text": "it starts with b'vers', not b'GGUF'",
        "empty": "it starts with b''",
        "short": "is truncated or damaged: fetch it again",
        "header": "is truncated or damaged: fetch it again",
    }.items():
        with pytest.raises(OperationError, match=hint) as caught:
            read_facts(tmp_path / f"{name}.gguf")
        assert caught.value.code is ErrorCode.MODEL_SOURCE_INVALID


def test_converts_once_and_reuses(source: Path, models: Path) -> None:
    convert, progress = FakeConverter(), Progress()
    folder = run(source, models, convert, progress)
    assert folder.parent == models
    assert folder.name.startswith("Tiny.Q8_0-float32-")
    assert ("convert", 1.0, source.name) in progress
    assert run(source, models, convert) == folder
    assert convert.forms == ["float32"]
    assert [path.name for path in models.iterdir() if path.is_dir()] == [folder.name]


@pytest.mark.parametrize("damage", ["stamp", "weights", "size", "source", "version"])
def test_converts_again_what_does_not_fit(source: Path, models: Path, damage: str) -> None:
    convert = FakeConverter()
    folder = run(source, models, convert)
    stamp = folder / STAMP_NAME
    match damage:
        case "stamp":
            stamp.write_text("not json")
        case "weights":
            (folder / "model.safetensors").unlink()
        case "size":
            (folder / "model.safetensors").write_bytes(b"weigh")
        case "source":
            write_gguf(source, quantised=False)
        case "version":
            stamp.write_text(json.dumps({**json.loads(stamp.read_text()), "gguf2mlx": "0"}))
    assert not is_converted(source, models, "linux", GB)
    assert run(source, models, convert) == folder
    assert len(convert.forms) == 2
    assert is_converted(source, models, "linux", GB)
    assert run(source, models, convert) == folder
    assert len(convert.forms) == 2


def refuse_links(*_paths: str) -> None:
    raise OSError(errno.EPERM, "no hard links here")


@pytest.mark.parametrize("links", [True, False])
def test_what_people_add_changes_nothing_and_stays(
    source: Path, models: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    if not links:
        monkeypatch.setattr(os, "link", refuse_links)
    convert = FakeConverter()
    folder = run(source, models, convert)
    (folder / "drafter" / "inner").mkdir(parents=True)
    (folder / "drafter" / "inner" / "config.json").write_text("{}")
    (folder / "elsewhere").symlink_to(models)
    (folder / ".DS_Store").write_text("of the Finder")
    assert run(source, models, convert) == folder
    assert len(convert.forms) == 1
    (folder / "model.safetensors").write_bytes(b"short")
    os.utime(folder, (1, 1))
    assert run(source, models, convert) == folder
    assert len(convert.forms) == 2
    assert folder.stat().st_mtime > 1, "the latest form of a model is the one that is found"
    assert (folder / "model.safetensors").read_bytes() != b"short"
    assert (folder / "drafter" / "inner" / "config.json").read_text() == "{}"
    assert (folder / "elsewhere").is_symlink()
    assert (folder / ".DS_Store").exists()


def test_what_can_not_be_kept_costs_no_conversion_and_is_not_deleted(
    source: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", refuse_links)
    convert = FakeConverter()
    folder = run(source, models, convert)
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "pipe")
    (folder / "notes").write_text("mine")
    for _ in range(2):
        assert run(source, models, convert) == folder
    assert len(convert.forms) == 2
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    assert (folder / "notes").read_text() == "mine"
    assert (models / f"{folder.name}.damaged" / "pipe").is_fifo()


def test_two_files_of_one_name_are_kept_apart(tmp_path: Path, source: Path, models: Path) -> None:
    other = tmp_path / "other" / source.name
    other.parent.mkdir()
    shutil.copy2(source, other)
    convert = FakeConverter()
    assert run(source, models, convert) != run(other, models, convert)


@pytest.mark.parametrize(
    "error",
    [OperationError(ErrorCode.CONVERSION_FAILED, "unsupported"), SystemExit(143)],
)
def test_a_failed_conversion_leaves_nothing(
    source: Path, models: Path, error: BaseException
) -> None:
    convert = FakeConverter()
    convert.error = error
    with pytest.raises(type(error)):
        run(source, models, convert)
    assert [path for path in models.iterdir() if path.is_dir()] == []
    convert.error = None
    run(source, models, convert)


def test_what_a_killed_process_left_is_removed(source: Path, models: Path) -> None:
    convert = FakeConverter()
    folder = run(source, models, convert)
    left = folder.rename(models / f".{folder.name}.part")
    run(source, models, convert)
    assert not left.exists()
    assert (folder / "model.safetensors").exists()


def test_two_at_once_convert_once(source: Path, models: Path) -> None:
    convert, second_waits = FakeConverter(), threading.Event()

    def slow(source: Path, target: Path, form: Form, report: Report) -> None:
        assert second_waits.wait(90)
        FakeConverter.__call__(convert, source, target, form, report)

    def report(*what: object) -> None:
        if "another process" in str(what):
            second_waits.set()

    results: list[Path] = []

    def work() -> None:
        results.append(
            fetch_gguf(
                source, models, platform="linux", memory_bytes=GB, report=report, convert=slow
            )
        )

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert len(results) == 2
    assert len(convert.forms) == 1


def test_a_full_disk_is_reported_before_the_work(
    source: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage(GB, GB - 1000, 1000))
    convert = FakeConverter()
    with pytest.raises(OperationError, match="free some space") as caught:
        run(source, models, convert)
    assert caught.value.code is ErrorCode.INSUFFICIENT_DISK
    assert not convert.forms


def test_reading_a_long_vocabulary_moves_and_is_done_once(tmp_path: Path) -> None:
    path = tmp_path / "words.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_token_list([f"word-{number}" for number in range(9000)])
    writer.add_tensor("output_norm.weight", np.ones(64, dtype=np.float32))
    write_all(writer)
    reported = Progress()
    assert read_facts(path, lambda *report: reported.append(report)).weight_count == 64
    fractions = [fraction for _, fraction, _ in reported]
    assert len(fractions) == 4
    assert all(fraction is not None and 0 < fraction < 0.1 for fraction in fractions)
    assert fractions == sorted(set(fractions), key=lambda fraction: fraction or 0.0)
    read_facts(path, lambda *report: reported.append(report))
    assert len(reported) == 4, "what was read is kept for who asks next"


def split_gguf(folder: Path, count: int = 3) -> list[Path]:
    """A model in several files, as ``llama-gguf-split`` writes them."""
    paths = [folder / f"tiny-{part + 1:05}-of-{count:05}.gguf" for part in range(count)]
    for number, path in enumerate(paths):
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", count)
        writer.add_tensor(f"blk.{number}.ffn_up.weight", np.ones((4, 64), dtype=np.float32))
        write_all(writer)
    return paths


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("m.gguf", 1),
        ("m-00002-of-00003.gguf", 3),
        ("m-00001-of-00000.gguf", 1),
        ("m-00004-of-00003.gguf", 1),
    ],
)
def test_a_file_is_one_of_its_parts(name: str, count: int) -> None:
    parts = part_names(name)
    assert (name in parts, len(parts)) == (True, count)


def test_the_parts_of_a_file_are_taken_together(tmp_path: Path) -> None:
    paths = split_gguf(tmp_path)
    for path in paths:
        facts = read_facts(path)
        assert facts.weight_count == 3 * 256
        assert facts.source_bytes == sum(part.stat().st_size for part in paths)
    convert = FakeConverter()
    made = run(paths[1], tmp_path / "models", convert)
    assert run(paths[0], tmp_path / "models", convert) == made
    assert len(convert.forms) == 1
    # Another file in the place of a later part, as large as it was.
    os.utime(paths[1], ns=(0, paths[1].stat().st_mtime_ns + 1))
    run(paths[0], tmp_path / "models", convert)
    assert len(convert.forms) == 2


def test_a_conversion_is_found_under_the_file_that_it_was_made_from(tmp_path: Path) -> None:
    """Also if the parts of a file, or the folder that has them, are links, and whichever part the
    source names."""
    blobs, home = tmp_path / "blobs", Home(tmp_path / "home")
    blobs.mkdir()
    folder = tmp_path / "snapshot"
    folder.mkdir()
    for number, blob in enumerate((*split_gguf(blobs), write_gguf(blobs / "one.gguf"))):
        (folder / blob.name).symlink_to(blob.rename(blobs / f"{number}"))
    (tmp_path / "link").symlink_to(folder)
    for name in ("one.gguf", "tiny-00001-of-00003.gguf", "tiny-00002-of-00003.gguf"):
        source = tmp_path / "link" / name
        made = run(source, home.models, FakeConverter())
        assert fetched_folder(str(source), home, {}) == made
        stamp = whole_conversion(made)
        assert stamp is not None
        assert inspect(Question(str(source)), home).gguf_path == stamp["source"]
        model = ModelConfig.model_validate({"id": "a", "source": str(source)})
        (served,) = without_supervisor._served(Config(models=[model]))
        assert served.gguf == Path(stamp["source"])


def test_a_conversion_whose_file_was_replaced_is_outdated(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    for source, *parts in ([write_gguf(tmp_path / "one.gguf")] * 2, split_gguf(tmp_path)):
        question = Question(str(source), str(run(source, home.models, FakeConverter())))
        assert inspect(question, home).whole
        os.utime(parts[-1], ns=(0, parts[-1].stat().st_mtime_ns + 1))
        assert inspect(question, home).missing == f"what was written to {source.name} since"
        assert str(run(source, home.models, FakeConverter())) == question.path
        assert inspect(question, home).whole
        source.unlink()
        assert inspect(question, home).whole, "nothing else is left"
        shutil.rmtree(str(question.path))
        assert inspect(question, home).missing == "the folder"


def test_a_part_that_is_missing_is_named(tmp_path: Path) -> None:
    first, second, third = split_gguf(tmp_path)
    second.unlink()
    for path in (first, third):
        with pytest.raises(OperationError, match=r"tiny-00002-of-00003\.gguf is not in its folder"):
            run(path, tmp_path / "models", FakeConverter())
    joined = third.rename(tmp_path / "joined.gguf")
    with pytest.raises(OperationError, match="is one of 3 parts of a model"):
        run(joined, tmp_path / "models", FakeConverter())


def test_a_list_longer_than_its_file_is_not_read_to_its_end(tmp_path: Path) -> None:
    path, name = tmp_path / "long.gguf", b"general.long"
    numbers, uint8 = gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.UINT8
    head = struct.pack("<IIQQ", gguf.GGUF_MAGIC, gguf.GGUF_VERSION, 0, 1)
    field = struct.pack(f"<Q{len(name)}sIIQ", len(name), name, numbers, uint8, 2**60)
    path.write_bytes(head + field + bytes(1000))
    assert not header_is_whole(path)
