"""What is counted of requests, what Prometheus and dashboards are shown of it, and of models."""

import asyncio
import shutil
import subprocess
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families

from lmx.protocol.errors import ErrorCode, LmxError
from lmx.protocol.messages.control import Acquire
from lmx.protocol.messages.counts import CountsKept, ReportCounts
from lmx.protocol.messages.data import Timings
from lmx.protocol.messages.inventory import Downloads, DownloadView, GetDownloads
from lmx.protocol.messages.keys import ApiKey, KeyScope, RateLimits
from lmx.protocol.messages.status import GetStatus, Status
from lmx.protocol.states import DownloadStatus, ExitCause, FinishReason, SlotState
from lmx.router.http.endpoint import Access, Endpoint
from lmx.router.http.outcome import CLIENT_LEFT, Outcome
from lmx.router.http.rate_limits import RateLimiter
from lmx.router.metrics.exposition import Scrape, exposition
from lmx.router.metrics.requests import (
    NONE,
    OTHER,
    REASONS,
    Histogram,
    KeyTally,
    RequestMetrics,
    named_keys,
)
from lmx.router.metrics.shared_counts import SharedCounts
from lmx.router.operators.metrics import metrics as metrics_handler
from lmx.router.peers.forwarded import read_record
from lmx.router.schema.requests.chat import ChatRequest
from tests.support.fakes.admin_lines import cold_line, reported_status, status_line
from tests.support.fakes.fake_peers import FakeStream, cold, ends, plays, ready, until
from tests.support.references.metric_lint import problems
from tests.support.rigs.router_rig import INSTANCE, MODEL, Rig, router_rig

KEY = {"X-Admin-Key": "test-admin-key"}

STATUS = reported_status(
    status_line(
        MODEL, memory_bytes=300, reserved_bytes=400, peak_memory_bytes=350, kv_bytes=25,
        kv_capacity_bytes=100, requests_active=2, requests_queued=3, prompt_tokens_total=90,
        cached_tokens_total=60, drafted_tokens_total=8, accepted_tokens_total=5, preempted_total=7,
        loads_total=6,
        load_s_total=1.5, compute_s_total=2.5, energy_joules=75.5, restarts=2,
        exits={"crash": 2, "hang": 1, "evicted": 4},
    ),
    cold_line("big", state="queued", kv_capacity_bytes=None),
    router={"restarts": 1},
    budget_bytes=1000, reserved_bytes=700, missing_bytes=5, memory_pressure="soft", swaps_total=4,
    machine_watts=31.5, machine_energy_joules=99.5,
)  # fmt: skip
DOWNLOAD = DownloadView(
    "d1", "org/x", None, None, DownloadStatus.DOWNLOADING, 10, 5, 1.0, 1700000000.0
)

CHAT = Endpoint(
    "POST", "/v1/chat/completions", metrics_handler, Access.INFERENCE, "Chat", "Answer",
    request=ChatRequest,
)  # fmt: skip


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Every sample by name and label values, as Prometheus reads them."""
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def scrape(rig: Rig, path: str = "/metrics") -> str:
    async with rig.http.get(f"{rig.url}{path}", headers=KEY) as response:
        assert response.status == 200
        assert response.headers["Content-Type"].startswith("text/plain; version=")
        return await response.text()


async def figures(rig: Rig) -> Any:
    status, body = await rig.json("GET", "/admin/metrics/json", headers=KEY)
    assert status == 200
    return body


async def counted(rig: Rig, requests: int) -> Any:
    """The figures once so many requests have ended: an answer is there before its end is."""
    await until(lambda: rig.router.metrics.read().totals.requests == requests)
    return await figures(rig)


# From the supervisor's status.


async def test_metrics_are_those_of_the_supervisor_s_status(rig: Rig) -> None:
    rig.supervisor.replies[GetStatus] = Status(STATUS)
    rig.supervisor.replies[GetDownloads] = Downloads((DOWNLOAD,))
    await rig.publish(ready(MODEL, INSTANCE), cold("big", SlotState.QUEUED))
    waiting = asyncio.create_task(rig.chat_json(model="big"))
    await until(lambda: rig.router.queues.waiting("big") == 1)
    found = samples(await scrape(rig))
    admin = samples(await scrape(rig, "/admin/metrics"))
    assert {key[0] for key in admin} == {key[0] for key in found}
    assert rig.supervisor.count(Acquire) == 1, "metrics wake nothing"
    waiting.cancel()
    expected = {
        ("lmx_supervisor_up",): 1,
        ("lmx_memory_budget_bytes",): 1000,
        ("lmx_memory_reserved_bytes",): 700,
        ("lmx_memory_missing_bytes",): 5,
        ("lmx_memory_pressure",): 1,
        ("lmx_evictions_total",): 4,
        ("lmx_router_restarts_total",): 1,
        ("lmx_model_memory_bytes", MODEL): 300,
        ("lmx_model_reserved_bytes", MODEL): 400,
        ("lmx_model_peak_bytes", MODEL): 350,
        ("lmx_model_loaded", MODEL): 1,
        ("lmx_model_loaded", "big"): 0,
        ("lmx_model_state", MODEL, "ready"): 1,
        ("lmx_model_state", MODEL, "cold"): 0,
        ("lmx_model_state", "big", "queued"): 1,
        ("lmx_model_loads_total", MODEL): 6,
        ("lmx_model_load_duration_seconds_sum", MODEL): 1.5,
        ("lmx_model_load_duration_seconds_count", MODEL): 6,
        ("lmx_worker_restarts_total", MODEL): 2,
        ("lmx_worker_exits_total", "crash", MODEL): 2,
        ("lmx_worker_exits_total", "killed", MODEL): 0,
        ("lmx_watchdog_kills_total", MODEL): 1,
        ("lmx_model_unloads_total", MODEL, "evicted"): 4,
        ("lmx_model_unloads_total", MODEL, "expired"): 0,
        ("lmx_num_requests_running", MODEL): 2,
        ("lmx_num_requests_waiting", MODEL): 3,
        ("lmx_num_requests_waiting", "big"): 1,
        ("lmx_kv_cache_usage_perc", MODEL): 0.25,
        ("lmx_kv_cache_capacity_bytes", MODEL): 100,
        ("lmx_prefix_cache_queries_total", MODEL): 90,
        ("lmx_prefix_cache_hits_total", MODEL): 60,
        ("lmx_spec_decode_num_draft_tokens_total", MODEL): 8,
        ("lmx_spec_decode_num_accepted_tokens_total", MODEL): 5,
        ("lmx_num_preemptions_total", MODEL): 7,
        ("lmx_compute_seconds_total", MODEL): 2.5,
        ("lmx_energy_joules_total", MODEL): 75.5,
        ("lmx_machine_energy_joules_total",): 99.5,
        ("lmx_machine_power_watts",): 31.5,
        ("lmx_batches", "in_progress"): 0,
        ("lmx_batch_lines_waiting",): 0,
        ("lmx_batch_lines_total", "completed"): 0,
        ("lmx_downloads", "downloading"): 1,
        ("lmx_downloads", "failed"): 0,
    }
    assert {key: found.get(key) for key in expected} == expected
    assert ("lmx_kv_cache_usage_perc", "big") not in found
    assert found["process_resident_memory_bytes",] > 1_000_000


async def test_without_a_supervisor_metrics_are_what_the_router_knows(rig: Rig) -> None:
    await rig.publish(ready(MODEL, INSTANCE, memory_bytes=77))
    await rig.chat_json()
    await counted(rig, 1)
    early = samples(await scrape(rig))
    rig.supervisor.answers_beats = False
    await until(lambda: not rig.router.supervisor.alive)
    found = samples(await scrape(rig))
    assert early["lmx_supervisor_up",] == found["lmx_supervisor_up",] == 0
    assert found["lmx_model_loaded", MODEL] == 1
    assert found["lmx_model_memory_bytes", MODEL] == 77
    assert found["lmx_requests_total",] == 1
    assert ("lmx_memory_budget_bytes",) not in found


# Of requests.


async def test_requests_are_counted_once_and_as_they_ended() -> None:
    async def script(stream: FakeStream) -> None:
        await stream.accept(prompt_tokens=7)
        match len(rig.worker.streams):
            case 1:
                await stream.say("a")
                await stream.say("b")
                await stream.finish("c", tokens=3, reason=FinishReason.LENGTH)
            case 2:
                await stream.say("a")
                await stream.fail(ErrorCode.ENGINE_ERROR, "broken")

    async with router_rig(script) as rig:
        await rig.chat_json()
        await rig.chat_events()
        assert (await rig.chat_json(model="nobody"))[0] == 404
        assert (await rig.chat_json(messages=[]))[0] == 400
        async with rig.http.get(f"{rig.url}/nowhere/{'x' * 30}") as response:
            assert response.status == 404
        leaving = asyncio.create_task(rig.chat_json())
        await rig.worker.stream(2)
        leaving.cancel()
        body = await counted(rig, 5)
        found = samples(await scrape(rig))
    assert found["lmx_requests_total",] == 5
    assert found["lmx_errors_total",] == 3
    assert found["lmx_stream_requests_total",] == 1
    assert found["lmx_request_success_total", "length", MODEL] == 1
    assert found["lmx_request_success_total", "abort", MODEL] == 1
    assert found["lmx_request_success_total", "stop", MODEL] == 0
    assert found["lmx_request_errors_total", "engine_error", MODEL] == 1
    assert found["lmx_request_errors_total", "model_not_found", NONE] == 1
    assert found["lmx_generation_tokens_total", MODEL] == 4, "one of an answer that was cut off"
    assert found["lmx_prompt_tokens_cached_total", MODEL] == 4
    assert found["lmx_time_to_first_token_seconds_count", MODEL] == 2
    assert found["lmx_e2e_request_latency_seconds_count", MODEL] == 1
    assert found["lmx_request_duration_seconds_count", MODEL] == 3
    assert found["lmx_request_queue_time_seconds_sum", MODEL] == pytest.approx(0.01)
    assert found["lmx_request_prefill_time_seconds_sum", MODEL] == pytest.approx(0.02)
    assert found["lmx_request_decode_time_seconds_sum", MODEL] == pytest.approx(0.5)
    assert found["lmx_request_generation_tokens_bucket", "2.0", MODEL] == 1
    assert found["lmx_request_generation_tokens_bucket", "5.0", MODEL] == 2
    assert found["lmx_http_requests_total", "POST", "/v1/chat/completions", "4xx"] == 3
    assert found["lmx_http_requests_total", NONE, NONE, "4xx"] == 1
    assert not [key for key in found if "x" * 30 in key or "nobody" in key]
    # Dashboards are shown the same.
    assert body.pop("uptime_seconds") > 0
    total_prompt = found["lmx_prompt_tokens_total", MODEL]
    assert body == {
        "total_requests": 5,
        "total_errors": 3,
        "total_stream_requests": 1,
        "total_prompt_tokens": total_prompt,
        "total_completion_tokens": 4,
        "per_model": {MODEL: {"requests": 3, "errors": 1, "completion_tokens": 4}},
    }


async def test_a_model_that_leaves_takes_its_series_with_it_and_totals_stay(rig: Rig) -> None:
    assert (await rig.chat_json())[0] == 200
    before = await counted(rig, 1)
    await rig.publish(ready("other", INSTANCE))
    after = await figures(rig)
    text = await scrape(rig)
    assert list(before["per_model"]) == [MODEL]
    assert list(after["per_model"]) == ["other"]
    assert after["total_completion_tokens"] == before["total_completion_tokens"] == 5
    assert MODEL not in text


async def test_polls_are_no_requests(rig: Rig) -> None:
    for _ in range(3):
        await scrape(rig)
        await figures(rig)
        async with rig.http.get(f"{rig.url}/health") as response:
            assert response.status == 200
    found = samples(await scrape(rig))
    assert not [key for key in found if key[0] == "lmx_http_requests_total"]


def counting(*models: str) -> RequestMetrics:
    return RequestMetrics(lambda: models)


@pytest.mark.parametrize(
    ("fields", "status", "reason", "code"),
    [
        ({"finish_reason": "stop"}, 200, "stop", None),
        ({"finish_reason": "stop,length"}, 200, "length", None),
        ({"finish_reason": "stop,tool_calls"}, 200, "tool_calls", None),
        ({}, 200, "stop", None),
        ({"error": CLIENT_LEFT}, 499, "abort", None),
        ({"error": "worker_hung"}, 200, None, "worker_hung"),
        ({"error": "queue_full"}, 429, None, "queue_full"),
        ({"error": "made up"}, 500, None, "internal_server_error"),
        ({}, 500, None, "internal_server_error"),
    ],
)
def test_a_request_ends_well_or_with_one_error(
    fields: dict[str, Any], status: int, reason: str | None, code: str | None
) -> None:
    metrics = counting(MODEL)
    metrics.request_ended(Outcome(model=MODEL, **fields), CHAT, status, 0.0)
    tally = metrics.read().models[MODEL]
    assert dict(tally.reasons) == ({} if reason is None else {reason: 1})
    assert dict(tally.errors) == ({} if code is None else {code: 1})


def test_how_fast_the_last_answer_came() -> None:
    metrics = counting(MODEL)
    assert metrics.last_tokens_per_s(MODEL) is None
    for speed in (10.0, 15.0):
        metrics.request_ended(Outcome(model=MODEL, tokens_per_s=speed), CHAT, 200, 1.0)
    metrics.request_ended(Outcome(model=MODEL, error="queue_full"), CHAT, 429, 1.0)
    # What a peer says of a request that was forwarded to it is not this machine's speed.
    record = orjson.dumps({"completion_tokens": 300, "decode_s": 1.0, "tokens_per_s": 299.0})
    forwarded = replace(Outcome(model=MODEL), **read_record(record))
    assert forwarded.decode_s == 1.0
    metrics.request_ended(forwarded, CHAT, 200, 1.0)
    assert metrics.last_tokens_per_s(MODEL) == 15.0


@pytest.mark.parametrize(("answers", "tokens", "speed"), [(1, 11, 5.0), (8, 88, 5.0), (1, 1, None)])
async def test_the_speed_is_that_of_each_answer_after_its_first_token(
    answers: int, tokens: int, speed: float | None
) -> None:
    script = plays(ends("a", tokens=tokens, timings=Timings(queue_s=0, prefill_s=1, decode_s=2.0)))
    async with router_rig(script) as rig:
        assert (await rig.chat_json(n=answers))[0] == 200
        await counted(rig, 1)
        assert rig.router.metrics.last_tokens_per_s(MODEL) == speed


def test_models_that_come_and_go_leave_nothing_behind() -> None:
    present: list[str] = []
    metrics = RequestMetrics(lambda: present)
    for number in range(50):
        present[:] = [f"m{number}"]
        metrics.request_ended(Outcome(model=f"m{number}"), CHAT, 200, 1.0)
    metrics.request_ended(Outcome(), CHAT, 404, 1.0)
    assert len(metrics._models) <= 2
    assert set(metrics.read().models) == {"m49", NONE}


def test_few_keys_are_named_and_those_that_are_gone_leave_nothing_behind() -> None:
    made = tuple(
        replace(ApiKey.of_secret(f"secret-{number}", f"k{number}"), created_at_s=100.0 - number)
        for number in range(60)
    )
    home = ApiKey.of_secret("a-key-of-the-configuration", "home:1")
    grafana = ApiKey.of_secret("a-key-for-metrics", "grafana", scopes=(KeyScope.METRICS,))
    there = [(grafana, *made, home)]
    metrics = RequestMetrics(lambda: (MODEL,), keys=lambda: there[0])
    assert named_keys((grafana,)) == frozenset()
    used = Outcome(model=MODEL, prompt_tokens=3, completion_tokens=2)
    for key in (*made, home, home, None):
        metrics.request_ended(used, CHAT, 200, 1.0, key)
    metrics.job_ended(Outcome(model=MODEL, prompt_tokens=5, completion_tokens=4), 3, home)
    found = metrics.read().keys
    assert found["home:1"] == KeyTally(2, 2 * 3 + 2, 2 * 2 + 4)
    assert (found[OTHER].requests, found[NONE].requests) == (11, 1)
    assert {"k11", "k59"} < set(found)
    assert "k10" not in found, "the first that were made are named, and the configuration's"
    assert sum(one.requests for one in found.values()) == metrics.read().totals.requests
    later = RequestMetrics(lambda: (MODEL,), keys=lambda: there[0])
    later.begin_with(metrics.tallies())
    assert later.read().keys == found, "another router counts on"
    there[0] = (home,)
    for counts in (metrics, later):
        assert set(counts.read().keys) == {"home:1", OTHER, NONE}
    assert len(metrics._keys) == 3


@pytest.mark.parametrize(("alive", "asked"), [(True, 2), (False, 1)])
async def test_a_router_that_ends_reports_again_what_was_not_taken(alive: bool, asked: int) -> None:
    """Nobody else knows it; but whoever is gone is not waited for."""
    reports: list[ReportCounts] = []

    async def ask(question: ReportCounts, _deadline_s: float) -> CountsKept:
        reports.append(question)
        if len(reports) < 2:
            raise LmxError(ErrorCode.SUPERVISOR_UNAVAILABLE, "lmx's supervisor is busy")
        return CountsKept(1, 0.0)

    supervisor: Any = SimpleNamespace(ask=ask, epoch="e1", alive=alive)
    metrics = counting(MODEL)
    counts = SharedCounts(
        supervisor, metrics, RateLimiter(RateLimits(), (), RateLimits(), metrics.rate_limited)
    )
    metrics.request_ended(Outcome(model=MODEL), CHAT, 200, 1.0)
    await counts.report_last()
    assert len(reports) == asked
    assert reports[-1].tallies == metrics.tallies()


def test_a_value_is_in_the_bucket_whose_bound_it_does_not_exceed() -> None:
    histogram = Histogram((0.5, 1.0, 2.0))
    histogram.add((0.1, 0.5, 0.50001, 2.0, 99.0))
    assert histogram.buckets() == [("0.5", 2), ("1.0", 3), ("2.0", 4), ("+Inf", 5)]
    copied = histogram.copy()
    histogram.add((1.0,))
    assert (copied.count, histogram.count) == (5, 6)
    assert copied.total == pytest.approx(102.10001)


# The text.


def full_text() -> str:
    """An exposition with every family, and every series that there can be of one model."""
    metrics = counting(MODEL, "big")
    for reason in REASONS:
        outcome = Outcome(
            model=MODEL, stream=True, finish_reason=reason,
            prompt_tokens=10, cached_tokens=5, completion_tokens=20,
            load_s=0.1, queue_s=0.2, prefill_s=0.3, decode_s=0.4,
            ttft_s=0.6, gaps_s=[0.01, 0.02, 500.0],
        )  # fmt: skip
        metrics.request_ended(outcome, CHAT, 200, 1.0)
    metrics.request_ended(Outcome(model=MODEL, audio_s=10.0), CHAT, 200, 1.0)
    for code in ErrorCode:
        metrics.request_ended(Outcome(model=MODEL, error=code.value), CHAT, 500, 1.0)
    metrics.request_ended(Outcome(), CHAT, 404, 1.0)
    metrics.request_ended(Outcome(), None, 404, 1.0)
    metrics.rate_limited("key", "requests")
    return exposition(
        Scrape("1.2.3", STATUS, (), {"big": 1}, Downloads((DOWNLOAD,)), metrics.read())
    ).decode()


def test_the_full_text_keeps_to_prometheus_rules() -> None:
    text = full_text()
    assert problems(text) == []
    families = {family.name: family for family in text_string_to_metric_families(text)}
    for name in ("lmx_request_duration_seconds", "lmx_inter_token_latency_seconds"):
        assert families[name].type == "histogram"
    assert all(family.samples for family in families.values()), "every family is tried here"
    assert "_created" not in text


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool on the PATH")
def test_promtool_finds_nothing_either() -> None:
    def check(text: str) -> str:
        command = ["promtool", "check", "metrics"]
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=90)
        return done.stdout + done.stderr + "failed" * bool(done.returncode)

    assert check(full_text()) == ""
    assert check("# TYPE a gauge\na 1\n") != "", "it does find what is wrong"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("# HELP a x\n# TYPE a counter\na 1\n", "_total"),
        ("# HELP a_total x\n# TYPE a_total gauge\na_total 1\n", "_total"),
        ("# TYPE a gauge\na 1\n", "no help"),
        ("# HELP a_ms x\n# TYPE a_ms gauge\na_ms 1\n", "base unit"),
        ("# HELP a x\n# TYPE a gauge\na 1\na 2\n", "twice"),
        ("# HELP a x\n# TYPE a gauge\na 1\nb 2\n", "outside"),
        ('# HELP a x\n# TYPE a histogram\na_bucket{le="1.0"} 1\na_count 1\na_sum 1\n', "bounds"),
        (
            '# HELP a x\n# TYPE a histogram\na_bucket{le="1.0"} 2\na_bucket{le="+Inf"} 1\n'
            "a_count 1\na_sum 1\n",
            "go down",
        ),
        ('# HELP a x\n# TYPE a gauge\na{b="1"c="2"} 1\n', "can't be read"),
    ],
)
def test_our_own_rules_find_what_is_wrong(text: str, words: str) -> None:
    assert any(words in problem for problem in problems(text)), problems(text)


def test_labels_are_bounded() -> None:
    odd = reported_status(status_line(MODEL, exits={"never heard of": 3}))
    scraped = Scrape("1", odd, (), {}, None, counting(MODEL).read())
    causes = {
        key[1]
        for key in samples(exposition(scraped).decode())
        if key[0] == "lmx_worker_exits_total"
    }
    assert causes == {cause.value for cause in ExitCause}


def test_a_label_may_hold_anything() -> None:
    odd = 'a"b\\c\nd'
    status = reported_status(status_line(odd, memory_bytes=1))
    text = exposition(Scrape("1", status, (), {}, None, counting(odd).read())).decode()
    assert problems(text) == []
    assert samples(text)["lmx_model_memory_bytes", odd] == 1
