"""The official client library against the router."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import openai
from openai.types.chat import ChatCompletionToolParam, ParsedFunctionToolCall

from lmx.protocol.messages.data import Delta, TokenLogprob, ToolCallPart
from lmx.protocol.states import DeltaKind, FinishReason
from tests.support.fakes.fake_peers import FakeStream
from tests.support.rigs.router_rig import MODEL, Rig, router_rig


@asynccontextmanager
async def sdk(rig: Rig) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{rig.url}/v1", api_key="none", max_retries=0, timeout=300
    ) as client:
        yield client


WEATHER: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


async def two_callers(fake: FakeStream) -> None:
    """Two answers in turns, one of them a call whose arguments come in pieces."""
    await fake.accept()
    call = DeltaKind.TOOL_CALL
    await fake.send_deltas(
        Delta(0, "I'd ", 1, 1, logprobs=(TokenLogprob(b"I'd ", -0.5, 5),)),
        Delta(0, "", 1, 0, call, ToolCallPart(0, "call_1", "get_weather")),
        Delta(0, '{"ci', 1, 0, call, ToolCallPart(0)),
        Delta(0, "guess", 1, 1, logprobs=(TokenLogprob(b"guess", -1.5, 6),)),
        Delta(0, 'ty":"大阪"}', 1, 0, call, ToolCallPart(0)),
    )
    await fake.end_choice(1)
    await fake.end_choice(0, FinishReason.TOOL_CALLS)
    await fake.finish()


async def test_the_library_s_own_accumulator_gets_what_it_gets_unstreamed() -> None:
    async with router_rig(two_callers) as rig, sdk(rig) as client:
        whole = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "hi"}], tools=[WEATHER], n=2,
            logprobs=True,
        )  # fmt: skip
        async with client.chat.completions.stream(
            model=MODEL, messages=[{"role": "user", "content": "hi"}], tools=[WEATHER], n=2,
            logprobs=True,
        ) as stream:  # fmt: skip
            joined = await stream.get_final_completion()
    calls = whole.choices[0].message.tool_calls
    assert calls is not None
    assert calls[0].type == "function"
    assert calls[0].function.arguments == '{"city":"大阪"}'
    assert whole.choices[1].message.content == "I'd guess"
    for mine, theirs in zip(whole.choices, joined.choices, strict=True):
        assert mine.finish_reason == theirs.finish_reason
        assert (mine.message.content or "") == (theirs.message.content or "")
        assert [call.to_dict() for call in mine.message.tool_calls or ()] == [
            {
                name: value
                for name, value in call.to_dict().items()
                if name in ("id", "type", "function")
            }
            for call in _without_parsed(theirs.message.tool_calls or ())
        ]
    entries = joined.choices[1].logprobs
    assert entries is not None
    assert entries.content is not None
    assert [entry.token for entry in entries.content] == ["I'd ", "guess"]
    assert whole.choices[1].logprobs is not None
    assert whole.choices[1].logprobs.content == entries.content


def _without_parsed(calls: Iterable[ParsedFunctionToolCall]) -> Iterable[ParsedFunctionToolCall]:
    for call in calls:
        call.function.__dict__.pop("parsed_arguments", None)
        yield call
