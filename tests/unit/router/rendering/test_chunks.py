"""Chunks and whole answers, without a socket: their forms, and that they say the same."""

import json
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from lmx.protocol.messages.data import (
    ChoiceEnded,
    Delta,
    Finished,
    Timings,
    TokenLogprob,
    ToolCallPart,
    TopLogprob,
    Usage,
)
from lmx.protocol.states import DeltaKind, FinishReason
from lmx.router.rendering.accumulator import Accumulator
from lmx.router.rendering.answer_format import Beginning, Ending
from lmx.router.rendering.chat import ChatShape
from lmx.router.rendering.envelope import Form, Identity, RouterTimings, fingerprint, timings_object
from lmx.router.rendering.openai import ChoiceShape, ChunkWriter
from lmx.router.rendering.text import TextShape

IDENTITY = Identity("chatcmpl-1", 1700000000, 'odd "content":""\n', "fp_0")
CLOCKED = RouterTimings(total_s=1.0, first_token_s=0.5, load_s=0.25)
FINISHED = Finished(1, Usage(5, 3, 2, 1), Timings(0.1, 0.2, 0.5))
ENDING = Ending(FINISHED, CLOCKED)


def chat_writer(form: Form = Form()) -> ChunkWriter:  # noqa: B008 - frozen
    return ChunkWriter(IDENTITY, form, ChatShape(form))


def text_writer(form: Form = Form()) -> ChunkWriter:  # noqa: B008 - frozen
    return ChunkWriter(IDENTITY, form, TextShape(form))


def ended(
    index: int = 0, reason: FinishReason = FinishReason.LENGTH, stop: str | None = None
) -> ChoiceEnded:
    return ChoiceEnded(1, index, reason, stop)


def parse(raw: bytes) -> list[dict[str, Any]]:
    events = raw.decode().split("\n\n")
    assert events.pop() == ""
    if events[-1:] == ["data: [DONE]"]:
        events.pop()
    return [json.loads(event.removeprefix("data: ")) for event in events]


CHARACTERS = st.characters(exclude_categories=["Cs"])


@given(st.lists(st.text(CHARACTERS)), st.booleans(), st.sampled_from([chat_writer, text_writer]))
def test_any_text_survives_its_chunk(texts: list[str], include_usage: bool, make: Any) -> None:
    raw = make(Form(2, include_usage=include_usage)).deltas(
        [Delta(1, text, 1, index=number % 2) for number, text in enumerate(texts)]
    )
    assert raw.count(b"\n") == 2 * sum(map(bool, texts)), "no newline but those between events"
    chunks = parse(raw)
    choices = [chunk["choices"][0] for chunk in chunks]
    said = [(c["index"], c["delta"]["content"] if "delta" in c else c["text"]) for c in choices]
    assert said == [(number % 2, text) for number, text in enumerate(texts) if text]
    for chunk in chunks:
        assert chunk["model"] == IDENTITY.model_id
        assert ("usage" in chunk) is include_usage
        assert chunk.get("usage") is None


@pytest.mark.parametrize("shape", [ChatShape, TextShape])
def test_every_chunk_has_the_usage_so_far(shape: Callable[[Form], ChoiceShape]) -> None:
    form = Form(2, include_usage=True, continuous_usage=True)
    writer = ChunkWriter(IDENTITY, form, shape(form), Beginning(prompt_tokens=5))
    logprobs = (TokenLogprob(b"c", -0.5, 7),)
    deltas = [
        Delta(1, 'a"}\n', 1),
        Delta(1, "", 2),
        Delta(1, "b", 3, index=1),
        Delta(1, "c", 1, logprobs=logprobs),
    ]
    chunks = parse(
        writer.first() + writer.deltas(deltas) + b"".join(writer.ends([ended(), ended(1)]))
    )
    chunks += parse(writer.last(ENDING))
    counted = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counted[-6:] == [1, 6, 7, 7, 7, 3]
    assert not any(counted[:-6])
    assert {chunk["usage"]["prompt_tokens"] for chunk in chunks} == {5}
    texts = [choice["delta"].get("content") if "delta" in choice else choice["text"]
             for chunk in chunks[-6:-3] for choice in chunk["choices"]]  # fmt: skip
    assert texts == ['a"}\n', "b", "c"]


def test_the_last_chunks() -> None:
    writer = chat_writer()
    assert list(writer.ends([ended()])) == []
    (end,) = parse(writer.last(ENDING))
    assert end["choices"] == [
        {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length", "stop_reason": None}
    ]
    assert "usage" not in end
    assert end["timings"] == timings_object(FINISHED, CLOCKED)
    writer = chat_writer(Form(include_usage=True))
    assert list(writer.ends([ended()])) == []
    end, usage = parse(writer.last(ENDING))
    assert end["usage"] is None
    assert "timings" not in end
    assert usage["choices"] == []
    assert usage["timings"] == timings_object(FINISHED, CLOCKED)
    assert usage["usage"]["completion_tokens_details"] == {"reasoning_tokens": 1}


def test_each_choice_begins_and_ends_by_itself() -> None:
    writer = chat_writer(Form(3))
    begun = parse(writer.first())
    assert [chunk["choices"][0]["index"] for chunk in begun] == [0, 1, 2]
    assert all(
        chunk["choices"][0]["delta"] == {"role": "assistant", "content": ""} for chunk in begun
    )
    (first_end,) = parse(b"".join(writer.ends([ended(1, FinishReason.STOP)])))
    assert (first_end["choices"][0]["index"], first_end["choices"][0]["finish_reason"]) == (
        1,
        "stop",
    )
    assert "timings" not in first_end
    (second_end,) = parse(b"".join(writer.ends([ended(2), ended(0)])))
    assert second_end["choices"][0]["index"] == 2
    (last,) = parse(writer.last(ENDING))
    assert last["choices"][0]["index"] == 0
    assert "timings" in last


def test_a_text_has_no_beginning_but_an_end() -> None:
    writer = text_writer()
    assert writer.first() == b""
    list(writer.ends([ended()]))
    (end,) = parse(writer.last(ENDING))
    assert end["object"] == "text_completion"
    assert end["choices"][0]["text"] == ""
    assert end["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("stop", "strings", "shown"),
    [
        (None, (), None), ("END", ("END",), "END"), ("151645", (), 151645),
        ("5", ("5",), "5"), ("²", ("²",), "²"), ("odd", (), "odd"),
    ],
)  # fmt: skip
def test_the_stop_reason_is_a_string_or_a_token(
    stop: str | None, strings: tuple[str, ...], shown: object
) -> None:
    form = Form(stop=strings)
    assert ChatShape(form).end(ended(stop=stop))["stop_reason"] == shown


@pytest.mark.parametrize(
    ("tokens", "decode_s", "rate"), [(3, 0.5, 4.0), (1, 0.0, 0.0), (0, 0.0, 0.0), (5, 0.0, 0.0)]
)
def test_tokens_per_second(tokens: int, decode_s: float, rate: float) -> None:
    end = Finished(1, Usage(5, tokens, 2), Timings(0.1, 0.2, decode_s))
    shown = timings_object(end, CLOCKED)
    assert shown["tokens_per_s"] == rate
    assert "drafted_tokens" not in shown


def test_timings_show_speculation() -> None:
    shown = timings_object(
        Finished(1, Usage(5, 9), Timings(0, 0, 1, drafted_tokens=8, accepted_tokens=6)), CLOCKED
    )
    assert (shown["drafted_tokens"], shown["accepted_tokens"]) == (8, 6)
    assert shown["acceptance_rate"] == 0.75


@pytest.mark.parametrize(
    ("joules", "tokens", "shown"),
    [(None, 4, (None, None)), (6.0, 4, (6.0, 1.5)), (6.0, 0, (6.0, None))],
)
def test_timings_have_the_energy_where_it_is_measured(
    joules: float | None, tokens: int, shown: object
) -> None:
    end = Finished(1, Usage(5, tokens), Timings(0, 0, 1, energy_joules=joules))
    found = timings_object(end, CLOCKED)
    assert (found.get("energy_joules"), found.get("joules_per_token")) == shown
    assert ("energy_joules" in found) == (joules is not None)


def test_the_fingerprint_distinguishes_versions_and_sources() -> None:
    all_three = {fingerprint("1", "m", "s"), fingerprint("2", "m", "s"), fingerprint("1", "m", "t")}
    assert len(all_three) == 3


def test_a_call_is_announced_once_and_then_continues() -> None:
    def call(text: str, *named: str) -> Delta:
        return Delta(1, text, 1, kind=DeltaKind.TOOL_CALL, call=ToolCallPart(1, *named))

    chunks = parse(chat_writer().deltas([call("", "call_a", "get_weather"), call('{"city":')]))
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"tool_calls": [{
            "index": 1, "id": "call_a", "type": "function",
            "function": {"name": "get_weather", "arguments": ""},
        }]},
        {"tool_calls": [{"index": 1, "function": {"arguments": '{"city":'}}]},
    ]  # fmt: skip


# Equality of streams and whole answers, for anything that a worker may send.


def split_bytes(text: str) -> list[bytes]:
    """Tokens that are single bytes: every character beyond ASCII is split."""
    return [bytes([byte]) for byte in text.encode()]


def scored(token: bytes, likely: float | None = -0.5) -> TokenLogprob:
    others = (TopLogprob(token, -0.5, 1), TopLogprob(b"\xf0\x9f", float("-inf"), 2))
    return TokenLogprob(token, likely, 1, others if likely is not None else ())


TEXT = st.text(st.sampled_from('ab \n"\\日本🌍👩‍👧é'), min_size=1, max_size=4)


@st.composite
def answers(draw: st.DrawFn, kinds: list[DeltaKind]) -> tuple[int, list[Delta]]:
    """Deltas of some choices, interleaved; calls are numbered and begun as a worker does."""
    choices = draw(st.integers(1, 3))
    begun: dict[int, int] = dict.fromkeys(range(choices), -1)
    deltas = []
    for _ in range(draw(st.integers(0, 12))):
        index, kind = draw(st.integers(0, choices - 1)), draw(st.sampled_from(kinds))
        text, part = draw(TEXT), None
        logprobs: tuple[TokenLogprob, ...] = ()
        if kind is DeltaKind.TOOL_CALL:
            if begun[index] < 0 or draw(st.booleans()):
                begun[index] += 1
                part = ToolCallPart(begun[index], f"call_{index}_{begun[index]}", draw(TEXT))
                text = draw(st.sampled_from(["", text]))
            else:
                part = ToolCallPart(begun[index])
        elif kind is DeltaKind.CONTENT and draw(st.booleans()):
            logprobs = tuple(scored(token) for token in split_bytes(text))
        deltas.append(Delta(1, text, 1, index, kind, part, logprobs))
    return choices, deltas


def streamed(form: Form, shape: ChoiceShape, deltas: list[Delta]) -> list[dict[str, Any]]:
    writer = ChunkWriter(IDENTITY, form, shape)
    raw = writer.first() + b"".join(writer.deltas([delta]) for delta in deltas)
    raw += b"".join(writer.ends([ended(index) for index in range(form.choices)]))
    return parse(raw + writer.last(ENDING))


def whole(form: Form, shape: ChoiceShape, deltas: list[Delta]) -> list[dict[str, Any]]:
    gathering = Accumulator(form.choices, shape.entries)
    gathering.add(deltas)
    shown = [
        shape.complete_choice(ended(index), choice)
        for index, choice in enumerate(gathering.choices)
    ]
    return json.loads(orjson.dumps(shown))  # type: ignore[no-any-return]


def joined_chat(choices: int, chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a client has put together at the end of a stream."""
    messages: list[dict[str, Any]] = [{"content": ""} for _ in range(choices)]
    logprobs: list[list[Any]] = [[] for _ in range(choices)]
    for chunk in chunks:
        (choice,) = chunk["choices"]
        message, delta = messages[choice["index"]], choice["delta"]
        for name in ("content", "reasoning_content"):
            if name in delta:
                message[name] = message.get(name, "") + delta[name]
        for fragment in delta.get("tool_calls", ()):
            calls = message.setdefault("tool_calls", [])
            if "id" in fragment:
                assert fragment["index"] == len(calls)
                calls.append({
                    "id": fragment["id"], "type": "function",
                    "function": {"name": fragment["function"]["name"], "arguments": ""},
                })  # fmt: skip
            calls[fragment["index"]]["function"]["arguments"] += fragment["function"]["arguments"]
        if choice["logprobs"] is not None:
            logprobs[choice["index"]] += choice["logprobs"]["content"]
    return [
        {"message": m, "logprobs": entries} for m, entries in zip(messages, logprobs, strict=True)
    ]


@given(answers([DeltaKind.CONTENT, DeltaKind.REASONING, DeltaKind.TOOL_CALL]))
def test_a_chat_stream_joined_is_the_whole_answer(made: tuple[int, list[Delta]]) -> None:
    choices, deltas = made
    form = Form(choices, logprobs=True)
    chunks = streamed(form, ChatShape(form), deltas)
    shown = whole(form, ChatShape(form), deltas)
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk, strict=False)
    for joined, choice in zip(joined_chat(choices, chunks), shown, strict=True):
        message = choice["message"]
        assert (message.pop("role"), message.pop("refusal")) == ("assistant", None)
        if message["content"] is None:
            assert message["tool_calls"]
            message["content"] = ""
        assert joined["message"] == message
        assert joined["logprobs"] == choice["logprobs"]["content"]


@given(answers([DeltaKind.CONTENT]))
def test_a_text_stream_joined_is_the_whole_answer(made: tuple[int, list[Delta]]) -> None:
    choices, deltas = made
    form = Form(choices, logprobs=True)
    chunks = streamed(form, TextShape(form), deltas)
    joined: list[dict[str, Any]] = [
        {"text": "", "tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for _ in range(choices)
    ]
    for chunk in chunks:
        (choice,) = chunk["choices"]
        # OpenAI's own streams say null before the end too; the library's type does not know.
        Completion.model_validate({**chunk, "choices": [choice | {"finish_reason": "stop"}]})
        mine = joined[choice["index"]]
        mine["text"] += choice["text"]
        for name, values in (choice["logprobs"] or {}).items():
            mine[name] += values
    for mine, choice in zip(joined, whole(form, TextShape(form), deltas), strict=True):
        assert mine == {"text": choice["text"], **choice["logprobs"]}


def test_whole_answers_are_what_the_openai_library_expects() -> None:
    form = Form(2, logprobs=True)
    deltas = [
        Delta(1, "hm", 1, kind=DeltaKind.REASONING),
        Delta(1, "🌍", 2, logprobs=tuple(scored(token) for token in split_bytes("🌍"))),
        Delta(1, "{}", 1, 1, DeltaKind.TOOL_CALL, ToolCallPart(0, "call_1", "f")),
    ]
    answer = ChatCompletion.model_validate({
        "id": "x", "object": "chat.completion", "created": 1, "model": "m",
        "choices": whole(form, ChatShape(form), deltas),
    })  # fmt: skip
    first, second = answer.choices
    assert first.message.content == "🌍"
    assert first.message.model_extra == {"reasoning_content": "hm"}
    assert first.logprobs is not None
    assert first.logprobs.content is not None
    assert bytes(b for entry in first.logprobs.content for b in entry.bytes or ()).decode() == "🌍"
    assert {entry.token for entry in first.logprobs.content} == {"\ufffd"}
    assert first.logprobs.content[0].top_logprobs[1].logprob == -9999.0
    assert second.message.content is None
    assert second.message.tool_calls is not None
    assert second.message.tool_calls[0].id == "call_1"


def test_text_offsets_and_names_of_split_characters() -> None:
    tokens = [b"a\xe6", b"\x97", b"\xa5b", "本".encode(), b"\xf0\x9f", b"\x8c\x8dx", b"", b"y"]
    form = Form(logprobs=True)
    delta = Delta(1, "a日b本🌍xy", 8, logprobs=tuple(scored(token) for token in tokens))
    (choice,) = whole(form, TextShape(form), [delta])
    lists = choice["logprobs"]
    assert lists["tokens"] == [
        "bytes:\\x61\\xe6", "bytes:\\x97", "bytes:\\xa5\\x62", "本", "bytes:\\xf0\\x9f",
        "bytes:\\x8c\\x8d\\x78", "", "y",
    ]  # fmt: skip
    assert lists["text_offset"] == [0, 1, 1, 3, 4, 4, 6, 6]
    assert lists["top_logprobs"][3] == {"本": -0.5, "bytes:\\xf0\\x9f": -9999.0}


def test_a_prompt_s_first_token_has_no_logprob() -> None:
    form = Form(logprobs=True)
    delta = Delta(1, "ab", 2, logprobs=(scored(b"a", None), scored(b"b")))
    (choice,) = whole(form, TextShape(form), [delta])
    assert choice["logprobs"]["token_logprobs"] == [None, -0.5]
    assert choice["logprobs"]["top_logprobs"][0] is None


def test_logprobs_that_nobody_asked_for_are_null() -> None:
    for shape in (ChatShape(Form()), TextShape(Form())):
        (choice,) = whole(Form(), shape, [Delta(1, "x", 1)])
        assert choice["logprobs"] is None


def test_a_call_in_the_form_that_functions_had() -> None:
    form = Form(functions=True)
    deltas = [
        Delta(1, "", 1, kind=DeltaKind.TOOL_CALL, call=ToolCallPart(0, "call_1", "f")),
        Delta(1, '{"a":1}', 1, kind=DeltaKind.TOOL_CALL, call=ToolCallPart(0)),
    ]
    end = ended(reason=FinishReason.TOOL_CALLS)
    writer = chat_writer(form)
    chunks = parse(writer.deltas(deltas) + b"".join(writer.ends([end])) + writer.last(ENDING))
    calls = [chunk["choices"][0]["delta"]["function_call"] for chunk in chunks[:2]]
    assert calls == [{"name": "f", "arguments": ""}, {"arguments": '{"a":1}'}]
    assert chunks[2]["choices"][0]["finish_reason"] == "function_call"
    gathered = Accumulator(1, None)
    gathered.add(deltas)
    shown = ChatShape(form).complete_choice(end, gathered.choices[0])
    assert shown["message"]["function_call"] == {"name": "f", "arguments": '{"a":1}'}
    assert "tool_calls" not in shown["message"]
    assert shown["finish_reason"] == "function_call"
