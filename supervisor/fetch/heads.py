"""Fetches what tells the memory of a model before it is downloaded: a few small files, and the
heads of its weights. A folder made of them has no weights, and is read like any model's folder.
Runs only inside the fetch program."""

import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from huggingface_hub import constants, hf_hub_url
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_stream_backoff

from lmx.supervisor.fetch.file import HubFile, patiently

_SMALL: Final = (
    *("config.json", "model.safetensors.index.json"),
    *("config_sentence_transformers.json", "sentence_bert_config.json", "modules.json"),
    "README.md",
)
"""What the kind of a model and its sizes are read from, besides the heads of its weights."""

_MOST_SMALL_BYTES: Final = 16 * 1024**2
_FIRST_BYTES: Final = 128 * 1024
"""Most heads are shorter."""

_MOST_HEAD_BYTES: Final = 32 * 1024**2
_PIECE_BYTES: Final = 64 * 1024
_AT_ONCE: Final = 8
_LONGEST_WAIT_S: Final = 10.0
"""Of a hub that takes no more requests for now: whoever looks at a model does not wait longer."""

_LENGTH: Final = struct.Struct("<Q")


def fetch_model_heads(repo_id: str, commit: str, files: list[HubFile], folder: Path) -> None:
    """Make a folder of the heads of a repository's model. Raises what the hub client does."""

    def fetch(file: HubFile) -> None:
        url = hf_hub_url(repo_id, file.name, revision=commit)
        if file.name in _SMALL:
            content = first_bytes(url, min(file.size_bytes, _MOST_SMALL_BYTES))
        else:
            content = first_bytes(url, _FIRST_BYTES)
            length = 8 + _LENGTH.unpack(content[:8].ljust(8, b"\0"))[0]
            if len(content) < length <= _MOST_HEAD_BYTES:
                content = first_bytes(url, length)
            content = content[:length]
        path = folder / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    wanted = [file for file in files if file.name in _SMALL or file.name.endswith(".safetensors")]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(fetch, wanted))


def first_bytes(url: str, count: int) -> bytes:
    """Return the first bytes of a file, less if it is shorter."""
    return patiently(lambda: _first_bytes(url, count), _LONGEST_WAIT_S)


def _first_bytes(url: str, count: int) -> bytes:
    """Return the first bytes of a file. Servers may send more than they are requested."""
    headers = {
        **build_hf_headers(),
        "range": f"bytes=0-{max(count, 1) - 1}",
        "accept-encoding": "identity",
    }
    content = bytearray()
    timeout_s = constants.HF_HUB_DOWNLOAD_TIMEOUT
    with http_stream_backoff(
        "GET", url, headers=headers, timeout=timeout_s, max_retries=1, retry_on_status_codes=()
    ) as response:
        hf_raise_for_status(response)
        for piece in response.iter_bytes(_PIECE_BYTES):
            content += piece
            if len(content) >= count:
                break
    return bytes(content[:count])
