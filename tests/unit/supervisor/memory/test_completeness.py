"""Whether a folder of a model is whole."""

import json
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from lmx.supervisor.memory.files import (
    STAMP_NAME,
    file_sizes,
    given_again,
    has_tokenizer,
    missing_part,
    promised,
    whole_conversion,
)


def make(folder: Path, names: list[str], indexed: list[str] | None = None) -> Path:
    """A snapshot as the hub's client keeps it: links to files elsewhere."""
    blobs, snapshot = folder / "blobs", folder / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    for number, name in enumerate(names):
        (blobs / str(number)).write_bytes(b"{}")
        (snapshot / name).symlink_to(blobs / str(number))
    if indexed is not None:
        index = {"weight_map": {f"w{number}": name for number, name in enumerate(indexed)}}
        (snapshot / "model.safetensors.index.json").write_text(json.dumps(index))
    return snapshot


def shards(count: int) -> list[str]:
    return [f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]


@given(count=st.integers(1, 6), with_index=st.booleans(), data=st.data())
def test_any_part_that_is_missing_is_reported(
    count: int, with_index: bool, data: st.DataObject
) -> None:
    names = ["config.json", "tokenizer.json", *shards(count)]
    gone = data.draw(st.sampled_from([None, *names]))
    dangling = data.draw(st.booleans())
    with tempfile.TemporaryDirectory() as root:
        kept = [name for name in names if name != gone or dangling]
        folder = make(Path(root), kept, shards(count) if with_index else None)
        if gone is not None and dangling:
            (folder / gone).resolve().unlink()
        found = missing_part(folder)
        # One shard alone without an index leaves nothing that could promise it.
        if gone is not None and gone.endswith(".safetensors") and count == 1:
            assert found in (gone, "*.safetensors")
        else:
            assert found == gone


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    assert missing_part(tmp_path / "gone") == "the folder"
    assert missing_part(tmp_path) == "config.json"
    folder = make(tmp_path, ["config.json", "tokenizer.json", "model.safetensors"])
    assert missing_part(folder) is None
    (folder / "model.safetensors.index.json").write_text("not JSON")
    assert "damaged" in str(missing_part(folder))


@given(st.lists(st.text(max_size=40), max_size=5))
def test_names_that_promise_nothing(names: list[str]) -> None:
    assert promised(name for name in names if "-of-" not in name) == []


def test_numbers_are_believed_within_reason() -> None:
    assert promised(["a-00002-of-00002.safetensors"]) == [
        "a-00001-of-00002.safetensors",
        "a-00002-of-00002.safetensors",
    ]
    assert len(promised(["a-00001-of-99999.safetensors"])) == 10_000


def test_tokenizers_of_many_kinds() -> None:
    assert has_tokenizer(["config.json", "qwen.tiktoken"])
    assert has_tokenizer(["spiece.model"])
    assert not has_tokenizer(["config.json", "model.safetensors"])
    assert has_tokenizer(["voices"]), "a model that reads phonemes has none"
    assert has_tokenizer(["kokoro-v1_0.safetensors", "voices/af_heart.safetensors"])


def test_a_conversion_is_what_its_stamp_says(tmp_path: Path) -> None:
    assert whole_conversion(tmp_path) is None
    (tmp_path / "config.json").write_text("{}")
    stamp = {"source": "/m.gguf", "files": file_sizes(tmp_path)}
    (tmp_path / STAMP_NAME).write_text(json.dumps(stamp))
    (tmp_path / ".DS_Store").write_text("of the Finder")
    assert whole_conversion(tmp_path) == stamp
    (tmp_path / "config.json").write_text("{} ")
    assert whole_conversion(tmp_path) is None
    for nonsense in ("[]", "{", '{"files": []}', '{"files": {"config.json": [3]}}'):
        (tmp_path / STAMP_NAME).write_text(nonsense)
        assert whole_conversion(tmp_path) is None


def test_what_a_repository_gives_once_more_is_not_needed(tmp_path: Path) -> None:
    mistral = {
        *("consolidated.safetensors.index.json", "consolidated-00001-of-00002.safetensors"),
        *("consolidated-00002-of-00002.safetensors", "consolidated.safetensors"),
    }
    assert given_again({"config.json", *shards(2), *mistral}) == mistral
    assert given_again({"config.json", *mistral}) == set(), "it is all that there is"
    gpt_oss = {"original/model.safetensors", "original/config.json"}
    assert given_again({"config.json", *shards(2), *gpt_oss}) == gpt_oss
    embedding = {"model.safetensors", "1_Pooling/config.json", "2_Dense/model.safetensors"}
    assert given_again(embedding) == set()
    names = ["config.json", "tokenizer.json", "consolidated-00001-of-00002.safetensors"]
    folder = make(tmp_path, [*names, *shards(2)], shards(2))
    index = {"weight_map": {"w": "consolidated-00002-of-00002.safetensors"}}
    (folder / "consolidated.safetensors.index.json").write_text(json.dumps(index))
    assert missing_part(folder) is None


def test_an_index_of_other_files_promises_nothing(tmp_path: Path) -> None:
    names = ["config.json", "tokenizer.json", "model.safetensors"]
    assert missing_part(make(tmp_path, names, indexed=shards(5))) is None
