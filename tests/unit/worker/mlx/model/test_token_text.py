"""The text of tokens, by what kind of tokenizer there is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lmx.worker.engine.interfaces import Detokenizer
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


def bytes_alone() -> Tokenizer:
    """A token for each byte, and two that were added to the vocabulary."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: n for n, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken("a token with é and spaces"), AddedToken("Ġé")])
    return tokenizer


BYTES = bytes_alone()
TEXT_OF_BYTES = TokenText(PreTrainedTokenizerFast(tokenizer_object=BYTES), frozenset(), frozenset())


def pieces_of(detokenizer: Detokenizer, ids: list[int]) -> list[str]:
    return [*map(detokenizer.add, ids), detokenizer.flush()]


@given(
    ids=st.one_of(
        st.lists(st.integers(0, 258), max_size=40),
        st.text(max_size=20).map(lambda text: BYTES.encode(text).ids),
    ),
    cut=st.integers(0, 5),
)
def test_bytes_one_by_one_read_as_all_at_once(ids: list[int], cut: int) -> None:
    """Valid or not. After a prompt nothing else is given out."""
    pieces = pieces_of(TEXT_OF_BYTES.detokenizer(False, ()), ids)
    assert "".join(pieces) == BYTES.decode(ids, skip_special_tokens=False)
    after = pieces_of(TEXT_OF_BYTES.detokenizer(False, ids[:cut]), ids[cut:])
    assert after[:-1] == pieces[cut:-1]


def test_a_character_is_given_out_with_its_last_byte() -> None:
    ids = BYTES.encode("aé👍").ids
    pieces = pieces_of(TEXT_OF_BYTES.detokenizer(False, ()), [*ids, ids[1]])
    assert pieces == ["a", "", "é", "", "", "", "👍", "", "\N{REPLACEMENT CHARACTER}"]


def test_the_bytes_of_a_token_are_those_of_its_text() -> None:
    """Also of one that was added to the vocabulary, and has characters such as a space, which are
    not in the alphabet."""
    for token in range(BYTES.get_vocab_size()):
        text = BYTES.decode([token], skip_special_tokens=False)
        assert TEXT_OF_BYTES.token_bytes(token).decode(errors="replace") == text
