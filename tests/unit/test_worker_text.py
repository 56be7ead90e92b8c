"""Streams, stop strings, detokenizing: text in equals text out."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from lmx.protocol.data import Delta
from lmx.worker.detokenize import Decode, IncrementalDetokenizer
from lmx.worker.stops import StopMatcher
from lmx.worker.streams import Stream

SMALL = st.text("ab", max_size=12)
STOPS = st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=4)


@given(
    credit=st.integers(0, 5),
    moves=st.lists(st.one_of(st.text(min_size=1, max_size=5), st.integers(-1, 3))),
)
def test_a_stream_loses_no_text_and_overdraws_no_credit(
    credit: int, moves: list[str | int]
) -> None:
    stream = Stream(7, credit)
    given_credit, added, sent = credit, 0, list[Delta]()
    for move in moves:
        if isinstance(move, str):
            delta = stream.add(move, 1)
            added += 1
        else:
            delta = stream.grant(move)
            given_credit += max(0, move)
        if delta is not None:
            sent.append(delta)
        assert len(sent) <= given_credit
        # What waits, waits for want of credit alone.
        waiting_tokens = added - sum(delta.tokens for delta in sent)
        assert waiting_tokens == 0 or len(sent) == given_credit
    if (last := stream.close()) is not None:
        assert len(sent) == given_credit
        sent.append(last)
    texts = [move for move in moves if isinstance(move, str)]
    assert "".join(delta.text for delta in sent) == "".join(texts)
    assert sum(delta.tokens for delta in sent) == len(texts)
    assert all(delta.stream_id == 7 for delta in sent)


def run_stops(stops: list[str], pieces: list[str]) -> tuple[str, bool]:
    matcher = StopMatcher(stops)
    out = []
    for piece in pieces:
        out.append(matcher.add(piece))
        if matcher.matched:
            return "".join(out), True
    return "".join([*out, matcher.release()]), False


@given(stops=STOPS, pieces=st.lists(SMALL, max_size=8))
def test_stops_cut_the_text_before_the_first_complete_stop(
    stops: list[str], pieces: list[str]
) -> None:
    text = "".join(pieces)
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    if ends:
        end = min(ends)
        longest = max(len(stop) for stop in stops if text[:end].endswith(stop))
        expected = text[: end - longest], True
    else:
        expected = text, False
    assert run_stops(stops, pieces) == expected


@given(stops=STOPS, pieces=st.lists(SMALL, max_size=8))
def test_stops_hold_back_no_more_than_a_stop_could_need(
    stops: list[str], pieces: list[str]
) -> None:
    matcher = StopMatcher(stops)
    released, taken = "", ""
    for piece in pieces:
        released += matcher.add(piece)
        taken += piece
        if matcher.matched:
            return
        held = taken[len(released) :]
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)


def test_without_stops_nothing_is_held() -> None:
    assert run_stops(["", ""], ["a", "b"]) == ("ab", False)


def byte_level() -> Tokenizer:
    """One token for each byte, as a byte-level BPE without merges has."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: n for n, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def byte_fallback() -> Tokenizer:
    """SentencePiece's way: words with a leading mark, bytes for everything else."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdefgh"]
    pieces += ["▁ab", "▁cd"]
    merges = [("▁", "ab"), ("▁", "cd")]
    vocabulary = {piece: n for n, piece in enumerate([*pieces, "ab", "cd"])}
    tokenizer = Tokenizer(
        models.BPE(
            vocabulary,
            [("a", "b"), ("c", "d"), *merges],
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


def decoder_of(tokenizer: Tokenizer) -> Decode:
    return lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=False))


def pieces_of(decode: Decode, ids: list[int], skip: frozenset[int] = frozenset()) -> list[str]:
    detokenizer = IncrementalDetokenizer(decode, skip)
    return [*(detokenizer.add(token) for token in ids), detokenizer.flush()]


TEXTS = ["plain", "naïve café", "日本語の文", "👩‍👩‍👧 family 🇫🇷", "ab cd ab", "a\n\n b", "", " "]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("make", [byte_level, byte_fallback])
def test_detokenizing_gives_whole_characters(make: Callable[[], Tokenizer], text: str) -> None:
    tokenizer = make()
    ids = tokenizer.encode(text).ids
    pieces = pieces_of(decoder_of(tokenizer), ids)
    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=False)
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(pieces)


@given(ids=st.lists(st.integers(0, 255), max_size=40))
def test_any_bytes_join_to_what_decoding_them_at_once_gives(ids: list[int]) -> None:
    decode = decoder_of(BYTE_LEVEL)
    assert "".join(pieces_of(decode, ids)) == decode(ids)


BYTE_LEVEL = byte_level()


@given(text=st.text(max_size=30))
def test_byte_fallback_joins_to_what_decoding_at_once_gives(text: str) -> None:
    ids = BYTE_FALLBACK.encode(text).ids
    decode = decoder_of(BYTE_FALLBACK)
    assert "".join(pieces_of(decode, ids)) == decode(ids)


BYTE_FALLBACK = byte_fallback()


def test_what_is_incomplete_at_the_end_is_flushed() -> None:
    ids = BYTE_LEVEL.encode("ok 👍").ids[:-1]
    pieces = pieces_of(decoder_of(BYTE_LEVEL), ids)
    assert "".join(pieces[:-1]) == "ok "
    assert pieces[-1] == "\N{REPLACEMENT CHARACTER}"


def test_garbage_is_not_held_for_ever() -> None:
    start_of_character = BYTE_LEVEL.encode("👍").ids[0]
    pieces = pieces_of(decoder_of(BYTE_LEVEL), [start_of_character] * 100)
    assert max(len(piece) for piece in pieces) <= 20


def test_special_tokens_are_no_text() -> None:
    ids = BYTE_LEVEL.encode("ab").ids
    assert "".join(pieces_of(decoder_of(BYTE_LEVEL), [*ids, 0, *ids], frozenset({0}))) == "abab"
