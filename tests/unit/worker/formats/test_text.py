"""Streams, stop strings, detokenizing: text in equals text out."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from lmx.protocol.messages.data import (
    ChoiceEnded,
    Delta,
    Outputs,
    TokenLogprob,
    ToolCallPart,
    TopLogprob,
)
from lmx.protocol.states import DeltaKind, FinishReason
from lmx.protocol.wire.codec import MAX_MESSAGE_BYTES, encode
from lmx.worker.scheduling.best_of import Ranking
from lmx.worker.scheduling.logprobs import LogprobTrack
from lmx.worker.scheduling.requests import ChoiceFinished
from lmx.worker.service.stream import Outgoing, Stream
from lmx.worker.text.detokenize import Decode, IncrementalDetokenizer
from lmx.worker.text.stop_strings import StopMatcher

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
            delta = stream.add(Delta(1, move, 1))
            sent += [delta] if delta else []
            added += 1
        else:
            sent += stream.grant(move)
            given_credit += max(0, move)
        assert len(sent) <= given_credit
        # What waits, waits for want of credit alone.
        waiting_tokens = added - sum(delta.tokens for delta in sent)
        assert waiting_tokens == 0 or len(sent) == given_credit
    if last := stream.end(0):
        assert len(sent) == given_credit
        assert len(last) == 1
        sent += last
    texts = [move for move in moves if isinstance(move, str)]
    assert "".join(delta.text for delta in sent) == "".join(texts)
    assert sum(delta.tokens for delta in sent) == len(texts)
    assert all(delta.stream_id == 7 for delta in sent)


PIECES = st.builds(
    Delta,
    st.just(1),
    st.text("xyz", max_size=3),
    st.just(1),
    st.integers(0, 2),
    st.sampled_from([DeltaKind.CONTENT, DeltaKind.REASONING]),
    st.none(),
    st.just(()),
)
CALLS = st.builds(
    lambda index, call, name, text: Delta(
        1, text, 1, index, DeltaKind.TOOL_CALL, ToolCallPart(call, name and "id", name)
    ),
    st.integers(0, 2),
    st.integers(0, 1),
    st.sampled_from([None, "f"]),
    st.text("xyz", max_size=3),
)


@given(credit=st.integers(0, 3), moves=st.lists(st.one_of(PIECES, CALLS, st.integers(1, 2))))
def test_joined_text_keeps_its_answer_its_kind_and_its_call(
    credit: int, moves: list[Delta | int]
) -> None:
    stream = Stream(7, credit)
    sent: list[Delta] = []
    for move in moves:
        if isinstance(move, int):
            sent += stream.grant(move)
        elif (delta := stream.add(move)) is not None:
            sent.append(delta)
    for index in range(3):
        sent += stream.end(index)
    for index in range(3):
        given = [move for move in moves if isinstance(move, Delta) and move.index == index]
        assert flat(given) == flat([delta for delta in sent if delta.index == index])


def test_text_with_many_logprobs_is_not_joined_without_end() -> None:
    stream = Stream(7, 0)
    tokens = [Delta(1, "x", 1, logprobs=(TokenLogprob(b"x", -1.0, n),)) for n in range(10_000)]
    assert [stream.add(piece) for piece in tokens] == [None] * len(tokens)
    sent = stream.end(0)
    assert [entry.token_id for delta in sent for entry in delta.logprobs] == list(range(10_000))
    assert "".join(delta.text for delta in sent) == "x" * 10_000
    assert 1 < max(len(delta.logprobs) for delta in sent) < 5000


def test_what_is_too_large_for_one_message_goes_in_several() -> None:
    top = tuple(TopLogprob(b" word", -1.5, n) for n in range(20))
    logprobs = tuple(TokenLogprob(b" word", -1.5, n, top) for n in range(1000))
    deltas = [Delta(7, f"text {n}", 1000, logprobs=logprobs) for n in range(25)]
    end = ChoiceEnded(7, 0, FinishReason.STOP)
    outgoing = Outgoing()
    outgoing.to(b"r").deltas += deltas
    outgoing.to(b"r").ended.append(end)
    outgoing.to(b"s").ended.append(end)
    sent: list[tuple[bytes, Outputs]] = []
    outgoing.send(lambda router, message: sent.append((router, message)))
    assert sent.pop() == (b"s", Outputs(ended=(end,)))
    assert [delta for _, message in sent for delta in message.deltas] == deltas
    assert [message.ended for _, message in sent] == [()] * (len(sent) - 1) + [(end,)]
    assert max(len(encode(message)) for _, message in sent) < MAX_MESSAGE_BYTES // 4


def flat(parts: Sequence[Delta]) -> list[tuple[Any, ...]]:
    """Characters with what they belong to, and the calls' beginnings between them."""
    out: list[tuple[Any, ...]] = []
    for part in parts:
        if part.call is not None and part.call.name:
            out.append(("begins", part.call.index, part.call.name))
        owner = part.call.index if part.call else None
        out += [(part.kind, owner, char) for char in part.text]
    return out


def answer(index: int, logprob: float, tokens: int) -> list[Delta | ChoiceFinished]:
    return [
        Delta(1, f"text {index}", tokens, index),
        ChoiceFinished(1, index, FinishReason.STOP, None, tokens, logprob / tokens),
    ]


def test_the_likeliest_answers_by_token_are_returned() -> None:
    ranking = Ranking(n=2, best_of=4)
    likely = [(0, -9.0, 3), (1, -8.0, 8), (2, -1.0, 1), (3, -30.0, 2)]
    *first, last = [answer(*values) for values in likely]
    for output in (item for pair in first for item in pair):
        assert ranking.add(output) == ()
    assert ranking.add(last[0]) == ()
    going = ranking.add(last[1])
    assert [(item.index, item.text) for item in going if isinstance(item, Delta)] == [
        (0, "text 1"),
        (1, "text 2"),
    ]
    assert [item.choice for item in going if isinstance(item, ChoiceFinished)] == [0, 1]


def test_logprobs_go_out_with_the_end_of_their_text() -> None:
    track = LogprobTrack()
    entries = [TokenLogprob(bytes([n]), -1.0, n) for n in range(4)]
    track.add(entries[0], 3)
    track.add(entries[1], None)  # a part of a character
    assert track.release(2) == []
    track.add(entries[2], 4)
    assert track.release(3) == entries[:1]
    assert track.release(4) == entries[1:3]
    track.add(entries[3], None)
    track.close(5)
    assert track.release(5) == entries[3:]


def run_stops(stops: list[str], pieces: list[str]) -> tuple[str, bool]:
    matcher = StopMatcher(stops)
    out = []
    for piece in pieces:
        out.append(matcher.add(piece))
        if matcher.matched:
            assert matcher.matched in stops
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


@given(stops=STOPS, pieces=st.lists(SMALL, max_size=8))
def test_an_included_stop_is_the_end_of_the_text(stops: list[str], pieces: list[str]) -> None:
    text, matched = run_stops(stops, pieces)
    matcher = StopMatcher(stops, include=True)
    out = ""
    for piece in pieces:
        out += matcher.add(piece)
        if matcher.matched:
            break
    assert bool(matcher.matched) == matched
    assert out + matcher.release() == text + (matcher.matched or "")


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


@pytest.mark.parametrize(
    "text",
    [
        *("ab cd ab cd", "a 日本 é", "é ab", "ab \N{REPLACEMENT CHARACTER} cd"),
        "\N{REPLACEMENT CHARACTER}é",
    ],
)
@pytest.mark.parametrize("make", [byte_level, byte_fallback])
def test_text_that_continues_is_decoded_with_what_came_before(
    make: Callable[[], Tokenizer], text: str
) -> None:
    """A character that is begun before is a part of it."""
    tokenizer = make()
    ids = tokenizer.encode(text).ids
    decode = decoder_of(tokenizer)
    for cut in range(1, len(ids)):
        detokenizer = IncrementalDetokenizer(decode, frozenset(), ids[:cut])
        more = "".join([*(detokenizer.add(token) for token in ids[cut:]), detokenizer.flush()])
        before, whole = decode(ids[:cut]), decode(ids)
        kept = whole.removesuffix(more)
        assert kept + more == whole
        assert before.startswith(kept)
        assert kept == before or not whole.startswith(before[: len(kept) + 1])
