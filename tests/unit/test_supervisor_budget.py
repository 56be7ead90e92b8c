"""The ledger, and the estimates it is fed with."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmx.protocol.errors import ErrorCode, LmxError
from lmx.supervisor.budget import Ledger, format_bytes
from lmx.supervisor.estimate import estimate, weights_bytes

OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("reserve"), st.sampled_from("abcdef"), st.integers(0, 70)),
        st.tuples(st.just("release"), st.sampled_from("abcdef"), st.just(0)),
    ),
    max_size=60,
)


@given(OPERATIONS)
def test_reservations_never_exceed_the_budget(operations: list[tuple[str, str, int]]) -> None:
    ledger = Ledger(100)
    held: dict[str, int] = {}
    for what, instance, size in operations:
        if what == "release":
            assert ledger.release(instance) == held.pop(instance, 0)
        elif instance not in held:
            fits = size <= 100 - sum(held.values())
            try:
                ledger.reserve(instance, size, "m")
                assert fits
                held[instance] = size
            except LmxError as error:
                assert not fits
                assert error.code is ErrorCode.INSUFFICIENT_MEMORY
        assert ledger.reserved_bytes == sum(held.values()) <= 100
        assert ledger.free_bytes == 100 - ledger.reserved_bytes


def test_the_refusal_says_what_to_do() -> None:
    ledger = Ledger(10 * 1024**3)
    with pytest.raises(LmxError, match=r"12.0 GiB, which is more than the whole budget of 10.0"):
        ledger.reserve("a", 12 * 1024**3, "big")
    ledger.reserve("a", 8 * 1024**3, "one")
    with pytest.raises(LmxError, match=r"only 2.0 GiB of 10.0 GiB are free: unload another"):
        ledger.reserve("b", 3 * 1024**3, "two")
    ledger.raise_to("a", 7 * 1024**3)
    assert ledger.reserved_bytes == 8 * 1024**3, "never downwards"
    ledger.raise_to("a", 11 * 1024**3)
    assert ledger.free_bytes == 0


def test_format_bytes() -> None:
    sizes = (0, 1023, 1536, 5 * 1024**2, 3 * 1024**3)
    assert [format_bytes(size) for size in sizes] == ["0 B", "1023 B", "2 KiB", "5 MiB", "3.0 GiB"]


def write_shard(path: Path, *sizes: int) -> None:
    header: dict[str, object] = {"__metadata__": {"format": "mlx"}}
    offset = 0
    for number, size in enumerate(sizes):
        header[f"t{number}"] = {
            "dtype": "U8",
            "shape": [size],
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(offset))


def test_estimate_reads_headers_and_config_only(tmp_path: Path) -> None:
    write_shard(tmp_path / "model-1.safetensors", 1000, 24)
    write_shard(tmp_path / "model-2.safetensors", 500)
    config = {
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "hidden_size": 64, "max_position_embeddings": 1000, "torch_dtype": "bfloat16",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = estimate(tmp_path, None)
    assert found.weights_bytes == 1524
    assert found.kv_cache_bytes == 2 * 2 * 2 * 16 * 2 * 1000
    assert estimate(tmp_path, 10).kv_cache_bytes == 2 * 2 * 2 * 16 * 2 * 10
    assert found.total_bytes > found.weights_bytes + found.kv_cache_bytes


def test_what_is_not_a_model_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(LmxError, match="does not exist"):
        estimate(tmp_path / "none", None)
    (tmp_path / "file").touch()
    with pytest.raises(LmxError, match="is not a folder"):
        estimate(tmp_path / "file", None)
    with pytest.raises(LmxError, match=r"no config\.json"):
        estimate(tmp_path, None)
    for wrong in ("[]", '"x"', '{"text_config": [1]}', "null"):
        (tmp_path / "config.json").write_text(wrong)
        with pytest.raises(LmxError):
            estimate(tmp_path, None)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "dangling.safetensors").symlink_to(tmp_path / "nowhere")
    with pytest.raises(LmxError, match=r"can't be read as a model"):
        estimate(tmp_path, None)
    (tmp_path / "dangling.safetensors").unlink()
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(LmxError, match="not JSON"):
        estimate(tmp_path, None)
    broken = tmp_path / "model.safetensors"
    for content in (
        b"",
        b"\xff" * 64,
        struct.pack("<Q", 4) + b"nope",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 8) + b'{"a": 1}',
    ):
        broken.write_bytes(content)
        with pytest.raises(LmxError, match="not a safetensors file"):
            weights_bytes(broken)
