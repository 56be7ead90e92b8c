"""Random harm: model folders, state files and control frames that nobody in their right mind
writes. The same seed makes the same cases."""

import json
import os
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack

from tests.support.faults.bad_files import BAD_FILES
from tests.support.faults.bad_folders import DEEP
from tests.support.models.model_folders import PLAIN, write_model

GOLDEN = Path(__file__).resolve().parents[2] / "wire" / "golden"

_NASTY: tuple[Any, ...] = (
    None, True, 0, -1, 1, 2**31, 2**53, 2**63 - 1, 2**64 - 1, -(2**63), 1.5, -0.0, 1e308,
    float("inf"), float("-inf"), float("nan"), "", "\0", "x", "good", "../..", "/", "~nobody/x",
    "\x1b[2J", "x" * 5000, "é", [], {}, [[]], [None] * 50, {"a": {"b": {"c": [1, [2, [3]]]}}},
)  # fmt: skip
_BEYOND: tuple[Any, ...] = (2**64, 2**70, -(2**70), 10**400, "\ud800", "a\udcffb", "\ud83d")
"""Of what JSON may hold and msgpack may not."""

_KEYS = (
    *PLAIN, "model_type", "architectures", "text_config", "layer_types", "sliding_window",
    "kv_lora_rank", "hybrid_override_pattern", "quantization", "num_kv_shared_layers",
    "linear_attn_config", "full_attention_interval", "use_bidirectional_attention",
)  # fmt: skip
_FILES = (
    "config.json", "model.safetensors", "README.md", "tokenizer.json", "modules.json",
    "config_sentence_transformers.json", "model.safetensors.index.json", "1_Pooling",
)  # fmt: skip
_NEVER_SENT = frozenset({"StopAll", "RestartSupervisor", "RestartRouter", "StartDownload"})
"""They do what they say: end lmx, or ask the network."""


class Cases:
    """Cases from one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._frames = {
            path.stem: msgpack.unpackb(path.read_bytes()) for path in sorted(GOLDEN.glob("*.bin"))
        }

    def folder(self, folder: Path) -> Path:
        """Write a model folder with something wrong with it, mostly."""
        if folder.is_symlink() or folder.is_file():
            folder.unlink()
        shutil.rmtree(folder, ignore_errors=True)
        write_model(folder)
        for _ in range(self.random.randint(1, 3)):
            change = self.random.choice(
                (self._config, self._config, self._bytes, self._header, self._kind, self._name)
            )
            change(folder)
        return folder

    def state(self, path: Path) -> None:
        """Put something in the place of a state file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        if self.random.random() < 0.4:
            BAD_FILES[self.random.choice(sorted(BAD_FILES))](path)
            return
        entry = {key: self._value(3) for key in ("id", "source", "pid", "token", "parameters")}
        found = self.random.choice(
            (entry, [entry], {"models": [entry, entry]}, {"a": entry}, self._value(4), {"a": True})
        )
        path.write_bytes(self._spoiled(json.dumps(found).encode()))

    def frame(self, instance: str | None = None) -> bytes:
        """Return the payload of a message that was tampered with; half of them mean the model
        ``good`` and its worker."""
        kind = self.random.choice(sorted(self._frames.keys() - _NEVER_SENT))
        parts = json.loads(json.dumps(self._frames[kind], default=lambda value: value.hex()))
        body = parts[4]
        if self.random.random() < 0.5:
            known = {"model_id": "good", "instance": instance}
            body.update({key: known[key] for key in body.keys() & known.keys()})
        for _ in range(self.random.randint(0, 3)):
            where = self.random.randint(0, 9)
            if where < 7 and body:
                body[self.random.choice(sorted(body))] = self._nasty()
            elif where == 7:
                parts[self.random.randrange(len(parts))] = self._nasty()
            elif where == 8:
                body[self.random.choice(("later", "model_id", "instance"))] = self._nasty()
            else:
                parts = parts[: self.random.randrange(len(parts) + 1)]
                break
        packed: bytes = msgpack.packb(parts)
        return self._spoiled(packed) if self.random.random() < 0.3 else packed

    def garbage(self) -> bytes:
        """Return bytes that are no greeting of any protocol, or the beginning of one."""
        greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL".ljust(23, b"\0") + bytes(32)
        begun = greeting[: self.random.choice((1, 10, 40, 64))]
        return begun + self.random.randbytes(self.random.choice((0, 1, 9, 200, 5000)))

    def _config(self, folder: Path) -> None:
        values = dict(PLAIN)
        for _ in range(self.random.randint(1, 4)):
            values[self.random.choice(_KEYS)] = self._value(3)
        self._put(folder / "config.json", json.dumps(values).encode())

    def _bytes(self, folder: Path) -> None:
        name = self.random.choice(_FILES)
        path = folder / name
        content = path.read_bytes()[:5000] if path.is_file() else b'{"weight_map": {"a": "b"}}'
        self._put(path, self._spoiled(content))

    def _header(self, folder: Path) -> None:
        entry = {"dtype": self._value(1), "data_offsets": [self._value(1), self._value(1)]}
        header: Any = {"w": self.random.choice((entry, self._value(3)))}
        content = json.dumps(header).encode()
        if self.random.random() < 0.2:
            content = DEEP
        length = self.random.choice((len(content), 2**63, 2**25, 0, len(content) + 1))
        self._put(folder / "model.safetensors", struct.pack("<Q", length) + content)

    def _kind(self, folder: Path) -> None:
        path = folder / self.random.choice(_FILES)
        if path.is_dir():
            return
        path.unlink(missing_ok=True)
        match self.random.randrange(5):
            case 0:
                os.mkfifo(path)
            case 1:
                path.mkdir()
            case 2:
                path.symlink_to(path.name)
            case 3:
                path.symlink_to("/dev/zero")
            case _:
                path.touch()

    def _name(self, folder: Path) -> None:
        name = self.random.choice((b"\xff.safetensors", b"a\nb", b"\x1b[2J", b"x" * 200))
        (folder / os.fsdecode(name)).touch()

    def _put(self, path: Path, content: bytes) -> None:
        if not path.exists() or path.is_file():
            path.unlink(missing_ok=True)
            path.write_bytes(content)

    def _nasty(self) -> Any:
        return self.random.choice(_NASTY)

    def _value(self, levels: int) -> Any:
        choice = self.random.random()
        if choice < 0.15:
            return self.random.choice(_BEYOND)
        if choice < 0.3 and levels:
            return {self.random.choice(_KEYS): self._value(levels - 1) for _ in range(2)}
        if choice < 0.4 and levels:
            return [self._value(levels - 1) for _ in range(self.random.randint(0, 3))]
        return self._nasty()

    def _spoiled(self, content: bytes) -> bytes:
        change: Callable[[bytearray], None] = self.random.choice(
            (self._flip, self._cut, self._insert, lambda _: None)
        )
        spoiled = bytearray(content)
        if spoiled:
            change(spoiled)
        return bytes(spoiled)

    def _flip(self, content: bytearray) -> None:
        for _ in range(self.random.randint(1, 8)):
            content[self.random.randrange(len(content))] = self.random.randrange(256)

    def _cut(self, content: bytearray) -> None:
        del content[self.random.randrange(len(content)) :]

    def _insert(self, content: bytearray) -> None:
        at = self.random.randrange(len(content))
        more = self.random.choice((b"\0", b"\xff\xfe", b"[" * 2000, b"9" * 5000, b"\\ud800"))
        content[at:at] = more
