"""Text completions: what a request may hold, and one or many prompts over real sockets."""

import asyncio
import json
from typing import Any

import pytest
from openai.types import Completion

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages.data import (
    Delta,
    Generate,
    Search,
    Timings,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from lmx.protocol.states import DeltaKind, ExitCause, FinishReason
from lmx.router.schema.requests.completions import parse_completion
from lmx.router.schema.requests.unsupported import COMPLETION
from tests.support.fakes.fake_peers import FakeStream, plays, until
from tests.support.rigs.router_rig import MODEL, TEXTS, Rig, router_rig

PATH = "/v1/completions"
TEXT = "".join(TEXTS)
TYPE = ErrorCode.INVALID_TYPE
VALUE = ErrorCode.INVALID_VALUE

BAD: list[tuple[dict[str, Any], str, ErrorCode, str]] = [
    ({"prompt": None}, "prompt", TYPE, "an array of strings"),
    ({"prompt": 5}, "prompt", TYPE, "got 5"),
    ({"prompt": {}}, "prompt", TYPE, "got an object"),
    ({"prompt": []}, "prompt", VALUE, "at least 1"),
    ({"prompt": [[]]}, "prompt[0]", VALUE, "at least 1"),
    ({"prompt": ["a", 5]}, "prompt[1]", TYPE, "a string"),
    ({"prompt": [5, "a"]}, "prompt[1]", TYPE, "an integer"),
    ({"prompt": [[5], "a"]}, "prompt[1]", TYPE, "an array"),
    ({"prompt": [[5, -1]]}, "prompt[0][1]", VALUE, "at least 0"),
    ({"prompt": [True]}, "prompt[0]", TYPE, "got true"),
    ({"prompt": [1.5]}, "prompt", TYPE, "got an array"),
    ({"prompt": ["a"] * 129}, "prompt", VALUE, "at most 128"),
    ({"prompt": ["a"] * 65, "n": 2}, "n", VALUE, "more than 128 answers"),
    ({"prompt": ["a"] * 65, "best_of": 2}, "best_of", VALUE, "more than 128 answers"),
    ({"prompt": "a", "n": 2, "best_of": 1}, "best_of", VALUE, "less than `n`"),
    ({"prompt": "a", "max_tokens": 0}, "max_tokens", VALUE, "at least 1"),
    ({"prompt": "a", "max_completion_tokens": 0}, "max_completion_tokens", VALUE, "`echo: true`"),
    ({"prompt": "a", "max_tokens": -2, "echo": True}, "max_tokens", VALUE, "at least -1"),
    (
        {"prompt": "a", "max_tokens": 0, "echo": True, "n": 1, "best_of": 2},
        "best_of",
        VALUE,
        "without tokens",
    ),
    (
        {"prompt": "a", "max_tokens": 0, "echo": True, "use_beam_search": True},
        "use_beam_search",
        VALUE,
        "without tokens",
    ),
    ({"prompt": "a", "max_tokens": 0, "echo": True, "min_tokens": 1}, "min_tokens", VALUE, "(0)"),
    ({"prompt": "a", "min_tokens": 17}, "min_tokens", VALUE, "(16)"),
    ({"prompt": "a", "stream_options": {}}, "stream_options", VALUE, "`stream: true`"),
]


@pytest.mark.parametrize(("body", "param", "code", "words"), BAD)
def test_faults(body: dict[str, Any], param: str, code: ErrorCode, words: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_completion(body)
    assert (caught.value.param, caught.value.code) == (param, code)
    assert words in caught.value.message


def test_an_echo_may_be_all_of_an_answer() -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        _, (generate,) = parse_completion({"prompt": "a", "echo": True, "logprobs": 1, name: 0})
        assert (generate.max_tokens, generate.echo, generate.top_logprobs) == (0, True, 1)
        _, (generate,) = parse_completion({"prompt": "a", "prompt_logprobs": 0, name: 0})
        assert (generate.max_tokens, generate.prompt_logprobs) == (0, 0)


def test_every_harmless_value_passes() -> None:
    for name, values in COMPLETION.items():
        for value in values:
            parse_completion({"prompt": "a", name: value})
        with pytest.raises(RequestError):
            parse_completion({"prompt": "a", name: {"an": "object"}})


PROMPTS: list[tuple[Any, list[str | tuple[int, ...]]]] = [
    ("a", ["a"]),
    ("", [""]),
    (["a"], ["a"]),
    (["a", ""], ["a", ""]),
    ([1, 2], [(1, 2)]),
    ([[1, 2], [3]], [(1, 2), (3,)]),
]


@pytest.mark.parametrize(("prompt", "each"), PROMPTS)
def test_forms_of_prompts(prompt: Any, each: list[str | tuple[int, ...]]) -> None:
    _, generates = parse_completion({"prompt": prompt})
    sent = [g.prompt if g.prompt_tokens is None else g.prompt_tokens for g in generates]
    assert sent == each
    assert all(g.messages is None and (g.prompt is None or g.prompt_tokens is None)
               for g in generates)  # fmt: skip


def test_what_a_worker_is_sent() -> None:
    (plain,) = parse_completion({"prompt": "a"})[1]
    assert plain == Generate(
        0,
        "",
        plain.sampling,
        0,
        prompt="a",
        max_tokens=16,
        parse=False,
        search=Search(),
        whole=True,
    )
    (full,) = parse_completion(
        {
            "prompt": "a", "max_tokens": 5, "echo": True, "logprobs": 3, "n": 2, "best_of": 4,
            "temperature": 0.5, "stop": ["x"], "guided_regex": "a+", "cache_salt": "s",
        }
    )[1]  # fmt: skip
    assert (full.max_tokens, full.echo, full.top_logprobs) == (5, True, 3)
    assert (full.search, full.stop) == (Search(2, 4), ("x",))
    assert full.structure is not None
    assert (full.structure.param, full.cache_salt) == ("guided_regex", "s")
    assert parse_completion({"prompt": "a", "logprobs": 0})[1][0].top_logprobs == 0


async def test_one_prompt_whole_and_streamed(rig: Rig) -> None:
    status, body = await rig.post_json(PATH, model=MODEL, prompt="hi")
    lines = await rig.post_events("/v3/completions", prompt="hi")
    assert status == 200
    assert body["object"] == "text_completion"
    assert body["id"].startswith("cmpl-")
    assert body["choices"] == [
        {"index": 0, "text": TEXT, "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    ]
    assert body["usage"]["total_tokens"] == 12
    assert body["timings"]["tokens_per_s"] == 8.0
    Completion.model_validate(body)
    assert lines[-1] == "[DONE]"
    chunks = [json.loads(line) for line in lines[:-1]]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == TEXT
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["choices"][0]["text"] == ""
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}


async def repeat(fake: FakeStream) -> None:
    """Each answer says its prompt and its number; the usage tells prompts apart."""
    await fake.accept(prompt_tokens=len(fake.request.prompt or ""))
    for _ in range(3):
        for index in range(fake.request.search.n):
            text = f"{fake.request.prompt}{index} "
            await fake.send_deltas(Delta(0, text, 1, index))
            await asyncio.sleep(0)
    await fake.finish(
        usage=Usage(len(fake.request.prompt or ""), 6, 1),
        timings=Timings(0.1, 0.2, len(fake.request.prompt or ""), 4, 3),
        reason=FinishReason.LENGTH,
    )


async def test_many_prompts_are_many_answers_in_order() -> None:
    prompts = ["a", "bb", "ccc"]
    async with router_rig(repeat) as rig:
        status, body = await rig.post_json(PATH, prompt=prompts, n=2)
        lines = await rig.post_events(
            PATH, prompt=prompts, n=2, stream_options={"include_usage": True}
        )
        assert rig.router.workers.open_streams == 0
        assert not any(stream.cancelled for stream in rig.worker.streams)
    assert status == 200
    expected = [f"{prompt}{index} " * 3 for prompt in prompts for index in range(2)]
    assert [choice["text"] for choice in body["choices"]] == expected
    assert [choice["index"] for choice in body["choices"]] == list(range(6))
    usage = body["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (6, 18)
    assert usage["cached_tokens"] == 3
    assert (body["timings"]["decode_s"], body["timings"]["drafted_tokens"]) == (3.0, 12)
    chunks = [json.loads(line) for line in lines[:-1]]
    assert chunks[-1]["usage"] == usage
    texts = [""] * 6
    ends = []
    for chunk in chunks[:-1]:
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["text"]
        if choice["finish_reason"]:
            ends.append(choice["index"])
    assert texts == expected
    assert sorted(ends) == list(range(6))


@pytest.mark.parametrize("stream", [False, True])
async def test_one_prompt_refused_refuses_all_and_says_which(stream: bool) -> None:
    async def refuse_second(fake: FakeStream) -> None:
        if fake.request.prompt == "long":
            await fake.refuse(ErrorCode.CONTEXT_LENGTH_EXCEEDED, "too long", param="prompt")
        else:
            await fake.accept()
            await fake.say("x")

    async with router_rig(refuse_second) as rig:
        status, body = await rig.post_json(PATH, prompt=["a", "long", "b"], stream=stream)
        await until(lambda: rig.router.workers.open_streams == 0)
        others = [stream for stream in rig.worker.streams if stream.request.prompt != "long"]
        await until(lambda: all(stream.cancelled for stream in others))
    assert (status, body["error"]["code"]) == (400, "context_length_exceeded")
    assert body["error"]["param"] == "prompt[1]"


async def test_the_remarks_on_all_prompts_are_warnings() -> None:
    async def remarks(fake: FakeStream) -> None:
        await fake.accept(remarks=("All.", f"{fake.request.prompt} was cut."))
        await fake.finish("x")

    async with router_rig(remarks) as rig:
        status, body = await rig.post_json(PATH, prompt=["a", "b"])
    assert status == 200 and sorted(body["warnings"]) == ["All.", "a was cut.", "b was cut."]


async def test_one_prompt_lost_on_the_way_ends_all() -> None:
    async def fail_second(fake: FakeStream) -> None:
        await fake.accept()
        await fake.say("x")
        if fake.request.prompt == "b":
            await fake.fail(ErrorCode.ENGINE_ERROR, "no kernel")

    async with router_rig(fail_second) as rig:
        status, body = await rig.post_json(PATH, prompt=["a", "b"])
        lines = await rig.post_events(PATH, prompt=["a", "b"])
        first = [stream for stream in rig.worker.streams if stream.request.prompt == "a"]
        await until(lambda: all(stream.cancelled for stream in first))
    assert (status, body["error"]["code"]) == (500, "engine_error")
    assert json.loads(lines[-1])["error"]["code"] == "engine_error"


async def test_a_client_that_leaves_cancels_all_its_prompts() -> None:
    async def begin(fake: FakeStream) -> None:
        if fake.request.prompt != "never":
            await fake.accept()

    for prompts in (["a", "b"], ["a", "never"]):
        async with router_rig(begin) as rig:
            request = asyncio.create_task(rig.post_json(PATH, prompt=prompts))
            await rig.worker.stream(1)
            request.cancel()
            await until(lambda: all(stream.cancelled for stream in rig.worker.streams))
            await until(lambda: rig.router.traffic.under_way == 0)


async def test_a_worker_s_end_is_reported_to_a_request_of_many_prompts() -> None:
    async with router_rig(plays("so far")) as rig:
        request = asyncio.create_task(rig.post_events(PATH, prompt=["a", "b"]))
        await rig.worker.stream(1)
        await until(lambda: rig.router.workers.open_streams == 2)
        await rig.supervisor.exited(rig.worker.instance, MODEL, ExitCause.CRASH, "signal 9")
        lines = await request
    assert json.loads(lines[-1])["error"]["code"] == "worker_crashed"


async def test_a_slow_generation_of_many_prompts_keeps_to_its_credit() -> None:
    async def much(fake: FakeStream) -> None:
        await fake.accept()
        for index in range(300):
            await fake.say_within_credit(f"{fake.request.prompt}{index} ")
        await fake.finish()

    async with router_rig(much) as rig:
        _, body = await rig.post_json(PATH, prompt=["a", "b"])
    for choice, prompt in zip(body["choices"], "ab", strict=True):
        assert choice["text"] == "".join(f"{prompt}{index} " for index in range(300))


async def test_the_logprobs_of_prompts() -> None:
    """Those of each prompt are in all of its choices."""

    async def scored(fake: FakeStream) -> None:
        asked = fake.request
        await fake.accept()
        top = (TopLogprob(b"\xe6", -0.5, 3), TopLogprob(b"c", -1.5, len(asked.prompt or "")))
        first = TokenLogprob(b"a", None, 1)
        second = TokenLogprob(b"c", -1.5, len(asked.prompt or ""), top, 2)
        third = TokenLogprob(b"d", float("-inf"), 9, (), 7)
        for part in ((first, second), (third,)):
            await fake.send_deltas(Delta(0, "", 0, 0, DeltaKind.PROMPT, logprobs=part))
        await fake.send_deltas(*(Delta(0, "x", 1, index) for index in range(asked.search.n)))
        await fake.finish()

    async with router_rig(scored) as rig:
        _, body = await rig.post_json(PATH, prompt=["a", "bb"], n=2, prompt_logprobs=2)
        assert (await rig.worker.stream()).request.prompt_logprobs == 2
        _, one = await rig.post_json(PATH, prompt="bb", prompt_logprobs=2, return_token_ids=True)
        _, chat = await rig.chat_json(prompt_logprobs=2)
    impossible = {"9": {"logprob": -9999.0, "rank": 7, "decoded_token": "d"}}
    expected = [
        [
            None,
            {
                token: {"logprob": -1.5, "rank": 2, "decoded_token": "c"},
                "3": {"logprob": -0.5, "rank": 1, "decoded_token": "\ufffd"},
            },
            impossible,
        ]
        for token in ("0", "1", "2")
    ]
    assert [choice["text"] for choice in body["choices"]] == ["x"] * 4
    shown = [choice["prompt_logprobs"] for choice in body["choices"]]
    assert shown == [expected[1], expected[1], expected[2], expected[2]]
    assert list(shown[0][1]) == ["1", "3"], "the token itself comes first"
    assert one["choices"][0]["prompt_logprobs"] == expected[2]
    assert chat["prompt_logprobs"] == expected[0]
    assert "prompt_logprobs" not in chat["choices"][0]


async def test_echo_with_logprobs() -> None:
    async def echo(fake: FakeStream) -> None:
        assert fake.request.echo
        await fake.accept()
        top = (TopLogprob(b" b", -0.5, 2), TopLogprob(b" c", -1.5, 3))
        await fake.send_deltas(
            Delta(0, "a b", 0, logprobs=(
                TokenLogprob(b"a", None, 1), TokenLogprob(b" b", -0.5, 2, top))),
            Delta(0, " 日", 1, logprobs=(
                TokenLogprob(b" \xe6", -1.0, 4), TokenLogprob(b"\x97\xa5", -2.0, 5))),
        )  # fmt: skip
        await fake.finish()

    async with router_rig(echo) as rig:
        _, body = await rig.post_json(PATH, prompt="a b", echo=True, logprobs=2)
        lines = await rig.post_events(PATH, prompt="a b", echo=True, logprobs=2)
    (choice,) = body["choices"]
    assert choice["text"] == "a b 日"
    assert choice["logprobs"] == {
        "tokens": ["a", " b", "bytes:\\x20\\xe6", "bytes:\\x97\\xa5"],
        "token_logprobs": [None, -0.5, -1.0, -2.0],
        "top_logprobs": [
            None,
            {" b": -0.5, " c": -1.5},
            {"bytes:\\x20\\xe6": -1.0},
            {"bytes:\\x97\\xa5": -2.0},
        ],
        "text_offset": [0, 1, 3, 4],
    }
    pieces = [json.loads(line)["choices"][0]["logprobs"] for line in lines[:-1]]
    for name, values in choice["logprobs"].items():
        assert [value for piece in pieces if piece for value in piece[name]] == values
