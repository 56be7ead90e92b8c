"""What operators use: the global limit, the admin key, the reload, the metrics."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fake_peers import FakeStream, cold, ready, until
from prometheus_client.parser import text_string_to_metric_families
from router_rig import INSTANCE, MODEL, Rig, knows, router_rig

from lmx.protocol.control import (
    Acquire,
    Denied,
    GetStatus,
    ReloadConfig,
    Reloaded,
    Status,
)
from lmx.protocol.errors import ErrorCode
from lmx.protocol.states import ExitCause, SlotState
from lmx.router.access import is_loopback
from lmx.router.metric_families import exposition

KEY = {"X-Admin-Key": "test-admin-key"}
RELOAD = "/admin/config/reload"


async def accept_only(stream: FakeStream) -> None:
    await stream.accept()


async def ask(
    rig: Rig, method: str, path: str, headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    async with rig.http.request(method, f"{rig.url}{path}", headers=headers or {}) as response:
        is_json = response.content_type == "application/json"
        return response.status, await (response.json() if is_json else response.text())


# The limit of requests at a time.


async def test_more_requests_than_the_limit_are_429_and_operators_get_through() -> None:
    async with router_rig(accept_only, max_requests=2) as rig:
        rig.supervisor.replies = {
            ReloadConfig: Reloaded((), ()),
            GetStatus: Status({"workers": []}),
        }
        held = [asyncio.create_task(rig.chat_json()) for _ in range(2)]
        await rig.worker.stream(1)
        async with rig.chat() as response:
            assert response.status == 429
            assert int(response.headers["Retry-After"]) >= 1
            error = (await response.json())["error"]
            assert (error["code"], error["type"]) == ("queue_full", "rate_limit_error")
        assert (await ask(rig, "GET", "/v1/models"))[0] == 429
        for path in ("/health", "/metrics"):
            assert (await ask(rig, "GET", path))[0] == 200
        assert (await ask(rig, "POST", RELOAD, KEY))[0] == 200
        assert rig.router.traffic.under_way == 2
        held.pop().cancel()
        await until(lambda: rig.router.traffic.under_way == 1)
        assert (await ask(rig, "GET", "/v1/models"))[0] == 200
        held.pop().cancel()


# The key.


@pytest.mark.parametrize(("method", "path"), [("POST", RELOAD), ("GET", "/admin/metrics")])
@pytest.mark.parametrize("given", [None, "", "test-admin-ke", "test-admin-keyy", "Test-admin-key"])
async def test_admin_routes_need_the_key(method: str, path: str, given: str | None) -> None:
    async with router_rig() as rig:
        headers = {} if given is None else {"X-Admin-Key": given}
        status, body = await ask(rig, method, path, headers)
        assert (status, body["error"]["code"]) == (401, "invalid_authentication")
        assert body["error"]["type"] == "authentication_error"
        assert "test-admin-key" not in str(body)
        assert not rig.supervisor.count(ReloadConfig)


async def test_no_key_in_the_spec_opens_nothing() -> None:
    async with router_rig(admin_key="") as rig:
        assert (await ask(rig, "POST", RELOAD, {"X-Admin-Key": ""}))[0] == 401


# Reload.


async def test_a_reload_says_what_changed() -> None:
    async with router_rig() as rig:
        rig.supervisor.replies[ReloadConfig] = Reloaded(("models", "memory"), ("added tiny",))
        status, body = await ask(rig, "POST", RELOAD, KEY)
    assert status == 200
    assert body == {"success": True, "updated": ["models", "memory"], "changes": ["added tiny"]}


async def test_a_bad_configuration_is_a_400_with_all_that_is_wrong() -> None:
    problems = "memory.soft_line: must be below 1\nmodels[0].id: missing"
    async with router_rig() as rig:
        rig.supervisor.replies[ReloadConfig] = Denied(ErrorCode.CONFIG_INVALID, problems)
        status, body = await ask(rig, "POST", RELOAD, KEY)
    assert (status, body["error"]["code"]) == (400, "config_invalid")
    assert body["error"]["message"] == problems


async def test_a_reload_without_a_supervisor_is_503() -> None:
    async with router_rig() as rig:
        await rig.supervisor.stop()
        status, body = await ask(rig, "POST", RELOAD, KEY)
    assert (status, body["error"]["code"]) == (503, "supervisor_unavailable")


# Metrics.

STATUS: dict[str, Any] = {
    "supervisor": {
        "budget_bytes": 1000,
        "reserved_bytes": 700,
        "missing_bytes": 5,
        "memory_pressure": "soft",
        "swaps_total": 4,
    },
    "router": {"restarts": 1},
    "workers": [
        {
            "model": MODEL,
            "state": "ready",
            "memory_bytes": 300,
            "reserved_bytes": 400,
            "peak_memory_bytes": 350,
            "requests_active": 2,
            "requests_queued": 3,
            "loads_total": 6,
            "load_s_total": 1.5,
            "exits": {"crash": 2},
        },
        {"model": "big", "state": "queued", "memory_bytes": 0},
    ],
}


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Every sample by name and label values, as Prometheus reads them."""
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_metrics_are_those_of_the_supervisor_s_status() -> None:
    async with router_rig() as rig:
        rig.supervisor.replies[GetStatus] = Status(STATUS)
        await rig.supervisor.publish(ready(MODEL, INSTANCE), cold("big", SlotState.QUEUED))
        await until(lambda: knows(rig.router, rig.supervisor.revision))
        waiting = asyncio.create_task(rig.chat_json(model="big"))
        await until(lambda: rig.router.room.waiting("big") == 1)
        status, text = await ask(rig, "GET", "/metrics")
        assert (status, await ask(rig, "GET", "/admin/metrics", KEY)) == (200, (200, text))
        assert rig.supervisor.count(Acquire) == 1, "metrics wake nothing"
        waiting.cancel()
    found = samples(text)
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
        ("lmx_model_load_seconds_total", MODEL): 1.5,
        ("lmx_worker_exits_total", "crash", MODEL): 2,
        ("lmx_worker_exits_total", "hang", MODEL): 0,
        ("lmx_num_requests_running", MODEL): 2,
        ("lmx_num_requests_waiting", MODEL): 3,
        ("lmx_num_requests_waiting", "big"): 1,
    }
    assert {key: found.get(key) for key in expected} == expected


async def test_without_a_supervisor_metrics_are_what_the_router_knows() -> None:
    async with router_rig() as rig:
        await rig.supervisor.publish(ready(MODEL, INSTANCE, memory_bytes=77))
        await until(lambda: knows(rig.router, rig.supervisor.revision))
        rig.supervisor.answers_beats = False
        await until(lambda: not rig.router.supervisor.alive)
        status, text = await ask(rig, "GET", "/metrics")
    found = samples(text)
    assert status == 200
    assert found["lmx_supervisor_up",] == 0
    assert found["lmx_model_loaded", MODEL] == 1
    assert found["lmx_model_memory_bytes", MODEL] == 77
    assert ("lmx_memory_budget_bytes",) not in found


def test_labels_are_bounded() -> None:
    odd = {"model": MODEL, "state": "ready", "exits": {"never heard of": 3}}
    text = exposition({"workers": [odd]}, {}, supervisor_up=True).decode()
    causes = {key[1] for key in samples(text) if key[0] == "lmx_worker_exits_total"}
    assert causes == {cause.value for cause in ExitCause}


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True), ("::1", True), ("localhost", True), ("127.0.0.2", True),
        ("0.0.0.0", False), ("::", False), ("192.168.1.4", False), ("mac.local", False),
    ],
)  # fmt: skip
def test_metrics_are_open_on_loopback_alone(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback
