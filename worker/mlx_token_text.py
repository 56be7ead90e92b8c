"""What a model's tokens stand for: the text of many, the bytes of one. Engine thread."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import Any, Final

from lmx.worker.detokenize import Decode, IncrementalDetokenizer

_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_METASPACE: Final = "\N{LOWER ONE EIGHTH BLOCK}"


class TokenText:
    """Works on a copy of the tokenizer: a tokenizer serves one thread.

    ``end_ids`` end an answer; ``marker_ids`` are those special tokens that tell tool calls and
    reasoning from content.
    """

    def __init__(self, tokenizer: Any, end_ids: frozenset[int], marker_ids: frozenset[int]) -> None:
        self._tokenizer = copy.deepcopy(tokenizer)
        self._decode = _decode_by(self._tokenizer)
        self._special = _special_ids(tokenizer) | end_ids
        self._markers = marker_ids - end_ids
        self._byte_level = _is_byte_level(tokenizer)

    def detokenizer(
        self, markers: bool, after: Sequence[int], *, special: bool = False
    ) -> IncrementalDetokenizer:
        """See :meth:`lmx.worker.engine.Engine.detokenizer`."""
        if special:
            return IncrementalDetokenizer(self._decode, frozenset(), after)
        skip = self._special - self._markers if markers else self._special | self._markers
        return IncrementalDetokenizer(self._decode, skip, after)

    def token_bytes(self, token: int) -> bytes:
        """Return a token's bytes, which may be a part of a character; the name of a special
        one; nothing for an id that the tokenizer doesn't have."""
        name = self._tokenizer.convert_ids_to_tokens(token)
        if name is None:
            return b""
        if token in self._special or token in self._markers:
            return str(name).encode()
        if self._byte_level:
            return bytes(_BYTE_OF[char] for char in name if char in _BYTE_OF)
        if match := _BYTE_TOKEN.fullmatch(name):
            return bytes([int(match[1], 16)])
        return str(name).replace(_METASPACE, " ").encode()


def _decode_by(tokenizer: Any) -> Decode:
    """Return a decode function.

    The Rust tokenizer where there is one: ten times faster than through transformers. Special
    tokens are not skipped here; the detokenizer has left them out.
    """
    rust = getattr(tokenizer, "backend_tokenizer", None)
    if rust is not None:
        return lambda ids: str(rust.decode(ids, skip_special_tokens=False))
    return lambda ids: str(tokenizer.decode(ids, clean_up_tokenization_spaces=False))


def _special_ids(tokenizer: Any) -> frozenset[int]:
    """Return the tokens that are never text. ``all_special_ids`` has only those with a role of
    their own; a tokenizer marks more of them."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    marked = {token_id for token_id, token in added.items() if token.special}
    return frozenset(tokenizer.all_special_ids) | marked


def _is_byte_level(tokenizer: Any) -> bool:
    """Whether tokens are written in GPT-2's alphabet of a character for each byte."""
    rust = getattr(tokenizer, "backend_tokenizer", None)
    return rust is not None and "ByteLevel" in str(rust.decoder)


def _byte_alphabet() -> dict[str, int]:
    """Return GPT-2's alphabet: printable Latin-1 stands for itself, the rest is moved up."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {
        chr(256 + index): byte for index, byte in enumerate(moved)
    }


_BYTE_OF: Final = _byte_alphabet()
