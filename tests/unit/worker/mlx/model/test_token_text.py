"""The text of tokens, by what kind of tokenizer there is."""

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lmx.worker.mlx.model.token_text import TokenText


def metaspace() -> Tokenizer:
    """Words with a mark in front of them, which is a space in the middle of a text."""
    tokenizer = Tokenizer(models.WordLevel({"▁ab": 0, "▁cd": 1, "ef": 2}, "ef"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def byte_level(decoder: decoders.Decoder) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({"Ġab": 0, "Ġcd": 1, "ef": 2}, "ef"))
    tokenizer.decoder = decoder
    return tokenizer


@pytest.mark.parametrize(
    ("tokenizer", "text"),
    [
        (metaspace(), "ab cdef cd"),
        (byte_level(decoders.ByteLevel()), " ab cdef cd"),
        (
            byte_level(decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])),
            "ab cdef cd",
        ),
    ],
    ids=["metaspace", "byte level", "byte level without the first space"],
)
def test_tokens_one_by_one_read_as_all_at_once(tokenizer: Tokenizer, text: str) -> None:
    ids = [0, 1, 2, 1]
    assert tokenizer.decode(ids) == text
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    detokenizer = TokenText(fast, frozenset(), frozenset()).detokenizer(False, ())
    assert "".join([*map(detokenizer.add, ids), detokenizer.flush()]) == text
