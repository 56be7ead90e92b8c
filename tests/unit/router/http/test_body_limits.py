"""What a body may hold: counted before it is made into objects, and no stream waits for it."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmx.protocol.errors import RequestError
from lmx.router.http.bodies import limits as body_limits
from lmx.router.http.bodies.json_body import BODY_BUDGET
from lmx.router.http.bodies.limits import ALWAYS_BYTES, MAX_NUMBERS, MAX_VALUES, check_amounts
from lmx.router.schema.validation import MAX_FREE_VALUES
from lmx.router.server import app
from tests.support.fakes.fake_peers import FakeStream, until
from tests.support.rigs.router_rig import MODEL, Rig, answer, chat_body, joined_text, router_rig

BODY_LIMIT = 16 * 2**20
STALL_LIMIT_S = 2.0
"""Far more than any step may take, on a machine that is busy; what was mended took 6."""

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text() | st.just('\\"[{,'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


def held(value: Any) -> tuple[int, int]:
    """Strings, arrays and objects of a value; and its commas."""
    match value:
        case str():
            return 1, 0
        case list():
            parts = [held(item) for item in value]
            names = 0
        case dict():
            parts = [held(item) for item in value.values()]
            names = len(value)
        case _:
            return 0, 0
    commas = max(0, len(value) - 1)
    return 1 + names + sum(part[0] for part in parts), commas + sum(part[1] for part in parts)


def refusal(payload: bytes) -> RequestError | None:
    try:
        for _ in check_amounts(payload):
            pass
    except RequestError as error:
        return error
    return None


@settings(max_examples=30)
@given(st.dictionaries(st.text(), JSON), st.integers(1, 9))
def test_values_and_commas_are_counted_exactly_whatever_the_pieces(
    value: dict[str, Any], piece_bytes: int
) -> None:
    values, commas = held(value)
    payload = orjson.dumps(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body_limits, "_PIECE_BYTES", piece_bytes)
        patch.setattr(body_limits, "MAX_VALUES", values)
        patch.setattr(body_limits, "MAX_NUMBERS", commas - values)
        assert refusal(payload) is None
        patch.setattr(body_limits, "MAX_NUMBERS", commas - values - 1)
        assert refusal(payload) is not None
        patch.setattr(body_limits, "MAX_NUMBERS", commas)
        patch.setattr(body_limits, "MAX_VALUES", values - 1)
        error = refusal(payload)
        assert error is not None
        assert error.param is None or error.param in value


@given(st.binary(), st.integers(1, 9))
def test_what_is_no_json_is_counted_without_a_fault(payload: bytes, piece_bytes: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body_limits, "_PIECE_BYTES", piece_bytes)
        patch.setattr(body_limits, "MAX_VALUES", 3)
        refusal(payload)


def filled(before: str, one: str, after: str) -> bytes:
    """A body of 15 MiB, of which the middle repeats."""
    count = (15 * 2**20 - len(before) - len(after)) // len(one)
    return (before + one * count + after).encode()


HEAD = f'{{"model": "{MODEL}", "messages": [{{"role": "user", "content": "hi"}}], '
HOSTILE = {
    "chat_template_kwargs": filled(HEAD + '"chat_template_kwargs": {"a": [', "[],", "[]]}}"),
    "tools": filled(HEAD + '"tools": [', "{},", "{}]}"),
    "response_format": filled(
        HEAD + '"response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": [',
        "[[]],", "[]]}}}}",
    ),
    "metadata": filled(HEAD + '"metadata": {', '"a":"b",', '"z":"b"}}'),
    "unknown_field": filled(HEAD + '"unknown_field": [', "null,", "0]}"),
    "stop": filled(HEAD + '"stop": [', '"",', '""]}'),
    "messages": filled('{"model": "x", "messages": [', '{"role":"user","content":"a"},', "{}]}"),
}  # fmt: skip


async def post(rig: Rig, path: str, body: bytes) -> tuple[int, Any]:
    async with rig.http.post(
        f"{rig.url}{path}", data=body, headers={"Content-Type": "application/json"}
    ) as response:
        return response.status, await response.json()


@asynccontextmanager
async def no_stall() -> AsyncIterator[None]:
    """Within the block nothing holds the event loop up for long. Time in which the machine did
    something else than this process does not count."""
    longest_s = 0.0

    async def watch() -> None:
        nonlocal longest_s
        while True:
            began_s, began_cpu_s = time.monotonic(), time.process_time()
            await asyncio.sleep(0.005)
            took_s, took_cpu_s = time.monotonic() - began_s, time.process_time() - began_cpu_s
            longest_s = max(longest_s, min(took_s, took_cpu_s))

    task = asyncio.create_task(watch())
    try:
        yield
    finally:
        task.cancel()
    assert longest_s < STALL_LIMIT_S


async def test_too_many_values_are_refused_by_field_and_no_stream_waits() -> None:
    async def slow(stream: FakeStream) -> None:
        await stream.accept()
        while not released.is_set():
            await stream.say_within_credit("x")
            await asyncio.sleep(0.02)
        await stream.finish("end")

    released = asyncio.Event()
    async with router_rig(slow, body_limit_bytes=BODY_LIMIT) as rig, no_stall():
        streamed = asyncio.create_task(rig.chat_events(stream_options={"include_usage": True}))
        await rig.worker.stream()
        posts = [post(rig, "/v1/chat/completions", body) for body in HOSTILE.values()]
        for field, (status, said) in zip(HOSTILE, await asyncio.gather(*posts), strict=True):
            assert (status, said["error"]["param"]) == (400, field)
            assert said["error"]["code"] == "invalid_value"
            assert field in said["error"]["message"]
            limit = MAX_NUMBERS if field == "unknown_field" else MAX_VALUES
            assert str(limit) in said["error"]["message"]
        released.set()
        assert joined_text(await streamed).endswith("end")


@pytest.mark.parametrize("value", [[], {}, 0, "a", None], ids=str)
async def test_a_free_object_holds_less_than_a_body(value: Any) -> None:
    many = {"a": [value] * MAX_FREE_VALUES}
    async with router_rig(body_limit_bytes=BODY_LIMIT) as rig:
        for field, place, fields in (
            ("chat_template_kwargs", "", {"chat_template_kwargs": many}),
            ("guided_json", "", {"guided_json": many}),
            (
                "tools",
                "[0].function.parameters",
                {"tools": [{"type": "function", "function": {"name": "f", "parameters": many}}]},
            ),
        ):
            status, said = await rig.chat_json(**fields)
            assert (status, said["error"]["param"]) == (400, field + place)
            assert str(MAX_FREE_VALUES) in said["error"]["message"]


async def test_large_bodies_of_honest_clients_are_taken() -> None:
    text = '{"a": ["x, y", "\\\\", [[],{}], \'ä\']}\n' * 150_000
    properties = {f"p{n}": {"type": "string"} for n in range(20)}
    functions = [{"name": f"f{n}", "parameters": {"properties": properties}} for n in range(1000)]
    async with router_rig(body_limit_bytes=BODY_LIMIT) as rig, no_stall():
        turn = {"role": "user", "content": [{"type": "text", "text": "a, [b]"}] * 2}
        for fields in (
            {"messages": [{"role": "user", "content": text}]},
            {"messages": [turn] * 9_000},
            {"tools": [{"type": "function", "function": one} for one in functions]},
        ):
            status, said = await rig.chat_json(**fields)
            assert status == 200, said
        first = rig.worker.streams[0].request
        assert first.messages is not None
        assert first.messages[0]["content"] == text


@pytest.mark.parametrize("count", [100_000, MAX_NUMBERS])
async def test_long_prompts_of_tokens_are_taken(count: int) -> None:
    async with router_rig(body_limit_bytes=BODY_LIMIT) as rig, no_stall():
        tokens = list(range(count))
        status, said = await rig.post_json("/v1/completions", model=MODEL, prompt=tokens)
        assert status == 200, said
        assert rig.worker.streams[0].request.prompt_tokens == tuple(tokens)


@pytest.mark.parametrize("wrong", [True, -1, 2**31, 2**40, 1.5, "1", None, []])
async def test_one_wrong_token_of_many_is_found(rig: Rig, wrong: Any) -> None:
    tokens: list[Any] = [1] * 1000
    tokens[700] = wrong
    for prompt, place in ((tokens, ""), ([[2] * 500, tokens], "[1]")):
        status, said = await rig.post_json("/v1/completions", model=MODEL, prompt=prompt)
        assert (status, said["error"]["param"]) == (400, f"prompt{place}[700]")


async def test_large_bodies_at_once_leave_the_loop_to_others_in_between() -> None:
    body = orjson.dumps(chat_body(messages=[{"role": "user", "content": "a, b" * 2**20}] * 2))
    async with router_rig(answer, body_limit_bytes=BODY_LIMIT) as rig, no_stall():
        answers = await asyncio.gather(
            *(post(rig, "/v1/chat/completions", body) for _ in range(10))
        )
        assert [status for status, _ in answers] == [200] * 10


def half_sent(size_bytes: int) -> bytes:
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"
    return f"{head}\r\nContent-Length: {size_bytes + 1}\r\n\r\n".encode() + b" " * size_bytes


async def test_bodies_that_are_being_sent_share_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "MOST_BYTES", 3 * 2**20)
    async with router_rig(body_limit_bytes=2**20) as rig:
        budget = rig.router._runner.app[BODY_BUDGET]
        writers = []
        for _ in range(3):
            _, writer = await asyncio.open_connection("127.0.0.1", rig.spec.port)
            writer.write(half_sent(2**20 - 1))
            writers.append(writer)
        await until(lambda: budget.held_bytes == 3 * (2**20 - 1 - ALWAYS_BYTES), 20)
        large = chat_body(messages=[{"role": "user", "content": "a" * 500_000}])
        status, said = await post(rig, "/v1/chat/completions", orjson.dumps(large))
        assert (status, said["error"]["code"]) == (429, "queue_full")
        # One of usual size is taken nevertheless.
        assert (await rig.chat_json())[0] == 200
        for writer in writers:
            writer.transport.abort()
        await until(lambda: budget.held_bytes == 0, 20)
        assert (await post(rig, "/v1/chat/completions", orjson.dumps(large)))[0] == 200
        await until(lambda: budget.held_bytes == 0, 20)
