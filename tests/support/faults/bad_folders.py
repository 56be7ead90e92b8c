"""Model folders that must cost nobody but themselves: each broke a supervisor once."""

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.models.model_folders import PLAIN, write_model

DEEP = b"[" * 5000 + b"]" * 5000
_HUGE_HEADER_BYTES = 94 * 1024**2


def _config(**values: Any) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / "config.json").write_text(json.dumps(PLAIN | values))

    return spoil


def _raw_config(content: bytes) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / "config.json").write_bytes(content)

    return spoil


def _nested(folder: Path) -> None:
    """A list where there should be an object, and weights that lead nowhere."""
    (folder / "config.json").write_text('{"text_config": [1]}')
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to(folder / "nowhere")


def _no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def _header(content: bytes) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        shard = folder / "model.safetensors"
        shard.write_bytes(struct.pack("<Q", len(content)) + content)

    return spoil


def _offsets(begin: int, end: int) -> Callable[[Path], None]:
    tensor = {"dtype": "BF16", "shape": [1], "data_offsets": [begin, end]}
    return _header(json.dumps({"w": tensor}).encode())


def _fifo(name: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return spoil


def _huge_header(folder: Path) -> None:
    """A header that is read for long: sparse on the disk, blanks for JSON."""
    shard = folder / "model.safetensors"
    with shard.open("wb") as file:
        file.write(struct.pack("<Q", _HUGE_HEADER_BYTES))
        file.write(b"{" + b" " * (_HUGE_HEADER_BYTES - 2) + b"}")


def _no_utf8_name(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / os.fsdecode(b"w-\xff.safetensors"))
    (folder / os.fsdecode(b"\xff\xfe.txt")).symlink_to(folder / "config.json")


BAD: dict[str, Callable[[Path], None]] = {
    "surrogate": _config(model_type="\ud800"),
    "offsets": _offsets(0, 2**70),
    "sizes": _config(hidden_size=2**70, vocab_size=2**65),
    "layers": _config(num_hidden_layers=4000, num_attention_heads=2**30, head_dim=2**30),
    "list": _raw_config(b"[]"),
    "torn": _raw_config(b"{"),
    "nested": _nested,
    "no-config": _no_config,
    "deep-config": _raw_config(b'{"a": ' + DEEP + b"}"),
    "deep-header": _header(b'{"w": ' + DEEP + b"}"),
    "fifo-weights": _fifo("model.safetensors"),
    "fifo-config": _fifo("config.json"),
    "huge-header": _huge_header,
}
"""By name. What :data:`ODD` has is no reason to refuse a model."""

ODD: dict[str, Callable[[Path], None]] = {
    "no-utf8-name": _no_utf8_name,
    "fifo-card": _fifo("README.md"),
}


def write_bad(folder: Path, name: str) -> Path:
    """Write a model folder and spoil it."""
    write_model(folder)
    (BAD | ODD)[name](folder)
    return folder
