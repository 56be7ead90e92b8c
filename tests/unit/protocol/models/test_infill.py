"""Which model folders have a tokenizer with the tokens of fill-in-the-middle."""

import json
from pathlib import Path
from typing import Any

import pytest

from lmx.protocol.models.infill import FORMS, folder_fills

NAMES = FORMS["Qwen-Coder"].needed
ENTRIES = [{"id": number, "content": name} for number, name in enumerate(NAMES)]


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("tokenizer.json", {"version": "1.0", "added_tokens": ENTRIES, "model": {"vocab": {}}}),
        ("tokenizer_config.json", {"added_tokens_decoder": {str(e["id"]): e for e in ENTRIES}}),
        ("added_tokens.json", {name: number for number, name in enumerate(NAMES)}),
    ],
)
def test_each_of_a_tokenizer_s_files_may_have_them(
    tmp_path: Path, file: str, content: dict[str, Any]
) -> None:
    assert not folder_fills(tmp_path)
    text = json.dumps(content)
    (tmp_path / file).write_text(text)
    assert folder_fills(tmp_path)
    (tmp_path / file).write_text(text.replace(NAMES[0], "<|im_end|>"))
    assert not folder_fills(tmp_path)
    # What is behind the added tokens is not read.
    (tmp_path / file).write_text(text[:-1])
    assert folder_fills(tmp_path) == (file == "tokenizer.json")


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[" * 100_000, b'{"added_tokens":' + b"[" * 100_000, b'{"added_tokens": 1}',
        b'{"added_tokens": [1, {"content": 2}, null]}', b"\xff\xfe", b'{"added_tokens":"\xff"}',
        b'{"added_tokens_decoder": [1]}', b'{"added_tokens_decoder": {"1": 2}}', b"null",
    ],
)  # fmt: skip
def test_nonsense_has_none(tmp_path: Path, content: bytes) -> None:
    for file in ("tokenizer.json", "tokenizer_config.json", "added_tokens.json"):
        (tmp_path / file).write_bytes(content)
    assert not folder_fills(tmp_path)
