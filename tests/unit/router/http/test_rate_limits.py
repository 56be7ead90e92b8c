"""Limits of requests, tokens and requests at a time: the decisions, and what clients see."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmx.protocol.errors import ErrorCode, UnavailableError
from lmx.protocol.messages.counts import KeyUsage
from lmx.protocol.messages.keys import ApiKey, RateLimits
from lmx.router.http.rate_limits import RateLimiter, reset_text
from lmx.router.http.token_estimate import estimate_in_steps, estimated_tokens
from tests.support.fakes.fake_peers import FakeStream, ends, plays, until
from tests.support.rigs.router_rig import Rig, answer, chat_body, router_rig

NONE = RateLimits()


def limiter(
    per_key: RateLimits = NONE,
    own: dict[str, RateLimits] | None = None,
    total: RateLimits = NONE,
    refused: Counter[tuple[str, str]] | None = None,
) -> RateLimiter:
    """A limiter whose key `a` is called "ci"."""
    counts: Counter[tuple[str, str]] = Counter() if refused is None else refused

    def note(scope: str, limit: str) -> None:
        counts[scope, limit] += 1

    keys = [
        ApiKey(digest="", owner=owner, name="ci" if owner == "a" else "", limits=its)
        for owner, its in ({"a": None} | (own or {})).items()
    ]
    return RateLimiter(per_key, keys, total, note)


def ask(limits: RateLimiter, asker: str, now_s: float, tokens: float = 0.0) -> Any:
    """Begin a request and charge its tokens; returns the admission, or the error."""
    admission = limits.open(asker, now_s)
    assert admission is not None
    try:
        admission.begin(now_s)
        admission.charge(tokens, now_s)
    except UnavailableError as error:
        admission.end(0, now_s)
        return error
    return admission


def test_nothing_is_measured_where_nothing_is_limited() -> None:
    assert limiter().open("a", 0.0) is None
    assert limiter(own={"a": RateLimits(1)}).open("b", 0.0) is None


def test_a_minutes_requests_may_come_at_once_and_then_evenly() -> None:
    limits = limiter(RateLimits(requests_per_minute=3))
    for _ in range(3):
        ask(limits, "a", 0.0).end(0, 0.0)
    error = ask(limits, "a", 0.0)
    assert (error.code, error.retry_after_s) == (ErrorCode.RATE_LIMIT_EXCEEDED, 20.0)
    assert error.message == (
        "Rate limit reached for the key 'ci' on requests per minute: limit 3, used 3, "
        "requested 1. Try again in 20s."
    )
    assert ask(limits, "a", 19.9).code is ErrorCode.RATE_LIMIT_EXCEEDED
    ask(limits, "a", 20.0).end(0, 20.0)
    ask(limits, "b", 0.0).end(0, 0.0)  # another key's are its own


def test_tokens_are_charged_by_estimate_and_corrected() -> None:
    limits = limiter(RateLimits(tokens_per_minute=100))
    first = ask(limits, "a", 0.0, 80.0)
    error = ask(limits, "a", 0.0, 30.0)
    assert "tokens per minute: limit 100, used 80, requested 30" in error.message
    assert error.retry_after_s == pytest.approx(6.0)
    first.end(20, 0.0)
    second = ask(limits, "a", 0.0, 80.0)
    second.end(200, 0.0)  # it took more than anybody thought: a debt
    assert ask(limits, "a", 60.0, 1.0).code is ErrorCode.RATE_LIMIT_EXCEEDED
    assert ask(limits, "a", 121.0, 1.0) is not None


def test_a_request_larger_than_the_limit_waits_for_a_whole_minutes_tokens() -> None:
    limits = limiter(RateLimits(tokens_per_minute=100))
    ask(limits, "a", 0.0, 500.0).end(500, 0.0)
    assert ask(limits, "a", 240.0, 500.0).code is ErrorCode.RATE_LIMIT_EXCEEDED
    ask(limits, "a", 300.0, 500.0).end(1, 300.0)


def test_an_answer_allowed_beyond_all_limits_is_no_debt_before_it_is_there() -> None:
    """The worker lowers such a limit; others must not wait for what nobody will use."""
    limits = limiter(RateLimits(tokens_per_minute=100), total=RateLimits(tokens_per_minute=400))
    huge = ask(limits, "a", 0.0, 1_000_000.0)
    assert ask(limits, "b", 0.0, 10.0).retry_after_s == pytest.approx(0.15)
    huge.end(20, 0.0)
    assert {one.asker: one.tokens for one in limits.usage(0.0).values()} == {"a": 20.0, "": 20.0}


def test_a_request_that_is_refused_for_its_tokens_costs_nothing() -> None:
    limits = limiter(RateLimits(2, 100, 1))
    assert ask(limits, "a", 0.0, 60.0).end(60, 0.0) is None
    for _ in range(5):
        assert "tokens" in ask(limits, "a", 0.0, 60.0).message
    assert limits.usage(0.0)["a"] == KeyUsage("a", 1.0, 60.0)


def test_as_many_at_a_time_as_the_limit_says() -> None:
    refused: Counter[tuple[str, str]] = Counter()
    limits = limiter(
        own={"a": RateLimits(concurrent_requests=1)},
        total=RateLimits(concurrent_requests=2),
        refused=refused,
    )
    first, second = ask(limits, "a", 0.0), ask(limits, "b", 0.0)
    assert "the key 'ci' on requests at a time: limit 1" in ask(limits, "a", 0.0).message
    assert "all keys together on requests at a time" in ask(limits, "c", 0.0).message
    first.end(0, 0.0)
    first.end(0, 0.0)
    assert ask(limits, "a", 0.0).end(0, 0.0) is None
    second.end(0, 0.0)
    assert refused == {("key", "concurrent_requests"): 1, ("total", "concurrent_requests"): 1}


def test_what_was_used_continues_with_the_next_router() -> None:
    spec = RateLimits(2, 100, 2)
    before, after = limiter(spec, total=spec), limiter(spec, total=spec)
    ask(before, "a", 0.0, 50.0)
    ask(before, "a", 0.0, 10.0).end(10, 0.0)
    after.inherit(before.usage(0.0).values(), 0.0)
    after.note_elsewhere(before.usage(0.0), 0.0)
    assert "requests per minute" in ask(after, "a", 0.0).message
    assert "all keys together" in ask(after, "b", 0.0).message
    going = ask(after, "a", 40.0, 30.0)
    assert "requests at a time: limit 2, used 2" in ask(after, "a", 60.0).message
    after.note_elsewhere({}, 60.0)
    assert ask(after, "a", 65.0, 1.0).end(1, 65.0) is None
    going.end(30, 60.0)


def test_the_next_router_does_not_inherit_estimates() -> None:
    spec = RateLimits(tokens_per_minute=100)
    before, after = limiter(spec), limiter(spec)
    ask(before, "a", 0.0, 10.0).end(10, 0.0)
    going = ask(before, "a", 0.0, 80.0)
    assert before.usage(0.0)["a"] == KeyUsage("a", 0.0, 10.0, 1)
    assert before.usage(30.0)["a"].tokens == 0.0, "time took more than was used"
    after.inherit(before.usage(0.0).values(), 0.0)
    assert ask(after, "a", 0.0, 80.0).end(80, 0.0) is None
    going.end(70, 30.0)
    assert before.usage(30.0)["a"] == KeyUsage("a", 0.0, 30.0)


def test_so_many_askers_are_remembered_and_those_that_used_most_longest() -> None:
    limits = limiter(RateLimits(100, 1000), total=RateLimits(tokens_per_minute=10**9))
    running = ask(limits, "running", 0.0)
    for number in range(3000):
        ask(limits, f"heavy {number}", 0.0).end(900, 0.0)
    for number in range(9000):
        ask(limits, f"light {number}", 0.0).end(1, 0.0)
        if number % 500 == 0:
            assert len(limits.usage(0.0)) <= 4097
    usage = limits.usage(0.0)
    assert {"", "running", *(f"heavy {number}" for number in range(3000))} <= usage.keys()
    assert usage[""].tokens == 3000 * 900 + 9000
    running.end(7, 0.0)
    assert limits.usage(0.0)["running"].tokens == 7


def test_a_new_asker_does_not_make_room_for_all_keys_together() -> None:
    limits = limiter(RateLimits(100, 1000), total=RateLimits(requests_per_minute=10**6))
    limits.inherit([KeyUsage(f"key {number}", 1.0, 1.0) for number in range(4095)], 0.0)
    ask(limits, "new", 0.0).end(990, 0.0)
    assert limits.usage(0.0)["new"].tokens == 990
    assert limits.usage(0.0)[""].requests == 1


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.floats(0, 30), st.floats(0, 400), st.integers(0, 400)),
        max_size=80,
    ),
    st.integers(1, 20),
    st.integers(1, 300),
)
def test_no_minute_has_more_than_twice_the_limit_and_nothing_is_lost(
    steps: list[tuple[str, float, float, int]], requests: int, tokens: int
) -> None:
    """A bucket that holds a minute's worth gives out at most that and what fills in meanwhile."""
    limits = limiter(RateLimits(requests, tokens), total=RateLimits(2 * requests, 2 * tokens))
    now_s = 0.0
    times: dict[str, list[float]] = {name: [] for name in "abc"}
    for asker, pause_s, estimate, real in steps:
        now_s += pause_s
        got = ask(limits, asker, now_s, estimate)
        if isinstance(got, UnavailableError):
            assert got.retry_after_s is not None
            assert got.retry_after_s > 0
        else:
            times[asker].append(now_s)
            got.end(real, now_s)
        headers = limits.open(asker, now_s).headers(now_s)  # type: ignore[union-attr]
        assert 0 <= int(headers["x-ratelimit-remaining-requests"]) <= requests
        assert 0 <= int(headers["x-ratelimit-remaining-tokens"]) <= tokens
    for served in times.values():
        assert all(
            sum(start <= at < start + 60.0 for at in served) <= 2 * requests for start in served
        )
    # Whatever happened, all is free again after a quiet time.
    quiet_s = now_s + 60.0 * (2 + 80 * 400 / tokens)
    assert limits.usage(quiet_s) == {}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0ms"), (0.12, "120ms"), (1, "1s"), (8.2, "9s"), (360, "6m0s"), (3723, "1h2m3s")],
)
def test_times_are_written_as_openai_does(seconds: float, text: str) -> None:
    assert reset_text(seconds) == text


def test_tokens_are_estimated_from_text_and_limits() -> None:
    text = "word " * 80
    assert estimated_tokens({"messages": [{"role": "x", "content": text}]}) == 400 / 4 + 0.25
    assert estimated_tokens({"prompt": [1, 2, 3], "max_tokens": 10, "n": 4}) == 43
    assert estimated_tokens({"input": "ß" * 40, "max_tokens": "many"}) == 80 / 4 + 1
    image = {"image_url": {"url": "data:image/png;base64," + "A" * 1_000_000}}
    assert estimated_tokens({"messages": [image]}) == 256


@pytest.mark.parametrize(
    ("part", "tokens"),
    [
        ({"image_url": "A" * 10_000}, 256),
        ({"image_url": {"url": "A" * 10_000, "detail": "low"}}, 256),
        ({"input_audio": {"data": "A" * 10_000, "format": "wav"}}, 256),
        ({"audio": "A" * 10_000}, 256),
        ({"video_url": {"url": "A" * 10_000}}, 4096),
        ({"input_video": "A" * 10_000}, 4096),
        ({"source": {"media_type": "", "data": "A" * 10_000}}, 256),
        ({"source": {"type": "text", "data": "A" * 10_000}}, 2501),
        ({"video": {"name": "A" * 400}}, 100),
        ({"audio": None}, 0),
    ],
)
def test_media_are_estimated_by_their_kind_and_not_by_their_bytes(
    part: dict[str, Any], tokens: float
) -> None:
    assert estimated_tokens({"messages": [{"content": [part]}]}) == tokens


def test_a_large_body_is_estimated_in_small_steps() -> None:
    numbers: list[Any] = [0.5] * 300_000
    body = {"input": [*numbers, "word", None, *numbers, [1, 2]], "max_tokens": 7}
    steps = list(estimate_in_steps(body))
    assert sum(steps) == estimated_tokens(body) == 1 + 2 + 7
    assert len(steps) > 600_000 / 2**15
    assert len(list(estimate_in_steps({"input": ["word"] * 100_000}))) > 10
    assert list(estimate_in_steps({"prompt": "word"})) == [1.0]


# With a router.

LIMITS = RateLimits(requests_per_minute=2, tokens_per_minute=1000)
A, B = "key-a-0123456789", "key-b-0123456789"


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def post(rig: Rig, key: str, **fields: Any) -> tuple[int, dict[str, str], Any]:
    url = f"{rig.url}/v1/chat/completions"
    async with rig.http.post(url, json=chat_body(**fields), headers=bearer(key)) as response:
        headers = {name.lower(): value for name, value in response.headers.items()}
        return response.status, headers, await response.read()


async def test_every_answer_has_the_headers_and_a_refusal_says_when() -> None:
    keys = (ApiKey.of_secret(A, "ci"), ApiKey.of_secret(B))
    async with router_rig(api_keys=keys, key_limits=LIMITS) as rig:
        status, headers, _ = await post(rig, A, max_tokens=100)
        assert status == 200
        assert headers["x-ratelimit-limit-requests"] == "2"
        assert headers["x-ratelimit-remaining-requests"] == "1"
        assert headers["x-ratelimit-reset-requests"] == "30s"
        assert headers["x-ratelimit-limit-tokens"] == "1000"
        status, headers, _ = await post(rig, A, stream=True)
        assert (status, headers["x-ratelimit-remaining-requests"]) == (200, "0")
        status, headers, body = await post(rig, A)
        assert (status, headers["x-ratelimit-remaining-requests"]) == (429, "0")
        assert 25 <= int(headers["retry-after"]) <= 30
        assert b'"code":"rate_limit_exceeded"' in body
        assert b"the key 'ci' on requests per minute" in body
        assert (await post(rig, B))[0] == 200
        models = f"{rig.url}/v1/models"
        async with rig.http.get(models, headers=bearer(A)) as response:
            assert response.status == 200, "only what makes a model work is limited"
            assert not any(name.lower().startswith("x-ratelimit") for name in response.headers)
        admin = {"X-Admin-Key": rig.spec.admin_key}
        text = await (await rig.http.get(f"{rig.url}/metrics", headers=admin)).text()
        assert 'lmx_rate_limited_requests_total{limit="requests",scope="key"} 1.0' in text


async def test_real_usage_takes_the_estimates_place() -> None:
    async with router_rig(total_limits=RateLimits(tokens_per_minute=1000)) as rig:
        async with rig.chat(max_tokens=900, stream=True) as response:
            left = int(response.headers["x-ratelimit-remaining-tokens"])
            assert left < 110, "a stream's headers go out before it is known what it takes"
            await response.read()
        async with rig.chat(max_tokens=900) as response:
            assert int(response.headers["x-ratelimit-remaining-tokens"]) > 950
        async with rig.chat(max_tokens=900) as response:
            assert response.status == 200, "the answer before had a few tokens only"
        async with rig.chat(max_tokens=5000) as response:
            assert response.status == 429
            assert "all keys together on tokens per minute" in await response.text()


async def test_a_request_at_a_time_and_a_client_that_leaves() -> None:
    begun = asyncio.Event()

    async def slow(stream: FakeStream) -> None:
        await stream.accept()
        begun.set()
        await asyncio.Event().wait()

    one = RateLimits(concurrent_requests=1)
    async with router_rig(slow, key_limits=one) as rig:
        first = asyncio.create_task(post(rig, A))
        await begun.wait()
        status, headers, _ = await post(rig, A)
        assert (status, headers["retry-after"]) == (429, "1")
        first.cancel()
        rig.worker.script = answer
        await until(lambda: not rig.router.limiter.usage(0.0))
        assert (await post(rig, A))[0] == 200


async def test_a_job_that_continues_after_its_time_out_counts_until_its_end() -> None:
    go_on = asyncio.Event()

    slow = plays(go_on, ends("late", tokens=5))

    limits = RateLimits(tokens_per_minute=1000, concurrent_requests=1)
    async with router_rig(slow, key_limits=limits, sync_timeout_s=0.2) as rig:
        assert (await post(rig, A, max_tokens=500))[0] == 504
        assert (await post(rig, A))[0] == 429
        go_on.set()
        await until(lambda: all(used.running == 0 for used in rig.router.limiter.usage(0).values()))
        (used,) = rig.router.limiter.usage(0.0).values()
        assert used.tokens < 100


async def test_the_worker_learns_whose_turn_it_is() -> None:
    seen: list[str] = []

    async def reported(stream: FakeStream) -> None:
        seen.append(stream.request.owner)
        await answer(stream)

    async with router_rig(reported, api_keys=(A, B)) as rig:
        await post(rig, A)
        await post(rig, B)
    assert seen == [ApiKey.of_secret(A).owner, ApiKey.of_secret(B).owner]
    async with router_rig(reported) as rig:
        await post(rig, A)
    assert seen[2] == "127.0.0.1"
