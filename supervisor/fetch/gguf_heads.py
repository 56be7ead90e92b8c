"""Makes the heads of the model that a GGUF file would be converted to, from the file's own head.
Its memory is read from them before it is downloaded or converted. Runs only inside the fetch
program."""

import json
import os
import struct
from pathlib import Path
from typing import Final

from gguf2mlx import gguf2mlx
from huggingface_hub import hf_hub_url

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.supervisor.fetch.conversion_form import Platform, conversion_form, output_bytes
from lmx.supervisor.fetch.file import HubFile
from lmx.supervisor.fetch.gguf import header_is_whole, open_gguf, read_facts
from lmx.supervisor.fetch.heads import first_bytes

_FIRST_BYTES: Final = 4 * 1024**2
_MOST_BYTES: Final = 256 * 1024**2
"""The head of a GGUF file has the vocabulary: some megabytes."""


def fetch_gguf_heads(repo_id: str, commit: str, files: list[HubFile], folder: Path) -> Path:
    """Make files of the size of a repository's GGUF files, with their heads alone, and return the
    first. Raises what the hub client does, and :class:`OperationError`."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for file in sorted(files, key=lambda each: each.name):
        path = folder / Path(file.name).name
        url = hf_hub_url(repo_id, file.name, revision=commit)
        count = _FIRST_BYTES
        while True:
            path.write_bytes(first_bytes(url, min(count, file.size_bytes)))
            if count >= file.size_bytes or header_is_whole(path):
                break
            if count >= _MOST_BYTES:
                raise OperationError(
                    ErrorCode.MODEL_SOURCE_INVALID,
                    f"{file.name} has no header of less than {_MOST_BYTES} bytes: it is no "
                    "GGUF file, or it is damaged",
                )
            count *= 4
        os.truncate(path, file.size_bytes)
        made.append(path)
    return made[0]


def write_converted_heads(
    source: Path, folder: Path, *, platform: Platform, memory_bytes: int
) -> int:
    """Make a folder of the heads of the model that a GGUF file would be converted to here, and
    return how large its weights would be. Raises :class:`OperationError`."""
    facts = read_facts(source)
    form = conversion_form(platform, facts, memory_bytes)
    made_bytes = output_bytes(form, facts)
    kind = form.removeprefix("int4-")
    try:
        reader = open_gguf(source, lambda *_: None)
        # Its numbers may not be here, and change nothing of the memory.
        reader.tensors = [one for one in reader.tensors if one.name != "rope_freqs.weight"]
        config = gguf2mlx.build_config(reader, gguf2mlx.detect_architecture(reader), kind)
    # The library lets through whatever its parts say about a header that they don't know.
    except Exception as error:
        raise OperationError(
            ErrorCode.MODEL_SOURCE_INVALID,
            f"the memory of {source.name} can't be estimated from its header "
            f"({type(error).__name__}: {error})",
        ) from error
    # A tenth of a quantized model is not quantized; it says what the model computes with.
    floats = made_bytes if form == kind else made_bytes // 10
    sizes = {"floats": ("F32" if kind == "float32" else "BF16", floats)}
    if form != kind:
        sizes["quantized"] = ("U32", made_bytes - floats)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(_safetensors_head(sizes))
    return made_bytes


def _safetensors_head(sizes: dict[str, tuple[str, int]]) -> bytes:
    """Return the head of a file of weights: tensors by their types and sizes in bytes."""
    header, offset = {}, 0
    for name, (kind, size) in sizes.items():
        header[name] = {"dtype": kind, "shape": [size], "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text
